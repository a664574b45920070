"""docs/course.md: each topic has all its parts, what it names exists, and its commands run in a fresh folder.

Each model behind the topics is trained once, and again where it depends on a change.
"""

import importlib
import json
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.docs import PAGE, ROOT, TOPICS, check_lmtool, names_in

PARTS = {
    "rows and idea": r"\A(?:`[A-Z]\d+` )+\w",
    "formula": r"^(?:    |\$\$\n)\S",
    "commands": r"^```sh\n\S",
    "output": r"^```\n<!-- output: (?:last \d+|lines .+) -->\n```text\n(?!```)",
    "time": r"^Takes about \d+ (?:seconds|minutes)\.$",
    "code": r"\bCode:\s+\[`",
    "test": r"\bTest:\s+\[`",
    "exercise": r"^Exercise: ",
    "answer": r"^<details><summary>Answer</summary>\n\n(?:.+\n)+(?:.*\n)*\n?</details>$",
}
SIZES = {"K": 3, "M": 22, "O": 14, "F": 7, "D": 8, "E": 4, "S": 21}
ROWS = {f"{letter}{number}" for letter, size in SIZES.items() for number in range(1, size + 1)}
OTHERS = {"F1", "D1", "D2", "D3", "O3"}
"""Rows whose ids mean something else elsewhere: the F-measure, discounts of Kneser and Ney, an option of compilers."""


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_has_all_parts_and_names_what_exists(topic: str) -> None:
    lacking = [name for name, part in PARTS.items() if not re.search(part, TOPICS[topic], flags=re.MULTILINE)]
    assert not lacking
    assert TOPICS[topic].count("<!-- output: ") == TOPICS[topic].count("```sh\n") == 1
    folders = set()
    for name, link in re.findall(r"\[`([^`]+)`\]\((\S+\.py)\)", TOPICS[topic]):
        path = (ROOT / "docs" / link).resolve().relative_to(ROOT)
        file, _, test = name.rpartition("::")
        assert test in names_in(ROOT / path), f"{path} has no {test}"
        assert file in ("", str(path))
        folders.add(path.parts[0])
    assert folders == {"lmtool", "tests"}


def test_pictures_are_those_that_commands_draw() -> None:
    drawn = re.findall(r"^<!-- picture: (course-\S+) \S+ of (\S+): .+ -->$", PAGE, flags=re.MULTILINE)
    shown = re.findall(r"\(pictures/([\w-]+)\.svg\)", PAGE)
    assert shown == [name for name, _ in drawn if name in shown]
    assert len(drawn) == PAGE.count("<!-- picture: ")
    for name, file in drawn:
        (topic,) = [text for text in TOPICS.values() if f"picture: {name} " in text]
        assert re.search(rf"(?:-o|--html|>) {re.escape(file)}$", topic, flags=re.MULTILINE)


def test_every_row_stands_once_and_nowhere_else() -> None:
    beginnings = [re.match(r"(?:`[A-Z]\d+` )+", text) for text in TOPICS.values()]
    found = [row for start in beginnings if start for row in re.findall(r"[A-Z]\d+", start[0])]
    assert Counter(found) == Counter(ROWS)
    name = re.compile(rf"\b(?:{'|'.join(sorted(ROWS - OTHERS))})\b")
    files = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "lmtool").rglob("*.py"), ROOT / "README.md"]
    assert [
        f"{path.relative_to(ROOT)}: {other[0]}"
        for path in files
        if path.name != "course.md" and (other := name.search(path.read_text(encoding="utf-8")))
    ] == []


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/pages.py."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("pages")


@pytest.fixture
def course(pages: Any, tmp_path: Path) -> Any:
    """Runs the commands of a page, or of some of its topics, in a fresh folder."""
    return lambda page, *topics: pages.Course(tmp_path / "course", tmp_path / "pictures", list(topics)).run(page)


