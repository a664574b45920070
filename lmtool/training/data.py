"""Training and validation data of a run: texts. Tables are in `lmtool.tasks.data`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.compute.device import ExecutionContext, configure_compute
from lmtool.compute.processes import World
from lmtool.data import bundled
from lmtool.data.blocks import BackgroundBlockTokenizer
from lmtool.data.order import MixtureOrder, derive_seed
from lmtool.data.prepare import TokenizedData, count_predicted_bytes_and_tokens, tokenize_data
from lmtool.data.store import TokenStore
from lmtool.data.survey import Progress, ScannedTrainingText
from lmtool.data.text_problems import find_text_problems
from lmtool.errors import DataError
from lmtool.evaluation.gradients import compute_norms_by_steps_back
from lmtool.evaluation.loop import ValidationResult, evaluate_items
from lmtool.evaluation.perplexity import EvaluationWindows, bundled_entropy_bits_per_byte, compute_perplexity
from lmtool.model import LanguageModel
from lmtool.model.interpolation import NGramInterpolation
from lmtool.model.layers.ngrams import find_ngram_embeddings
from lmtool.objective import CausalObjective, Loss, Objective, TextCutSettings, VocabularyInfo, build_objective
from lmtool.objective.skipgram import GloveObjective
from lmtool.printable import format_count
from lmtool.recipe.spec.objective import Causal
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import BpeTokenizer, TokenizerFile
from lmtool.runs.files import StreamPosition
from lmtool.tasks.data import TableData
from lmtool.tokenization.prompt_format import PromptFormat
from lmtool.tokenization.tokenizer import Tokenizer
from lmtool.training import comparison
from lmtool.training.comparison import NGRAM_WINDOW, BitsPerByteResults
from lmtool.training.cooccurrences import CooccurrenceExamples
from lmtool.training.streamed import StreamedMixture, StreamedWindows, open_block_stores
from lmtool.training.windows import ExampleSource, TextMixture, Windows

MAX_STEPS_BACK = 64
"""Maximum steps back over which gradient norms are logged."""

MAX_EMBEDDING_NGRAM_TOKENS = 10_000_000
"""Maximum tokens of the training text in which the n-grams of a model's embeddings are counted."""

MAX_PROMPT_CHARACTERS = 24
"""Maximum characters of a prompt that is taken from the text."""


