"""A word and its nearest neighbours as points in the plane: in a terminal, or on a page."""

from collections.abc import Iterator

from rich.text import Text

from lmtool.inference.neighbors import MapName, Neighbors, plane
from lmtool.printable import plain
from lmtool.report.page import Section, figure, page, render, table

WIDTH, HEIGHT, MARGIN = 640, 480, 40
"""Pixels of the map, and of the frame around its points."""

BEFORE, AFTER = 30, 40
"""Characters of a text that are shown before and from the beginning of a word."""

ROWS = 24
"""Lines of the map in a terminal."""

METHODS: dict[MapName, str] = {"pca": "the two principal components", "tsne": "t-SNE"}


def points(found: Neighbors, method: MapName) -> list[tuple[float, float]]:
    """Where the word and then its neighbours are."""
    return [(x, y) for x, y in plane(found.vectors, method).tolist()]


def _names(found: Neighbors) -> list[str]:
    return [plain(name) for name in (found.word, *(neighbor.word for neighbor in found.nearest))]


def _shares(places: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Places as shares of the width and the height, both on the same scale and from the upper left."""
    xs, ys = zip(*places, strict=True)
    wide = max(max(xs) - min(xs), max(ys) - min(ys)) or 1.0
    middle_x, middle_y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    return [(0.5 + (x - middle_x) / wide, 0.5 - (y - middle_y) / wide) for x, y in places]


def as_lines(found: Neighbors, method: MapName, width: int, *, ascii_only: bool = False) -> Iterator[str | Text]:
    """The map as lines of text: the word as *, each neighbour by its number, then the list of them."""
    grid = [[" "] * width for _ in range(ROWS)]
    shares = _shares(points(found, method))
    for number, (x, y) in reversed(list(enumerate(shares))):
        mark = str(number) if number else "*"
        first, row = min(round(x * (width - 1)), width - len(mark)), round(y * (ROWS - 1))
        grid[row][first : first + len(mark)] = mark
    yield from ("".join(row).rstrip() for row in grid)
    yield f"* {_names(found)[0]}, by {METHODS[method]}"
    yield from list_lines(found, numbered=True)


def list_lines(found: Neighbors, *, numbered: bool = False) -> Iterator[str]:
    """Similarity and word of each neighbour, and the text that it is in, if any."""
    wide = max((len(neighbor.word) for neighbor in found.nearest), default=0)
    for number, neighbor in enumerate(found.nearest, 1):
        line = f"{neighbor.similarity:.3f}  {neighbor.word}"
        if neighbor.text is not None:
            line = f"{neighbor.similarity:.3f}  {neighbor.word:{wide}}  {_excerpt(neighbor.text, neighbor.start)}"
        yield f"{number:>3}  {line}" if numbered else line


def _excerpt(text: str, start: int) -> str:
    """A text around the word that begins at `start`."""
    first, last = max(0, start - BEFORE), start + AFTER
    return ("…" if first else "") + text[first:last] + ("…" if last < len(text) else "")


def as_page(found: Neighbors, method: MapName) -> str:
    """The map as an HTML page that stands alone."""
    places, names = points(found, method), _names(found)
    texts = [None, *(neighbor.text for neighbor in found.nearest)]
    drawn = [
        {
            "x": round(MARGIN + x * (WIDTH - 2 * MARGIN)),
            "y": round(MARGIN / 2 + y * (HEIGHT - MARGIN)),
            "left": x > 0.5,
            "name": name if len(name) <= 24 else f"{name[:23]}…",
            "title": name if text is None else f"{name}: {plain(text)}",
        }
        for (x, y), name, text in zip(_shares(places), names, texts, strict=True)
    ]
    picture = render("scatter.svg", width=WIDTH, height=HEIGHT, label=f"Map of {len(drawn)} words", points=drawn)
    similarities = [None, *(neighbor.similarity for neighbor in found.nearest)]
    rows = [
        [name, similarity, None if text is None else plain(text), x, y]
        for name, similarity, text, (x, y) in zip(names, similarities, texts, places, strict=True)
    ]
    caption = f"{names[0]} and its {len(rows) - 1} nearest neighbours by cosine, drawn by {METHODS[method]}."
    numbers = table(["word", "similarity", "text", "x", "y"], rows)
    lead = plain(f"{found.loaded.run_path}, step {found.loaded.step}")
    return page(f"Neighbours of {names[0]}", [Section("Map", figure(picture, caption, numbers))], lead=lead)
