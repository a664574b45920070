"""The comparison at the end of a run: against an n-gram run of its own, and against `eval`."""

import json
import math
import random
import shutil
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from lmtool.cli import app
from lmtool.evaluation.scoring import score_texts
from lmtool.recipe.load import load, parse_settings
from lmtool.runs.checkpoint import list_checkpoints
from lmtool.runs.damage import find_damaged_run_files
from lmtool.runs.directory import BASELINE as BASELINE_FILE
from lmtool.runs.load import load_packed_for_inference, load_run
from lmtool.tasks.results import Results
from lmtool.training import comparison, plan, train
from lmtool.training.comparison import BitsPerByteResults, cross_fit_ngram_weight
from lmtool.training.events import Info
from tests.support.errors import refuses
from tests.support.training import (
    Work,
    documents,
    ended,
    no_report,
    of_kind,
    read_metrics_json,
    words,
    write_table,
)

BASELINE = "evaluation.baseline=true"
BPE = "tokenizer={kind: bpe, vocab_size: 320}"
NGRAM = ("model={kind: ngram, order: 5, context: 1024}", "optimizer={kind: adamw}", "training.steps=1")


def results(work: Work, name: str = "run") -> dict[str, Any]:
    return read_metrics_json(work.run(name))


def validating(work: Work, text: str) -> str:
    """The setting of a validation text."""
    (work.folder / "valid.txt").write_text(text, encoding="utf-8")
    return f'data.valid=["{work.folder / "valid.txt"}"]'


