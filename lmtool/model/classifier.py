"""A head on a language model's body that answers labelled rows.

Shapes: B rows, T positions, D model width, C classes, labels or 1 number, L layers.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.batch import Batch
from lmtool.model.language_model import DecodeState, LanguageModel
from lmtool.recipe.spec import Classification, Model, Transformer

Pooling = Literal["first", "last", "mean", "max", "attention"]


class Pool(nn.Module):
    """The states of a text as one vector; padding has no part in it.

    first: of the first position (BERT's [CLS]). last: of the last one (GPT's [EXTRACT]). mean, max: over all.
    attention: their average weighted by softmax(v' tanh(W h)), which is trained (Yang et al. 2016).
    """

    def __init__(self, kind: Pooling, d_model: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == "attention":
            self.key = nn.Linear(d_model, d_model)
            self.query = nn.Linear(d_model, 1, bias=False)

    def forward(self, hidden_BTD: Tensor, keep_BT: Tensor | None) -> Tensor:
        B, T, _ = hidden_BTD.shape
        if keep_BT is None:
            keep_BT = torch.ones(B, T, dtype=torch.bool, device=hidden_BTD.device)
        positions_T = torch.arange(T, device=hidden_BTD.device)
        rows_B = torch.arange(B, device=hidden_BTD.device)
        keep_BT1 = keep_BT[..., None]
        match self.kind:
            case "first":
                return hidden_BTD[rows_B, torch.where(keep_BT, positions_T, T).amin(1)]
            case "last":
                return hidden_BTD[rows_B, torch.where(keep_BT, positions_T, -1).amax(1)]
            case "mean":
                return (hidden_BTD * keep_BT1).sum(1) / keep_BT1.sum(1)
            case "max":
                return hidden_BTD.masked_fill(~keep_BT1, -torch.inf).amax(1)
            case "attention":
                score_BT1 = self.query(torch.tanh(self.key(hidden_BTD))).masked_fill(~keep_BT1, -torch.inf)
                pooled: Tensor = (score_BT1.softmax(1).to(hidden_BTD.dtype) * hidden_BTD).sum(1)
                return pooled


class Classifier(LanguageModel):
    """A language model with a head: y = W dropout(pool(h_1..h_T)) + b. It still is the language model that it was."""

    def __init__(self, body: LanguageModel, spec: Classification, model: Model) -> None:
        super().__init__()
        self.body = body
        self.vocab_size = body.vocab_size
        self.context = body.context
        self.reads = body.reads
        self.dropout = spec.dropout
        self.pool = Pool(pooling(spec, model), model.d_model)
        self.head = nn.Linear(model.d_model, 1 if spec.task == "number" else len(spec.labels))
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)
        if not spec.lm_weight:
            for parameter in _beside_hidden(body):
                parameter.requires_grad_(False)

    def answer(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Scores (B, C) of the rows in float32, and the hidden states (B, T, D) that they come from."""
        hidden_BTD = self.body(batch)
        pooled_BD = F.dropout(self.pool(hidden_BTD, batch.keep_BT), self.dropout, self.training)
        return self.head(pooled_BD).float(), hidden_BTD

    def forward(self, batch: Batch) -> Tensor:
        hidden: Tensor = self.body(batch)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return self.body.logits(hidden)

    def head_parameters(self) -> tuple[Tensor, ...]:
        return self.body.head_parameters()

    def start(self, batch: Batch) -> DecodeState:
        return self.body.start(batch)

    def advance(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        return self.body.advance(tokens_BT, state)


def _beside_hidden(body: LanguageModel) -> list[nn.Parameter]:
    """The parameters that hidden states do not depend on, which is a head of its own: without its loss none learns."""
    parameters = list(body.parameters())
    was_training = body.training
    body.eval()
    with torch.enable_grad():
        hidden = body(Batch(torch.zeros(1, 2, dtype=torch.int64, device=parameters[0].device)))
        grads = torch.autograd.grad(hidden.sum(), parameters, allow_unused=True)
    body.train(was_training)
    return [parameter for parameter, grad in zip(parameters, grads, strict=True) if grad is None]


def pooling(spec: Classification, model: Model) -> Pooling:
    """The pooling that a recipe asks for; auto takes what the papers take for this kind of body."""
    if spec.pool != "auto":
        return spec.pool
    if isinstance(model, Transformer):
        return "first" if model.shape == "encoder" else "last"
    return "mean"
