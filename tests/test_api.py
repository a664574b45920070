"""docs/python.md is true: its lines run, in their order; and what they return is what the command line prints."""

import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmtool import SamplingParams, finetune, load, pretrain
from lmtool.batch import Batch
from lmtool.compute.device import CPU
from lmtool.evaluation.attention import compute_attention
from lmtool.evaluation.gradients import compute_gradient_flow_of_text, measure_state_contraction_on_text
from lmtool.interop.resolve import resolve_reference
from lmtool.runs.load import load_run
from lmtool.tasks.predict import predict_table_lazily as predict_table
from lmtool.training import convex
from tests.support.errors import refuses
from tests.support.kernels import put_kernels
from tests.support.peers import CASES, PLAIN, peer_in, word_pieces
from tests.support.training import Work, words

PAGE = Path(__file__).parents[1] / "docs" / "python.md"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = Work(tmp_path_factory.mktemp("trained"))
    work.pretrain("model.context=64", name="runs/first")
    work.finetune(source=work.run("runs/first"), name="runs/reviews")
    work.pretrain("model={kind: recurrent, cell: gru, d_model: 8, context: 8}", name="runs/gru")
    work.pretrain("model.context=64", "tokenizer={kind: bpe, vocab_size: 300}", name="runs/second")
    return work.run("runs")