def test_output_is_written_below_its_marker(course: Any) -> None:
    marker = "<!-- output: lines ^b|^c$ -->\n"
    page = f"### One\n\n```sh\nprintf 'a\\nb 1\\n' > file\ncat file \\\n  file\n```\n{marker}\nText.\n"
    after = f"### Two\n```sh\ncat file; echo c\n```\n{marker}"
    filled = course(page + after)
    took = "\nTakes about 5 seconds.\n"
    first = page.replace(marker, f"{marker}```text\nb 1\nb 1\n```\n{took}")
    assert filled == f"{first}{after}```text\nb 1\nc\n```\n{took}\n"
    assert course(filled) == filled
    other = filled.replace("echo c", "echo b")
    assert course(other, "Two") == other.replace("b 1\nc\n", "b 1\nb\n"), "only the second one is run"


def test_a_picture_of_attention_is_of_a_layer_and_a_head_or_of_a_mean(course: Any, tmp_path: Path) -> None:
    of_heads = [[[[1.0]], [[0.5]]], [[[0.3]], [[0.2]]]]
    attention = {"attention": [{"kind": "self", "queries": ["a"], "keys": ["a"], "weights": of_heads}]}
    parts = {"course-mean": "self", "course-layer": "self/0", "course-head": "self/0/1"}
    markers = "\n\n".join(f"<!-- picture: {name} {part} of a.json: It -->" for name, part in parts.items())
    course(f"### One\n```sh\necho '{json.dumps(attention)}' > a.json\n```\n{markers}\n")
    for name, weight in zip(parts, ("25", "75", "5"), strict=True):
        drawn = (tmp_path / "pictures" / f"{name}.svg").read_text().partition("</style>")[2]
        assert re.findall(r"(?<![\d.])0?\.(25|75|5)(?!\d)", drawn)[0] == weight


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("```sh\necho out; exit 3\n```\n", "exit code 3\nout"),
        ("```sh\necho out\n```\n<!-- output: lines ^in -->\n", "nothing is chosen of\nout"),
    ],
)
def test_a_command_that_fails_ends_the_course(course: Any, page: str, words: str) -> None:
    with pytest.raises(SystemExit, match=words):
        course(page)


