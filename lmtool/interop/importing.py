"""From a published model to an ordinary run: its recipe, its tokenizer, and a checkpoint at step 0.

Weights go from file to file, one tensor at a time. What a RUN argument names is imported once into the cache, and found
again there by the content of its files.
"""

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from lmtool.checksum import sha256_of_file, sha256_of_json
from lmtool.durable import (
    atomic_output_folder,
    check_folder_is_empty,
    convert_os_errors,
    convert_write_errors,
    hold_lock,
    write_file,
)
from lmtool.errors import CheckpointError, ResourceError
from lmtool.interop.families.family import BODY, Described
from lmtool.interop.families.layouts import Weight
from lmtool.interop.families.rules import HEADS, read_labels
from lmtool.interop.names import HUB, NOTE, imports_folder, known_run, noted, parse_hub, pointer_of
from lmtool.interop.sources import Source, download, open_source
from lmtool.model import with_head
from lmtool.model.size import BEYOND, outline, size_of
from lmtool.printable import printable
from lmtool.recipe.dump import dump
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.transformer import Transformer
from lmtool.run.creation import check_output_folder, create_run, make_run_path
from lmtool.run.directory import RECIPE
from lmtool.run.files import RunInfo
from lmtool.run.paths import RUN_INFO_FILE, add_to_runs_index
from lmtool.run.saving import Snapshot
from lmtool.run.tensors import ComputedTensors
from lmtool.tokenization.inner import SPECIAL_TOKENS, convert_panics, parse_tokenizer_json
from lmtool.tokenization.tokenizer import Tokenizer

COLUMNS = ("text_columns", "label_column", "source_column", "target_column", "input_column", "messages_column")
VERSION = 1
"""Part of the key of the cache: incremented when the same files would give another run."""

Report = Callable[[str, int, int], None]
"""Called with the stage, and the bytes done and in total."""


def imported(reference: str) -> Path:
    """The run of a published model, in the cache; imported if it is not there yet.

    reference: hf:ORG/NAME[@REVISION], a Hugging Face directory, or a .gguf file. A name of the Hub that was imported
    before is not asked for again. Raises CheckpointError for what cannot be imported.
    """
    if not reference.startswith(HUB):
        return _cached(open_source(Path(reference)), reference, None)
    if (known := known_run(reference)) is not None:
        return known
    path, commit = download(reference)
    run = _cached(open_source(path), reference, commit)
    _note(pointer_of(reference), run.name)
    return run


def import_run(reference: str, output: Path | None, report: Report) -> Path:
    """Make a run of a published model, in `output`, or in a new one of the runs directory. Asks the Hub for updates."""
    commit = None
    path = Path(reference)
    if reference.startswith(HUB):
        path, commit = download(reference)
        with convert_write_errors(imports_folder()):
            pointer_of(reference).unlink(missing_ok=True)  # what was downloaded may be newer
    run = output or make_run_path(_name(reference))
    check_folder_is_empty(run)
    check_output_folder(run)
    source = open_source(path)
    _write(source, reference, commit, run, _digests(source), report)
    add_to_runs_index(run)
    return run


def _name(reference: str) -> str:
    """A name for the run of a model."""
    last = parse_hub(reference)[0].replace("/", "--") if reference.startswith(HUB) else Path(reference).resolve().stem
    return re.sub(r"[^A-Za-z0-9._]+", "-", last).strip("-.")[:60] or "model"


def _cached(source: Source, reference: str, commit: str | None) -> Path:
    """The run of these files in the cache."""
    digests = _digests(source)
    key = sha256_of_json([VERSION, sorted(digests.items())])
    run = imports_folder() / f"{_name(reference)}-{key[:12]}"
    if (run / RUN_INFO_FILE).exists():  # a run is there whole or not at all; the cache may be read-only
        return run
    with hold_lock(imports_folder() / "locks" / key):
        if not (run / RUN_INFO_FILE).exists():
            shutil.rmtree(run, ignore_errors=True)
            _write(source, reference, commit, run, digests, lambda stage, done, total: None)
    return run


def _digests(source: Source) -> dict[str, str]:
    """SHA-256 of each file of a model; from the cache where a file has not changed since."""
    digests = {}
    for file in source.files:
        real = Path(os.path.realpath(file))  # resolve() raises what is no OSError for a link to itself
        with convert_os_errors("cannot read a file of the model", file, "download or copy it again", CheckpointError):
            entry = real.stat()
        state = [str(real), entry.st_size, entry.st_mtime_ns, entry.st_ino]
        note = imports_folder() / "digests" / sha256_of_json(state)
        sha = noted(note)
        if re.fullmatch("[0-9a-f]{64}", sha) is None:
            with convert_os_errors("cannot read", real, "check its permissions"):
                sha = sha256_of_file(real)
            _note(note, sha)
        digests[str(file.relative_to(source.path)) if source.path.is_dir() else file.name] = sha
    return digests


