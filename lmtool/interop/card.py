"""The model card of an exported model: what it is, how it was made, and what was measured."""

import json

from lmtool import __version__
from lmtool.inference.base import Base
from lmtool.printable import plain
from lmtool.recipe.dump import dump
from lmtool.recipe.spec import Classification, Embedding, Masked, Recipe
from lmtool.run.directory import RESULTS

PIPELINES = {"classification": "text-classification", "masked": "fill-mask", "embedding": "feature-extraction"}


def model_card(base: Base, architecture: str) -> str:
    """README.md with the metadata that the Hugging Face Hub reads."""
    run, recipe = base.run, base.recipe
    pipeline = PIPELINES.get(recipe.objective.kind, "text-generation")
    if recipe.model.reads == "source":
        pipeline = "text2text-generation"
    lines = [
        "---",
        "library_name: transformers",
        f"pipeline_tag: {pipeline}",
        "tags: [lmtool]",
        "---",
        "",
        f"# {plain(run.name)}",
        "",
        f"{plain(run.info['summary'])}; trained with lmtool {__version__}, exported after step {base.checkpoint.step}.",
        "",
        "```python",
        f"from transformers import {_auto(recipe)}, AutoTokenizer",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")',
        f'model = {_auto(recipe)}.from_pretrained("DIRECTORY")  # {architecture}',
        "```",
        "",
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


def _auto(recipe: Recipe) -> str:
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
        revision = f", revision {run.origin['revision']}" if run.origin["revision"] else ""
        return [f"The weights were imported from {plain(str(run.origin['reference']))}{revision}.", ""]
    if (before := run.info.get("base")) is not None:
        return [f"It was initialized from {plain(before['checkpoint'])} of {plain(before['run'])}.", ""]
    return []


def _data(base: Base) -> list[str]:
    data = base.recipe.data
    named = [*data.train, *data.tasks]
    if not named:
        return []
    files = ", ".join(plain(source.replace("\\", "/").rpartition("/")[2]) for source in named)
    return ["## Training data", "", f"{files}; SHA-256 of its tokens {base.run.fingerprints['data'][:16]}.", ""]


def _measured(base: Base) -> list[str]:
    """The last validation, and the results of the best checkpoint on a table."""
    rows: list[tuple[str, str]] = []
    validated = base.run.validated
    if validated is not None and isinstance(validated.get("best_value"), float):
        name = base.recipe.evaluation.metric
        rows.append((f"best validation {name}", f"{validated['best_value']:.4f} (step {validated['best_step']})"))
    file = base.run.path / RESULTS
    if file.exists():
        results = json.loads(file.read_bytes())
        for task, found in results.get("tasks", {"": results}).items():
            numbers = ((name, value) for name, value in found.items() if isinstance(value, float))
            rows += [(f"{task} {found['part']} {name}".strip(), f"{value:.4f}") for name, value in numbers]
    if not rows:
        return []
    return ["## Measured", "", "| | |", "|---|---|", *(f"| {plain(name)} | {value} |" for name, value in rows), ""]
