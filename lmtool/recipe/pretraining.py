"""The default recipe of `lmtool pretrain`, chosen by the size and the shape of the text.

All rules are here; docs/pretrain.md has them as a table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lmtool.recipe.load import Resolved, Setting, load
from lmtool.recipe.spec.objective import Causal, RowSpec
from lmtool.recipe.spec.transformer import Transformer

NAME = "default"
"""Name of the default recipe, in the names of runs."""

INFERRED = "inferred from the text"
"""Origin of the values that follow from the text."""

COMPARISON = "evaluation.baseline"

LENGTHS = {"training.steps", "training.epochs", "training.tokens", "training.minutes"}
"""Keys that set the length of training: who sets one sets the length."""

USUAL_WIDTH = 160

CLOSED = "tiny"
"""The shipped recipe for text with a closed vocabulary."""

LARGE, LARGE_LIST = 3.0, 0.8
"""Megabytes from which a text in pieces, or in characters, is read about three times at most in MINUTES on two CPU
cores: speed decides there."""

NGRAMS = 4.5
"""Megabytes from which n-grams of pieces have embeddings: those of a text that is read often learn it by heart."""

ENTRIES = 131_072
"""Most n-grams that have one."""

MINUTES, MINUTES_CLOSED = 3.75, 2.0
"""Wall-clock limits of the default recipe, from reading the text to the last measurement; the second one of a text with
a closed vocabulary, of which a model writes well sooner."""

PASSES_CLOSED = 10
"""Passes over a text with a closed vocabulary that the limit of time allows at most."""

CHARACTERS_MEAN = 40
"""Mean characters of a document up to which a list is read by characters."""

MOST_CHARACTERS = 512
"""Distinct characters up to which there is a token for each."""

NEW_WORDS = 1e-3
"""Share of new words below which the vocabulary of a text is closed: natural text of a megabyte has 2 % and more."""

LEAST_CLOSED = 300_000
"""Characters from which a closed vocabulary can be told."""


@dataclass(frozen=True)
class TextShape:
    """What the default recipe depends on: counts of the training text, in characters unless named otherwise.

    is_list: a document a line.
    is_stream: one text, without documents.
    longest: of a document.
    alphabet: distinct characters.
    new_words: share of the words in the last tenth of the text that are not in the text before it.
    is_streamed: these are counts of its beginning.
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
    def is_short(self) -> bool:
        """Whether it is a list of lines that are short enough to be read by characters, and of few different ones."""
        return self.is_list and self.characters <= CHARACTERS_MEAN * self.documents and self.alphabet <= MOST_CHARACTERS

    @property
    def is_closed(self) -> bool:
        """Whether the vocabulary is closed, as in text that a program wrote."""
        return self.characters >= LEAST_CLOSED and self.new_words < NEW_WORDS


@dataclass(frozen=True)
class Inferred:
    """Settings that follow from the text.

    values: by dotted key.
    topic, reason: what is told of them; nothing without a reason.
    decided_by: who sets one of these keys, or a part of them, makes this choice; the first one by default.
    """

    topic: str
    reason: str
    values: Mapping[str, object]
    decided_by: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """The setting that chooses otherwise."""
        return next(iter(self.values))

    def is_made(self, keys: Sequence[str]) -> bool:
        """Whether a person has made this choice with the keys that are set."""
        return any(_overlap(key, deciding) for key in keys for deciding in self.decided_by or {self.key})

    def __str__(self) -> str:
        return f"{self.topic}: {self.reason} (-s {self.key})"


