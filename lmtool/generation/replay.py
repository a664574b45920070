"""Records of generated texts, and reproduction of texts from them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt, TypeAdapter

import lmtool
from lmtool.batch import common_prefix_length
from lmtool.compute.device import InferenceName
from lmtool.errors import CheckpointError, DataError, UsageError
from lmtool.generation.forms import TextForm
from lmtool.generation.generate import MAX_ROWS, NGRAM_DRAFT, TextGenerator, open_draft
from lmtool.generation.params import AnyParams, MaskPredict, Overflow, SamplingParams, params_to_record
from lmtool.generation.request import Completion
from lmtool.runs.directory import CHECKPOINTS
from lmtool.runs.load import LoadedModel
from lmtool.storage.records import JsonModel, validate_model


class _RecordedGenerateOptions(JsonModel, extra="ignore", strict=False):
    """The options of `generate` in a record, except the draw and details."""

    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    prefix: str = ""
    overflow: Overflow = "refuse"
    mask: str | None = None
    length: NonNegativeInt = 0
    max_rows: PositiveInt = MAX_ROWS


class _RecordedDraft(JsonModel, extra="ignore"):
    """The draft of a record. run: None for n-gram look-up."""

    run: str | None
    step: NonNegativeInt = 0
    checkpoint: str = ""
    tokens: PositiveInt


class _GenerationRecord(JsonModel, extra="ignore"):
    """The fields of a record that a replay reads."""

    prompt: str
    sample: NonNegativeInt
    tokens: list[int]
    text: str
    draw: NonNegativeInt
    steps: NonNegativeInt
    settings: dict[str, Any]
    options: _RecordedGenerateOptions
    run: str
    step: NonNegativeInt
    checkpoint: str
    device: Literal["cpu", "cuda", "mps"]
    precision: InferenceName
    threads: Annotated[int, Field(ge=1, le=4096)]
    draft: _RecordedDraft | None = None


def completion_record(
    generator: TextGenerator, completion: Completion, params: AnyParams, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns all that reproduces a completion, as JSON values. options: those of `TextGenerator.generate`."""
    loaded = generator.loaded
    constrained = {} if completion.constrained is None else {"constrained_logprobs": list(completion.constrained)}
    details = {"ranks": completion.ranks, "removed": completion.removed} if options.get("details") else {}
    drafted: dict[str, Any] = {}
    if generator.draft is not None:
        counts = {"proposed": completion.proposed, "accepted": completion.accepted}
        drafted = {"draft": generator.draft.to_record(), **counts}
    return {
        "prompt": completion.prompt,
        "sample": completion.sample,
        "text": completion.text,
        "tokens": list(completion.tokens),
        "logprobs": list(completion.logprobs),
        **constrained,
        **details,
        "score": completion.score,
        "seed": completion.seed,
        "finish_reason": completion.finish_reason,
        "draw": completion.draw,
        "steps": completion.steps,
        "settings": params_to_record(params),
        "options": _RecordedGenerateOptions(**options).model_dump(),
        **loaded.to_record(),
        "device": loaded.device.type,
        "precision": loaded.compute.precision,
        "threads": generator.threads or torch.get_num_threads(),
        "version": lmtool.__version__,
        "torch": torch.__version__,
        **drafted,
    }


@dataclass(frozen=True)
class ReplayResult:
    """A record and its replay.

    differs_at: index of the first different token; None if all are the same. changed: changes of library versions.
    """

    record: Mapping[str, Any]
    text: str
    differs_at: int | None
    changed: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """Whether tokens and text equal those of the record."""
        return self.differs_at is None and self.text == self.record["text"]


