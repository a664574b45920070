"""Training objectives."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from lmtool.recipe.spec.base import Fraction, Spec, Strings
from lmtool.recipe.spec.model import ModelSpec
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.transformer import Transformer
from lmtool.recipe.spec.words import Averaging, Glove, NGram, Ppmi, SkipGram


class ScheduledSampling(Spec):
    """Scheduled sampling: replace inputs by samples of the model, with growing probability (Bengio et al. 2015)."""

    growth: Literal["linear", "exponential", "inverse-sigmoid"] = "linear"
    """Decay of the probability of a true token after i percent of training: linear 1 - k i, exponential
    k^i, or inverse-sigmoid k / (k + exp(i / k))."""
    k: PositiveFloat | None = None
    """Decay rate; by default 0.01 for linear, 0.98 for exponential, 15 for inverse-sigmoid."""
    floor: Fraction = 0.0
    """Minimum probability of a true token."""

    def mistakes(self) -> Iterator[str]:
        if self.k is not None and self.growth == "exponential" and self.k >= 1:
            yield f"k {self.k} is not below 1, so that exponential decay never starts"
        if self.k is not None and self.growth == "inverse-sigmoid" and self.k < 1:
            yield f"k {self.k} is below 1, where inverse-sigmoid decay ends at the first step"


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
    """Select each token with probability `rate`, and draw what becomes of it, by itself; else these are fractions of
    each row, rounded so that they hold on average."""
    spans: SpanMasking | None = None
    """Mask spans instead of single tokens."""
    whole_words: bool = False
    """Select words with all of their tokens, in place of single tokens: `rate`, the shares and the lengths of spans are
    then of words (whole-word masking, Devlin et al. 2019; Cui et al. 2019)."""
    permutation: bool = False
    """Predict the selected tokens in a random order, each from all others but those that follow in that order, by a
    second stream of positions: permutation language modelling (XLNet, Yang et al. 2019). Nothing is masked."""
    next_sentence: bool = False
    """Rows are [CLS] A [SEP] B [SEP], half of them with a B that does not follow A: next-sentence prediction (BERT)."""
    span_boundary: bool = False
    """Predict each token of a span also from the states of the tokens beside the span, and its place in it: the span
    boundary objective (SpanBERT, Joshi et al. 2020)."""
    sentence_order: bool = False
    """Rows are [CLS] A [SEP] B [SEP], half of them with the two parts of a text swapped: sentence-order prediction
    (ALBERT, Lan et al. 2020)."""

    @property
    def pair_objective(self) -> str:
        """The key by which rows are of two texts; empty where they are of one."""
        return "next_sentence" if self.next_sentence else "sentence_order" if self.sentence_order else ""

    def mistakes(self) -> Iterator[str]:
        if self.next_sentence and self.sentence_order:
            yield "sentence_order swaps parts of a text, and next_sentence takes another text's; omit one of the two"
        if self.mask_share + self.random_share > 1:
            yield f"random_share {self.random_share} and mask_share {self.mask_share} sum to more than 1"
        elif self.independent and self.spans is not None:
            yield "independent draws each by itself, not spans; omit one of the two"
        for key in ("span_boundary", "next_sentence", "sentence_order"):
            if self.permutation and getattr(self, key):
                yield f"permutation is for rows of one text without masks, and {key} is not; omit one of the two"
        if self.permutation and (self.mask_share, self.random_share) != (0.8, 0.1):
            yield "permutation replaces no token, so that mask_share and random_share have no effect; omit them"
        if self.span_boundary and self.spans is None:
            yield "span_boundary is of masked spans; set spans too, such as {p: 0.2, max_length: 10}"


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


class SkipGramPrediction(Spec):
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


class CbowPrediction(SkipGramPrediction):
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
    layers: Literal["last", "mix", "mix-hidden"] | NonNegativeInt = "last"
    """The hidden states to pool: of the last layer, or a learned scalar mix of the embeddings and all layers (ELMo), or
    of all layers without the embeddings; or of one layer, by its number, 0 being the embeddings."""
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
    contrastive: bool = False
    """For classes: train vectors of texts whose cosine is 1 within a class and 0 between two, and fit the head to them
    by L-BFGS, before each validation and at the end (SetFit; Tunstall et al. 2022); for few rows."""
    label_smoothing: Fraction = 0.0
    """Label smoothing: probability eps moved from the true class to the others (Szegedy et al. 2016)."""
    class_weights: Literal["balanced"] | Annotated[tuple[NonNegativeFloat, ...], Field(strict=False)] | None = None
    """Loss weight of each class; balanced is n / (C n_c) for C classes, n_c of n rows being of class c, so that all
    classes have equal total weight; null for equal weights."""
    temperature: PositiveFloat | None = None
    """The scores are divided by it for the probabilities of classes or labels; chosen on the held-out rows by
    default."""
    thresholds: Annotated[tuple[Fraction, ...], Field(strict=False)] | None = None
    """Of several labels: the probability above which each is predicted; chosen on the held-out rows by default."""

    @property
    def mixes_layers(self) -> bool:
        """Whether the head reads a learned scalar mix of layers."""
        return self.layers in ("mix", "mix-hidden")


class PerTokenHeadBase(Spec):
    """Base of the heads that score each token."""

    layers: Literal["last", "mix"] | NonNegativeInt = "last"
    """The hidden states to score: of the last layer, or a learned scalar mix of embeddings and all layers (ELMo), or of
    one layer, by its number, 0 being the embeddings."""
    dropout: Fraction = 0.1
    """Dropout of these states."""


class Tagging(PerTokenHeadBase):
    """Predict a tag for each word of a sentence, from the state of its first token."""

    kind: Literal["tagging"]
    labels: Strings = ()
    """The tags, in the order of the scores; inferred from the training table when empty."""
    crf: bool = False
    """A linear-chain conditional random field over the tags of a sentence (Lafferty et al. 2001; Lample et al. 2016),
    instead of a softmax for each word."""


class QuestionAnswering(PerTokenHeadBase):
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
    """Vectors of whole texts, near each other where the rows of a table say so (Reimers and Gurevych 2019)."""

    kind: Literal["embedding"]
    loss: Literal["auto", "ranking", "cosent", "triplet", "labels"] = "auto"
    """Ranking: the second text of a row is nearer to the first one than those of other rows, and than further texts of
    its own (InfoNCE; MultipleNegativesRanking). Cosent: pairs of a higher number are nearer (CoSENT). Triplet: the
    second text is nearer to the first than the third is, by `margin`. Labels: texts of one label are near each other
    (supervised contrastive, Khosla et al. 2020). Auto takes that of the table: ranking for rows of several texts,
    cosent with a number, labels for a text with a label."""
    pool: Literal["first", "last", "mean", "max"] = "mean"
    """Pooling of the hidden states of a text, special tokens included."""
    normalize: bool = False
    """Scale vectors to length one."""
    scale: PositiveFloat = 20.0
    """Factor of the cosines in a loss: 1 / temperature."""
    margin: PositiveFloat = 0.3
    """Of loss triplet, in cosines."""
    dims: Annotated[tuple[PositiveInt, ...], Field(strict=False)] = ()
    """Also train the first so many numbers of each vector, such as [256, 128, 64], so that vectors can be cut
    (Matryoshka; Kusupati et al. 2022)."""


HeadSpec = Classification | Tagging | QuestionAnswering
"""Objectives that put a head on a model, which the rows of a table train."""

RowSpec = HeadSpec | Seq2Seq | Embedding
"""Objectives that the rows of a table train."""


AnyObjective = Annotated[
    Causal
    | Bidirectional
    | Masked
    | ReplacedTokens
    | SpanCorruption
    | Prefix
    | Seq2Seq
    | SkipGramPrediction
    | CbowPrediction
    | WeightedCounts
    | WindowCounts
    | HeadSpec
    | Embedding,
    Field(discriminator="kind"),
]


def supported_objectives(model: ModelSpec) -> tuple[str, ...]:
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
    raise ValueError(f"no objective is for {model!r:.60}")


def uses_language_model_head(objective: AnyObjective) -> bool:
    """Whether the model's own logits are used."""
    if isinstance(objective, Classification):
        return objective.lm_weight > 0
    return not isinstance(objective, Tagging | QuestionAnswering | Embedding | ReplacedTokens)
