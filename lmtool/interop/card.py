"""The model card of an exported model: what it is, how it was made, and what was measured."""

import json
from collections.abc import Mapping, Sequence

from lmtool import __version__
from lmtool.inference.base import Base
from lmtool.printable import plain
from lmtool.recipe.dump import dump
from lmtool.recipe.spec.objective import Classification, Embedding, Masked
from lmtool.recipe.spec.recipe import Recipe

PLACEHOLDER = "BASE"
"""Stands for the path of a base model that is not on the Hub."""

PIPELINES = {"classification": "text-classification", "masked": "fill-mask", "embedding": "feature-extraction"}


def model_card(base: Base, architecture: str) -> str:
    """README.md with the metadata that the Hugging Face Hub reads."""
    auto = auto_class(base.recipe)
    code = [
        f"from transformers import {auto}, AutoTokenizer",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")',
        f'model = {auto}.from_pretrained("DIRECTORY")  # {architecture}',
    ]
    return _card(base, ["library_name: transformers"], code, [])


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
    metadata = ["library_name: peft"]
    notes = [f"`{PLACEHOLDER}` is the base model: {plain(of.run.name)}, as `lmtool export` writes it.", ""]
    if published is not None:
        metadata.append(f"base_model: {published}")
        notes = []
    return _card(base, metadata, code, notes)


def _card(base: Base, metadata: Sequence[str], code: Sequence[str], notes: Sequence[str]) -> str:
    run, recipe = base.run, base.recipe
    pipeline = PIPELINES.get(recipe.objective.kind, "text-generation")
    if recipe.model.reads == "source":
        pipeline = "text2text-generation"
    lines = [
        "---",
        *metadata,
        f"pipeline_tag: {pipeline}",
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
        dump(recipe).rstrip(),
        "```",
        "",
    ]
    return "\n".join(lines)


def auto_class(recipe: Recipe) -> str:
    """Transformers' class that opens a model of this recipe for its task."""
    match recipe.objective:
        case Classification():
            return "AutoModelForSequenceClassification"
        case Masked():
            return "AutoModelForMaskedLM"
        case Embedding():
            return "AutoModel"
    return "AutoModelForSeq2SeqLM" if recipe.model.reads == "source" else "AutoModelForCausalLM"


def _origin(base: Base) -> list[str]:
    run = base.run
    if run.origin is not None:
        revision = f", revision {run.origin.revision}" if run.origin.revision else ""
        return [f"The weights were imported from {plain(run.origin.reference)}{revision}.", ""]
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