@pytest.fixture
def trained(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMTOOL_RUNS", str(runs))


@pytest.fixture
def training(work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    monkeypatch.chdir(tmp_path)
    put_kernels(tmp_path / "cache")
    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(convex, "PENALTIES", (1e4, 10.0, 1.0, 0.1))
    monkeypatch.setattr(convex, "N_DIVISIONS", 1)
    return work


@pytest.mark.filterwarnings("ignore::UserWarning")  # of what so little text does
def test_the_lines_of_the_page_run(
    runs: Path, training: Work, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a small random model in place of the one that would be downloaded, and few rows."""
    folder = training.folder
    peer_in(folder / "model", "llama")
    for name in ("second", "reviews"):  # the last one that was begun is `second`
        shutil.copytree(runs / name, folder / "runs" / name)
    monkeypatch.setattr("lmtool.interop.importing.download_hub_model", lambda reference: (folder / "model", "c0ffee"))
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert len(blocks) > 5
    exec("\n".join(blocks).replace("range(40)", "range(6)"), {})
    assert len(capsys.readouterr().out.splitlines()) >= 8


def test_an_index_of_a_table_has_its_ids(trained: None, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_bytes("key|title|text\nk1|été|a cat ran\nk2||the mat\n".encode("cp1252"))
    columns = {"text_columns": ["title", "text"], "encoding": "cp1252", "delimiter": "|"}
    index = load("reviews", device="cpu").index(tmp_path / "i", str(table), id_column="key", **columns)
    texts = {"k1": "été a cat ran", "k2": "the mat"}
    assert sorted(hit[:3] for hit in index.search(["a cat"])[0]) == [(key, str(table), texts[key]) for key in texts]


def test_predictions_are_those_of_the_command(trained: None, tmp_path: Path) -> None:
    texts = [words(n, seed=n) for n in range(1, 9)]
    table = tmp_path / "rows.csv"
    table.write_text("\n".join(["text", *texts]) + "\n", encoding="utf-8")
    told = predict_table(load_run("reviews", CPU), str(table))
    found = load("reviews", device="cpu").predict(texts)
    for (_, cells), one in zip(told.rows, found, strict=True):
        label, *shares = cells
        assert one.label == label
        assert list(one.probabilities) == ["a", "b"]
        np.testing.assert_allclose(list(one.probabilities.values()), [float(str(p)) for p in shares], atol=1e-6)
    assert load("reviews", device="cpu").predict([]) == []


@pytest.mark.parametrize(("problem", "n"), [("multi_label_classification", 3), ("regression", 1)])
def test_predictions_of_an_imported_classifier(
    problem: str, n: int, training: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = CASES["bert classifier"][3]
    settings = {**PLAIN, "num_labels": n, "problem_type": problem}
    monkeypatch.setitem(CASES, "own", ("BertForSequenceClassification", settings, word_pieces(), roles))
    peer_in(tmp_path / "model", "own")
    lm = load(str(tmp_path / "model"), device="cpu")
    loaded = load_run(resolve_reference(str(tmp_path / "model")), CPU)
    run_head: Any = loaded.model.run_head
    texts = ["It rained.", "The boats stayed in the harbour."]
    for text, found in zip(texts, lm.predict(texts), strict=True):
        row, *_ = loaded.prompt_format.encode_and_truncate_row([np.array(loaded.tokenizer.encode(text))])
        with torch.no_grad():
            scores_C = run_head(Batch(torch.tensor(row)[None])).scores[0].double()
        if n == 1:
            assert isinstance(found.label, float)
            assert math.isclose(found.label, float(scores_C[0]), rel_tol=1e-4)
        else:
            wanted = scores_C.sigmoid().tolist()
            np.testing.assert_allclose(list(found.probabilities.values()), wanted, rtol=1e-4)
            assert found.label == tuple(f"LABEL_{i}" for i, p in enumerate(wanted) if p > 0.5)


def test_a_source_gives_a_text(training: Work, tmp_path: Path) -> None:
    peer_in(tmp_path / "model", "t5")
    lm = load(str(tmp_path / "model"), device="cpu")
    (prediction,) = lm.predict(["Tom and Anna"])
    assert isinstance(prediction.label, str)
    assert prediction.probabilities == {}
    assert lm.complete("Tom and Anna", SamplingParams("greedy", max_new_tokens=8))[0] in prediction.label


def test_what_is_inside_is_what_the_commands_show(trained: None) -> None:
    lm, loaded = load("second", device="cpu"), load_run("second", CPU)
    text = words(9)
    np.testing.assert_array_equal(
        lm.attention(text).part(None).weights_LNTS, compute_attention(loaded, [text]).part(None).weights_LNTS
    )
    assert lm.gradients(text, 3) == compute_gradient_flow_of_text(loaded, text, 3)
    with refuses("usage"):
        lm.two_starts(text)
    short, gru = words(5), load_run("gru", CPU)
    assert load("gru", device="cpu").two_starts(short, 2) == measure_state_contraction_on_text(gru, short, 2)


def test_hidden_states_and_the_next_token_are_those_of_a_forward_pass(trained: None) -> None:
    lm, loaded = load("second", device="cpu"), load_run("second", CPU)
    text = words(9)
    tokens = torch.tensor([[*loaded.prompt_format.opening, *loaded.tokenizer.encode(text)]])
    with torch.no_grad():
        layers = loaded.model.hidden_states_by_layer(Batch(tokens))
        logits_V = loaded.model.logits(loaded.model(Batch(tokens)).hidden_BTD[:, -1])[0].double()
    states = lm.hidden_states(text)
    assert len(states.tokens) == tokens.shape[1] + 1  # the end of the text
    for one, other in zip(states.layers, layers, strict=True):
        np.testing.assert_allclose(one[:-1], other[0].numpy(), atol=1e-5)
    following = lm.next_token(text)
    p_V = logits_V.softmax(-1)[: loaded.tokenizer.vocab_size]
    order = p_V.argsort(descending=True, stable=True)
    np.testing.assert_allclose([p for _, p in following], p_V[order], atol=1e-6)
    assert following[0][0] == loaded.tokenizer.display_token(int(order[0]))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_training_gives_what_the_command_gives(training: Work) -> None:
    training.pretrain(name="runs/command")
    lm, other = pretrain(training.text.read_text(encoding="utf-8"), str(training.recipe)), load("command")
    assert lm.next_token("the cat") == other.next_token("the cat")
    assert lm.figures["best_valid_loss"] == other.figures["best_valid_loss"] > 0
    assert pretrain([training.text], source="command", settings={"training": {"steps": 1}}).figures["step"] == 1


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_table_gives_its_scores(training: Work) -> None:
    table = training.folder / "table.csv"
    rows = (f"{words(5, seed)} {'home' if seed % 2 else 'away'},{'ab'[seed % 2]}" for seed in range(40))
    table.write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    lm = finetune(str(table), "dan", settings={"training.steps": 2}, out="runs/tuned")
    assert lm.loaded.run_path.name == "tuned"
    assert 0 <= lm.figures["results"][""]["accuracy"] <= 1


def test_mistakes_in_training_are_those_of_the_command(training: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    with refuses("recipe"):
        pretrain("no-such.txt", settings={"training.stepss": 3})
    with refuses("file_not_found"):
        pretrain("no-such.txt")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refuses("usage"):
        pretrain("a\nb")


def test_what_a_model_does_not_do_is_refused(trained: None) -> None:
    lm = load("second", device="cpu")
    with refuses("usage"):
        lm.predict(["a"])
    with refuses("usage"):
        lm.embed("a", pool="none")
    with refuses("run_not_found"):
        load("missing")
