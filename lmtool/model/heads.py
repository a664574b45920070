"""Heads on the hidden states of a language model: classes, labels or a number for a text, tags, and answers in it.

Shapes: B rows, T positions, W words, D width of hidden states, C classes, labels, tags or 1 number, L layers.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.batch import Batch
from lmtool.compute.kernels import ops
from lmtool.errors import UsageError
from lmtool.model.averaging import AveragingModel, NaiveBayesScaledHead
from lmtool.model.features import ScalarMix
from lmtool.model.language_model import HiddenOutput, LanguageModel, ModelWrapper, evaluation_mode
from lmtool.model.layers.blocks import apply_plain_or_gated_activation
from lmtool.model.layers.crf import LinearChainCrf
from lmtool.model.layers.norms import build_norm
from lmtool.model.layers.observing import ObservableAttention
from lmtool.model.recurrent import BidirectionalLanguageModel, RecurrentDecoder
from lmtool.recipe.spec.objective import Classification, Embedding, PerTokenHeadBase, QuestionAnswering, Tagging
from lmtool.recipe.spec.recipe import Model
from lmtool.recipe.spec.transformer import Transformer

if TYPE_CHECKING:
    from scipy.sparse import csr_array

LayerChoice = Literal["last", "mix", "mix-hidden"] | int
PoolingKind = Literal["first", "last", "mean", "max", "attention"]


class Pooling(ObservableAttention):
    """Pools the hidden states of a text to one vector. Padding is ignored.

    first: the first position (BERT's [CLS]). last: the last one (GPT's [EXTRACT]). mean, max: over all. attention:
        learned average with weights softmax(v' tanh(W h)) (Yang et al. 2016).
    """

    def __init__(self, kind: PoolingKind, d_model: int) -> None:
        super().__init__()
        self.kind = kind
        self.attends = kind == "attention"
        if self.attends:
            self.key = nn.Linear(d_model, d_model)
            self.query = nn.Linear(d_model, 1, bias=False)

    def forward(self, hidden_BTD: Tensor, keep_BT: Tensor | None) -> Tensor:
        """Returns the pooled vectors (B, D). keep_BT: False at padding; None without padding."""
        B, T, _ = hidden_BTD.shape
        if keep_BT is None:
            keep_BT = torch.ones(B, T, dtype=torch.bool, device=hidden_BTD.device)
        positions_T, rows_B = (torch.arange(n, device=hidden_BTD.device) for n in (T, B))
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
                weights_BT1 = score_BT1.softmax(1)
                if self.observer is not None:
                    self.observer(weights_BT1.transpose(1, 2)[:, None])
                return cast(Tensor, (weights_BT1.to(hidden_BTD.dtype) * hidden_BTD).sum(1))


def pool_text_vectors(spec: Embedding, hidden_BTD: Tensor, keep_BT: Tensor | None) -> Tensor:
    """Returns the vectors of texts (B, D), in float32 or wider. keep_BT: False at padding; None without padding."""
    dtype = torch.promote_types(hidden_BTD.dtype, torch.float32)
    pooled_BD: Tensor = Pooling(spec.pool, hidden_BTD.shape[-1])(hidden_BTD.to(dtype), keep_BT)
    return F.normalize(pooled_BD, dim=-1) if spec.normalize else pooled_BD


def find_unused_parameters(model: LanguageModel, compute_states: Callable[[Batch], HiddenOutput]) -> list[nn.Parameter]:
    """Returns the trained parameters that the computed states do not depend on, such as another objective's head."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with evaluation_mode(model), torch.enable_grad():
        grads = torch.autograd.grad(compute_states(_probe_batch(model)).hidden_BTD.sum(), parameters, allow_unused=True)
    return [parameter for parameter, grad in zip(parameters, grads, strict=True) if grad is None]


class HeadOutput(NamedTuple):
    """Output of a head.

    scores: in float32; of texts (B, C), of tokens (B, T, C) or of words (B, W, C).
    hidden_BTD: the hidden states below the head, if any.
    auxiliary_B: as in `HiddenOutput`.
    """

    scores: Tensor
    hidden_BTD: Tensor | None = None
    auxiliary_B: Tensor | None = None


class LanguageModelWithTaskHead(ModelWrapper):
    """Base of language models with a head on their hidden states. It still works as the language model.

    mix: a learned scalar mix of the layers from `first_mixed_layer` on; None where the head reads one layer, `layer`.
    """

    def __init__(self, body: LanguageModel) -> None:
        super().__init__(body)
        self.mix: ScalarMix | None = None
        self.first_mixed_layer, self.layer = 0, -1

    @abstractmethod
    def run_head(self, batch: Batch) -> HeadOutput:
        """Returns the scores of the head for a batch."""

    def head_input_states(self, batch: Batch) -> HiddenOutput:
        """Returns the hidden states that the head reads (B, T, D): of both directions if the body is bidirectional."""
        if self.mix is None and self.layer == -1 and not isinstance(self.body, BidirectionalLanguageModel):
            return self.forward(batch)
        layers, auxiliary_B = self.body.hidden_states_by_layer_and_auxiliary(batch)
        hidden_BTD = layers[self.layer] if self.mix is None else self.mix(layers[self.first_mixed_layer :])
        return HiddenOutput(hidden_BTD, auxiliary_B)

    def _set_head_layers(self, layers: LayerChoice) -> None:
        """Sets which layers the head reads. Raises UsageError for a layer that the body does not have."""
        if layers == "last":
            return
        with torch.no_grad():
            n_layers = len(self.body.hidden_states_by_layer(_probe_batch(self.body)))
        if not isinstance(layers, int):
            self.first_mixed_layer = int(layers == "mix-hidden")
            self.mix = ScalarMix(n_layers - self.first_mixed_layer)
        elif layers < n_layers:
            self.layer = layers
        else:
            what = f"there is no layer {layers}"
            raise UsageError(what, where="objective.layers", fix=f"set 0, the embeddings, to {n_layers - 1}, or last")

    def _freeze_unused_parameters(self) -> None:
        """Freezes the body's parameters that do not affect the states that the head reads: those of its own head."""
        for parameter in find_unused_parameters(self.body, self.head_input_states):
            parameter.requires_grad_(False)


def head_input_width(body: LanguageModel, layers: LayerChoice, model: Model) -> int:
    """Returns the width of the hidden states that a head reads, or of the text vector of an averaging model."""
    if isinstance(body, AveragingModel) or (isinstance(body, RecurrentDecoder) and layers == "last"):
        return body.head_input_width
    return model.d_model * (2 if isinstance(body, BidirectionalLanguageModel) else 1)


class Classifier(LanguageModelWithTaskHead):
    """A language model with a head y = W dropout(pool(h_1..h_T)) + b for each text.

    h are the hidden states of the body's last layer (of both directions if bidirectional), or a scalar mix of layers.
    With a dense layer, y = W dropout(norm(f(V dropout(pool(h)) + c))) + b. A single score z of two classes stands for
    the scores 0 and z. An averaging model pools by itself.
    """

    def __init__(self, body: LanguageModel, spec: Classification, model: Model) -> None:
        super().__init__(body)
        self.dropout = spec.dropout
        width = head_input_width(body, spec.layers, model)
        averaging = body if isinstance(body, AveragingModel) else None
        self.pool = None
        if averaging is None:
            self.pool = Pooling(resolve_pooling(spec, model), width)
            self._set_head_layers(spec.layers)
        self.activation = None if spec.dense == "none" else spec.dense
        self.dense = self.dense_norm = None
        if self.activation is not None:
            bias = model.bias if isinstance(model, Transformer) else True
            # a bias in any case where the pooler of next-sentence prediction, which has one, may become this layer
            has_pooler = isinstance(model, Transformer) and model.next_sentence_head
            self.dense = make_head_linear(width, width, bias or has_pooler)
            if spec.dense_norm and isinstance(model, Transformer):
                self.dense_norm = build_norm(model.norm, width, bias)
        self.single_score = spec.single_score
        if self.single_score and len(spec.labels) != 2:
            what = f"one score is for two classes, not for {len(spec.labels) or 'numbers'}"
            raise UsageError(what, where="objective.single_score", fix="take -s objective.single_score=false")
        is_number = spec.task == "number"
        n_scores = 1 if is_number or self.single_score else len(spec.labels)
        if averaging and averaging.spec.log_ratios and not (is_number and averaging.spec.tf_idf):
            if is_number:
                fix = "take -s model.log_ratios=false, or --labels class"
                raise UsageError("log ratios need classes or labels, not numbers", where="model.log_ratios", fix=fix)
            self.head: nn.Linear = NaiveBayesScaledHead(width, n_scores)
        else:
            self.head = make_head_linear(width, n_scores, spec.bias)
            if averaging and averaging.embedding is None:
                # features that no training text has must have no weight
                nn.init.zeros_(self.head.weight)
        if self.pool is not None and not spec.lm_weight:
            self._freeze_unused_parameters()

    def fit_idf_and_log_ratios_(self, batches: Iterable[Batch]) -> None:
        """Sets the weights that are counted: of features, and of a naive Bayes head. Other models read no batch.

        batches: all labelled training texts, in CPU memory.
        """
        naive_bayes = self.head if isinstance(self.head, NaiveBayesScaledHead) else None
        if isinstance(self.body, AveragingModel) and (self.body.idf_F is not None or naive_bayes):
            texts, device = list(batches), self.head.weight.device
            self.cpu()
            self.body.fit_idf_and_drop_hash_collisions_(texts)
            if naive_bayes:
                naive_bayes.set_log_ratios_(self.body, texts)
            self.to(device)

    def run_head(self, batch: Batch) -> HeadOutput:
        """Returns the scores of the texts (B, C)."""
        if isinstance(self.body, AveragingModel):
            scores_BC = self.body.score_texts(batch, self.head, self.dropout)
            return HeadOutput(self.expand_single_score(scores_BC.float()))
        assert self.pool is not None
        hidden_BTD, auxiliary_B = self.head_input_states(batch)
        pooled_BD = ops.dropout(self.pool(hidden_BTD, batch.keep_BT), self.dropout, self.training)
        if self.dense is not None and self.activation is not None:
            pooled_BD = apply_plain_or_gated_activation(self.dense(pooled_BD), self.activation)
            pooled_BD = pooled_BD if self.dense_norm is None else self.dense_norm(pooled_BD)
            pooled_BD = ops.dropout(pooled_BD, self.dropout, self.training)
        return HeadOutput(self.expand_single_score(self.head(pooled_BD).float()), hidden_BTD, auxiliary_B)

    def head_feature_vectors(self, batches: Iterable[Batch]) -> "NDArray[np.float64] | csr_array":
        """Returns the vectors (B, D) that a head without a dense layer is linear in: pooled states or features."""
        if isinstance(self.body, AveragingModel):
            return self.body.sparse_feature_matrix(batches)
        with torch.no_grad():
            return torch.cat(
                [self.pool_head_input_states(batch).hidden_BTD.double().cpu() for batch in batches]
            ).numpy()

    def pool_each_mixed_layer(self, batches: Iterable[Batch]) -> Tensor:
        """Returns the pooled states of each layer of the mix (L, B, D)."""
        assert self.pool is not None
        parts = []
        with torch.no_grad():
            for batch in batches:
                layers = self.body.hidden_states_by_layer(batch)[self.first_mixed_layer :]
                parts.append(torch.stack([self.pool(hidden_BTD, batch.keep_BT) for hidden_BTD in layers]).cpu())
        return torch.cat(parts, 1)

    def pool_head_input_states(self, batch: Batch) -> HiddenOutput:
        """Returns the pooled states (B, D) of the texts, and their auxiliary losses."""
        assert self.pool is not None
        hidden_BTD, auxiliary_B = self.head_input_states(batch)
        return HiddenOutput(self.pool(hidden_BTD, batch.keep_BT), auxiliary_B)

    def expand_single_score(self, scores_BC: Tensor) -> Tensor:
        """Returns a single score z as the scores 0 and z of two classes, whose softmax is the sigmoid of z."""
        return torch.cat((torch.zeros_like(scores_BC), scores_BC), 1) if self.single_score else scores_BC


def _probe_batch(body: LanguageModel) -> Batch:
    """Returns a batch of two tokens, to learn the shapes and dependencies of outputs."""
    return Batch(torch.zeros(1, 2, dtype=torch.int64, device=next(body.parameters()).device))


def make_head_linear(width_in: int, width_out: int, bias: bool) -> nn.Linear:
    """Returns a linear layer with normal weights of standard deviation 0.02 and zero bias."""
    linear = nn.Linear(width_in, width_out, bias=bias)
    nn.init.normal_(linear.weight, std=0.02)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear


def resolve_pooling(spec: Classification, model: Model) -> PoolingKind:
    """Returns the pooling of a recipe; `auto` follows the papers for the kind of body."""
    if spec.pool != "auto":
        return spec.pool
    if isinstance(model, Transformer):
        return "first" if model.shape == "encoder" else "last"
    return "mean"


class TokenHeadModel(LanguageModelWithTaskHead):
    """A language model with a linear head on each hidden state: y_t = W dropout(h_t) + b."""

    def __init__(self, body: LanguageModel, spec: PerTokenHeadBase, model: Model, n_scores: int) -> None:
        super().__init__(body)
        self.dropout = spec.dropout
        self._set_head_layers(spec.layers)
        self.head = make_head_linear(head_input_width(body, spec.layers, model), n_scores, bias=True)
        self._freeze_unused_parameters()

    def run_head(self, batch: Batch) -> HeadOutput:
        """Returns the scores of the tokens (B, T, C)."""
        hidden_BTD, auxiliary_B = self.head_input_states(batch)
        scores_BTC = self.head(ops.dropout(hidden_BTD, self.dropout, self.training)).float()
        return HeadOutput(scores_BTC, hidden_BTD, auxiliary_B)


class Tagger(TokenHeadModel):
    """A language model that scores the tags of words by the states of their first tokens; with a CRF, of sentences."""

    def __init__(self, body: LanguageModel, spec: Tagging, model: Model) -> None:
        super().__init__(body, spec, model, len(spec.labels))
        self.crf = LinearChainCrf(len(spec.labels)) if spec.crf else None

    def run_head(self, batch: Batch) -> HeadOutput:
        """Returns the scores of the words (B, W, C), which are arbitrary at padding."""
        assert batch.places_BW is not None
        output = super().run_head(batch)
        rows_B1 = torch.arange(len(output.scores), device=output.scores.device)[:, None]
        return output._replace(scores=output.scores[rows_B1, batch.places_BW.clamp(min=0)])

    def tag_sequence_log_probs(self, scores_BWC: Tensor, tags_BW: Tensor, keep_BW: Tensor) -> Tensor:
        """Returns the log-probability of the tags of each row (B,). keep_BW: False at padding."""
        if self.crf is not None:
            return self.crf.log_probs(scores_BWC, tags_BW, keep_BW)
        log_p_BWC = scores_BWC.log_softmax(-1)
        return (log_p_BWC.gather(2, tags_BW.where(keep_BW, 0)[..., None])[..., 0] * keep_BW).sum(1)

    def decode_tags(self, scores_BWC: Tensor, keep_BW: Tensor) -> Tensor:
        """Returns the most probable tags of each row (B, W), which are arbitrary at padding."""
        return scores_BWC.argmax(-1) if self.crf is None else self.crf.decode(scores_BWC, keep_BW)


class SpanReader(TokenHeadModel):
    """A language model that scores each token as the first and as the last of an answer (Devlin et al. 2019)."""

    def __init__(self, body: LanguageModel, spec: QuestionAnswering, model: Model) -> None:
        super().__init__(body, spec, model, 2)
