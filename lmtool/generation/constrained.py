"""Constrained decoding: which tokens may follow in a text that must have a form.

llguidance (Moskal et al. 2025) keeps the grammar. It is handed the bytes of each token, so tokenizers of any kind will
do.

Shapes: V vocabulary.
"""

from functools import cached_property, lru_cache
from itertools import takewhile
from threading import Lock, RLock
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary, WeakMethod, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from lmtool.errors import UsageError
from lmtool.generation.forms import TextForm
from lmtool.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, TokenizerWrapper

LONGEST_JUMP = 256
"""Maximum tokens that follow for certain and are read at once."""

LONGEST_CERTAIN = 16 * LONGEST_JUMP
"""Maximum characters that follow for certain and are tokenized."""

LONGEST_CLOSING = 1024
"""Maximum tokens of an end that is looked for."""

NEAR = 8
"""Tokens that may be left out of an end for it to be one of the text after one more token."""

CLASSES = 6
"""Classes of tokens by how soon they close what is open."""


class FormState:
    """A place in a form, after some tokens; immutable.

    There is one object of each place, so what may follow is computed once, for all samples and requests there.

    spelled: the last token as it stands in the text.
    """

    def __init__(
        self, form: TextForm, vocabulary: "SpelledVocabulary", matcher: "LLMatcher", spelled: bytes | None
    ) -> None:
        """spelled: None at the beginning."""
        if matcher.is_error():
            raise form.wrong(matcher.get_error())
        self.form, self.spelled = form, spelled or b""
        self._vocabulary, self._matcher, self._begins = vocabulary, matcher, spelled is None
        self._lock = RLock()  # a matcher serves one thread at a time
        self._children: WeakValueDictionary[int, FormState] = WeakValueDictionary()
        self._distant: WeakValueDictionary[tuple[int, ...], FormState] = WeakValueDictionary()

    def plus(self, token: int) -> "FormState":
        """The place after one more token, which may follow; one that ends the text changes nothing."""
        child = self._children.get(token) or self._extended(token)
        rest = vars(self).get("closing_after") or ()
        if rest[:1] == (token,) and len(rest) > 1:  # what closes it later is no more than the rest of that
            child._offer_closing(rest[1:])
        return child

    def skip_forced(self, tokens: tuple[int, ...]) -> "FormState":
        """The place after tokens that follow for certain, without those between: a copy of each would take long."""
        child = self._distant.get(tokens)
        if child is None:
            with self._lock:
                matcher = self._matcher.deep_copy()
            matcher.consume_tokens(list(tokens))
            child = FormState(self.form, self._vocabulary, matcher, self._vocabulary.pieces[tokens[-1]])
            self._distant[tokens] = child
        rest = vars(self).get("closing_after") or ()
        if rest[: len(tokens)] == tokens and len(rest) > len(tokens):
            child._offer_closing(rest[len(tokens) :])
        return child

    def _extended(self, token: int) -> "FormState":
        spellings = self._vocabulary.spellings(token, self._begins)
        with self._lock:
            spelling = next(filter(self._follows, spellings), None)
            if spelling is None:
                return self
            matcher = self._matcher.deep_copy()
        matcher.consume_token(spelling)
        child = FormState(self.form, self._vocabulary, matcher, self._vocabulary.pieces[spelling])
        self._children[token] = child
        return child

    def prepare(self) -> None:
        """Compute what may follow, which is kept. Raises UsageError where nothing does, not even the end."""
        if not (self.allowed_V.any() or self.may_end):
            raise self.form.wrong()

    @cached_property
    def forced(self) -> tuple[int, ...]:
        """The tokens that follow for certain; the first ones, if they are many."""
        if not self._vocabulary.is_canonical or self.is_complete:
            return ()
        with self._lock:
            certain = self._matcher.compute_ff_tokens()[:LONGEST_JUMP]
        return tuple(takewhile(lambda token: token < self._vocabulary.size, certain))

    @cached_property
    def allowed_V(self) -> NDArray[np.bool_]:
        """The tokens that may follow, those that end a text apart."""
        if self.forced:
            return np.equal(np.arange(self._vocabulary.size), self.forced[0])
        with self._lock:
            mask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            mistake = self._matcher.get_error()
        if mistake:
            raise self.form.wrong(mistake)
        allowed_V = self._vocabulary.allowed(np.unpackbits(mask, bitorder="little").astype(np.bool_), self._begins)
        if allowed_V.any() or self.may_end:
            return allowed_V
        with self._lock:  # what is certain is spelled otherwise
            tokens = range(self._vocabulary.size)
            spelled = [any(map(self._follows, self._vocabulary.spellings(token, self._begins))) for token in tokens]
        return np.array(spelled, dtype=np.bool_)

    def _follows(self, spelling: int) -> bool:
        return bool(self._matcher.validate_tokens([spelling]))

    @cached_property
    def may_end(self) -> bool:
        """Whether the text has the form here."""
        with self._lock:
            return bool(self._matcher.is_accepting())

    @cached_property
    def is_complete(self) -> bool:
        """Whether it has, and nothing else can follow."""
        with self._lock:
            return bool(self._matcher.is_stopped())

    @property
    def closing(self) -> tuple[int, ...] | None:
        """Tokens after which the text has the form, few but not always the fewest; None where none were found."""
        return () if self.may_end else self.closing_after

    def _offer_closing(self, tokens: tuple[int, ...]) -> None:
        """Take tokens that close it for `closing_after`, unless it knows fewer."""
        known = vars(self).get("closing_after")
        if known is None or len(tokens) < len(known):
            self.closing_after = tokens

    @cached_property
    def closing_after(self) -> tuple[int, ...] | None:
        """The same, at least one; where none were found, `dead_end` is where the search ended."""
        state, tokens = self, list[int]()
        classes_V = self._vocabulary.closing_rank_V.astype(np.int64)
        used_K, used_V = np.zeros(CLASSES), np.zeros(len(classes_V))
        while not (tokens and state.may_end):
            # what does not close may lead nowhere, so classes and tokens take turns
            rank_V = self._vocabulary.closing_rank_V + CLASSES * used_K[classes_V] + 0.05 * used_V
            token = int(np.where(state.allowed_V, rank_V, np.inf).argmin())
            used_V[token] += 1
            used_K[classes_V[token]] += classes_V[token] > 0
            after = state.plus(token)
            if after is state or len(tokens) == LONGEST_CLOSING:
                self.dead_end = state
                return None
            tokens.append(token)
            state = after
        return tuple(tokens)

    def can_close_after(self, token: int, n_left: int) -> bool:
        """Whether the form can be completed in so many tokens after this one."""
        closing = self.closing
        if closing and closing[0] == token:
            return len(closing) - 1 <= n_left
        child = self.plus(token)
        if not (child.may_end or "closing_after" in vars(child)):
            child._reuse_closing(closing or (), n_left)
        return child.closing is not None and len(child.closing) <= n_left

    def _reuse_closing(self, closing: tuple[int, ...], n_left: int) -> None:
        """Take the end of the place before, or the last part of it: most ends remain those, and a search takes long."""
        for n in range(min(NEAR, len(closing) - 1), -1, -1):
            rest = list(closing[n:])
            if not rest or len(rest) > n_left:
                return
            with self._lock:
                if self._matcher.validate_tokens(rest) < len(rest):
                    continue
                matcher = self._matcher.deep_copy()
            if all(_consume(matcher, token) for token in rest) and matcher.is_accepting():
                self._offer_closing(tuple(rest))
                return


