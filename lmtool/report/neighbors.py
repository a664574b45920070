"""A word and its nearest neighbours as points in the plane: in a terminal, or on a page."""

from collections.abc import Iterator

from rich.text import Text

from lmtool.analysis.neighbors import MapName, Neighbors, plane
from lmtool.printable import printable
from lmtool.report.page import Section, figure, page, render, table

WIDTH, HEIGHT, MARGIN = 640, 480, 40
"""Pixels of the map, and of the frame around its points."""

BEFORE, AFTER = 30, 40
"""Characters of a text that are shown before and from the beginning of a word."""

ROWS = 24
"""Lines of the map in a terminal."""

METHODS: dict[MapName, str] = {"pca": "the two principal components", "tsne": "t-SNE"}


def points(neighbors: Neighbors, method: MapName) -> list[tuple[float, float]]:
    """Where the word and then its neighbours are."""
    return [(x, y) for x, y in plane(neighbors.vectors, method).tolist()]


def _names(neighbors: Neighbors) -> list[str]:
    return [printable(name) for name in (neighbors.word, *(neighbor.word for neighbor in neighbors.nearest))]


def _shares(coordinates: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points as shares of the width and the height, both on the same scale and from the upper left."""
    xs, ys = zip(*coordinates, strict=True)
    wide = max(max(xs) - min(xs), max(ys) - min(ys)) or 1.0
    middle_x, middle_y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    return [(0.5 + (x - middle_x) / wide, 0.5 - (y - middle_y) / wide) for x, y in coordinates]


def as_lines(neighbors: Neighbors, method: MapName, width: int, *, ascii_only: bool = False) -> Iterator[str | Text]:
    """The map as lines of text: the word as *, each neighbour by its number, then the list of them."""
    grid = [[" "] * width for _ in range(ROWS)]
    shares = _shares(points(neighbors, method))
    for number, (x, y) in reversed(list(enumerate(shares))):
        mark = str(number) if number else "*"
        first, row = min(round(x * (width - 1)), width - len(mark)), round(y * (ROWS - 1))
        grid[row][first : first + len(mark)] = mark
    yield from ("".join(row).rstrip() for row in grid)
    yield f"* {_names(neighbors)[0]}, by {METHODS[method]}"
    yield from list_lines(neighbors, numbered=True)


def list_lines(neighbors: Neighbors, *, numbered: bool = False) -> Iterator[str]:
    """Similarity and word of each neighbour, and the text that it is in, if any."""
    wide = max((len(neighbor.word) for neighbor in neighbors.nearest), default=0)
    for number, neighbor in enumerate(neighbors.nearest, 1):
        line = f"{neighbor.similarity:.3f}  {neighbor.word}"
        if neighbor.text is not None:
            line = f"{neighbor.similarity:.3f}  {neighbor.word:{wide}}  {_excerpt(neighbor.text, neighbor.start)}"
        yield f"{number:>3}  {line}" if numbered else line


def _excerpt(text: str, start: int) -> str:
    """A text around the word that begins at `start`."""
    first, last = max(0, start - BEFORE), start + AFTER
    return ("…" if first else "") + text[first:last] + ("…" if last < len(text) else "")


def as_page(neighbors: Neighbors, method: MapName) -> str:
    """The map as an HTML page that stands alone."""
    coordinates, names = points(neighbors, method), _names(neighbors)
    texts = [None, *(None if neighbor.text is None else printable(neighbor.text) for neighbor in neighbors.nearest)]
    words = list(zip(names, texts, _shares(coordinates), strict=True))
    picture = render("scatter.svg", width=WIDTH, height=HEIGHT, margin=MARGIN, words=words)
    similarities = [None, *(neighbor.similarity for neighbor in neighbors.nearest)]
    rows = [[*cells, *point] for *cells, point in zip(names, similarities, texts, coordinates, strict=True)]
    caption = f"{names[0]} and its {len(rows) - 1} nearest neighbours by cosine, drawn by {METHODS[method]}."
    numbers = table(["word", "similarity", "text", "x", "y"], rows)
    lead = printable(f"{neighbors.loaded.run_path}, step {neighbors.loaded.step}")
    return page(f"Neighbours of {names[0]}", [Section("Map", figure(picture, caption, numbers))], lead=lead)
