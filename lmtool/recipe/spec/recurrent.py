"""Recurrent networks, their attention, and the features of another model."""

from collections.abc import Iterator
from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from lmtool.recipe.spec.base import Fraction, Spec
from lmtool.recipe.spec.model import InitialEmbeddingsModelSpec, Reads
from lmtool.recipe.spec.transformer import ScoreName, find_score_mistakes


class Attention(Spec):
    """Attention of a recurrent network over its own past states, or over the states of the encoder."""

    score: ScoreName = "dot"
    """Attention score function (Luong et al. 2015; Bahdanau et al. 2015 for additive)."""
    rank: PositiveInt | None = None
    """Rank of a reduced-rank score; a quarter of d_model by default."""
    score_width: PositiveInt | None = None
    """Width of the hidden layer of an additive score; d_model by default."""
    select: Literal["soft", "sum", "mean", "hard", "multi-hot"] = "soft"
    """The context vector: softmax average, sum or mean of all states, the top-scored one, or the mean of the top k."""
    k: PositiveInt = 4
    """States that multi-hot selects."""
    present: bool = False
    """The memory of a decoder's own states has the present one, h_1..h_t; else only those before it, h_1..h_{t-1}."""
    feed: Literal["output", "input"] = "output"
    """Where the context vector is fed: concatenated to the state before the output (Luong), or into the update of the
    first layer (Bahdanau), which is for encoder-decoders."""

    def mistakes(self) -> Iterator[str]:
        yield from find_score_mistakes(self.score, self.rank, self.score_width)
        if self.score != "dot" and self.select in ("sum", "mean"):
            yield f"score {self.score} has no effect: select {self.select} weights all states equally"


class Features(Spec):
    """States of a trained, frozen model as input of another: [x_t; gamma sum_j s_j h_tj] (ELMo; Peters et al. 2018)."""

    run: str
    """The run of the model whose layers are mixed; its tokenizer is used."""
    beside: bool = True
    """Beside the embeddings, or else in their place."""
    width: PositiveInt | None = None
    """Width of its states; set when it is opened, and until then d_model."""
    mixed_layers: PositiveInt | None = None
    """Layers of the mix, the embeddings included; set when it is opened, and until then 1."""
    longest: PositiveInt | None = None
    """Maximum tokens that it reads; set when it is opened."""

    def input_width(self, d_model: int) -> int:
        """Width of embeddings and states, or of states alone."""
        return (self.width or d_model) + d_model * self.beside


class PretrainedStatesModelSpec(InitialEmbeddingsModelSpec):
    """Base of models that can read the states of another one."""

    features: Features | None = None
    """States of another model as input, for objective classification; none by default."""

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        if self.features is not None and not self.features.beside and self.embeddings is not None:
            yield "embeddings have no effect: features.beside false takes their place"


CellName = Literal["rnn", "gru", "lstm"]
CELL_SIZES: dict[CellName, tuple[int, int]] = {"rnn": (1, 1), "gru": (3, 1), "lstm": (4, 2)}
"""For each cell, the number of input matrices, equal to that of recurrent ones, and of state vectors."""

Nonlinearity = Literal["tanh", "relu", "sigmoid"]


class Recurrent(PretrainedStatesModelSpec):
    """A recurrent network (Elman 1990; Hochreiter and Schmidhuber 1997; Cho et al. 2014)."""

    kind: Literal["recurrent"]
    shape: Literal["decoder", "encoder-decoder", "bidirectional"] = "decoder"
    """A decoder is left-to-right; an encoder-decoder adds a source; a bidirectional model is a left-to-right and a
    right-to-left decoder over shared embeddings (ELMo)."""
    cell: CellName = "lstm"
    """Elman network, gated recurrent unit, or long short-term memory."""
    nonlinearity: Nonlinearity = "tanh"
    """Nonlinearity of an Elman network."""
    recurrent_radius: PositiveFloat | None = None
    """Spectral radius of the recurrent matrices of each gate at first, orthogonal ones (Saxe et al. 2014): below 1
    gradients vanish, above they may explode. Uniform numbers by default, of a radius of about 0.58."""
    n_layers: PositiveInt = 1
    """Recurrent layers; of encoder and decoder each, if there are both."""
    residual: bool = False
    """Add what a layer reads to its output, from the second layer on (ELMo; Peters et al. 2018)."""
    d_model: PositiveInt
    """Width of hidden states and embeddings."""
    context: PositiveInt
    """Tokens of a training row, the length of truncated backpropagation; inputs can be of any length."""
    attention: Attention | None = None
    """Attention of a decoder to its own past states, or to the encoder's; none by default."""
    bidirectional_encoder: bool = False
    """A bidirectional encoder (Bahdanau et al. 2015)."""
    tie_embeddings: bool = True
    """Use the embedding matrix as the output matrix (Press and Wolf 2017)."""
    head_bias: bool = True
    """A bias on the output logits."""
    dropout: Fraction = 0.0
    """Dropout of embeddings, between layers, and of the output."""

    @property
    def title(self) -> str:
        return f"{self.kind} {self.shape}"

    @property
    def reads(self) -> Reads:
        return "source" if self.shape == "encoder-decoder" else "past"

    @property
    def longest_row(self) -> int | None:
        return None if self.features is None else self.features.longest

    @property
    def activation_bytes(self) -> int:
        return self.n_layers * 24 * self.d_model

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        if self.nonlinearity != "tanh" and self.cell != "rnn":
            yield f"nonlinearity is a choice of cell rnn only; cell {self.cell} has its own"
        if self.bidirectional_encoder and self.shape != "encoder-decoder":
            yield f"bidirectional_encoder needs an encoder, which shape {self.shape} does not have"
        if self.bidirectional_encoder and self.d_model % 2:
            yield f"d_model {self.d_model} is odd; the two directions of the encoder have half of it each"
        if self.attention is not None and self.shape == "bidirectional":
            yield "attention is not for shape bidirectional"
        if self.features is not None and self.shape == "encoder-decoder":
            yield "features are for models that classify, which shape encoder-decoder is not"
        if self.attention is not None and self.attention.present and self.shape != "decoder":
            yield f"attention.present is of a decoder's own states; shape {self.shape} attends to a source"
        if self.attention is not None and self.attention.feed == "input" and self.shape == "decoder":
            why = "a decoder's states do not exist before its updates"
            yield f"attention.feed input is for shape encoder-decoder; {why}"
