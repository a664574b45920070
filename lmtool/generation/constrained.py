"""Constrained decoding: computes which tokens a form allows next.

llguidance (Moskal et al. 2025) parses the grammar. It gets the bytes of each token, so any tokenizer works.

Shapes: V vocabulary.
"""

from collections.abc import Collection
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

MAX_FORCED_TOKENS = 256
"""Maximum forced tokens that are read at once."""

MAX_FORCED_CHARACTERS = 16 * MAX_FORCED_TOKENS
"""Maximum forced characters that are tokenized."""

MAX_CLOSING_TOKENS = 1024
"""Maximum tokens of a closing sequence that is searched for."""

MAX_SKIPPED_TOKENS = 8
"""Maximum first tokens that are dropped from a closing sequence to reuse it after one more token."""

N_CLOSING_CLASSES = 6
"""Number of classes of tokens by how soon they close what is open."""


class FormState:
    """A place in a form, after some tokens; immutable.

    There is one object per place, so allowed tokens are computed once, for all samples and requests.

    spelled: bytes of the last token in the text.
    """

    def __init__(
        self, form: TextForm, vocabulary: "SpelledVocabulary", matcher: "LLMatcher", spelled: bytes | None
    ) -> None:
        """spelled: None at the beginning."""
        if matcher.is_error():
            raise form.make_error(matcher.get_error())
        self.form, self.spelled = form, spelled or b""
        self._vocabulary, self._matcher, self._at_text_start = vocabulary, matcher, spelled is None
        self._lock = RLock()  # a matcher serves one thread at a time
        self._following: WeakValueDictionary[tuple[int, ...], FormState] = WeakValueDictionary()

    def with_token(self, token: int) -> "FormState":
        """Returns the place after an allowed token; an end token changes nothing."""
        following = self._following.get((token,))
        if following is None:
            spellings = self._vocabulary.list_spelling_ids(token, at_text_start=self._at_text_start)
            with self._lock:
                spelling = next(filter(self._can_follow, spellings), None)
            if spelling is None:
                return self
            following = self._create_and_cache_next_state((token,), [spelling])
        self._cache_remaining_completing_tokens((token,), following)
        return following

    def with_forced_tokens(self, tokens: tuple[int, ...]) -> "FormState":
        """Returns the place after forced tokens, without making those between, whose copies would take long."""
        following = self._following.get(tokens)
        if following is None:
            following = self._create_and_cache_next_state(tokens, list(tokens))
        self._cache_remaining_completing_tokens(tokens, following)
        return following

    def _create_and_cache_next_state(self, tokens: tuple[int, ...], spelling_ids: list[int]) -> "FormState":
        """Makes and caches the place after tokens. spelling_ids: what the matcher reads in their place."""
        with self._lock:
            matcher = self._matcher.deep_copy()
        matcher.consume_tokens(spelling_ids)
        following = FormState(self.form, self._vocabulary, matcher, self._vocabulary.pieces[spelling_ids[-1]])
        self._following[tokens] = following
        return following

    def _cache_remaining_completing_tokens(self, consumed: tuple[int, ...], following: "FormState") -> None:
        """If the closing sequence of this place begins with these tokens, that of the following one is at most the
        rest."""
        closing = vars(self).get("completing_tokens") or ()
        if closing[: len(consumed)] == consumed and len(closing) > len(consumed):
            following._cache_completing_tokens_if_shorter(closing[len(consumed) :])

    def cache_allowed_tokens(self) -> None:
        """Computes and caches the allowed tokens. Raises UsageError if there are none and the text may not end."""
        if not (self.allowed_non_end_V.any() or self.may_end):
            raise self.form.make_error()

    @cached_property
    def forced_tokens(self) -> tuple[int, ...]:
        """The next tokens that have no alternative, at most MAX_FORCED_TOKENS."""
        if self._vocabulary.are_words or self.is_complete:
            return ()
        with self._lock:
            forced = self._matcher.compute_ff_tokens()[:MAX_FORCED_TOKENS]
        return tuple(takewhile(lambda token: token < self._vocabulary.size, forced))

    @cached_property
    def allowed_non_end_V(self) -> NDArray[np.bool_]:
        """Mask of the tokens that may follow, apart from end tokens."""
        if self.forced_tokens:
            return np.equal(np.arange(self._vocabulary.size), self.forced_tokens[0])
        with self._lock:
            mask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            mistake = self._matcher.get_error()
        if mistake:
            raise self.form.make_error(mistake)
        spellings = np.unpackbits(mask, bitorder="little").astype(np.bool_)
        allowed_V = self._vocabulary.spelling_mask_to_token_mask(spellings, self._at_text_start)
        if allowed_V.any() or self.may_end:
            return allowed_V
        with self._lock:  # forced text has another spelling than the mask expects
            tokens = range(self._vocabulary.size)
            spelled = [
                any(map(self._can_follow, self._vocabulary.list_spelling_ids(token, self._at_text_start)))
                for token in tokens
            ]
        return np.array(spelled, dtype=np.bool_)

    def _can_follow(self, spelling: int) -> bool:
        return bool(self._matcher.validate_tokens([spelling]))

    def mask_allowed_tokens(self, vocab_size: int, end_ids: Collection[int]) -> NDArray[np.bool_]:
        """Returns a mask of the first `vocab_size` ids that may follow, with end tokens where the text may end."""
        allowed_V = np.zeros(vocab_size, dtype=np.bool_)
        allowed_V[: len(self.allowed_non_end_V)] = self.allowed_non_end_V
        allowed_V[list(end_ids)] = self.may_end
        return allowed_V

    @cached_property
    def may_end(self) -> bool:
        """Whether the text has the form and may end here."""
        with self._lock:
            return bool(self._matcher.is_accepting())

    @cached_property
    def is_complete(self) -> bool:
        """Whether the text has the form and nothing else can follow."""
        with self._lock:
            return bool(self._matcher.is_stopped())

    @property
    def closing_tokens(self) -> tuple[int, ...] | None:
        """Tokens that complete the form, few but not always the fewest; None if none were found."""
        return () if self.may_end else self.completing_tokens

    def _cache_completing_tokens_if_shorter(self, tokens: tuple[int, ...]) -> None:
        """Caches tokens that complete the form as `completing_tokens`, unless it has fewer."""
        known = vars(self).get("completing_tokens")
        if known is None or len(tokens) < len(known):
            self.completing_tokens = tokens

    @cached_property
    def completing_tokens(self) -> tuple[int, ...] | None:
        """At least one token that completes the form; if None, `dead_end` is where the search ended."""
        state, tokens = self, list[int]()
        classes_V = self._vocabulary.closing_rank_V.astype(np.int64)
        used_K, used_V = np.zeros(N_CLOSING_CLASSES), np.zeros(len(classes_V))
        while not (tokens and state.may_end):
            # tokens that close nothing may lead nowhere, so classes and tokens take turns
            rank_V = self._vocabulary.closing_rank_V + N_CLOSING_CLASSES * used_K[classes_V] + 0.05 * used_V
            token = int(np.where(state.allowed_non_end_V, rank_V, np.inf).argmin())
            used_V[token] += 1
            used_K[classes_V[token]] += classes_V[token] > 0
            after = state.with_token(token)
            if after is state or len(tokens) == MAX_CLOSING_TOKENS:
                self.dead_end = state
                return None
            tokens.append(token)
            state = after
        return tuple(tokens)

    def can_close_after(self, token: int, n_left: int) -> bool:
        """Whether the form can be completed in so many tokens after this one."""
        closing = self.closing_tokens
        if closing and closing[0] == token:
            return len(closing) - 1 <= n_left
        child = self.with_token(token)
        if not (child.may_end or "completing_tokens" in vars(child)):
            child._cache_completing_suffix(closing or (), n_left)
        return child.closing_tokens is not None and len(child.closing_tokens) <= n_left

    def _cache_completing_suffix(self, parent_closing: tuple[int, ...], n_left: int) -> None:
        """Tries the closing tokens of the place before, or the last of them, because a search takes long.

        Keeps the first that complete the form in at most `n_left` tokens.
        """
        for n in range(min(MAX_SKIPPED_TOKENS, len(parent_closing) - 1), -1, -1):
            rest = list(parent_closing[n:])
            if not rest or len(rest) > n_left:
                return
            with self._lock:
                if self._matcher.validate_tokens(rest) < len(rest):
                    continue
                matcher = self._matcher.deep_copy()
            if all(_consume_token(matcher, token) for token in rest) and matcher.is_accepting():
                self._cache_completing_tokens_if_shorter(tuple(rest))
                return