def _note(file: Path, line: str) -> None:
    """Write what `noted` reads, atomically. Where the cache cannot be written, it is found out again next time."""
    with (
        suppress(ResourceError),
        hold_lock(imports_folder() / "locks" / file.name),
    ):  # several commands may note the same
        with convert_write_errors(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, line.encode("ascii"))


def _write(
    source: Source, reference: str, commit: str | None, folder: Path, digests: Mapping[str, str], report: Report
) -> None:
    """Write the run hidden beside `folder`, then rename it: a failed import leaves nothing."""
    described = describe(source)
    tokenizer = _tokenizer(source, described)
    recipe = _recipe(source, described, tokenizer, reference)
    model = recipe.model
    assert isinstance(model, Transformer)
    if size_of(model, model.vocab_size or 0) == BEYOND:
        raise _refusal(source, "its configuration is of a model larger than what any program could hold")
    outlines = _outline(recipe, model)
    weights = _made(source, _weights(source, described, recipe), outlines, report)
    millions = sum(one.numel() for one in outlines.values()) / 1e6
    info = RunInfo.create(
        recipe=_name(reference),
        summary=f"{model.title}, {model.n_layers} x {model.d_model}, {millions:.1f}M parameters",
        fingerprints={"data": "", "tokenizer": tokenizer.fingerprint},
        origin={"reference": reference, "revision": commit, "model_type": source.family.model_type, "sha256": digests},
    )
    files = {RECIPE: dump(recipe).encode(), **tokenizer.serialize_files()}
    with atomic_output_folder(folder) as new, create_run(new, info, files) as run:
        run.save_checkpoint(Snapshot(0, weights, {}, {"recipe": recipe.model_dump(mode="json")}), keep_last=1)


def describe(source: Source) -> Described:
    """The recipe of a model. Raises CheckpointError for what no recipe expresses.

    Where the note of an export says more than what Transformers reads, labels and the kind of the head that there is
    are those of Transformers, since they may have changed.
    """
    config, described = source.config, source.family.describe(source.config)
    note = config.section(NOTE)
    objective = note.take("objective", dict, {})
    data = {key: value for key, value in note.take("data", dict, {}).items() if key in (*COLUMNS, "tasks")}
    kind, published = objective.get("kind"), described.objective
    beside = bool(source.head_names) and kind in HEADS
    if beside:
        labels = {"labels": read_labels(config)} if objective.get("labels") else {}
        published = {**objective, **labels}
    elif kind == "seq2seq" and published["kind"] == "causal":
        published = objective
    elif kind == published["kind"]:
        published = {**objective, **published}
    else:
        data = {}
    contexts = [described.model["context"], note.positive("context", int, described.model["context"])]
    config.check_all_read()
    if source.embedding and not beside:
        published = source.embedding
    if source.context:
        contexts.append(source.context)
    return Described({**described.model, "context": min(contexts)}, published, data, beside)


def _tokenizer(source: Source, described: Described) -> Tokenizer:
    """The tokenizer, with the tokens that begin and end generated text."""
    published = source.tokenizer()
    settings = source.settings
    try:
        inner = parse_tokenizer_json(published.json)
        named = dict(published.config)
        for key, ids in (
            ("start_tokens", [settings.get("decoder_start_token_id"), settings.get("forced_bos_token_id")]),
            ("end_tokens", settings.get("eos_token_id")),
        ):
            listed = ids if isinstance(ids, list) else [ids]
            names = [inner.id_to_token(i) for i in listed if isinstance(i, int) and 0 <= i < 2**31]
            if key == "end_tokens" or described.objective["kind"] == "seq2seq":
                named[key] = [name for name in names if name is not None]
        with convert_panics():
            tokenizer = Tokenizer(inner, named)
    except Exception as error:  # the library raises bare Exception
        raise _refusal(source, f"the tokenizer cannot be used: {printable(str(error))[:120]}") from error
    if described.objective["kind"] == "masked" and published.config.get("mask_token") is None:
        raise _refusal(source, "the tokenizer has no mask_token", "name another model")
    return tokenizer


DOCUMENTS, ONE_TEXT = {"split": "document"}, {"split": "slice", "documents": "whole"}
"""How a text is read: [BOS] text [EOS] for each document, or all as one text."""


