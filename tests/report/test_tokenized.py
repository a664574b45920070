"""Merges lead to the tokenizer's own pieces; text stays text."""

from itertools import pairwise
from typing import Any

import pytest

from lmtool.recipe.spec.text import BpeTokenizer, CharTokenizer, WordPieceTokenizer
from lmtool.report.tokenized import render_tokenized_page
from lmtool.tokenization.merging import trace_merges
from lmtool.tokenization.tokenizer import Tokenizer

TEXT = "the tale of the thin thane, whose señora </script><img src=x onerror=alert(1)> told the tale"
HOSTILE = "the </script><img src=x onerror=alert(1)> \u202etale\x1b[2J\x00"


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return Tokenizer.train(BpeTokenizer(vocab_size=320), [TEXT] * 3)


@pytest.mark.parametrize("text", [TEXT, HOSTILE, "", " ", "日本語\n\nunseen"])
def test_merges_lead_to_the_pieces(bpe: Tokenizer, text: str) -> None:
    words = trace_merges(bpe, text)
    assert [token for word in words for token in word.pieces] == bpe.encode(text)
    for word in words:
        before = word.initial_pieces
        assert len(before) == len(b"".join(bpe._bytes[token] for token in before))
        for merge in word.merges:
            i = next(i for i in range(len(before) - 1) if before[i : i + 2] == [merge.left, merge.right])
            assert merge.pieces_after == [*before[:i], merge.pieces_after[i], *before[i + 2 :]]
            names = bpe.token_name(merge.left), bpe.token_name(merge.right)
            assert bpe.merges[merge.priority - 1] == names
            assert bpe.token_name(merge.pieces_after[i]) == "".join(names)
            possible = {(bpe.token_name(a), bpe.token_name(b)) for a, b in pairwise(before)}
            assert not possible & set(bpe.merges[: merge.priority - 1])
            before = merge.pieces_after


@pytest.mark.parametrize("spec", [CharTokenizer(kind="char"), WordPieceTokenizer(kind="wordpiece", vocab_size=120)])
def test_other_tokenizers_have_no_merges(spec: Any) -> None:
    tokenizer = Tokenizer.train(spec, [TEXT])
    assert trace_merges(tokenizer, TEXT) == []
    html = render_tokenized_page(tokenizer, TEXT)
    assert "Merges" not in html
    assert html.count('class="piece ') == len(tokenizer.encode(TEXT))


def test_hostile_text_stays_text(bpe: Tokenizer) -> None:
    html = render_tokenized_page(bpe, HOSTILE)
    for wrong in ("<img", "\u202e", "\x1b", "\x00"):
        assert wrong not in html
    assert html.count("</script>") == html.count("<script>")
    assert "Merges, in order" in html


def test_the_pieces_of_the_page(bpe: Tokenizer) -> None:
    html = render_tokenized_page(bpe, "the tale")
    ids = bpe.encode("the tale")
    assert f"{len(ids)} pieces of 8 bytes" in html
    assert all(f'title="{token}"' in html for token in ids)
