"""Forms on the command line: what is asked for is kept, and what contradicts it is named."""

import json
import re
from pathlib import Path

import jsonschema
import pytest

from tests.support.cli import CommandLine, pipe_in

FACTS = {
    "type": "object",
    "properties": {"verdict": {"enum": ["yes", "no"]}, "stars": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["verdict", "stars"],
    "additionalProperties": False,
}


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(FACTS))
    return path


def test_each_option_keeps_its_form(lmtool: CommandLine, trained: Path, schema: Path, tmp_path: Path) -> None:
    grammar = tmp_path / "list.lark"
    grammar.write_text('start: word (", " word)*\nword: "the" | "map" | "moon"\n')

    def said(*form: object) -> str:
        asked = ("generate", "The sailor", "--run", trained, "--max-new-tokens", "60", "--complete", "-q", "--no-echo")
        return lmtool.succeeds(*asked, *form, "--seed", 1).out.strip()

    assert said("--choices", " a kettle, a map") in ("a kettle", "a map")
    assert re.fullmatch("[ab]{3}[0-9]+", said("--regex", "[ab]{3}[0-9]+"))
    jsonschema.validate(json.loads(said("--json-schema", schema)), FACTS)
    assert set(said("--grammar", grammar).split(", ")) <= {"the", "map", "moon"}


def test_a_text_that_is_cut_within_its_form_is_told(
    lmtool: CommandLine, trained: Path, schema: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    pipe_in(monkeypatch, "Who?\n")
    chat = lmtool.succeeds("chat", trained, "--json-schema", schema, "-q", "--max-new-tokens", "5")
    assert chat.err.startswith("warning: ")
    pipe_in(monkeypatch, "Who?\n")
    assert lmtool.succeeds("chat", trained, "--choices", "me,you", "-q").out.strip() in ("me", "you")
