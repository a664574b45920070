"""Tasks and labels of classifiers in config.json."""

from typing import Any

from lmtool.interop.family import Config, Inexpressible
from lmtool.recipe.spec import Classification

TASKS = {
    "single_label_classification": "class",
    "multi_label_classification": "multi",
    "regression": "number",
}
"""Tasks by `problem_type`."""


def read_task(config: Config) -> dict[str, Any]:
    """Task and labels of `objective` of a *ForSequenceClassification, which takes one label for regression by default.

    Raises CheckpointError when labels lack a name of their own, or when several numbers are predicted.
    """
    labels = _labels(config)
    config.assume({"problem_type": None})
    if config.values["problem_type"] is None:
        task = "class" if len(labels) > 1 else "number"
    else:
        task = config.pick("problem_type", TASKS)
    if task != "number":
        return {"task": task, "labels": labels}
    if len(labels) != 1:
        raise config.refusal(f"problem_type is 'regression' of {len(labels)} numbers, which no recipe can express")
    return {"task": task, "center": 0.0, "scale": 1.0}


def write_task(objective: Classification) -> dict[str, Any]:
    """The key of the task. Raises Inexpressible when the scores are not what they are in Transformers."""
    if objective.task == "auto":
        raise Inexpressible("objective.task", "auto, which training makes class, multi or number")
    if objective.task == "number" and (objective.center, objective.scale) != (0.0, 1.0):
        key = "center" if objective.center != 0.0 else "scale"
        raise Inexpressible(f"objective.{key}", "scores in Transformers are the numbers themselves")
    return {"problem_type": next(kind for kind, task in TASKS.items() if task == objective.task)}


def _labels(config: Config) -> list[str]:
    """The labels in the order of the scores; two without a name when none are given, as in Transformers."""
    named = config.take("id2label", dict, {"0": "LABEL_0", "1": "LABEL_1"})
    config.expect("num_labels", len(named))
    by_id = {str(key): label for key, label in named.items()}
    labels = [by_id.get(str(i)) for i in range(len(named))]
    found = [label for label in labels if isinstance(label, str)]
    if not found or len(set(found)) != len(named):
        raise config.refusal("id2label does not give each class a name of its own")
    return found
