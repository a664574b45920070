#!/usr/bin/env python3
"""Runs the commands of docs/course.md in their order, and writes what they print and draw onto the page.

    scripts/course.py [TOPIC...]
    scripts/course.py --from TOPIC

TOPIC: headings of topics to run; all by default, in an empty folder. The folder is build/course/; it begins with the
models of `course_models.py`, and runs and tokenized texts stay there, so a topic can be run again that needs the runs
of earlier ones. The page is written after each topic: where one fails, --from goes on with it. Below a ```sh block the
page says what is shown of its output, and each topic says how long it takes, which docs/teaching.md adds up:

    <!-- output: last 2 -->             the last two lines
    <!-- output: lines ^loss|^bits -->   the lines in which the pattern is found
    <!-- picture: course-NAME 0 of page.html: WHAT IT SHOWS -->
        docs/pictures/course-NAME.svg: the first picture of a page that a command wrote
    <!-- picture: course-NAME cross of attention.json: WHAT IT SHOWS -->
        the same of `lmtool attention --json`: the weights of the last layer, as the mean of its heads; of
        another layer and of one head as self/0/1, counted from 0
    Takes about 20 seconds.              rewritten only where it is off by more than a factor of two
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from time import monotonic

from course_models import CHAPTER, Models, environment
from course_models import FOLDER as MODELS
from pictures import PICTURES, pictures_of, write

from lmtool.report.charts import HeatMap

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "course.md"
LECTURES = ROOT / "docs" / "teaching.md"
FOLDER = ROOT / "build" / "course"
ELEMENT = re.compile(
    r"^### (?P<topic>[^\n]+)$"
    r"|^```sh\n(?P<commands>.*?)^```$"
    r"|^(?P<marker><!-- output: (?P<how>last|lines) (?P<which>[^\n]+) -->)\n(?:```text\n.*?^```\n)?"
    r"(?:\n(?P<takes>Takes about [^\n]+)\n)?\n*"
    r"|^(?P<drawn><!-- picture: (?P<name>\S+) (?P<part>\S+) of (?P<file>\S+): (?P<shows>[^\n]+) -->)\n"
    r"(?:!\[[^\n]*\n)?",
    re.MULTILINE | re.DOTALL,
)


def main(asked: list[str]) -> None:
    topics = asked
    if not asked:
        shutil.rmtree(FOLDER, ignore_errors=True)
        if CHAPTER in (page := PAGE.read_text(encoding="utf-8")):
            Models(MODELS, page).copy_to(FOLDER)
    if not asked or asked[0] == "--from":
        topics = topics_of(PAGE.read_text(encoding="utf-8"), *asked[1:])
    begun = monotonic()
    for topic in topics:
        filled = Course(FOLDER, PICTURES, [topic]).run(PAGE.read_text(encoding="utf-8"))
        PAGE.write_text(filled, encoding="utf-8")
        LECTURES.write_text(with_minutes(LECTURES.read_text(encoding="utf-8"), filled), encoding="utf-8")
    print(f"{monotonic() - begun:7.1f} s  all", file=sys.stderr)


def topics_of(page: str, first: str | None = None) -> list[str]:
    """The headings of a page, in their order, from one on. SystemExit when there is no such heading."""
    headings = re.findall(r"^### (.+)$", page, flags=re.MULTILINE)
    if first is not None and first not in headings:
        raise SystemExit(f"{first}: no such topic; there are: {', '.join(headings)}")
    return headings[headings.index(first) if first else 0 :]


def commands_in(block: str) -> list[str]:
    """The commands of a block: a line each, or those up to END of a program that a line gives to another by <<'END'."""
    return re.findall(r"^.*<<'END'\n(?:.*\n)*?END$|^.+$", block.replace("\\\n", ""), flags=re.MULTILINE)


def seconds_in(said: str) -> float:
    number, unit = re.findall(r"[0-9.]+|second|minute", said)[:2]
    return float(number) * (60 if unit == "minute" else 1)


def with_minutes(lectures: str, page: str) -> str:
    """The tables of the lectures, with what the topics of each row take as its last cell."""
    said = re.findall(r"^(?:### (.+)|(Takes about .+))$", page, flags=re.MULTILINE)
    seconds = {
        re.sub(r"[^\w -]", "", topic.lower()).replace(" ", "-"): seconds_in(took)
        for (topic, _), (_, took) in pairwise(said)
        if took
    }

    def row(found: re.Match[str]) -> str:
        linked = set(re.findall(r"course\.md#([\w-]+)", found[1]))
        minutes = f"{sum(seconds[anchor] for anchor in linked) / 60:.1f} " if linked <= set(seconds) else ""
        return f"{found[1]} {minutes}|"

    return re.sub(r"^(\|.*\(course\.md#.*\|) *[\d.]* *\|$", row, lectures, flags=re.MULTILINE)


def takes(said: str | None, seconds: float) -> str:
    """How long a topic takes: what the page says, if that is right within a factor of two."""
    if said is not None and seconds_in(said) / 2 <= seconds <= seconds_in(said) * 2:
        return said
    if seconds >= 90:
        return f"Takes about {round(seconds / 60)} minutes."
    return f"Takes about {max(5, round(seconds / 5) * 5)} seconds."


class Course:
    """The commands of a page in a folder with the bundled data.

    folder: where they run. pictures: where pictures are written. topics: headings to run, all if there are none.
    """

    def __init__(self, folder: Path, pictures: Path, topics: list[str]) -> None:
        self.folder = folder
        self.pictures = pictures
        self.topics = topics
        self.is_run = not topics
        self.printed: list[str] = []
        self.seconds = self.begun = 0.0

    def run(self, page: str) -> str:
        """Run the commands of the page, and return it with their output. SystemExit where a command fails."""
        for topic in self.topics:
            topics_of(page, topic)  # ends where there is none
        if not (self.folder / "data").exists():
            shutil.copytree(ROOT / "data", self.folder / "data", ignore=shutil.ignore_patterns("__pycache__"))
        topics, chapter, models = page.partition(f"\n{CHAPTER}\n")
        filled = ELEMENT.sub(self._element, topics) + chapter + models
        print(f"{self.seconds:7.1f} s  {', '.join(self.topics) or 'all commands'}", file=sys.stderr)
        return filled

    def _element(self, found: re.Match[str]) -> str:
        if found["topic"]:
            self.is_run = not self.topics or found["topic"] in self.topics
            self.begun = self.seconds
        elif self.is_run and found["commands"]:
            self.printed = []
            for command in commands_in(found["commands"]):
                self.printed += self._command(command)
        elif self.is_run and found["marker"]:
            lines = "".join(f"{line}\n" for line in self._chosen(found["how"], found["which"]))
            took = takes(found["takes"], self.seconds - self.begun)
            return f"{found['marker']}\n```text\n{lines}```\n\n{took}\n\n"
        elif self.is_run and found["name"]:
            write(found["name"], self._picture(found["part"], found["file"], found["shows"]), self.pictures)
            return f"{found['drawn']}\n![{found['shows']}](pictures/{found['name']}.svg)\n"
        return found[0]

    def _command(self, command: str) -> list[str]:
        """Run a command, and return the lines that it prints. What it wrote before is removed."""
        words = shlex.split(command.partition("\n")[0])
        for option, value in pairwise(words):
            path = self.folder / value
            if option in ("-o", "--html"):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        begun = monotonic()
        ended = subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env=environment(self.folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )
        took = monotonic() - begun
        self.seconds += took
        print(f"{took:7.1f} s  {command}", file=sys.stderr, flush=True)
        if ended.returncode:
            raise SystemExit(f"{command}: exit code {ended.returncode}\n{ended.stdout}")
        return [line.rstrip() for line in ended.stdout.splitlines()]

    def _picture(self, part: str, file: str, shows: str) -> str:
        """A picture of a page, or the heat map of attention that was written as JSON."""
        path = self.folder / file
        if path.suffix == ".html":
            return pictures_of(path)[int(part)]
        kinds = json.loads(path.read_text(encoding="utf-8"))["attention"]
        wanted, _, chosen = part.partition("/")
        (kind,) = [kind for kind in kinds if kind["kind"] == wanted]
        layer, *head = map(int, chosen.split("/")) if chosen else [-1]
        heads = kind["weights"][layer] if not head else [kind["weights"][layer][head[0]]]
        mean = [[fmean(cells) for cells in zip(*rows, strict=True)] for rows in zip(*heads, strict=True)]
        return HeatMap(mean, kind["queries"], kind["keys"], label=shows, max_value=1.0).svg()

    def _chosen(self, how: str, which: str) -> list[str]:
        lines = self.printed[-int(which) :] if how == "last" else [x for x in self.printed if re.search(which, x)]
        if not any(lines):
            raise SystemExit(f"{how} {which}: nothing is chosen of\n" + "\n".join(self.printed))
        return lines


if __name__ == "__main__":
    main(sys.argv[1:])
