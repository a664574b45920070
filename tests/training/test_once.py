"""What a training does once: a text is hashed, a recipe parsed, a model built, and validated by each validation."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from lmtool.data import survey
from lmtool.recipe import load as recipes
from lmtool.recipe.load import Setting, parse_settings
from lmtool.runs import load as loading
from lmtool.tasks.data import TableData
from lmtool.training.data import TextData
from lmtool.training.events import StepCompleted
from lmtool.training.plan import plan_pretraining
from lmtool.training.train import train
from tests.support.training import Work, after, no_report, of_kind


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of these was done."""
    found: Counter[str] = Counter()

    def count(owner: Any, name: str, called: str) -> None:
        whole: Callable[..., Any] = getattr(owner, name)

        def counted(*given: Any, **more: Any) -> Any:
            # values of the command line are parsed too
            if called != "parsed" or not str(given[1]).startswith("-s "):
                found[called] += 1
            return whole(*given, **more)

        monkeypatch.setattr(owner, name, counted)

    recipes._parse_file.cache_clear()
    count(survey, "hash_files", "hashed")
    count(recipes, "parse_yaml", "parsed")
    count(loading, "build_model", "built")
    count(TextData, "validate", "validated")
    count(TableData, "validate", "validated")
    return found


def validations(events: list[Any]) -> int:
    return sum(event.validation is not None for event in of_kind(events, StepCompleted))


@pytest.mark.parametrize("length", ["training.steps=12", "training.minutes=0.005"])
def test_pretraining_does_nothing_twice(work: Work, calls: Counter[str], length: str) -> None:
    """Also where the speed is measured, on which the length depends."""
    events = work.pretrain(length)
    assert calls == {"hashed": 1, "parsed": 1, "built": 1, "validated": validations(events)}


def test_pretraining_by_the_default_recipe_does_nothing_twice(work: Work, calls: Counter[str]) -> None:
    small = ("model.d_model=8", "model.n_layers=1", "model.context=16", "tokenizer.vocab_size=300")
    settings = parse_settings([*small, "training.steps=2"], [Setting("data.train", [str(work.text)], "TEXT")])
    events = list(train(plan_pretraining(None, None, settings, no_report), work.session()))
    assert calls == {"hashed": 1, "parsed": 1, "built": 1, "validated": validations(events)}


def test_fine_tuning_does_nothing_twice(work: Work, calls: Counter[str]) -> None:
    work.pretrain(name="base")
    calls.clear()
    events = work.finetune("data.valid_fraction=0.2", source=work.run("base"))
    # that of the run, and what settings of the data are resolved with
    assert calls == {"parsed": 2, "built": 1, "validated": validations(events)}


def test_resuming_does_nothing_twice(work: Work, calls: Counter[str]) -> None:
    work.pretrain(stop=after(6))
    calls.clear()
    events = work.resume()
    assert calls == {"hashed": 1, "parsed": 1, "built": 1, "validated": validations(events)}
