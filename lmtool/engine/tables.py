"""From labelled tables to rows that a model learns from, and to how well it answers them.

Shapes: R rows, C classes, labels or 1 number.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.engine.build import build_objective
from lmtool.engine.device import Compute
from lmtool.engine.distributed import World
from lmtool.engine.material import Material, Validation
from lmtool.engine.metrics import class_metrics, confusion_matrix, multi_label_metrics, regression_metrics
from lmtool.engine.rows import Layout, Row, RowExamples
from lmtool.errors import DataError, UsageError
from lmtool.model import LanguageModel
from lmtool.model.averaging import AveragingModel, RatioHead
from lmtool.model.classifier import Classifier
from lmtool.objective import ClassificationObjective, Example, Objective
from lmtool.recipe.spec import Classification, Data, Recipe, TokenizerFile
from lmtool.text.columns import Columns, choose_columns
from lmtool.text.examples import Examples, read_examples, restore_split, shared_rows, split_examples
from lmtool.text.labels import Label, LabelKind, LabelMap
from lmtool.text.prepare import default_cache
from lmtool.text.table import Table, open_table
from lmtool.text.tokenizer import Tokenizer

SPLIT = "split.json"
"""In a run directory: the numbers of the rows that were held out."""

BATCH_TOKENS = 16_384
"""Positions computed at once when rows are answered."""


class RowMaterial(Material):
    """Rows of labelled tables: to learn from, to choose the best checkpoint by, and to be measured on at the end."""

    unit = "row"
    documents = True

    def __init__(
        self,
        tokenizer: Tokenizer,
        recipe: Recipe,
        train: Sequence[Row],
        valid: Sequence[Row],
        test: Sequence[Row] | None,
        lines: tuple[str, ...],
    ) -> None:
        self.tokenizer = tokenizer
        self.train, self.valid, self.test = train, valid, test
        self.batch_units = recipe.training.batch_size
        self.lines = lines
        self._recipe = recipe

    def inform(self, lm: LanguageModel) -> None:
        if not isinstance(lm, Classifier) or not isinstance(lm.body, AveragingModel) or not lm.body.log_ratios:
            return
        if not isinstance(lm.head, RatioHead):
            raise UsageError(
                "log ratios are of classes or labels, and this table has numbers",
                where="model.log_ratios",
                fix="take -s model.log_ratios=false, or --labels class",
            )
        objective = build_objective(self._recipe, self.tokenizer)
        lm.head.count(
            lm.body,
            [objective.collate([_example(self.train[i]) for i in group]) for group in groups(self.train)],
        )

    def source(self, objective: Objective) -> RowExamples:
        return RowExamples(self.train, self._recipe.training.batch_size, self._recipe.seed)

    def validate(self, lm: LanguageModel, objective: Objective, compute: Compute, world: World) -> Validation:
        assert isinstance(objective, ClassificationObjective)
        scores_RC, loss = answer(lm, objective, self.valid, compute)
        result = measure_rows(scores_RC, self.valid, objective.spec)
        names = {
            "accuracy": "accuracy",
            "macro_f1": "macro-f1",
            "subset_accuracy": "accuracy",
            "pearson": "correlation",
        }
        found = {names[key]: float(value) for key, value in result.items() if key in names and value is not None}
        return Validation(loss, found)


@dataclass(frozen=True)
class ReadRows:
    """Tables made ready for training.

    recipe: with what only the tables could say: columns, labels, steps. split: what to keep of the rows held out.
    """

    recipe: Recipe
    material: Material
    split: dict[str, Any] | None
    fingerprint: str
    warnings: tuple[str, ...]


def read_rows(recipe: Recipe, tokenizer: Tokenizer | None, split: dict[str, Any] | None = None) -> ReadRows:
    """Read the tables that a recipe names and lay out their rows.

    tokenizer: of the run that is trained on; when None, one is trained on the texts. split: the rows held out by an
    earlier session of the run. Raises the errors of the tables, and UsageError for a recipe that names several.
    """
    spec, data = recipe.objective, recipe.data
    assert isinstance(spec, Classification)
    if len(data.train) != 1 or len(data.valid) > 1:
        raise UsageError("a model learns from one labelled table", where="data.train", fix="name one table")
    table = open_table(data.train[0], cache=default_cache(), encoding=data.encoding, delimiter=data.delimiter)
    columns = choose_columns(table, text_columns=data.text_columns, label_column=data.label_column)
    if columns.target is not None:
        raise DataError(
            f"{columns.describe()}: a target is to be written, not a label to be told",
            where=str(table.path),
            fix="name the label with --label-column, or train a model that writes: see lmtool recipes ls",
        )
    kind: LabelKind | None = None if spec.task == "auto" else spec.task
    known = LabelMap(kind, spec.labels) if kind is not None and spec.labels else None
    examples = read_examples(table, columns, kind=kind, labels=known, skip_bad_rows=data.skip_bad_rows)
    labels = cast(LabelMap, examples.labels)
    warnings = [*map(str, examples.notices)] + ([str(examples.skipped)] if examples.skipped.count else [])

    def others(source: str) -> Examples:
        found, said = read_beside(examples, source, data)
        warnings.extend(said)
        return found

    kept = None
    if data.valid:
        train, valid = examples, others(data.valid[0])
    else:
        parts = restore_split(examples, split) if split else split_examples(examples, data.valid_fraction, recipe.seed)
        train, valid, kept = parts.train, parts.test, parts.to_json()
    test = others(data.test) if data.test else None
    if labels.kind == "number" and spec.task == "auto":
        values = [float(cast(float, item.label)) for item in train.items]
        spec = spec.model_copy(update={"center": float(np.mean(values)), "scale": float(np.std(values)) or 1.0})
    spec = spec.model_copy(update={"task": labels.kind, "labels": labels.names if labels.kind != "number" else ()})
    spec = spec.model_copy(update={"class_weights": class_weights(spec, train)})
    tokenizer = tokenizer or tokenizer_for(recipe, (text for item in train.items for text in item.texts))
    layout = Layout(recipe.model, tokenizer)

    def laid(part: Examples) -> list[Row]:
        answers = [as_answer(labels, cast(Label, item.label), spec) for item in part.items]
        return layout.rows((item.texts for item in part.items), answers, (item.row for item in part.items))

    rows = {"train": laid(train), "valid": laid(valid)} | ({"test": laid(test)} if test else {})
    for name, part in rows.items():
        if n_cut := sum(row.cut for row in part):
            warnings.append(f"{n_cut:,} of {len(part):,} {name} rows are cut at the context of {recipe.model.context}")
    data = data.model_copy(update={"text_columns": columns.texts, "label_column": columns.label})
    recipe = with_rows(recipe.model_copy(update={"objective": spec, "data": data}), len(train), tokenizer)
    held = f"validation: {len(valid):,} rows" + (f", test: {len(test):,} rows" if test else "")
    lines = (f"{columns.describe()}", f"table: {train.describe()}; {held}")
    material = RowMaterial(tokenizer, recipe, rows["train"], rows["valid"], rows.get("test"), lines)
    return ReadRows(recipe, material, kept, fingerprint(rows.values()), tuple(warnings))


def class_weights(spec: Classification, train: Examples) -> tuple[float, ...] | None:
    """What a row of each class counts: n / (C n_c) where the recipe wants them balanced, else what it says.

    Raises UsageError when rows have no one class, or when there are not as many weights as classes.
    """
    weights = spec.class_weights
    if weights is None:
        return None
    if spec.task != "class":
        kinds = {"multi": "several labels", "number": "a number"}
        raise UsageError(
            f"rows are weighed by their class, but they have {kinds[spec.task]}",
            where="objective.class_weights",
            fix="leave it out, or say --labels class if each row has one",
        )
    if weights == "balanced":
        counts = Counter(item.label for item in train.items)
        n, n_classes = len(train), len(spec.labels)
        # a class whose rows are all held out weighs nothing that is learnt
        return tuple(n / (n_classes * counts[name]) if counts[name] else 0.0 for name in spec.labels)
    if len(weights) != len(spec.labels):
        raise UsageError(
            f"there are {len(weights)} weights for {len(spec.labels)} classes: {', '.join(spec.labels)}"[:200],
            where="objective.class_weights",
            fix="give one for each, in this order, or take balanced",
        )
    return weights


def tokenizer_for(recipe: Recipe, texts: Iterable[str]) -> Tokenizer:
    """The tokenizer that a recipe names, or one trained on these texts."""
    if isinstance(recipe.tokenizer, TokenizerFile):
        return Tokenizer.load(recipe.tokenizer.path)
    return Tokenizer.train(recipe.tokenizer, texts)


def with_rows(recipe: Recipe, n_rows: int, tokenizer: Tokenizer) -> Recipe:
    """The recipe with what `n_rows` rows in an epoch decide: its steps, and the size of the vocabulary."""
    steps = recipe.training.steps
    if recipe.training.epochs is not None:
        steps = max(1, math.ceil(recipe.training.epochs * n_rows / recipe.training.batch_size))
    return recipe.model_copy(
        update={
            "training": recipe.training.model_copy(update={"steps": steps}),
            "model": recipe.model.model_copy(update={"vocab_size": recipe.model.vocab_size or tokenizer.vocab_size}),
        }
    )


def fingerprint(parts: Iterable[Sequence[Row]]) -> str:
    """A hash of all that is learnt from and measured on."""
    digest = hashlib.sha256()
    for part in parts:
        for row in part:
            for values in (row.tokens, row.label, row.target):
                digest.update(b"" if values is None else values.tobytes())
    return digest.hexdigest()


def read_beside(examples: Examples, source: str, data: Data) -> tuple[Examples, list[str]]:
    """Another table with the columns and labels of the training table, and what there is to warn of.

    Raises the errors of tables.
    """
    table = open_table(source, cache=default_cache(), encoding=data.encoding, delimiter=data.delimiter)
    columns = same_columns(examples.columns, table)
    found = read_examples(table, columns, labels=examples.labels, skip_bad_rows=data.skip_bad_rows)
    shared = shared_rows(examples, found, Path(source).name)
    return found, ([str(shared)] if shared else []) + ([str(found.skipped)] if found.skipped.count else [])


def same_columns(columns: Columns, table: Table) -> Columns:
    """The columns of the training table in another one. Raises DataError when one is missing."""
    if columns.target is not None:
        return choose_columns(table, source_column=columns.texts[0], target_column=columns.target)
    return choose_columns(table, text_columns=columns.texts, label_column=columns.label)


def saved_split(run: Path) -> dict[str, Any] | None:
    """The rows that a run holds out; None when a table of its own was named."""
    path = run / SPLIT
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def as_answer(labels: LabelMap, label: Label, spec: Classification) -> NDArray[np.float64]:
    """A label in the numbers that a head learns: (1,) class or scaled number, (C,) for labels."""
    numbers = np.atleast_1d(np.array(labels.encode(label), dtype=np.float64))
    return (numbers - spec.center) / spec.scale if labels.kind == "number" else numbers


@torch.inference_mode()
def answer(
    lm: LanguageModel, objective: ClassificationObjective, rows: Sequence[Row], compute: Compute
) -> tuple[NDArray[np.float64], float]:
    """Scores of all rows in their order, (R, C), and the mean loss; NaN when the rows have no labels."""
    assert isinstance(lm, Classifier)
    was_training = lm.training
    lm.eval()
    total = 0.0
    found: dict[int, NDArray[np.float64]] = {}
    for group in groups(rows):
        examples = [_example(rows[i]) for i in group]
        batch = objective.collate(examples).to(compute.device)
        with compute.autocast():
            scores_BC, _ = lm.answer(batch)
        if examples[0].label is not None:
            total += float(objective.head_loss(scores_BC, batch).total)
        found.update(zip(group, scores_BC.cpu().double().numpy(), strict=True))
    lm.train(was_training)
    has_labels = bool(rows) and rows[0].label is not None
    return np.stack([found[i] for i in range(len(rows))]), total / len(rows) if has_labels else math.nan


NO_CHANCE = np.random.Generator(np.random.PCG64(0))
"""Where nothing is random."""


def _example(row: Row) -> Example:
    return Example(row.tokens, NO_CHANCE, label=row.label, segments=row.segments)


def groups(rows: Sequence[Row]) -> Iterator[list[int]]:
    """Indexes of rows of like length together, so that little is padding."""
    group: list[int] = []
    for i in sorted(range(len(rows)), key=lambda i: rows[i].length):
        if group and (len(group) + 1) * rows[i].length > BATCH_TOKENS:
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def probabilities(scores_RC: NDArray[np.float64], spec: Classification) -> NDArray[np.float64]:
    """What scores say: softmax over classes, a sigmoid for each label, and numbers on their own scale."""
    match spec.task:
        case "class":
            powers_RC = np.exp(scores_RC - scores_RC.max(1, keepdims=True))
            shares: NDArray[np.float64] = powers_RC / powers_RC.sum(1, keepdims=True)
            return shares
        case "multi":
            sigmoid: NDArray[np.float64] = 1 / (1 + np.exp(-scores_RC))
            return sigmoid
    return scores_RC * spec.scale + spec.center


def measure_rows(scores_RC: NDArray[np.float64], rows: Sequence[Row], spec: Classification) -> dict[str, Any]:
    """How well rows with labels are answered, in plain numbers."""
    true_RC = np.stack([cast(NDArray[np.float64], row.label) for row in rows])
    match spec.task:
        case "class":
            confusion = confusion_matrix(true_RC[:, 0].astype(np.int64), scores_RC.argmax(1), len(spec.labels))
            return class_metrics(confusion).to_json(spec.labels)
        case "multi":
            return multi_label_metrics(true_RC > 0.5, scores_RC > 0).to_json(spec.labels)
    true_R, found_R = (probabilities(numbers_RC, spec)[:, 0] for numbers_RC in (true_RC, scores_RC))
    return dict(regression_metrics(true_R, found_R).to_json())


def mistakes(
    scores_RC: NDArray[np.float64], rows: Sequence[Row], spec: Classification, most: int = 10
) -> list[dict[str, Any]]:
    """The most confident wrong answers among classes: row, true and given class, probability."""
    if spec.task != "class":
        return []
    p_RC = probabilities(scores_RC, spec)
    given_R = p_RC.argmax(1)
    true_R = [int(cast(NDArray[np.float64], row.label)[0]) for row in rows]
    wrong = [i for i in range(len(rows)) if given_R[i] != true_R[i]]
    wrong.sort(key=lambda i: (-p_RC[i].max(), i))
    return [
        {
            "row": rows[i].number,
            "label": spec.labels[true_R[i]],
            "predicted": spec.labels[given_R[i]],
            "probability": float(p_RC[i].max()),
        }
        for i in wrong[:most]
    ]