class SpelledVocabulary:
    """A tokenizer's tokens as bytes, in the spellings that they may have in a text.

    Words and WordPieces have two, with and without the space before them. Of other tokens the space at the very
    beginning may be dropped: it stands between the prompt and the answer.

    size: number of tokens. pieces: all spellings, first one of each token, in order; then the bytes that none spells.
    is_canonical: how the tokenizer writes a text is known.
    closing_rank_V: the lower, the sooner a token closes what is open; the whole part is its class.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        from llguidance import LLTokenizer

        self._encode, self.size = WeakMethod(tokenizer.encode_inside), tokenizer.vocab_size
        spellings = tokenizer.list_spellings()
        self._are_words = any(len(one) > 1 for one in spellings)
        self.is_canonical = not self._are_words
        first = [one[0] if one else tokenizer.token_name(i).encode() for i, one in enumerate(spellings)]
        if self._are_words:
            others = {i: one[1] for i, one in enumerate(spellings) if len(one) > 1}
        else:
            others = {i: piece[1:] for i, piece in enumerate(first) if piece[:1] == b" " != piece}
        self._owners = np.fromiter(others, dtype=np.int64, count=len(others))
        self._others = {token: self.size + n for n, token in enumerate(others)}
        # llguidance tokenizes what is certain, and errs where it cannot spell that
        spelled = {*others.values(), *(piece for piece, one in zip(first, spellings, strict=True) if one)}
        spare = [byte for byte in map(int.to_bytes, range(256)) if byte not in spelled]
        self.pieces = [*first, *others.values(), *spare, b"[end]"]
        self.closing_rank_V = np.array([_closing_rank(piece) for piece in first])
        # what llguidance asks of a tokenizer
        self.tokens, self.is_tokenizer_wrapper, self.bos_token_id = self.pieces, True, None
        self.eos_token_id = len(self.pieces) - 1
        self.special_token_ids = [*(i for i, one in enumerate(spellings) if not one), self.eos_token_id]
        self._inner = LLTokenizer(cast("TokenizerWrapper", self))
        self.begin = lru_cache(maxsize=64)(self._begin)

    def __call__(self, text: str) -> list[int]:
        """How a text is tokenized, for llguidance."""
        text, encode = text[:LONGEST_CERTAIN], self._encode()
        tokens = [] if encode is None else encode(text)
        is_exact = b"".join(self.pieces[token] for token in tokens) == text.encode()
        return tokens if is_exact else self._inner.greedy_tokenize(text)

    def _begin(self, form: TextForm) -> FormState:
        from llguidance import LLMatcher, LLParserLimits

        # about a tenth of its own, so that no step takes long
        limits = LLParserLimits(initial_lexer_fuel=200_000, step_lexer_fuel=100_000, max_lexer_states=20_000)
        matcher = LLMatcher(self._inner, form.grammar, log_level=0, limits=limits)
        matcher.compute_bitmask()  # lets other threads run while what is certain is found, which may be long
        state = FormState(form, self, matcher, None)
        state.prepare()  # which fails where no token begins it
        return state

    def spellings(self, token: int, begins: bool) -> tuple[int, ...]:
        """The spellings of a token, the usual one first. begins: at the beginning of a text."""
        other = self._others.get(token)
        if other is None or not (begins or self._are_words):
            return (token,)
        drops_space = begins and self._are_words and self.pieces[token][:1] == b" "
        return (other, token) if drops_space else (token, other)

    def allowed(self, mask: NDArray[np.bool_], begins: bool) -> NDArray[np.bool_]:
        """The tokens, (V,), one of whose spellings is in the mask of all."""
        allowed_V = mask[: self.size].copy()
        if begins or self._are_words:
            allowed_V[self._owners] |= mask[self.size : self.size + len(self._owners)]
        return allowed_V


def _consume(matcher: "LLMatcher", token: int) -> bool:
    """Take a token, unless another follows for certain."""
    certain = matcher.compute_ff_tokens()
    return token == (certain or [token])[0] and bool(matcher.consume_token(token))


def _closing_rank(piece: bytes) -> float:
    """Quotes and brackets that close come first, then what separates, digits, letters, others, and white space."""
    core, classes = piece.strip(), (b"\"'}])", b",:", b"0123456789")
    of_others = 5 if not core else 3 if core.isalnum() else 4
    number = next((n for n, kind in enumerate(classes) if core and not core.strip(kind)), of_others)
    opens = sum(core.count(opening) - core.count(closing) for opening, closing in (b"{}", b"[]", b"()"))
    within = 0.3 + 0.05 * opens if number else 0.3 * (core[:1] != b'"')  # a bracket may be the content of a text
    return number + min(0.9, max(0.0, within + 0.001 * len(piece)))


_VOCABULARIES: WeakKeyDictionary[Tokenizer, SpelledVocabulary] = WeakKeyDictionary()
_MAKING = Lock()


def spelled_vocabulary(tokenizer: Tokenizer) -> SpelledVocabulary:
    """The tokens of a tokenizer, which takes a second to make, once."""
    with _MAKING:
        if tokenizer not in _VOCABULARIES:
            _VOCABULARIES[tokenizer] = SpelledVocabulary(tokenizer)
        return _VOCABULARIES[tokenizer]


def begin_form(form: TextForm, tokenizer: Tokenizer, max_new_tokens: int | None = None) -> FormState:
    """The place of a form before its first token.

    Raises UsageError when the tokenizer cannot write it, and where a form that is to be complete cannot be so in
    `max_new_tokens`.
    """
    state = spelled_vocabulary(tokenizer).begin(form)
    if form.complete and max_new_tokens is not None:
        if state.closing is None:
            state.dead_end.prepare()
            raise UsageError("no end of this form was found, which `complete` needs", fix="omit --complete")
        if len(state.closing) > max_new_tokens:
            n = len(state.closing)
            what = f"the shortest text found of this form has {n} tokens, more than {max_new_tokens}"
            raise UsageError(what, fix=f"allow as many with --max-new-tokens {n}")
    return state
