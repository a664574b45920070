"""Each small recipe overfits one batch, which fails when its loss, gradients or learning rates are wrong."""

from itertools import count
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lmtool.objective import Example
from lmtool.recipe.load import Setting, parse_settings, shipped_recipes
from lmtool.tasks.rows import LengthBucketedExamples
from lmtool.training.cooccurrences import CooccurrenceExamples
from lmtool.training.plan import plan_pretraining
from lmtool.training.train import train
from lmtool.training.windows import Windows
from tests.support.cases import nightly_but
from tests.support.shipped import TABLES, kind_of_objective, recipe_of, small, table_for
from tests.support.training import Work, metrics, no_report

STEPS = {"lstm": 500, "lstm-attention": 500, **dict.fromkeys(("elmo-tiny", "gru", "t5-tiny", "dan", "linear"), 300)}
"""Most steps of recipes that need more than 150; gated networks need the most to memorize a batch."""
PAPERS = {"gpt1", "bert-base", "bert-large", "roberta-base", "t5-small", "prefix-lm", "transformer-base"}
"""Their learning rates are for hundreds of thousands of steps, as are those of each gpt2."""

HARD = {
    "skipgram": 0.5,  # negative samples include true neighbours
    "cbow": 0.5,
}
"""Loss of a recipe relative to the first, where it is above a fifth."""


def trained_by_steps() -> list[str]:
    names = [name for name in sorted(shipped_recipes()) if not name.startswith("gpt2") and name not in PAPERS]
    return [name for name in names if not recipe_of(name).model.counts]


@pytest.fixture
def one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step has the first samples, corrupted in the same way."""
    for source in (Windows, LengthBucketedExamples, CooccurrenceExamples):

        def read(self: Any, sample_S: NDArray[np.int64], genuine: Any = source.read) -> list[Example]:
            return list(genuine(self, np.arange(len(sample_S))))

        monkeypatch.setattr(source, "read", read)


# the longest, of whose parts the others have each
@pytest.mark.parametrize(
    "name",
    nightly_but(
        [
            pytest.param(
                name, marks=[pytest.mark.slow] * (name in ("elmo-tiny", "lstm-attention", "transformer-small"))
            )
            for name in trained_by_steps()
        ],
        "albert-tiny",
        "lstm",
    ),
)
def test_a_small_recipe_learns_one_batch_by_heart(name: str, work: Work, one_batch: None) -> None:
    recipe = recipe_of(name)
    steps = STEPS.get(name, 150)
    settings = [*small(name), f"training.steps={steps}", f"evaluation.every={steps}", f"checkpoint.every={steps}"]
    own = type(recipe.objective).model_fields
    settings += [f"model.{key}=0" for key in ("dropout", "word_dropout") if key in type(recipe.model).model_fields]
    settings += [f"objective.{key}=0" for key in ("dropout", "label_smoothing") if key in own]
    if recipe.model.kind != "averaging" or not recipe.model.one_hot:
        settings.append("model.d_model=64")

    asked = count(1)

    def learned() -> bool:
        losses = [line["loss"] for line in metrics(work.run())]
        return bool(min(losses) < HARD.get(name, 0.2) * losses[0])  # replaced tokens are drawn in each step

    def at_times() -> bool:
        return next(asked) % 10 == 0 and learned()

    if kind_of_objective(name) in TABLES:
        events = work.learn_table(name, table_for(name, work.folder), *settings, "training.epochs=null", stop=at_times)
    else:
        flags = [Setting("data.train", [str(work.text)], "TEXT")]
        plan = plan_pretraining(None, name, parse_settings(settings, flags), no_report)
        events = list(train(plan, work.session(stop=at_times)))
    assert events
    assert learned()
