"""`lmtool generate` with a hand-made model instead of a run."""

import inspect
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

import lmtool
from lmtool.cli.commands.generate import generate
from lmtool.compute.device import ExecutionContext
from lmtool.errors import CheckpointError, UsageError
from lmtool.generation import generate as generating
from lmtool.generation.generate import complete
from lmtool.generation.params import STRATEGIES, SamplingParams, get_strategy_options
from lmtool.generation.replay import params_from_record
from lmtool.recipe.spec.objective import Causal
from lmtool.tokenization.prompt_format import PromptFormat
from lmtool.tokenization.tokenizer import Tokenizer
from tests.generation.models import HistoryModel, SidesModel
from tests.support.cli import RUN, CommandLine
from tests.support.scripted import ByteTokenizer, ScriptModel

HASH = "ab" * 32
Asked = tuple[str, str, str]
Load = Callable[..., list[Asked]]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Replace all runs by a model; returns the list of requested runs."""
    asked: list[Asked] = []

    def put(model: Any, warnings: Sequence[str] = (), answers: bool = False) -> list[Asked]:
        def load_packed_for_inference(ref: str, compute: ExecutionContext) -> SimpleNamespace:
            asked.append((ref, compute.device.type, compute.precision))
            compute = ExecutionContext(torch.device("cpu"), "float32")
            return SimpleNamespace(
                model=model,
                tokenizer=ByteTokenizer(),
                recipe=SimpleNamespace(objective=Causal()),
                prompt_format=PromptFormat(
                    cast(Tokenizer, ByteTokenizer()),
                    model.reads,
                    opening=(1,) * (not answers),
                    documents=not answers,
                    answers=answers,
                ),
                compute=compute,
                device=compute.device,
                run_path=Path("runs/some-run"),
                step=500,
                checkpoint_hash=HASH,
                reference=SimpleNamespace(warnings=warnings, newest_step_after_best=None),
                check_has_likelihood=lambda: None,
                to_record=lambda: {"run": "runs/some-run", "step": 500, "checkpoint": HASH},
            )

        monkeypatch.setattr(generating, "resolve_reference", str)
        monkeypatch.setattr(generating, "load_packed_for_inference", load_packed_for_inference)
        return asked

    return put


def call(*arguments: str, stdin: str | None = None) -> Result:
    app = typer.Typer()
    app.command()(generate)
    return CliRunner().invoke(app, arguments, input=stdin)


def generate_here(prompts: list[str], **options: Any) -> None:
    """The command in this process, whose standard output may be any stream, with the defaults of its options."""
    declared = {name: one.default for name, one in inspect.signature(generate).parameters.items()}
    defaults = {name: getattr(default, "default", default) for name, default in declared.items()}
    generate(**{**defaults, "prompt": prompts, **options})


def history_model() -> HistoryModel:
    return HistoryModel(ByteTokenizer.vocab_size, context=32)


def expected(prompts: list[str], params: SamplingParams, **options: Any) -> list[Any]:
    prompt_format = PromptFormat(cast(Tokenizer, ByteTokenizer()), "past", opening=(1,), documents=True)
    return list(complete(history_model(), prompts, params, prompt_format, **options))


def test_all_options_reach_their_places(load: Load) -> None:
    asked = load(history_model())
    options = (
        "--temperature 0.5 --top-k 9 --top-p 0.9 --max-new-tokens 30 --seed 4 --stop a --stop bc --overflow cut --json"
    )
    result = call("x" * 40, *options.split(), "--run", "runs/other", "--device", "cpu", "--precision", "float32")
    settings = SamplingParams(temperature=0.5, top_k=9, top_p=0.9, max_new_tokens=30, seed=4)
    (completion,) = expected(["x" * 40], settings, stop=("a", "bc"), overflow="cut")
    assert json.loads(result.stdout)["tokens"] == list(completion.tokens)
    assert asked == [("runs/other", "cpu", "float32")]


class Terminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)


def test_one_text_streams_to_a_terminal(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    load(ScriptModel([*ByteTokenizer().encode("é\x1b[31m\n[b]"), ByteTokenizer.eos_id], n_prompt=3))
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    generate_here(["a\x07"], greedy=True, quiet=True)
    assert terminal.getvalue() == "a\\x07é\\x1b[31m\n[b]\n"
    assert [text for text in terminal.writes if text][:4] == ["a\\x07", "é", "\\x1b", "["]


@pytest.mark.parametrize("options", [["--greedy"], ["--num-beams", "2"], ["--temperature", "1.5", "--seed", "1"]])
def test_texts_of_all_strategies_come_with_their_mean_log_probability(load: Load, options: list[str]) -> None:
    load(history_model())
    asked = ["one", "two", "--max-new-tokens", "5", *options]
    records = [json.loads(line) for line in call(*asked, "--json", "-q").stdout.splitlines()]
    logprobs = [logprob for record in records for logprob in record["logprobs"]]
    said = float(call(*asked).stderr.partition("mean log-probability ")[2].split()[0])
    assert said == pytest.approx(mean(logprobs), abs=1e-4)


def test_every_setting_reaches_the_strategy(load: Load) -> None:
    load(history_model())
    sampling = (
        "--temperature 0.5 --top-k 9 --top-p 0.9 --min-p 0.1 --typical-p 0.8 --repetition-penalty 1.2 "
        "--no-repeat-ngram 3 --min-new-tokens 2 --max-time 60 --max-new-tokens 4 --logit-bias ab=-1.5 --seed 1"
    )
    record = json.loads(call("x", *sampling.split(), "--json").stdout)["settings"]
    assert params_from_record(record) == SamplingParams(
        temperature=0.5,
        top_k=9,
        top_p=0.9,
        min_p=0.1,
        typical_p=0.8,
        repetition_penalty=1.2,
        no_repeat_ngram=3,
        min_new_tokens=2,
        max_time=60.0,
        max_new_tokens=4,
        logit_bias=((tuple(ByteTokenizer().encode("ab")), -1.5),),
        seed=1,
    )
    beams = "--length-penalty 0.5 --early-stopping never --diversity 0.3 --beam-groups 2 --max-new-tokens 4 --seed 1"
    record = json.loads(call("x", *beams.split(), "--json").stdout)["settings"]
    assert params_from_record(record) == SamplingParams(
        "beam", length_penalty=0.5, early_stopping="never", diversity=0.3, groups=2, max_new_tokens=4, seed=1
    )


def test_every_setting_is_an_option_without_a_default() -> None:
    app = typer.Typer()
    app.command()(generate)
    options: dict[Any, Any] = {option.name: option for option in typer.main.get_command(app).params}
    for strategy in STRATEGIES:
        for name, (_, help) in get_strategy_options(strategy).items():
            assert options[name].default is None
            assert options[name].help.startswith(help.text)
    assert options["groups"].opts == ["--beam-groups"]
    assert options["top_p"].opts == ["--top-p"]
    assert options["top_p"].rich_help_panel == "Sampling"


def test_warnings_are_told_even_when_quiet(load: Load) -> None:
    load(history_model(), warnings=("step-000500 is damaged",))
    assert call("ciao", "--quiet").stderr == "warning: step-000500 is damaged\n"


def test_a_page_has_the_texts(lmtool: CommandLine, run: Path) -> None:
    lmtool.succeeds("generate", "The", "--html", "beam.html", "--num-beams", "2", "--max-new-tokens", "3", "-q")
    assert "Tree of " in Path("beam.html").read_text(encoding="utf-8")


def test_masks_are_filled(load: Load) -> None:
    load(SidesModel(ByteTokenizer.vocab_size, context=32))
    record = json.loads(call("a__b", "--mask", "__", "--rounds", "3", "--json").stdout)
    assert record["settings"]["strategy"] == "mask-predict"
    assert len(record["tokens"]) == 1
    assert record["finish_reason"] == "filled"
    drawn = json.loads(call("ab", "--length", "4", "--temperature", "0.5", "--json").stdout)
    assert drawn["settings"]["by"] == "gibbs"
    assert len(drawn["tokens"]) == 4
    assert call("a__b", "--mask", "__", "--seed", "1", "-q").stdout.startswith("a")
    assert isinstance(call("a").exception, UsageError)
    assert "no mask to fill" in str(call("a").exception)


def test_probabilities_are_coloured_on_a_terminal(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    load(ScriptModel([*ByteTokenizer().encode("!"), ByteTokenizer.eos_id], n_prompt=2))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    generate_here(["a"], greedy=True, quiet=True, show_probs=True)
    assert "\x1b[32m" in terminal.getvalue()


@pytest.mark.parametrize(
    "arguments",
    [
        ["one", "one", "-n", "2", "--temperature", "1.2"],
        ["one", "two", "--num-beams", "3", "--num-return", "3"],
        ["one", "--greedy", "--stop", "a", "--stop", "b", "--prefix", " x"],
        ["one", "--greedy", "--max-time", "1e-9"],
        ["one", "--num-beams", "3", "--num-return", "3", "--max-time", "1e-9"],
        ["x" * 50, "--overflow", "slide", "--deterministic", "--min-p", "0.1"],
    ],
    ids=" ".join,
)
def test_a_record_can_be_repeated(load: Load, tmp_path: Path, arguments: list[str]) -> None:
    asked = load(history_model())
    (tmp_path / "texts.jsonl").write_text(call(*arguments, "--max-new-tokens", "12", "--json", "-q").stdout)
    records = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    result = call("--replay", str(tmp_path / "texts.jsonl"))
    assert result.exit_code == 0, result.output
    assert result.stdout == "".join(f"same: {record['prompt']}\n" for record in records)
    assert asked[-1] == ("runs/some-run/checkpoints/step-000500", "cpu", "float32")
    assert len(asked) == 2


def test_a_replay_says_where_it_differs(load: Load, tmp_path: Path) -> None:
    load(history_model())
    record = json.loads(call("one", "--greedy", "--max-new-tokens", "9", "--json", "-q").stdout)
    other = {**record, "tokens": [*record["tokens"][:4], 9, *record["tokens"][5:]], "version": "0.0.1"}
    (tmp_path / "texts.jsonl").write_text(json.dumps(record) + "\n" + json.dumps(other) + "\n")
    result = call("--replay", str(tmp_path / "texts.jsonl"))
    assert result.exit_code == 1
    assert result.stdout == (f"same: one\ndiffers from token 4 on (version 0.0.1 -> {lmtool.__version__}): one\n")
    answers = [
        json.loads(line) for line in call("--replay", str(tmp_path / "texts.jsonl"), "--json").stdout.splitlines()
    ]
    assert [(answer["same"], answer["differs_at"]) for answer in answers] == [(True, None), (False, 4)]


def test_other_weights_are_not_replayed(load: Load, tmp_path: Path) -> None:
    load(history_model())
    record = json.loads(call("one", "--json", "-q").stdout) | {"checkpoint": "cd" * 32}
    (tmp_path / "texts.jsonl").write_text(json.dumps(record))
    error = call("--replay", str(tmp_path / "texts.jsonl")).exception
    assert isinstance(error, CheckpointError)
    assert "not the one of the record" in str(error)


def test_the_spellings_of_special_tokens_are_ordinary_text(lmtool: CommandLine, run: Path) -> None:
    out = lmtool.succeeds(
        "generate", "[BOS][EOS] [MASK] <extra_id_0>", "--greedy", "--max-new-tokens", "3", "--json", "--overflow", "cut"
    ).out
    assert json.loads(out)["prompt"] == "[BOS][EOS] [MASK] <extra_id_0>"
    assert lmtool.succeeds("generate", "[EOS]", "--greedy", "-q", "--max-new-tokens", "2").out.startswith("[EOS]")


@pytest.mark.parametrize("chosen", [["--greedy"], ["--temperature", "0.05", "--seed", "5", "-n", "2"]], ids=" ".join)
def test_a_draft_leaves_texts_as_they_are_and_says_how_many_of_its_tokens_they_have(
    lmtool: CommandLine, run: Path, chosen: list[str]
) -> None:
    arguments = ["generate", "The baker sold", "One", "--max-new-tokens", "20", "--json", *chosen]
    plainly = [json.loads(line) for line in lmtool.succeeds(*arguments).out.splitlines()]
    said = lmtool.succeeds(*arguments, "--draft", "ngram", "--draft-tokens", "3")
    drafted = [json.loads(line) for line in said.out.splitlines()]
    assert [record["text"] for record in drafted] == [record["text"] for record in plainly]
    assert [record["tokens"] for record in drafted] == [record["tokens"] for record in plainly]
    assert all(record["draft"] == {"run": None, "tokens": 3} for record in drafted)
    assert not {"draft", "proposed", "accepted"} & plainly[0].keys()
    accepted, proposed = (sum(record[name] for record in drafted) for name in ("accepted", "proposed"))
    assert 0 <= accepted <= proposed > 0
    assert "draft n-gram look-up, 3 tokens at once\n" in said.err
    assert f" tokens/s, {accepted} of {proposed} proposed tokens accepted\n" in said.err


def test_texts_with_a_run_as_draft_are_repeated_bit_for_bit(lmtool: CommandLine, run: Path, tmp_path: Path) -> None:
    arguments = ["The", "One", "-n", "2", "--max-new-tokens", "30", "--max-time", "100", "--json", "-q"]
    out = lmtool.succeeds("generate", *arguments, "--draft", f"{RUN}@2").out
    records = [json.loads(line) for line in out.splitlines()]
    assert all(record["draft"]["step"] == 2 and record["step"] == 6 for record in records)
    assert sum(record["accepted"] for record in records) > 0
    (tmp_path / "texts.jsonl").write_text(out + lmtool.succeeds("generate", *arguments, "--draft", "ngram").out)
    assert lmtool.succeeds("generate", "--replay", tmp_path / "texts.jsonl").out.count("same") == 8
    records[0]["draft"]["checkpoint"] = HASH
    (tmp_path / "other.jsonl").write_text(json.dumps(records[0]))
    lmtool.refuses(
        4, "generate", "--replay", tmp_path / "other.jsonl", words=["step-000002", "not the one of the record"]
    )
    records[0]["draft"]["tokens"] = 0
    (tmp_path / "wrong.jsonl").write_text(json.dumps(records[0]))
    lmtool.refuses(3, "generate", "--replay", tmp_path / "wrong.jsonl", words=["draft.tokens", "not a record"])


def test_a_program_loads_a_draft(run: Path) -> None:
    settings = SamplingParams(max_new_tokens=12, temperature=1.0)
    plainly = lmtool.load(RUN).complete("The", settings)
    assert lmtool.load(RUN, draft="ngram").complete("The", settings) == plainly
    model = lmtool.load(RUN, draft=RUN, draft_tokens=3)
    (completion,) = model.completions("The", settings)
    assert 0 < completion.accepted <= completion.proposed
    assert model.complete("The", settings) == [completion.text]
