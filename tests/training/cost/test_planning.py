"""What a recipe takes: operations as torch counts them, and arithmetic on figures that are known."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lmtool.compute.device_kinds import DEVICE_KINDS, GpuDatasheet
from lmtool.compute.processes import World
from lmtool.data.survey import Progress, no_progress
from lmtool.model import build
from lmtool.model.size import count_training_flops_per_token
from lmtool.objective import Objective, VocabularyInfo
from lmtool.objective import build_objective_for_vocabulary as build_objective
from lmtool.objective.base import Example
from lmtool.recipe.load import Setting, load
from lmtool.recipe.spec.recipe import Recipe
from lmtool.tasks.data import TableData
from lmtool.training.cost import planning
from lmtool.training.cost.planning import TrainingForecast, forecast_training
from lmtool.training.data import TextData, tokenize_training_text
from lmtool.training.fit import ModelAndOptimizers, fit
from lmtool.training.windows import Windows
from tests.support.errors import refuses

T, V = 24, 300
TINY = [f"model.context={T}", "model.d_model=16", f"model.vocab_size={V}", "training.batch_size=4"]
HEADS = ["model.n_heads=2", "model.n_layers=2"]


def tiny(name: str, *overrides: str) -> Recipe:
    return load(name, [*TINY, *overrides]).recipe


class Known(NamedTuple):
    """A plan whose data are read already."""

    recipe: Recipe
    known: TextData | TableData | None = None
    base: None = None
    choice: str = ""

    @property
    def tables(self) -> bool:
        return self.known is not None

    def read_data_teacher_and_features(
        self, report: Progress
    ) -> tuple[Recipe, TextData | TableData | None, None, None]:
        return self.recipe, self.known, None, None


def found_for(session: Any, n_devices: int = 1, kind: str | None = None, utilisation: float = 0.4) -> TrainingForecast:
    return forecast_training(
        session, n_devices=n_devices, device_kind=kind, utilisation=utilisation, report=no_progress
    )


def planned(recipe: Recipe, **options: Any) -> TrainingForecast:
    return found_for(Known(recipe), kind="h100", **options)


def objective_of(recipe: Recipe) -> Objective:
    special = tuple(range(40))
    return build_objective(recipe, VocabularyInfo(V, 0, 1, 2, 3, 4, 5, (1,), special[6:], frozenset(special)))


def counted(recipe: Recipe) -> int:
    """Operations of forward and backward pass of a row, as torch counts them, with all pairs of query and key."""
    objective = objective_of(recipe)
    tokens = np.random.default_rng(1).integers(40, V, objective.choose_text_cut(T).length)
    batch = objective.collate([Example(tokens, np.random.default_rng(1))])
    torch.manual_seed(1)
    lm = build(recipe.model, V).train()
    with FlopCounterMode(display=False) as counter:
        total: Any = objective.loss(lm, batch).total
        total.backward()
    return int(counter.get_total_flops())


BELOW = T * (T - 1) // 2
PER_PAIR = 3 * 2 * 2 * 16
"""Of the pairs that a mask excludes: a score and a weighted value, three times, over all heads."""


@pytest.mark.parametrize(
    ("name", "overrides", "unseen"),
    [
        ("gpt2-124m", HEADS, 2 * BELOW * PER_PAIR),
        ("llama-tiny", [*HEADS, "model.n_kv_heads=1", "model.head_width=null"], 2 * BELOW * PER_PAIR),
        ("bert-tiny", [*HEADS, "objective.next_sentence=false", "model.next_sentence_head=false"], 0),
        ("elman", ["model.n_layers=1"], -2 * 16 * 16),
        ("gru", ["model.n_layers=2"], -2 * 2 * 3 * 16 * 16),
    ],
)
def test_operations_are_those_that_torch_counts(name: str, overrides: list[str], unseen: int) -> None:
    """All that torch counts, less what a mask excludes; and the gradient of the first state, which nobody takes."""
    recipe = tiny(name, *overrides)
    expected = counted(recipe) - unseen
    assert planned(recipe).flops_per_token == pytest.approx(expected / T, rel=1e-3)


def test_operations_of_an_encoder_decoder_follow_from_the_lengths_of_source_and_target() -> None:
    recipe = tiny("t5-tiny", *HEADS, "tokenizer.sentinels=20")
    objective = objective_of(recipe)
    row = Example(np.arange(40, 40 + objective.choose_text_cut(T).length), np.random.default_rng(1))
    n_target = objective.collate([row]).tokens_BT.shape[1]
    expected = counted(recipe) - 2 * n_target * (n_target - 1) // 2 * PER_PAIR
    assert planned(recipe).flops_per_token == pytest.approx(expected / T, rel=1e-3)


@pytest.mark.parametrize("tied", ["true", "false"])
def test_operations_for_the_utilization_are_those_that_torch_counts(tied: str) -> None:
    """6 N + 12 L H Q T: all pairs of query and key, without the look-up of an embedding that is no output matrix."""
    recipe = tiny("llama-tiny", *HEADS, f"model.tie_embeddings={tied}", "model.head_width=8", "model.n_kv_heads=1")
    flops = count_training_flops_per_token(build(recipe.model, V), recipe.model)
    assert flops == pytest.approx(counted(recipe) / T, rel=0.01)


@pytest.mark.parametrize(("name", "overrides"), [("bert-tiny", HEADS), ("albert-tiny", HEADS), ("gru", [])])
def test_the_formula_of_the_utilization_is_for_dense_decoders_only(name: str, overrides: list[str]) -> None:
    recipe = tiny(name, *overrides)
    assert count_training_flops_per_token(build(recipe.model, V), recipe.model) is None


def test_time_is_operations_over_the_stated_share_of_the_peak() -> None:
    recipe = tiny(
        "tiny", "training.steps=1000", "training.batch_size=16", "evaluation.every=1000", "evaluation.tokens=1"
    )
    found = planned(recipe, n_devices=4, utilisation=0.5)
    expected = 16 * T * found.flops_per_token / (4 * 0.5 * DEVICE_KINDS["h100"].peak_flops)
    assert found.step_seconds == pytest.approx(expected, rel=1e-3)
    assert found.seconds == pytest.approx(1000 * expected, rel=0.01)
    assert (found.steps, found.tokens) == (1000, 1000 * 16 * T)
    assert (found.rows, found.micro_batches) == (4, 1)


def test_the_micro_batch_is_halved_until_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny("tiny", "training.batch_size=16")
    whole, half = (planned(tiny("tiny", "training.batch_size=16", f"training.micro_batch={n}")) for n in (16, 8))
    assert whole.footprint is not None
    assert half.footprint is not None
    assert half.footprint.peak < whole.footprint.peak
    between = (half.footprint.peak + whole.footprint.peak) // 2
    small = GpuDatasheet(1e12, round(between / planning.USABLE_MEMORY_FRACTION), "")
    monkeypatch.setitem(DEVICE_KINDS, "h100", small)
    found = planned(recipe)
    assert (found.rows, found.micro_batches, found.fits) == (8, 2, True)
    assert found.footprint == half.footprint
    given = planned(recipe.model_copy(update={"training": recipe.training.model_copy(update={"micro_batch": 16})}))
    assert (given.rows, given.fits) == (16, False)


def test_tokens_and_minutes_decide_on_the_steps() -> None:
    assert planned(tiny("tiny", f"training.tokens={10 * 4 * T + 1}")).steps == 11
    found = planned(tiny("tiny", "training.minutes=2", "evaluation.tokens=1"))
    assert found.step_seconds is not None
    assert found.steps * found.step_seconds == pytest.approx(120, rel=0.01)


def test_steps_are_measured_on_rows_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of its documents, where a row is two of them: shorter than the context."""
    monkeypatch.setattr(planning, "ESTIMATE_SECONDS", 0.01)
    text = tmp_path / "names.txt"
    text.write_text("".join(f"{name}\n" for name in ["ada", "grace", "alan", "john"] * 50))
    settings = [*TINY, *HEADS, "model.vocab_size=null", "data.documents=line", "tokenizer.kind=char"]
    recipe = load("bert-tiny", [*settings, Setting("data.train", [str(text)], "TEXT")]).recipe
    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path / "cache"))
    recipe, data = tokenize_training_text(recipe, None, World(), lambda *_: None)
    widths: list[int] = []

    def recorded(trainable: ModelAndOptimizers, examples: Windows, *rest: Any) -> Any:
        widths.extend(len(example.tokens) for example in examples.read(np.arange(20)))
        return fit(trainable, examples, *rest)

    monkeypatch.setattr(planning, "fit", recorded)
    assert found_for(Known(recipe, data)).basis == "measured"
    assert max(widths) < T
    assert len(widths) == 20


@pytest.mark.parametrize("name", ["skipgram", "glove", "tagger", "electra-tiny", "seq2seq"])
def test_every_family_is_planned(name: str) -> None:
    found = planned(load(name, ["training.batch_size=4"]).recipe)
    assert found.parameters > 0
    assert found.flops_per_token > 0
    assert found.optimal_tokens == (None if name in ("tagger", "seq2seq") else 20 * found.parameters)


def test_what_cannot_be_planned() -> None:
    """Counts, and a batch that devices cannot share."""
    with refuses("usage"):
        planned(load("ngram").recipe)
    with refuses("usage"):
        planned(tiny("tiny"), n_devices=3)