class SpelledVocabulary:
    """The tokens of a tokenizer as bytes, in all spellings that they may have in a text.

    Words and WordPieces have two, with and without the space before them. Other tokens may lose the space at the very
    beginning of the text, between the prompt and the answer.

    size: number of tokens. pieces: all spellings, first one of each token in order, then the bytes that none spells.
    are_words: whether tokens are words or WordPieces, by which a text may be tokenized in several ways.
    closing_rank_V: lower for tokens that close what is open sooner; its integer part is the class of the token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        from llguidance import LLTokenizer

        self._encode, self.size = WeakMethod(tokenizer.encode_without_prefix_space), tokenizer.vocab_size
        spellings = tokenizer.list_spellings()
        self.are_words = any(len(one) > 1 for one in spellings)
        first = [one[0] if one else tokenizer.token_name(i).encode() for i, one in enumerate(spellings)]
        if self.are_words:
            others = {i: one[1] for i, one in enumerate(spellings) if len(one) > 1}
        else:
            others = {i: piece[1:] for i, piece in enumerate(first) if piece[:1] == b" " != piece}
        self._owners = np.fromiter(others, dtype=np.int64, count=len(others))
        self._others = {token: self.size + n for n, token in enumerate(others)}
        # llguidance tokenizes forced text, and fails if it cannot spell it
        spelled = {*others.values(), *(piece for piece, one in zip(first, spellings, strict=True) if one)}
        spare = [byte for byte in map(int.to_bytes, range(256)) if byte not in spelled]
        self.pieces = [*first, *others.values(), *spare, b"[end]"]
        self.closing_rank_V = np.array([_sort_key_for_closing(piece) for piece in first])
        # attributes that llguidance expects of a tokenizer
        self.tokens, self.is_tokenizer_wrapper, self.bos_token_id = self.pieces, True, None
        self.eos_token_id = len(self.pieces) - 1
        self.special_token_ids = [*(i for i, one in enumerate(spellings) if not one), self.eos_token_id]
        self._inner = LLTokenizer(cast("TokenizerWrapper", self))
        self.get_initial_state = lru_cache(maxsize=64)(self._create_initial_state)

    def __call__(self, text: str) -> list[int]:
        """Tokenizes a text for llguidance."""
        text, encode = text[:MAX_FORCED_CHARACTERS], self._encode()
        tokens = [] if encode is None else encode(text)
        is_exact = b"".join(self.pieces[token] for token in tokens) == text.encode()
        return tokens if is_exact else self._inner.greedy_tokenize(text)

    def _create_initial_state(self, form: TextForm) -> FormState:
        from llguidance import LLMatcher, LLParserLimits

        # about a tenth of the default limits, so that no step takes long
        limits = LLParserLimits(initial_lexer_fuel=200_000, step_lexer_fuel=100_000, max_lexer_states=20_000)
        matcher = LLMatcher(self._inner, form.grammar, log_level=0, limits=limits)
        matcher.compute_bitmask()  # lets other threads run while it finds forced text, which may take long
        state = FormState(form, self, matcher, None)
        state.cache_allowed_tokens()  # fails if no token begins it
        return state

    def list_spelling_ids(self, token: int, at_text_start: bool) -> tuple[int, ...]:
        """Returns the spellings of a token, the most common first. at_text_start: whether it begins a text."""
        other = self._others.get(token)
        if other is None or not (at_text_start or self.are_words):
            return (token,)
        drops_space = at_text_start and self.are_words and self.pieces[token][:1] == b" "
        return (other, token) if drops_space else (token, other)

    def spelling_mask_to_token_mask(self, spelling_mask: NDArray[np.bool_], at_text_start: bool) -> NDArray[np.bool_]:
        """Returns a mask (V,) of the tokens of which a spelling is in `spelling_mask`, which is over all spellings."""
        allowed_V = spelling_mask[: self.size].copy()
        if at_text_start or self.are_words:
            allowed_V[self._owners] |= spelling_mask[self.size : self.size + len(self._owners)]
        return allowed_V


def _consume_token(matcher: "LLMatcher", token: int) -> bool:
    """Advances a matcher by a token, unless another one is forced. Returns whether it did."""
    forced = matcher.compute_ff_tokens()
    return token == (forced or [token])[0] and bool(matcher.consume_token(token))


def _sort_key_for_closing(piece: bytes) -> float:
    """Ranks closing quotes and brackets first, then separators, digits, letters, other characters and white space."""
    core, classes = piece.strip(), (b"\"'}])", b",:", b"0123456789")
    of_others = 5 if not core else 3 if core.isalnum() else 4
    number = next((n for n, kind in enumerate(classes) if core and not core.strip(kind)), of_others)
    opens = sum(core.count(opening) - core.count(closing) for opening, closing in (b"{}", b"[]", b"()"))
    within = 0.3 + 0.05 * opens if number else 0.3 * (core[:1] != b'"')  # a bracket may be the content of a text
    return number + min(0.9, max(0.0, within + 0.001 * len(piece)))


_VOCABULARIES: WeakKeyDictionary[Tokenizer, SpelledVocabulary] = WeakKeyDictionary()
_VOCABULARY_LOCK = Lock()


def get_spelled_vocabulary(tokenizer: Tokenizer) -> SpelledVocabulary:
    """Returns the spelled vocabulary of a tokenizer. The first call takes a second."""
    with _VOCABULARY_LOCK:
        if tokenizer not in _VOCABULARIES:
            _VOCABULARIES[tokenizer] = SpelledVocabulary(tokenizer)
        return _VOCABULARIES[tokenizer]


def check_form_and_create_state(form: TextForm, tokenizer: Tokenizer, max_new_tokens: int | None = None) -> FormState:
    """Returns the place of a form before its first token.

    Raises UsageError if the tokenizer cannot write it, and if a form that must be complete needs more than
    `max_new_tokens`.
    """
    state = get_spelled_vocabulary(tokenizer).get_initial_state(form)
    if form.complete and max_new_tokens is not None:
        if state.closing_tokens is None:
            state.dead_end.cache_allowed_tokens()
            raise UsageError("no end of this form was found, which `complete` needs", fix="omit --complete")
        if len(state.closing_tokens) > max_new_tokens:
            n = len(state.closing_tokens)
            what = f"the shortest text found of this form has {n} tokens, more than {max_new_tokens}"
            raise UsageError(what, fix=f"allow as many with --max-new-tokens {n}")
    return state
