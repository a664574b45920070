"""The documentation is true: its commands exist, the README's run, its links lead somewhere, its pictures are small."""

import os
import re
import shlex
import subprocess
import sys
from itertools import dropwhile, takewhile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lmtool.interop import importing
from tests.support.cli import CommandLine
from tests.support.docs import check_command
from tests.support.kernels import put_kernels
from tests.support.peers import peer_in

ROOT = Path(__file__).parents[1]
PICTURES = sorted((ROOT / "docs" / "pictures").iterdir())
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "data").rglob("*.md")])

# What a reader would wait minutes for is made small: a tiny model, few steps, few tokens. Nothing else is changed.
SMALL = {
    "pretrain": "-s training.steps=4 -s training.batch_size=4 -s training.precision=float32 -s evaluation.tokens=300 "
    "-s model.n_layers=1 -s model.d_model=16 -s model.n_heads=2 -s model.context=32",
    "resume": "-s training.steps=+2",
    "generate": "--max-new-tokens 8",
    "finetune": "--epochs 0.02 -s training.precision=float32",
}
ROWS = 300
"""Rows of a bundled table, and paragraphs of a text."""
NOT_RUN = {".", "cd", "git", "make", "pip"}
"""Programs that set up what this test runs in."""


def commands(page: Path) -> list[tuple[int, str]]:
    """(line number, command) of the ```sh blocks of a page, and of indented lines that begin with lmtool.

    Continued lines are joined, and programs that a line gives to another, up to END, left out.
    """
    found: list[tuple[int, str]] = []
    inside, begun, given = False, "", False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            inside = line == "```sh"
        elif given:
            given = line != "END"
        elif begun or (inside and line.strip()) or line.startswith("    lmtool "):
            begun += line.strip()
            if begun.endswith("\\"):
                begun = begun[:-1]
            else:
                found.append((number, begun))
                given, begun = begun.endswith("<<'END'"), ""
    return found


def simple_commands(command: str) -> list[list[str]]:
    """The words of each simple command of a shell command, without redirections, comments, groups and loops."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    parts: list[list[str]] = [[]]
    for word in lexer:
        if word in ("|", "&&", ";"):
            parts.append([])
        else:
            parts[-1].append(word)
    parts = [[*dropwhile(("(", "do").__contains__, part)] for part in parts if part and part[0] not in ("for", "done")]
    return [[*takewhile(lambda word: word not in ("<", ">"), part)] for part in parts]


pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pages
def test_commands_exist(page: Path) -> None:
    for line, command in commands(page):
        for words in simple_commands(command):
            try:
                check_command(words)
            except Exception as error:
                pytest.fail(f"{page.relative_to(ROOT)}:{line}: {command}: {error}")


@pytest.mark.parametrize(
    "command", ["lmtool pretrian x.txt", "lmtool eval last x.txt --strid 3", "lmtool eval", "lmtool runs", "make cofee"]
)
def test_a_wrong_command_is_found(command: str) -> None:
    with pytest.raises(Exception, match=r"no command|[Nn]o such|[Mm]issing"):
        check_command(*simple_commands(command))


def put_data(folder: Path) -> None:
    """The beginnings of the bundled texts and tables, of as many rows and paragraphs as a tiny model needs."""
    folder.mkdir()
    for path in (ROOT / "data").iterdir():
        end = {".csv": "\n", ".jsonl": "\n", ".txt": "\n\n"}.get(path.suffix)
        if end:
            parts = path.read_text(encoding="utf-8").split(end)[:ROWS]
            (folder / path.name).write_text(end.join(parts) + end, encoding="utf-8")


def put_stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small random models in the cache, under the names of those that the README downloads."""
    put_kernels(tmp_path / "cache")
    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path / "cache"))
    for name, case in (("HuggingFaceTB/SmolLM2-135M", "llama"), ("sentence-transformers/all-MiniLM-L6-v2", "bert")):
        folder = tmp_path / "published" / case
        peer_in(folder, case)
        monkeypatch.setattr(importing, "download_hub_model", lambda reference, folder=folder: (folder, "c0ffee"))
        importing.import_to_cache(f"hf:{name}")


@pytest.mark.system
def test_the_commands_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In their order, in a folder with what the README speaks of; in this process where no shell is needed."""
    put_data(tmp_path / "data")
    tales = (ROOT / "data" / "stories.txt").read_text(encoding="utf-8").split("\n\n")[:100]
    (tmp_path / "book.txt").write_text("\n".join(tales), encoding="utf-8")
    (tmp_path / "stories").mkdir()
    (tmp_path / "stories" / "all.txt").write_text("\n\n".join(tales), encoding="utf-8")
    (tmp_path / "prompts.txt").write_text("One day\nA girl\n", encoding="utf-8")
    rows = "".join(f'5,"{tale}"\n' for tale in (tale.replace('"', '""') for tale in tales))
    (tmp_path / "reviews.csv").write_text("stars,review\n" + rows, encoding="utf-8")
    put_stand_ins(tmp_path, monkeypatch)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    del env["LMTOOL_RUNS"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LMTOOL_RUNS")
    lmtool = CommandLine(capsys, monkeypatch)
    n_run = 0
    for line, command in commands(ROOT / "README.md"):
        # what torchrun starts is tried by one process; tests/training/test_processes.py starts several by torchrun
        command = re.sub(r"^torchrun .*?-m ", "", command)
        words = simple_commands(command)[-1]
        if words[0] in NOT_RUN:
            continue
        verb = words[words.index("lmtool") + 1] if "lmtool" in words else ""
        shrunken = re.sub(r"steps=\+\d+", "steps=+2", f"{command} {SMALL.get(verb, '')}")
        program, *arguments = shlex.split(shrunken)
        if program == "lmtool" and not set("|<>&;*$`~#") & set(shrunken):
            done = lmtool(*arguments)
            code, said = done.code, done.out + done.err
        else:
            ended = subprocess.run(["sh", "-c", shrunken], cwd=tmp_path, env=env, capture_output=True, text=True)
            code, said = ended.returncode, ended.stdout + ended.stderr
        assert code == 0, f"README.md:{line}: {shrunken}\n{said}"
        n_run += 1
    assert n_run > 10


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pages
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {link}, which is not there"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}: no such heading"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_is_small_and_asks_for_nothing(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    is_still = picture.stem != "recording"
    assert len(text.encode()) < (60_000 if is_still else 150_000)
    assert ("animation" in text) is not is_still
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert all(map(root.get, ("width", "height", "aria-label")))
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "circle", "style", "g", "path", "polyline", "rect", "text", "title"}
    assert not re.search(r"\bon\w+=|href|url\(|@import|!ENTITY", text)


def test_every_picture_is_shown_and_described() -> None:
    shown: dict[Path, str] = {}
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for description, target in re.findall(r"!\[([^]]*)\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            shown[(page.parent / target).resolve()] = description
    assert set(shown) == set(PICTURES)
    assert all(shown.values())


def test_the_readme_begins_with_a_picture() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert any("](docs/pictures/" in line for line in lines[:30])
