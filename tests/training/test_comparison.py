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
from lmtool.errors import CheckpointError, RecipeError
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
from tests.support.training import Work, documents, ended, no_report, of_kind, read_metrics_json, words

BASELINE = "evaluation.baseline=true"


NGRAM = ("model={kind: ngram, order: 5, context: 1024}", "optimizer={kind: adamw}", "training.steps=1")


def results(work: Work, name: str = "run") -> dict[str, Any]:
    return read_metrics_json(work.run(name))


def validating(work: Work, text: str) -> str:
    """The setting of a validation text."""
    (work.folder / "valid.txt").write_text(text, encoding="utf-8")
    return f'data.valid=["{work.folder / "valid.txt"}"]'


def evaluated(work: Work, name: str, text: str) -> dict[str, Any]:
    (work.folder / "held-out.txt").write_text(text, encoding="utf-8")
    asked = ["eval", str(work.run(name)), str(work.folder / "held-out.txt"), "--json"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("tokenizer", "is_list"), [("{kind: bpe, vocab_size: 320}", False), ("{kind: char}", False), ("{kind: char}", True)]
)
def test_the_figures_are_those_of_eval_and_of_an_ngram_run(work: Work, tokenizer: str, is_list: bool) -> None:
    held_out = documents(30, seed=9)
    if is_list:
        rng = random.Random(3)
        lines = ["".join(rng.choices("aeioulmn", k=rng.randint(3, 8))) for _ in range(400)]
        work.text.write_text("\n".join(lines[:300]))
        held_out = "\n".join(lines[300:])
    common = (validating(work, held_out), f"tokenizer={tokenizer}")
    told = work.pretrain(*common, BASELINE, "evaluation.interpolate=false")
    found = results(work)
    own = evaluated(work, "run", held_out)
    assert found["bits_per_byte"] == pytest.approx(own["bits_per_byte"], rel=1e-4)
    assert found["loss"] == pytest.approx(own["loss"], rel=1e-4)
    assert found["step"] == ended(told).best_step

    # characters of running text are counted in pieces, those of a list one by one
    in_pieces = "char" in tokenizer and not is_list
    counted = "tokenizer={kind: bpe, vocab_size: 4096}" if in_pieces else f"tokenizer={tokenizer}"
    work.pretrain(common[0], counted, *NGRAM, name="ngram")
    assert found["ngram_bits_per_byte"] == pytest.approx(evaluated(work, "ngram", held_out)["bits_per_byte"], rel=1e-6)
    if in_pieces:  # the two read other tokens
        assert found["interpolated_bits_per_byte"] is None
    elif not is_list:
        better = min(found["bits_per_byte"], found["ngram_bits_per_byte"])
        assert found["interpolated_bits_per_byte"] < better + 1e-4  # which a weight of the other half may cost
        assert 0 < found["ngram_weight"] < 1
        assert f"weight {found['ngram_weight']:.2f}: " in of_kind(told, BitsPerByteResults)[0].lines()[0]


def test_a_run_that_gains_keeps_its_ngrams_and_is_interpolated_with_them(work: Work) -> None:
    held_out = documents(30, seed=9)
    settings = (validating(work, held_out), "tokenizer={kind: bpe, vocab_size: 320}", BASELINE)
    told = work.pretrain(*settings, "checkpoint.keep_last=9", "checkpoint.every=2")
    found, run = results(work), work.run()
    assert found["interpolated_bits_per_byte"] < 0.99 * found["bits_per_byte"]
    assert "in generate, eval and serve" in of_kind(told, BitsPerByteResults)[0].lines()[0]
    evaluation = evaluated(work, "run", held_out)
    assert evaluation["model_bits_per_byte"] == pytest.approx(found["bits_per_byte"], rel=1e-4)
    assert evaluation["bits_per_byte"] == pytest.approx(found["interpolated_bits_per_byte"], rel=0.01)
    loaded = load_packed_for_inference(str(run))
    assert loaded.model.interpolation is not None
    texts = [line[:12] for line in held_out.splitlines() if line][:5]
    both, alone = (score_texts(one, texts) for one in (loaded, load_run(str(run))))
    weight = found["ngram_weight"]
    for mixed, own in zip(both, alone, strict=True):
        ngram = score_texts(load_run(str(run / "ngrams")), [mixed.text])[0].logprobs
        for p, q, r in zip(mixed.logprobs, own.logprobs, ngram, strict=True):
            assert (p is None) == (q is None)
            assert p is None or math.exp(p) == pytest.approx(
                (1 - weight) * math.exp(q) + weight * math.exp(r), rel=1e-3
            )

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


