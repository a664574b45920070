"""Fine-tuning as estimators of scikit-learn, for its pipelines, cross-validation and searches.

from lmtool import TextClassifier

classifier = TextClassifier().fit(["a good film", "a dull film"], ["yes", "no"])
classifier.predict(["a good one"])
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from lmtool.api import TrainedModel, finetune
from lmtool.data.python_rows import rows_to_dicts
from lmtool.errors import UsageError


class _TextEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of both estimators.

    source: the run, or published model, that is fine-tuned, as `lmtool finetune --from`. recipe: trains from scratch,
    as --recipe. Without both the best of the linear models is trained. settings: keys of the recipe, as after -s. seed:
    of all random numbers. out: the run directory; a new one in runs/ when empty.
    """

    model_: TrainedModel
    _task: Literal["class", "number"]

    def __init__(
        self,
        source: str | None = None,
        recipe: str | None = None,
        *,
        settings: Mapping[str, object] | None = None,
        seed: int | None = None,
        out: str = "",
    ) -> None:
        self.source, self.recipe, self.settings, self.seed, self.out = source, recipe, settings, seed, out

    def _train(self, texts: Any, labels: Sequence[str | float]) -> None:
        rows = rows_to_dicts(texts, has_labels=False)
        if len(rows) != len(labels):
            raise UsageError(f"{len(rows)} rows of texts have {len(labels)} labels", fix="give one label for each row")
        if any("label" in row for row in rows):
            raise UsageError("the rows have a column named label", fix="give the columns of texts alone, or rename it")
        columns = {"data.text_columns": list(rows[0]) if rows else [], "data.label_column": "label"}
        seed = {} if self.seed is None else {"seed": self.seed}
        objective = {"objective.kind": "classification", "objective.task": self._task}
        settings = {**objective, **columns, **seed, **(self.settings or {})}
        labelled_rows = [{**row, "label": label} for row, label in zip(rows, labels, strict=True)]
        self.model_ = finetune(labelled_rows, self.recipe, settings=settings, source=self.source, out=self.out)


class TextClassifier(ClassifierMixin, _TextEstimator):  # type: ignore[misc]
    """A classifier of texts, one class each. classes_: the labels (C,), sorted. model_: the model that was trained.

    All methods raise the errors of `lmtool.errors`.
    """

    _task = "class"

    def fit(self, X: Any, y: Any) -> Self:
        """Train on texts. X: texts, tuples of several, or a DataFrame of texts. y: a label for each."""
        label_R = np.asarray(y)
        if label_R.ndim != 1:
            raise UsageError("a row has one class here", fix="train several labels a row with lmtool.finetune")
        self.classes_ = np.unique(label_R)
        self._train(X, [str(label) for label in label_R.tolist()])
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each of `classes_` for each row (R, C)."""
        check_is_fitted(self)
        names = [str(label) for label in self.classes_.tolist()]
        return np.array([[one.probabilities[name] for name in names] for one in self.model_.predict(X)])

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row (R,), with the type of `y`."""
        best_R = self.predict_proba(X).argmax(1)
        classes: NDArray[Any] = self.classes_[best_R]
        return classes


class TextRegressor(RegressorMixin, _TextEstimator):  # type: ignore[misc]
    """A regression on texts. model_: the model that was trained. All methods raise the errors of `lmtool.errors`."""

    _task = "number"

    def fit(self, X: Any, y: Any) -> Self:
        """Train on texts. X: as for `TextClassifier`. y: a number for each."""
        self._train(X, np.asarray(y, dtype=np.float64).tolist())
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The number of each row (R,)."""
        check_is_fitted(self)
        return np.array([prediction.label for prediction in self.model_.predict(X)], dtype=np.float64)
