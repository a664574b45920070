"""The model card of an exported model: what it is, how it is opened, how it was made, and what was measured."""

import json
import re
from collections.abc import Iterator, Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined

from lmtool import __version__
from lmtool.interop.export.forms import FamilyRepresentation
from lmtool.interop.references import HEAD_FILE
from lmtool.model.heads import resolve_pooling
from lmtool.printable import printable
from lmtool.recipe.dump import dump_yaml
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs.reference import Reference
from lmtool.runs.uncertainty import PARTS_OF_OTHER_MODELS

BASE_PLACEHOLDER = "BASE"
"""Stands for the path of a base model that is not on the Hub."""

_CLASS_AND_PIPELINE = {
    "classification": ("AutoModelForSequenceClassification", "text-classification"),
    "tagging": ("AutoModelForTokenClassification", "token-classification"),
    "question-answering": ("AutoModelForQuestionAnswering", "question-answering"),
    "masked": ("AutoModelForMaskedLM", "fill-mask"),
    "embedding": ("AutoModel", "feature-extraction"),
}
"""Transformers' class for a task and the Hub's name of the task, by the kind of the objective."""


def format_model_card(run: Reference, form: FamilyRepresentation) -> str:
    """Formats README.md, with the metadata that the Hugging Face Hub reads, for an exported run."""
    recipe, spec = form.recipe, form.recipe.objective
    # the class of the task would make a new head in place of one beside the body
    auto_class, pipeline = (
        _CLASS_AND_PIPELINE["embedding"] if form.has_separate_head else _auto_class_and_pipeline(recipe)
    )
    values = {
        "form": form,
        "spec": spec,
        "pool": resolve_pooling(spec, recipe.model) if isinstance(spec, Classification) else None,
        "head_file": HEAD_FILE,
        "auto": auto_class,
        "pipeline": pipeline,
    }
    return _render_card("model.md.jinja", run, values)


def format_adapter_card(
    run: Reference, base: Reference, base_name: str | None, id2label: Mapping[str, str] | None
) -> str:
    """Formats README.md for the exported adapters of a run.

    base: the run that they adapt. base_name: its name on the Hub, if it is there. id2label: of a classifier, by the
    number of the score.
    """
    auto_class, pipeline = _auto_class_and_pipeline(run.recipe)
    options = (
        "" if id2label is None else f", num_labels={len(id2label)}, id2label={json.dumps(id2label, ensure_ascii=True)}"
    )
    values = {"published": base_name, "placeholder": BASE_PLACEHOLDER, "of": base, "labels": options}
    return _render_card("adapters.md.jinja", run, {**values, "auto": auto_class, "pipeline": pipeline})


def strip_folders(text: str) -> str:
    """Replaces absolute paths by names of files, because a card is read by others."""
    return re.sub(r"""(^|[\s"':])/(?:[^/"'\n]+/)+""", r"\1", text)


def _auto_class_and_pipeline(recipe: Recipe) -> tuple[str, str]:
    """Transformers' class that opens a model of this recipe for its task, and the Hub's name of the task."""
    if recipe.objective.kind in _CLASS_AND_PIPELINE:
        return _CLASS_AND_PIPELINE[recipe.objective.kind]
    if recipe.model.reads == "source":
        return "AutoModelForSeq2SeqLM", "text2text-generation"
    return "AutoModelForCausalLM", "text-generation"


def _render_card(template: str, run: Reference, values: Mapping[str, object]) -> str:
    environment = Environment(
        loader=PackageLoader("lmtool.interop.export"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"plain": printable, "without_folders": strip_folders}
    data = run.recipe.data
    files = [printable(source.replace("\\", "/").rpartition("/")[2]) for source in (*data.sources, *data.tasks)]
    known = {"base": run, "version": __version__, "files": files, "recipe": dump_yaml(run.recipe).rstrip()}
    measured = [*iterate_formatted_metrics(run)]
    return environment.get_template(template).render({**known, "measured": measured, **values})


def iterate_formatted_metrics(run: Reference) -> Iterator[tuple[str, str]]:
    """Iterates over names and formatted values of the last validation, and of the results of the best checkpoint."""
    validated = run.run.last_validation
    if validated is not None and validated.best_value is not None and run.recipe.data.holds_out:
        name = run.recipe.evaluation.metric
        yield f"best validation {name}", f"{validated.best_value:.4f} (step {validated.best_step})"
    for task, results in run.run.results_by_task.items():
        numbers = ((name, value) for name, value in results.items() if isinstance(value, float))
        part = results["part"]
        yield from ((f"{task} {part} {name}".strip(), f"{value:.4f}") for name, value in numbers if part != "training")
        if limits := results.get("interval"):
            yield f"{task} {part} 95 % interval".strip(), f"{limits[0]:.4f} to {limits[1]:.4f}"
        if part in PARTS_OF_OTHER_MODELS:
            yield f"{task} {part}".strip(), PARTS_OF_OTHER_MODELS[part]
