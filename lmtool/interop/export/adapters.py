"""Exports the adapters of a run as a directory that PEFT opens on the model that they adapt.

Shapes: I input width, O output width, R rank.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmtool.compute.device import CPU
from lmtool.errors import UsageError
from lmtool.interop.export import exporting
from lmtool.interop.export.card import BASE_PLACEHOLDER, format_adapter_card
from lmtool.interop.export.exporting import ExportableRun, ExportDtype
from lmtool.interop.families.layouts import TRANSPOSED, Factors
from lmtool.interop.references import HUB_PREFIX, parse_hub_reference
from lmtool.interop.resolve import resolve_reference
from lmtool.model.lora import LoraLinear
from lmtool.recipe.spec.training import Lora
from lmtool.runs.load import load_trained_model
from lmtool.runs.reference import Reference, find_unchanged_base
from lmtool.storage import durable
from lmtool.storage.durable import atomic_output_folder, check_folder_is_empty

PEFT_PREFIX = "base_model.model."
"""What PEFT puts before the names of the model that it wraps."""
_MERGE_FIX = "export all of its weights, without --adapters"


def export_peft_adapters(reference: str, output_folder: Path, dtype: ExportDtype = "float32") -> ExportableRun:
    """Writes the adapters of a run, and its head, as a directory for PEFT, to be opened on its exported base.

    Raises UsageError for a run without adapters, for one that is expressed by another family than its base, for weights
    that `dtype` cannot hold, and for a folder that is in use; CheckpointError when the base is missing; ResourceError.
    """
    check_folder_is_empty(output_folder)
    adapted = resolve_reference(reference)
    lora = adapted.recipe.tuning.lora
    if lora is None:
        fix = f"{_MERGE_FIX}, or name a run that was trained with tuning.lora"
        raise UsageError("this run has no adapters", where=str(adapted.run.path), fix=fix)
    base = find_unchanged_base(adapted.run)
    exportable = _prepare_export_as_base_family(adapted, base)
    adapters = _convert_lora_adapters(exportable)
    head: dict[str, Tensor] = {}
    if exportable.has_head:
        saved = exportable.divide_head_by_temperature(exportable.base.checkpoint.load_model())
        for mapping in exportable.list_parameter_mappings():
            if not mapping.name.startswith("body."):
                head |= zip(mapping.published_names, mapping.layout.split(saved[mapping.name]), strict=True)
    weights = {f"{PEFT_PREFIX}{name}": tensor for name, tensor in head.items()}
    for module, (up_OR, down_RI) in adapters.items():
        weights[f"{PEFT_PREFIX}{module}.lora_A.weight"] = down_RI
        weights[f"{PEFT_PREFIX}{module}.lora_B.weight"] = up_OR
    converted = {name: exporting.cast_checking_overflow(name, tensor, dtype) for name, tensor in weights.items()}
    base_name = revision = None
    origin = base.run.info.origin
    if origin is not None and origin.reference.startswith(HUB_PREFIX):
        # an imported model that was never trained here
        base_name, revision = parse_hub_reference(origin.reference)
        revision = origin.revision or revision
    task_type = {"past": "CAUSAL_LM", "source": "SEQ_2_SEQ_LM"}.get(exportable.model.reads)
    if exportable.has_head:
        task_types = {"classification": "SEQ_CLS", "tagging": "TOKEN_CLS", "question-answering": "QUESTION_ANS"}
        task_type = task_types[exportable.recipe.objective.kind]
    config = {
        "peft_type": "LORA",
        "task_type": task_type,
        "base_model_name_or_path": base_name or BASE_PLACEHOLDER,
        "revision": revision,
        "inference_mode": True,
        **_peft_layer_config(exportable, lora, adapters, head),
    }
    labels = exportable.config.get("id2label")
    files = {
        "adapter_config.json": exporting.format_json_file(config),
        "README.md": format_adapter_card(adapted, base, base_name, labels).encode(),
        **exportable.serialize_tokenizer(),
    }
    with atomic_output_folder(output_folder) as new:
        exporting.write_safetensors(new / "adapter_model.safetensors", converted)
        for name, content in files.items():
            durable.write_and_sync_new_file(new / name, content)
    return exportable


def _prepare_export_as_base_family(adapted: Reference, base: Reference) -> ExportableRun:
    """Expresses the adapted model in the terms of the family that its base is exported as."""
    model_type = exporting.prepare_export(base).family.model_type
    exportable = exporting.prepare_export(adapted, model_type)
    if exportable.family.model_type != model_type:
        what = f"the base is exported as {model_type}, which cannot express the adapted model"
        raise UsageError(what, where=str(adapted.run.path), fix=_MERGE_FIX)
    if exportable.has_separate_head:
        what = "no class of Transformers has this head, so PEFT cannot adapt it"
        raise UsageError(what, where=exportable.head_obstacles, fix=_MERGE_FIX)
    return exportable


def _convert_lora_adapters(exportable: ExportableRun) -> dict[str, Factors]:
    """The factors (O, R) and (R, I) of adapters, by the published names of linear layers.

    Where a published matrix holds several of lmtool's, its adapter has all their ranks: the product of block matrices.
    """
    model = load_trained_model(exportable.base, CPU)
    linears = {f"{name}.weight": part for name, part in model.named_modules() if isinstance(part, LoraLinear)}
    adapters = {}
    for mapping in exportable.list_parameter_mappings():
        if (linear := linears.get(mapping.name)) is None:
            continue
        down_RI, up_OR = linear.down_RI.detach(), linear.up_OR.detach()
        products = mapping.layout.split_into_published_factors(linear.block_diagonal_up(up_OR), down_RI)
        # which columns of each `up` any of its rows has, whatever its values
        used = mapping.layout.split_into_published_factors(linear.block_diagonal_up(torch.ones_like(up_OR)), down_RI)
        for name, (up, down), (ones, _) in zip(mapping.published_names, products, used, strict=True):
            used_R = ones.any(0)
            if used_R.any():
                adapters[name.removesuffix(".weight")] = up[:, used_R], down[used_R]
    return adapters


def _peft_layer_config(
    exportable: ExportableRun, lora: Lora, adapters: Mapping[str, Factors], head_tensor_names: Collection[str]
) -> dict[str, Any]:
    """The keys of adapter_config.json about layers: all have the rank of the recipe but those of several matrices."""
    layout_by_name = {name: one.layout for one in exportable.list_parameter_mappings() for name in one.published_names}
    modules = {name.rpartition(".")[0] for name in layout_by_name}
    modules |= {name.rpartition(".")[0] for name in exportable.constant_tensors()}
    # the number of lmtool's matrices in a published one
    n_joined = {module: down_RI.shape[0] // lora.rank for module, (_, down_RI) in adapters.items()}
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    for n in sorted({*n_joined.values()} - {1}):
        for suffix in _unique_suffixes({module for module in adapters if n_joined[module] == n}, modules):
            ranks[suffix], alphas[suffix] = n * lora.rank, n * lora.alpha
    prefix = exportable.family.prefix
    saved = {
        name.rpartition(".")[0] if prefix and name.startswith(prefix) else name.partition(".")[0]
        for name in head_tensor_names
    }
    return {
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "bias": "none",
        "fan_in_fan_out": any(layout_by_name[f"{module}.weight"] == TRANSPOSED for module in adapters),
        "target_modules": _unique_suffixes(adapters, modules),
        "modules_to_save": sorted(saved) or None,
    }


def _unique_suffixes(chosen: Collection[str], modules: Collection[str]) -> list[str]:
    """The shortest ends of the names of the chosen modules that no other module's name has."""
    suffixes = set()
    for module in chosen:
        parts = module.split(".")
        ends = (".".join(parts[-n:]) for n in range(1, len(parts) + 1))
        others = [f".{other}" for other in modules if other not in chosen]
        suffixes.add(next(end for end in ends if not any(other.endswith(f".{end}") for other in others)))
    return sorted(suffixes)
