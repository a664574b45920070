"""The model card of an exported model: what it is, how it is opened, how it was made, and what was measured."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from lmtool import __version__
from lmtool.export.forms import Form
from lmtool.inference.reference import Reference
from lmtool.interop.names import HEAD
from lmtool.model.heads import pooling
from lmtool.printable import printable
from lmtool.recipe.dump import dump
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.recipe import Recipe
from lmtool.tasks.results import SCORED_BY_OTHERS

PLACEHOLDER = "BASE"
"""Stands for the path of a base model that is not on the Hub."""

CLASSES = {
    "classification": "ForSequenceClassification",
    "masked": "ForMaskedLM",
    "tagging": "ForTokenClassification",
    "question-answering": "ForQuestionAnswering",
    "embedding": "",
}
"""The ends of the names of Transformers' classes for a task, by the kind of the objective."""

PIPELINES = {
    "classification": "text-classification",
    "tagging": "token-classification",
    "question-answering": "question-answering",
    "masked": "fill-mask",
    "embedding": "feature-extraction",
}


def model_card(base: Reference, form: Form) -> str:
    """README.md with the metadata that the Hugging Face Hub reads."""
    recipe, spec = form.recipe, form.recipe.objective
    values = {
        "form": form,
        "spec": spec,
        "pool": pooling(spec, recipe.model) if isinstance(spec, Classification) else None,
        "head_file": HEAD,
        # those of the task would make a new head in place of one beside the body
        "auto": "AutoModel" if form.beside else auto_class(recipe),
        "pipeline": PIPELINES["embedding"] if form.beside else _pipeline(recipe),
    }
    return _card("model.md.jinja", base, values)


def adapter_card(base: Reference, published: str | None, of: Reference, labels: Mapping[str, str] | None) -> str:
    """The same for adapters.

    published: the name of their base on the Hub, if it is there. of: the run that they adapt. labels: by the number of
    the score, of a classifier.
    """
    more = "" if labels is None else f", num_labels={len(labels)}, id2label={json.dumps(labels, ensure_ascii=True)}"
    values = {"published": published, "placeholder": PLACEHOLDER, "of": of, "labels": more}
    return _card(
        "adapters.md.jinja", base, {**values, "auto": auto_class(base.recipe), "pipeline": _pipeline(base.recipe)}
    )


def without_folders(text: str) -> str:
    """A text in which absolute paths are names of files: a card is read by others."""
    return re.sub(r"""(^|[\s"':])/(?:[^/"'\n]+/)+""", r"\1", text)


def auto_class(recipe: Recipe) -> str:
    """Transformers' class that opens a model of this recipe for its task."""
    generates = "ForSeq2SeqLM" if recipe.model.reads == "source" else "ForCausalLM"
    return "AutoModel" + CLASSES.get(recipe.objective.kind, generates)


def _pipeline(recipe: Recipe) -> str:
    """The Hub's name of the task."""
    if recipe.model.reads == "source":
        return "text2text-generation"
    return PIPELINES.get(recipe.objective.kind, "text-generation")


@cache
def _templates() -> Environment:
    loader = PackageLoader("lmtool.export")
    environment = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"plain": printable, "without_folders": without_folders}
    return environment


def _card(template: str, base: Reference, values: Mapping[str, object]) -> str:
    data = base.recipe.data
    files = [printable(source.replace("\\", "/").rpartition("/")[2]) for source in (*data.sources, *data.tasks)]
    known = {"base": base, "version": __version__, "files": files, "recipe": dump(base.recipe).rstrip()}
    return _templates().get_template(template).render({**known, "measured": [*_measured(base)], **values})


def _measured(base: Reference) -> Iterator[tuple[str, str]]:
    """The last validation, and the results of the best checkpoint on a table."""
    validated = base.run.last_validation
    if validated is not None and validated.best_value is not None and base.recipe.data.holds_out:
        name = base.recipe.evaluation.metric
        yield f"best validation {name}", f"{validated.best_value:.4f} (step {validated.best_step})"
    for task, results in base.run.results_by_task.items():
        numbers = ((name, value) for name, value in results.items() if isinstance(value, float))
        part = results["part"]
        yield from ((f"{task} {part} {name}".strip(), f"{value:.4f}") for name, value in numbers if part != "training")
        if limits := results.get("interval"):
            yield f"{task} {part} 95 % interval".strip(), f"{limits[0]:.4f} to {limits[1]:.4f}"
        if part in SCORED_BY_OTHERS:
            yield f"{task} {part}".strip(), SCORED_BY_OTHERS[part]