def test_a_course_that_failed_goes_on(pages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = "".join(
        f"### {name}\n```sh\n{command}\n```\n<!-- output: last 1 -->\n"
        for name, command in (("One", "echo 1 | tee one"), ("Two", "cat two"), ("Three", "cat one"))
    )
    page = tmp_path / "course.md"
    page.write_text(topics)
    (tmp_path / "teaching.md").write_text("| Slide | [One](course.md#one) | |\n")
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    monkeypatch.setattr(pages, "BUILD", tmp_path)
    with pytest.raises(SystemExit, match="cat two: exit code 1"):
        pages.main(["course"])
    assert page.read_text().count("```text\n1\n```") == 1, "what was run is written"
    page.write_text(page.read_text().replace("cat two", "echo 2"))
    pages.main(["course", "--from", "Two"])
    assert re.findall(r"^```text\n(.*)\n```$", page.read_text(), flags=re.MULTILINE) == ["1", "2", "1"]
    with pytest.raises(SystemExit, match="Four: no such topic; there are: One, Two, Three"):
        pages.main(["course", "--from", "Four"])


def test_minutes_of_lectures_are_those_of_their_topics(pages: Any) -> None:
    page = "### A and [B]\nTakes about 30 seconds.\n### C\nTakes about 2 minutes.\n### D\n"
    a, c = "[A](course.md#a-and-b)", "[C](course.md#c)"
    rows = f"| 1 | {a} | |\n| 2 | {a}, {c} | 7.0 |\n| {c} too |\n| 3 | {a}, [D](course.md#d) | |\n"
    counted = rows.replace("b) | |", "b) | 0.5 |", 1).replace("7.0", "2.5")
    assert pages.with_minutes(rows, page) == counted
    lectures = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
    assert pages.with_minutes(lectures, PAGE) == lectures
    of_topics = [line for line in lectures.splitlines() if "course.md#" in line and line.count(" | ") == 3]
    assert of_topics
    assert all(re.search(r"\| \d+(?:\.\d)? \|$", row) for row in of_topics)


def test_contents_name_each_topic_in_its_chapter_with_a_command() -> None:
    (contents,) = re.findall(r"^## Contents$(.*?)^## ", PAGE, flags=re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| .+\? \| \[(.+)\]\(#(.+)\) \| `lmtool .+` \|$", contents, flags=re.MULTILINE)
    assert [name for name, _ in rows] == [*TOPICS]
    assert [anchor for _, anchor in rows] == [re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-") for name in TOPICS]
    for command in re.findall(r"`lmtool ([^`]+)`", contents):
        check_lmtool(shlex.split(command))


COMMANDS = ["head data/stories.txt > few.txt", "train few.txt -o runs/a", "train few.txt --from a -o runs/b"]


@pytest.fixture
def ran(pages: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that were run; one that trains leaves a run."""
    commands: list[str] = []

    def run(command: str, folder: Path, **variables: str) -> None:
        commands.append(command)
        if "runs/" in command:
            (folder / "runs" / command.rpartition("runs/")[2].split()[0]).mkdir(parents=True)

    monkeypatch.setattr(pages, "run_command", run)
    return commands


@pytest.fixture
def models(pages: Any, tmp_path: Path) -> Any:
    """Of commands the models that they train in a folder."""
    chapter = f"{pages.CHAPTER}\n\n```sh\n%s\n```\n"
    return lambda commands, *settings: pages.Models(tmp_path, chapter % "\n".join(commands), *settings)


def test_models_are_trained_once_in_their_order(models: Any, tmp_path: Path, ran: list[str]) -> None:
    with pytest.raises(SystemExit, match="models are missing: a, b; make course-models"):
        models(COMMANDS).copy_to(tmp_path / "no")
    models(COMMANDS).train()
    assert ran == COMMANDS
    ran.clear()
    models(COMMANDS).train()
    assert ran == COMMANDS[:1], "only the tables are made again"
    models(COMMANDS).copy_to(tmp_path / "copy")
    assert {path.name for path in (tmp_path / "copy" / "runs").iterdir()} == {"a", "b"}


def test_a_changed_command_trains_all_that_begin_with_it(models: Any, ran: list[str]) -> None:
    models(COMMANDS).train()
    ran.clear()
    changed = [COMMANDS[0], "train few.txt --more -o runs/a", COMMANDS[2]]
    models(changed).train()
    assert ran == changed
    ran.clear()
    other = [*changed[:2], "train few.txt --from a --less -o runs/b"]
    models(other).train()
    assert ran == [other[0], other[2]]


def test_a_model_that_was_interrupted_is_trained_anew(models: Any, tmp_path: Path, ran: list[str]) -> None:
    models(COMMANDS).train()
    (tmp_path / "b.done").unlink()
    (tmp_path / "runs" / "b" / "left").touch()
    ran.clear()
    models(COMMANDS, "training.steps=2").train()
    assert ran == [COMMANDS[0], f"{COMMANDS[2]} -s training.steps=2"]
    assert not [*tmp_path.glob("runs/b/left")], "nothing of it is left"


def test_the_models_of_the_page(pages: Any, tmp_path: Path) -> None:
    found = pages.Models(tmp_path, PAGE).models
    assert {model.name for model in found} >= {"gpt", "bert", "t5", "elmo", "luong", "translator"}
    assert [need.name for model in found if model.name == "long" for need in model.needs] == ["short"]


@pytest.mark.slow
def test_the_commands_run_in_a_fresh_folder(course: Any, pages: Any, tmp_path: Path) -> None:
    models = pages.Models(
        tmp_path / "models", PAGE, "training.steps=2", "evaluation.every=2", "schedule.warmup_steps=1"
    )
    models.train()
    models.copy_to(tmp_path / "course")
    assert course(PAGE).count("```text\n") == len(TOPICS)
    drawn = {path.stem for path in (tmp_path / "pictures").iterdir()}
    assert drawn == set(re.findall(r"^<!-- picture: (\S+)", PAGE, flags=re.MULTILINE))
