"""Forms on the command line: what is asked for is kept, and what contradicts it is named."""

import csv
import io
import json
import re

import jsonschema
import pytest

from tests.cli.test_prompting import ASKED, files  # noqa: F401 - a fixture

FACTS = {
    "type": "object",
    "properties": {"verdict": {"enum": ["yes", "no"]}, "stars": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["verdict", "stars"],
    "additionalProperties": False,
}


@pytest.fixture
def schema(tmp_path):
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(FACTS))
    return path


@pytest.fixture
def grammar(tmp_path):
    path = tmp_path / "list.lark"
    path.write_text('start: word (", " word)*\nword: "the" | "map" | "moon"\n')
    return path


def test_each_option_keeps_its_form(lmtool, trained, schema, grammar):
    asked = ("generate", "The sailor", "--run", trained, "--max-new-tokens", "60", "--complete", "-q", "--no-echo")
    for seed in range(3):
        said = lmtool.succeeds(*asked, "--choices", " a kettle, a map", "--seed", seed).out
        assert said in ("a kettle\n", "a map\n")
        assert re.fullmatch(
            "[ab]{3}[0-9]+", lmtool.succeeds(*asked, "--regex", "[ab]{3}[0-9]+", "--seed", seed).out.strip()
        )
        jsonschema.validate(json.loads(lmtool.succeeds(*asked, "--json-schema", schema, "--seed", seed).out), FACTS)
        words = lmtool.succeeds(*asked, "--grammar", grammar, "--seed", seed).out.strip().split(", ")
        assert set(words) <= {"the", "map", "moon"}


def test_records_have_both_probabilities_and_are_repeated(lmtool, trained, tmp_path):
    said = lmtool.succeeds(
        "generate", "The twin", "--run", trained, "--choices", "sold,found", "--json", "--seed", 2
    ).out
    record = json.loads(said)
    assert record["text"] in ("sold", "found")
    assert record["finish_reason"] == "stop"
    assert all(a >= b - 1e-5 for a, b in zip(record["constrained_logprobs"], record["logprobs"], strict=True))
    kept = tmp_path / "records.jsonl"
    kept.write_text(said)
    assert lmtool.succeeds("generate", "--replay", kept).out.startswith("same")


def test_the_prompt_and_its_answer_are_shown_apart(lmtool, trained):
    asked = ("generate", "The twin", "--run", trained, "--choices", "sold", "-q")
    assert lmtool.succeeds(*asked).out == "The twin sold\n"


def test_rows_are_answered_in_a_form(lmtool, ngram, files, tmp_path):  # noqa: F811
    """The model of counts knows what follows `good` and `bad`."""
    asked = ("predict", ngram, files / "rows.csv", "--prompt", ASKED, "--choices", "yes,no")
    rows = list(csv.DictReader(io.StringIO(lmtool.succeeds(*asked).out)))
    assert [(row["text"], row["label"], row["answer"], row["finish"]) for row in rows] == [
        ("good", "yes", "yes", "stop"),
        ("bad", "no", "no", "stop"),
        ("good", "yes", "yes", "stop"),
        ("bad", "yes", "no", "stop"),
    ]
    free = list(csv.DictReader(io.StringIO(lmtool.succeeds(*asked[:5], "--max-new-tokens", 1).out)))
    assert {row["finish"] for row in free} == {"length"}
    named = tmp_path / "numbered.csv"
    lmtool.succeeds(
        "predict", ngram, files / "numbered.csv", "--prompt", "{review} verdict:", "--choices", "yes,no", "-o", named
    )
    assert [row["answer"] for row in csv.DictReader(named.read_text().splitlines())] == ["yes", "no"]


def test_a_text_that_is_cut_within_its_form_is_told(lmtool, trained, ngram, files, schema, home, monkeypatch):  # noqa: F811
    """To people and to programs, also with --quiet: what looks like JSON cannot be read as that."""
    asked = ("generate", "The sailor", "--run", trained, "--json-schema", schema, "--no-echo", "-q", "--seed", "1")
    cut = lmtool.succeeds(*asked, "--max-new-tokens", "5")
    with pytest.raises(json.JSONDecodeError):
        json.loads(cut.out)
    assert cut.err.startswith("warning: ")
    assert "--complete" in cut.err
    assert json.loads(lmtool.succeeds(*asked, "--max-new-tokens", "5", "--json").out)["finish_reason"] == "length"
    whole = lmtool.succeeds(*asked, "--max-new-tokens", "60", "--complete")
    json.loads(whole.out)
    assert whole.err == ""
    beam = lmtool.succeeds(*asked[:-2], "--num-beams", "2", "--max-new-tokens", "5")
    assert "warning" in beam.err
    assert "--complete" not in beam.err, "which beam search refuses"
    free = lmtool.succeeds("generate", "The sailor", "--run", trained, "-q", "--max-new-tokens", "5")
    assert free.err == ""

    (home / "long.lark").write_text('start: "yes" " yes" " yes"\n')
    rows = ("predict", ngram, files / "rows.csv", "--prompt", ASKED, "--grammar", "long.lark", "-q")
    assert "4 of 4" in lmtool.succeeds(*rows, "--max-new-tokens", "1").err
    assert "warning" not in lmtool.succeeds(*rows).err

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Who?\n")))
    chat = lmtool.succeeds("chat", trained, "--json-schema", schema, "-q", "--max-new-tokens", "5")
    assert chat.err.startswith("warning: ")