def evaluated(work: Work, name: str) -> dict[str, Any]:
    """What `eval` measures on the validation text."""
    done = CliRunner().invoke(app, ["eval", str(work.run(name)), str(work.folder / "valid.txt"), "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("tokenizer", "is_list"), [(BPE, False), ("tokenizer.kind=char", True)])
def test_the_figures_are_those_of_eval_and_of_an_ngram_run(work: Work, tokenizer: str, is_list: bool) -> None:
    """Characters of running text are counted in pieces, those of a list one by one."""
    held_out = documents(30, seed=9)
    if is_list:
        rng = random.Random(3)
        lines = ["".join(rng.choices("aeioulmn", k=rng.randint(3, 8))) for _ in range(400)]
        work.text.write_text("\n".join(lines[:300]))
        held_out = "\n".join(lines[300:])
    valid = validating(work, held_out)
    told = work.pretrain(valid, tokenizer, BASELINE, "evaluation.interpolate=false")
    found, own = results(work), evaluated(work, "run")
    assert found["bits_per_byte"] == pytest.approx(own["bits_per_byte"], rel=1e-4)
    assert found["loss"] == pytest.approx(own["loss"], rel=1e-4)
    assert found["step"] == ended(told).best_step
    work.pretrain(valid, tokenizer, *NGRAM, name="ngram")
    assert found["ngram_bits_per_byte"] == pytest.approx(evaluated(work, "ngram")["bits_per_byte"], rel=1e-6)
    if not is_list:
        better = min(found["bits_per_byte"], found["ngram_bits_per_byte"])
        assert found["interpolated_bits_per_byte"] < better + 1e-4  # which a weight of the other half may cost
        assert 0 < found["ngram_weight"] < 1


def test_characters_of_running_text_are_compared_with_counted_pieces(work: Work) -> None:
    """The two read other tokens, and are not interpolated. What is noted at first agrees with what is measured."""
    valid = validating(work, documents(30, seed=9))
    work.pretrain(valid, BASELINE, "evaluation.tokens=null")
    found, info = results(work), json.loads((work.run() / "run.json").read_text())
    work.pretrain(valid, "tokenizer={kind: bpe, vocab_size: 4096}", *NGRAM, name="ngram")
    assert found["ngram_bits_per_byte"] == pytest.approx(evaluated(work, "ngram")["bits_per_byte"], rel=1e-6)
    assert found["interpolated_bits_per_byte"] is None
    assert found["loss"] / math.log(2) / info["data"]["bytes_per_token"] == pytest.approx(found["bits_per_byte"])


def test_a_run_that_gains_keeps_its_ngrams_and_is_interpolated_with_them(work: Work) -> None:
    held_out = documents(30, seed=9)
    told = work.pretrain(validating(work, held_out), BPE, BASELINE, "checkpoint.keep_last=9", "checkpoint.every=2")
    found, run = results(work), work.run()
    assert found["interpolated_bits_per_byte"] < 0.99 * found["bits_per_byte"]
    assert "in generate, eval and serve" in of_kind(told, BitsPerByteResults)[0].lines()[0]
    evaluation = evaluated(work, "run")
    assert evaluation["model_bits_per_byte"] == pytest.approx(found["bits_per_byte"], rel=1e-4)
    assert evaluation["bits_per_byte"] == pytest.approx(found["interpolated_bits_per_byte"], rel=0.01)
    loaded = load_packed_for_inference(str(run))
    assert loaded.model.interpolation is not None
    texts = [line[:12] for line in held_out.splitlines() if line][:5]
    weight = found["ngram_weight"]
    for text in texts:
        mixed, own, ngram = (
            [math.exp(p) for p in score_texts(one, [text])[0].logprobs if p is not None]
            for one in (loaded, load_run(str(run)), load_run(str(run / "ngrams")))
        )
        expected = [(1 - weight) * q + weight * r for q, r in zip(own, ngram, strict=True)]
        assert mixed == pytest.approx(expected, rel=1e-3)

    others = [step for step, _ in list_checkpoints(run / "checkpoints") if step != found["step"]]
    assert all(load_packed_for_inference(f"{run}@{step}").model.interpolation is None for step in others)
    before = {path.name: path.read_bytes() for path in (run / "ngrams").rglob("*.safetensors")}
    (run / "metrics.json").unlink()
    work.resume()
    assert {path.name: path.read_bytes() for path in (run / "ngrams").rglob("*.safetensors")} == before
    assert results(work) == found

    work.resume("evaluation.interpolate=false")
    assert results(work)["ngram_weight"] == weight
    assert not (run / "ngrams").exists()
    assert load_packed_for_inference(str(run)).model.interpolation is None


def test_a_mixture_of_texts_keeps_ngrams_whose_damage_is_told(work: Work) -> None:
    other = work.folder / "other.txt"
    other.write_text(documents(60, seed=3), encoding="utf-8")
    settings = parse_settings([f"data.mixture={{{work.text}: 1, {other}: 2}}", BPE, BASELINE])
    assert [*train.train(plan.plan_pretraining(None, str(work.recipe), settings, no_report), work.session())]
    assert results(work)["ngram_weight"] > 0
    assert load_packed_for_inference(str(work.run())).model.interpolation is not None
    (weights,) = (work.run() / "ngrams").rglob("model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    with refuses("checkpoint") as caught:
        load_packed_for_inference(str(work.run()))
    assert caught.value.where == str(work.run() / "ngrams")
    assert [path for path, _ in find_damaged_run_files(work.run())] == [weights]
    shutil.rmtree(work.run() / "ngrams")
    assert load_packed_for_inference(str(work.run())).model.interpolation is None


def test_one_token_has_no_halves(work: Work) -> None:
    work.pretrain(validating(work, "ab"), "data.documents=whole", "data.split=slice", BASELINE)
    found = results(work)
    assert found["tokens"] == 1
    assert found["ngram_bits_per_byte"] > 0
    assert found["interpolated_bits_per_byte"] is None


def test_the_weight_of_an_interpolation_is_the_best_one_of_the_other_half() -> None:
    rng = np.random.default_rng(1)
    model_N, ngram_N = np.log(rng.uniform(0.01, 1, (2, 400)))
    loss, weight = cross_fit_ngram_weight(model_N, ngram_N)
    grid, halves = np.linspace(0, 1, 2001)[1:-1], [slice(0, 200), slice(200, 400)]

    def nats(w: float, half: slice) -> float:
        return float(-np.log((1 - w) * np.exp(model_N[half]) + w * np.exp(ngram_N[half])).mean())

    best = [grid[np.argmin([nats(w, half) for w in grid])] for half in halves]
    assert weight == pytest.approx(sum(best) / 2, abs=2e-3)
    assert loss == pytest.approx((nats(best[1], halves[0]) + nats(best[0], halves[1])) / 2, abs=1e-5)
    # a model that is worse everywhere is left out
    assert cross_fit_ngram_weight(model_N, model_N - 1)[0] == pytest.approx(-model_N.mean(), abs=1e-4)


def test_a_very_long_text_is_not_counted(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MAX_COUNTED_TOKENS", 10)
    told = work.pretrain(BASELINE, "training.steps=2")[-1]
    assert isinstance(told, BitsPerByteResults)
    assert told.ngram_bits_per_byte is None
    assert "gram" not in "".join(told.lines())


@pytest.mark.parametrize(
    ("ngram", "interpolated", "warns"), [(2.25, None, True), (3.5, None, False), (2.25, 1.9, True)]
)
def test_a_model_that_is_worse_than_ngrams_is_warned_of(ngram: float, interpolated: float | None, warns: bool) -> None:
    told = BitsPerByteResults(7, 100, 3.0, 2.5, ngram, None, interpolated, 0.25)
    (line,) = told.lines()
    assert all(f"{figure:.3f}" in line for figure in (2.5, ngram, interpolated) if figure is not None)
    assert len(told.warnings_if_worse_than_ngrams()) == int(warns)


def test_a_model_that_has_no_such_figure_is_refused(work: Work) -> None:
    for model in ("model={kind: ngram}", "objective={kind: bidirectional}"):
        with refuses("recipe") as caught:
            work.pretrain(model, BASELINE)
        assert "baseline" in str(caught.value)


@pytest.mark.parametrize("is_on", [True, False])
def test_a_table_is_compared_with_counted_words_unless_that_is_off(work: Work, is_on: bool) -> None:
    """Also where nothing is said; a text has to be asked for it."""
    rows = (f"the cat {words(i % 7)} {'ran home' if i % 2 else 'sat'},{'ab'[i % 2]}" for i in range(40))
    table = write_table(work.folder / "table.csv", rows)
    off = [] if is_on else ["evaluation.baseline=false"]
    told = work.learn_table("linear", table, "optimizer.l2=1", "data.valid_fraction=0.2", *off)
    (measured,) = of_kind(told, Results)
    assert (measured.baseline is not None) == is_on
    assert any(event.text.startswith("baseline:") for event in of_kind(told, Info)) == is_on
    assert (work.run() / BASELINE_FILE).exists() == is_on
    assert load("tiny").recipe.evaluation.baseline == load("linear").recipe.evaluation.baseline == "auto"
