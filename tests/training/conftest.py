from collections.abc import Callable
from typing import Any

import pytest

from lmtool.evaluation.loop import ValidationResult
from lmtool.runs import load
from lmtool.training.data import TextData

Script = Callable[..., None]


@pytest.fixture
def validations(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Sets the losses of a run's validations."""

    def script(*losses: float) -> None:
        said = iter(losses)
        monkeypatch.setattr(TextData, "validate", lambda *_: ValidationResult(next(said)))

    return script


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that sessions build; of two, the first is for the speed of the other."""
    models: list[Any] = []
    genuine = load.build_model

    def build(*arguments: Any) -> Any:
        models.append(genuine(*arguments))
        return models[-1]

    monkeypatch.setattr(load, "build_model", build)
    return models