class TextData:
    """A text in token stores.

    prompt_format: how texts become model inputs.
    objective: that examples are made for.
    fingerprint: of the content.
    unit: what counts of data are in.
    validation_tokens: number of tokens that a validation computes.
    description_lines: of the data.
    warnings: about the data.
    validation_bytes_per_token: of the validation text.
    is_measured: the best checkpoint is evaluated at the end.
    split: the held-out rows, to be saved in the run; None for a text, where they follow from the recipe.
    examples_per_epoch: examples of one pass; for a streamed text an estimate by its head.
    """

    unit = "token"
    split = None

    def __init__(self, prepared: TokenizedData, recipe: Recipe, objective: Objective, *, is_foreign: bool) -> None:
        """recipe: with the vocabulary size. is_foreign: whether the tokenizer was not trained on this text."""
        self._blocks: Sequence[BackgroundBlockTokenizer] = ()
        self._resume_positions: Sequence[StreamPosition] = ()
        self._prepared, self.objective, self._is_foreign = prepared, objective, is_foreign
        self.prompt_format = PromptFormat.from_recipe(recipe, prepared.tokenizer)
        self._context, self._batch_size, self._seed = recipe.model.context, recipe.training.batch_size, recipe.seed
        # rows that continue where those of the step before ended
        self._lanes = recipe.training.batch_size if recipe.training.carry_state else None
        self._max_validation_tokens = recipe.evaluation.tokens
        self.is_measured, self._interpolates = recipe.evaluation.baseline is True, recipe.evaluation.interpolate
        self.fingerprint, self._spec = prepared.fingerprint, prepared.data
        self._train, self._valid = prepared.train, prepared.valid
        self._held_out: EvaluationWindows | None = None
        self._validation_pairs: Windows | None = None

    @contextmanager
    def open_streams_for_training(
        self, compute: ExecutionContext, resume_positions: Sequence[StreamPosition] = ()
    ) -> Iterator[None]:
        """Returns a context in which streamed texts are read while a model trains.

        resume_positions: the position in each text from which to go on, if any. Raises CheckpointError if what follows
        one of them has changed.
        """
        if not self._prepared.streamed:
            yield
            return
        with open_block_stores(self._prepared, compute, resume_positions) as self._blocks:
            self._resume_positions = resume_positions
            yield

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        texts = self._prepared.texts
        files = [file for parts in texts for part in parts for file in part.text.corpus.files]
        if bundled.known_entropy_bits_per_byte(files) is not None:
            return ()  # a bundled text, written by a program: its problems are known
        tokenizer = self._prepared.tokenizer if self._is_foreign else None
        findings = (find_text_problems(train, valid, tokenizer, None, brief=True) for train, valid in texts)
        messages = dict.fromkeys(str(notice) for notices in findings for notice in notices)
        n_train, n_valid, data = len(self._train), len(self._valid), self._spec
        share = n_valid / max(1, n_train + n_valid)
        if not data.valid and data.split == "document" and share > 2 * data.valid_fraction:
            n, n_all = self._valid.n_documents, self._train.n_documents + self._valid.n_documents
            what = f"{n:,} of {n_all:,} documents, with {100 * share:.0f} % of the tokens, are held out"
            messages[f"{what}: -s data.split=slice holds out the end of the text, --valid FILE another"] = None
        return tuple(messages)

    @property
    def description_lines(self) -> tuple[str, ...]:
        data = self._spec
        is_stream = data.split == "slice"
        held_out = f"{self._valid.n_documents:,} document{'s' * (self._valid.n_documents != 1)}"
        if data.valid:
            held_out = ", ".join(data.valid)
        elif is_stream:
            held_out = f"the last {100 * data.valid_fraction:g} % of the text"
        n_documents = self._train.n_documents
        text = "one text" if is_stream else format_count(n_documents, "document")
        if data.mixture:
            quotas = MixtureOrder(tuple(data.mixture.values()), 0).quotas
            text = ", ".join(
                f"{100 * n / MixtureOrder.BLOCK_SAMPLES:g} % {name}"
                for name, n in zip(data.mixture, quotas, strict=True)
            )
        if self._prepared.streamed:
            n_files = sum(len(whole.head.files) for whole, _ in self._prepared.streamed)
            n_bytes = sum(whole.n_bytes for whole, _ in self._prepared.streamed)
            files = f"{format_count(n_files, 'file')}, " if n_files else ""
            text = f"streamed, {files}{n_bytes / 1e6:,.3g} MB; at first {text}"
        return (f"text: {text}, {len(self._train):,} tokens; validation: {held_out}, {len(self._valid):,} tokens",)

    @property
    def holds_out(self) -> bool:
        """Whether a part of the data is held out: always, for texts."""
        return True

    @property
    def _is_causal(self) -> bool:
        """Whether the objective predicts each token from those before it."""
        return type(self.objective) is CausalObjective

    @property
    def validation_bytes_per_token(self) -> float | None:
        if not self._is_causal:
            return None
        n_bytes, n_tokens = count_predicted_bytes_and_tokens(self._valid, self.prompt_format.tokenizer)
        return n_bytes / n_tokens if n_tokens else None

    @property
    def sample_prompt(self) -> str:
        """A prompt: the beginning of the validation text."""
        return make_prompt_from_beginning(self._valid, self.prompt_format.tokenizer, self._spec.split == "slice")

    def count_training_tokens_per_id(self) -> NDArray[np.int64]:
        """Returns the count of each token id in the training part, or in the head of a streamed one."""
        return self._train.count_each_token()

    def initialize_from_data_(self, lm: LanguageModel) -> None:
        """Sets statistics of the data that a new model uses, if its family uses any."""
        if lm.counts_V is not None:
            counts = torch.from_numpy(self.count_training_tokens_per_id())
            counts[list(self.prompt_format.tokenizer.special_ids)] = 0
            # the embedding may have more rows than the tokenizer has entries
            lm.counts_V[: len(counts)] = counts
        for ngrams in find_ngram_embeddings(lm):
            ngrams.select_ngrams_(torch.from_numpy(self._train.sample_evenly(MAX_EMBEDDING_NGRAM_TOKENS)))

    def make_windows_of_stored_text(self, objective: Objective) -> Windows:
        """Returns windows of the training text: of the head of a streamed one, of the first text of a mixture."""
        tokenizer = self.prompt_format.tokenizer
        cut, special_ids = objective.choose_text_cut(self._context), (tokenizer.bos_id, tokenizer.eos_id)
        return Windows(self._train, cut, self._seed, self._lanes, special_ids, self._spec.isolate_documents)

    def check_has_examples(self) -> None:
        """Raises DataError if the training or the validation text has no example."""
        self._make_windows_and_validation_pairs(self.objective)

    def make_training_examples(self, objective: Objective) -> ExampleSource:
        """Returns the training examples for an objective."""
        examples = self._make_windows_and_validation_pairs(objective)
        if isinstance(objective, GloveObjective):
            assert isinstance(examples, Windows)
            is_word_V = self.count_training_tokens_per_id() > 0
            is_word_V[list(self.prompt_format.tokenizer.special_ids)] = False
            return CooccurrenceExamples(examples, is_word_V, objective.spec.window, self._context, self._seed)
        return examples

    def _make_windows_and_validation_pairs(
        self, objective: Objective
    ) -> Windows | TextMixture | StreamedWindows | StreamedMixture:
        """Returns the windows of the text that examples are made of. Raises DataError if there are none."""
        cut = objective.choose_text_cut(self._context)
        special_ids = self.prompt_format.tokenizer.bos_id, self.prompt_format.tokenizer.eos_id
        if cut.unit != "stream":
            # here, so that a text that is too short raises before the first step
            self._validation_pairs = Windows(self._valid, cut, self._seed, special_ids=special_ids)
        if objective.unit == "pair":
            for name, store in (("training", self._train), ("validation", self._valid)):
                if not _has_targets(store, objective, cut.length):
                    what = f"no two words of the {name} text are near each other in a document"
                    fix = "give more text, or make one text of it: -s data.documents=whole"
                    raise DataError(what, where=", ".join(self._spec.sources), fix=fix)
        if self._spec.mixture:
            return self._mix_texts(cut, special_ids)
        if self._blocks:
            return self._stream_text(0, cut, self._seed)
        return self.make_windows_of_stored_text(objective)

    def _mix_texts(self, cut: TextCutSettings, special_ids: tuple[int, int]) -> TextMixture | StreamedMixture:
        """Returns windows of each text of the mixture, in proportion to its weight."""
        parts, mixture, seed = self._prepared.parts, self._spec.mixture, self._seed
        for source, part in zip(mixture, parts, strict=True):
            if len(part) < cut.length:
                found = format_count(len(part), "token")
                what = f"a text of the mixture has {found}, but an example needs {cut.length}"
                fix = "give more text, leave it out of data.mixture, or set model.context lower"
                raise DataError(what, where=source, fix=fix)
        apart = self._spec.isolate_documents
        if self._blocks:
            streams = [self._stream_text(n, cut, derive_seed(seed, "text", n)) for n in range(len(parts))]
            return StreamedMixture(streams, list(mixture.values()), seed)
        texts = [
            Windows(part, cut, derive_seed(seed, "text", n), None, special_ids, apart) for n, part in enumerate(parts)
        ]
        return TextMixture(texts, [part.n_documents for part in parts], list(mixture.values()), seed)

    def _stream_text(self, n: int, cut: TextCutSettings, seed: int) -> StreamedWindows:
        """Returns the windows of the n-th streamed text, from the position at which it is resumed."""
        position = self._resume_positions[n] if self._resume_positions else None
        return StreamedWindows(self._blocks[n], cut, seed, self._batch_size, position, self._spec.isolate_documents)

    @property
    def n_train(self) -> int:
        """Number of tokens of the training text, or of the head of a streamed one."""
        return len(self._train)

    @property
    def n_valid(self) -> int:
        """Number of tokens of the validation text."""
        return len(self._valid)

    @property
    def examples_per_epoch(self) -> int:
        examples = self.make_training_examples(self.objective).examples_per_epoch
        if self._blocks or not self._prepared.streamed:
            return max(1, examples)
        # the token stores hold the head of each text
        held = [len(part) for part in self._prepared.parts]
        whole = sum(n / text.head_fraction for n, (text, _) in zip(held, self._prepared.streamed, strict=True))
        return max(1, round(examples / (sum(held) / whole)))

    def validate(self, lm: LanguageModel, objective: Objective, compute: ExecutionContext) -> ValidationResult:
        """Computes loss and metrics on the validation part, all processes together."""
        most = self._max_validation_tokens
        if (pairs := self._validation_pairs) is not None:
            n = pairs.examples_per_epoch if most is None else min(pairs.examples_per_epoch, -(-most // pairs.length))

            def read(chosen: list[int]) -> tuple[Loss, tuple[()]]:
                batch = objective.collate(pairs.read(np.array(chosen)))
                return objective.score(lm, batch.to(compute.device)), ()

            evaluated = evaluate_items(lm, [(pairs.length,)] * n, read, compute, metrics=objective.metric_names)
            return ValidationResult(evaluated.loss, evaluated.metrics)
        if self._held_out is None:
            longest = objective.max_scored_tokens(self._context)
            self._held_out = EvaluationWindows.sample(self._valid, longest, most, self._seed)
        return self._held_out.validate(lm, objective, compute)

    @property
    def validation_tokens(self) -> int:
        return min(self._max_validation_tokens or len(self._valid), len(self._valid))

    def compute_gradient_norms_by_steps_back(self, lm: LanguageModel) -> dict[str, list[float | None]]:
        """Returns `GradientNormsByStepsBack.norms` of a loss near the beginning of the validation text."""
        n_tokens = min(self._context, MAX_STEPS_BACK) + 1
        tokens = self._valid.read(0, min(n_tokens, len(self._valid)))
        return compute_norms_by_steps_back(lm, tokens.tolist()).norms if len(tokens) > 1 else {}

    def estimate_final_evaluation_seconds(self, validation_seconds: float) -> float:
        """Estimates the duration of `compute_results` from that of a validation."""
        if not self.is_measured:
            return 0.0
        whole_text = validation_seconds * len(self._valid) / self.validation_tokens
        n_counted = min(len(self._train), comparison.MAX_COUNTED_TOKENS)
        # the second time to interpolate with the n-gram model
        return 2 * whole_text + comparison.COUNTING_SECONDS_PER_TOKEN * n_counted

    def compute_results(
        self, lm: LanguageModel, objective: Objective, step: int, compute: ExecutionContext
    ) -> list[BitsPerByteResults]:
        """Computes bits per byte of all validation text, all processes together, and in the main one of a 5-gram
        model."""
        tokenizer, context = self.prompt_format.tokenizer, self._context
        measured = compute_perplexity(lm, objective, self._valid, tokenizer, compute, context=context, stride=context)
        data = self._spec
        named = data.valid or data.sources
        alone = BitsPerByteResults(
            step=step,
            tokens=measured.tokens,
            loss=measured.loss,
            bits_per_byte=measured.bits_per_byte,
            ngram_bits_per_byte=None,
            limit_bits_per_byte=bundled_entropy_bits_per_byte(named, data),
        )
        return [self._add_ngram_results(alone, lm, compute) if compute.world.is_main else alone]

    def _add_ngram_results(
        self, model_results: BitsPerByteResults, lm: LanguageModel, compute: ExecutionContext
    ) -> BitsPerByteResults:
        """Adds the results of a 5-gram model of the training text, unless that is very long or streamed."""
        if self._prepared.streamed:
            return model_results
        prepared, kind = self._prepared, self._prepared.tokenizer.kind
        if kind != "bpe" and not (kind == "char" and self._spec.documents == "line"):
            # by byte pairs, since five characters of running text are a short context
            prepared = tokenize_data(self._spec, BpeTokenizer(), seed=self._seed)
        train, tokenizer = prepared.train, prepared.tokenizer
        if len(train) > comparison.MAX_COUNTED_TOKENS:
            return model_results
        causal = CausalObjective.from_vocabulary(
            Causal(), VocabularyInfo.from_tokenizer(tokenizer, None), self._spec.isolate_documents
        )
        windows = Windows(train, causal.choose_text_cut(min(NGRAM_WINDOW, len(train) - 1)), self._seed)
        model = comparison.fit_ngram_model(windows, tokenizer.resolve_embedding_rows(None))
        exact = configure_compute("cpu", "float32")
        counts = compute_perplexity(
            model, causal, prepared.valid, tokenizer, exact, context=NGRAM_WINDOW, stride=NGRAM_WINDOW
        )
        both = replace(model_results, ngram_bits_per_byte=counts.bits_per_byte)
        has_same_tokens = prepared is self._prepared and self._is_causal
        if not has_same_tokens or compute.world.size > 1 or counts.tokens < 2:
            return both
        texts = [
            EvaluationWindows.sample(self._valid, causal.max_scored_tokens(n), None, 0)
            for n in (self._context, NGRAM_WINDOW)
        ]
        loss, weight = comparison.cross_fit_ngram_weight(
            comparison.compute_log_probabilities(lm, texts[0], causal, compute),
            comparison.compute_log_probabilities(model, texts[1], causal, exact),
        )
        bits_per_byte = replace(counts, nats=loss * counts.tokens).bits_per_byte
        gains = bits_per_byte <= (1 - comparison.MIN_INTERPOLATION_GAIN) * model_results.bits_per_byte
        is_kept = self._interpolates and gains and len(model.counts_G) <= comparison.MAX_KEPT_NGRAMS
        interpolation = NGramInterpolation(model, weight) if is_kept else None
        return replace(both, interpolated_bits_per_byte=bits_per_byte, ngram_weight=weight, interpolation=interpolation)


TrainingData = TextData | TableData
"""The training, validation and test data of a run. Both kinds have the attributes that `TextData` describes."""


def _has_targets(store: TokenStore, objective: Objective, window: int) -> bool:
    """Whether any window of a document has a target. Reads the text up to the first one."""
    documents = map(store.document_range, range(store.n_documents))
    starts = ((start, min(end, start + window)) for begin, end in documents for start in range(begin, end, window))
    return any(objective.collate_for_scoring([(store.read(*span), 1)]).n_targets for span in starts)


def make_prompt_from_beginning(store: TokenStore, tokenizer: Tokenizer, skip_partial_line: bool) -> str:
    """Makes a prompt of the first words of a text: at most MAX_PROMPT_CHARACTERS, and a third of its first document.

    skip_partial_line: whether the text may begin within a line, which is then left out.
    """
    start, stop = store.document_range(0)
    text = tokenizer.decode(store.read(start, min(stop, start + 20 * MAX_PROMPT_CHARACTERS)).tolist())
    if skip_partial_line:
        text = text.partition("\n")[2] or text.partition(" ")[2] or text
    text = text.strip()
    end = min(MAX_PROMPT_CHARACTERS, -(-len(text) // 3))
    prompt = text[:end]
    splits_a_word = not any(character.isspace() for character in text[end - 1 : end + 1])
    if splits_a_word and len(words := prompt.split()) > 1:
        prompt = prompt[: prompt.rindex(words[-1])]
    return prompt.strip()


def tokenize_training_text(
    recipe: Recipe,
    tokenizer: Tokenizer | None,
    world: World,
    report: Progress,
    scanned: ScannedTrainingText | None = None,
) -> tuple[Recipe, TextData]:
    """Tokenizes the text that a recipe names, or finds its tokens in the cache.

    Returns the recipe with the vocabulary size and how the text is divided, and the text.
    tokenizer: of the base run; None to train that of the recipe. scanned: as in `tokenize_data`.
    Raises DataError for a text that is too short for the model's context.
    """
    spec = tokenizer or recipe.tokenizer
    prepared = world.call_main_first(
        lambda: tokenize_data(
            recipe.data_without_unsupported_streaming, spec, seed=recipe.seed, report=report, scanned=scanned
        )
    )
    context = recipe.model.context
    for part, store, min_length in (("training", prepared.train, context + 1), ("validation", prepared.valid, 2)):
        if len(store) < min_length:
            found = format_count(len(store), "token")
            what = f"the {part} text has {found}, but a context of {context} needs {min_length}"
            fix = "give more text, or set model.context lower"
            raise DataError(what, where=", ".join(recipe.data.sources), fix=fix)
    rows = prepared.tokenizer.resolve_embedding_rows(recipe.model.vocab_size)
    recipe = recipe.with_unvalidated_values({"model.vocab_size": rows, "data": prepared.data})
    # word vectors need counts, which others do without
    counts = torch.from_numpy(prepared.train.count_each_token()) if recipe.model.reads == "words" else None
    objective = build_objective(recipe, prepared.tokenizer, counts)
    is_foreign = tokenizer is not None or isinstance(recipe.tokenizer, TokenizerFile)
    return recipe, TextData(prepared, recipe, objective, is_foreign=is_foreign)
