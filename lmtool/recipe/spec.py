"""The recipe language: one pydantic tree, ordered like a paper's table of hyperparameters.

Every field has its final name, its type, its limits and one sentence that editors show. Constraints on two fields are
validators of the smallest spec with both. Nothing here imports torch or any other part of lmtool.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Fraction = Annotated[float, Field(ge=0, lt=1)]
LearningRate = Annotated[float, Field(gt=0, le=1e30)]
DeviceName = Literal["auto", "cpu", "cuda", "mps"]
PrecisionName = Literal["auto", "float32", "bfloat16", "float16"]
Strings = Annotated[
    tuple[str, ...],
    Field(strict=False),
    BeforeValidator(_listed, json_schema_input_type=str | list[str]),
]
"""A list of texts; a single text is a list of one."""


class Spec(BaseModel):
    """Base of all specs: immutable, strictly typed, finite, without unknown keys.

    A multi-field validator raises one ValueError with a line for each mistake, which starts with the key concerned.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


# Model


class LearnedPosition(Spec):
    """A learned embedding for each position (GPT, BERT)."""

    kind: Literal["learned"] = "learned"
    size: PositiveInt | None = None
    """Rows of the position table; the context and the offset by default."""
    offset: NonNegativeInt = 0
    """Row of the first position; those before it are unused (RoBERTa and BART have 2)."""


class SinusoidalPosition(Spec):
    """Fixed sines and cosines of geometrically spaced wavelengths (Vaswani et al. 2017)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    layout: Literal["alternating", "halves"] = "alternating"
    """Sines and cosines alternate as in the paper, or all cosines come after all sines (Marian)."""


class NoPosition(Spec):
    """No positional encoding: order is implicit in the causal mask (NoPE, Kazemnejad et al. 2023)."""

    kind: Literal["none"] = "none"


class AlibiPosition(Spec):
    """ALiBi: attention biases linear in distance, with a slope for each head (Press et al. 2022)."""

    kind: Literal["alibi"]


class RelativePosition(Spec):
    """Learned relative position biases for each head and bucket of distances (T5, Raffel et al. 2020)."""

    kind: Literal["relative"]
    buckets: Annotated[int, Field(ge=4)] = 32
    """Buckets of distances; short distances have one each."""
    max_distance: PositiveInt = 128
    """Distance from which all share one bucket."""

    @model_validator(mode="after")
    def _near_buckets_end_before_far_ones(self) -> Self:
        if self.max_distance <= self.buckets // 2:
            raise ValueError(f"max_distance {self.max_distance} is not above buckets / 2, the distances of their own")
        return self


class NoScaling(Spec):
    """Wavelengths as in training on the original context."""

    kind: Literal["none"] = "none"


class LinearScaling(Spec):
    """Position interpolation: all wavelengths are multiplied (Chen et al. 2023)."""

    kind: Literal["linear"]
    factor: PositiveFloat
    """Factor of the wavelengths."""


class Llama3Scaling(Spec):
    """Only wavelengths that are long for the original context are multiplied (Llama 3; Grattafiori et al. 2024)."""

    kind: Literal["llama3"]
    factor: PositiveFloat
    """Factor of the long wavelengths."""
    original_context: PositiveInt
    """Context before scaling."""
    low_frequency: PositiveFloat = 1.0
    """Turns within the original context up to which a wavelength is long."""
    high_frequency: PositiveFloat = 4.0
    """Turns within the original context from which a wavelength is short, and stays; those between are blended."""

    @model_validator(mode="after")
    def _falls_apart(self) -> Self:
        if self.low_frequency >= self.high_frequency:
            raise ValueError(f"low_frequency {self.low_frequency} is not below high_frequency {self.high_frequency}")
        return self


class YarnScaling(Spec):
    """YaRN: short wavelengths stay, long ones are multiplied, attention is sharpened (Peng et al. 2024)."""

    kind: Literal["yarn"]
    factor: PositiveFloat
    """Factor of the long wavelengths."""
    original_context: PositiveInt
    """Context before scaling."""
    slow_turns: PositiveFloat = 1.0
    """Turns within the original context up to which a wavelength is multiplied (beta_slow)."""
    fast_turns: PositiveFloat = 32.0
    """Turns within the original context from which a wavelength stays (beta_fast); those between are blended."""
    attention_factor: PositiveFloat | None = None
    """Factor of rotated queries and keys; 0.1 ln(factor) + 1 by default."""

    @model_validator(mode="after")
    def _falls_apart(self) -> Self:
        if self.slow_turns >= self.fast_turns:
            raise ValueError(f"slow_turns {self.slow_turns} is not below fast_turns {self.fast_turns}")
        return self


RotaryScaling = Annotated[
    NoScaling | LinearScaling | Llama3Scaling | YarnScaling,
    Field(discriminator="kind"),
]


class RotaryPosition(Spec):
    """Queries and keys are rotated by angles proportional to position (RoPE, Su et al. 2021)."""

    kind: Literal["rotary"]
    theta: PositiveFloat = 10_000.0
    """Base of the wavelengths."""
    window_theta: PositiveFloat | None = None
    """Base in layers whose attention is windowed, where others are not (ModernBERT); theta by default."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of a head's width that is rotated (GPT-NeoX has a quarter)."""
    scaling: RotaryScaling = NoScaling()
    """How wavelengths are changed for a context longer than the original one."""


Position = Annotated[
    LearnedPosition | SinusoidalPosition | AlibiPosition | RelativePosition | RotaryPosition | NoPosition,
    Field(discriminator="kind"),
]

ScoreName = Literal["dot", "scaled-dot", "bilinear", "reduced-rank", "additive"]


class FullPattern(Spec):
    """Full attention, under the mask of the model's shape."""

    kind: Literal["full"] = "full"


class WindowPattern(Spec):
    """Sliding window attention with dilation and global tokens (Beltagy et al. 2020)."""

    kind: Literal["window"]
    size: PositiveInt
    """A position attends to positions less than this many steps away, itself included."""
    dilation: PositiveInt = 1
    """Positions per step (dilation); those between are skipped."""
    global_tokens: NonNegativeInt = 0
    """Number of global tokens at the start, which attend to all and are attended by all."""
    full_layers: Annotated[tuple[NonNegativeInt, ...], Field(strict=False)] = ()
    """Layers with full attention in place of the window, counted from 0 (ModernBERT: every third one)."""


Pattern = Annotated[FullPattern | WindowPattern, Field(discriminator="kind")]


NormPlace = Literal["pre", "post", "output"]


class Norm(Spec):
    """Normalisation of the residual stream."""

    kind: Literal["layer", "rms", "none"] = "layer"
    """LayerNorm (Ba et al. 2016), RMSNorm (Zhang and Sennrich 2019), or no normalisation at all."""
    place: NormPlace = "pre"
    """Before each sublayer (GPT-2), after each residual sum (Vaswani et al. 2017), or of each sublayer's output, inside
    the residual connection (OLMo 2)."""
    eps: PositiveFloat = 1e-5
    """Epsilon added to the variance."""
    unit_offset: bool = False
    """The gain of RMSNorm is 1 + w, so that weight decay draws it to 1 (Gemma)."""
    embedding: bool = False
    """Normalise the sum of the embeddings as well (BERT)."""
    first: bool = True
    """Normalise the input of the first sublayer; without, it reads the embeddings as they are (ModernBERT)."""


class Init(Spec):
    """Initial weights."""

    std: PositiveFloat = 0.02
    """Standard deviation of the normal distribution of matrices and embeddings."""
    embedding_std: PositiveFloat | None = None
    """Standard deviation of the input embeddings, 1 in T5; std by default."""
    scale_residual: bool = True
    """Divide the std of each projection into the residual stream by the square root of their number (GPT-2)."""


def _vector_mistakes(embeddings: str | None, freeze_embeddings: bool) -> list[str]:
    """Settings of a model's word vectors that have no effect or no sense."""
    if freeze_embeddings and embeddings is None:
        return ["freeze_embeddings would keep random vectors; name others with embeddings"]
    return []


MixerName = Literal["attention"]


class DenseFeedForward(Spec):
    """The position-wise feed-forward network (Vaswani et al. 2017)."""

    kind: Literal["dense"] = "dense"


AnyFeedForward = DenseFeedForward


Reads = Literal["past", "source", "both", "words"]
"""What the prediction at a position may depend on. "past": the tokens up to it. "source": these, and all of a source,
which for a prefix LM is the prefix. "both": all tokens of the row. "words": no order; a text is a bag of words, or a
window of them."""


class ModelSpec(Spec):
    """Base of all models."""

    kind: str

    @property
    def title(self) -> str:
        """Name of the model in messages, such as "transformer decoder"."""
        return self.kind

    @property
    def counts(self) -> bool:
        """Whether it is estimated from counts, in one pass over the text, instead of by gradients."""
        return False

    @property
    def activation_bytes(self) -> int:
        """Lower bound on the activation memory of a position in training, in bytes."""
        return 0

    @property
    def reads(self) -> Reads:
        """What a prediction depends on."""
        return "past"

    @property
    def longest_row(self) -> int | None:
        """Maximum tokens of a table row; None for no limit."""
        return None

    @property
    def shares_row(self) -> bool:
        """Whether source and target share one row."""
        return False

    @property
    def has_segments(self) -> bool:
        """Whether tokens have segment embeddings."""
        return False


