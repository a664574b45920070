"""`lmtool generate` over a model built by hand, in place of a run."""

import io
import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer
from typer.testing import CliRunner

import lmtool
from lmtool.cli.generate import generate
from lmtool.decoding.prompts import Form
from lmtool.decoding.settings import Greedy, Sample
from lmtool.decoding.text import Options, complete, write
from lmtool.engine import build
from lmtool.engine.device import Compute
from lmtool.errors import UsageError
from tests.decoding.models import HistoryModel
from tests.decoding.test_text import ByteTokenizer, ScriptModel

HASH = "ab" * 32
RECIPE = SimpleNamespace(model=None, objective=None, data=SimpleNamespace(split="document"))


@pytest.fixture
def load(monkeypatch):
    """Put a model in place of all runs; gives the list of what was asked for."""
    asked = []

    def put(model, warnings=(), recipe=RECIPE):
        def load_run(ref, *, device, precision):
            asked.append((ref, device, precision))
            compute = Compute(torch.device("cpu"), "float32")
            return SimpleNamespace(
                model=model,
                tokenizer=ByteTokenizer(),
                recipe=recipe,
                compute=compute,
                device=compute.device,
                run_path=Path("runs/some-run"),
                step=500,
                checkpoint_hash=HASH,
                warnings=warnings,
            )

        monkeypatch.setattr(build, "load_run", load_run)
        return asked

    return put


def call(*arguments, stdin=None):
    app = typer.Typer()
    app.command()(generate)
    return CliRunner().invoke(app, arguments, input=stdin)


def history_model():
    return HistoryModel(ByteTokenizer.vocab_size, context=32)


def expected(prompts, settings, **options):
    pieces = write(history_model(), ByteTokenizer(), prompts, settings, Options(**options), form=Form(documents=True))
    return list(complete(pieces))


def test_json_has_one_record_a_line(load):
    load(history_model())
    result = call("one", "two", "-n", "2", "--seed", "3", "--max-new-tokens", "20", "--json")
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in result.stdout.splitlines()]
    settings = Sample(max_new_tokens=20, seed=3)
    for record, completion in zip(records, expected(["one", "two"], settings, n=2), strict=True):
        assert (
            record.items()
            >= {
                "prompt": completion.prompt,
                "sample": completion.sample,
                "text": completion.text,
                "tokens": list(completion.tokens),
                "logprobs": list(completion.logprobs),
                "seed": 3,
                "finish_reason": completion.finish_reason,
                "run": "runs/some-run",
                "step": 500,
                "checkpoint": HASH,
                "device": "cpu",
                "precision": "float32",
                "version": lmtool.__version__,
            }.items()
        )
        assert record["settings"] == {"strategy": "sample", **asdict(settings), "logit_bias": []}


def test_all_options_reach_their_places(load):
    asked = load(history_model())
    options = (
        "--temperature 0.5 --top-k 9 --top-p 0.9 --max-new-tokens 30 --seed 4 --stop a --stop bc --overflow cut --json"
    )
    result = call("x" * 40, *options.split(), "--run", "runs/other", "--device", "cpu", "--precision", "float32")
    settings = Sample(temperature=0.5, top_k=9, top_p=0.9, max_new_tokens=30, seed=4)
    (completion,) = expected(["x" * 40], settings, stop=("a", "bc"), overflow="cut")
    assert json.loads(result.stdout)["tokens"] == list(completion.tokens)
    assert asked == [("runs/other", "cpu", "float32")]


def test_greedy(load):
    load(history_model())
    (completion,) = expected(["one"], Greedy(max_new_tokens=9))
    for options in (["--greedy"], ["--temperature", "0"], ["--top-k", "1"]):
        result = call("one", *options, "--max-new-tokens", "9", "--json")
        assert json.loads(result.stdout)["tokens"] == list(completion.tokens)


def test_prompts_come_from_a_file_or_standard_input(load, tmp_path):
    load(history_model())
    (tmp_path / "prompts.txt").write_text("one\n\ntwo\n")
    from_file = call("--prompt-file", str(tmp_path / "prompts.txt"), "--seed", "1", "--json")
    from_input = call("--prompt-file", "-", "--seed", "1", "--json", stdin="one\n\ntwo\n")
    assert [json.loads(line)["prompt"] for line in from_file.stdout.splitlines()] == ["one", "", "two"]
    assert from_file.stdout == from_input.stdout


def test_without_a_prompt_text_begins_from_nothing(load):
    load(history_model())
    result = call("--seed", "1", "--json")
    assert json.loads(result.stdout)["tokens"] == list(expected([""], Sample(seed=1))[0].tokens)


def test_results_and_notices_go_their_own_ways(load):
    load(ScriptModel([*ByteTokenizer().encode(" [bold]\x1b[0m"), ByteTokenizer.eos_id], n_prompt=5))
    result = call("ciao", "--greedy")
    assert result.stdout == "ciao [bold]\x1b[0m\n"
    notices = result.stderr.splitlines()
    assert notices[0].startswith("runs/some-run, step 500, cpu, float32, seed ")
    assert notices[1].startswith("12 tokens in ")
    assert call("ciao", "--greedy", "--quiet").stderr == ""


def test_warnings_are_told_even_when_quiet(load):
    load(history_model(), warnings=("step-000500 is damaged",))
    assert call("ciao", "--quiet").stderr == "warning: step-000500 is damaged\n"


def test_several_results_are_parted(load):
    load(ScriptModel([*ByteTokenizer().encode("!"), ByteTokenizer.eos_id], n_prompt=2))
    assert call("a", "b", "--greedy").stdout == "a!\n---\nb!\n"


class Terminal(io.StringIO):
    def __init__(self):
        super().__init__()
        self.writes = []

    def isatty(self):
        return True

    def write(self, text):
        self.writes.append(text)
        return super().write(text)


def test_one_text_streams_to_a_terminal(load, monkeypatch):
    load(ScriptModel([*ByteTokenizer().encode("é\x1b[31m\n[b]"), ByteTokenizer.eos_id], n_prompt=3))
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    generate(["a\x07"], greedy=True, quiet=True)
    assert terminal.getvalue() == "a\\x07é\\x1b[31m\n[b]\n"
    assert [text for text in terminal.writes if text][:4] == ["a\\x07", "é", "\\x1b", "["]


def test_several_texts_are_whole_on_a_terminal(load, monkeypatch):
    load(ScriptModel([*ByteTokenizer().encode("\x1b!"), ByteTokenizer.eos_id], n_prompt=2))
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    generate(["a", "b"], greedy=True, quiet=True)
    assert terminal.getvalue() == "a\\x1b!\n---\nb\\x1b!\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--greedy", "--top-k", "3"], "greedy contradicts top-k"),
        (["a", "--greedy", "-n", "2"], "2 samples"),
        (["a", "--prompt-file", "-"], "both"),
        (["a", "--top-p", "0"], "top_p is 0"),
        (["a", "--seed", "-1"], "seed is -1"),
        (["a", "--max-new-tokens", "0"], "max_new_tokens is 0"),
        (["a", "--stop", ""], "stop string is empty"),
        (["a" * 40], "41 tokens, but the model's context is 32"),
    ],
)
def test_what_cannot_be_is_refused(load, arguments, message):
    load(history_model())
    result = call(*arguments)
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)
    assert result.stdout == ""
