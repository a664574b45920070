"""An index: what is added, replaced, removed and found again; other models, damage, and processes that are killed."""

import os
import signal

import numpy as np
import pytest

from lmtool.apps.search import index as module
from lmtool.apps.search import nearest
from lmtool.apps.search.index import (
    LISTS,
    TEXTS,
    VECTORS,
    Entry,
    Index,
    add_or_replace_texts,
    open_index,
    remove_texts_by_id_or_source,
)
from lmtool.compute.device import CPU
from lmtool.errors import CheckpointError, DataError, UsageError
from lmtool.evaluation.embedding import embed, normalize
from lmtool.runs.load import load_run
from tests.reference import search as plain
from tests.runs.killing import in_child
from tests.support.errors import refuses
from tests.support.training import Work, no_report

LINES = ["the cat sat", "a dog ran away", "naïve mat", "and the dog", "home", "on the mat", "a cat ran home"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    work = Work(tmp_path_factory.mktemp("searched"))
    work.pretrain()
    return load_run(str(work.run()), CPU)


def entries(lines=LINES, source="a.txt"):
    return [Entry(f"{source}:{i}", source, line) for i, line in enumerate(lines, 1)]


def vectors_of(loaded, lines):
    return [one.vectors[0].tolist() for one in embed(loaded, lines, -1, "own", truncate=True)]


def found(path, loaded, query, k=99):
    ((hits),) = Index(path, loaded).search([query], k)
    return hits


def check(path, loaded, texts):
    """Assert that an index has these texts, and ranks them as a loop does."""
    (vector,) = vectors_of(loaded, ["the cat"])
    wanted = plain.ranking(vector, vectors_of(loaded, [one.text for one in texts]), 99)
    hits = found(path, loaded, "the cat")
    assert sorted(hit[:3] for hit in hits) == sorted(text[:3] for text in texts)
    np.testing.assert_allclose([hit.score for hit in hits], [score for _, score in wanted], atol=1e-5)
    assert len(Index(path).row_N) == len(texts)


def test_all_texts_are_ranked_as_by_a_loop(tmp_path, loaded):
    counts = add_or_replace_texts(tmp_path / "i", loaded, entries(), no_report)
    assert counts == {"added": 7, "replaced": 0, "kept": 0}
    check(tmp_path / "i", loaded, entries())
    assert found(tmp_path / "i", loaded, LINES[2], 1)[0].text == LINES[2]
    assert len(found(tmp_path / "i", loaded, "a", 3)) == 3
    assert [hits[0].text for hits in Index(tmp_path / "i", loaded).search(LINES, 1)] == LINES


def test_texts_are_added_replaced_kept_and_removed(tmp_path, loaded, monkeypatch):
    monkeypatch.setattr(module, "COMMIT_TEXTS", 2)
    path = tmp_path / "i"
    add_or_replace_texts(path, loaded, entries(LINES[:3]), no_report)
    changed = [*entries(LINES[:2]), Entry("a.txt:3", "a.txt", "another"), Entry("b:1", "b", "the cat sat")]
    assert add_or_replace_texts(path, loaded, changed, no_report) == {"added": 1, "replaced": 1, "kept": 2}
    check(path, loaded, changed)
    assert remove_texts_by_id_or_source(path, ["b", "a.txt:1"]) == {"removed": 2}
    check(path, loaded, changed[1:3])
    with pytest.raises(DataError, match="no file 'none'"):
        remove_texts_by_id_or_source(path, ["a.txt:2", "none"])
    check(path, loaded, changed[1:3])
    assert add_or_replace_texts(path, loaded, entries(), no_report) == {"added": 5, "replaced": 1, "kept": 1}
    check(path, loaded, entries())
    assert remove_texts_by_id_or_source(path, ["a.txt"]) == {"removed": 7}
    assert found(path, loaded, "a") == []


def test_nothing_is_computed_where_nothing_has_changed(tmp_path, loaded, monkeypatch):
    add_or_replace_texts(tmp_path / "i", loaded, entries(), no_report)
    monkeypatch.setattr(module, "embed", lambda *arguments, **options: pytest.fail("a text is embedded again"))
    assert add_or_replace_texts(tmp_path / "i", loaded, entries(), no_report)["kept"] == 7


def test_a_reader_does_not_see_what_comes_later(tmp_path, loaded):
    path = tmp_path / "i"
    add_or_replace_texts(path, loaded, entries(LINES[:3]), no_report)
    index = Index(path, loaded)
    add_or_replace_texts(path, loaded, entries(), no_report)
    assert len(index.search(["cat"], 9)[0]) == 3
    remove_texts_by_id_or_source(path, ["a.txt:1"])
    assert [hit.id for hit in index.search([LINES[0]], 9)[0]].count("a.txt:1") == 0


def test_another_model_is_refused_by_name(tmp_path, loaded, work):
    add_or_replace_texts(tmp_path / "i", loaded, entries(), no_report)
    work.pretrain("seed=5", name="other")
    other = load_run(str(work.run("other")), CPU)
    for call in (
        lambda: add_or_replace_texts(tmp_path / "i", other, entries(), no_report),
        lambda: Index(tmp_path / "i", other),
    ):
        with pytest.raises(CheckpointError, match="not of this model") as refusal:
            call()
        assert str(loaded.run_path) in refusal.value.fix
    check(tmp_path / "i", loaded, entries())


def test_what_cannot_be_indexed_leaves_nothing(tmp_path, loaded):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    for name, texts in (("i", []), ("full", entries()), ("i", [*entries(), *entries()])):
        with pytest.raises((DataError, UsageError)):
            add_or_replace_texts(tmp_path / name, loaded, texts, no_report)
        assert [path.name for path in tmp_path.iterdir()] == ["full"]


@pytest.mark.parametrize("name", [TEXTS, VECTORS])
def test_damage_is_told(tmp_path, loaded, name):
    add_or_replace_texts(tmp_path / "i", loaded, entries(), no_report)
    (tmp_path / "i" / name).write_bytes(b"x" * 50)
    with pytest.raises(DataError, match="damaged"):
        Index(tmp_path / "i")
    (tmp_path / "i" / name).unlink()
    with pytest.raises(DataError, match="damaged"):
        Index(tmp_path / "i")


@pytest.mark.filterwarnings("ignore:builtin type")
def test_beyond_many_texts_faiss_proposes(tmp_path, loaded, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(module, "MIN_FAISS_TEXTS", 3)
    path = tmp_path / "i"
    add_or_replace_texts(path, loaded, entries(), no_report)
    assert (path / LISTS).exists()
    assert found(path, loaded, LINES[2])[0].text == LINES[2]
    add_or_replace_texts(path, loaded, entries([*LINES, "another cat"]), no_report)
    assert found(path, loaded, "another cat")[0][:3] == ("a.txt:8", "a.txt", "another cat")
    remove_texts_by_id_or_source(path, ["a.txt:1"])
    hits = found(path, loaded, LINES[0])
    assert hits
    (path / LISTS).write_bytes(b"x" * 50)
    assert len(found(path, loaded, LINES[0])) == 7, "the exact search needs no lists"
    assert "a.txt:1" not in [hit.id for hit in hits]


@pytest.mark.filterwarnings("ignore:builtin type")
def test_faiss_finds_most_of_what_is_nearest(tmp_path, loaded):
    pytest.importorskip("faiss")
    add_or_replace_texts(tmp_path / "i", loaded, entries([str(i) for i in range(2000)]), no_report)
    draw = np.random.default_rng(0)
    centres_CD = draw.standard_normal((50, Index(tmp_path / "i").vectors_ND.shape[1])).astype("<f4")
    noise_ND = draw.standard_normal((2000, centres_CD.shape[1])).astype("<f4")
    (tmp_path / "i" / VECTORS).write_bytes(normalize(np.repeat(centres_CD, 40, axis=0) + 0.3 * noise_ND).tobytes())
    index = Index(tmp_path / "i")
    exact = [{hit.id for hit in hits} for hits in index.find_nearest(centres_CD, 10)]
    index.write_faiss_index()
    proposed = [{hit.id for hit in hits} for hits in index.find_nearest(centres_CD, 10)]
    assert sum(len(a & b) for a, b in zip(exact, proposed, strict=True)) >= 0.9 * 500
    assert exact != [set()] * 50


@pytest.mark.system
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("when", ["vectors", "texts"])
def test_an_indexing_that_is_killed_goes_on(tmp_path, loaded, monkeypatch, at, when):
    """Killed when vectors are written and their texts are not, or just after these.

    The first vector that is synced is that of a new index without texts.
    """
    monkeypatch.setattr(module, "COMMIT_TEXTS", 2)
    path, calls = tmp_path / "i", []

    def die(*_):
        calls.append(1)
        if len(calls) == at + (when == "vectors"):
            os.kill(os.getpid(), signal.SIGKILL)

    def is_vectors(handle):
        return os.readlink(f"/proc/self/fd/{handle}").endswith(VECTORS) and os.fstat(handle).st_size

    def work():
        if when == "vectors":
            os.fsync = lambda handle: die() if is_vectors(handle) else None
        add_or_replace_texts(path, loaded, entries(), die if when == "texts" else no_report)

    assert os.WIFSIGNALED(os.waitpid(in_child(work), 0)[1])
    n_whole = 2 * (at - (when == "vectors"))
    assert len(Index(path).row_N) == n_whole
    assert add_or_replace_texts(path, loaded, entries(), no_report) == {
        "added": 7 - n_whole,
        "replaced": 0,
        "kept": n_whole,
    }
    check(path, loaded, entries())


def test_the_first_text_may_be_without_tokens(tmp_path, loaded):
    add_or_replace_texts(tmp_path / "i", loaded, entries(["", *LINES]), no_report)
    assert found(tmp_path / "i", loaded, LINES[0], 1)[0].text == LINES[0]
    with pytest.raises(DataError, match="there is no text"):
        add_or_replace_texts(tmp_path / "j", loaded, entries(["", ""]), no_report)
    assert not (tmp_path / "j").exists()


def test_queries_are_answered_one_by_one_as_together(tmp_path, loaded, monkeypatch):
    add_or_replace_texts(tmp_path / "i", loaded, entries(), no_report)
    index = Index(tmp_path / "i", loaded)
    together = index.search(LINES, 3)
    monkeypatch.setattr(nearest, "MAX_SIMILARITIES", 1)
    alone = dict(index.search_each(LINES, 3))
    assert [*alone] == LINES
    for some, others in zip(alone.values(), together, strict=True):
        assert [hit[:3] for hit in some] == [hit[:3] for hit in others]
        assert [hit.score for hit in some] == pytest.approx([hit.score for hit in others], abs=1e-5)


def test_a_query_without_tokens_is_refused(tmp_path, loaded):
    add_or_replace_texts(tmp_path / "i", loaded, entries(), no_report)
    index = Index(tmp_path / "i", loaded)
    with pytest.raises(UsageError, match="text 2 has no tokens"):
        index.search(["the cat", ""])
    with pytest.raises(DataError, match="there is no text"):
        index.search([])


def test_a_text_that_is_in_another_file_now_is_of_that(tmp_path, loaded):
    add_or_replace_texts(tmp_path / "i", loaded, [Entry("k", "old.csv", "the cat sat")], no_report)
    counts = add_or_replace_texts(tmp_path / "i", loaded, [Entry("k", "new.csv", "the cat sat")], no_report)
    assert counts == {"added": 0, "replaced": 1, "kept": 0}
    assert remove_texts_by_id_or_source(tmp_path / "i", ["new.csv"]) == {"removed": 1}


def test_an_index_whose_run_is_gone_names_the_option(tmp_path, work):
    work.pretrain("seed=6", name="gone")
    run = work.run("gone")
    add_or_replace_texts(tmp_path / "i", load_run(str(run), CPU), entries(), no_report)
    run.rename(run.with_name("moved"))
    with refuses("run_not_found") as error:
        open_index(tmp_path / "i")
    assert "--run RUN" in error.value.fix
    assert str(tmp_path / "i") in error.value.fix
    assert open_index(tmp_path / "i", str(run.with_name("moved"))).search([LINES[0]], 1)[0][0].text == LINES[0]
    with refuses("run_not_found") as error:
        open_index(tmp_path / "i", "nothing")
    assert "index" not in error.value.fix
