"""Renders a page with the pieces of a text in colours and the merges that lead to them."""

from collections.abc import Sequence

from markupsafe import Markup

from lmtool.printable import format_count
from lmtool.report.page import Section, page, render, table
from lmtool.tokenization.merging import trace_merges
from lmtool.tokenization.tokenizer import Tokenizer


def render_tokenized_page(tokenizer: Tokenizer, text: str) -> str:
    """Renders the tokens of a text as a complete HTML page."""
    ids = tokenizer.encode(text)
    rows: list[list[str | int]] = [
        [number, token, repr(tokenizer.display_token(token))] for number, token in enumerate(ids, 1)
    ]
    pieces = _render_pieces(tokenizer, ids) + table(["place", "id", "piece"], rows)
    sections = [Section("Pieces", pieces)]
    words = trace_merges(tokenizer, text)
    if words:
        merges: list[Sequence[str | int | None]] = []
        # of each different word, in the order in which the words first occur
        for word in {tuple(word.initial_pieces): word for word in words}.values():
            merges.append([0, None, None, _render_pieces(tokenizer, word.initial_pieces)])
            for step, merge in enumerate(word.merges, 1):
                joined = f"{tokenizer.display_token(merge.left)!r} + {tokenizer.display_token(merge.right)!r}"
                merges.append([step, joined, merge.priority, _render_pieces(tokenizer, merge.pieces_after)])
        caption = "Each word begins as bytes; of all merges that are possible, the one learned first comes next."
        columns = ["step", "merge", "priority", "pieces after it"]
        sections.append(Section("Merges, in order", table(columns, merges, caption=caption)))
    n_bytes = len(text.encode(errors="replace"))
    size = f"{format_count(len(ids), 'piece')} of {format_count(n_bytes, 'byte')}"
    lead = f"{tokenizer.kind} tokenizer of {tokenizer.vocab_size:,} entries: {size}"
    return page("Tokenized text", sections, lead=lead, styles=["pieces.css"])


def _render_pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> Markup:
    return render("pieces.html", pieces=[{"id": token, "text": tokenizer.display_token(token)} for token in ids])
