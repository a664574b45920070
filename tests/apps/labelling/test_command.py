"""`lmtool label` as a program: what it refuses, what it prints, who may ask, and kill -9 between two answers."""

import csv
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.apps.labelling.conftest import TEXTS, write
from tests.cli.conftest import home, lmtool  # noqa: F401 - fixtures
from tests.support import forks
from tests.support.cli import CommandLine

IMPORTS = ("starlette.applications", "uvicorn", "sklearn.metrics")
"""What the program imports beside torch."""

ROWS = [f"{i},{text}" for i, (_, text) in enumerate(TEXTS)]


@contextmanager
def started(folder: Path, *options: str) -> Iterator[tuple[forks.Program, httpx.Client]]:
    """The program in a folder, and a client that knows its key."""
    command = ["-m", "lmtool", "label", "things.csv", "--port", "0", "--json", *options]
    process = forks.begin(command, cwd=folder, files=(None, subprocess.PIPE, None), imports=IMPORTS)
    assert process.stdout is not None
    try:
        begun = json.loads(process.stdout.readline())
        assert begun["output"] == "things.labelled.csv"
        address, _, key = begun["address"].partition("/#")
        with httpx.Client(base_url=address, headers={"authorization": f"Bearer {key}"}, timeout=60) as client:
            yield process, client
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def answer(client: httpx.Client, label: str = "a") -> int:
    """Answers the row that is asked. Returns which it is."""
    row = client.post("/next", json={"window": "w"}).json()["row"]
    body = {"window": "w", "row": row["row"], "version": row["version"], "labels": [label]}
    assert client.post("/answer", json=body).status_code == 200
    return int(row["row"])


def labels(path: Path) -> dict[int, str]:
    with path.open(encoding="utf-8", newline="") as file:
        return {int(row["number"]): row["label"] for row in csv.DictReader(file) if row["label"]}


@pytest.mark.system
def test_kill_9_loses_no_answer_and_the_command_goes_on(tmp_path: Path) -> None:
    write(tmp_path / "things.csv", ROWS)
    kept: dict[int, str] = {}
    for round_ in range(2):
        with started(tmp_path) as (process, client):
            assert client.post("/progress", json={"window": "w"}).json()["answers"] == len(kept)
            for _ in range(3):
                kept[answer(client, f"class {round_}")] = f"class {round_}"
            process.send_signal(signal.SIGKILL)
    with started(tmp_path) as (process, client):
        assert labels(tmp_path / "things.labelled.csv") == kept, "the answers of before are written at the start"
        kept[answer(client)] = "a"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        assert process.stdout is not None
        summary = json.loads(process.stdout.read())
    assert summary == {"output": "things.labelled.csv", "answers": 7, "rows": len(ROWS), "estimate": None}
    assert labels(tmp_path / "things.labelled.csv") == kept
    assert (tmp_path / "things.csv").read_text().splitlines()[1:] == ROWS


@pytest.mark.system
def test_only_who_knows_the_key_and_this_server_may_ask(tmp_path: Path) -> None:
    write(tmp_path / "things.csv", ROWS)
    with started(tmp_path) as (_, client):
        body = {"window": "w"}
        page = client.get("/", headers={"authorization": ""})
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert TEXTS[0][1] not in page.text
        for path in ("/next", "/answer", "/find", "/progress"):
            assert client.post(path, json=body, headers={"authorization": "Bearer wrong"}).status_code == 401
            assert client.post(path, json=body, headers={"host": "elsewhere.org"}).status_code == 403
            assert client.post(path, json=body, headers={"origin": "http://elsewhere.org"}).status_code == 403
            assert client.get(path).status_code == 405
            assert client.post(path, content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
            assert client.post(path, json={**body, "more": 1}).status_code == 400
        assert client.post("/answer", json={**body, "row": 0, "version": 0, "labels": ["a", "b"]}).status_code == 400
        first = client.post("/next", json={"window": "first"}).json()["row"]
        second = client.post("/next", json={"window": "second"}).json()["row"]
        assert first["row"] != second["row"]
        sent = {"row": first["row"], "version": 0, "labels": ["a"]}
        assert client.post("/answer", json={"window": "first", **sent}).status_code == 200
        refused = client.post("/answer", json={"window": "second", **sent, "labels": ["b"]})
        assert refused.status_code == 409
        assert refused.json()["row"]["labels"] == ["a"]


ANSWERS = Path("things.labelled.answers.jsonl")
REFUSALS: dict[str, tuple[int, Callable[[], object], tuple[str, ...]]] = {
    "no table": (3, lambda: None, ()),
    "no column of texts": (3, lambda: things(["1,2"], "number,day"), ()),
    "no texts": (3, lambda: things(["1,", "2,"]), ()),
    "another column of texts": (3, lambda: things(ROWS), ("--text-column", "body")),
    "several labels": (3, lambda: things(["a;b,x", "c,y"], "label,text"), ()),
    "texts as labels": (3, lambda: things([f"{i} x,y {i}" for i in range(600)], "label,text"), ()),
    "the result is there": (2, lambda: (things(ROWS), Path("things.labelled.csv").write_text("mine")), ()),
    "a class is named twice": (2, lambda: things(ROWS), ("--labels", "a,b, a")),
    "the result is no CSV": (2, lambda: things(ROWS), ("-o", "out.xlsx")),
    "another table": (2, lambda: (things(ROWS), ANSWERS.write_text('{"table": "other"}\n')), ()),
    "damaged answers": (3, lambda: (things(ROWS), ANSWERS.write_text("mine\n")), ()),
    "no model": (4, lambda: things(ROWS), ("--run", "missing")),
}


def things(rows: list[str], header: str = "number,text") -> Path:
    return write(Path("things.csv"), rows, header)


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_labelled_is_refused(case: str, home: Path, lmtool: CommandLine) -> None:  # noqa: F811
    code, prepare, options = REFUSALS[case]
    prepare()
    before = {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}
    lmtool.refuses(code, "label", "things.csv", *options, "--port", "0")
    assert {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()} == before


def test_a_missing_library_is_named(
    home: Path,  # noqa: F811
    lmtool: CommandLine,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: Any = __import__("importlib.util").util
    monkeypatch.setattr(found, "find_spec", lambda name: None)
    lmtool.refuses(5, "label", "things.csv", words=("starlette", "lmtool[serve]"))
