"""Word vectors from files and runs as the beginning of a model, and states of another model as its input."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmtool.batch import Batch
from lmtool.errors import LmtoolError
from lmtool.model.features import find_frozen_features
from lmtool.runs.load import load_run
from lmtool.training.events import RunStarted
from tests.reference import vectors as reference
from tests.support.errors import refuses
from tests.support.training import Work, after, lasting, of_kind, write_table

WORDS = ("tokenizer={kind: word, lowercase: true}", "training.steps=4", "evaluation.every=2", "checkpoint.every=2")
STILL = ("optimizer={kind: sgd, lr: 1e-12}", "schedule.kind=constant")
"""Leaves weights as they begin, to the last bits."""

FAMILIES: dict[str, str] = {
    "transformer": "model={kind: transformer, n_layers: 1, d_model: 4, n_heads: 2, context: 16",
    "narrow transformer": (
        "model={kind: transformer, n_layers: 1, d_model: 8, n_heads: 2, context: 16, embedding_width: 4, "
        "tie_embeddings: false"
    ),
    "lstm": "model={kind: recurrent, d_model: 4, context: 16",
    "elmo": "model={kind: recurrent, d_model: 4, context: 16, shape: bidirectional",
    "means": "model={kind: averaging, d_model: 4",
}
ELMO = (
    "model={kind: recurrent, shape: bidirectional, n_layers: 2, d_model: 6, context: 16}",
    "objective.kind=bidirectional",
)
CLASSES = ("objective.kind=classification", "objective.dropout=0", "evaluation.metric=auto")
HALVES = "model={kind: recurrent, shape: bidirectional, d_model: 4, context: 16, features: {run: elmo}}"
MEANS = "model={kind: averaging, d_model: 4, word_dropout: 0, features: {run: elmo}}"


def vectors(work: Work, words: str = "cat Dog sat", width: int = 4) -> tuple[Path, np.ndarray[Any, Any]]:
    """A file in GloVe's format, and its vectors."""
    table = np.random.default_rng(0).normal(size=(len(words.split()), width)).astype(np.float32)
    lines = [f"{word} {' '.join(map(repr, row))}\n" for word, row in zip(words.split(), table.tolist(), strict=True)]
    path = work.folder / "vectors.txt"
    path.write_text("".join(lines), encoding="utf-8")
    return path, table


def data_lines(told: list[Any], part: str = "") -> list[str]:
    """What is said of the data before training begins, as far as it names a part."""
    return [line for event in of_kind(told, RunStarted) for line in event.data if part in line]


def learn(work: Work, model: str, *overrides: str, name: str = "run", **more: Any) -> list[Any]:
    """Train on a text, or on a table what learns no text."""
    if "averaging" not in model and "features" not in model:
        objective = "bidirectional" if "bidirectional" in model else "causal"
        return work.pretrain(model, f"objective.kind={objective}", *WORDS, *overrides, name=name, **more)
    rows = [f"the cat {'ran home' if i % 2 else 'sat'} {i % 3},{'ab'[i % 2]}" for i in range(40)]
    table = write_table(work.folder / "table.csv", rows)
    own = (*CLASSES, *WORDS, "data.valid_fraction=0.2")
    return work.learn_table(work.recipe, table, model, *own, *overrides, name=name, **more)


def embeddings(run: Path) -> tuple[Any, Any]:
    loaded = load_run(str(run))
    return loaded.tokenizer, loaded.model.token_vectors().detach().numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_begin_with_vectors_and_the_rest_at_their_scale(family: str, work: Work) -> None:
    path, table = vectors(work)
    model = f"{FAMILIES[family]}, embeddings: '{path}'}}"
    told = learn(work, model, *STILL)
    tokenizer, found = embeddings(work.run())
    for word, row in zip(("cat", "sat"), table[[0, 2]], strict=True):
        (token,) = tokenizer.encode(word)
        np.testing.assert_allclose(found[token], row, atol=1e-6)
    ids = [i for word in ("cat", "sat") for i in tokenizer.encode(word)]
    others = np.delete(found, ids, 0)
    learn(work, f"{FAMILIES[family]}}}", *STILL, name="plain")
    ratio = others / np.delete(embeddings(work.run("plain"))[1], ids, 0)
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-3)
    assert others.std() == pytest.approx(table[[0, 2]].std(), rel=0.5)
    (line,) = data_lines(told, "embeddings")
    n_words = tokenizer.vocab_size - len(tokenizer.special_ids)
    assert f"has 2 of {n_words} words of the vocabulary ({200 / n_words:.1f} %)" in line


def test_coverage_counts_running_words(work: Work) -> None:
    path, _ = vectors(work)
    work.text.write_text("cat cat cat sat\n\n" * 9 + "cat home home home\n\n" * 9 + "sat", encoding="utf-8")
    told = learn(work, f"{FAMILIES['lstm']}, embeddings: '{path}'}}", "data.split=slice", "data.valid_fraction=0.05")
    (line,) = data_lines(told, "embeddings")
    text = work.text.read_text()
    learned = text[: round(0.95 * len(text))].split()
    share = 100 * sum(word in ("cat", "sat") for word in learned) / len(learned)
    n_words = len(set(learned))
    assert f"has 2 of {n_words} words of the vocabulary ({200 / n_words:.1f} %), {share:.1f} % of the running" in line


