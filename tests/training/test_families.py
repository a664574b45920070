"""For each family, a run is the same in other micro-batches, and when it was interrupted and resumed."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.model import SkipGramModel
from lmtool.run.directory import Run
from tests.training.tiny import Stop, Work, after, lasting, metrics, words

TRANSFORMER = "kind: transformer, n_layers: 1, d_model: 16, n_heads: 2, context: 16, dropout: 0.1"
RECURRENT = "kind: recurrent, d_model: 12, context: 16, dropout: 0.1"
PAIRS = f"{RECURRENT}, shape: encoder-decoder, cell: gru"
WINDOW = "pattern: {kind: window, size: 3, global_tokens: 1}"
BPE_DROPOUT = "tokenizer={kind: bpe, vocab_size: 300, dropout: 0.3}"
CLASSES = ("objective.kind=classification", "objective.dropout=0.1", "evaluation.metric=accuracy")

ON_TEXT: dict[str, Sequence[str]] = {
    "encoder": (f"model={{{TRANSFORMER}, shape: encoder}}", "objective.kind=masked"),
    "longformer": (f"model={{{TRANSFORMER}, shape: encoder, {WINDOW}}}", "objective={kind: masked, spans: {}}"),
    "window": (f"model={{{TRANSFORMER}, {WINDOW}}}",),
    "n-grams": (f"model={{{TRANSFORMER}, ngram_embedding: {{entries: 80, min_count: 2}}}}",),
    "smear": (f"model={{{TRANSFORMER}, smear: true, x0: true, attention_gate: elementwise}}",),
    "prefix": (f"model={{{TRANSFORMER}, shape: prefix}}", "objective.kind=prefix"),
    "t5": (
        f"model={{{TRANSFORMER}, shape: encoder-decoder}}",
        "objective.kind=span-corruption",
        "tokenizer.sentinels=9",
    ),
    "elman": (f"model={{{RECURRENT}, cell: rnn}}",),
    "elman of sigmoids": (f"model={{{RECURRENT}, cell: rnn, nonlinearity: sigmoid}}",),
    "gru with a memory": (f"model={{{RECURRENT}, cell: gru, attention: {{score: additive}}}}",),
    "lstm with a memory": (f"model={{{RECURRENT}, attention: {{select: multi-hot}}}}",),
    "elmo": (f"model={{{RECURRENT}, shape: bidirectional, n_layers: 2}}", "objective.kind=bidirectional"),
    "skip-gram": ("model={kind: skipgram, d_model: 8, context: 16}", "objective.kind=skip-gram", "tokenizer.kind=word"),
    "cbow": ("model={kind: skipgram, d_model: 8, context: 16}", "objective.kind=cbow", "tokenizer.kind=word"),
    "glove": ("model={kind: glove, d_model: 8, context: 16}", "objective.kind=glove", "tokenizer.kind=word"),
    "ppmi": ("model={kind: ppmi, d_model: 8, context: 16}", "objective.kind=cooccurrence", "tokenizer.kind=word"),
    "3-gram": ("model={kind: ngram, order: 3, context: 16}",),
}
ON_TABLES: dict[str, Sequence[str]] = {
    "seq2seq": (f"model={{{PAIRS}}}", "objective.kind=seq2seq"),
    "bpe dropout": (f"model={{{PAIRS}}}", "objective.kind=seq2seq", BPE_DROPOUT),
    "luong": (f"model={{{PAIRS}, attention: {{score: bilinear}}}}", "objective.kind=seq2seq"),
    "bahdanau": (f"model={{{PAIRS}, attention: {{score: additive, feed: input}}}}", "objective.kind=seq2seq"),
    "answers of a decoder": (f"model={{{TRANSFORMER}}}", "objective.kind=seq2seq"),
    "answers of an lstm": (f"model={{{RECURRENT}}}", "objective.kind=seq2seq"),
    "classes of an encoder": (f"model={{{TRANSFORMER}, shape: encoder}}", *CLASSES),
    "classes of a mix of layers": (f"model={{{RECURRENT}, shape: bidirectional}}", *CLASSES, "objective.layers=mix"),
    "classes of means": ("model={kind: averaging, d_model: 8, word_dropout: 0.1, dropout: 0.1}", *CLASSES),
}


def train(
    work: Work, family: str, *overrides: str, name: str, stop: Stop = lambda: False, dropout: float = 0.1
) -> list[Any]:
    """Six steps of a family, on the text or on a table of its kind."""
    own = [setting.replace("dropout: 0.1", f"dropout: {dropout}") for setting in {**ON_TEXT, **ON_TABLES}[family]]
    own = [setting.replace("dropout=0.1", f"dropout={dropout}") for setting in own]
    short = ("training.steps=6", "training.batch_size=6", "checkpoint.every=2", "evaluation.every=3")
    if family in ON_TEXT:
        return work.pretrain(*own, *short, *overrides, name=name, stop=stop)
    rows = ["target,source" if "seq2seq" in ON_TABLES[family][1] else "label,text"]
    rows += [f"{'ab'[i % 2]},{words(2 + i % 7, i)}" for i in range(40)]
    table = work.folder / "table.csv"
    table.write_text("\n".join(rows), encoding="utf-8")
    return work.learn_table(work.recipe, table, *own, *short, *overrides, name=name, stop=stop)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", [*ON_TEXT, *ON_TABLES])
def test_stopping_and_resuming_changes_no_bit(work: Work, family: str) -> None:
    train(work, family, name="whole")
    train(work, family, name="run", stop=after(3))
    assert Run.open(work.run()).state == "stopped"
    work.resume()
    assert Run.open(work.run()).state == "finished"
    assert lasting(work.run(), 6) == lasting(work.run("whole"), 6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", [name for name in (*ON_TEXT, *ON_TABLES) if name not in ("3-gram", "ppmi")])
def test_any_micro_batches_are_the_same_run(work: Work, family: str) -> None:
    """Six rows at once, or four and two."""
    for rows in (6, 4):
        few = ("training.steps=3", f"training.micro_batch={rows}", "checkpoint.every=6")
        train(work, family, *few, name=str(rows), dropout=0)
    whole, parts = metrics(work.run("6")), metrics(work.run("4"))
    assert len(whole) == 3
    for one, other in zip(whole, parts, strict=True):
        assert family in ON_TABLES or other["tokens"] == one["tokens"]  # else padding counts
        figures = [key for key in ("loss", "grad_norm", "valid_loss") if one[key] is not None]
        assert [other[key] for key in figures] == pytest.approx([one[key] for key in figures], rel=1e-4)


def test_small_steps_are_computed_by_one_thread(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of skip-gram, and nothing above them."""
    seen = []
    genuine = SkipGramModel.forward

    def spy(self: SkipGramModel, batch: Batch) -> Tensor:
        if self.training:
            seen.append(torch.get_num_threads())
        return genuine(self, batch)

    monkeypatch.setattr(SkipGramModel, "forward", spy)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        train(work, "skip-gram", name="run")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}
    assert len(seen) >= 6, "and the steps whose speed is measured"
