"""An index: what is added, replaced, removed and found again; other models, damage, and processes that are killed."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmtool.apps.search import index as module
from lmtool.apps.search import nearest
from lmtool.apps.search.entries import Entry
from lmtool.apps.search.index import (
    LISTS,
    TEXTS,
    VECTORS,
    Index,
    add_or_replace_texts,
    open_index,
    remove_texts_by_id_or_source,
)
from lmtool.compute.device import CPU
from lmtool.errors import CheckpointError, DataError, UsageError
from lmtool.evaluation.embedding import embed, normalize
from lmtool.runs.load import LoadedModel, load_run
from tests.apps.search.conftest import LINES, add, entries, found
from tests.reference import search as plain
from tests.runs.killing import in_child
from tests.support.errors import refuses
from tests.support.training import Work, no_report


def check(path: Path, loaded: LoadedModel, texts: Sequence[Entry]) -> None:
    """Assert that an index has these texts, and ranks them as a loop does."""
    vectors = [one.vectors[0].tolist() for one in embed(loaded, ["the cat", *(one.text for one in texts)], -1, "own")]
    wanted = plain.ranking(vectors[0], vectors[1:], 99)
    hits = found(path, loaded, "the cat")
    assert sorted(hit[:3] for hit in hits) == sorted(text[:3] for text in texts)
    np.testing.assert_allclose([hit.score for hit in hits], [score for _, score in wanted], atol=1e-5)
    assert len(Index(path).row_N) == len(texts)


def test_all_texts_are_ranked_as_by_a_loop(tmp_path: Path, loaded: LoadedModel) -> None:
    assert add(tmp_path / "i", loaded, entries()) == {"added": 7, "replaced": 0, "kept": 0}
    check(tmp_path / "i", loaded, entries())
    assert len(found(tmp_path / "i", loaded, "a", 3)) == 3
    assert [hits[0].text for hits in Index(tmp_path / "i", loaded).search(LINES, 1)] == LINES


def test_texts_are_added_replaced_kept_and_removed(
    tmp_path: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMMIT_TEXTS", 2)
    path = tmp_path / "i"
    add(path, loaded, entries(LINES[:3]))
    changed = [*entries(LINES[:2]), Entry("a.txt:3", "a.txt", "another"), Entry("b:1", "b", "the cat sat")]
    assert add(path, loaded, changed) == {"added": 1, "replaced": 1, "kept": 2}
    check(path, loaded, changed)
    assert remove_texts_by_id_or_source(path, ["b", "a.txt:1"]) == {"removed": 2}
    check(path, loaded, changed[1:3])
    with pytest.raises(DataError, match="'none'"):
        remove_texts_by_id_or_source(path, ["a.txt:2", "none"])
    check(path, loaded, changed[1:3])
    assert add(path, loaded, entries()) == {"added": 5, "replaced": 1, "kept": 1}
    check(path, loaded, entries())
    # a text that is in another file now is of that
    assert add(path, loaded, [entries()[0]._replace(source="new")]) == {"added": 0, "replaced": 1, "kept": 0}
    assert remove_texts_by_id_or_source(path, ["new"]) == {"removed": 1}
    assert remove_texts_by_id_or_source(path, ["a.txt"]) == {"removed": 6}
    assert found(path, loaded, "a") == []


def test_nothing_is_computed_where_nothing_has_changed(
    path: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "embed", lambda *arguments, **options: pytest.fail("a text is embedded again"))
    assert add(path, loaded, entries())["kept"] == 7


def test_a_reader_does_not_see_what_comes_later(tmp_path: Path, loaded: LoadedModel) -> None:
    path = tmp_path / "i"
    add(path, loaded, entries(LINES[:3]))
    index = Index(path, loaded)
    add(path, loaded, entries())
    assert len(index.search(["cat"], 9)[0]) == 3
    remove_texts_by_id_or_source(path, ["a.txt:1"])
    assert "a.txt:1" not in [hit.id for hit in index.search([LINES[0]], 9)[0]]


def test_another_model_is_refused_by_name(path: Path, loaded: LoadedModel, work: Work) -> None:
    work.pretrain("seed=5", "training.steps=1", name="other")
    other = load_run(str(work.run("other")), CPU)
    for call in (lambda: add(path, other, entries()), lambda: Index(path, other)):
        with pytest.raises(CheckpointError) as refusal:
            call()
        assert str(loaded.run_path) in refusal.value.fix
    check(path, loaded, entries())


def test_what_cannot_be_indexed_leaves_nothing(tmp_path: Path, loaded: LoadedModel) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    twice = [*entries(), *entries()]
    for name, texts in (("i", []), ("full", entries()), ("i", twice), ("i", entries(["", ""]))):
        with pytest.raises((DataError, UsageError)):
            add(tmp_path / name, loaded, texts)
        assert [path.name for path in tmp_path.iterdir()] == ["full"]


@pytest.mark.parametrize("name", [TEXTS, VECTORS])
def test_damage_is_told(path: Path, name: str) -> None:
    (path / name).write_bytes(b"x" * 50)
    with pytest.raises(DataError, match="damaged"):
        Index(path)
    (path / name).unlink()
    with pytest.raises(DataError, match="damaged"):
        Index(path)


@pytest.mark.filterwarnings("ignore:builtin type")
def test_beyond_many_texts_faiss_proposes(tmp_path: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(module, "MIN_FAISS_TEXTS", 3)
    path = tmp_path / "i"
    add(path, loaded, entries())
    assert (path / LISTS).exists()
    assert found(path, loaded, LINES[2])[0].text == LINES[2]
    add(path, loaded, entries([*LINES, "another cat"]))
    assert found(path, loaded, "another cat")[0][:3] == ("a.txt:8", "a.txt", "another cat")
    remove_texts_by_id_or_source(path, ["a.txt:1"])
    hits = found(path, loaded, LINES[0])
    assert hits
    assert "a.txt:1" not in [hit.id for hit in hits]
    (path / LISTS).write_bytes(b"x" * 50)
    assert len(found(path, loaded, LINES[0])) == 7, "the exact search needs no lists"


@pytest.mark.filterwarnings("ignore:builtin type")
def test_faiss_finds_most_of_what_is_nearest(tmp_path: Path, loaded: LoadedModel) -> None:
    pytest.importorskip("faiss")
    path = tmp_path / "i"
    add(path, loaded, entries([str(i) for i in range(2000)]))
    draw = np.random.default_rng(0)
    centres_CD = draw.standard_normal((50, Index(path).vectors_ND.shape[1])).astype("<f4")
    noise_ND = draw.standard_normal((2000, centres_CD.shape[1])).astype("<f4")
    (path / VECTORS).write_bytes(
        normalize((np.repeat(centres_CD, 40, axis=0) + 0.3 * noise_ND).astype(np.float32)).tobytes()
    )
    index = Index(path)
    exact = [{hit.id for hit in hits} for hits in index.find_nearest(centres_CD, 10)]
    index.write_faiss_index()
    proposed = [{hit.id for hit in hits} for hits in index.find_nearest(centres_CD, 10)]
    assert sum(len(a & b) for a, b in zip(exact, proposed, strict=True)) >= 0.9 * 500
    assert exact != [set()] * 50


@pytest.mark.system
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("when", ["vectors", "texts"])
def test_an_indexing_that_is_killed_goes_on(
    tmp_path: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, at: int, when: str
) -> None:
    """Killed when vectors are written and their texts are not, or just after these.

    The first vector that is synced is that of a new index without texts.
    """
    monkeypatch.setattr(module, "COMMIT_TEXTS", 2)
    path = tmp_path / "i"
    calls: list[int] = []

    def die(*_: Any) -> None:
        calls.append(1)
        if len(calls) == at + (when == "vectors"):
            os.kill(os.getpid(), signal.SIGKILL)

    def sync(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").endswith(VECTORS) and os.fstat(handle).st_size:
            die()

    def work() -> None:
        if when == "vectors":
            os.fsync = sync  # type: ignore[assignment]
        add_or_replace_texts(path, loaded, entries(), die if when == "texts" else no_report)

    assert os.WIFSIGNALED(os.waitpid(in_child(work), 0)[1])
    n_whole = 2 * (at - (when == "vectors"))
    assert len(Index(path).row_N) == n_whole
    assert add(path, loaded, entries()) == {"added": 7 - n_whole, "replaced": 0, "kept": n_whole}
    check(path, loaded, entries())


def test_the_first_text_may_be_without_tokens(tmp_path: Path, loaded: LoadedModel) -> None:
    add(tmp_path / "i", loaded, entries(["", *LINES]))
    assert found(tmp_path / "i", loaded, LINES[0], 1)[0].text == LINES[0]


def test_queries_are_answered_one_by_one_as_together(
    path: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index(path, loaded)
    together = index.search(LINES, 3)
    monkeypatch.setattr(nearest, "MAX_SIMILARITIES", 1)
    alone = dict(index.search_each(LINES, 3))
    assert [*alone] == LINES
    for some, others in zip(alone.values(), together, strict=True):
        assert [hit[:3] for hit in some] == [hit[:3] for hit in others]
        assert [hit.score for hit in some] == pytest.approx([hit.score for hit in others], abs=1e-5)
    with pytest.raises(UsageError, match="text 2"):
        index.search(["the cat", ""])
    with refuses("data"):
        index.search([])


def test_an_index_whose_run_is_gone_names_the_option(tmp_path: Path, work: Work) -> None:
    work.pretrain("training.steps=1", name="gone")
    run = work.run("gone")
    add(tmp_path / "i", load_run(str(run), CPU), entries())
    run.rename(run.with_name("moved"))
    with refuses("run_not_found") as error:
        open_index(tmp_path / "i")
    assert "--run RUN" in error.value.fix
    assert str(tmp_path / "i") in error.value.fix
    assert open_index(tmp_path / "i", str(run.with_name("moved"))).search([LINES[0]], 1)[0][0].text == LINES[0]
    with refuses("run_not_found") as error:
        open_index(tmp_path / "i", "nothing")
    assert "index" not in error.value.fix