def test_an_upper_case_word_takes_the_vector_of_its_lower_case_form(work: Work) -> None:
    path, table = vectors(work, "cat Mat mat cat")
    work.text.write_text("Cat mat Mat sat CAT\n\n" * 30, encoding="utf-8")
    told = learn(work, f"{FAMILIES['lstm']}, embeddings: '{path}'}}", "tokenizer.lowercase=false", *STILL)
    tokenizer, found = embeddings(work.run())
    for word, row in {"Cat": 0, "CAT": 0, "Mat": 1, "mat": 2}.items():
        np.testing.assert_allclose(found[tokenizer.encode(word)[0]], table[row], atol=1e-6)
    assert data_lines(told, "1 word comes again")


@pytest.mark.parametrize("family", FAMILIES)
def test_frozen_embeddings_stay_and_all_else_learns(family: str, work: Work) -> None:
    path, _ = vectors(work)
    frozen = f"{FAMILIES[family]}, embeddings: '{path}', freeze_embeddings: true}}"
    learn(work, frozen, name="frozen")
    learn(work, frozen, *STILL, name="still")
    one, other = (load_run(str(work.run(name))).model for name in ("frozen", "still"))
    assert torch.equal(one.token_vectors(), other.token_vectors())
    assert not all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


def test_a_resumed_run_and_one_begun_from_it_never_read_the_file(work: Work) -> None:
    path, _ = vectors(work)
    model = f"{FAMILIES['lstm']}, embeddings: '{path}'}}"
    learn(work, model, name="whole")
    learn(work, model, stop=after(2))
    path.unlink()
    work.resume()
    assert lasting(work.run(), 4)["model"] == lasting(work.run("whole"), 4)["model"]
    work.finetune("training.steps=2", "data.valid_fraction=0.2", source=work.run("whole"))


@pytest.mark.parametrize(
    ("kind", "objective"), [("skipgram", "skip-gram"), ("glove", "glove"), ("ppmi", "cooccurrence")]
)
def test_runs_of_word_vectors_are_beginnings(kind: str, objective: str, work: Work) -> None:
    first = f"model={{kind: {kind}, d_model: 4, context: 16}}"
    work.pretrain(first, f"objective.kind={objective}", *WORDS, name="vectors")
    learn(work, f"{FAMILIES['means']}, embeddings: '{work.run('vectors')}'}}", *STILL)
    (theirs, table), (ours, found) = embeddings(work.run("vectors")), embeddings(work.run())
    own, others = ({one.token_name(i) for i in range(7, one.vocab_size)} for one in (ours, theirs))
    shared = own & others
    assert {"cat", "ran", "home"} <= shared
    for word in shared:
        np.testing.assert_allclose(found[ours.encode(word)[0]], table[theirs.encode(word)[0]], atol=1e-6)


@pytest.fixture
def elmo(work: Work, monkeypatch: pytest.MonkeyPatch) -> Work:
    """A folder with a trained ELMo of words, `elmo`."""
    monkeypatch.chdir(work.folder)
    work.pretrain(*ELMO, *WORDS, name="elmo")
    return work


@pytest.mark.parametrize("model", [HALVES, MEANS])
def test_the_model_that_gives_features_never_changes(model: str, elmo: Work) -> None:
    before = load_run("elmo").model.state_dict()
    told = learn(elmo, model)
    loaded = load_run(str(elmo.run()))
    reading = find_frozen_features(loaded.model)
    assert reading is not None
    (source,) = reading._source
    assert all(torch.equal(tensor, before[name]) for name, tensor in source.state_dict().items())
    loaded.model.train()
    with torch.enable_grad():
        batch = Batch(torch.tensor([[8, 9, 10]]), labels_B=torch.tensor([1]))
        total: Any = loaded.objective.loss(loaded.model, batch).total
        total.backward()
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in source.parameters())
    assert not source.training
    assert reading.mix.gamma.grad is not None
    assert reading.mix.scalars_L.grad is not None
    assert bool(reading.mix.scalars_L.grad.any())
    assert float(reading.mix.gamma.detach()) != 1  # trained
    assert not [name for name in loaded.model.state_dict() if "_source" in name]
    assert data_lines(told, "features: elmo, lstm bidirectional, 2 x 6, 3 layers of 12, frozen")
    assert loaded.tokenizer.fingerprint == load_run("elmo").tokenizer.fingerprint


