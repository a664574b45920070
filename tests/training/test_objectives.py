"""Objectives in whole runs: what is sampled, and what is measured of two texts."""

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
from lmtool.training.events import Stepped
from tests.compute.together import together
from tests.support.families import ALBERT, BERT, PERMUTED, SAMPLED
from tests.support.training import Work, documents, metrics, no_report, of_kind


def test_a_permuted_model_is_measured_and_fills_no_masks(work: Work) -> None:
    work.pretrain(*PERMUTED)
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
    work.pretrain(SAMPLED)
    shares = shares[-12:]  # those before are of the steps whose speed is measured
    assert shares[0] == 0
    # k 0.02 for each percent: all of them from the middle on
    assert shares[3] == pytest.approx(0.5, abs=0.1)
    assert shares[6:] == [1.0] * 6


@pytest.mark.parametrize(("overrides", "name"), [(BERT, "next-sentence-accuracy"), (ALBERT, "sentence-order-accuracy")])
def test_what_is_told_of_two_texts_is_in_validation(work: Work, overrides: Sequence[str], name: str) -> None:
    events = work.pretrain(*overrides)
    validated = [event.validation for event in of_kind(events, Stepped) if event.validation is not None]
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
