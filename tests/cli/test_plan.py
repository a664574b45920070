"""`lmtool plan`."""

import json


def test_a_plan_is_printed(lmtool, home):
    outcome = lmtool.succeeds("plan", "gpt2-124m", "--device-kind", "h100", "--devices", "8", "-q")
    words = ["124,439,808 parameters", "a token", "gradients 498 MB", "8 x h100, bfloat16, 80 GB: fits", "rule"]
    assert all(word in outcome.out for word in words)


def test_a_text_decides_on_the_length(lmtool, home, corpus):
    found = json.loads(
        lmtool.succeeds(
            "plan", "tiny", "--text", corpus, "-s", "training.epochs=3", "--device-kind", "a100", "--json"
        ).out
    )
    assert 3 <= found["epochs"] < 3.5
    assert found["notes"] == []
    assert found["footprint"]["peak"] > found["footprint"]["weights"]


def test_what_cannot_be_planned(lmtool, home, corpus):
    lmtool.refuses(2, "plan", "tiny", "--device-kind", "abacus", words=["abacus", "h100"])
    lmtool.refuses(2, "plan", "tiny", "--device-kind", "h100", "--utilization", "2", words=["share"])
    lmtool.refuses(2, "plan", "ngram", words=["counts"])
    lmtool.refuses(2, "plan", "dan", "--text", corpus, words=["tables"])
    lmtool.refuses(3, "plan", "tiny", "--text", "nowhere.txt", words=["nowhere.txt"])
