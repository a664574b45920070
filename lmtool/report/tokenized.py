"""The pieces of a text in colours, and the merges that lead to them, as a page."""

from collections.abc import Sequence

from markupsafe import Markup

from lmtool.printable import format_count
from lmtool.report.page import Section, asset, page, render, table
from lmtool.tokenization.merging import MergedWord, trace_merges
from lmtool.tokenization.tokenizer import Tokenizer


def as_page(tokenizer: Tokenizer, text: str) -> str:
    """A text as its tokenizer divides it, as an HTML page that stands alone."""
    ids = tokenizer.encode(text)
    rows: list[list[str | int]] = [
        [number, token, repr(tokenizer.display_token(token))] for number, token in enumerate(ids, 1)
    ]
    pieces = _coloured(tokenizer, ids) + table(["place", "id", "piece"], rows)
    sections = [Section("Pieces", pieces)]
    words = trace_merges(tokenizer, text)
    if words:
        sections.append(Section("Merges, in order", _merges(tokenizer, words)))
    n_bytes = len(text.encode(errors="replace"))
    size = f"{format_count(len(ids), 'piece')} of {format_count(n_bytes, 'byte')}"
    lead = f"{tokenizer.kind} tokenizer of {tokenizer.vocab_size:,} entries: {size}"
    return page("Tokenized text", sections, lead=lead, styles=[asset("pieces.css")])


def _coloured(tokenizer: Tokenizer, ids: Sequence[int]) -> Markup:
    return render("pieces.html", pieces=[{"id": token, "text": tokenizer.display_token(token)} for token in ids])


def _merges(tokenizer: Tokenizer, words: Sequence[MergedWord]) -> Markup:
    """The merges of each different word, in the order in which the words first occur."""
    rows: list[Sequence[str | int | None]] = []
    different = {tuple(word.initial_pieces): word for word in words}
    for word in different.values():
        rows.append([0, None, None, _coloured(tokenizer, word.initial_pieces)])
        for step, merge in enumerate(word.merges, 1):
            joined = f"{tokenizer.display_token(merge.left)!r} + {tokenizer.display_token(merge.right)!r}"
            rows.append([step, joined, merge.priority, _coloured(tokenizer, merge.pieces_after)])
    caption = "Each word begins as bytes; of all merges that are possible, the one learned first comes next."
    return table(["step", "merge", "priority", "pieces after it"], rows, caption=caption)
