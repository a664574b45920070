"""From a run with adapters to a directory that PEFT opens beside the model that they adapt.

Shapes: I input width, O output width, R rank.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmtool import durable
from lmtool.compute.device import CPU
from lmtool.durable import atomic_output_folder, check_folder_is_empty
from lmtool.errors import UsageError
from lmtool.export.card import PLACEHOLDER, adapter_card
from lmtool.export.exporting import Exportable, TypeName, as_type, express, to_json
from lmtool.inference.load import load_trained_model
from lmtool.inference.reference import Reference, find_base, resolve_reference
from lmtool.interop.families.layouts import TRANSPOSED
from lmtool.interop.names import HUB, parse_hub
from lmtool.model.lora import AdaptedLinear
from lmtool.recipe.spec.training import Lora
from lmtool.run import tensors

WRAPPED = "base_model.model."
"""What PEFT puts before the names of the model that it wraps."""
_WHOLE = "export all of its weights, without --adapters"


@dataclass(frozen=True)
class Adapter:
    """The adapter of one of their linear layers. n: how many of ours it is made of, each of the recipe's rank."""

    n: int
    down_RI: Tensor
    up_OR: Tensor


def export_adapters(reference: str, folder: Path, dtype: TypeName = "float32") -> Exportable:
    """Write the adapters of a run, and its head, as a directory for PEFT, to be opened on its exported base.

    Raises UsageError for a run without adapters, for one that is expressed by another family than its base, for weights
    that `dtype` cannot hold, and for a folder that is in use; CheckpointError when the base is missing; ResourceError.
    """
    check_folder_is_empty(folder)
    adapted = resolve_reference(reference)
    spec = adapted.recipe.tuning.lora
    if spec is None:
        fix = "export all of its weights, without --adapters, or name a run that was trained with tuning.lora"
        raise UsageError("this run has no adapters", where=str(adapted.run.path), fix=fix)
    base = find_base(adapted.run)
    exportable = _expressed_alike(adapted, base)
    adapters, head = _adapters(exportable), dict(_head(exportable))
    weights = {f"{WRAPPED}{name}": tensor for name, tensor in head.items()}
    for module, adapter in adapters.items():
        weights[f"{WRAPPED}{module}.lora_A.weight"] = adapter.down_RI
        weights[f"{WRAPPED}{module}.lora_B.weight"] = adapter.up_OR
    typed = {name: as_type(name, tensor.contiguous(), dtype) for name, tensor in weights.items()}
    name, revision = _published(base)
    config = {
        "peft_type": "LORA",
        "task_type": _task(exportable),
        "base_model_name_or_path": name or PLACEHOLDER,
        "revision": revision,
        "inference_mode": True,
        **_keys(exportable, spec, adapters, head),
    }
    labels = exportable.config.get("id2label")
    files = {
        "adapter_config.json": to_json(config),
        "README.md": adapter_card(adapted, name, base, labels).encode(),
        **exportable.tokenizer_files(),
    }
    with atomic_output_folder(folder) as new:
        durable.write_new_file(
            new / "adapter_model.safetensors", tensors.serialize_safetensors(typed, {"format": "pt"})
        )
        for file, content in files.items():
            durable.write_new_file(new / file, content)
    return exportable


def _expressed_alike(adapted: Reference, base: Reference) -> Exportable:
    """The adapted model in the terms of the family that its base is exported as."""
    family = express(base).family.model_type
    exportable = express(adapted, family)
    if exportable.family.model_type != family:
        what = f"the base is exported as {family}, which cannot express the adapted model"
        raise UsageError(what, where=str(adapted.run.path), fix=_WHOLE)
    if exportable.beside:
        what = "no class of Transformers has this head, so PEFT cannot adapt it"
        raise UsageError(what, where=exportable.beside, fix=_WHOLE)
    return exportable


