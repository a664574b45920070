"""Columns of tables as they are published: the right roles or a question, none wrong silently."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from lmtool.data.table import open_table
from lmtool.errors import DataError
from lmtool.tasks.schema import BY_USER, Columns, choose_columns
from tests.tasks.published import rows_of, write_table

HEADERS = yaml.safe_load(Path(__file__).with_name("headers.yaml").read_text(encoding="utf-8"))
LEAST_RIGHT = 0.95
"""Share of headers of which people can tell the roles whose roles are found, and not asked for."""


def roles(columns: Columns) -> dict[str, Any]:
    match columns.kind:
        case "words":
            return {"words": columns.texts[0], "tags": columns.label}
        case "questions":
            return {"question": columns.texts[0], "context": columns.texts[1], "answers": columns.label}
    single = {key: getattr(columns, key) for key in ("messages", "tools", "input", "target", "label")}
    found: dict[str, Any] = {key: name for key, name in single.items() if name is not None}
    if columns.target is not None:
        return found | {"source": columns.texts[0]}
    return found | ({"text": set(columns.texts)} if columns.texts else {})


def find(name: str, folder: Path) -> Columns | str:
    header, rows = rows_of(HEADERS[name][0], name)
    path = write_table(folder, header, rows, headed="(no header)" not in name)
    try:
        return choose_columns(open_table(str(path)), kind=None)
    except DataError:
        return "asks"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Columns | str]:
    folder = tmp_path_factory.mktemp("headers")
    return {name: find(name, folder) for name in HEADERS}


@pytest.mark.parametrize("name", HEADERS)
def test_roles_are_right_or_asked_for(name: str, found: dict[str, Columns | str]) -> None:
    columns, wanted = found[name], HEADERS[name][1]
    if columns == "asks":
        return
    assert isinstance(columns, Columns)
    assert isinstance(wanted, dict), f"nobody can tell the roles, but they are {columns.describe()}"
    expected = {role: set(names) if role == "text" else names for role, names in wanted.items()}
    assert {*expected.pop("ignored", ())} <= {*columns.ignored}
    got = roles(columns)
    if "text" in expected:
        # a text that is left out is told
        assert expected["text"] - got["text"] <= {*columns.ignored}
        expected["text"] &= got["text"]
    assert got == expected
    read = {*columns.texts, *filter(None, (columns.label, columns.target, columns.input, columns.messages))}
    assert read <= columns.reasons.keys()
    assert BY_USER not in columns.reasons.values()


def test_few_are_asked_for_that_people_can_tell(found: dict[str, Columns | str]) -> None:
    known = [name for name, (_, wanted) in HEADERS.items() if wanted != "asks"]
    assert sum(found[name] != "asks" for name in known) >= LEAST_RIGHT * len(known)
