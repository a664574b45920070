"""Tasks and labels of classifiers in config.json."""

from collections.abc import Sequence
from typing import Any

from lmtool.interop.families.config import Config, Inexpressible
from lmtool.recipe.spec.objective import AnyObjective, Classification, Tagging

TASKS = {
    "single_label_classification": "class",
    "multi_label_classification": "multi",
    "regression": "number",
}
"""Tasks by `problem_type`."""

MOST = 10_000
"""Labels that a configuration may ask for without naming them."""


def read_task(config: Config) -> dict[str, Any]:
    """Task and labels of `objective` of a *ForSequenceClassification, which takes one label for regression by default.

    Raises CheckpointError when labels lack a name of their own, or when several numbers are predicted.
    """
    labels = read_labels(config)
    if config.optional("problem_type", str) is None:
        task = "class" if len(labels) > 1 else "number"
    else:
        task = config.pick("problem_type", TASKS)
    if task != "number":
        return {"task": task, "labels": labels}
    if len(labels) != 1:
        raise config.refusal(f"problem_type is 'regression' of {len(labels)} numbers, which no recipe can express")
    return {"task": task, "center": 0.0, "scale": 1.0}


def write_task(objective: AnyObjective) -> dict[str, Any]:
    """The keys of task and labels, if it has any.

    Raises Inexpressible when Transformers would take the labels for another task.
    """
    if isinstance(objective, Tagging):
        return write_labels(objective.labels)
    if not isinstance(objective, Classification):
        return {}
    labels = objective.labels
    if objective.task == "auto":
        raise Inexpressible("objective.task", "auto, which a labelled table decides")
    if objective.task == "number":
        labels = ("number",)
    elif not labels:
        raise Inexpressible("objective.labels", "none, which a labelled table decides")
    elif objective.task == "class" and len(labels) == 1:
        raise Inexpressible("objective.labels", "a single one, which Transformers takes for a number")
    elif len(set(labels)) < len(labels):
        raise Inexpressible("objective.labels", "two of the same name")
    return {
        "problem_type": next(kind for kind, task in TASKS.items() if task == objective.task),
        **write_labels(labels),
    }


def write_labels(labels: Sequence[str]) -> dict[str, Any]:
    """The keys of labels."""
    return {
        "id2label": {str(i): name for i, name in enumerate(labels)},
        "label2id": {name: i for i, name in enumerate(labels)},
    }


def read_labels(config: Config) -> list[str]:
    """The labels in the order of the scores; as many as Transformers makes up when none are named."""
    named = config.optional("id2label", dict)
    if named is None:
        n_labels = config.positive("num_labels", int, 2)
        if n_labels > MOST:
            raise config.refusal(f"num_labels is {n_labels}")
        return [f"LABEL_{i}" for i in range(n_labels)]
    config.expect("num_labels", len(named))
    by_id = {str(key): label for key, label in named.items()}
    labels = [by_id.get(str(i)) for i in range(len(named))]
    found = [label for label in labels if isinstance(label, str)]
    if not found or len(set(found)) != len(named):
        raise config.refusal("id2label does not give each class a name of its own")
    return found
