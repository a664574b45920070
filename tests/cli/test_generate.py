"""`lmtool generate`: options, terminals, masks and drafts, and records that are repeated."""

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import typer

import lmtool as api
from lmtool.cli.commands.generate import generate
from lmtool.generation.params import STRATEGIES, SamplingParams, get_strategy_options
from lmtool.generation.replay import params_from_record
from tests.support.cli import RUN, CommandLine, Terminal, settings

SHORT = ("--max-new-tokens", "5", "--seed", "1")


def record_of(lmtool: CommandLine, *arguments: object) -> Any:
    (record,) = lmtool.succeeds("generate", *arguments, "--json", "-q").records()
    return record


def test_every_option_reaches_its_place(lmtool: CommandLine, run: Path) -> None:
    sampling = (
        "--temperature 0.5 --top-k 9 --top-p 0.9 --min-p 0.1 --typical-p 0.8 --repetition-penalty 1.2 "
        "--no-repeat-ngram 3 --min-new-tokens 2 --max-time 60 --max-new-tokens 4 --logit-bias ab=-1.5 --seed 1 "
        "--stop a --stop bc --overflow cut --prefix x --device cpu --precision float32"
    )
    record = record_of(lmtool, "The", "--run", f"{RUN}@4", *sampling.split())
    assert params_from_record(record["settings"]) == SamplingParams(
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
        logit_bias=((tuple(api.load(RUN).loaded.tokenizer.encode("ab")), -1.5),),
        seed=1,
    )
    kept = {name: record["options"][name] for name in ("stop", "overflow", "prefix")}
    assert kept == {"stop": ["a", "bc"], "overflow": "cut", "prefix": "x"}
    assert (record["step"], record["device"], record["precision"]) == (4, "cpu", "float32")
    beams = "--length-penalty 0.5 --early-stopping never --diversity 0.3 --beam-groups 2 --max-new-tokens 4 --seed 1"
    assert params_from_record(record_of(lmtool, "The", *beams.split())["settings"]) == SamplingParams(
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


class Screen(Terminal):
    """A terminal that keeps what it was given at once."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes += [text] if text else []
        return super().write(text)


def test_one_text_streams_to_a_terminal(lmtool: CommandLine, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", screen)
        lmtool("generate", "The\x07", *SHORT, "-q")
    assert screen.writes[0] == "The\\x07"
    assert len(screen.writes) > 3
    assert screen.content().count("\n") == 1 + record_of(lmtool, "The\x07", *SHORT)["text"].count("\n")


def test_probabilities_are_coloured_on_a_terminal(
    lmtool: CommandLine, counted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    lmtool("generate", "good", "--run", counted, "--greedy", "-q", "--show-probs", "--max-new-tokens", "2")
    assert "\x1b[32m" in screen.content()


@pytest.mark.parametrize("options", [["--num-beams", "2"], ["--temperature", "1.5"]])
def test_texts_come_with_their_mean_log_probability(lmtool: CommandLine, run: Path, options: list[str]) -> None:
    asked = ("generate", "One", "The", *SHORT, *options)
    logprobs = [logprob for record in lmtool.succeeds(*asked, "--json").records() for logprob in record["logprobs"]]
    said = float(lmtool.succeeds(*asked).err.partition("mean log-probability ")[2].split()[0])
    assert said == pytest.approx(mean(logprobs), abs=1e-4)


def test_masks_are_filled(lmtool: CommandLine, home: Path, corpus: Path) -> None:
    sides = settings(model_shape="encoder", objective_kind="masked", model_context=32, training_steps=1)
    small = settings(model_n_layers=1, model_d_model=16, model_n_heads=2, evaluation_baseline="false")
    lmtool.succeeds("pretrain", corpus, *sides, *small, "-q", "-o", "masked")
    filled = record_of(lmtool, "The __ sold", "--run", "masked", "--mask", "__", "--rounds", "3")
    assert filled["settings"]["strategy"] == "mask-predict"
    assert (len(filled["tokens"]), filled["finish_reason"]) == (1, "filled")
    drawn = record_of(lmtool, "The", "--run", "masked", "--length", "4", "--temperature", "0.5")
    assert (drawn["settings"]["by"], len(drawn["tokens"])) == ("gibbs", 4)
    said = lmtool.succeeds("generate", "The __ sold", "--run", "masked", "--mask", "__", "--seed", "1", "-q").out
    assert said.startswith("The")
    lmtool.refuses(2, "generate", "The", "--run", "masked", words=["no mask to fill"])


@pytest.mark.parametrize("chosen", [["--greedy"], ["--temperature", "0.05", "--seed", "5", "-n", "2"]], ids=" ".join)
def test_a_draft_leaves_texts_as_they_are_and_says_how_many_of_its_tokens_they_have(
    lmtool: CommandLine, run: Path, chosen: list[str]
) -> None:
    arguments = ("generate", "The baker sold", "One", "--max-new-tokens", "20", "--json", *chosen)
    plainly = lmtool.succeeds(*arguments).records()
    said = lmtool.succeeds(*arguments, "--draft", "ngram", "--draft-tokens", "3")
    drafted = said.records()
    assert [record["tokens"] for record in drafted] == [record["tokens"] for record in plainly]
    assert all(record["draft"] == {"run": None, "tokens": 3} for record in drafted)
    assert not {"draft", "proposed", "accepted"} & plainly[0].keys()
    accepted, proposed = (sum(record[name] for record in drafted) for name in ("accepted", "proposed"))
    assert 0 <= accepted <= proposed > 0
    assert f", {accepted} of {proposed} proposed tokens accepted\n" in said.err
    model = api.load(RUN, draft=RUN, draft_tokens=3)
    (completion,) = model.completions("The", SamplingParams(max_new_tokens=12, temperature=1.0))
    assert 0 < completion.accepted <= completion.proposed


RECORDED = (
    ["One", "One", "-n", "2", "--temperature", "1.2"],
    ["One", "Two", "--num-beams", "3", "--num-return", "3"],
    ["One", "--greedy", "--stop", "a", "--stop", "b", "--prefix", " x"],
    ["One", "--greedy", "--max-time", "1e-9"],
    ["One", "--num-beams", "3", "--num-return", "3", "--max-time", "1e-9"],
    ["The baker sold a map at dawn. " * 3, "--overflow", "slide", "--deterministic", "--min-p", "0.1"],
    ["The", "--run", f"{RUN}@4", "--draft", f"{RUN}@2", "--max-time", "100"],
    ["The", "--draft", "ngram"],
)
"""Arguments whose records are repeated."""


def test_records_are_repeated_bit_for_bit(lmtool: CommandLine, run: Path) -> None:
    written = [lmtool.succeeds("generate", *one, "--max-new-tokens", "12", "--json", "-q").out for one in RECORDED]
    Path("texts.jsonl").write_text("".join(written))
    records = [json.loads(line) for text in written for line in text.splitlines()]
    repeated = lmtool.succeeds("generate", "--replay", "texts.jsonl").out.splitlines()
    assert repeated == [f"same: {record['prompt']}"[:200] for record in records]


@pytest.fixture
def drafted(lmtool: CommandLine, run: Path) -> Any:
    return record_of(lmtool, "The", "--greedy", "--max-new-tokens", "9", "--draft", f"{RUN}@2")


def test_a_replay_says_where_it_differs(lmtool: CommandLine, drafted: Any) -> None:
    tokens = drafted["tokens"]
    other = {**drafted, "tokens": [*tokens[:4], tokens[4] + 1, *tokens[5:]], "version": "0.0.1"}
    Path("texts.jsonl").write_text(json.dumps(drafted) + "\n" + json.dumps(other) + "\n")
    told = lmtool("generate", "--replay", "texts.jsonl")
    assert told.code == 1
    assert told.out == f"same: The\ndiffers from token 4 on (version 0.0.1 -> {api.__version__}): The\n"
    answers = lmtool("generate", "--replay", "texts.jsonl", "--json").records()
    assert [(answer["same"], answer["differs_at"]) for answer in answers] == [(True, None), (False, 4)]


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({"checkpoint": "cd" * 32}, 4, ["step-000006", "not the one of the record"]),
        ({"draft": {"checkpoint": "cd" * 32}}, 4, ["step-000002", "not the one of the record"]),
        ({"draft": {"tokens": 0}}, 3, ["draft.tokens", "not a record"]),
    ],
)
def test_other_weights_and_forged_records_are_not_replayed(
    lmtool: CommandLine, drafted: Any, changed: dict[str, Any], code: int, words: list[str]
) -> None:
    record = {**drafted, **changed}
    record["draft"] = {**drafted["draft"], **changed.get("draft", {})}
    Path("texts.jsonl").write_text(json.dumps(record))
    lmtool.refuses(code, "generate", "--replay", "texts.jsonl", words=words)
