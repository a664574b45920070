"""Transformers, and their parts."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from lmtool.recipe.spec import position as positions
from lmtool.recipe.spec.base import Fraction, Spec
from lmtool.recipe.spec.model import InitialEmbeddingsModelSpec, Reads

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
    bias: bool | None = None
    """Biases of LayerNorms (StableLM has no others); as the bias of the model by default."""
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


def find_score_mistakes(score: ScoreName, rank: int | None, score_width: int | None) -> Iterator[str]:
    """Sizes of other attention scores."""
    if rank is not None and score != "reduced-rank":
        yield f"rank is for a reduced-rank score, not for score {score}"
    if score_width is not None and score != "additive":
        yield f"score_width is for an additive score, not for score {score}"


MixerName = Literal["attention", "plain-attention"]


class DenseFeedForward(Spec):
    """The position-wise feed-forward network (Vaswani et al. 2017)."""

    kind: Literal["dense"] = "dense"


AnyFeedForward = DenseFeedForward


class FrequentNgramTable(Spec):
    """Embeddings of frequent n-grams of tokens, which the optimizer updates by Adagrad with one scale per row."""

    entries: PositiveInt = 131_072
    """Most n-grams with an embedding: the most frequent ones of the training text."""
    longest: Annotated[int, Field(ge=2, le=5)] = 3
    """Tokens of the longest n-grams; the shortest have two."""
    min_count: PositiveInt = 4
    """Fewest occurrences of an n-gram with an embedding."""


_SHAPE_OF_KEY = {
    "separate_inputs": "encoder-decoder",
    "next_sentence_head": "encoder",
    "span_boundary_head": "encoder",
    "n_segments": "encoder",
    "causal_mask": "decoder",
    "ngram_embedding": "decoder",
    "smear": "decoder",
}
"""Keys of one shape each, and this shape."""


class Transformer(InitialEmbeddingsModelSpec):
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
    residual_from: Literal["sublayer", "layer"] = "sublayer"
    """What the output of a sublayer is added to: the input of that sublayer, or that of its layer, so that a layer with
    norms in place post is norm(x + f(norm(x + attention(x))))."""
    context: PositiveInt
    """Context length in tokens."""
    activation: Literal["relu", "relu-squared", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-exact"] = "gelu"
    """Nonlinearity of the feed-forward network: ReLU, its square (Primer; So et al. 2021), exact GELU, its tanh
    approximation (GPT-2), SiLU, SwiGLU, GEGLU with the tanh approximation (T5 1.1), or with the exact GELU
    (ModernBERT)."""
    feed_forward: AnyFeedForward = DenseFeedForward()
    """The position-wise sublayer of each layer, with the width and the nonlinearity above."""
    mixer: MixerName = "attention"
    """The token mixer of each layer: attention, or plain-attention without maps, whose queries, keys and values are the
    states themselves, each head having its part of them."""
    position: positions.Position = positions.LearnedPosition()
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
    attention_gate: Literal["none", "headwise", "elementwise"] = "none"
    """What self-attention gives is multiplied by sigmoid(W x), one gate for each head or each number, x being what the
    queries are made of (Qiu et al. 2025, Gated Attention for Large Language Models)."""
    parallel: bool = False
    """The sublayers of a layer read the same input, and their outputs are added at once (GPT-NeoX)."""
    x0: bool = False
    """The input of each layer is a x + b x0, x0 being the embeddings, with two learned scalars of the layer, at first 1
    and 0 (modded-nanogpt; Jordan et al. 2024)."""
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
    span_boundary_head: bool = False
    """Two layers that predict a token of a span from the states beside it and its place (SpanBERT)."""
    dropout: Fraction = 0.0
    """Dropout of embeddings, attention weights and the output of each sublayer."""
    ffn_dropout: Fraction = 0.0
    """Dropout inside the feed-forward network, after the nonlinearity."""
    init: Init = Init()
    """Initial weights."""
    ngram_embedding: FrequentNgramTable | None = None
    """Add to the embedding of a token those of the n-grams that end with it, in a decoder (Huang et al. 2025)."""
    smear: bool = False
    """Add to the embedding of a token that of the one before it, by a gate that reads the token and a learned scalar,
    at first 0, in a decoder (modded-nanogpt; nanochat, Karpathy 2025)."""

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

    def mistakes(self) -> Iterator[str]:
        sizes = [*super().mistakes(), *self._size_mistakes()]
        yield from sizes
        full_layers = self.pattern.full_layers if isinstance(self.pattern, WindowPattern) else ()
        if isinstance(self.position, positions.RotaryPosition) and not sizes:
            yield from self._rotary_mistakes(self.position, full_layers)
        if isinstance(self.position, positions.DisentangledPosition):
            if self.score != "scaled-dot":
                yield f"score {self.score} has no effect: position disentangled has its own; take scaled-dot"
            if self.n_kv_heads not in (None, self.n_heads):
                yield f"n_kv_heads {self.n_kv_heads} shares keys, which position disentangled has for each head"
            if isinstance(self.pattern, WindowPattern):
                yield "pattern window is computed in blocks, which position disentangled is not; take full"
        if full_layers and max(full_layers) >= self.n_layers:
            yield f"pattern.full_layers has layer {max(full_layers)}; n_layers {self.n_layers} count from 0"
        if self.qk_norm != "none" and self.score not in ("dot", "scaled-dot"):
            yield f"qk_norm {self.qk_norm} is for scores dot and scaled-dot, not for score {self.score}"
        yield from self._norm_mistakes()
        if self.d_ff == 0 and self.ffn_dropout:
            yield f"ffn_dropout {self.ffn_dropout} has no effect: with d_ff 0 there is no feed-forward network; take 0"
        yield from self._residual_and_mixer_mistakes()
        if self.score not in ("dot", "scaled-dot") and self.n_kv_heads not in (None, self.n_heads):
            yield f"n_kv_heads {self.n_kv_heads} shares keys, which score {self.score} has for each head"
        yield from find_score_mistakes(self.score, self.rank, self.score_width)
        for key, shape in _SHAPE_OF_KEY.items():
            if self.shape != shape and getattr(self, key) != type(self).model_fields[key].default:
                one_text = ", whose rows hold one text" if key == "n_segments" else ""
                yield f"{key} is for shape {shape}, not for shape {self.shape}{one_text}"

    def _size_mistakes(self) -> Iterator[str]:
        """Sizes that do not divide, or are too small for others."""
        if self.head_width is None and self.d_model % self.n_heads:
            yield f"n_heads {self.n_heads} does not divide d_model {self.d_model}"
        if self.n_kv_heads is not None and self.n_heads % self.n_kv_heads:
            yield f"n_kv_heads {self.n_kv_heads} does not divide n_heads {self.n_heads}"
        if isinstance(self.position, positions.LearnedPosition) and self.position.size is not None:
            size, offset = self.position.size, self.position.offset
            if self.context > size - offset:
                less = f" - position.offset {offset}" if offset else ""
                yield f"context {self.context} is longer than position.size {size}{less}"
        width = "d_model" if self.embedding_width is None else "embedding_width"
        if isinstance(self.position, positions.SinusoidalPosition) and getattr(self, width) % 2:
            yield f"{width} {getattr(self, width)} is odd; sinusoidal positions come in pairs"

    def _norm_mistakes(self) -> Iterator[str]:
        """Norms that other keys take away, or that layers do not have each."""
        norm = self.norm
        if norm.unit_offset and norm.kind != "rms":
            yield f"norm.unit_offset is for norm.kind rms, not for {norm.kind}"
        if norm.bias is not None and norm.kind != "layer":
            yield f"norm.bias is for norm.kind layer, not for {norm.kind}"
        if not norm.first and norm.place != "pre":
            yield f"norm.first is for norm.place pre; in place {norm.place} no norm comes first"
        if norm.kind == "none" and norm.embedding:
            yield "norm.embedding has no effect: norm.kind none normalises nothing; take false"
        if norm.kind == "none" and not norm.first:
            yield "norm.first has no effect: norm.kind none normalises nothing; take true"
        if not self.residual and norm.place == "output":
            yield "norm.place output is inside the residual connection, of which residual false has none; take post"
        if self.share_layers and not norm.first:
            yield "norm.first gives the first layer a norm less, but share_layers gives all the same weights"
        if self.parallel and norm.place == "post":
            yield "parallel sublayers have no residual sum each, which norm.place post normalises"

    def _residual_and_mixer_mistakes(self) -> Iterator[str]:
        """Ways to join sublayers, and maps of heads, that other keys take away."""
        if self.d_ff == 0 and self.parallel:
            yield "parallel has no effect: with d_ff 0 a layer has one sublayer; take false"
        if not self.residual and self.parallel:
            yield "parallel sublayers are added to what they read, which residual false does not do"
        if self.residual_from == "layer":
            if not self.residual:
                yield "residual_from has no effect: residual false adds to nothing; take sublayer"
            if self.parallel:
                yield "residual_from layer adds each sublayer by itself, parallel sublayers are added up; take sublayer"
            if self.shape == "encoder-decoder":
                yield "residual_from layer would lose self-attention behind the cross-attention; take sublayer"
            if self.d_ff == 0:
                yield "residual_from has no effect: with d_ff 0 a layer has one sublayer; take sublayer"
        if self.mixer == "plain-attention":
            of_maps = ("head_width", "value_width", "n_kv_heads", "qkv_bias")
            given = {key: getattr(self, key) for key in of_maps} | {
                "qk_norm": self.qk_norm,
                "attention_gate": self.attention_gate,
            }
            for key, value in given.items():
                if value not in (None, "none"):
                    yield f"{key} {value} is for heads with maps, which mixer plain-attention does not have"

    def _rotary_mistakes(self, position: positions.RotaryPosition, full_layers: tuple[int, ...]) -> Iterator[str]:
        turned = int((self.head_width or self.d_model // self.n_heads) * position.share)
        if turned % 2 or not turned:
            cause = f"n_heads {self.n_heads}" if self.head_width is None else f"head_width {self.head_width}"
            cause = f"position.share {position.share}" if position.share < 1 else cause
            yield f"{cause} gives {turned} rotated components a head; rotary positions come in pairs"
        if self.score not in ("dot", "scaled-dot"):
            yield f"score {self.score} transforms rotated queries and keys; take dot or scaled-dot"
        if position.window_theta is not None and not full_layers:
            yield "position.window_theta is for patterns with full_layers; take position.theta"
        if isinstance(position.scaling, positions.YarnScaling) and position.theta <= 1:
            yield f"position.theta {position.theta:g} is not above 1, so wavelengths do not grow as yarn scales them"
