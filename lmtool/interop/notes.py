"""What an export notes for an import: what predictions need, and published configurations have no keys for.

The note is an object under the key `lmtool` of config.json, or of a GGUF file: the context, where the positions go on,
the objective, and the columns of its tables. A head that no class of Transformers has lies beside the body, in HEAD.
"""

from dataclasses import replace
from typing import Any

from lmtool.interop.families.config import Config
from lmtool.interop.families.family import Described
from lmtool.interop.families.tasks import read_labels
from lmtool.recipe.spec.objective import HeadSpec, Seq2Seq
from lmtool.recipe.spec.recipe import Recipe
from lmtool.tables.data import task_names

NOTE = "lmtool"
HEAD = "head.safetensors"

_COLUMNS = ("text_columns", "label_column", "source_column", "target_column", "input_column", "messages_column")
_HEADS = ("classification", "tagging", "question-answering")


def write_note(recipe: Recipe, described: Described) -> dict[str, Any]:
    """The note on a recipe that is published as it is `described`; empty where nothing is to be noted."""
    note: dict[str, Any] = {}
    if described.model["context"] != recipe.model.context:
        note["context"] = recipe.model.context
    if isinstance(recipe.objective, HeadSpec | Seq2Seq):
        kind = {"kind": recipe.objective.kind}
        note["objective"] = kind | recipe.objective.model_dump(mode="json", exclude_defaults=True)
        note["data"] = recipe.data.model_dump(mode="json", include={*_COLUMNS}, exclude_defaults=True)
        if recipe.data.tasks:
            note["data"]["tasks"] = [f"{name}:{name}" for name in task_names(recipe.data)]
    return {NOTE: note} if note else {}


def read_note(config: Config, described: Described, *, has_head: bool) -> Described:
    """What a published model is, as far as it is `described` and a note says more.

    What Transformers reads stands, since it may have changed: labels, and the kind of the head that there is. has_head:
    there is a file HEAD. Raises CheckpointError for a note of other types.
    """
    note = config.section(NOTE)
    context = min(described.model["context"], note.positive("context", int, described.model["context"]))
    described = replace(described, model={**described.model, "context": context})
    objective = note.take("objective", dict, {})
    data = {key: value for key, value in note.take("data", dict, {}).items() if key in (*_COLUMNS, "tasks")}
    kind, own = objective.get("kind"), described.objective
    if has_head and kind in _HEADS:
        labels = {"labels": read_labels(config)} if objective.get("labels") else {}
        return replace(described, objective={**objective, **labels}, data=data, beside=True)
    if kind == "seq2seq" and own["kind"] == "causal":
        return replace(described, objective=objective, data=data)
    return replace(described, objective={**objective, **own}, data=data) if kind == own["kind"] else described
