"""Very long runs of one kind of characters: cut where a tokenizer is trained, and whole again when decoded."""

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.tokenization import training
from lmtool.tokenization.tokenizer import Tokenizer
from lmtool.tokenization.training import MAX_RUN_CHARACTERS, split_long_runs
from tests.support.texts import prose
from tests.support.tokenizers import SPECS

MANY = 100_000
RUNS = {
    "letters": "a" * MANY,
    "mixed": "ab1é" * (MANY // 4),
    "marks": "!-" * (MANY // 2),
    "spaces": " \t" * (MANY // 2),
}


def same_class(text: str) -> Iterator[str]:
    """The runs of a text, found one character after the other."""

    def kind(character: str) -> str:
        return "letter" if character.isalnum() else "space" if character.isspace() else "mark"

    held = ""
    for character in text:
        if held and kind(held[-1]) != kind(character):
            yield held
            held = ""
        held += character
    if held:
        yield held


@given(st.lists(st.tuples(st.sampled_from("aé1_ \n!"), st.integers(1, 12)), max_size=12))
def test_pieces_are_the_text_without_long_runs(parts: list[tuple[str, int]]) -> None:
    text = "".join(character * n for character, n in parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "MAX_RUN_CHARACTERS", 4)
        pieces = list(split_long_runs(text))
    assert "".join(pieces) == text
    assert all(len(run) < 8 for piece in pieces for run in same_class(piece))
    if all(len(run) < 4 for run in same_class(text)):
        assert pieces == [text]


@pytest.mark.parametrize(
    ("kind", "run"), [("bpe", "letters"), ("wordpiece", "mixed"), ("word", "marks"), ("bpe", "spaces")]
)
def test_a_tokenizer_is_trained_on_a_long_run_as_on_its_parts(kind: str, run: str) -> None:
    """Of 200,000 characters in one run it took over a minute."""
    text = prose(3000)
    plain = [text, *re.findall(f"(?s).{{1,{MAX_RUN_CHARACTERS}}}", RUNS[run]), text]
    trained = Tokenizer.train(SPECS[kind], [text, RUNS[run], text])
    assert trained.to_json() == Tokenizer.train(SPECS[kind], plain).to_json()
    if kind == "bpe":
        together = f"the {RUNS[run]} end"
        ids, lengths = trained.encode_many([together])
        assert trained.decode(ids.tolist()) == together
        assert ids.tolist() == trained.encode(together)
        assert lengths.tolist() == [len(ids)]


def test_a_word_with_marks_between_its_letters_is_cut_too() -> None:
    """Of one word to WordPiece, though no two neighbours are of one class."""
    tokenizer = Tokenizer.train(SPECS["wordpiece"], [prose(3000), "हि" * 50_000])
    assert tokenizer.decode(tokenizer.encode("हिहि")) == "हिहि"
