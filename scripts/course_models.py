#!/usr/bin/env python3
"""Trains the models behind the topics of docs/course.md, in build/course-models/.

    scripts/course_models.py

The commands are those of the page's chapter "Models behind the topics": lines that train (`-o runs/NAME`), and before
them lines that make tables. Two models are trained at a time, each with one thread, so that the weights do not depend
on the number of cores. A model that is there is skipped, one that was interrupted is resumed, and one whose command
changed is trained again, with all that begin with it.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "course.md"
FOLDER = ROOT / "build" / "course-models"
CHAPTER = "## Models behind the topics"
SHOWN_EVERY = 30
"""Seconds."""


@dataclass(frozen=True)
class Training:
    """A command that trains. name: of its run. needs: the earlier runs that it begins with."""

    name: str
    command: str
    needs: tuple["Training", ...]

    @cached_property
    def key(self) -> str:
        """What the model depends on."""
        return hashlib.sha256(" ".join([self.command, *(each.key for each in self.needs)]).encode()).hexdigest()


def commands_of(page: str) -> tuple[list[str], list[Training]]:
    """The commands of the chapter: those that make tables, and those that train."""
    block = re.search(rf"^{CHAPTER}$.*?^```sh\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    if block is None:
        raise SystemExit(f'the page has no ```sh block in "{CHAPTER}"')
    tables: list[str] = []
    models: list[Training] = []
    for command in block[1].replace("\\\n", "").splitlines():
        run = re.search(r" -o runs/(\S+)$", command)
        if run is None:
            tables.append(command)
            continue
        words = {word for part in shlex.split(command) for word in re.split(r"[=/]", part)} - {run[1]}
        models.append(Training(run[1], command, tuple(each for each in models if each.name in words)))
    return tables, models


class Models:
    """The models in a folder. settings: added to each command that trains, for a quick look at whether all works."""

    def __init__(self, folder: Path, page: str, *settings: str) -> None:
        self.folder, self.settings = folder, settings
        self.tables, self.models = commands_of(page)

    def train(self) -> None:
        """Make the tables, and train what is missing. SystemExit where a command fails."""
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(ROOT / "data", self.folder / "data", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__py*"))
        for command in self.tables:
            self._run(command)
        with ThreadPoolExecutor(2) as pool:
            waiting: dict[str, Future[None]] = {}
            for number, model in enumerate(self.models, 1):
                place = f"{number} of {len(self.models)}, {model.name}"
                waiting[model.name] = pool.submit(self._train, model, place, [waiting[m.name] for m in model.needs])
            while any(not one.done() for one in waiting.values()):
                wait(waiting.values(), timeout=SHOWN_EVERY)
                for line in self._progress():
                    print(line, file=sys.stderr, flush=True)
        for one in waiting.values():
            one.result()

    def copy_to(self, folder: Path) -> None:
        """Runs, tables and tokens in a new folder. SystemExit when a model is missing."""
        missing = [model.name for model in self.models if not self._is_done(model)]
        if missing:
            raise SystemExit(f"models are missing: {', '.join(missing)}; make course-models trains them")
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("*.done", "*.begun"))

    def _train(self, model: Training, place: str, needs: list[Future[None]]) -> None:
        for need in needs:
            need.result()
        if self._is_done(model):
            print(f"{place}: there", file=sys.stderr, flush=True)
            return
        run, begun = self.folder / "runs" / model.name, self._mark(model, "begun")
        command = shlex.join(shlex.split(model.command) + [word for one in self.settings for word in ("-s", one)])
        if begun.exists() and begun.read_text() == model.key and any(run.glob("checkpoints/*/MANIFEST.json")):
            command = f"lmtool resume runs/{model.name} -q"
        else:
            shutil.rmtree(run, ignore_errors=True)
            begun.write_text(model.key)
        print(f"{place}: {command}", file=sys.stderr, flush=True)
        start = monotonic()
        self._run(command)
        begun.rename(self._mark(model, "done"))
        print(f"{place}: {monotonic() - start:.0f} s", file=sys.stderr, flush=True)

    def _progress(self) -> Iterator[str]:
        """The step of each model that is being trained."""
        for model in self.models:
            path = self.folder / "runs" / model.name / "metrics.jsonl"
            if self._mark(model, "begun").exists() and path.exists():
                *_, last = path.read_text().splitlines() or ["{}"]
                yield f"  {model.name}: step {json.loads(last).get('step', 0):,}"

    def _is_done(self, model: Training) -> bool:
        mark = self._mark(model, "done")
        return mark.exists() and mark.read_text() == model.key

    def _mark(self, model: Training, what: str) -> Path:
        return self.folder / f"{model.name}.{what}"

    def _run(self, command: str) -> None:
        env = {**environment(self.folder), "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(["sh", "-c", command], cwd=self.folder, env=env, capture_output=True, encoding="utf-8")
        if ended.returncode:
            raise SystemExit(f"{command}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}")


def environment(folder: Path) -> dict[str, str]:
    """What commands of the page see: this Python's lmtool, and runs and tokens in the folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    places = {"LMTOOL_CACHE": str(folder / "cache"), "LMTOOL_RUNS": "runs"}
    return {**os.environ, **places, "NO_COLOR": "1", "PATH": path}


if __name__ == "__main__":
    Models(FOLDER, PAGE.read_text(encoding="utf-8")).train()
