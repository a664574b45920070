"""Adds special tokens to texts in the format that the model was trained on.

Training, `generate`, `predict` and `embed` share it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lmtool.errors import UsageError
from lmtool.recipe.spec import objective
from lmtool.recipe.spec.model import Reads
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.words import Averaging
from lmtool.tokenization.chat import ChatFormat, Message, get_own_chat_template
from lmtool.tokenization.tokenizer import Tokenizer

TokenIds = NDArray[np.int64]

TEMPLATE_DATE = datetime(2024, 7, 26)
"""Date in chat templates of fine-tuned models, fixed so that equal rows have equal ids."""


class RowWithSegmentIds(NamedTuple):
    """Texts as one row. segments: 0 or 1 for each token, None if the model has no segments. cut: whether truncated."""

    tokens: TokenIds
    segments: TokenIds | None
    cut: bool


class EncodedSourceAndTarget(NamedTuple):
    """A source and its target as complete ids.

    target: None if it is unknown.
    cut: whether they are truncated.
    learned: whether each id of the source belongs to an earlier answer; None if none does.
    """

    source: TokenIds
    target: TokenIds | None
    cut: bool
    learned: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Prompt:
    """The input of a request.

    tokens: ids read left to right, at least one; generated text continues them.
    source: ids with bidirectional attention; None for models without a source.
    joined: whether the tokens continue the source as one text; otherwise they begin its target.
    n_question: number of the first tokens that are a question; the others begin its answer.
    """

    tokens: tuple[int, ...]
    source: tuple[int, ...] | None = None
    joined: bool = False
    n_question: int = 0

    @property
    def text(self) -> tuple[int, ...]:
        """Returns the ids that generated text continues."""
        return (*(self.source or ()), *self.tokens) if self.joined else self.tokens

    @property
    def generated_prefix(self) -> tuple[int, ...]:
        """Returns the ids that begin the generated text."""
        return self.text[self.n_question :]

    def keep_last_tokens(self, n: int) -> "Prompt":
        """Returns the prompt with the last n ids, or with the whole source and the last n ids of the target."""
        if not self.joined:
            n_question = max(0, self.n_question - max(0, len(self.tokens) - n))
            return replace(self, tokens=self.tokens[-n:], n_question=n_question)
        *source, last = self.text[-n:]
        return replace(self, tokens=(last,), source=tuple(source))


@dataclass(frozen=True)
class PromptFormat:
    """Adds special tokens to texts, and makes prompts, sources and targets of them.

    reads: see `lmtool.recipe.spec.model.Reads`.
    before, between, after: ids around the texts of a complete row.
    opening: ids before a prompt.
    documents: whether generated text is between [BOS] and [EOS].
    answers: whether generated text is the target of a source.
    source_delimiters: ids before and after a source.
    shares_row: source and target share one row.
    context: maximum tokens of a row; None for no limit.
    has_segments: tokens have segment ids.
    """

    tokenizer: Tokenizer
    reads: Reads
    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    opening: tuple[int, ...] = ()
    documents: bool = False
    answers: bool = False
    source_delimiters: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    shares_row: bool = False
    context: int | None = None
    has_segments: bool = False
    chat: ChatFormat | None = None

    @classmethod
    def from_recipe(cls, recipe: Recipe, tokenizer: Tokenizer) -> Self:
        """Makes the format of a resolved recipe.

        Rows of labelled tables are [CLS] A [SEP] B [SEP] for encoders (Devlin et al. 2019), and [BOS] A [SEP] B [CLS]
        for left-to-right models, whose head is on the last token, GPT's [EXTRACT] (Radford et al. 2018). Bag-of-words
        models read A [SEP] B, with tf-idf [SEP] A [SEP] B [SEP], so that their n-grams know where a text begins and
        ends. All texts of a published model, also sources, have the special tokens of its own template.

        A decoder that learns answers reads [BOS] source [SEP] target [EOS] in one row. That of a published model reads
        its chat template, with the source as the user's message; without one, the target follows the source.
        """
        t, model = tokenizer, recipe.model
        answering = model.reads == "past" and isinstance(recipe.objective, objective.Seq2Seq)
        has_chat = answering and (get_own_chat_template(t) is not None or recipe.data.messages_column is not None)
        format = cls(
            tokenizer=t,
            reads=model.reads,
            between=(t.sep_id,),
            documents=recipe.data.split == "document",
            answers=answering
            or (model.reads == "source" and not (model.shares_row and isinstance(recipe.objective, objective.Prefix))),
            source_delimiters=((t.bos_id,), (t.sep_id,)) if answering else ((), ()),
            shares_row=model.shares_row or answering,
            context=model.longest_row,
            has_segments=model.has_segments,
            chat=ChatFormat.from_tokenizer_or_plain(t, lambda: TEMPLATE_DATE) if has_chat else None,
        )
        if t.roles.template is not None:
            before, between, after = t.roles.template
            return replace(
                format,
                before=before,
                between=between or (t.sep_id,),
                after=after,
                opening=before,
                documents=model.reads == "past",
                source_delimiters=(before, () if answering else after),
            )
        match recipe.objective, model.reads:
            case ((objective.Masked() | objective.ReplacedTokens()), _):
                format = replace(format, before=(t.cls_id,), after=(t.sep_id,))
            case ((objective.Classification() | objective.Tagging() | objective.QuestionAnswering()), "both"):
                format = replace(format, before=(t.cls_id,), after=(t.sep_id,))
            case ((objective.Classification() | objective.Tagging() | objective.QuestionAnswering()), "past"):
                format = replace(format, before=(t.bos_id,), after=(t.cls_id,), documents=True)
            case objective.Classification(), "words" if isinstance(model, Averaging) and model.tf_idf:
                format = replace(format, before=(t.sep_id,), after=(t.sep_id,))
            case ((objective.Classification() | objective.Seq2Seq()), _):
                pass  # words only, or a source only
            case _ if format.documents:
                format = replace(format, before=(t.bos_id,), after=(t.eos_id,))
        return replace(format, opening=(t.bos_id,)) if format.documents else format

    @property
    def end_ids(self) -> set[int]:
        """Returns the tokens that end generation."""
        if self.chat is not None:
            return set(self.chat.end_ids)
        return set(self.tokenizer.roles.ends) if self.documents or self.answers else set()

    @property
    def visible_special_tokens(self) -> dict[int, str]:
        """Returns the special tokens that are shown in generated text; see `ChatFormat.visible_special_tokens`."""
        return {} if self.chat is None else self.chat.visible_special_tokens

    def decode_generated(self, ids: Sequence[int]) -> str:
        """Decodes the ids of generated text."""
        stream = self.tokenizer.make_stream_decoder(self.visible_special_tokens)
        return "".join(map(stream.push, ids)) + stream.flush()

    def make_prompt(self, text: str, generated_prefix: str = "") -> Prompt:
        """Makes the model's input from a text: [BOS] for an empty prompt, or [EOS] for an empty source.

        generated_prefix: forced beginning of the generated text. Raises UsageError when a text has bytes that are not
        UTF-8.
        """
        if self.chat is not None:
            source = self.chat.encode_prompt([Message(role="user", content=check_utf8(text))])
            return self.make_answer_prompt(source, self._encode(generated_prefix))
        if self.answers:
            return self.make_answer_prompt(self._delimit_source(self._encode(text)), self._encode(generated_prefix))
        return self.make_prompt_from_ids(
            [*self.opening, *self._encode(text + generated_prefix)] or [self.tokenizer.bos_id]
        )

    def make_prompt_from_ids(self, ids_with_special_tokens: Sequence[int]) -> Prompt:
        """Makes the model's input from at least one id, with all special tokens."""
        if self.answers or self.chat is not None:
            return self.make_answer_prompt(ids_with_special_tokens)
        if self.reads != "source":
            return Prompt(tuple(ids_with_special_tokens))
        return Prompt((ids_with_special_tokens[-1],), tuple(ids_with_special_tokens[:-1]), joined=True)

    def make_answer_prompt(
        self, source_with_special_tokens: Sequence[int], target_prefix: Sequence[int] = ()
    ) -> Prompt:
        """Makes the model's input from a source with its special tokens and the first ids of its target."""
        if self.reads == "past":
            return Prompt((*source_with_special_tokens, *target_prefix), n_question=len(source_with_special_tokens))
        return Prompt((*self.tokenizer.roles.starts, *target_prefix), tuple(source_with_special_tokens))

    def _delimit_source(self, source: Sequence[int]) -> tuple[int, ...]:
        """Adds the special tokens around a source; returns [EOS] for an empty one."""
        return (*self.source_delimiters[0], *source, *self.source_delimiters[1]) or (self.tokenizer.eos_id,)

    def encode_masked_prompt(self, text: str, *, placeholder: str | None, n_appended_masks: int) -> tuple[int, ...]:
        """Encodes a text with [MASK] for each placeholder, and `n_appended_masks` masks after it.

        Byte-level tokens begin with the space before a word, so a space before a placeholder belongs to the mask.
        Raises UsageError when there is nothing to fill, and when the text has bytes that are not UTF-8.
        """
        t = self.tokenizer
        if placeholder == "":
            raise UsageError("the placeholder of a mask is empty", fix="give it at least one character")
        parts = [text] if placeholder is None else text.split(placeholder)
        if len(parts) == 1 and not n_appended_masks:
            what = "no mask to fill" if placeholder is None else f"no {placeholder!r:.40} to fill"
            fix = "mark positions with --mask TEXT, or ask for new text with --length N"
            raise UsageError(f"the prompt has {what}", fix=fix)
        ids: list[int] = []
        for i, part in enumerate(parts):
            followed = i < len(parts) - 1
            ids += self._encode(part.removesuffix(" ") if followed and t.kind == "bpe" else part)
            ids += [t.mask_id] * followed
        ids += [t.mask_id] * n_appended_masks
        if self.documents:
            ids = [t.bos_id, *ids, t.eos_id]
        return (*self.before, *ids, *self.after)

    def encode_and_truncate_row(self, texts: Sequence[TokenIds]) -> RowWithSegmentIds:
        """Encodes texts as one row that is never empty, with special tokens.

        Truncates texts at the end, the longest first, if they are too long for the context.
        """
        marks = len(self.before) + len(self.between) * (len(texts) - 1) + len(self.after)
        fitted = list(texts) if self.context is None else truncate_longest_first(texts, self.context - marks)
        parts: list[TokenIds] = [np.array(self.before, dtype=np.int64)]
        segments = [0] * len(self.before)
        for i, text in enumerate(fitted):
            behind = self.after if i == len(fitted) - 1 else self.between
            parts += [text, np.array(behind, dtype=np.int64)]
            segments += [min(i, 1)] * (len(text) + len(behind))
        tokens = np.concatenate(parts)
        if not len(tokens):
            tokens = np.array(self.between, dtype=np.int64)
        is_cut = any(len(old) != len(new) for old, new in zip(texts, fitted, strict=True))
        return RowWithSegmentIds(tokens, np.array(segments, dtype=np.int64) if self.has_segments else None, is_cut)

    def encode_source_and_target(self, source: TokenIds, answer: TokenIds | None) -> EncodedSourceAndTarget:
        """Adds special tokens to source and target, [EOS] to an empty source, and truncates them to the context.

        An encoder-decoder has the full context for each. In a prefix LM and a decoder both share one row, where the
        longer one is truncated first: at its end, but a decoder's source at its beginning. For a target that is
        not generated yet, three times the tokens of the source plus 30 are reserved, at most half of the context.
        """
        end = np.array([self.tokenizer.eos_id])
        marks = sum(map(len, self.source_delimiters))
        whole = source if len(source) or marks else end
        target = None if answer is None else np.concatenate((answer, end))
        fitted, kept = self._truncate(whole, target, marks)
        is_cut = len(fitted) < len(whole) or (kept is not None and target is not None and len(kept) < len(target))
        return EncodedSourceAndTarget(np.array(self._delimit_source(fitted.tolist()), dtype=np.int64), kept, is_cut)

    def encode_and_truncate_conversation(self, messages: Sequence[Message]) -> EncodedSourceAndTarget:
        """Encodes a conversation by the chat template; an assistant's message at its end is the target.

        Truncated like a pair, but never the token that begins a text. Raises as `ChatFormat.encode_conversation` does.
        """
        if self.chat is None:
            raise ValueError("this prompt_format has no conversations")
        target = None
        if messages[-1]["role"] == "assistant":
            ids, written = map(np.array, self.chat.encode_conversation(messages))
            stop = int(np.flatnonzero(written)[-1]) + 1
            start = int(np.flatnonzero(~written[:stop]).max(initial=-1)) + 1
            source, learned, target = ids[:start], written[:start], ids[start:stop]
            if target[-1] not in self.end_ids:
                target = np.append(target, self.tokenizer.eos_id)
        else:
            source = np.array(self.chat.encode_prompt(messages))
            learned = np.zeros(len(source), dtype=bool)
        first = int(source[:1].tolist() == [self.tokenizer.bos_id])
        rest, kept = self._truncate(source[first:], target, first)
        at = len(source) - len(rest)
        is_cut = at > first or (kept is not None and target is not None and len(kept) < len(target))
        learned = np.concatenate((learned[:first], learned[at:]))
        return EncodedSourceAndTarget(
            np.concatenate((source[:first], rest)), kept, is_cut, learned if learned.any() else None
        )

    def _truncate(
        self, source: TokenIds, target: TokenIds | None, n_special_tokens: int
    ) -> tuple[TokenIds, TokenIds | None]:
        """Truncates source and target to the context less `n_special_tokens` special tokens.

        See `encode_source_and_target`.
        """
        if self.context is None:
            return source, target
        room = self.context - n_special_tokens
        if not self.shares_row:
            return source[:room], None if target is None else target[: self.context]
        if target is None:
            # part of the row is reserved for a target not yet generated
            n_source = min(len(source), max(1, room - min(3 * len(source) + 30, self.context // 2)))
        else:
            short, target = truncate_longest_first((source, target), room)
            n_source = len(short)
        return source[len(source) - n_source :] if self.reads == "past" else source[:n_source], target

    def default_max_answer_tokens(self, n_source_tokens: int) -> int:
        """Returns the maximum target length for a source: three times its tokens plus 30, within the context."""
        n_tokens = 3 * n_source_tokens + 30
        if self.context is None:
            return n_tokens
        return max(1, min(n_tokens, self.context - (n_source_tokens if self.shares_row else 0)))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(check_utf8(text))


def check_utf8(text: str, name: str = "prompt") -> str:
    """Returns the text. Raises UsageError, with `name`, when UTF-8 cannot encode it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        fix = "write it in UTF-8, or fix the terminal's locale"
        raise UsageError(f"the {name} is not UTF-8 at character {error.start}", fix=fix) from None
    return text


def truncate_longest_first(texts: Sequence[TokenIds], max_tokens: int) -> list[TokenIds]:
    """Truncates texts at the end, the longest first, to `max_tokens` in total."""
    sizes = [len(text) for text in texts]
    while sum(sizes) > max_tokens:
        longest = max(range(len(sizes)), key=lambda i: sizes[i])
        second = max((size for i, size in enumerate(sizes) if i != longest), default=0)
        sizes[longest] -= max(1, min(sum(sizes) - max_tokens, sizes[longest] - second))
    return [text[:size] for text, size in zip(texts, sizes, strict=True)]