def _overlap(one: str, other: str) -> bool:
    """Whether two dotted keys are the same, or one is a part of the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def default_recipe(settings: Sequence[Setting], shape: TextShape | None = None) -> Resolved:
    """The default recipe for a text, with what a person has set, and a line for each choice that the text made.

    shape: of the text; None before it is read: the sizes are then those of a usual text.
    Raises RecipeError for settings that are mistakes whatever the text.
    """
    width, keys = _width_in(settings), [setting.key for setting in settings]
    layers = _of_width(width or USUAL_WIDTH)
    usual = load(NAME, settings, chosen=_settings([layers], keys))
    if shape is None:
        return usual
    model, objective = usual.recipe.model, usual.recipe.objective
    if model.counts or isinstance(objective, RowSpec):
        keys += LENGTHS
    is_decoder = isinstance(model, Transformer) and model.shape == "decoder"
    if shape.is_closed:
        reason = f"{100 * shape.new_words:.2g} % of the words in its last tenth are new"
        lines = [f"vocabulary: closed, {reason}; recipe {CLOSED} (-r)"]
        name, choices = CLOSED, infer_closed(is_decoder)
    else:
        name, lines, choices = NAME, [], infer(shape, width, is_decoder)
    inferred = [choice for choice in choices if not choice.is_made(keys)]
    told = (*lines, *(str(one) for one in inferred if one.reason))
    chosen = _settings(inferred, keys)
    if isinstance(objective, Causal) and not model.counts and COMPARISON not in keys:
        chosen = [*chosen, Setting(COMPARISON, True, INFERRED)]
    return replace(load(name, settings, chosen=chosen), inferred=told)


def infer(shape: TextShape, width: int | None = None, is_decoder: bool = True) -> list[Inferred]:
    """The settings of the default recipe that depend on the text. width: of the model, where a person has set it.
    is_decoder: whether it can have embeddings of n-grams."""
    megabytes = shape.n_bytes / 1e6
    is_small, is_large = megabytes < 0.5, megabytes >= (LARGE_LIST if shape.is_short else LARGE)
    inferred = [_characters(shape)] if shape.is_short else [_pieces(megabytes), _context(megabytes)]
    if shape.is_list:
        reason = f"{shape.documents:,} lines, each by itself"
        inferred.append(Inferred("documents", reason, {"data.isolate_documents": True}))
    if width is None:
        width = 128 if is_small else USUAL_WIDTH
        inferred.append(Inferred("model", f"{width} wide for {megabytes:.2g} MB", {"model.d_model": width}))
    if is_large and not shape.is_short:
        inferred.append(Inferred("layers", f"3 for {megabytes:.2g} MB, which time is short for", {"model.n_layers": 3}))
    inferred.append(_of_width(width))
    if is_decoder and megabytes >= (LARGE_LIST if shape.is_short else NGRAMS):
        longest, min_count = (5, 3) if shape.is_short else (3, 8)
        reason = f"of n-grams of up to {longest} tokens too, for {megabytes:.2g} MB"
        table = {"entries": ENTRIES, "longest": longest, "min_count": min_count}
        inferred.append(Inferred("embeddings", reason, {"model.ngram_embedding": table}))
    dropout = 0.2 if is_small and not shape.is_short else 0.0 if is_large else 0.1
    reason = f"{dropout} for {megabytes:.2g} MB: kept with probability {1 - dropout:g}"
    inferred.append(Inferred("dropout", reason, {"model.dropout": dropout}))
    passes = 20 if is_small else 12
    length: dict[str, object] = {"training.minutes": MINUTES, "training.epochs": passes}
    reason = f"{MINUTES:g} minutes, or {passes} passes over the text"
    if shape.is_streamed:
        length, reason = {"training.minutes": MINUTES}, f"{MINUTES:g} minutes"
    inferred.append(Inferred("length", reason, length, frozenset(LENGTHS)))
    return inferred


def infer_closed(is_decoder: bool = True) -> list[Inferred]:
    """What the default changes in the recipe for a closed vocabulary, so that two minutes are enough."""
    length: dict[str, object] = {"training.minutes": MINUTES_CLOSED, "training.epochs": PASSES_CLOSED}
    reason = f"{MINUTES_CLOSED:g} minutes, or {PASSES_CLOSED} passes over the text"
    inferred = [
        Inferred("documents", "each by itself", {"data.isolate_documents": True}),
        Inferred("length", reason, length, frozenset(LENGTHS)),
        Inferred("schedule", "", {"schedule.decay_fraction": 0.7}, frozenset({"schedule"})),
        Inferred("validation", "", {"evaluation.tokens": 10_000}),
    ]
    if is_decoder:
        table = {"entries": 32_768, "longest": 3, "min_count": 16}
        inferred += [
            Inferred("heads", "", {"model.n_heads": 4}, frozenset({"model.n_heads", "model.d_model"})),
            Inferred("embeddings", "of n-grams of up to 3 tokens too", {"model.ngram_embedding": table}),
        ]
    return inferred


def _characters(shape: TextShape) -> Inferred:
    """A token for each character, in a context that holds the longest line, and as many tokens in a step as usual."""
    context = min(256, 32 * -(-(shape.longest + 2) // 32))
    values = {"tokenizer.kind": "char", "model.context": context, "training.batch_size": 2048 // context}
    reason = f"characters, for lines of {shape.characters / shape.documents:.0f} on average"
    return Inferred("tokens", reason, values, frozenset({"tokenizer"}))


def _pieces(megabytes: float) -> Inferred:
    """The more pieces the longer the text."""
    size = 1024 if megabytes < 0.1 else 2048 if megabytes < 0.5 else 4096
    reason = f"{size:,} pieces for {megabytes:.2g} MB"
    return Inferred("tokens", reason, {"tokenizer.vocab_size": size}, frozenset({"tokenizer"}))


def _context(megabytes: float) -> Inferred:
    """Short windows of a page, which has few tokens, and of a large text, whose steps they make faster."""
    context = 32 if megabytes < 0.01 else 256 if megabytes < LARGE else 128
    reason = f"{context} tokens for {megabytes:.2g} MB"
    return Inferred("context", reason, {"model.context": context, "training.batch_size": 2048 // context})


def _of_width(width: int) -> Inferred:
    """Heads of 64 or more, and a gated feed-forward network with as many weights as one of four times the width."""
    heads = next((n for n in range(width // 64, 1, -1) if width % n == 0 and width // n % 2 == 0), 1)
    return Inferred("layers", "", {"model.n_heads": heads, "model.d_ff": 32 * max(1, round(width / 12))})


def _width_in(settings: Sequence[Setting]) -> int | None:
    """The width that a person has set."""
    widths = [setting.value for setting in settings if setting.key == "model.d_model" and not setting.adds]
    return widths[-1] if widths and isinstance(widths[-1], int) and widths[-1] > 0 else None


def _settings(inferred: Sequence[Inferred], keys: Sequence[str]) -> list[Setting]:
    return [Setting(key, value, INFERRED) for one in inferred for key, value in one.values.items() if key not in keys]
