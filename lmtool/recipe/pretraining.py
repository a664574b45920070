"""The default recipe of `lmtool pretrain`, chosen by the size and the shape of the text.

All rules are here; docs/pretrain.md has them as a table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lmtool.recipe.load import ResolvedRecipe, Setting, load
from lmtool.recipe.spec.objective import Causal, RowSpec
from lmtool.recipe.spec.transformer import Transformer

DEFAULT_RECIPE = "default"
"""Name of the default recipe, in the names of runs."""

INFERRED = "inferred from the text"
"""Origin of the values that are inferred from the text."""

BASELINE_KEY = "evaluation.baseline"

LENGTH_KEYS = {"training.steps", "training.epochs", "training.tokens", "training.minutes"}
"""Keys that set the length of training."""

DEFAULT_WIDTH = 160

CLOSED_VOCAB_RECIPE = "tiny"
"""The shipped recipe for text with a closed vocabulary."""

LARGE_TEXT_MB, LARGE_LIST_MB = 3.0, 0.8
"""Megabytes from which a text in pieces, or in characters, is read at most three times in DEFAULT_MINUTES on two CPU
cores."""

NGRAM_EMBEDDING_MB = 4.5
"""Megabytes from which n-grams of pieces have embeddings, which would memorize a shorter text."""

MAX_NGRAM_ENTRIES = 131_072
"""Limit of the n-grams with an embedding."""

DEFAULT_MINUTES, CLOSED_VOCAB_MINUTES = 3.75, 2.0
"""Wall-clock limits of the default recipe, from reading the text to the last measurement; the second for a closed
vocabulary."""

CLOSED_VOCAB_EPOCHS = 10
"""Limit of the epochs over a text with a closed vocabulary."""

MAX_MEAN_CHARACTERS = 40
"""Limit of the mean document length of a list that is tokenized by characters."""

MAX_ALPHABET = 512
"""Limit of the distinct characters for a token each."""

MAX_NEW_WORD_FRACTION = 1e-3
"""Below this fraction of new words a vocabulary is closed; natural text of a megabyte has 2 % and more."""

MIN_CLOSED_VOCAB_CHARACTERS = 300_000
"""Minimal length of a text whose vocabulary may be closed."""


@dataclass(frozen=True)
class TextStatistics:
    """Counts of the training text, on which the default recipe depends; in characters unless named otherwise.

    is_list: whether each line is a document.
    is_stream: whether it is one text without documents.
    longest: length of the longest document.
    alphabet: distinct characters.
    new_words: share of the words in the last tenth of the text that are not in the text before it.
    is_streamed: whether the counts are of its beginning only.
    """

    is_list: bool
    is_stream: bool
    documents: int
    characters: int
    n_bytes: int
    longest: int
    alphabet: int
    new_words: float
    is_streamed: bool = False

    @property
    def is_list_of_short_lines(self) -> bool:
        """Returns whether it is a list of short lines with few distinct characters."""
        return (
            self.is_list and self.characters <= MAX_MEAN_CHARACTERS * self.documents and self.alphabet <= MAX_ALPHABET
        )

    @property
    def is_closed(self) -> bool:
        """Returns whether the vocabulary is closed, as in text that a program has written."""
        return self.characters >= MIN_CLOSED_VOCAB_CHARACTERS and self.new_words < MAX_NEW_WORD_FRACTION


@dataclass(frozen=True)
class InferredChoice:
    """Settings that are inferred from the text.

    values: by dotted key.
    topic, reason: shown to the user if there is a reason.
    decided_by: a setting of one of these keys, or of a part of them, overrides the choice; by default the first key.
    """

    topic: str
    reason: str
    values: Mapping[str, object]
    decided_by: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """Returns the key that overrides the choice."""
        return next(iter(self.values))

    def is_overridden(self, keys: Sequence[str]) -> bool:
        """Returns whether one of the keys that the user has set overrides the choice."""
        pairs = [(f"{key}.", f"{deciding}.") for key in keys for deciding in self.decided_by or {self.key}]
        return any(key.startswith(deciding) or deciding.startswith(key) for key, deciding in pairs)

    def __str__(self) -> str:
        return f"{self.topic}: {self.reason} (-s {self.key})"


def resolve_default_recipe(settings: Sequence[Setting], text: TextStatistics | None = None) -> ResolvedRecipe:
    """Resolves the default recipe for a text with the user's settings, and describes each inferred choice.

    text: None before it is read; the sizes are then those of an average text.
    Raises RecipeError for settings that are wrong for every text.
    """
    keys = [setting.key for setting in settings]
    widths = [setting.value for setting in settings if setting.key == "model.d_model" and not setting.adds]
    width = widths[-1] if widths and isinstance(widths[-1], int) and widths[-1] > 0 else None
    layers = _choose_layer_sizes(width or DEFAULT_WIDTH)
    resolved = load(DEFAULT_RECIPE, settings, inferred=_to_settings([layers], keys))
    if text is None:
        return resolved
    model, objective = resolved.recipe.model, resolved.recipe.objective
    if model.counts or isinstance(objective, RowSpec):
        keys += LENGTH_KEYS
    is_decoder = isinstance(model, Transformer) and model.shape == "decoder"
    if text.is_closed:
        reason = f"{100 * text.new_words:.2g} % of the words in its last tenth are new"
        lines = [f"vocabulary: closed, {reason}; recipe {CLOSED_VOCAB_RECIPE} (-r)"]
        name, choices = CLOSED_VOCAB_RECIPE, infer_closed_vocab_text_choices(is_decoder, text.is_streamed)
    else:
        name, lines, choices = DEFAULT_RECIPE, [], infer_choices(text, width, is_decoder)
    inferred = [choice for choice in choices if not choice.is_overridden(keys)]
    told = (*lines, *(str(one) for one in inferred if one.reason))
    chosen = _to_settings(inferred, keys)
    if isinstance(objective, Causal) and not model.counts and BASELINE_KEY not in keys:
        chosen = [*chosen, Setting(BASELINE_KEY, True, INFERRED)]
    return replace(load(name, settings, inferred=chosen), inferred=told)


def infer_choices(text: TextStatistics, width: int | None = None, is_decoder: bool = True) -> list[InferredChoice]:
    """Infers the settings of the default recipe that depend on the text. width: of the model, if the user has set it.
    is_decoder: whether the model can have embeddings of n-grams."""
    megabytes = text.n_bytes / 1e6
    is_small = megabytes < 0.5
    is_large = megabytes >= (LARGE_LIST_MB if text.is_list_of_short_lines else LARGE_TEXT_MB)
    if text.is_list_of_short_lines:  # the context is the longest line, with equally many tokens in a step
        context = min(256, 32 * -(-(text.longest + 2) // 32))
        values = {"tokenizer.kind": "char", "model.context": context, "training.batch_size": 2048 // context}
        reason = f"characters, for lines of {text.characters / text.documents:.0f} on average"
        inferred = [InferredChoice("tokens", reason, values, frozenset({"tokenizer"}))]
    else:
        size = 1024 if megabytes < 0.1 else 2048 if megabytes < 0.5 else 4096
        reason = f"{size:,} pieces for {megabytes:.2g} MB"
        inferred = [InferredChoice("tokens", reason, {"tokenizer.vocab_size": size}, frozenset({"tokenizer"}))]
        # short windows for a page, which has few tokens, and for a large text, whose steps become faster
        context = 32 if megabytes < 0.01 else 256 if megabytes < LARGE_TEXT_MB else 128
        values = {"model.context": context, "training.batch_size": 2048 // context}
        inferred.append(InferredChoice("context", f"{context} tokens for {megabytes:.2g} MB", values))
    if text.is_list:
        reason = f"{text.documents:,} lines, each by itself"
        inferred.append(InferredChoice("documents", reason, {"data.isolate_documents": True}))
    if width is None:
        width = 128 if is_small else DEFAULT_WIDTH
        inferred.append(InferredChoice("model", f"{width} wide for {megabytes:.2g} MB", {"model.d_model": width}))
    if is_large and not text.is_list_of_short_lines:
        inferred.append(
            InferredChoice("layers", f"3 for {megabytes:.2g} MB, which time is short for", {"model.n_layers": 3})
        )
    inferred.append(_choose_layer_sizes(width))
    if is_decoder and megabytes >= (LARGE_LIST_MB if text.is_list_of_short_lines else NGRAM_EMBEDDING_MB):
        longest, min_count = (5, 3) if text.is_list_of_short_lines else (3, 8)
        reason = f"of n-grams of up to {longest} tokens too, for {megabytes:.2g} MB"
        table = {"entries": MAX_NGRAM_ENTRIES, "longest": longest, "min_count": min_count}
        inferred.append(InferredChoice("embeddings", reason, {"model.ngram_embedding": table}))
    dropout = 0.2 if is_small and not text.is_list_of_short_lines else 0.0 if is_large else 0.1
    reason = f"{dropout} for {megabytes:.2g} MB: kept with probability {1 - dropout:g}"
    inferred.append(InferredChoice("dropout", reason, {"model.dropout": dropout}))
    inferred.append(_choose_length(DEFAULT_MINUTES, 20 if is_small else 12, text.is_streamed))
    return inferred


def _choose_length(minutes: float, max_epochs: int, is_streamed: bool) -> InferredChoice:
    """Chooses minutes and at most so many passes, but no passes over a streamed text, whose length is not known."""
    values: dict[str, object] = {"training.minutes": minutes}
    reason = f"{minutes:g} minutes"
    if not is_streamed:
        values["training.epochs"] = max_epochs
        reason += f", or {max_epochs} passes over the text"
    return InferredChoice("length", reason, values, frozenset(LENGTH_KEYS))


def infer_closed_vocab_text_choices(is_decoder: bool = True, is_streamed: bool = False) -> list[InferredChoice]:
    """Returns the changes of the recipe for a closed vocabulary, so that two minutes are enough.

    is_decoder: whether the model can have embeddings of n-grams. is_streamed: whether the text is streamed.
    """
    inferred = [
        InferredChoice("documents", "each by itself", {"data.isolate_documents": True}),
        _choose_length(CLOSED_VOCAB_MINUTES, CLOSED_VOCAB_EPOCHS, is_streamed),
        InferredChoice("schedule", "", {"schedule.decay_fraction": 0.7}, frozenset({"schedule"})),
        InferredChoice("validation", "", {"evaluation.tokens": 10_000}),
    ]
    if is_decoder:
        table = {"entries": 32_768, "longest": 3, "min_count": 16}
        inferred += [
            InferredChoice("heads", "", {"model.n_heads": 4}, frozenset({"model.n_heads", "model.d_model"})),
            InferredChoice("embeddings", "of n-grams of up to 3 tokens too", {"model.ngram_embedding": table}),
        ]
    return inferred


def _choose_layer_sizes(width: int) -> InferredChoice:
    """Chooses heads of 64 or more, and a gated feed-forward network with as many weights as one of four widths."""
    heads = next((n for n in range(width // 64, 1, -1) if width % n == 0 and width // n % 2 == 0), 1)
    return InferredChoice("layers", "", {"model.n_heads": heads, "model.d_ff": 32 * max(1, round(width / 12))})


def _to_settings(inferred: Sequence[InferredChoice], keys: Sequence[str]) -> list[Setting]:
    return [Setting(key, value, INFERRED) for one in inferred for key, value in one.values.items() if key not in keys]
