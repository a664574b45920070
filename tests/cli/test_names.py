"""Whatever names a model takes all that names one: each option and each key of a recipe, by each kind of name."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lmtool as api
from lmtool.apps.search.entries import Entry
from lmtool.apps.search.index import add_or_replace_texts
from lmtool.cli.help import RUN_OPTION
from lmtool.compute.device import CPU
from lmtool.data.survey import no_progress
from lmtool.interop import importing
from lmtool.interop.export.exporting import export, export_gguf_and_modelfile
from lmtool.interop.references import hub_note_file, imports_folder
from lmtool.interop.resolve import MODEL_NAME_RESOLVERS
from lmtool.recipe.dump import dump_yaml
from lmtool.recipe.grammar import iterate_dotted_keys, specs_with_key
from lmtool.recipe.load import load
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs.directory import Run
from lmtool.runs.load import load_run
from tests.support.cli import COMMANDS, RUN, SENTENCES, CommandLine, film_rows, write_table

NAMES = {
    "name": RUN,
    "last": "last",
    "step": f"{RUN}@4",
    "directory": f"elsewhere/{RUN}",
    "checkpoint": f"elsewhere/{RUN}/checkpoints/step-000004",
    "step of a directory": f"elsewhere/{RUN}/checkpoints/step-4",
    "published directory": "hf",
    "GGUF file": "model.gguf",
    "name on the Hub": "hf:org/name",
}
"""Each kind of name of a model, with one of them."""

OPTIONS = {
    "generate run": "generate The --run MODEL",
    "generate draft": "generate The --run runs/other --draft MODEL",
    "chat run": "chat MODEL",
    "serve run": "serve MODEL",
    "serve draft": "serve runs/other --draft MODEL",
    "eval run": "eval MODEL text.txt",
    "eval baseline": "eval runs/other text.txt --baseline MODEL",
    "predict run": "predict MODEL rows.csv",
    "embed run": "embed MODEL text.txt",
    "neighbors run": "neighbors MODEL The",
    "attention run": "attention MODEL The",
    "gradients run": "gradients MODEL The",
    "gradients beside": "gradients runs/other Themoon --beside MODEL",
    "report runs": "report MODEL",
    "export run": "export MODEL exported",
    "push run": "push MODEL ada/stories",
    "label run": "label rows.csv --run MODEL",
    "check names": "check MODEL",
    "check tokenizer": "check text.txt --tokenizer MODEL",
    "check run": "check rows.csv --run MODEL --fix new.csv",
    "search index run": "search index text.txt --run MODEL -o new.index",
    "search query run": "search texts.index The --run MODEL",
    "search query rerank": "search texts.index The --rerank MODEL",
    "tokenize tokenizer": "tokenize --tokenizer MODEL --show The",
    "runs show run": "runs show MODEL",
    "runs compare runs": "runs compare runs/other MODEL",
    "runs merge run": "runs merge MODEL",
    "resume run": "resume MODEL",
    "recipes batch name": "recipes batch MODEL text.txt",
    "plan source": "plan text.txt --from MODEL",
    "pretrain source": "pretrain text.txt --from MODEL",
    "pretrain teacher": "pretrain text.txt --teacher MODEL",
    "finetune source": "finetune rows.csv --from MODEL",
    "sweep source": "sweep rows.csv -s seed=1,2 --from MODEL",
    "finetune teacher": "finetune rows.csv --from runs/other --teacher MODEL",
}
"""A command for each option that names a model."""

NO_MODELS = {"import model": "what is no run yet", "runs rm runs": "what is to be removed"}

KEYS = {
    "distillation.teacher": "pretrain text.txt -r tiny",
    "model.features.run": "finetune rows.csv -r bilstm",
    "model.embeddings": "pretrain text.txt -r tiny",
    "tokenizer.path": "tokenize text.txt -r tiny",
}
"""A command for each key that names a model, which ends with a recipe that has it."""

KINDS = {"tokenizer.path": {"tokenizer.kind": "file"}}
"""What belongs to a key."""

OTHER_TEXTS = {"description", "objective.labels", "evaluation.prompts"}
"""Keys that hold texts and name neither models nor, as those of the data, files and columns."""


class OpenedError(BaseException):
    """Raised when the model is opened; nothing handles it."""


@pytest.fixture(scope="module")
def prepared(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Path]]]:
    """A folder in which each kind of name leads to a run, and the directories of these runs."""
    home = tmp_path_factory.mktemp("names")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("LMTOOL_RUNS", "runs")
        patch.setenv("LMTOOL_CACHE", str(home / "cache"))
        for folder in ("runs", "elsewhere"):
            shutil.copytree(trained, home / folder / RUN)
        shutil.copytree(trained, home / "runs" / "other")
        older = Run.open(home / "runs" / "other")
        begun = [one.model_copy(update={"started": "2020-01-01T00:00:00+00:00"}) for one in older.info.sessions]
        (older.path / "run.json").write_bytes(older.info.model_copy(update={"sessions": begun}).to_json_bytes())
        export(str(trained), home / "hf", dtype="float32", max_shard_bytes=10**9)
        export_gguf_and_modelfile(str(trained), home / "model.gguf", "f16")
        (home / "text.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
        write_table(home / "rows.csv", film_rows())
        entries = [Entry("a", "a", "The baker.")]
        add_or_replace_texts(home / "texts.index", load_run(str(older.path), CPU), entries, no_progress)
        patch.setattr(importing, "download_hub_model", lambda reference: (home / "hf", "c0ffee"))
        runs = dict.fromkeys(NAMES, home / "runs" / RUN)
        runs |= dict.fromkeys(("directory", "checkpoint", "step of a directory"), home / "elsewhere" / RUN)
        for kind in ("published directory", "GGUF file", "name on the Hub"):
            runs[kind] = importing.import_to_cache(NAMES[kind])
        assert runs["name on the Hub"].parent == imports_folder()
        assert hub_note_file("hf:org/name").exists()
        yield home, runs


@pytest.fixture
def models(prepared: tuple[Path, dict[str, Path]], monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The directory of the run that each kind of name leads to; a working directory in which they do."""
    home, runs = prepared
    monkeypatch.chdir(home)
    monkeypatch.setenv("LMTOOL_RUNS", "runs")
    return runs


