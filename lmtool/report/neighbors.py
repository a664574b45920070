"""Draws a word and its nearest neighbours as points in the plane: in a terminal, or on a page."""

from collections.abc import Iterator

from rich.text import Text

from lmtool.evaluation.neighbors import MapName, Neighbors, project_to_plane
from lmtool.printable import printable
from lmtool.report.page import Section, figure, page, render, table

WIDTH, HEIGHT, MARGIN = 640, 480, 40
"""Size of the map in pixels, and the margin around its points."""

CHARACTERS_BEFORE, CHARACTERS_AFTER = 30, 40
"""Characters of a text that are shown before a word, and from its beginning."""

TERMINAL_LINES = 24
"""Height of the map in a terminal."""

METHOD_TITLES: dict[MapName, str] = {"pca": "the two principal components", "tsne": "t-SNE"}


def project_neighbors(neighbors: Neighbors, method: MapName) -> list[tuple[float, float]]:
    """Returns coordinates of the word and then of its neighbours."""
    return [(x, y) for x, y in project_to_plane(neighbors.vectors, method).tolist()]


def _list_words(neighbors: Neighbors) -> list[str]:
    return [printable(name) for name in (neighbors.word, *(neighbor.word for neighbor in neighbors.nearest))]


def _scale_to_unit_image_coordinates(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Scales points to shares of the width and the height from the upper left, both on the same scale."""
    xs, ys = zip(*points, strict=True)
    wide = max(max(xs) - min(xs), max(ys) - min(ys)) or 1.0
    middle_x, middle_y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    return [(0.5 + (x - middle_x) / wide, 0.5 - (y - middle_y) / wide) for x, y in points]


def format_neighbor_map_lines(
    neighbors: Neighbors, method: MapName, width: int, *, ascii_only: bool = False
) -> Iterator[str | Text]:
    """Formats the map as lines of text, the word as * and neighbours by number, and then a list of the neighbours."""
    grid = [[" "] * width for _ in range(TERMINAL_LINES)]
    shares = _scale_to_unit_image_coordinates(project_neighbors(neighbors, method))
    for number, (x, y) in reversed(list(enumerate(shares))):
        mark = str(number) if number else "*"
        first, row = min(round(x * (width - 1)), width - len(mark)), round(y * (TERMINAL_LINES - 1))
        grid[row][first : first + len(mark)] = mark
    yield from ("".join(row).rstrip() for row in grid)
    yield f"* {_list_words(neighbors)[0]}, by {METHOD_TITLES[method]}"
    yield from format_neighbors(neighbors, numbered=True)


def format_neighbors(neighbors: Neighbors, *, numbered: bool = False) -> Iterator[str]:
    """Formats a line for each neighbour: its similarity, word, and an excerpt of its text, if any."""
    wide = max((len(neighbor.word) for neighbor in neighbors.nearest), default=0)
    for number, neighbor in enumerate(neighbors.nearest, 1):
        line = f"{neighbor.similarity:.3f}  {neighbor.word}"
        if neighbor.text is not None:
            first, last = max(0, neighbor.start - CHARACTERS_BEFORE), neighbor.start + CHARACTERS_AFTER
            excerpt = ("…" if first else "") + neighbor.text[first:last] + ("…" if last < len(neighbor.text) else "")
            line = f"{neighbor.similarity:.3f}  {neighbor.word:{wide}}  {excerpt}"
        yield f"{number:>3}  {line}" if numbered else line


def render_neighbor_map_page(neighbors: Neighbors, method: MapName) -> str:
    """Renders the map as a complete HTML page."""
    coordinates, names = project_neighbors(neighbors, method), _list_words(neighbors)
    texts = [None, *(None if neighbor.text is None else printable(neighbor.text) for neighbor in neighbors.nearest)]
    words = list(zip(names, texts, _scale_to_unit_image_coordinates(coordinates), strict=True))
    picture = render("scatter.svg", width=WIDTH, height=HEIGHT, margin=MARGIN, words=words)
    similarities = [None, *(neighbor.similarity for neighbor in neighbors.nearest)]
    rows = [[*cells, *point] for *cells, point in zip(names, similarities, texts, coordinates, strict=True)]
    caption = f"{names[0]} and its {len(rows) - 1} nearest neighbours by cosine, drawn by {METHOD_TITLES[method]}."
    numbers = table(["word", "similarity", "text", "x", "y"], rows)
    lead = printable(f"{neighbors.loaded.run_path}, step {neighbors.loaded.step}")
    return page(f"Neighbours of {names[0]}", [Section("Map", figure(picture, caption, numbers))], lead=lead)
