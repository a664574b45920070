"""The command line in this process, and a small trained run."""

from pathlib import Path

import pytest

from tests.support.cli import RUN, SENTENCES, SMALL, CommandLine, copied_run, exit_code_of


@pytest.fixture
def lmtool(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capsys, monkeypatch)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of a few kilobytes, one long one."""
    path = tmp_path_factory.mktemp("corpus") / "tales.txt"
    path.write_text("\n".join(SENTENCES * 2), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """A finished run, trained once through the command line."""
    path = tmp_path_factory.mktemp("trained") / RUN
    assert exit_code_of(["lmtool", "pretrain", str(corpus), *SMALL, "-q", "-o", str(path)]) == 0
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a runs directory of its own."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LMTOOL_RUNS", "runs")
    return folder


@pytest.fixture
def run(home: Path, trained: Path) -> Path:
    """A copy of the trained run, which a test may damage; it is the only one."""
    return copied_run(trained, home)


COUNTING = ("model.order=4", "model.context=16", "data.documents=blank-line", "data.split=document")


@pytest.fixture(scope="session")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 4-gram model of words: `verdict:` is followed by what the word before it says, yes more often than no."""
    folder = tmp_path_factory.mktemp("counted")
    lines = [f"{word} verdict: {answer}" for word, answer in (("good", "yes"), ("bad", "no")) for _ in range(40)]
    (folder / "text.txt").write_text("\n\n".join([*lines, *["plain verdict: yes"] * 80]))
    keys = ("tokenizer={kind: word, vocab_size: 40}", *COUNTING)
    words = ["pretrain", str(folder / "text.txt"), "-r", "ngram", "-q", "-o", str(folder / "counts")]
    assert exit_code_of(["lmtool", *words, *(word for key in keys for word in ("-s", key))]) == 0
    return folder / "counts"
