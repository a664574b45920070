"""What a shell completes: commands, options, recipes and names of runs."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import shellingham  # type: ignore[import-untyped]

from lmtool.recipe.load import shipped_recipes
from tests.support.cli import CommandLine
from tests.support.make_runs import COMMANDS, RUNS

FIRST = RUNS / "0.1.0"
Completes = Callable[[str], list[str]]


@pytest.fixture
def completes(lmtool: CommandLine, home: Path, monkeypatch: pytest.MonkeyPatch) -> Completes:
    """The words that bash completes a line to, whose last word has begun."""
    for name in COMMANDS:
        (home / "runs" / name).mkdir(parents=True)
        shutil.copy(FIRST / name / "run.json", home / "runs" / name)

    def completions(line: str) -> list[str]:
        words = line.split(" ")
        monkeypatch.setenv("_LMTOOL_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        return lmtool.succeeds().out.split()

    return completions


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("lmtool pretrain --start", ["--start-or-resume"]),
        ("lmtool eval text.txt --device m", ["mps"]),
        ("lmtool eval e", ["embedding", "encoder", "encoder-decoder"]),
        ("lmtool eval la", ["last"]),
        ("lmtool finetune reviews.csv --from l", ["last", "lora"]),
        ("lmtool runs compare gpt re", ["recurrent"]),
        ("lmtool pretrain --recipe seq2seq-", ["seq2seq-bahdanau", "seq2seq-luong"]),
        ("lmtool recipes show dan", ["dan"]),
        ("lmtool recipes draw nothing-like-it", []),
    ],
)
def test_a_line_is_completed(completes: Completes, line: str, expected: list[str]) -> None:
    assert completes(line) == expected


def test_all_recipes_are_completed(completes: Completes) -> None:
    assert set(completes("lmtool pretrain -r ")) == set(shipped_recipes())


def test_what_a_shell_has_to_know_is_printed(lmtool: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    for shell in ("bash", "zsh", "fish"):
        monkeypatch.setattr(shellingham, "detect_shell", lambda shell=shell: (shell, f"/bin/{shell}"))
        assert "_LMTOOL_COMPLETE" in lmtool.succeeds("--show-completion").out