def task_input(body: Any, mix: Any, batch: Batch) -> np.ndarray[Any, Any]:
    """The embeddings of a row, and the mix of the layers that ELMo gives for it, by the formula."""
    x = body.embedding(batch.tokens_BT)[0].detach().numpy()
    layers = [layer[0].detach().numpy() for layer in load_run("elmo").model.hidden_states_by_layer(batch)]
    return np.asarray(reference.task_input(x, layers, mix.scalars_L.tolist(), float(mix.gamma.detach())))


@pytest.mark.parametrize("beside", [True, False])
def test_the_input_is_embeddings_and_the_mix_of_layers(beside: bool, elmo: Work) -> None:
    learn(elmo, HALVES.replace("run: elmo", f"run: elmo, beside: {str(beside).lower()}"))
    body: Any = load_run(str(elmo.run())).model.get_submodule("body")
    batch = Batch(torch.tensor([[8, 9, 10, 11]]))
    expected = task_input(body, body.features.mix, batch)[:, 0 if beside else 4 :]
    np.testing.assert_allclose(body.embed_inputs(batch)[0].detach().numpy(), expected, atol=1e-5)


def test_a_mean_is_of_embeddings_and_features(elmo: Work) -> None:
    learn(elmo, MEANS.replace("d_model: 4", "d_model: 4, n_layers: 0"))
    classifier: Any = load_run(str(elmo.run())).model
    batch = Batch(torch.tensor([[8, 9, 10, 7]]), keep_BT=torch.tensor([[True, True, True, False]]))
    mean = task_input(classifier.body, classifier.body.features_of_tokens.mix, batch)[:3].mean(0)
    head = classifier.head
    expected = head.weight.detach().numpy() @ mean + head.bias.detach().numpy()
    np.testing.assert_allclose(classifier.run_head(batch).scores[0].detach().numpy(), expected, atol=1e-5)


def test_the_run_works_when_the_other_one_is_gone(elmo: Work) -> None:
    learn(elmo, HALVES, name="whole")
    learn(elmo, HALVES, stop=after(2))
    shutil.rmtree(elmo.run("elmo"))
    elmo.resume()
    assert lasting(elmo.run(), 4)["model"] == lasting(elmo.run("whole"), 4)["model"]
    kept = elmo.run() / "features"
    assert not list(kept.rglob("optimizer.safetensors"))
    elmo.finetune("training.steps=2", "data.valid_fraction=0.2", source=elmo.run(), table=elmo.folder / "table.csv")
    assert (elmo.run("tuned") / "features" / "run.json").exists()
    assert load_run(str(elmo.run("tuned"))).model is not None
    shutil.rmtree(kept)
    with refuses("run_not_found"):
        load_run(str(elmo.run()))


VECTORS = "embeddings: vectors.txt}"
LSTM, NARROW, COUNTS = (f"{FAMILIES[name]}, {VECTORS}" for name in ("lstm", "narrow transformer", "means"))


@pytest.mark.parametrize(
    ("model", "settings", "what"),
    [
        (LSTM, ("model.d_model=5",), "4 numbers, and model.d_model is 5"),
        (NARROW, ("model.embedding_width=5",), "and model.embedding_width is 5"),
        (LSTM, ("tokenizer={kind: wordpiece}",), "tokens of a word tokenizer, not of a wordpiece one"),
        (LSTM, ("model.embeddings=nowhere.txt",), "no file and no run of word vectors"),
        (LSTM, ("model.embeddings=none.txt",), "none of the 1. words"),
        (LSTM, ("model.embeddings=null", "model.freeze_embeddings=true"), "keep random vectors"),
        (COUNTS, ("model.one_hot=true", "model.n_layers=0"), "which one_hot words do not have"),
        (COUNTS, ("model.ngrams=2", "model.freeze_embeddings=true"), "of n-grams too"),
        (HALVES, ("objective={kind: bidirectional}",), "are for objective classification"),
        (MEANS, ("model.ngrams=2",), "ngrams is for counts"),
        (HALVES.replace("elmo", "nowhere"), (), "no run called"),
        (HALVES.replace("elmo", "ngram"), (), "it counts n-grams"),
        (HALVES.replace("elmo", "second"), (), "reads features of another run itself"),
        (HALVES.replace("elmo}", "elmo, beside: false}, embeddings: x.txt"), (), "have no effect"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_run_is_made(
    model: str, settings: tuple[str, ...], what: str, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work.folder)
    vectors(work)
    (work.folder / "none.txt").write_text("qwertz 1 2 3 4\n")
    if "elmo" in model or "second" in model:
        work.pretrain(*ELMO, *WORDS, name="elmo")
    if "ngram" in model:
        work.pretrain("model={kind: ngram, order: 2, context: 16}", *WORDS, name="ngram")
    if "second" in model:
        learn(work, HALVES, name="second")
    with pytest.raises(LmtoolError, match=what):
        learn(work, model, *settings)
    assert not work.run().exists()


def test_a_trained_model_gets_no_features(elmo: Work) -> None:
    learn(elmo, FAMILIES["elmo"] + "}", name="plain")
    with refuses("usage"):
        elmo.finetune("model.features.run=elmo", source=elmo.run("plain"))
