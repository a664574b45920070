"""`lmtool check --device`: a table of fast ways of computing, and what does not work."""

import json
from typing import Any

import torch

from lmtool.checks import device as module


def test_ways_that_differ_or_fail_are_told(monkeypatch, lmtool):
    def fails() -> Any:
        raise RuntimeError("no such kernel\nat all")

    one = torch.ones(3)
    ways = {"a": lambda: (lambda: one, lambda: one), "b": lambda: (lambda: 2 * one, lambda: one), "c": fails}
    monkeypatch.setattr(module, "_list_fast_paths", lambda device: ways)
    refused = lmtool("check", "--device")
    assert refused.code == 5
    assert "work here: b, c" in refused.err
    assert "differs by 100 %" in refused.out
    assert "RuntimeError: no such kernel\n" in refused.out
    found = json.loads(lmtool("check", "--device", "--json").out)
    assert [way["verdict"] for way in found["ways"]] == ["same", "differs by 100 %", "RuntimeError: no such kernel"]
