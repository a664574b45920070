"""The overview of the gallery: a card for each of its pages, with its picture and the last line that it prints."""

import re
from pathlib import Path

MARKER = "<!-- generated: gallery -->"


def filled(markdown: str, docs: Path) -> str:
    """The page with the cards in place of the list that follows the marker."""
    before, marker, after = markdown.partition(MARKER)
    if not marker:
        return markdown
    names = re.findall(r"\((\w+\.md)\)", after)
    cards = "".join(card((docs / "gallery" / name).read_text(encoding="utf-8"), name) for name in names)
    return f'{before}\n<div class="cards" markdown>\n{cards}</div>\n'


def card(page: str, name: str) -> str:
    title, _, rest = page.removeprefix("# ").partition("\n")
    picture = re.search(r"^!\[([^]]+)\]\(([^)]+)\)", page, flags=re.MULTILINE)
    printed = re.findall(r"^```text\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    shown = f"[![{picture[1]}]({picture[2]})]({name})" if picture else ""
    figure = f"`{printed[-1].splitlines()[-1]}`" if printed else ""
    told = rest.partition("\n\n")[0].strip()
    return f"<div markdown>\n\n**[{title}]({name})**\n\n{shown}\n\n{told}\n\n{figure}\n\n</div>\n"
