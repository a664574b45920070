"""Models of words without order, and of counts."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from lmtool.recipe.spec.base import Fraction
from lmtool.recipe.spec.model import ModelSpec, Reads
from lmtool.recipe.spec.recurrent import PretrainedStatesModelSpec


class NGram(ModelSpec):
    """N-gram counts, by default smoothed by interpolated modified Kneser-Ney (Chen and Goodman 1999)."""

    counts: ClassVar[bool] = True

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

    @property
    def d_model(self) -> int:
        """Width of the state at a position: the number of context ids."""
        return max(1, self.order - 1)


class BagOfWordsModelSpecBase(ModelSpec):
    """Base of models of words without order."""

    @property
    def reads(self) -> Reads:
        return "words"


class SkipGram(BagOfWordsModelSpecBase):
    """Skip-gram: a centre and a context vector for each word (word2vec, Mikolov et al. 2013)."""

    kind: Literal["skipgram"]
    d_model: PositiveInt = 100
    """Width of the vectors."""
    context: PositiveInt = 256
    """Tokens of the window of text that an example is cut from."""


class Glove(BagOfWordsModelSpecBase):
    """GloVe: word vectors whose products are logarithms of co-occurrence counts (Pennington et al. 2014)."""

    kind: Literal["glove"]
    d_model: PositiveInt = 100
    """Width of the vectors."""
    context: PositiveInt = 256
    """Counts in a training row; in evaluation, tokens of the window of text that pairs are taken from."""


class Ppmi(BagOfWordsModelSpecBase):
    """Co-occurrence counts as positive pointwise mutual information, and its truncated SVD (Levy et al. 2015)."""

    counts: ClassVar[bool] = True

    kind: Literal["ppmi"]
    d_model: PositiveInt = 100
    """Width of the vectors, the rank of the SVD."""
    window: PositiveInt = 5
    """Words on each side of a word that count as its context."""
    context: PositiveInt = 256
    """Tokens of a row."""


class Averaging(PretrainedStatesModelSpec, BagOfWordsModelSpecBase):
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
    word_buckets: NonNegativeInt = 0
    """With tf_idf, for tokens that are characters: hash buckets of words and pairs of words, which are features too,
    with as much weight in all as the tokens and their n-grams; 0 for none."""
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

    @property
    def n_hashed(self) -> int:
        """Rows of hashed n-grams and words, after those of tokens."""
        return (self.buckets if self.ngrams > 1 else 0) + self.word_buckets

    @property
    def longest_row(self) -> int:
        longest = None if self.features is None else self.features.longest
        return self.context if longest is None else min(self.context, longest)

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        if self.embeddings is not None and self.one_hot:
            yield "embeddings are vectors, which one_hot words do not have"
        if self.freeze_embeddings and self.ngrams > 1:
            no_file = f"which no file has; ngrams is {self.ngrams}"
            yield f"freeze_embeddings would freeze the vectors of n-grams too, {no_file}"
        of_counts = [key for key in ("one_hot", "tf_idf", "ngrams") if getattr(self, key) > (key == "ngrams")]
        if self.features is not None and of_counts:
            yield f"features are states of tokens, of which the mean is taken; {of_counts[0]} is for counts"
        if self.one_hot and self.n_layers:
            yield f"n_layers {self.n_layers} has no effect with one_hot words; take 0"
        if self.word_buckets and not self.tf_idf:
            yield "word_buckets are of words that are weighted by tf_idf; set it"
        if self.log_ratios and not self.one_hot:
            yield "log_ratios are weights of single words, not of vectors; set one_hot"
        if self.log_ratios and self.word_dropout:
            yield f"word_dropout {self.word_dropout} is for means, which log_ratios do not compute; take 0"
