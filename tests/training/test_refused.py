"""Recipes that name ways of training which do not go together, or which a model does not have."""

import pytest

from lmtool.recipe.load import load
from tests.support.errors import refuses

CLASSES = "objective.kind=classification"
LORA = "tuning.lora={rank: 3, dropout: 0.1}"
LSTM = "model={kind: recurrent, d_model: 8, context: 8}"
CARRIED, STREAMED = "training.carry_state=true", "data.stream=true"
TAUGHT = "distillation.teacher=last"
MIXED = "data.mixture={web.txt: 1}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tuning.freeze=body"], "leaves nothing to train"),
        ([LSTM, LORA], "adapts the matrices of a Transformer"),
        (["model={kind: ngram}", "tuning.layer_decay=0.5"], "for models with layers"),
        ([CLASSES, "tuning.freeze=body", LORA], "freeze body leaves frozen"),
        ([CLASSES, "tuning.freeze=embeddings", LORA], "has no effect"),
        ([CLASSES, "tuning.freeze=body", "tuning.unfreeze_every=2"], "would end"),
        ([CLASSES, "tuning.freeze=body", "objective.lm_weight=0.5"], "lm_weight: 0.5 has no effect"),
        (["tuning.lora={targets: []}"], "targets"),
        ([STREAMED, "training.epochs=2"], "how long an epoch is"),
        ([STREAMED, "data.split=slice"], "split slice"),
        ([STREAMED, "objective={kind: masked, next_sentence: true}"], "next_sentence"),
        ([STREAMED, "objective={kind: masked, sentence_order: true}"], "sentence_order"),
        ([CARRIED, LSTM.replace("}", ", attention: {}}")], "all past states"),
        ([CARRIED, LSTM, "data.isolate_documents=true"], "across documents"),
        ([CARRIED, LSTM, CLASSES], "objective classification reads rows"),
        ([CARRIED, LSTM, "objective.kind=seq2seq"], "objective seq2seq reads rows"),
        ([CARRIED, "model.n_layers=1"], "for a recurrent decoder"),
        ([TAUGHT, CARRIED, LSTM], "distillation.teacher"),
        ([TAUGHT, "training.compile=true"], "distillation.teacher"),
        ([MIXED, "data.train=text.txt"], "mixture: names the texts itself"),
        ([MIXED.replace("1", "0")], "above 0"),
        ([MIXED, "model={kind: ngram, order: 2}", "objective.kind=causal"], "ngram"),
        ([LSTM, "training.shard=full"], "full is for a Transformer"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: list[str], message: str) -> None:
    with refuses("recipe") as caught:
        load("tiny", overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize("frozen", ["body", "embeddings"])
def test_features_that_are_not_learnt_are_not_frozen(frozen: str) -> None:
    with refuses("recipe"):
        load("linear", [f"tuning.freeze={frozen}"])
