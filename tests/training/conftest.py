from collections.abc import Callable

import pytest

from lmtool.evaluation.loop import ValidationResult
from lmtool.training.data import TextData

Script = Callable[..., None]


@pytest.fixture
def validations(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Sets the losses of a run's validations."""

    def script(*losses: float) -> None:
        said = iter(losses)
        monkeypatch.setattr(TextData, "validate", lambda *_: ValidationResult(next(said)))

    return script