def test_a_mixture_of_texts_keeps_ngrams(work: Work) -> None:
    other = work.folder / "other.txt"
    other.write_text(documents(60, seed=3), encoding="utf-8")
    mixture = f"data.mixture={{{work.text}: 1, {other}: 2}}"
    settings = parse_settings([mixture, "tokenizer={kind: bpe, vocab_size: 320}", BASELINE])
    planned = plan.plan_pretraining(None, str(work.recipe), settings, no_report)
    assert [*train.train(planned, work.session())]
    assert results(work)["ngram_weight"] > 0
    assert load_packed_for_inference(str(work.run())).model.interpolation is not None


def test_damaged_ngrams_are_told(work: Work) -> None:
    work.pretrain("tokenizer={kind: bpe, vocab_size: 320}", BASELINE)
    (weights,) = (work.run() / "ngrams").rglob("model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError) as caught:
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

    best = [min(grid, key=lambda w, half=half: nats(w, half)) for half in halves]
    assert weight == pytest.approx(sum(best) / 2, abs=2e-3)
    assert loss == pytest.approx((nats(best[1], halves[0]) + nats(best[0], halves[1])) / 2, abs=1e-5)
    # a model that is worse everywhere is left out
    assert cross_fit_ngram_weight(model_N, model_N - 1)[0] == pytest.approx(-model_N.mean(), abs=1e-4)


def test_without_it_nothing_is_measured(work: Work) -> None:
    assert of_kind(work.pretrain(), BitsPerByteResults) == []
    assert not (work.run() / "metrics.json").exists()


def test_a_very_long_text_is_not_counted(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MAX_COUNTED_TOKENS", 10)
    told = work.pretrain(BASELINE)[-1]
    assert isinstance(told, BitsPerByteResults)
    assert told.ngram_bits_per_byte is None
    assert "gram" not in "".join(told.lines())


@pytest.mark.parametrize(
    ("ngram", "interpolated", "warns"), [(2.25, None, True), (3.5, None, False), (2.25, 1.9, True)]
)
def test_who_loses_to_counting_is_told(ngram: float, interpolated: float | None, warns: bool) -> None:
    told = BitsPerByteResults(7, 100, 3.0, 2.5, ngram, None, interpolated, 0.25)
    (line,) = told.lines()
    assert all(f"{figure:.3f}" in line for figure in (2.5, ngram, interpolated) if figure is not None)
    assert bool(told.warnings_if_worse_than_ngrams()) == warns


def test_a_model_that_has_no_such_figure_is_refused(work: Work) -> None:
    work.text.write_text(words(3000))
    for model in ("model={kind: ngram}", "objective={kind: bidirectional}"):
        with pytest.raises(Exception, match="baseline"):
            work.pretrain(model, BASELINE)


def test_bytes_of_a_token_turn_losses_into_bits(work: Work) -> None:
    """What is noted before the first step agrees with what is measured at the end."""
    work.pretrain(BASELINE, "evaluation.tokens=null")
    found = results(work)
    info = json.loads((work.run() / "run.json").read_text())
    assert found["loss"] / math.log(2) / info["data"]["bytes_per_token"] == pytest.approx(found["bits_per_byte"])
    assert any("tokens" in line for line in info["data"]["lines"])


@pytest.mark.parametrize(("value", "is_measured"), [("auto", True), ("true", True), ("false", False)])
def test_a_table_is_compared_with_counted_words_unless_that_is_off(work: Work, value: str, is_measured: bool) -> None:
    table = work.folder / "table.csv"
    rows = (f"the cat {words(i % 7)} {'ran home' if i % 2 else 'sat'},{'ab'[i % 2]}" for i in range(40))
    table.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    told = work.learn_table("linear", table, f"evaluation.baseline={value}")
    (measured,) = (event for event in told if isinstance(event, Results))
    assert (measured.baseline is not None) == is_measured
    assert any(isinstance(event, Info) and event.text.startswith("baseline:") for event in told) == is_measured
    assert (work.run() / BASELINE_FILE).exists() == is_measured


def test_a_text_has_no_baseline_unless_it_is_on() -> None:
    assert load("tiny", parse_settings([])).recipe.evaluation.baseline == "auto"
    with pytest.raises(RecipeError, match="compares causal language models"):
        load("bert-tiny", parse_settings([BASELINE]))