def _adapters(exportable: Exportable) -> dict[str, Adapter]:
    """The adapters by their names of linear layers.

    Where theirs is one matrix of several of ours, its adapter has all their ranks: the product of block matrices.
    """
    base = exportable.base
    model = load_trained_model(base, CPU)
    linears = {f"{name}.weight": part for name, part in model.named_modules() if isinstance(part, AdaptedLinear)}
    adapters = {}
    for weight in exportable.weights():
        if (linear := linears.get(weight.ours)) is None:
            continue
        down_RI, up_OR = linear.down_RI.detach(), linear.up_OR.detach()
        products = weight.layout.split_product(linear.blocks(up_OR), down_RI)
        # which columns of each B any of its rows reads, whatever its values
        read = weight.layout.split_product(linear.blocks(torch.ones_like(up_OR)), down_RI)
        for name, (up, down), (ones, _) in zip(weight.theirs, products, read, strict=True):
            used_R = ones.any(0)
            if used_R.any():
                n = int(used_R.sum()) // linear.rank
                adapters[name.removesuffix(".weight")] = Adapter(n, down[used_R], up[:, used_R])
    return adapters


def _head(exportable: Exportable) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a classifier's head, in the family's names."""
    tensors = exportable.divided(exportable.base.checkpoint.load_model())
    for weight in exportable.weights() if exportable.has_head else ():
        if not weight.ours.startswith("body."):
            yield from zip(weight.theirs, weight.layout.split(tensors[weight.ours]), strict=True)


def _published(base: Reference) -> tuple[str | None, str | None]:
    """The name and revision of the base on the Hub, if it is an imported model that was never trained here."""
    origin = base.run.info.origin
    if origin is None or not origin.reference.startswith(HUB):
        return None, None
    name, revision = parse_hub(origin.reference)
    return name, origin.revision or revision


def _task(exportable: Exportable) -> str | None:
    """PEFT's name of the task."""
    if exportable.has_head:
        tasks = {"classification": "SEQ_CLS", "tagging": "TOKEN_CLS", "question-answering": "QUESTION_ANS"}
        return tasks[exportable.recipe.objective.kind]
    reads = exportable.model.reads
    return {"past": "CAUSAL_LM", "source": "SEQ_2_SEQ_LM"}.get(reads)


def _keys(exportable: Exportable, spec: Lora, adapters: Mapping[str, Adapter], head: Collection[str]) -> dict[str, Any]:
    """The keys of adapter_config.json about layers: all have the recipe's rank but those that join several of ours."""
    weights = exportable.weights()
    layouts = {name.removesuffix(".weight"): one.layout for one in weights for name in one.theirs}
    modules = {name.rpartition(".")[0] for one in weights for name in one.theirs}
    modules |= {name.rpartition(".")[0] for name in exportable.constants()}
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    for n in sorted({adapter.n for adapter in adapters.values()} - {1}):
        joined = {module for module, adapter in adapters.items() if adapter.n == n}
        for suffix in _suffixes(joined, modules):
            ranks[suffix], alphas[suffix] = n * spec.rank, n * spec.alpha
    prefix = exportable.family.prefix
    saved = {name.rpartition(".")[0] if prefix and name.startswith(prefix) else name.partition(".")[0] for name in head}
    return {
        "r": spec.rank,
        "lora_alpha": spec.alpha,
        "lora_dropout": spec.dropout,
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "bias": "none",
        "fan_in_fan_out": any(layouts[module] == TRANSPOSED for module in adapters),
        "target_modules": _suffixes(adapters, modules),
        "modules_to_save": sorted(saved) or None,
    }


def _suffixes(chosen: Collection[str], modules: Collection[str]) -> list[str]:
    """The shortest ends of the names of some modules that no other module's name has."""
    suffixes = set()
    for module in chosen:
        parts = module.split(".")
        ends = (".".join(parts[-n:]) for n in range(1, len(parts) + 1))
        others = [f".{other}" for other in modules if other not in chosen]
        suffixes.add(next(end for end in ends if not any(other.endswith(f".{end}") for other in others)))
    return sorted(suffixes)