def _reads_one_text(described: Described, tokenizer: Tokenizer) -> bool:
    """Whether it is the export of a run that was trained on one text, not on documents that [BOS] begins."""
    template = tokenizer.roles.template
    is_own = tuple(map(tokenizer.token_name, range(min(len(SPECIAL_TOKENS), tokenizer.vocab_size)))) == SPECIAL_TOKENS
    return is_own and described.objective["kind"] == "causal" and (template is None or not template.before)


def _recipe(source: Source, described: Described, tokenizer: Tokenizer, reference: str) -> Recipe:
    rows = described.model.get("vocab_size")
    if isinstance(rows, int) and rows < tokenizer.vocab_size:
        what = f"the tokenizer has {tokenizer.vocab_size} entries, but the embedding has {rows} rows"
        raise _refusal(source, what, "name a model with its own tokenizer")
    try:
        return Recipe.model_validate(
            {
                "description": f"imported from {printable(reference)[:100]}",
                "model": described.model,
                "objective": described.objective,
                "tokenizer": {"kind": "file", "path": "tokenizer.json"},
                "data": {**(ONE_TEXT if _reads_one_text(described, tokenizer) else DOCUMENTS), **described.data},
                "training": {"steps": 1, "batch_size": 8},
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        told = printable(f"{key}: " * bool(key) + first["msg"])[:160]
        raise _refusal(source, f"its configuration is of no model: {told}") from error


def _weights(source: Source, described: Described, recipe: Recipe) -> list[Weight]:
    """How the tensors of the run are made of the published ones."""
    assert isinstance(recipe.model, Transformer)
    if not described.beside:
        return source.family.weights(recipe.model, recipe.objective)
    body = (replace(one, ours=f"body.{one.ours}") for one in source.family.weights(recipe.model, BODY))
    return [*body, *(Weight(name, (name,)) for name in source.head_names)]


def _made(source: Source, weights: Sequence[Weight], outlines: Mapping[str, Tensor], report: Report) -> ComputedTensors:
    """The weights of the run, each made when it is written.

    Raises CheckpointError when tensors are missing, left over, or of other shapes.
    """
    stored = {*source.config.names, *source.head_names}
    used = {name: None for weight in weights for name in weight.theirs}
    if missing := [name for name in used if name not in stored]:
        raise _unfit(source, f"{printable(missing[0])[:100]} is missing")
    (embedding, *_) = next(weight.theirs for weight in weights if weight.ours.endswith("inputs.tokens.weight"))
    for name in sorted(stored - used.keys()):
        if not any(re.fullmatch(rule, name) for rule in source.family.redundant):
            raise _unfit(source, f"{printable(name)[:100]} has no place in it")
        if name.endswith("weight"):
            tensor, tied = source.read(name), source.read(embedding)
            if tensor.shape == tied.shape and not torch.equal(tensor, tied):
                raise _unfit(source, f"{printable(name)[:100]} differs from the embedding that it is tied to")
    if odd := outlines.keys() ^ {weight.ours for weight in weights}:
        if not source.head_names:
            raise AssertionError(f"{source.family.model_type}: {odd}")
        raise _unfit(source, f"{printable(min(odd))[:100]} is missing in its head, or has no place in it")
    total, done = sum(4 * outline.numel() for outline in outlines.values()), 0

    by_name = {weight.ours: weight for weight in weights}

    def make(name: str) -> Tensor:
        nonlocal done
        weight = by_name[name]
        tensors = [source.read(name) for name in weight.theirs]
        try:
            made = weight.layout.join(tensors)
        except (ValueError, RuntimeError, IndexError) as error:
            raise _unfit(source, f"{printable(weight.theirs[0])[:100]}: {printable(str(error))[:80]}") from error
        shape, wanted = tuple(made.shape), tuple(outlines[name].shape)
        if shape != wanted:
            named = printable(", ".join(weight.theirs))[:100]
            raise _unfit(source, f"{named} is {_by(shape)}, not {_by(wanted)}")
        if not torch.isfinite(made).all():
            raise _unfit(source, f"{printable(weight.theirs[0])[:100]} has values that are not finite numbers")
        done += 4 * made.numel()
        report("importing", done, total)
        return made.float().contiguous()

    return ComputedTensors(outlines, make)


def _outline(recipe: Recipe, model: Transformer) -> dict[str, Tensor]:
    """The weights of the model that a recipe describes, as shapes."""
    with torch.device("meta"):
        return with_head(recipe, outline(model, model.vocab_size or 0)).state_dict()


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "a number"


def _unfit(source: Source, what: str) -> CheckpointError:
    return _refusal(source, f"the weights do not fit the configuration: {what}")


def _refusal(source: Source, what: str, fix: str = "download the model again, or name another") -> CheckpointError:
    return CheckpointError(what, where=str(source.path), fix=fix)