def test_a_conversation_has_a_form(lmtool, trained, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Who?\n")))
    assert lmtool.succeeds("chat", trained, "--choices", "me,you", "-q").out.strip() in ("me", "you")


REFUSED = [
    (("generate", "a", "--regex", "(a"), "unclosed group"),
    (("generate", "a", "--regex", "a", "--choices", "b"), "regex"),
    (("generate", "a", "--complete"), "no form to complete"),
    (("generate", "a", "--choices", "a", "--stop", "b"), "stop strings"),
    (("generate", "a", "--choices", "a", "--prefix", "b"), "prefix"),
    (("generate", "a", "--choices", "a", "--no-repeat-ngram", "2"), "--no-repeat-ngram"),
    (("generate", "a", "--choices", "a", "--num-beams", "2", "--complete"), "beam search"),
    (("generate", "a", "--regex", "a{90}", "--complete", "--max-new-tokens", "9"), "shortest text"),
    (("generate", "--replay", "x.jsonl", "--choices", "a"), "replay"),
    (("generate", "a", "--choices", "a, ,b"), "none of them empty"),
]


@pytest.mark.parametrize(("asked", "what"), REFUSED, ids=[what for _, what in REFUSED])
def test_what_contradicts_a_form_is_named(lmtool, trained, asked, what):
    command, *rest = asked
    run = () if "--replay" in asked else ("--run", trained)
    said = lmtool(command, *rest, *run)
    assert said.code == 2
    assert what in said.err
    assert len(said.err.strip().splitlines()) <= 3


@pytest.mark.parametrize("more", [(), ("--complete",), ("--num-beams", "2")], ids=["", "complete", "beam"])
def test_what_no_token_spells_is_said(lmtool, ngram, files, tmp_path, more):  # noqa: F811
    """The vocabulary is the words of its text, which have neither braces nor umlauts."""
    (tmp_path / "list.json").write_text('{"type": "array"}')
    (tmp_path / "two.lark").write_text('start: "good" " größer"')
    for asked, file in (
        (("--choices", "größer,höher"), ""),
        (("--regex", "good verdict: [0-9]"), ""),
        (("--json-schema", tmp_path / "list.json"), "list.json: "),
        (("--grammar", tmp_path / "two.lark"), "two.lark: "),
    ):
        said = lmtool("generate", "good", "--run", ngram, *asked, *more)
        assert said.code == 2
        assert f"{file}the " in said.err
        assert "no token of this model continues it" in said.err


def test_files_of_forms_are_named(lmtool, trained, schema, grammar):
    schema.write_text('{"uniqueItems": true}')
    grammar.write_text("start: word")
    for option, file, what in (("--json-schema", schema, "uniqueItems"), ("--grammar", grammar, "unknown name")):
        said = lmtool("generate", "a", "--run", trained, option, file)
        assert said.code == 2
        assert said.err.splitlines()[0].removeprefix("error: ").startswith(f"{file}: the ")
        assert what in said.err


@pytest.mark.parametrize("form", ["--choices", "--regex", "--json-schema", "--grammar"])
def test_tools_of_a_conversation_contradict_its_form(lmtool, trained, schema, grammar, tmp_path, form):
    tools = tmp_path / "tools.json"
    tools.write_text('[{"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}]')
    value = {"--json-schema": schema, "--grammar": grammar}.get(form, "a")
    said = lmtool("chat", trained, "--tools", tools, form, value)
    assert (said.code, f"--tools contradicts {form}" in said.err) == (2, True)


def test_options_of_prompts_need_one(lmtool, trained, ngram, files, schema):  # noqa: F811
    for more in (("--choices", "a"), ("--max-new-tokens", "3")):
        said = lmtool("predict", trained, files / "rows.csv", *more)
        assert (said.code, "--prompt" in said.err) == (2, True)
    for more, what in (
        (("--task", "a"), "--task"),
        (("--min-probability", "0.5"), "--min-probability"),
        (("--text-column", "label", "--prompt", "{nothing}"), "nothing"),
    ):
        said = lmtool("predict", ngram, files / "rows.csv", "--prompt", "{text}", *more)
        assert (said.code, what in said.err) == (2, True)
    schema.write_text('{"uniqueItems": true}')
    said = lmtool("generate", "a", "--run", trained, "--json-schema", schema)
    assert (said.code, "uniqueItems" in said.err) == (2, True)
    said = lmtool("generate", "a", "--run", trained, "--json-schema", schema.with_name("none.json"))
    assert (said.code, "none.json" in said.err) == (3, True)