class NgramTable(Spec):
    """Embeddings of frequent n-grams of tokens, which the optimizer updates by Adagrad with one scale per row."""

    entries: PositiveInt = 131_072
    """Most n-grams with an embedding: the most frequent ones of the training text."""
    longest: Annotated[int, Field(ge=2, le=5)] = 3
    """Tokens of the longest n-grams; the shortest have two."""
    min_count: PositiveInt = 4
    """Fewest occurrences of an n-gram with an embedding."""


class Transformer(ModelSpec):
    """A Transformer (Vaswani et al. 2017)."""

    kind: Literal["transformer"]
    shape: Literal["decoder", "encoder", "encoder-decoder", "prefix"] = "decoder"
    """Attention pattern: causal in a decoder (GPT), bidirectional in an encoder (BERT), an encoder-decoder has both and
    cross-attention (Vaswani et al. 2017, T5), a prefix LM is bidirectional in the prefix and causal after it."""
    n_layers: PositiveInt
    """Layers, each of a mixer and a feed-forward network; of encoder and decoder each, if there are both."""
    d_model: PositiveInt
    """Width of the residual stream."""
    n_heads: PositiveInt
    """Attention heads; must divide d_model, unless head_width is given."""
    head_width: PositiveInt | None = None
    """Width of the queries, keys and values of a head, d_k; d_model / n_heads by default."""
    value_width: PositiveInt | None = None
    """Width of the values of a head, d_v; that of its queries and keys by default."""
    n_kv_heads: PositiveInt | None = None
    """Key-value heads, shared by groups of query heads (Ainslie et al. 2023); n_heads by default."""
    share_layers: bool = False
    """All layers of a stack have the same weights (ALBERT)."""
    d_ff: NonNegativeInt | None = None
    """Width inside the feed-forward network; 4 d_model by default; 0 for layers without one."""
    residual: bool = True
    """Residual connections: the output of each sublayer is added to its input, or else takes its place."""
    context: PositiveInt
    """Context length in tokens."""
    vocab_size: PositiveInt | None = None
    """Rows of the embedding; the tokenizer's size by default. More than that leaves rows unused."""
    activation: Literal["relu", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-exact"] = "gelu"
    """Nonlinearity of the feed-forward network: ReLU, exact GELU, its tanh approximation (GPT-2), SiLU, SwiGLU, GEGLU
    with the tanh approximation (T5 1.1), or with the exact GELU (ModernBERT)."""
    feed_forward: AnyFeedForward = DenseFeedForward()
    """The position-wise sublayer of each layer, with the width and the nonlinearity above."""
    mixer: MixerName = "attention"
    """The token mixer of each layer."""
    position: Position = LearnedPosition()
    """Positional encoding."""
    pattern: Pattern = FullPattern()
    """Attention pattern, within the mask of the shape."""
    causal_mask: bool = True
    """The mask of a decoder. Without, it sees the tokens that it is to predict: its loss is no measure, and it
    generates nothing."""
    score: ScoreName = "scaled-dot"
    """Attention score function."""
    rank: PositiveInt | None = None
    """Rank of a reduced-rank score; the head's width by default."""
    score_width: PositiveInt | None = None
    """Width of the hidden layer of an additive score; the head's width by default."""
    qk_norm: Literal["none", "head", "joint"] = "none"
    """RMSNorm of queries and keys, of each head (Qwen3) or of all heads jointly (OLMo 2)."""
    parallel: bool = False
    """The sublayers of a layer read the same input, and their outputs are added at once (GPT-NeoX)."""
    n_segments: NonNegativeInt = 0
    """Segment embeddings for the texts of a row; BERT has 2."""
    norm: Norm = Norm()
    """Normalisation and its place."""
    bias: bool = True
    """Biases in linear layers and norms."""
    qkv_bias: bool | None = None
    """Biases of queries, keys and values (Qwen2 has no others); as bias by default."""
    tie_embeddings: bool = True
    """Use the embedding matrix as the output matrix (Press and Wolf 2017)."""
    head_bias: bool = False
    """A bias on the output logits."""
    scale_embedding: bool = False
    """Multiply embeddings by the square root of their width (Vaswani et al. 2017)."""
    embedding_width: PositiveInt | None = None
    """Width of the embeddings, which a dense layer maps to d_model (ALBERT, ELECTRA); d_model, without, by default."""
    separate_inputs: bool = False
    """Encoder and decoder have positions and norms of the embeddings of their own (BART); tokens are shared."""
    scale_head: bool = False
    """Divide the last hidden states by the square root of d_model (T5)."""
    head_transform: bool = False
    """A dense layer, the activation without a gate, and a norm before the output matrix (BERT)."""
    next_sentence_head: bool = False
    """A pooler on the first position and two scores for next-sentence prediction (BERT)."""
    dropout: Fraction = 0.0
    """Dropout of embeddings, attention weights and the output of each sublayer."""
    ffn_dropout: Fraction = 0.0
    """Dropout inside the feed-forward network, after the nonlinearity."""
    init: Init = Init()
    """Initial weights."""
    embeddings: str | None = None
    """Word vectors to begin with: a file in word2vec's text or binary format, GloVe's or fastText's .vec, or a run."""
    freeze_embeddings: bool = False
    """Keep the embeddings as they begin."""
    ngram_embedding: NgramTable | None = None
    """Add to the embedding of a token those of the n-grams that end with it, in a decoder (Huang et al. 2025)."""

    @property
    def title(self) -> str:
        return f"{self.kind} {self.shape}"

    @property
    def activation_bytes(self) -> int:
        # 34 d_model in 16 bits (Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer
        # Models), here with d_ff and without the attention matrix
        return self.n_layers * (18 * self.d_model + 4 * self.inner_width)

    @property
    def inner_width(self) -> int:
        """Width inside the feed-forward network; 0 without one."""
        return 4 * self.d_model if self.d_ff is None else self.d_ff

    @property
    def reads(self) -> Reads:
        match self.shape:
            case "decoder":
                return "past" if self.causal_mask else "both"
            case "encoder":
                return "both"
            case "encoder-decoder" | "prefix":
                return "source"

    @property
    def longest_row(self) -> int:
        return self.context

    @property
    def shares_row(self) -> bool:
        return self.shape == "prefix"

    @property
    def has_segments(self) -> bool:
        return self.n_segments > 1

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        mistakes = _vector_mistakes(self.embeddings, self.freeze_embeddings)
        if self.head_width is None and self.d_model % self.n_heads:
            mistakes.append(f"n_heads {self.n_heads} does not divide d_model {self.d_model}")
        if self.n_kv_heads is not None and self.n_heads % self.n_kv_heads:
            mistakes.append(f"n_kv_heads {self.n_kv_heads} does not divide n_heads {self.n_heads}")
        if isinstance(self.position, LearnedPosition) and self.position.size is not None:
            size, offset = self.position.size, self.position.offset
            if self.context > size - offset:
                less = f" - position.offset {offset}" if offset else ""
                mistakes.append(f"context {self.context} is longer than position.size {size}{less}")
        width = "d_model" if self.embedding_width is None else "embedding_width"
        if isinstance(self.position, SinusoidalPosition) and getattr(self, width) % 2:
            mistakes.append(f"{width} {getattr(self, width)} is odd; sinusoidal positions come in pairs")
        if self.separate_inputs and self.shape != "encoder-decoder":
            mistakes.append(f"separate_inputs is for shape encoder-decoder, not for shape {self.shape}")
        full_layers = self.pattern.full_layers if isinstance(self.pattern, WindowPattern) else ()
        if isinstance(self.position, RotaryPosition) and not mistakes:
            mistakes += self._rotary_mistakes(self.position, full_layers)
        if full_layers and max(full_layers) >= self.n_layers:
            mistakes.append(f"pattern.full_layers has layer {max(full_layers)}; n_layers {self.n_layers} count from 0")
        if self.qk_norm != "none" and self.score not in ("dot", "scaled-dot"):
            mistakes.append(f"qk_norm {self.qk_norm} is for scores dot and scaled-dot, not for score {self.score}")
        if self.norm.unit_offset and self.norm.kind != "rms":
            mistakes.append(f"norm.unit_offset is for norm.kind rms, not for {self.norm.kind}")
        if not self.norm.first and self.norm.place != "pre":
            mistakes.append(f"norm.first is for norm.place pre; in place {self.norm.place} no norm comes first")
        mistakes += self._absent_parts()
        if self.parallel and self.norm.place == "post":
            mistakes.append("parallel sublayers have no residual sum each, which norm.place post normalises")
        if self.score not in ("dot", "scaled-dot") and self.n_kv_heads not in (None, self.n_heads):
            mistakes.append(f"n_kv_heads {self.n_kv_heads} shares keys, which score {self.score} has for each head")
        if self.rank is not None and self.score != "reduced-rank":
            mistakes.append(f"rank is for a reduced-rank score, not for score {self.score}")
        if self.score_width is not None and self.score != "additive":
            mistakes.append(f"score_width is for an additive score, not for score {self.score}")
        if self.next_sentence_head and self.shape != "encoder":
            mistakes.append(f"next_sentence_head is for shape encoder, not for shape {self.shape}")
        if self.n_segments and self.shape != "encoder":
            mistakes.append(f"n_segments is for shape encoder, not for shape {self.shape}, whose rows hold one text")
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return self

    def _absent_parts(self) -> Iterator[str]:
        """Keys about parts that other keys take away, or that layers do not have each."""
        if self.norm.kind == "none":
            if self.norm.embedding:
                yield "norm.embedding has no effect: norm.kind none normalises nothing; take false"
            if not self.norm.first:
                yield "norm.first has no effect: norm.kind none normalises nothing; take true"
        if self.d_ff == 0 and self.ffn_dropout:
            yield f"ffn_dropout {self.ffn_dropout} has no effect: with d_ff 0 there is no feed-forward network; take 0"
        if self.d_ff == 0 and self.parallel:
            yield "parallel has no effect: with d_ff 0 a layer has one sublayer; take false"
        if not self.residual and self.parallel:
            yield "parallel sublayers are added to what they read, which residual false does not do"
        if not self.residual and self.norm.place == "output":
            yield "norm.place output is inside the residual connection, of which residual false has none; take post"
        if self.share_layers and not self.norm.first:
            yield "norm.first gives the first layer a norm less, but share_layers gives all the same weights"
        if not self.causal_mask and self.shape != "decoder":
            yield f"causal_mask is for shape decoder, not for shape {self.shape}"
        if self.ngram_embedding is not None and self.shape != "decoder":
            yield f"ngram_embedding is for shape decoder, not for shape {self.shape}"

    def _rotary_mistakes(self, position: RotaryPosition, full_layers: tuple[int, ...]) -> Iterator[str]:
        turned = int((self.head_width or self.d_model // self.n_heads) * position.share)
        if turned % 2 or not turned:
            cause = f"n_heads {self.n_heads}" if self.head_width is None else f"head_width {self.head_width}"
            cause = f"position.share {position.share}" if position.share < 1 else cause
            yield f"{cause} gives {turned} rotated components a head; rotary positions come in pairs"
        if self.score not in ("dot", "scaled-dot"):
            yield f"score {self.score} transforms rotated queries and keys; take dot or scaled-dot"
        if position.window_theta is not None and not full_layers:
            yield "position.window_theta is for patterns with full_layers; take position.theta"
        if isinstance(position.scaling, YarnScaling) and position.theta <= 1:
            yield f"position.theta {position.theta:g} is not above 1, so wavelengths do not grow as yarn scales them"


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

    @model_validator(mode="after")
    def _parts_have_a_use(self) -> Self:
        mistakes = []
        if self.rank is not None and self.score != "reduced-rank":
            mistakes.append(f"rank is for a reduced-rank score, not for score {self.score}")
        if self.score_width is not None and self.score != "additive":
            mistakes.append(f"score_width is for an additive score, not for score {self.score}")
        if self.score != "dot" and self.select in ("sum", "mean"):
            mistakes.append(f"score {self.score} has no effect: select {self.select} weights all states equally")
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return self


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

    def width_with(self, d_model: int) -> int:
        """Width of embeddings and states, or of states alone."""
        return (self.width or d_model) + d_model * self.beside


CellName = Literal["rnn", "gru", "lstm"]
CELLS: dict[CellName, tuple[int, int]] = {"rnn": (1, 1), "gru": (3, 1), "lstm": (4, 2)}
"""For each cell, the number of input matrices, equal to that of recurrent ones, and of state vectors."""

Nonlinearity = Literal["tanh", "relu", "sigmoid"]


class Recurrent(ModelSpec):
    """A recurrent network (Elman 1990; Hochreiter and Schmidhuber 1997; Cho et al. 2014)."""

    kind: Literal["recurrent"]
    shape: Literal["decoder", "encoder-decoder", "bidirectional"] = "decoder"
    """A decoder is left-to-right; an encoder-decoder adds a source; a bidirectional model is a left-to-right and a
    right-to-left decoder over shared embeddings (ELMo)."""
    cell: CellName = "lstm"
    """Elman network, gated recurrent unit, or long short-term memory."""
    nonlinearity: Nonlinearity = "tanh"
    """Nonlinearity of an Elman network."""
    n_layers: PositiveInt = 1
    """Recurrent layers; of encoder and decoder each, if there are both."""
    d_model: PositiveInt
    """Width of hidden states and embeddings."""
    context: PositiveInt
    """Tokens of a training row, the length of truncated backpropagation; inputs can be of any length."""
    vocab_size: PositiveInt | None = None
    """Rows of the embedding; the tokenizer's size by default. More than that leaves rows unused."""
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
    embeddings: str | None = None
    """Word vectors to begin with: a file in word2vec's text or binary format, GloVe's or fastText's .vec, or a run."""
    freeze_embeddings: bool = False
    """Keep the embeddings as they begin."""
    features: Features | None = None
    """States of another model as input, for objective classification; none by default."""

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

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        mistakes = _vector_mistakes(self.embeddings, self.freeze_embeddings)
        if self.features is not None and not self.features.beside and self.embeddings is not None:
            mistakes.append("embeddings have no effect: features.beside false takes their place")
        if self.nonlinearity != "tanh" and self.cell != "rnn":
            mistakes.append(f"nonlinearity is a choice of cell rnn only; cell {self.cell} has its own")
        if self.bidirectional_encoder and self.shape != "encoder-decoder":
            mistakes.append(f"bidirectional_encoder needs an encoder, which shape {self.shape} does not have")
        if self.bidirectional_encoder and self.d_model % 2:
            mistakes.append(f"d_model {self.d_model} is odd; the two directions of the encoder have half of it each")
        if self.attention is not None and self.shape == "bidirectional":
            mistakes.append("attention is not for shape bidirectional")
        if self.features is not None and self.shape == "encoder-decoder":
            mistakes.append("features are for models that classify, which shape encoder-decoder is not")
        if self.attention is not None and self.attention.present and self.shape != "decoder":
            mistakes.append(f"attention.present is of a decoder's own states; shape {self.shape} attends to a source")
        if self.attention is not None and self.attention.feed == "input" and self.shape == "decoder":
            mistakes.append(
                "attention.feed input is for shape encoder-decoder; a decoder's states do not exist before its updates"
            )
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return self


class NGram(ModelSpec):
    """N-gram counts, by default smoothed by interpolated modified Kneser-Ney (Chen and Goodman 1999)."""

    kind: Literal["ngram"]
    order: Annotated[int, Field(ge=1, le=5)] = 5
    """Order of the model: n-grams of the predicted token and order - 1 before it."""
    smoothing: Literal["kneser-ney", "add-k", "none"] = "kneser-ney"
    """Kneser-Ney, add-k (Lidstone 1920; Laplace's with k 1), or none: relative frequencies, which are 0 for n-grams
    never counted."""
    k: PositiveFloat = 1.0
    """With add-k: what is added to each count."""
    context: PositiveInt = 1024
    """Tokens of a row."""
    vocab_size: PositiveInt | None = None
    """The tokenizer's size by default."""

    @property
    def d_model(self) -> int:
        """Width of the state at a position: the number of context ids."""
        return max(1, self.order - 1)

    @property
    def counts(self) -> bool:
        return True


class SkipGram(ModelSpec):
    """Skip-gram: a centre and a context vector for each word (word2vec, Mikolov et al. 2013)."""

    kind: Literal["skipgram"]
    d_model: PositiveInt = 100
    """Width of the vectors."""
    context: PositiveInt = 256
    """Tokens of the window of text that an example is cut from."""
    vocab_size: PositiveInt | None = None
    """Words; the tokenizer's size by default."""

    @property
    def reads(self) -> Reads:
        return "words"


class Glove(ModelSpec):
    """GloVe: word vectors whose products are logarithms of co-occurrence counts (Pennington et al. 2014)."""

    kind: Literal["glove"]
    d_model: PositiveInt = 100
    """Width of the vectors."""
    context: PositiveInt = 256
    """Counts in a training row; in evaluation, tokens of the window of text that pairs are taken from."""
    vocab_size: PositiveInt | None = None
    """Words; the tokenizer's size by default."""

    @property
    def reads(self) -> Reads:
        return "words"


class Ppmi(ModelSpec):
    """Co-occurrence counts as positive pointwise mutual information, and its truncated SVD (Levy et al. 2015)."""

    kind: Literal["ppmi"]
    d_model: PositiveInt = 100
    """Width of the vectors, the rank of the SVD."""
    window: PositiveInt = 5
    """Words on each side of a word that count as its context."""
    context: PositiveInt = 256
    """Tokens of a row."""
    vocab_size: PositiveInt | None = None
    """Words; the tokenizer's size by default."""

    @property
    def counts(self) -> bool:
        return True

    @property
    def reads(self) -> Reads:
        return "words"


class Averaging(ModelSpec):
    """Deep averaging network (Iyyer et al. 2015): the mean of word vectors, and layers above it; ignores word order."""

    kind: Literal["averaging"]
    d_model: PositiveInt = 300
    """Width of the vectors and of the layers."""
    one_hot: bool = False
    """One-hot words instead of vectors: a linear classifier of the words' relative frequencies."""
    log_ratios: bool = False
    """With one_hot: start from the log ratios of how often a word is in texts of a class and how often it would be
    were it independent of the class, as in naive Bayes (after Wang and Manning 2012). A text is the set of its words,
    or weighted by tf_idf; only with that are there numbers, which have no ratios: their weights start at 0."""
    tf_idf: bool = False
    """Weight the words of a text by (1 + log count) x inverse document frequency, scaled to length 1, instead of
    equally (Salton and Buckley 1988)."""
    ngrams: Annotated[int, Field(ge=1, le=8)] = 1
    """Maximum order of the token n-grams that are features; 1 for single tokens only."""
    buckets: PositiveInt = 262_144
    """Hash buckets of n-grams of two and more tokens (Joulin et al. 2017)."""
    n_layers: NonNegativeInt = 2
    """Feed-forward layers above the mean."""
    activation: Literal["relu", "tanh"] = "relu"
    """Nonlinearity of the layers."""
    word_dropout: Fraction = 0.3
    """Word dropout: fraction of words dropped from the mean in training."""
    dropout: Fraction = 0.0
    """Dropout after each layer."""
    context: PositiveInt = 512
    """Tokens of the longest text."""
    vocab_size: PositiveInt | None = None
    """Rows of the embedding without those of n-grams; the tokenizer's size by default."""
    embeddings: str | None = None
    """Word vectors to begin with: a file in word2vec's text or binary format, GloVe's or fastText's .vec, or a run."""
    freeze_embeddings: bool = False
    """Keep the embeddings as they begin."""
    features: Features | None = None
    """States of another model as input, for objective classification; none by default."""

    @property
    def n_hashed(self) -> int:
        """Rows of hashed n-grams, after those of tokens."""
        return self.buckets if self.ngrams > 1 else 0

    @property
    def reads(self) -> Reads:
        return "words"

    @property
    def longest_row(self) -> int:
        longest = None if self.features is None else self.features.longest
        return self.context if longest is None else min(self.context, longest)

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        mistakes = _vector_mistakes(self.embeddings, self.freeze_embeddings)
        if self.features is not None and not self.features.beside and self.embeddings is not None:
            mistakes.append("embeddings have no effect: features.beside false takes their place")
        if self.embeddings is not None and self.one_hot:
            mistakes.append("embeddings are vectors, which one_hot words do not have")
        if self.freeze_embeddings and self.ngrams > 1:
            mistakes.append(
                f"freeze_embeddings would freeze the vectors of n-grams too, which no file has; ngrams is {self.ngrams}"
            )
        given = [key for key in ("one_hot", "tf_idf") if getattr(self, key)] + ["ngrams"] * (self.ngrams > 1)
        if self.features is not None and given:
            mistakes.append(f"features are states of tokens, of which the mean is taken; {given[0]} is for counts")
        if self.one_hot and self.n_layers:
            mistakes.append(f"n_layers {self.n_layers} has no effect with one_hot words; take 0")
        if self.log_ratios and not self.one_hot:
            mistakes.append("log_ratios are weights of single words, not of vectors; set one_hot")
        if self.log_ratios and self.word_dropout:
            mistakes.append(f"word_dropout {self.word_dropout} is for means, which log_ratios do not compute; take 0")
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return self


Model = Annotated[Transformer | Recurrent | NGram | SkipGram | Glove | Ppmi | Averaging, Field(discriminator="kind")]


# Objective


class ScheduledSampling(Spec):
    """Scheduled sampling: replace inputs by samples of the model, with growing probability (Bengio et al. 2015)."""

    growth: Literal["linear", "exponential", "inverse-sigmoid"] = "linear"
    """Decay of the probability of a true token after i percent of training: linear 1 - k i, exponential
    k^i, or inverse-sigmoid k / (k + exp(i / k))."""
    k: PositiveFloat | None = None
    """Decay rate; by default 0.01 for linear, 0.98 for exponential, 15 for inverse-sigmoid."""
    floor: Fraction = 0.0
    """Minimum probability of a true token."""

    @model_validator(mode="after")
    def _falls(self) -> Self:
        if self.k is not None and self.growth == "exponential" and self.k >= 1:
            raise ValueError(f"k {self.k} is not below 1, so that exponential decay never starts")
        if self.k is not None and self.growth == "inverse-sigmoid" and self.k < 1:
            raise ValueError(f"k {self.k} is below 1, where inverse-sigmoid decay ends at the first step")
        return self


class Causal(Spec):
    """Causal language modelling: predict each token from those before it."""

    kind: Literal["causal"] = "causal"
    label_smoothing: Fraction = 0.0
    """Label smoothing: probability eps moved from the true token to the others (Szegedy et al. 2016)."""
    scheduled_sampling: ScheduledSampling | None = None
    """Scheduled sampling of input tokens; none by default."""


class Bidirectional(Spec):
    """Predict each token from those before it, and again from those after it (ELMo; Peters et al. 2018)."""

    kind: Literal["bidirectional"]


class SpanMasking(Spec):
    """Mask whole spans with geometrically distributed lengths (SpanBERT, Joshi et al. 2020)."""

    p: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Parameter of the geometric distribution."""
    max_length: PositiveInt = 10
    """Lengths above it are redrawn."""


class Masked(Spec):
    """Masked language modelling: predict selected tokens from all others (Devlin et al. 2019)."""

    kind: Literal["masked"]
    rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Fraction of tokens that are selected."""
    mask_share: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Fraction of selected tokens that become [MASK]."""
    random_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Fraction of selected tokens that become a random token; the rest is unchanged."""
    independent: bool = False
    """Select each token with probability `rate`, and draw what becomes of it, by itself, so that short rows see all
    three; else these are fractions of each row."""
    spans: SpanMasking | None = None
    """Mask spans instead of single tokens."""
    next_sentence: bool = False
    """Rows are [CLS] A [SEP] B [SEP], half of them with a B that does not follow A: next-sentence prediction (BERT)."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.mask_share + self.random_share > 1:
            raise ValueError(f"random_share {self.random_share} and mask_share {self.mask_share} sum to more than 1")
        if self.independent and self.spans is not None:
            raise ValueError("independent draws single tokens, not spans; omit one of the two")
        return self


class ReplacedTokens(Spec):
    """Replaced-token detection: tell which tokens a small generator, trained to fill masks, has replaced (ELECTRA,
    Clark et al. 2020)."""

    kind: Literal["replaced-tokens"]
    rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Fraction of tokens that are masked and filled."""
    generator_size: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Width, heads and feed-forward width of the generator, as fractions of the model's; it has as many layers."""
    weight: PositiveFloat = 50.0
    """Weight of the detection loss, beside the generator's."""
    share_embeddings: bool = True
    """The generator reads the embeddings of the model, mapped to its width, and predicts by them."""


class SpanCorruption(Spec):
    """Span corruption: replace spans by sentinels, and generate each span after its sentinel (Raffel et al. 2020)."""

    kind: Literal["span-corruption"]
    rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Fraction of tokens that are removed."""
    mean_length: Annotated[float, Field(ge=1)] = 3.0
    """Mean length of a span."""
    end: Literal["sentinel", "eos", "both"] = "sentinel"
    """End of a target: the next sentinel, [EOS] in its place, or [EOS] after it (as T5 was trained)."""


class Prefix(Spec):
    """Continue a prefix that has bidirectional attention; the loss is on the continuation only."""

    kind: Literal["prefix"]
    fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Fraction of a row that is the prefix; random for each row by default."""
    label_smoothing: Fraction = 0.0
    """Label smoothing: probability eps moved from the true token to the others (Szegedy et al. 2016)."""


class Seq2Seq(Spec):
    """Generate the target of a pair from its source (Sutskever et al. 2014), or the assistant's turns of a
    conversation."""

    kind: Literal["seq2seq"]
    label_smoothing: Fraction = 0.0
    """Label smoothing: probability eps moved from the true token to the others (Szegedy et al. 2016)."""
    scheduled_sampling: ScheduledSampling | None = None
    """Scheduled sampling of input tokens; none by default."""


class SkipGramWindow(Spec):
    """Predict the context words of each word (Mikolov et al. 2013)."""

    kind: Literal["skip-gram"]
    window: PositiveInt = 5
    """Maximum window; the window of each word is drawn from 1 to this."""
    fixed: bool = False
    """Every word has the maximum window."""
    apart: bool = False
    """Negative samples are not among the context words of the same centre."""
    negatives: NonNegativeInt = 5
    """Negative samples for each context word; 0 trains the full softmax."""
    power: NonNegativeFloat = 0.75
    """Noise is drawn from unigram counts to this power."""
    subsample: NonNegativeFloat = 1e-3
    """Subsampling threshold: words of higher relative frequency are dropped at random (word2vec); 0 keeps all."""


class CbowWindow(SkipGramWindow):
    """Predict each word from the mean of its context words (CBOW, Mikolov et al. 2013)."""

    kind: Literal["cbow"]  # type: ignore[assignment]  # the same windows for another objective


class WeightedCounts(Spec):
    """Fit logarithms of co-occurrence counts by weighted least squares (GloVe, Pennington et al. 2014)."""

    kind: Literal["glove"]
    window: PositiveInt = 10
    """Words on each side of a word that count as its context, at distance d as 1 / d."""
    x_max: PositiveFloat = 100.0
    """Count from which the weight of a pair is 1."""
    power: NonNegativeFloat = 0.75
    """Below it, the weight is (count / x_max) to this power."""


class WindowCounts(Spec):
    """Count the words around each word, within model.window."""

    kind: Literal["cooccurrence"]


class Classification(Spec):
    """Predict the label of each row of a table: a head on a pooled hidden state of the model."""

    kind: Literal["classification"]
    task: Literal["auto", "class", "multi", "number"] = "auto"
    """One class for each row, any number of labels, or a number; auto infers it from the training table."""
    labels: Strings = ()
    """Names of the classes or labels, in the order of the scores; inferred from the training table when empty."""
    center: float | None = None
    """For regression: the head predicts (number - center) / scale; the mean of the training table by default."""
    scale: PositiveFloat | None = None
    """For regression: see center; the standard deviation of the training table by default."""
    layers: Literal["last", "mix", "mix-hidden"] = "last"
    """The hidden states to pool: of the last layer, or a learned scalar mix of the embeddings and all layers (ELMo), or
    of all layers without the embeddings."""
    pool: Literal["auto", "first", "last", "mean", "max", "attention"] = "auto"
    """Pooling of a text to one vector; auto takes the first position of an encoder, the last of a decoder, and the mean
    of all others."""
    dense: Literal["none", "tanh", "relu", "gelu"] = "none"
    """Nonlinearity of a dense layer between the pooled vector and the scores, if any; tanh is BERT's pooler."""
    dense_norm: bool = False
    """Normalise the output of the dense layer (ModernBERT)."""
    bias: bool = True
    """A bias of each score (GPT-1 has none)."""
    single_score: bool = False
    """For two classes: one score, whose sigmoid is the probability of the second class, instead of a softmax of two."""
    dropout: Fraction = 0.1
    """Dropout of the pooled vector, and of the output of the dense layer."""
    lm_weight: NonNegativeFloat = 0.0
    """Weight of the auxiliary language-model loss (GPT-1: 0.5); for decoders."""
    label_smoothing: Fraction = 0.0
    """Label smoothing: probability eps moved from the true class to the others (Szegedy et al. 2016)."""
    class_weights: Literal["balanced"] | Annotated[tuple[NonNegativeFloat, ...], Field(strict=False)] | None = None
    """Loss weight of each class; balanced is n / (C n_c) for C classes, n_c of n rows being of class c, so that all
    classes have equal total weight; null for equal weights."""


class TokenHead(Spec):
    """Base of the heads that score each token."""

    layers: Literal["last", "mix"] = "last"
    """The hidden states to score: of the last layer, or a learned scalar mix of embeddings and all layers (ELMo)."""
    dropout: Fraction = 0.1
    """Dropout of these states."""


class Tagging(TokenHead):
    """Predict a tag for each word of a sentence, from the state of its first token."""

    kind: Literal["tagging"]
    labels: Strings = ()
    """The tags, in the order of the scores; inferred from the training table when empty."""
    crf: bool = False
    """A linear-chain conditional random field over the tags of a sentence (Lafferty et al. 2001; Lample et al. 2016),
    instead of a softmax for each word."""


class QuestionAnswering(TokenHead):
    """Predict the first and the last token of the answer to a question in a context (Devlin et al. 2019)."""

    kind: Literal["question-answering"]
    stride: PositiveInt | None = None
    """Tokens from one window of a long context to the next; half of a window by default."""
    max_answer: PositiveInt = 30
    """Maximum tokens of an answer."""
    null_threshold: float | None = None
    """A question has no answer if the score of the null span exceeds that of the best span by more than this; chosen on
    the validation rows by default."""


class Embedding(Spec):
    """Vectors of whole texts, as published models have learnt them (Reimers and Gurevych 2019); not trained here, but
    fine-tuned further on tables."""

    kind: Literal["embedding"]
    pool: Literal["first", "last", "mean", "max"] = "mean"
    """Pooling of the hidden states of a text, special tokens included."""
    normalize: bool = False
    """Scale vectors to length one."""


AnyObjective = Annotated[
    Causal
    | Bidirectional
    | Masked
    | ReplacedTokens
    | SpanCorruption
    | Prefix
    | Seq2Seq
    | SkipGramWindow
    | CbowWindow
    | WeightedCounts
    | WindowCounts
    | Classification
    | Tagging
    | QuestionAnswering
    | Embedding,
    Field(discriminator="kind"),
]

HeadSpec = Classification | Tagging | QuestionAnswering
"""Objectives that put a head on a model, which the rows of a table train."""


# Text


class TokenizerSpec(Spec):
    """Base of all trained tokenizers."""

    sentinels: NonNegativeInt = 0
    """Sentinel tokens for removed spans (T5 has 100)."""
    sample_mb: PositiveInt = 100
    """Maximum megabytes of text, spread over the corpus, to train the tokenizer on."""


class BpeTokenizer(TokenizerSpec):
    """Byte-level byte pair encoding: lossless for any text (Sennrich et al. 2016; Radford et al. 2019)."""

    kind: Literal["bpe"] = "bpe"
    vocab_size: Annotated[int, Field(ge=300)] = 4096
    """Entries, special tokens included."""
    min_frequency: PositiveInt = 2
    """Fewest occurrences of a pair of tokens that is merged."""
    dropout: Fraction = 0.0
    """BPE dropout: probability of skipping a merge in training pairs, for objective seq2seq (Provilkov et al. 2020)."""


class WordPieceTokenizer(TokenizerSpec):
    """WordPiece with ## continuations (Devlin et al. 2019)."""

    kind: Literal["wordpiece"]
    vocab_size: Annotated[int, Field(ge=100)] = 8192
    """Entries, special tokens included."""
    lowercase: bool = False
    """Lower-case the text and strip accents first (BERT uncased)."""


class CharTokenizer(TokenizerSpec):
    """One token for each character of the training text."""

    kind: Literal["char"]


class WordTokenizer(TokenizerSpec):
    """One token for each frequent word or punctuation mark; the rest is [UNK]."""

    kind: Literal["word"]
    vocab_size: Annotated[int, Field(ge=10)] = 16384
    """Entries, special tokens included."""
    lowercase: bool = False
    """Lower-case the text first."""


class TokenizerFile(Spec):
    """An existing tokenizer."""

    kind: Literal["file"]
    path: str
    """A tokenizer.json written by lmtool, or a folder or run with one."""


AnyTokenizer = Annotated[
    BpeTokenizer | WordPieceTokenizer | CharTokenizer | WordTokenizer | TokenizerFile,
    Field(discriminator="kind"),
]


class Data(Spec):
    """The text to train on."""

    train: Strings = ()
    """Files, folders, globs, or `hf:NAME` for a Hugging Face dataset; .txt, .jsonl, .csv, .parquet, also .gz, .zst."""
    mixture: dict[str, PositiveFloat] = {}
    """Texts to mix, each named as in `train`, and their weights: the share of each in every thousand examples. In place
    of `train`; each ends by itself and begins again."""
    valid: Strings = ()
    """Validation text; when empty, it is split off the training text."""
    column: str = "text"
    """Column of .jsonl, .csv and .parquet files that holds the text."""
    source_column: str | None = None
    """Column that holds the source of a pair, for objective seq2seq; found by its name by default."""
    target_column: str | None = None
    """Column that holds the target of a pair, for objective seq2seq; found by its name by default."""
    input_column: str | None = None
    """Column whose text, where there is any, follows the source after an empty line; found by its name beside a column
    `instruction`."""
    messages_column: str | None = None
    """Column that holds conversations, for objective seq2seq of decoders; found by its name by default."""
    text_columns: Strings = ()
    """Columns that hold the texts of a row, for objective classification; found by their names when empty. For tagging
    the column of the words, for question-answering those of question and context."""
    label_column: str | None = None
    """Column that holds the label, for objective classification; found by its name by default. For tagging the column
    of the tags, for question-answering that of the answers."""
    test: str | None = None
    """Test table, evaluated once after training."""
    tasks: Strings = ()
    """Tables for multi-task text-to-text training, each `name:file`, or `name:file:weight` to repeat each of its rows
    `weight` times per epoch; in place of one table in `train`; for objective seq2seq."""
    task_tests: Strings = ()
    """Test tables of some of the tasks, each `name:file`."""
    encoding: str | None = None
    """Encoding of labelled .csv and .tsv tables; UTF-8 by default."""
    delimiter: str | None = None
    """Field separator of labelled .csv and .tsv tables, one character; inferred from the table by default."""
    skip_bad_rows: bool = False
    """Skip and count bad rows of labelled tables, instead of stopping."""
    documents: Literal["auto", "whole", "blank-line", "line"] = "auto"
    """How a .txt file is split into documents; auto splits at blank lines when every paragraph is on one line."""
    split: Literal["auto", "document", "slice"] = "auto"
    """Hold out whole documents, or the final slice of one long text; auto slices when there is one document."""
    valid_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Fraction of the documents, or of the characters, held out for validation."""
    isolate_documents: bool = False
    """Mask attention across documents packed into a row."""
    stream: bool | Literal["auto"] = "auto"
    """Tokenize beside training, from the first block of text on, instead of before it; auto streams files of 4 GB and
    more, where the recipe does not need all of the text at once."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The training texts."""
        return self.train or tuple(self.mixture)

    @model_validator(mode="after")
    def _tasks_stand_alone(self) -> Self:
        given = [key for key in ("train", "valid", "test", "text_columns") if self.tasks and getattr(self, key)]
        mistakes = [f"{key} is for one table, not for tasks" for key in given]
        if self.task_tests and not self.tasks:
            mistakes.append("task_tests are for tasks, of which there are none")
        if self.mixture and (self.train or self.tasks):
            mistakes.append("mixture names the texts itself; omit train and tasks")
        if self.stream is True and self.mixture:
            mistakes.append("stream is for one text, and mixture has several; set it to false")
        if self.stream is True and self.split == "slice":
            mistakes.append("stream divides a text into documents, and split slice does not; set one of them otherwise")
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return self


# Training


class Training(Spec):
    """Length, batch size and device of training."""

    steps: PositiveInt
    """Total optimizer steps."""
    epochs: PositiveFloat | None = None
    """Epochs over the training data, which then determine the steps."""
    min_steps: PositiveInt | None = None
    """With epochs: the fewest steps, so that a small table is read more often."""
    tokens: PositiveInt | None = None
    """Tokens of text to train on, which then determine the steps."""
    minutes: PositiveFloat | None = None
    """Wall-clock time of a run on text, which then determines the steps, by the speed that is measured at the start; of
    epochs, tokens and minutes the one that ends first."""
    batch_size: Annotated[int, Field(gt=0, le=2**24)]
    """Sequences in one optimizer step, over all devices."""
    micro_batch: PositiveInt | Literal["auto"] = "auto"
    """Sequences per micro-batch on one device; auto starts at the whole share and halves when out of memory."""
    device: DeviceName = "auto"
    """Device; auto takes the first of cuda, mps, cpu that is available."""
    precision: PrecisionName = "auto"
    """Precision of matrix products; weights stay float32. auto takes bfloat16 where the device has fast bfloat16."""
    clip_norm: PositiveFloat | None = 1.0
    """Maximum global gradient norm; null for no clipping (Pascanu et al. 2013)."""
    micro_tokens: PositiveInt | None = None
    """Positions per micro-batch on one device, padding included, with rows bucketed by length, so that a batch of long
    rows takes no more memory than one of short rows; null for no limit besides micro_batch."""
    carry_state: bool = False
    """Carry the state of a recurrent decoder over from the previous step in each row, without its gradient."""
    recompute: Literal["none", "layers", "auto"] = "auto"
    """Activations of a Transformer: none keeps all for the backward pass; layers keeps the input of each layer and
    computes the rest again (Chen et al. 2016); auto does so once memory has run out, before micro_batch halves."""
    shard: Literal["none", "full", "auto"] = "auto"
    """How several processes hold a Transformer: none, each all of it (DDP); full, each its share of all weights,
    gradients and moments (FSDP2; Zhao et al. 2023); auto, full where they do not fit into the memory of one."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the model with torch.compile; auto does so for long runs on a GPU."""

    @property
    def has_budget(self) -> bool:
        """Whether the steps follow from something else."""
        return not (self.epochs is self.tokens is self.minutes is None)

    def rows_at_once(self, n_processes: int) -> int:
        """The micro-batch of each process; `auto` begins with its whole share of the batch."""
        share = self.batch_size // n_processes
        return share if self.micro_batch == "auto" else min(self.micro_batch, share)


class Lora(Spec):
    """Low-rank adapters: W x + (alpha / rank) B A x, with trained A and B and frozen W (Hu et al. 2022)."""

    rank: PositiveInt = 8
    """Rows of each A, and columns of each B."""
    alpha: PositiveFloat = 16.0
    """The product is scaled by alpha / rank."""
    targets: Annotated[
        tuple[Literal["query", "key", "value", "output", "feed-forward"], ...], Field(strict=False, min_length=1)
    ] = ("query", "value")
    """Matrices of each layer that get adapters."""
    dropout: Fraction = 0.0
    """Dropout of the adapters' input."""


class Tuning(Spec):
    """Which weights of a trained model are fine-tuned, and at which learning rates."""

    freeze: Literal["none", "embeddings", "body"] = "none"
    """Embeddings: train all but the embeddings of tokens, positions and segments. Body: train only the head."""
    unfreeze_every: PositiveInt | None = None
    """Gradual unfreezing: train only the top at first, and unfreeze one more layer below after each so many steps, the
    embeddings last (Howard and Ruder 2018); null for all from the start."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Ratio of each layer's learning rate to that of the layer above (Howard and Ruder 2018; Clark et al. 2020)."""
    lora: Lora | None = None
    """Train and save only adapters and the head."""

    @model_validator(mode="after")
    def _parts_have_a_use(self) -> Self:
        if self.freeze == "none":
            return self
        mistakes = []
        if self.unfreeze_every is not None and self.freeze == "body":
            mistakes.append("unfreeze_every would end what freeze body asks for")
        if self.layer_decay < 1 and self.freeze == "body":
            mistakes.append(f"layer_decay {self.layer_decay} is for layers, which are all frozen under freeze body")
        if self.lora is not None and self.freeze == "body":
            mistakes.append("lora adapts the layers, which freeze body leaves frozen")
        if self.lora is not None and self.freeze == "embeddings":
            mistakes.append("lora freezes all but adapters and head, so freeze embeddings has no effect")
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return self


class Distillation(Spec):
    """Learn the probabilities of a trained model beside the targets (Hinton et al. 2015; Sanh et al. 2019)."""

    teacher: str | None = None
    """The run to learn from, with the same objective; the student has its tokenizer. None by default."""
    temperature: PositiveFloat = 2.0
    """Temperature of both models' probabilities: above 1, the small ones count more."""
    weight: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Weight of the teacher's probabilities; that of the targets is what is left of 1."""
    cosine: NonNegativeFloat = 0.0
    """Weight of 1 - cos of the last hidden states of both, which are of equal width then (DistilBERT)."""


class AdamMoments(Spec):
    """Base of Adam and AdamW."""

    lr: LearningRate = 1e-3
    """Peak learning rate."""
    beta1: Fraction = 0.9
    """Decay of the first moment."""
    beta2: Fraction = 0.999
    """Decay of the second moment."""
    eps: PositiveFloat = 1e-8
    """Epsilon added to the root of the second moment."""

    def moments(self, matrices: int, rest: int) -> int:
        """Number of optimizer states for so many parameters, in the matrices of layers and in all others."""
        return 2 * (matrices + rest)


class Adam(AdamMoments):
    """Adam (Kingma and Ba 2015)."""

    kind: Literal["adam"]
    weight_decay: NonNegativeFloat = 0.0
    """L2 penalty on matrices, added to their gradient."""


class AdamW(AdamMoments):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    kind: Literal["adamw"] = "adamw"
    weight_decay: NonNegativeFloat = 0.1
    """Decoupled decay of matrices, times the learning rate."""


class Sgd(Spec):
    """Stochastic gradient descent, with momentum v = m v + lr g when `momentum` is above 0."""

    kind: Literal["sgd"]
    lr: LearningRate
    """Peak learning rate."""
    momentum: Fraction = 0.0
    """Momentum coefficient."""
    weight_decay: NonNegativeFloat = 0.0
    """L2 penalty on matrices."""

    def moments(self, matrices: int, rest: int) -> int:
        return matrices + rest if self.momentum else 0


class Muon(Spec):
    """Muon for the matrices of the layers, AdamW for all else (Jordan et al. 2024)."""

    kind: Literal["muon"]
    lr: LearningRate = 0.02
    """Peak learning rate of the matrices."""
    momentum: Fraction = 0.95
    """Nesterov momentum of the matrices."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled decay of the matrices."""
    adamw: AdamW = AdamW()
    """For embeddings, heads, norms and biases."""

    def moments(self, matrices: int, rest: int) -> int:
        return matrices + self.adamw.moments(0, rest)


Optimizer = Annotated[Adam | AdamW | Sgd | Muon, Field(discriminator="kind")]


class Constant(Spec):
    """Linear warm-up, then the peak rate."""

    kind: Literal["constant"]
    warmup_steps: NonNegativeInt = 0
    """Steps from zero to the peak rate."""


class Linear(Spec):
    """Linear warm-up, then linear decay (BERT), with or without a plateau between them (Hu et al. 2024)."""

    kind: Literal["linear"]
    warmup_steps: NonNegativeInt = 0
    """Steps from zero to the peak rate."""
    decay_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the steps after the warm-up in which the rate decays, the last ones; before them it is the peak."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Rate at the last step, as a fraction of the peak."""


class Cosine(Spec):
    """Linear warm-up, then cosine decay (Loshchilov and Hutter 2017)."""

    kind: Literal["cosine"] = "cosine"
    warmup_steps: NonNegativeInt = 0
    """Steps from zero to the peak rate."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Rate at the last step, as a fraction of the peak."""


class InverseSquareRoot(Spec):
    """lr d_model^-0.5 min(t^-0.5, t warmup^-1.5) (Vaswani et al. 2017, where lr is 1)."""

    kind: Literal["inverse-square-root"]
    warmup_steps: PositiveInt = 4000
    """Steps from zero to the peak rate."""


Schedule = Annotated[Constant | Linear | Cosine | InverseSquareRoot, Field(discriminator="kind")]


class Evaluation(Spec):
    """Validation while training."""

    every: PositiveInt = 250
    """Steps between validations; the last step always validates."""
    epochs: PositiveFloat | None = None
    """Epochs over a table between validations, which then determine `every`; at most 20 validations in all."""
    tokens: PositiveInt | None = 100_000
    """Validation tokens scored each time, the same ones every time; null for all."""
    metric: Literal["auto", "loss", "accuracy", "macro-f1", "correlation", "f1", "exact"] = "loss"
    """Metric that selects the best checkpoint, the loss among equal ones; all but loss are for heads. f1 is of entities
    for tagging, and of words for question-answering, as exact is of whole answers. Auto, for tables, is accuracy where
    each row has one class or words have plain tags, f1 for entities and answers, and else loss."""
    baseline: bool = False
    """At the end, compare with a 5-gram model of the same text, in bits per byte; for causal language models."""
    gradient_norms: bool = False
    """Log, at each validation, the norm of the gradient of a loss in the states up to 64 steps before it; for causal
    language models trained by gradients."""
    num_beams: Annotated[int, Field(gt=0, le=4096)] = 1
    """Beam width of the final evaluation on tables, for objective seq2seq; 1 is greedy."""
    patience: PositiveInt | None = None
    """Early stopping after this many validations without a new best; null for none."""
    prompts: Strings | None = None
    """Prompts to continue at each validation, as samples of the model. Null takes the beginning of the validation text,
    where the model continues texts; [] writes no samples."""
    sample_tokens: PositiveInt = 64
    """Length of those samples."""

    @model_validator(mode="after")
    def _prompts_are_text(self) -> Self:
        try:
            "".join(self.prompts or ()).encode()
        except UnicodeEncodeError as error:
            raise ValueError("prompts hold a character that UTF-8 cannot encode") from error
        return self


class Checkpointing(Spec):
    """Checkpoints during training."""

    every: PositiveInt = 250
    """Steps between checkpoints; the last step always saves one."""
    keep_last: PositiveInt = 2
    """Number of newest checkpoints to keep; the best one is kept too."""
    keep_optimizer: bool = False
    """Keep the optimizer state of a finished run, so that more steps are bitwise those of an unbroken training."""
    background: bool = False
    """Write checkpoints while training goes on, from a copy of weights and moments in CPU memory."""


LoggerName = Literal["tensorboard", "wandb", "mlflow"]


class Recipe(Spec):
    """Everything that determines a training run."""

    description: str = ""
    """One line for `lmtool recipes ls`."""
    seed: Annotated[int, Field(ge=0, lt=2**53)] = 1
    """Seed of weights, order, dropout and samples."""
    model: Model
    """The network."""
    objective: AnyObjective = Causal()
    """The training objective."""
    tokenizer: AnyTokenizer = BpeTokenizer()
    """The tokenizer."""
    data: Data = Data()
    """The training and validation text."""
    training: Training
    """Length, batch and device."""
    tuning: Tuning = Tuning()
    """Which weights are fine-tuned, and at which learning rates."""
    distillation: Distillation = Distillation()
    """A teacher, and how its pupil learns from it; none by default."""
    optimizer: Optimizer = AdamW()
    """The optimizer."""
    schedule: Schedule = Cosine()
    """The learning rate schedule."""
    evaluation: Evaluation = Evaluation()
    """Validation while training."""
    checkpoint: Checkpointing = Checkpointing()
    """Checkpoints during training."""
    logging: Annotated[tuple[LoggerName, ...], Field(strict=False)] = ()
    """Other dashboards to log to, besides the run directory; each is an extra, such as lmtool[tensorboard]."""

    @property
    def text(self) -> Data:
        """The data; never streamed by default where the rest of the recipe needs all of the text at once."""
        if self.data.stream != "auto" or not any(_streaming_mistakes(self)):
            return self.data
        return self.data.model_copy(update={"stream": False})

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        mistakes = []
        learns = objectives_of(self.model)
        if self.objective.kind not in learns:
            mistakes.append(
                f"objective.kind {self.objective.kind} is not for a {self.model.title}, which learns "
                f"{' or '.join(learns)}"
            )
        if isinstance(self.objective, Masked) and isinstance(self.model, Transformer) and self.objective.next_sentence:
            if not self.model.next_sentence_head:
                mistakes.append("model.next_sentence_head false leaves objective.next_sentence without a head")
            if self.model.n_segments < 2:
                mistakes.append("model.n_segments is below 2, but objective.next_sentence makes rows of two texts")
        if isinstance(self.objective, ReplacedTokens) and isinstance(self.model, Transformer):
            try:
                generator_of(self.model, self.objective)
            except ValidationError as error:
                why = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
                mistakes.append(f"objective.generator_size {self.objective.generator_size} does not fit: {why}")
        if isinstance(self.model, NGram) and isinstance(self.objective, Causal) and self.objective.scheduled_sampling:
            mistakes.append("objective.scheduled_sampling is for models trained by gradients, not for ngram models")
        if isinstance(self.model, Transformer) and _predicts_tokens(self.objective):
            narrow = self.model.embedding_width is not None
            if narrow and self.model.tie_embeddings and not self.model.head_transform:
                mistakes.append("model.tie_embeddings needs model.head_transform, from d_model to embedding_width")
        if self.training.carry_state and self.model.title != "recurrent decoder":
            mistakes.append(f"training.carry_state is for a recurrent decoder, not for a {self.model.title}")
        if self.training.carry_state and isinstance(self.model, Recurrent) and self.model.attention is not None:
            mistakes.append("training.carry_state would carry all past states of model.attention, more at each step")
        if self.training.carry_state and self.data.mixture:
            mistakes.append("training.carry_state carries the state along one text; data.mixture has several")
        if self.data.mixture and isinstance(self.objective, HeadSpec | Seq2Seq | WeightedCounts):
            mistakes.append(f"data.mixture is for windows of text, which objective {self.objective.kind} does not read")
        if self.data.mixture and self.model.counts:
            mistakes.append(f"data.mixture is for gradients; a model of kind {self.model.kind} reads a text once")
        if self.training.carry_state and self.data.isolate_documents:
            mistakes.append("training.carry_state carries the state across documents; data.isolate_documents does not")
        if self.data.stream is True:
            mistakes += _streaming_mistakes(self)
        if self.training.recompute == "layers" and not isinstance(self.model, Transformer):
            mistakes.append(f"training.recompute layers is for a Transformer, not for a {self.model.title}")
        if self.training.shard == "full" and not isinstance(self.model, Transformer):
            mistakes.append(f"training.shard full is for a Transformer, not for a {self.model.title}")
        mistakes += _tuning_mistakes(self.model, self.objective, self.tuning)
        if self.distillation.teacher is not None:
            mistakes += _teaching_mistakes(self.model, self.objective, self.training)
        mistakes += _feature_mistakes(self.model, self.objective)
        mistakes += _length_mistakes(self.model, self.objective, self.training)
        reveals = isinstance(self.model, Transformer) and not self.model.causal_mask
        if self.evaluation.baseline and reveals:
            mistakes.append("evaluation.baseline compares losses, which are no measure without model.causal_mask")
        if self.evaluation.baseline and (self.model.counts or not isinstance(self.objective, Causal)):
            mistakes.append(
                "evaluation.baseline compares causal language models that are trained by gradients, not a "
                f"{self.model.title} with objective {self.objective.kind}"
            )
        if self.evaluation.gradient_norms and (self.model.counts or not isinstance(self.objective, Causal)):
            mistakes.append(
                "evaluation.gradient_norms are of causal language models that are trained by gradients, not of a "
                f"{self.model.title} with objective {self.objective.kind}"
            )
        if self.evaluation.prompts and self.model.reads == "words":
            mistakes.append(f"evaluation.prompts are for generative models, which {self.model.kind} models are not")
        if self.evaluation.prompts and self.model.reads == "both" and not isinstance(self.objective, Masked):
            mistakes.append(
                f"evaluation.prompts are for generative models; a {self.model.title} fills masks, which objective "
                f"{self.objective.kind} does not train"
            )
        settles = self.evaluation.metric == "auto" and isinstance(self.objective, Seq2Seq)
        if self.evaluation.metric != "loss" and not settles and not isinstance(self.objective, HeadSpec):
            mistakes.append(
                f"evaluation.metric {self.evaluation.metric} is for objective classification, not for objective "
                f"{self.objective.kind}; take loss"
            )
        if isinstance(self.objective, Classification):
            mistakes += _head_mistakes(self.model, self.objective)
        if isinstance(self.tokenizer, BpeTokenizer) and self.tokenizer.dropout and self.objective.kind != "seq2seq":
            mistakes.append(f"tokenizer.dropout is for objective seq2seq, not for objective {self.objective.kind}")
        sentinels = 0 if isinstance(self.tokenizer, TokenizerFile) else self.tokenizer.sentinels
        if isinstance(self.objective, SpanCorruption) and not sentinels and self.tokenizer.kind != "file":
            mistakes.append(
                "tokenizer.sentinels 0 is too few for span corruption, which needs one for each span; take 100"
            )
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return self


def _streaming_mistakes(recipe: Recipe) -> Iterator[str]:
    """What needs all of a text at once."""
    objective = recipe.objective
    if isinstance(objective, HeadSpec | Seq2Seq):
        yield f"data.stream is for text, and objective {objective.kind} for tables"
    elif recipe.model.counts or isinstance(objective, WeightedCounts):
        yield f"data.stream is for windows of text, and a model of kind {recipe.model.kind} counts all of it"
    if isinstance(objective, Masked) and objective.next_sentence:
        yield "data.stream is for windows of text, and objective.next_sentence draws from all documents"
    if recipe.training.carry_state:
        yield "data.stream shuffles windows, and training.carry_state reads them in order"
    if recipe.training.epochs is not None:
        yield "data.stream does not know how long an epoch is; take training.steps, tokens or minutes"


TAUGHT = ("causal", "masked", "span-corruption", "prefix", "seq2seq", "classification")
"""Kinds of objectives that a teacher can help with."""


def _teaching_mistakes(model: Model, objective: AnyObjective, training: Training) -> Iterator[str]:
    """What a student cannot have."""
    if model.counts:
        yield f"distillation.teacher is for models trained by gradients, not for {model.kind} models"
    elif objective.kind not in TAUGHT:
        yield f"distillation.teacher is for objectives {', '.join(TAUGHT)}, not for {objective.kind}"
    if training.carry_state:
        yield "distillation.teacher reads each row by itself, and training.carry_state does not"
    if training.compile is True:
        yield "distillation.teacher is for training.compile false or auto: what a compiled model reads is not seen"


def generator_of(model: Transformer, objective: ReplacedTokens) -> Transformer:
    """The generator of replaced tokens for a model: narrower, with heads as wide and layers as many."""
    share = objective.generator_size
    smaller = {
        "d_model": max(1, round(share * model.d_model)),
        "n_heads": max(1, round(share * model.n_heads)),
        "head_width": model.head_width or model.d_model // model.n_heads,
        "n_kv_heads": None,
        "d_ff": max(1, round(share * model.inner_width)) if model.inner_width else 0,
        "embedding_width": (model.embedding_width or model.d_model) if objective.share_embeddings else None,
        "tie_embeddings": True,
        "head_transform": True,
        "head_bias": True,
        "next_sentence_head": False,
    }
    return Transformer.model_validate(model.model_dump() | smaller)


def _length_mistakes(model: Model, objective: AnyObjective, training: Training) -> list[str]:
    """Lengths that a run cannot have."""
    if model.counts:
        given = [key for key in ("epochs", "tokens", "minutes") if getattr(training, key) is not None]
        return [f"training.{key} is for gradients; a model of kind {model.kind} reads a text once" for key in given]
    if isinstance(objective, HeadSpec | Seq2Seq):
        given = [key for key in ("tokens", "minutes") if getattr(training, key) is not None]
        return [f"training.{key} is for text; on tables take training.epochs" for key in given]
    return []


def _head_mistakes(model: Model, head: Classification) -> list[str]:
    """Settings of a head that its body does not support."""
    mistakes = []
    if head.lm_weight and (not isinstance(model, Transformer | Recurrent) or model.shape != "decoder"):
        mistakes.append(f"objective.lm_weight {head.lm_weight} is for decoders, which predict the next token")
    if head.lm_weight and head.layers != "last":
        mistakes.append(f"objective.lm_weight needs the states of the last layer, not objective.layers {head.layers}")
    if head.single_score and (head.task not in ("auto", "class") or len(head.labels) not in (0, 2)):
        mistakes.append("objective.single_score is for two classes")
    if head.single_score and isinstance(model, Averaging) and model.log_ratios:
        mistakes.append("objective.single_score has no log ratio of each class, which model.log_ratios sets")
    if head.dense_norm and not isinstance(model, Transformer):
        mistakes.append(f"objective.dense_norm is as model.norm, which a {model.title} does not have")
    if head.dense_norm and isinstance(model, Transformer) and model.norm.kind == "none":
        mistakes.append("objective.dense_norm is as model.norm, which has kind none")
    if isinstance(model, Averaging):
        if head.pool != "auto":
            mistakes.append(f"objective.pool {head.pool} has no effect: an averaging model already takes the mean")
        if head.layers != "last":
            mistakes.append(f"objective.layers {head.layers} has no effect: an averaging model has none below its mean")
        if head.dense != "none" or head.dense_norm:
            mistakes.append("objective.dense has no effect: an averaging model has model.n_layers")
        if model.one_hot and head.dropout:
            mistakes.append("objective.dropout is for vectors; with model.one_hot take 0, and model.word_dropout")
    return mistakes


def _predicts_tokens(objective: AnyObjective) -> bool:
    """Whether the model's own logits are used."""
    if isinstance(objective, Classification):
        return objective.lm_weight > 0
    return not isinstance(objective, Tagging | QuestionAnswering | Embedding | ReplacedTokens)


def _feature_mistakes(model: Model, objective: AnyObjective) -> list[str]:
    if not isinstance(model, Recurrent | Averaging) or model.features is None:
        return []
    if not isinstance(objective, Classification):
        return [f"model.features are for objective classification, not for objective {objective.kind}"]
    if objective.lm_weight:
        return [f"objective.lm_weight {objective.lm_weight} is for models that do not read ahead, as model.features do"]
    return []


def _tuning_mistakes(model: Model, objective: AnyObjective, tuning: Tuning) -> list[str]:
    mistakes = []
    if isinstance(model, NGram | SkipGram | Glove | Ppmi) and tuning != Tuning():
        mistakes.append(f"tuning is for models with layers, which {model.kind} models do not have")
    elif tuning.lora is not None and not isinstance(model, Transformer):
        mistakes.append(f"tuning.lora adapts the matrices of a Transformer, which {model.kind} models do not have")
    elif tuning.lora is not None and isinstance(objective, ReplacedTokens):
        mistakes.append("tuning.lora would leave the generator and the detector of objective replaced-tokens untrained")
    if tuning.freeze == "body" and not isinstance(objective, HeadSpec):
        mistakes.append(f"tuning.freeze body leaves nothing to train: objective {objective.kind} puts no head on it")
    if tuning.freeze == "body" and isinstance(objective, Classification) and objective.lm_weight:
        mistakes.append(f"objective.lm_weight {objective.lm_weight} has no effect under tuning.freeze body")
    return mistakes


def objectives_of(model: Model) -> tuple[str, ...]:
    """The kinds of objective that a model supports, the default one first."""
    match model:
        case Transformer(shape="decoder", causal_mask=False):
            return ("causal", "classification")
        case Transformer(shape="decoder") | Recurrent(shape="decoder"):
            return ("causal", "classification", "tagging", "question-answering", "seq2seq")
        case NGram():
            return ("causal",)
        case Transformer(shape="encoder"):
            return ("masked", "replaced-tokens", "classification", "tagging", "question-answering", "embedding")
        case Transformer(shape="prefix"):
            return ("prefix", "seq2seq", "span-corruption")
        case Transformer() | Recurrent(shape="encoder-decoder"):
            return ("seq2seq", "span-corruption", "prefix")
        case Recurrent():
            return ("bidirectional", "classification", "tagging", "question-answering")
        case SkipGram():
            return ("skip-gram", "cbow")
        case Glove():
            return ("glove",)
        case Ppmi():
            return ("cooccurrence",)
        case Averaging():
            return ("classification",)