@pytest.fixture
def opened(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], object]], set[str]]:
    """The kinds of names by which a call opens the model that is named."""
    read, wanted = Run.open, [Path()]

    def open_run(path: Path) -> Run:
        if os.path.realpath(path) == os.path.realpath(wanted[0]):
            raise OpenedError
        return read(path)

    def kinds(call: Callable[[str], object]) -> set[str]:
        monkeypatch.setattr(Run, "open", open_run)
        found = set()
        for kind, name in NAMES.items():
            wanted[0] = models[kind]
            try:
                print(kind, call(name))
            except OpenedError:
                found.add(kind)
        return found

    return kinds


def named(metavar: str) -> list[str]:
    """Each argument and option with a metavar that holds this one, but another way to name the run."""
    params = ((name, one) for name, command in COMMANDS.items() for one in command.params if one.name != RUN_OPTION)
    return [f"{name} {one.name}" for name, one in params if metavar in str(one.metavar)]


def test_every_option_that_names_a_model_is_known() -> None:
    assert {*named("RUN"), *named("MODEL")} == OPTIONS.keys() | NO_MODELS.keys()


def test_every_key_that_names_a_model_is_known() -> None:
    texts = {
        key
        for key in iterate_dotted_keys(Recipe)
        for owner in specs_with_key(tuple(key.split(".")))
        if re.search(r"\bstr\b", str(owner.model_fields[key.split(".")[-1]].annotation))
    }
    assert {key for key in texts if not key.startswith("data.")} == MODEL_NAME_RESOLVERS.keys() | OTHER_TEXTS
    assert MODEL_NAME_RESOLVERS.keys() == KEYS.keys()


NOT_OPENED = {
    "check names": {"name on the Hub"},  # is of a data set there
    "tokenize tokenizer": {"directory", "published directory"},  # hold the file
    "check tokenizer": {"published directory"},
    "tokenizer.path": {"directory", "published directory"},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_takes_all_that_names_a_model(option: str, opened: Any, lmtool: CommandLine) -> None:
    words = OPTIONS[option].split()
    kinds = opened(lambda name: lmtool(*(word.replace("MODEL", name) for word in words)))
    assert kinds == NAMES.keys() - NOT_OPENED.get(option, set())


@pytest.mark.parametrize("key", KEYS)
def test_a_key_takes_all_that_names_a_model(key: str, opened: Any, lmtool: CommandLine) -> None:
    """In the recipe's file, as on the command line."""
    *words, recipe = KEYS[key].split()

    def settings(name: str) -> list[str]:
        return [f"{own}={value}".replace("MODEL", name) for own, value in {**KINDS.get(key, {}), key: "MODEL"}.items()]

    def train_by_file(name: str) -> object:
        Path("own.yaml").write_text(dump_yaml(load(recipe, settings(name)).recipe), encoding="utf-8")
        return lmtool(*words, "own.yaml")

    def train(name: str) -> object:
        return lmtool(*words, recipe, *(word for text in settings(name) for word in ("-s", text)))

    assert opened(train) == opened(train_by_file) == NAMES.keys() - NOT_OPENED.get(key, set())


def test_the_default_recipe_and_a_program_take_all_that_names_a_model(opened: Any, lmtool: CommandLine) -> None:
    assert opened(lambda name: lmtool("pretrain", "text.txt", "-s", f"distillation.teacher={name}")) == NAMES.keys()
    assert opened(api.load) == NAMES.keys()
    assert opened(lambda name: api.load("runs/other", draft=name)) == NAMES.keys()
