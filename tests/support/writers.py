"""A model of each family that writes, and prompts for it."""

import random
from typing import Any

import torch

from lmtool.batch import Batch
from lmtool.model import LanguageModel, NGramModel, build
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.transformer import Transformer
from lmtool.recipe.spec.words import NGram
from lmtool.tokenization.prompt_format import Prompt
from tests.generation.models import HistoryModel

VOCAB_SIZE = 17
TRANSFORMER: dict[str, Any] = {"kind": "transformer", "n_layers": 2, "d_model": 16, "n_heads": 2, "context": 24}
TRANSFORMER |= {"tie_embeddings": False}  # tied random weights cause repetition
RECURRENT: dict[str, Any] = {"kind": "recurrent", "n_layers": 2, "d_model": 16, "context": 24}
FAMILIES: dict[str, Any] = {
    "decoder": Transformer.model_validate(TRANSFORMER),
    "prefix": Transformer.model_validate(TRANSFORMER | {"shape": "prefix"}),
    "encoder-decoder": Transformer.model_validate(TRANSFORMER | {"shape": "encoder-decoder"}),
    "3-gram": NGram(kind="ngram", order=3),
    "lstm": Recurrent.model_validate(RECURRENT),
    "gru-attention": Recurrent.model_validate(RECURRENT | {"cell": "gru", "attention": {}}),
    "rnn-seq2seq": Recurrent.model_validate(RECURRENT | {"cell": "rnn", "shape": "encoder-decoder", "attention": {}}),
    "bahdanau": Recurrent.model_validate(
        RECURRENT
        | {
            "cell": "gru",
            "shape": "encoder-decoder",
            "attention": {"score": "additive", "feed": "input"},
            "bidirectional_encoder": True,
        }
    ),
}


def model_of(family: str, dtype: torch.dtype) -> LanguageModel:
    torch.manual_seed(2)
    model = build(FAMILIES[family], VOCAB_SIZE)
    if isinstance(model, NGramModel):
        text_BT = torch.randint(VOCAB_SIZE, (1, 300))
        model.partial_fit_([Batch(text_BT[:, :-1], text_BT[:, 1:])], 300)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.6)
    return model.to(dtype).eval()


def prompts_of(model: LanguageModel, count: int, seed: int = 1) -> list[Prompt]:
    rng = random.Random(seed)
    rows = [tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 12))) for _ in range(count)]
    return [Prompt((1,), row) for row in rows] if model.reads == "source" else [Prompt(row) for row in rows]


class Repeating(HistoryModel):
    """A text of period 3, whatever came before; logits are finite, so that every token can be drawn."""

    def logits_after(self, ids: list[int]) -> torch.Tensor:
        return 6.0 * torch.nn.functional.one_hot(torch.tensor((ids[-1] + 1) % 3), self.vocab_size).float()


def transformer(
    seed: int = 2, dtype: torch.dtype = torch.float64, vocab_size: int = VOCAB_SIZE, **changes: Any
) -> LanguageModel:
    torch.manual_seed(seed)
    model = build(Transformer.model_validate(TRANSFORMER | changes), vocab_size)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.6)
    return model.to(dtype).eval()
