"""The reference in docs/ is that of the program: `make reference` has written it."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
HINT = "run `make reference`"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_of_the_program(reference: ModuleType) -> None:
    found = set()
    for name in reference.PAGES:
        page = (DOCS / name).read_text(encoding="utf-8")
        assert reference.filled(page) == page, f"{name} is not of this program: {HINT}"
        found |= {part for _, part, _ in reference.PART.findall(page)}
    assert found == set(reference.MADE)


def test_the_pictures_of_recipes_are_of_the_program(reference: ModuleType) -> None:
    pictures = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "pictures").glob("recipe-*.svg")}
    assert pictures == {file: picture for picture, file in reference.picture_files().items()}, HINT


def test_what_is_generated_is_nowhere_made_by_the_site(reference: ModuleType) -> None:
    for path in DOCS.rglob("*.md"):
        page = path.read_text(encoding="utf-8")
        assert ":::" not in page
        if path.name in reference.PAGES:
            assert page.count("<!-- generated: ") == len(reference.PART.findall(page))


@pytest.mark.parametrize(
    ("docstring", "lines"),
    [
        ("A text. a: one. b, c: two <x>.", ["A text.", "", "- `a`: one.", "- `b`, `c`: two &lt;x>."]),
        ("A text.\n\na: one.\nb: two.\n\nRaises.", ["A text.", "", "- `a`: one.", "- `b`: two.", "", "Raises."]),
        ("A text: d: three.", ["A text: d: three."]),
    ],
)
def test_what_a_docstring_says_of_parameters_is_a_list(reference: ModuleType, docstring: str, lines: list[str]) -> None:
    assert reference.listed(docstring, ["a", "b", "c"]) == lines