def read_generation_records(path: str) -> list[dict[str, Any]]:
    """Reads the records of a file, one per line. Raises DataError for a file that is unreadable or has other lines."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            "the file of records cannot be read", where=path, fix="name a file that --json wrote"
        ) from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            validate_model(_GenerationRecord, record)
            _params_and_options_for_replay(record)
        except (ValueError, RecursionError, UsageError) as error:
            what = f"not a record of generate --json: {' '.join(str(error).split())[:120]}"
            raise DataError(what, where=f"{path}:{number}", fix="write one with --json") from error
        records.append(record)
    if not records:
        raise DataError("the file holds no record", where=path, fix="write one with --json")
    return records


def replay(records: Sequence[Mapping[str, Any]]) -> Iterator[ReplayResult]:
    """Replays each record alone, with the same weights, settings, device, precision and number of threads.

    A text that max_time ended is generated up to the same number of steps.

    Raises CheckpointError if the weights are missing or have changed.
    """
    generators: dict[tuple[str, ...], TextGenerator] = {}
    for record in records:
        names = ("run", "step", "checkpoint", "device", "precision", "draft")
        key = tuple(str(record.get(name)) for name in names)
        if key not in generators:
            generators[key] = _load_generator(record)
        generator = generators[key]
        generator.threads = record["threads"]
        params, options = _params_and_options_for_replay(record)
        completions = {c.sample: c for c in generator.completions([record["prompt"]], params, **options)}
        # A beam search returns several texts of one sample; other strategies return one, whatever its number.
        completion = completions[record["sample"] if params.strategy == "beam" else 0]
        now = {"version": lmtool.__version__, "torch": torch.__version__}
        changed = tuple(f"{name} {record[name]} -> {value}" for name, value in now.items() if record.get(name) != value)
        before, tokens = record["tokens"], list(completion.tokens)
        differs_at = None if before == tokens else common_prefix_length(before, tokens)
        yield ReplayResult(record, completion.text, differs_at, changed)


def _load_generator(record: Mapping[str, Any]) -> TextGenerator:
    generator = TextGenerator.open(_checkpoint_path(record), device=record["device"], precision=record["precision"])
    _check_digest(generator.loaded, record)
    draft = record.get("draft")
    if draft is not None:
        reference = NGRAM_DRAFT if draft["run"] is None else _checkpoint_path(draft)
        generator.draft = open_draft(reference, draft["tokens"], generator.loaded)
        if generator.draft.loaded is not None:
            _check_digest(generator.draft.loaded, draft)
    return generator


def _checkpoint_path(record: Mapping[str, Any]) -> str:
    return str(Path(record["run"]) / CHECKPOINTS / f"step-{record.get('step', 0):06d}")


def _check_digest(loaded: LoadedModel, record: Mapping[str, Any]) -> None:
    if loaded.checkpoint_hash != record.get("checkpoint"):
        what = "the checkpoint is not the one of the record"
        raise CheckpointError(what, where=_checkpoint_path(record), fix="restore that one")


def _params_and_options_for_replay(record: Mapping[str, Any]) -> tuple[AnyParams, dict[str, Any]]:
    """Returns the parameters and options of a replay. Raises UsageError for an invalid record."""
    options = _RecordedGenerateOptions(**record["options"]).model_dump() | {"first": record["draw"], "max_rows": 1}
    params = params_from_record(record["settings"])
    if isinstance(params, MaskPredict) or params.max_time is None:
        return params, options
    steps = record["steps"]  # stands in for the time limit
    least = min(params.min_new_tokens, steps)
    return replace(params, max_time=None, max_new_tokens=steps, min_new_tokens=least), options


def params_from_record(params_record: Mapping[str, Any]) -> AnyParams:
    """Makes parameters of the result of `params_to_record`, even after JSON. Raises UsageError for an invalid one."""
    values = dict(params_record)
    try:
        kind: type[AnyParams] = SamplingParams
        if values["strategy"] == MaskPredict.strategy:
            kind = MaskPredict
            del values["strategy"]
        values["logit_bias"] = tuple((tuple(ids), float(bias)) for ids, bias in values.pop("logit_bias"))
        if values.get("form") is not None:
            values["form"] = TextForm(**values["form"])
        kind(**values)  # refuses unknown names
        return TypeAdapter(kind).validate_python(values)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        what = " ".join(str(error).split())[:200]
        raise UsageError(f"these are not parameters of this version: {what}") from None
