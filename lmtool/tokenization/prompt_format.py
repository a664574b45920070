"""Adds special tokens to texts, always in the format that the model was trained on.

Made once from recipe and tokenizer. Used by samples during training, `generate`, `predict` and `embed`.
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
from lmtool.tokenization.chat import ChatFormat, Message, own_template
from lmtool.tokenization.tokenizer import Tokenizer

TokenIds = NDArray[np.int64]

DATE = datetime(2024, 7, 26)
"""The date that chat templates write into the prompts of fine-tuned models, fixed so that equal rows have equal ids."""


class EncodedTurn(NamedTuple):
    """A source and its target as complete ids.

    target: None where it is unknown.
    cut: they were truncated.
    learned: which ids of the source are those of earlier answers; None for none.
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
    joined: the tokens continue the source, as one text; else they begin its target.
    n_question: how many of the tokens, the first ones, are a question, and those after it an answer.
    """

    tokens: tuple[int, ...]
    source: tuple[int, ...] | None = None
    joined: bool = False
    n_question: int = 0

    @property
    def text(self) -> tuple[int, ...]:
        """The ids that generated text continues."""
        return (*(self.source or ()), *self.tokens) if self.joined else self.tokens

    @property
    def begun(self) -> tuple[int, ...]:
        """The ids whose text, if any, generated text is part of."""
        return self.text[self.n_question :]

    def end(self, n: int) -> "Prompt":
        """The last n ids; for a target, the whole source and the last n."""
        if not self.joined:
            n_question = max(0, self.n_question - max(0, len(self.tokens) - n))
            return replace(self, tokens=self.tokens[-n:], n_question=n_question)
        *source, last = self.text[-n:]
        return replace(self, tokens=(last,), source=tuple(source))


@dataclass(frozen=True)
class PromptFormat:
    """Special tokens before, between and after texts, whether the text is a prompt or a source, and the end tokens.

    reads: see `lmtool.recipe.spec.model.Reads`.
    before, between, after: ids around the texts of a complete row.
    opening: ids before a prompt.
    documents: generated text is between [BOS] and [EOS].
    answers: generated text is the target of a source, between the tokens that start and end a target.
    around: ids before and after a source.
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
    around: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    shares_row: bool = False
    context: int | None = None
    has_segments: bool = False
    chat: ChatFormat | None = None

    @classmethod
    def of(cls, recipe: Recipe, tokenizer: Tokenizer) -> Self:
        """Of a resolved recipe; its data settings determine whether the text was documents or one stream.

        Rows of labelled tables are [CLS] A [SEP] B [SEP] for encoders (Devlin et al. 2019), and [BOS] A [SEP] B [CLS]
        for left-to-right models, whose head is on the last token, GPT's [EXTRACT] (Radford et al. 2018). Bag-of-words
        models read A [SEP] B, with tf-idf [SEP] A [SEP] B [SEP], so that their n-grams know where a text begins and
        ends. All texts of a published model, sources included, are framed by its own template.

        A decoder that learns answers reads [BOS] source [SEP] target [EOS] in one row. That of a published model reads
        its chat template, with the source as the user's message; without one, the target follows the source.
        """
        t, model = tokenizer, recipe.model
        answering = model.reads == "past" and isinstance(recipe.objective, objective.Seq2Seq)
        has_chat = answering and (own_template(t) is not None or recipe.data.messages_column is not None)
        format = cls(
            tokenizer=t,
            reads=model.reads,
            between=(t.sep_id,),
            documents=recipe.data.split == "document",
            answers=answering
            or (model.reads == "source" and not (model.shares_row and isinstance(recipe.objective, objective.Prefix))),
            around=((t.bos_id,), (t.sep_id,)) if answering else ((), ()),
            shares_row=model.shares_row or answering,
            context=model.longest_row,
            has_segments=model.has_segments,
            chat=ChatFormat.of(t, lambda: DATE) if has_chat else None,
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
                around=(before, () if answering else after),
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
        """The tokens that end generation."""
        if self.chat is not None:
            return set(self.chat.ends)
        return set(self.tokenizer.roles.ends) if self.documents or self.answers else set()

    @property
    def shown(self) -> dict[int, str]:
        """Special tokens that generated text has, with their texts; see `ChatFormat.shown`."""
        return {} if self.chat is None else self.chat.shown

    def text(self, ids: Sequence[int]) -> str:
        """The generated text of these ids."""
        stream = self.tokenizer.stream(self.shown)
        return "".join(map(stream.push, ids)) + stream.flush()

    def prompt(self, text: str, prefix: str = "") -> Prompt:
        """The model's input before generation, never empty: [BOS] for an empty prompt, or [EOS] for an empty source.

        prefix: forced beginning of the generated text. Raises UsageError when a text has bytes that are not UTF-8.
        """
        if self.chat is not None:
            source = self.chat.prompt([Message(role="user", content=checked_text(text))])
            return self.answer_to(source, self._encode(prefix))
        if self.answers:
            return self.answer_to(self._complete(self._encode(text)), self._encode(prefix))
        return self.prompt_of_ids([*self.opening, *self._encode(text + prefix)] or [self.tokenizer.bos_id])

    def prompt_of_ids(self, ids: Sequence[int]) -> Prompt:
        """The model's input before generation for complete ids, at least one, with all special tokens."""
        if self.answers or self.chat is not None:
            return self.answer_to(ids)
        if self.reads != "source":
            return Prompt(tuple(ids))
        return Prompt((ids[-1],), tuple(ids[:-1]), joined=True)

    def answer_to(self, source: Sequence[int], begun: Sequence[int] = ()) -> Prompt:
        """The model's input for a complete source, as from `pair`, whose target begins with these ids."""
        if self.reads == "past":
            return Prompt((*source, *begun), n_question=len(source))
        return Prompt((*self.tokenizer.roles.starts, *begun), tuple(source))

    def _complete(self, source: Sequence[int]) -> tuple[int, ...]:
        """A source with the special tokens around it; [EOS] for an empty one."""
        return (*self.around[0], *source, *self.around[1]) or (self.tokenizer.eos_id,)

    def masks(self, text: str, *, placeholder: str | None, length: int) -> tuple[int, ...]:
        """A text with [MASK] for each placeholder, and `length` masks after it.

        Byte-level tokens begin with the space before a word, so a space in front of a placeholder is part of it.

        Raises UsageError when there is nothing to fill, and when the text has bytes that are not UTF-8.
        """
        t = self.tokenizer
        if placeholder == "":
            raise UsageError("the placeholder of a mask is empty", fix="give it at least one character")
        parts = [text] if placeholder is None else text.split(placeholder)
        if len(parts) == 1 and not length:
            what = "no mask to fill" if placeholder is None else f"no {placeholder!r:.40} to fill"
            fix = "mark positions with --mask TEXT, or ask for new text with --length N"
            raise UsageError(f"the prompt has {what}", fix=fix)
        ids: list[int] = []
        for i, part in enumerate(parts):
            followed = i < len(parts) - 1
            ids += self._encode(part.removesuffix(" ") if followed and t.kind == "bpe" else part)
            ids += [t.mask_id] * followed
        ids += [t.mask_id] * length
        if self.documents:
            ids = [t.bos_id, *ids, t.eos_id]
        return (*self.before, *ids, *self.after)

    def row(self, texts: Sequence[TokenIds]) -> tuple[TokenIds, TokenIds | None, bool]:
        """Texts as one complete row: ids, segment ids (0 or 1) where the model has segments, and whether texts were
        truncated.

        Texts too long for the context are truncated at the end, the longest first. A row is never empty.
        """
        marks = len(self.before) + len(self.between) * (len(texts) - 1) + len(self.after)
        fitted = list(texts) if self.context is None else fit(texts, self.context - marks)
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
        return tokens, np.array(segments, dtype=np.int64) if self.has_segments else None, is_cut

    def pair(self, source: TokenIds, answer: TokenIds | None) -> EncodedTurn:
        """Source and target as ids, complete with special tokens, [EOS] for an empty source.

        An encoder-decoder has the full context for each. In a prefix LM and a decoder both share one row, where the
        longer one is truncated first: at its end, but a decoder's source at its beginning. `room_to_answer` is reserved
        for a target not yet generated.
        """
        end = np.array([self.tokenizer.eos_id])
        marks = sum(map(len, self.around))
        whole = source if len(source) or marks else end
        target = None if answer is None else np.concatenate((answer, end))
        fitted, kept = self._fitted(whole, target, marks)
        is_cut = len(fitted) < len(whole) or (kept is not None and target is not None and len(kept) < len(target))
        return EncodedTurn(np.array(self._complete(fitted.tolist()), dtype=np.int64), kept, is_cut)

    def conversation(self, messages: Sequence[Message]) -> EncodedTurn:
        """A conversation as ids, for a prompt_format with `chat`; an assistant's message at its end is the target.

        Truncated like a pair, but never the token that begins a text. Raises as `ChatFormat.conversation` does.
        """
        if self.chat is None:
            raise ValueError("this prompt_format has no conversations")
        target = None
        if messages[-1]["role"] == "assistant":
            ids, written = map(np.array, self.chat.conversation(messages))
            stop = int(np.flatnonzero(written)[-1]) + 1
            start = int(np.flatnonzero(~written[:stop]).max(initial=-1)) + 1
            source, learned, target = ids[:start], written[:start], ids[start:stop]
            if target[-1] not in self.end_ids:
                target = np.append(target, self.tokenizer.eos_id)
        else:
            source = np.array(self.chat.prompt(messages))
            learned = np.zeros(len(source), dtype=bool)
        first = int(source[:1].tolist() == [self.tokenizer.bos_id])
        rest, kept = self._fitted(source[first:], target, first)
        at = len(source) - len(rest)
        is_cut = at > first or (kept is not None and target is not None and len(kept) < len(target))
        learned = np.concatenate((learned[:first], learned[at:]))
        return EncodedTurn(np.concatenate((source[:first], rest)), kept, is_cut, learned if learned.any() else None)

    def _fitted(self, source: TokenIds, target: TokenIds | None, marks: int) -> tuple[TokenIds, TokenIds | None]:
        """Source and target truncated to the context, beside so many special tokens; see `pair`."""
        if self.context is None:
            return source, target
        room = self.context - marks
        if not self.shares_row:
            return source[:room], None if target is None else target[: self.context]
        if target is None:
            # part of the row is reserved for a target not yet generated
            n_source = min(len(source), max(1, room - min(3 * len(source) + 30, self.context // 2)))
        else:
            short, target = fit((source, target), room)
            n_source = len(short)
        return source[len(source) - n_source :] if self.reads == "past" else source[:n_source], target

    def room_to_answer(self, n_source: int) -> int:
        """Maximum target length for a source: three times its tokens plus 30, within the context."""
        wanted = 3 * n_source + 30
        if self.context is None:
            return wanted
        return max(1, min(wanted, self.context - (n_source if self.shares_row else 0)))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(checked_text(text))


def checked_text(text: str, name: str = "prompt") -> str:
    """The text. Raises UsageError when UTF-8 cannot encode it. name: what it is."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        fix = "write it in UTF-8, or fix the terminal's locale"
        raise UsageError(f"the {name} is not UTF-8 at character {error.start}", fix=fix) from None
    return text


def fit(texts: Sequence[TokenIds], room: int) -> list[TokenIds]:
    """The texts truncated at the end, the longest first, to `room` tokens in total."""
    sizes = [len(text) for text in texts]
    while sum(sizes) > room:
        longest = max(range(len(sizes)), key=lambda i: sizes[i])
        second = max((size for i, size in enumerate(sizes) if i != longest), default=0)
        sizes[longest] -= max(1, min(sum(sizes) - room, sizes[longest] - second))
    return [text[:size] for text, size in zip(texts, sizes, strict=True)]
