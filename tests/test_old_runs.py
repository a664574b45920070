"""Runs and recipes of earlier versions: this one loads, measures, resumes and exports each, or says what reads it."""

import json
import shutil
from pathlib import Path

import pytest

import lmtool as package
from lmtool.recipe.load import load
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs import paths
from lmtool.runs.directory import Run
from tests.support.cli import CommandLine
from tests.support.make_runs import COMMANDS, RUNS, make, texts

VERSIONS = sorted(folder.name for folder in RUNS.iterdir())
TABLES = {"classifier": "reviews.csv", "lora": "reviews.csv", "embedding": "pairs.csv"}
WITHOUT_FAMILY = ("ngram", "recurrent", "word-vectors")
"""Runs that no published family has, so that they cannot be exported."""


@pytest.fixture(params=VERSIONS)
def lmtool(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> CommandLine:
    """The command line where the runs of a version are."""
    shutil.copytree(RUNS / request.param, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    monkeypatch.setenv("LMTOOL_RUNS", ".")
    return CommandLine(capsys, monkeypatch)


def test_there_are_runs_of_each_kind() -> None:
    assert VERSIONS[0] == "0.1.0"
    for version in VERSIONS:
        kept = {path.parent.name for path in (RUNS / version).glob("*/run.json")}
        assert kept >= set(COMMANDS)
        for name in kept:
            assert Run.open(RUNS / version / name).info.sessions[-1].environment["lmtool"] == version
    assert sum(path.stat().st_size for path in RUNS.rglob("*") if path.is_file()) < 500_000 * len(VERSIONS)


@pytest.mark.slow
def test_runs_of_this_version_can_be_made(tmp_path: Path) -> None:
    make(tmp_path / "made")
    for name in COMMANDS:
        info = Run.open(tmp_path / "made" / name).info
        assert info.sessions[-1].environment["processor"] == "any"
        assert info.base is None or str(info.base.path).startswith("/elsewhere/")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_of_an_earlier_version_is_used_as_ever(lmtool: CommandLine, name: str) -> None:
    measured = json.loads(lmtool.succeeds("eval", name, TABLES.get(name, "valid.txt"), "--json").out)
    assert measured["loss"] > 0
    if name in ("classifier", "lora"):
        answers = lmtool.succeeds("predict", name, "--text", "the cat sat at home").out
        assert "good" in answers
    elif name == "gpt":
        best = json.loads(Path(name, "validated.json").read_text())["best_loss"]
        assert measured["loss"] == pytest.approx(best, rel=1e-4)
    longer = ["-s", "training.steps=6"] if name == "classifier" else []
    before = [json.loads(line) for line in Path(name, "metrics.jsonl").read_text().splitlines()]
    lmtool.succeeds("resume", name, "-q", *longer)
    after = [json.loads(line) for line in Path(name, "metrics.jsonl").read_text().splitlines()]
    assert after[: len(before)] == before
    assert len(after) == (len(before) if name == "ngram" else len(before) + 2)
    if name in WITHOUT_FAMILY:
        lmtool.refuses(2, "export", name, "exported", words=["no published family has"])
    else:
        lmtool.succeeds("export", name, "exported", "-q")
        assert Path("exported", "config.json").is_file() or Path("exported", "adapter_config.json").is_file()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recipe_of_an_earlier_version_says_the_same(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RUNS / version)
    recipes = sorted(Path("recipes").glob("*.yaml"))
    assert len(recipes) == len(COMMANDS) - len(TABLES)
    for path in recipes:
        saved = json.loads(next(Path(path.stem).glob("checkpoints/*/state.json")).read_text())["recipe"]
        read = load(str(path)).recipe
        # of keys that are newer it has the defaults
        saved["model"] |= {key: getattr(read.model, key) for key in ("vocab_size",) if hasattr(read.model, key)}
        whole = Recipe.model_validate(saved)
        for part in ("model", "objective", "optimizer"):
            assert getattr(read, part) == getattr(whole, part), (path, part)


@pytest.mark.parametrize("name", ["gpt", "classifier"])
def test_a_run_of_a_later_format_names_the_version_that_reads_it(lmtool: CommandLine, name: str) -> None:
    info = json.loads(Path(name, "run.json").read_text())
    info["format"] = 2
    info["sessions"][-1]["environment"]["lmtool"] = "7.1.2"
    Path(name, "run.json").write_text(json.dumps(info))
    for command in (f"eval {name} valid.txt", f"resume {name}", f"export {name} x", f"generate a --run {name}"):
        lmtool.refuses(
            4, *command.split(), words=["lmtool 7.1.2: run.json: format should be 1, not 2", "'lmtool==7.1.2'"]
        )


def test_a_key_that_this_version_does_not_know_is_that_of_another(
    lmtool: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "__version__", "0.0.9")
    info = json.loads(Path("gpt", "run.json").read_text())
    Path("gpt", "run.json").write_text(json.dumps({**info, "colour": "red"}))
    words = ["lmtool 0.0.9 cannot read this run of lmtool 0.1.0: run.json: colour is unknown", "'lmtool==0.1.0'"]
    lmtool.refuses(4, "eval", "gpt", "valid.txt", words=words)


def test_a_damaged_run_is_not_taken_for_one_of_another_version(lmtool: CommandLine) -> None:
    raw = Path("gpt", "run.json").read_text()
    is_of_this_version = json.loads(raw)["sessions"][-1]["environment"]["lmtool"] == package.__version__
    for damaged in (*[raw.replace('"format": 1', '"format": 2')] * is_of_this_version, raw[:200]):
        Path("gpt", "run.json").write_text(damaged)
        lmtool.refuses(4, "eval", "gpt", "valid.txt", words=["this is not a complete run: run.json is damaged"])


def test_the_texts_are_those_that_are_made() -> None:
    """So that the script that made the runs can be read beside them."""
    made = texts()
    assert {name: (RUNS / "0.1.0" / name).read_text(encoding="utf-8") for name in made} == made
