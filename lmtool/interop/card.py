"""The model card of an exported model: what it is, how it was made, and what was measured."""

import json
import re
from collections.abc import Mapping, Sequence

from lmtool import __version__
from lmtool.inference.base import Base
from lmtool.interop.forms import Form
from lmtool.interop.notes import HEAD
from lmtool.interop.usage import auto_class, usage
from lmtool.printable import plain
from lmtool.recipe.dump import dump
from lmtool.recipe.spec.recipe import Recipe

PLACEHOLDER = "BASE"
"""Stands for the path of a base model that is not on the Hub."""

PIPELINES = {
    "classification": "text-classification",
    "tagging": "token-classification",
    "question-answering": "question-answering",
    "masked": "fill-mask",
    "embedding": "feature-extraction",
}


def model_card(base: Base, form: Form) -> str:
    """README.md with the metadata that the Hugging Face Hub reads."""
    pipeline, notes = _pipeline(form.recipe), []
    if form.beside:
        pipeline = PIPELINES["embedding"]  # that of the task would make a new head
        notes = [f"`{HEAD}` is its head, which no class of Transformers has: {form.beside}.", ""]
    return _card(base, ["library_name: transformers", f"pipeline_tag: {pipeline}"], usage(form), notes)


def adapter_card(base: Base, published: str | None, of: Base, labels: Mapping[str, str] | None) -> str:
    """The same for adapters.

    published: the name of their base on the Hub, if it is there. of: the run that they adapt. labels: by the number of
    the score, of a classifier.
    """
    auto = auto_class(base.recipe)
    more = "" if labels is None else f", num_labels={len(labels)}, id2label={json.dumps(labels, ensure_ascii=True)}"
    code = [
        "from peft import PeftModel",
        f"from transformers import {auto}, AutoTokenizer",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")',
        f'base = {auto}.from_pretrained("{published or PLACEHOLDER}"{more})',
        'model = PeftModel.from_pretrained(base, "DIRECTORY")',
    ]
    metadata = ["library_name: peft", f"pipeline_tag: {_pipeline(base.recipe)}"]
    notes = [f"`{PLACEHOLDER}` is the base model: {plain(of.run.name)}, as `lmtool export` writes it.", ""]
    if published is not None:
        metadata.append(f"base_model: {published}")
        notes = []
    return _card(base, metadata, code, notes)


def without_folders(text: str) -> str:
    """A text in which absolute paths are names of files: a card is read by others."""
    return re.sub(r"""(^|[\s"':])/(?:[^/"'\n]+/)+""", r"\1", text)


def _pipeline(recipe: Recipe) -> str:
    """The Hub's name of the task."""
    return (
        "text2text-generation"
        if recipe.model.reads == "source"
        else PIPELINES.get(recipe.objective.kind, "text-generation")
    )


def _card(base: Base, metadata: Sequence[str], code: Sequence[str], notes: Sequence[str]) -> str:
    run, recipe = base.run, base.recipe
    lines = [
        "---",
        *metadata,
        "tags: [lmtool]",
        "---",
        "",
        f"# {plain(run.name)}",
        "",
        f"{plain(run.info.summary)}; exported at step {base.checkpoint.step} by lmtool {__version__}.",
        "",
        "```python",
        *code,
        "```",
        "",
        *notes,
        *_origin(base),
        *_data(base),
        *_measured(base),
        "## Recipe",
        "",
        "```yaml",
        without_folders(dump(recipe).rstrip()),
        "```",
        "",
    ]
    return "\n".join(lines)


def _origin(base: Base) -> list[str]:
    run = base.run
    if run.origin is not None:
        revision = f", revision {run.origin.revision}" if run.origin.revision else ""
        return [f"The weights were imported from {plain(without_folders(run.origin.reference))}{revision}.", ""]
    if (before := run.info.base) is not None:
        return [f"It was initialized from {plain(before.checkpoint)} of {plain(before.run)}.", ""]
    return []


def _data(base: Base) -> list[str]:
    data = base.recipe.data
    named = [*data.sources, *data.tasks]
    if not named:
        return []
    files = ", ".join(plain(source.replace("\\", "/").rpartition("/")[2]) for source in named)
    return ["## Training data", "", f"{files}; SHA-256 of its tokens {base.run.fingerprints['data'][:16]}.", ""]


def _measured(base: Base) -> list[str]:
    """The last validation, and the results of the best checkpoint on a table."""
    rows: list[tuple[str, str]] = []
    validated = base.run.validated
    if validated is not None and validated.best_value is not None:
        name = base.recipe.evaluation.metric
        rows.append((f"best validation {name}", f"{validated.best_value:.4f} (step {validated.best_step})"))
    for task, found in base.run.all_results.items():
        numbers = ((name, value) for name, value in found.items() if isinstance(value, float))
        rows += [(f"{task} {found['part']} {name}".strip(), f"{value:.4f}") for name, value in numbers]
    if not rows:
        return []
    return ["## Measured", "", "| | |", "|---|---|", *(f"| {plain(name)} | {value} |" for name, value in rows), ""]
