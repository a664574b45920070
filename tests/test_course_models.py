"""scripts/pages.py models: each model behind the topics is trained once, and again where it depends on a change."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.docs import PAGE, ROOT

COMMANDS = ["head data/stories.txt > few.txt", "train few.txt -o runs/a", "train few.txt --from a -o runs/b"]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that were run; one that trains leaves a run."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import pages

    commands: list[str] = []

    def run(command: str, folder: Path, **variables: str) -> None:
        commands.append(command)
        if "runs/" in command:
            (folder / "runs" / command.rpartition("runs/")[2].split()[0]).mkdir(parents=True)

    monkeypatch.setattr(pages, "run_command", run)
    return commands


def models(folder: Path, commands: list[str], *settings: str) -> Any:
    from pages import CHAPTER, Models

    return Models(folder, f"{CHAPTER}\n\n```sh\n" + "\n".join(commands) + "\n```\n", *settings)


def test_models_are_trained_once_in_their_order(tmp_path: Path, ran: list[str]) -> None:
    with pytest.raises(SystemExit, match="models are missing: a, b; make course-models"):
        models(tmp_path, COMMANDS).copy_to(tmp_path / "no")
    models(tmp_path, COMMANDS).train()
    assert ran == COMMANDS
    ran.clear()
    models(tmp_path, COMMANDS).train()
    assert ran == COMMANDS[:1], "only the tables are made again"
    models(tmp_path, COMMANDS).copy_to(tmp_path / "copy")
    assert {path.name for path in (tmp_path / "copy" / "runs").iterdir()} == {"a", "b"}


def test_a_changed_command_trains_all_that_begin_with_it(tmp_path: Path, ran: list[str]) -> None:
    models(tmp_path, COMMANDS).train()
    ran.clear()
    changed = [COMMANDS[0], "train few.txt --more -o runs/a", COMMANDS[2]]
    models(tmp_path, changed).train()
    assert ran == changed
    ran.clear()
    other = [*changed[:2], "train few.txt --from a --less -o runs/b"]
    models(tmp_path, other).train()
    assert ran == [other[0], other[2]]


def test_a_model_that_was_interrupted_is_trained_anew(tmp_path: Path, ran: list[str]) -> None:
    models(tmp_path, COMMANDS).train()
    (tmp_path / "b.done").unlink()
    (tmp_path / "runs" / "b" / "left").touch()
    ran.clear()
    models(tmp_path, COMMANDS, "training.steps=2").train()
    assert ran == [COMMANDS[0], f"{COMMANDS[2]} -s training.steps=2"]
    assert not [*tmp_path.glob("runs/b/left")], "nothing of it is left"


def test_the_models_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from pages import Models

    found = Models(tmp_path, PAGE).models
    assert {model.name for model in found} >= {"gpt", "bert", "t5", "elmo", "luong", "translator"}
    assert [need.name for model in found if model.name == "long" for need in model.needs] == ["short"]
