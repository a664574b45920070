"""Some mutations of valid files for every reader; `make fuzz` tries many more."""

import random
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmtool.errors import LmtoolError
from tests.fuzz.mutation import mutated
from tests.fuzz.readers import READERS
from tests.support.errors import refuses


@cache
def seeds(name: str) -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return READERS[name].seeds(Path(folder))


@pytest.mark.parametrize("name", READERS)
def test_valid_files_are_read(name: str, tmp_path: Path) -> None:
    for number, content in enumerate(seeds(name)):
        (tmp_path / str(number)).mkdir()
        READERS[name].read(tmp_path / str(number), content)


@pytest.mark.parametrize("name", READERS)
@given(number=st.integers(0, 2**31))
@settings(max_examples=10, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files_are_read_or_refused(name: str, number: int, tmp_path: Path) -> None:
    exit_code = 2
    try:
        READERS[name].read(tmp_path, mutated(seeds(name), random.Random(number)))
    except LmtoolError as error:
        exit_code = error.exit_code
    assert exit_code > 1


def test_a_tokenizer_that_names_no_end_of_texts_is_refused(tmp_path: Path) -> None:
    with refuses("checkpoint"):
        READERS["tokenizer_config.json of smollm2"].read(tmp_path, b"{}")
