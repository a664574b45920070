"""`lmtool serve` as a program: what it tells, the commands of its page, and how it ends."""

import json
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.serving.harness import until
from tests.support import forks
from tests.support.cli import CommandLine
from tests.support.training import Work

ENDLESS = {"1": -100, "3": -100}
"""Biases against the ends of texts of `talker`."""

MASKED = ("model={kind: transformer, shape: encoder, n_layers: 1, d_model: 16}", "objective.kind=masked")

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"


@contextmanager
def started(run: str, *options: str) -> Iterator[tuple[forks.Program, str, list[str]]]:
    """The program, its address, and the lines that it writes."""
    command = ["-m", "lmtool", "serve", run, "--port", "0", "--device", "cpu", *options]
    process = forks.begin(command, files=(None, None, subprocess.PIPE), imports=("starlette.applications", "uvicorn"))
    assert process.stderr is not None
    lines: list[str] = []
    try:
        for line in process.stderr:
            lines.append(line)
            if line.startswith("http://"):
                break
        else:
            pytest.fail("".join(lines))
        rest = threading.Thread(target=lambda: lines.extend(process.stderr or ()))
        rest.start()
        yield process, lines[-1].strip(), lines
        process.send_signal(signal.SIGKILL)
        rest.join()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.system
def test_the_commands_of_the_page_are_answered(talker: str, classifier: str) -> None:
    """By curl itself. The server of a classifier answers the one that asks for classes."""
    commands = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("curl ")]
    assert len(commands) > 7
    for run in (talker, classifier):
        with started(run) as (_, address, lines):
            assert any("tokens in flight" in line for line in lines)
            for command in commands:
                if ("/classify" in command) is not (run == classifier):
                    continue
                words = shlex.split(command.replace("http://127.0.0.1:8000", address))
                done = subprocess.run([*words, "--silent", "--fail-with-body"], capture_output=True, text=True)
                assert done.returncode == 0, (command, done.stdout)
                if '"stream": true' in command:
                    assert done.stdout.endswith("data: [DONE]\n\n")
                elif "/metrics" not in command:
                    assert json.loads(done.stdout)


@pytest.mark.system
def test_a_signal_finishes_what_runs_and_refuses_what_comes(talker: str) -> None:
    with started(talker, "--grace", "60") as (process, address, _):
        asked = {"prompt": "Who saw", "max_tokens": 1500, "stream": True, "seed": 1, "logit_bias": ENDLESS}
        with httpx.stream("POST", f"{address}/v1/completions", json=asked, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            assert until(lambda: httpx.get(f"{address}/health", timeout=60).status_code == 503)
            refused = httpx.post(f"{address}/v1/completions", json={"prompt": "a"}, timeout=60)
            assert refused.status_code == 503
            assert refused.json()["error"]["type"] == "server_error"
            *_, last = (line for line in lines if line)
        assert last == "data: [DONE]"
        assert process.wait(60) == 128 + signal.SIGTERM


@pytest.mark.system
def test_grace_is_bounded(talker: str) -> None:
    with started(talker, "--grace", "0", "--max-tokens", "1000000") as (process, address, lines):
        asked = {"prompt": "Who saw", "max_tokens": 1000000, "stream": True, "n": 4}
        with httpx.stream("POST", f"{address}/v1/completions", json=asked, timeout=60) as answer:
            received = answer.iter_lines()
            next(received)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 128 + signal.SIGINT
        assert "Traceback" not in "".join(lines)


@pytest.fixture
def lmtool(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capsys, monkeypatch)


def test_what_cannot_be_served_is_refused(lmtool: CommandLine, talker: str, folder: Work, tmp_path: Path) -> None:
    """Others reach it only with a key, and a draft is for models that go back."""
    folder.pretrain("model={kind: recurrent, n_layers: 1, d_model: 16, context: 16, cell: lstm}", name="recurrent")
    folder.pretrain(*MASKED, name="masked")
    recurrent, masked, key = str(folder.run("recurrent")), str(folder.run("masked")), tmp_path / "key"
    key.write_text("short")
    for run, options, words in (
        (talker, ("--host", "0.0.0.0"), "--api-key-file"),
        (talker, ("--host", "192.0.2.1", "--no-auth"), "cannot listen"),
        (talker, ("--api-key-file", str(key)), "no API key"),
        (talker, ("--api-key-file", str(key), "--no-auth"), "contradicts"),
        (talker, ("--draft-tokens", "3"), "--draft-tokens needs a draft"),
        (recurrent, ("--draft", "ngram"), "a draft needs a model that can go back"),
        (talker, ("--draft", recurrent), "the draft has another tokenizer"),
        (masked, ("--draft", "ngram"), "no next token"),
    ):
        outcome = lmtool("serve", run, *options, "--device", "cpu", "-q")
        assert outcome.code in (2, 5)
        assert len(outcome.err.splitlines()) <= 3
        assert words in re.sub(r"\s+", " ", outcome.err)


def test_without_its_libraries_it_says_what_to_install(lmtool: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "uvicorn" else object())
    outcome = lmtool("serve", "last")
    assert outcome.code == 5
    assert "pip install 'lmtool[serve]'" in outcome.err
