"""Training and validation data of a run. A text here; tables in `lmtool.tables.data`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.analysis.gradients import gradient_norms
from lmtool.checks.text import find_in_text
from lmtool.compute.device import Compute, choose_compute
from lmtool.compute.processes import World
from lmtool.data import bundled
from lmtool.data.blocks import BlockStores
from lmtool.data.prepare import Prepared, prepare, scored
from lmtool.data.store import TokenStore
from lmtool.data.survey import DividedText, Report
from lmtool.errors import DataError
from lmtool.inference.evaluation import Items, Validation, evaluate
from lmtool.inference.perplexity import HeldOut, TokenizedText, limit
from lmtool.model import LanguageModel
from lmtool.model.layers.ngrams import ngrams_of
from lmtool.objective import Cut, Loss, Objective, build_objective
from lmtool.printable import counted
from lmtool.recipe.spec.objective import Causal, WeightedCounts
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import TokenizerFile
from lmtool.run.files import StreamMark
from lmtool.run.order import MixtureOrder, hash_key
from lmtool.tables.data import TableData
from lmtool.tokenization.prompt_format import PromptFormat
from lmtool.tokenization.tokenizer import Tokenizer
from lmtool.training import comparison
from lmtool.training.comparison import ROW, TextResults
from lmtool.training.pairs import CountedPairs
from lmtool.training.streamed import StreamedMixture, StreamedWindows, streaming
from lmtool.training.windows import ExampleSource, Mixture, Windows

MOST_BACK = 64
"""Steps back over which gradient norms are logged."""

MOST_COUNTED = 10_000_000
"""Tokens of the training text in which n-grams are counted."""

LONGEST_PROMPT = 24
"""Characters of a prompt that is taken from the text."""


class TextData:
    """A text in token stores.

    recipe: with what is inferred from the data.
    prompt_format: how texts become model inputs.
    fingerprint: of the content.
    prompts: of the samples at each validation.
    unit: of counts of data.
    validation_tokens: those that a validation computes.
    lines: descriptions of the data.
    warnings: about the data.
    bytes_per_token: of the validation text that a causal model predicts, else None.
    is_measured: the best checkpoint is evaluated at the end.
    split: the held-out rows, to be saved in the run; None where they follow from the recipe, as of a text.
    per_epoch: examples of one pass; of a text that is streamed, estimated from its head.
    """

    unit = "token"
    split = None

    def __init__(self, prepared: Prepared, recipe: Recipe, *, is_foreign: bool = False) -> None:
        """is_foreign: the tokenizer was not trained on this text."""
        self._blocks: Sequence[BlockStores] = ()
        self._marks: Sequence[StreamMark] = ()
        rows = prepared.tokenizer.embedding_rows(recipe.model.vocab_size)
        self.recipe = recipe.with_values({"model.vocab_size": rows, "data": prepared.data})
        self.prompt_format = PromptFormat.of(self.recipe, prepared.tokenizer)
        self.fingerprint = prepared.fingerprint
        self._prepared = prepared
        self._is_foreign = is_foreign
        self._train, self._valid = prepared.train, prepared.valid
        self._held_out: HeldOut | None = None
        self._pairs: Windows | None = None

    @property
    def is_measured(self) -> bool:
        return self.recipe.evaluation.baseline

    @contextmanager
    def streaming(self, compute: Compute, marks: Sequence[StreamMark] = ()) -> Iterator[None]:
        """A context in which `examples` are of all the data, where these are read while a model trains; from a mark in
        each text, if there are any.

        Raises CheckpointError when what follows a mark has changed.
        """
        if not self._prepared.streamed:
            yield
            return
        with streaming(self._prepared, compute, marks) as self._blocks:
            self._marks = marks
            yield

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        texts = self._prepared.texts
        if bundled.limit([file for parts in texts for part in parts for file in part.text.corpus.files]) is not None:
            return ()  # a program wrote the text, and its results stand beside what can be reached at best
        tokenizer = self._prepared.tokenizer if self._is_foreign else None
        findings = (find_in_text(train, valid, tokenizer, None, brief=True) for train, valid in texts)
        told = dict.fromkeys(str(notice) for notices in findings for notice in notices)
        n_train, n_valid, data = len(self._train), len(self._valid), self.recipe.data
        share = n_valid / max(1, n_train + n_valid)
        if not data.valid and data.split == "document" and share > 2 * data.valid_fraction:
            n, n_all = self._valid.n_documents, self._train.n_documents + self._valid.n_documents
            what = f"{n:,} of {n_all:,} documents, with {100 * share:.0f} % of the tokens, are held out"
            told[f"{what}: -s data.split=slice holds out the end of the text, --valid FILE another"] = None
        return tuple(told)

    @property
    def lines(self) -> tuple[str, ...]:
        data = self.recipe.data
        is_stream = data.split == "slice"
        held_out = f"{self._valid.n_documents:,} document{'s' * (self._valid.n_documents != 1)}"
        if data.valid:
            held_out = ", ".join(data.valid)
        elif is_stream:
            held_out = f"the last {100 * data.valid_fraction:g} % of the text"
        n_documents = self._train.n_documents
        text = "one text" if is_stream else counted(n_documents, "document")
        if data.mixture:
            quotas = MixtureOrder(tuple(data.mixture.values()), 0).quotas
            text = ", ".join(
                f"{100 * n / MixtureOrder.BLOCK:g} % {name}" for name, n in zip(data.mixture, quotas, strict=True)
            )
        if self._prepared.streamed:
            n_files = sum(len(whole.head.files) for whole, _ in self._prepared.streamed)
            n_bytes = sum(whole.n_bytes for whole, _ in self._prepared.streamed)
            files = f"{counted(n_files, 'file')}, " if n_files else ""
            text = f"streamed, {files}{n_bytes / 1e6:,.3g} MB; at first {text}"
        return (f"text: {text}, {len(self._train):,} tokens; validation: {held_out}, {len(self._valid):,} tokens",)

    @property
    def holds_out(self) -> bool:
        """A part of a text, or another one, is always held out."""
        return True

    @property
    def bytes_per_token(self) -> float | None:
        if not isinstance(self.recipe.objective, Causal):
            return None
        n_bytes, n_tokens = scored(self._valid, self.prompt_format.tokenizer)
        return n_bytes / n_tokens if n_tokens else None

    @cached_property
    def prompts(self) -> tuple[str, ...]:
        """Those of the recipe; by default one that begins as the validation text, if the model continues texts."""
        if (prompts := self.recipe.evaluation.prompts) is not None:
            return prompts
        continues = self.recipe.model.reads in ("past", "source") and not self.prompt_format.answers
        if not continues:
            return ()
        return (beginning(self._valid, self.prompt_format.tokenizer, self.recipe.data.split == "slice"),)

    def token_counts(self) -> NDArray[np.int64]:
        """How often each id is in the training part, or in the head of one that is streamed."""
        return self._train.counts()

    def set_statistics(self, lm: LanguageModel) -> None:
        """Initialize a new model with statistics of the data, if its family uses any."""
        if lm.counts_V is not None:
            counts = torch.from_numpy(self.token_counts())
            counts[list(self.prompt_format.tokenizer.special_ids)] = 0
            # the embedding may have more rows than the tokenizer has entries
            lm.counts_V[: len(counts)] = counts
        for ngrams in ngrams_of(lm):
            ngrams.count(torch.from_numpy(self._train.sample(MOST_COUNTED)))

    def windows(self, objective: Objective) -> Windows:
        """Windows of the training text; of a stream those of its head, of a mixture those of its first text."""
        training, tokenizer = self.recipe.training, self.prompt_format.tokenizer
        lanes = training.batch_size if training.carry_state else None
        cut, marks = objective.cut(self.recipe.model.context), (tokenizer.bos_id, tokenizer.eos_id)
        return Windows(self._train, cut, self.recipe.seed, lanes, marks, self.recipe.data.isolate_documents)

    def check(self) -> None:
        """Raise DataError where the training or the validation text has no example."""
        self._examples(self._objective)

    def examples(self, objective: Objective) -> ExampleSource:
        """Training examples."""
        examples = self._examples(objective)
        if isinstance(self.recipe.objective, WeightedCounts):
            assert isinstance(examples, Windows)
            is_word_V = self.token_counts() > 0
            is_word_V[list(self.prompt_format.tokenizer.special_ids)] = False
            window, length = self.recipe.objective.window, self.recipe.model.context
            return CountedPairs.count(examples, is_word_V, window, length, self.recipe.seed)
        return examples

    def _examples(self, objective: Objective) -> Windows | Mixture | StreamedWindows | StreamedMixture:
        """Parts of the text, of which examples are made."""
        cut = objective.cut(self.recipe.model.context)
        marks = self.prompt_format.tokenizer.bos_id, self.prompt_format.tokenizer.eos_id
        if cut.unit != "stream":
            # here, so that a text that is too short raises before the first step
            self._pairs = Windows(self._valid, cut, self.recipe.seed, marks=marks)
        if objective.unit == "pair":
            for name, store in (("training", self._train), ("validation", self._valid)):
                if not _has_targets(store, objective, cut.length):
                    what = f"no two words of the {name} text are near each other in a document"
                    fix = "give more text, or make one text of it: -s data.documents=whole"
                    raise DataError(what, where=", ".join(self.recipe.data.sources), fix=fix)
        if self.recipe.data.mixture:
            return self._mixed(cut, marks)
        if self._blocks:
            return self._streamed(0, cut, self.recipe.seed)
        return self.windows(objective)

    def _mixed(self, cut: Cut, marks: tuple[int, int]) -> Mixture | StreamedMixture:
        """Windows of each text of the mixture, in proportion."""
        parts, mixture, seed = self._prepared.parts, self.recipe.data.mixture, self.recipe.seed
        for source, part in zip(mixture, parts, strict=True):
            if len(part) < cut.length:
                what = f"a text of the mixture has {counted(len(part), 'token')}, but an example needs {cut.length}"
                fix = "give more text, leave it out of data.mixture, or set model.context lower"
                raise DataError(what, where=source, fix=fix)
        apart = self.recipe.data.isolate_documents
        if self._blocks:
            streams = [self._streamed(n, cut, hash_key(seed, "text", n)) for n in range(len(parts))]
            return StreamedMixture(streams, list(mixture.values()), seed)
        texts = [Windows(part, cut, hash_key(seed, "text", n), None, marks, apart) for n, part in enumerate(parts)]
        return Mixture(texts, [part.n_documents for part in parts], list(mixture.values()), seed)

    def _streamed(self, n: int, cut: Cut, seed: int) -> StreamedWindows:
        """The windows of text n, from its mark on."""
        recipe, mark = self.recipe, self._marks[n] if self._marks else None
        apart = recipe.data.isolate_documents
        return StreamedWindows(self._blocks[n], cut, seed, recipe.training.batch_size, mark, apart)

    @property
    def n_train(self) -> int:
        """Tokens of the training text, or of the head of one that is streamed."""
        return len(self._train)

    @property
    def n_valid(self) -> int:
        """Tokens of the validation text."""
        return len(self._valid)

    @property
    def per_epoch(self) -> int:
        examples = self.examples(self._objective).per_epoch
        return examples if self._blocks else max(1, round(examples / self._share))

    @property
    def _objective(self) -> Objective:
        # those of word vectors need counts, which others do without
        counts = torch.from_numpy(self.token_counts()) if self.recipe.model.reads == "words" else None
        return build_objective(self.recipe, self.prompt_format.tokenizer, counts)

    @property
    def _share(self) -> float:
        """The share of the text that the stores hold, in tokens."""
        if not self._prepared.streamed:
            return 1.0
        held = [len(part) for part in self._prepared.parts]
        whole = sum(n / text.share for n, (text, _) in zip(held, self._prepared.streamed, strict=True))
        return sum(held) / whole

    def validate(self, lm: LanguageModel, objective: Objective, compute: Compute) -> Validation:
        """Loss and metrics on the validation part; computed by all processes together."""
        wanted = self.recipe.evaluation.tokens
        if self._pairs is not None:
            return _validate_pairs(self._pairs, wanted, lm, objective, compute)
        if self._held_out is None:
            longest = objective.window(self.recipe.model.context)
            self._held_out = HeldOut.of(self._valid, longest, wanted, self.recipe.seed)
        return self._held_out.validate(lm, objective, compute)

    @property
    def validation_tokens(self) -> int:
        return min(self.recipe.evaluation.tokens or len(self._valid), len(self._valid))

    def gradient_norms(self, lm: LanguageModel) -> dict[str, list[float | None]]:
        """See `GradientNorms`: of a loss near the beginning of the validation text, by steps back."""
        n_tokens = min(self.recipe.model.context, MOST_BACK) + 1
        tokens = self._valid.read(0, min(n_tokens, len(self._valid)))
        return gradient_norms(lm, tokens.tolist()).norms if len(tokens) > 1 else {}

    def seconds_after(self, validation: float) -> float:
        """Estimate of the seconds that `measure` takes at the end, from those of a validation."""
        if not self.is_measured:
            return 0.0
        whole = validation * len(self._valid) / self.validation_tokens
        # once more to interpolate, where counting reads the same tokens
        return 2 * whole + comparison.SECONDS * min(len(self._train), comparison.MOST_TOKENS)

    def measure(self, lm: LanguageModel, objective: Objective, step: int, compute: Compute) -> list[TextResults]:
        """Bits per byte of all validation text, computed by all processes, and in the main one of a 5-gram model."""
        tokenizer, context = self.prompt_format.tokenizer, self.recipe.model.context
        measured = TokenizedText(self._valid, tokenizer, context, context).perplexity(lm, objective, compute)
        data = self.recipe.data
        named = data.valid or data.sources
        alone = TextResults(
            step=step,
            tokens=measured.tokens,
            loss=measured.loss,
            bits_per_byte=measured.bits_per_byte,
            ngram_bits_per_byte=None,
            limit_bits_per_byte=limit(named, data),
        )
        return [self._beside_counts(alone, lm, compute) if compute.world.is_main else alone]

    def _beside_counts(self, alone: TextResults, lm: LanguageModel, compute: Compute) -> TextResults:
        """The same with a 5-gram model of the training text, but for very long and streamed texts."""
        if self._prepared.streamed:
            return alone
        prepared = comparison.to_count(self._prepared, self.recipe.seed)
        train, tokenizer = prepared.train, prepared.tokenizer
        if len(train) > comparison.MOST_TOKENS:
            return alone
        objective = build_objective(self.recipe.with_values({"objective": Causal()}), tokenizer)
        windows = Windows(train, objective.cut(min(ROW, len(train) - 1)), self.recipe.seed)
        model = comparison.counted(windows, tokenizer.embedding_rows(None))
        exact = choose_compute("cpu", "float32")
        counts = TokenizedText(prepared.valid, tokenizer, ROW, ROW).perplexity(model, objective, exact)
        beside = replace(alone, ngram_bits_per_byte=counts.bits_per_byte)
        read_alike = prepared is self._prepared and isinstance(self.recipe.objective, Causal)
        if not read_alike or compute.world.size > 1 or counts.tokens < 2:
            return beside
        texts = [HeldOut.of(self._valid, objective.window(n), None, 0) for n in (self.recipe.model.context, ROW)]
        loss, weight = comparison.interpolated(
            comparison.log_probabilities(lm, texts[0], objective, compute),
            comparison.log_probabilities(model, texts[1], objective, exact),
        )
        both = replace(counts, nats=loss * counts.tokens)
        return replace(beside, interpolated_bits_per_byte=both.bits_per_byte, ngram_weight=weight)


TrainingData = TextData | TableData
"""The training, validation and test data of a run: both kinds have what `TextData` names."""


def _has_targets(store: TokenStore, objective: Objective, window: int) -> bool:
    """Whether any window of a document of a text has a target; reads the text as far as the first one."""
    documents = map(store.document, range(store.n_documents))
    starts = ((start, min(end, start + window)) for begin, end in documents for start in range(begin, end, window))
    return any(objective.collate_spans([(store.read(*span), 1)]).n_targets for span in starts)


def beginning(store: TokenStore, tokenizer: Tokenizer, is_stream: bool) -> str:
    """The first words of a text as a prompt: at most LONGEST_PROMPT characters, and a third of the first document.

    is_stream: the text may begin within a line, the rest of which is left out.
    """
    start, stop = store.document(0)
    text = tokenizer.decode(store.read(start, min(stop, start + 20 * LONGEST_PROMPT)).tolist())
    if is_stream:
        text = text.partition("\n")[2] or text.partition(" ")[2] or text
    text = text.strip()
    end = min(LONGEST_PROMPT, -(-len(text) // 3))
    prompt = text[:end]
    splits_a_word = not any(character.isspace() for character in text[end - 1 : end + 1])
    if splits_a_word and len(words := prompt.split()) > 1:
        prompt = prompt[: prompt.rindex(words[-1])]
    return prompt.strip()


def read_text(
    recipe: Recipe, tokenizer: Tokenizer | None, world: World, report: Report, divided: DividedText | None = None
) -> TextData:
    """Prepare the text that a recipe names. Raises DataError when it is too short for the model's context.

    tokenizer: of the run to initialize from; when None, that of the recipe. divided: as in `prepare`.
    """
    spec = tokenizer or recipe.tokenizer
    data = world.main_first(lambda: prepare(recipe.text, spec, seed=recipe.seed, report=report, divided=divided))
    context = recipe.model.context
    for part, store, needed in (("training", data.train, context + 1), ("validation", data.valid, 2)):
        if len(store) < needed:
            what = f"the {part} text has {counted(len(store), 'token')}, but a context of {context} needs {needed}"
            fix = "give more text, or set model.context lower"
            raise DataError(what, where=", ".join(recipe.data.sources), fix=fix)
    is_foreign = tokenizer is not None or isinstance(recipe.tokenizer, TokenizerFile)
    return TextData(data, recipe, is_foreign=is_foreign)


def _validate_pairs(
    pairs: Windows, tokens: int | None, lm: LanguageModel, objective: Objective, compute: Compute
) -> Validation:
    """Validation on pairs for next-sentence prediction, on about so many of their tokens; all when None."""
    n = pairs.per_epoch if tokens is None else min(pairs.per_epoch, -(-tokens // pairs.length))

    def read(chosen: list[int]) -> tuple[Loss, tuple[()]]:
        batch = objective.collate(pairs.read(np.array(chosen)))
        return objective.score(lm, batch.to(compute.device)), ()

    evaluated = evaluate(lm, Items([(pairs.length,)] * n, read, objective.metrics), compute)
    return Validation(evaluated.loss, evaluated.metrics)
