"""The pictures of the documentation: small, still but for the recording, and shown."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
PICTURES = sorted((ROOT / "docs" / "pictures").iterdir())
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
LARGEST = 60_000
LARGEST_RECORDING = 150_000
FIRST_SCREEN = 30


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_is_small_and_asks_for_nothing(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    is_still = picture.stem != "recording"
    assert len(text.encode()) < (LARGEST if is_still else LARGEST_RECORDING)
    assert ("animation" in text) is not is_still
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert all(map(root.get, ("width", "height", "aria-label")))
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "circle", "style", "g", "path", "polyline", "rect", "text", "title"}
    assert not re.search(r"\bon\w+=|href|url\(|@import|!ENTITY", text)


def test_every_picture_is_shown_and_described() -> None:
    shown = {}
    for page in PAGES:
        for description, target in re.findall(r"!\[([^]]*)\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            shown[(page.parent / target).resolve()] = description
    assert set(shown) == set(PICTURES)
    assert all(shown.values())


def test_the_readme_begins_with_a_picture() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert any("](docs/pictures/" in line for line in lines[:FIRST_SCREEN])
