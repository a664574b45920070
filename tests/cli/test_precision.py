"""`--precision` at inference: lower precision changes results very little."""

import json
from math import isclose

import pytest


def perplexity(lmtool, corpus, precision):
    outcome = lmtool.succeeds("eval", "last", corpus, "--precision", precision, "--json", "-q")
    return json.loads(outcome.out)["perplexity"]


def test_perplexity_hardly_changes(lmtool, run, corpus):
    exact = perplexity(lmtool, corpus, "float32")
    found = {name: perplexity(lmtool, corpus, name) for name in ("bfloat16", "bf16", "int8", "int4")}
    assert found["bf16"] == found["bfloat16"]
    for name, other in found.items():
        assert other != exact, name
        assert isclose(other, exact, rel_tol=0.01), name


@pytest.mark.parametrize("precision", ["float32", "bf16", "int8", "int4"])
def test_a_text_of_any_precision_can_be_had_again(lmtool, run, home, precision):
    told = lmtool.succeeds(
        "generate", "The", "--greedy", "--max-new-tokens", "12", "--precision", precision, "--device", "cpu", "--json"
    )
    record = json.loads(told.out)
    assert record["precision"] == {"bf16": "bfloat16"}.get(precision, precision)
    assert f"cpu, {record['precision']}" in told.err
    (home / "texts.jsonl").write_text(told.out)
    assert lmtool.succeeds("generate", "--replay", "texts.jsonl").out == "same: The\n"


def test_no_precision_that_is_not_there(lmtool, run):
    lmtool.refuses(2, "generate", "The", "--precision", "int3", words=["int3", "int4"])
