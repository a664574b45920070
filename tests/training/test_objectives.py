"""Objectives in whole runs: random draws in collation are the same when resumed and in micro-batches."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from lmtool.compute.device import CPU
from lmtool.compute.processes import World
from lmtool.errors import DataError, UsageError
from lmtool.generation.generate import TextGenerator
from lmtool.inference.evaluation import ValidationResult
from lmtool.inference.load import load_run
from lmtool.model import LanguageModel
from lmtool.objective import scheduled
from lmtool.training import fit as fitting
from lmtool.training.data import prepare_text
from tests.compute.together import together
from tests.support.cases import nightly_but
from tests.support.families import BERT, ELECTRA
from tests.support.training import Work, after, documents, ended, lasting, metrics, no_report

ALBERT = (BERT[0], "objective={kind: masked, sentence_order: true}")
WORDS = (BERT[0], "objective={kind: masked, whole_words: true, independent: true}", "tokenizer.kind=bpe")
SPANBERT = (
    BERT[0].replace("next_sentence_head", "span_boundary_head"),
    "objective={kind: masked, spans: {}, span_boundary: true}",
)
XLNET = (
    BERT[0].replace("next_sentence_head: true", "dropout: 0.2").replace("dropout: 0.1, ", ""),
    "objective={kind: masked, permutation: true}",
)
SAMPLED = ("objective.scheduled_sampling={growth: linear, k: 0.02}",)
LSTM = ("model={kind: recurrent, d_model: 12, context: 16, dropout: 0.1}", *SAMPLED)


@pytest.mark.parametrize(
    "overrides",
    nightly_but(
        [
            *(BERT, ALBERT, WORDS, SPANBERT, XLNET, ELECTRA, SAMPLED, LSTM),
            (*LSTM, "training.carry_state=true"),
            (*LSTM, "data.isolate_documents=true"),
        ],
        0,
        5,
    ),
    ids=[
        *("next sentences", "sentence order", "whole words", "boundaries", "permuted", "replaced"),
        *("sampled", "sampled lstm"),
        *("sampled lstm, carried", "sampled lstm, isolated"),
    ],
)
def test_stopping_and_resuming_changes_no_bit(work: Work, overrides: Sequence[str]) -> None:
    work.pretrain(*overrides, name="whole")
    work.pretrain(*overrides, stop=after(7))
    assert ended(work.resume()).reason == "finished"
    assert lasting(work.run(), 12) == lasting(work.run("whole"), 12)


@pytest.mark.parametrize(
    "overrides",
    nightly_but([BERT, SPANBERT, XLNET, ELECTRA, SAMPLED, LSTM], 3),
    ids=["next sentences", "boundaries", "permuted", "replaced", "sampled", "sampled lstm"],
)
def test_any_micro_batches_are_the_same_run(work: Work, overrides: Sequence[str]) -> None:
    still = (*overrides, "model.dropout=0")
    for size in (8, 3):
        work.pretrain(*still, f"training.micro_batch={size}", name=str(size))
    for one, other in zip(metrics(work.run("8")), metrics(work.run("3")), strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert other["tokens"] == one["tokens"]


def test_a_permuted_model_is_measured_and_fills_no_masks(work: Work) -> None:
    work.pretrain(*XLNET)
    generator = TextGenerator.open(str(work.run()))
    with pytest.raises(UsageError, match="fills no masks") as caught:
        generator.generate("the [MASK] sat")
    assert len(caught.value.lines()) == 3
    assert not generator.writes


def test_more_and_more_tokens_are_the_models_own(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    genuine: Callable[..., object] = scheduled.sample_input_tokens

    def spy(model: LanguageModel, batch: fitting.Batch) -> object:
        assert batch.draws_BT is not None
        shares.append(float((batch.draws_BT >= 0).float().mean()))
        return genuine(model, batch)

    monkeypatch.setattr(scheduled, "sample_input_tokens", spy)
    work.pretrain(*SAMPLED)
    shares = shares[-12:]  # those before are of the steps whose speed is measured
    assert shares[0] == 0
    # k 0.02 for each percent: all of them from the middle on
    assert shares[3] == pytest.approx(0.5, abs=0.1)
    assert shares[6:] == [1.0] * 6


@pytest.mark.parametrize(("overrides", "name"), [(BERT, "next-sentence-accuracy"), (ALBERT, "sentence-order-accuracy")])
def test_what_is_told_of_two_texts_is_in_validation(work: Work, overrides: Sequence[str], name: str) -> None:
    events = work.pretrain(*overrides)
    validated = [event.validation for event in events if getattr(event, "validation", None) is not None]
    assert [list(validation.metrics) for validation in validated] == [[name]] * 3
    assert [0 <= validation.metrics[name] <= 1 for validation in validated] == [True] * 3
    records = [record for record in metrics(work.run()) if record["valid_loss"] is not None]
    assert [record[name] for record in records] == [validation.metrics[name] for validation in validated]
    # the loss of a step is that of the chosen tokens and of both texts together
    assert records[0]["loss"] > records[0]["valid_loss"] + 0.3


@pytest.mark.parametrize("size", [2, 7])
def test_processes_share_the_pairs_of_validation(work: Work, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    # pairs of at most 13 tokens: five of them
    work.pretrain(*BERT, "training.steps=1", "evaluation.tokens=65")
    loaded = load_run(str(work.run()))
    _, data = prepare_text(loaded.recipe, loaded.tokenizer, World(), no_report)
    data.examples(loaded.objective)

    def validate(world: World) -> ValidationResult:
        return data.validate(loaded.model, loaded.objective, replace(CPU, world=world))

    alone = validate(World())
    assert alone.metrics["next-sentence-accuracy"] * 5 == pytest.approx(
        round(alone.metrics["next-sentence-accuracy"] * 5)
    )
    for one in together(monkeypatch, size, validate):
        assert one.loss == pytest.approx(alone.loss, rel=1e-6)
        assert one.metrics == alone.metrics


def test_a_validation_text_without_a_second_document_is_refused_before_the_first_step(work: Work) -> None:
    valid = work.folder / "valid.txt"
    valid.write_text(documents(1), encoding="utf-8")
    with pytest.raises(DataError, match="two documents"):
        work.pretrain(*BERT, "data.split=document", valid=valid)
    assert not (work.run() / "metrics.jsonl").exists() or metrics(work.run()) == []
