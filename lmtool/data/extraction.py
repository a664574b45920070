"""Texts and tables from members of published archives: one function for each data set of the catalogue.

All orders are functions of a fixed seed, so that everybody has the same rows in the same parts.
"""

import csv
import fnmatch
import io
import json
import random
import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, TypeVar

SEED = 1
TEST_ROWS = 2000
Members = Mapping[str, bytes]
TableRow = dict[str, str]
Item = TypeVar("Item")


def members(archive: bytes, name: str, pattern: str) -> dict[str, bytes]:
    """The files of a .whl, .zip or tar archive whose paths match, sorted; OUTER!INNER is in an archive within it.

    pattern: of paths, or several with | between them.
    """
    pattern, _, inner = pattern.partition("!")
    patterns = re.compile("|".join(map(fnmatch.translate, pattern.split("|"))))
    if name.endswith((".whl", ".zip")):
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            read = {path: files.read(path) for path in filter(patterns.match, files.namelist())}
    else:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            chosen = [one for one in tar if one.isfile() and patterns.match(one.name)]
            read = {one.name: file.read() for one in chosen if (file := tar.extractfile(one)) is not None}
    for outer in [*read] if inner else ():
        read |= members(read.pop(outer), outer, inner)
    return dict(sorted(read.items(), key=lambda item: PurePosixPath(item[0])))


def parts_of(name: str, made: str | list[TableRow] | dict[str, bytes]) -> dict[str, bytes]:
    """The parts for training and for testing, as files by name; those of several tasks as they are.

    Of a text the last twentieth is for testing, from the end of a document, or else of a line, on. Of rows each text is
    in one, each cell is filled, and the last seventh is for testing, 2,000 rows at most.
    """
    if isinstance(made, dict):
        return made
    if isinstance(made, str):
        end = "\n\n" if "\n\n" in made else "\n"
        cut = made.index(end, len(made) * 19 // 20) + len(end)
        return {f"{name}.txt": made[:cut].encode(), f"{name}.test.txt": made[cut:].encode()}
    rows = list({tuple(row.values())[:-1]: row for row in made if all(map(str.strip, row.values()))}.values())
    n_train = len(rows) - min(TEST_ROWS, len(rows) // 7)
    parts = {}
    for file, chosen in ((f"{name}.csv", rows[:n_train]), (f"{name}.test.csv", rows[n_train:])):
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, list(rows[0]))
        writer.writeheader()
        writer.writerows(chosen)
        parts[file] = table.getvalue().encode()
    return parts


def shuffled(items: Iterable[Item]) -> list[Item]:
    """The items in a random order, always the same."""
    listed = list(items)
    random.Random(SEED).shuffle(listed)
    return listed


def documents(texts: Iterable[str]) -> str:
    """Texts with blank lines between them."""
    return "\n\n".join(text.strip() for text in texts) + "\n"


def _decoded(files: Members) -> dict[str, str]:
    return {path: content.decode(errors="replace").replace("\r\n", "\n") for path, content in files.items()}


def _articles(files: Members) -> list[dict[str, Any]]:
    """Title, extract and topic of Wikipedia articles."""
    (content,) = files.values()
    return shuffled(json.loads(content).values())


def _topics(files: Members) -> list[TableRow]:
    known = (one for one in _articles(files) if one["topic"] != "Uncategorized")
    return [{"title": one["title"], "text": one["extract"], "label": one["topic"]} for one in known]


def _years(files: Members) -> list[TableRow]:
    """Passages of four sentences, at most 40 of a speech, and the year that its file is named after."""
    rows = []
    for path, speech in _decoded(files).items():
        sentences = re.split(r"(?<=[.?!]) +", " ".join(speech.split()))
        passages = [" ".join(sentences[i : i + 4]) for i in range(0, len(sentences), 4)]
        rows += [{"text": text, "year": PurePosixPath(path).name[:4]} for text in shuffled(passages)[:40]]
    return shuffled(rows)


def _brown(files: Members) -> list[tuple[str, list[str]]]:
    """Genre and sentences of each text of the Brown corpus, without its tags."""
    texts = {PurePosixPath(path).name: text for path, text in _decoded(files).items()}
    words = {
        name: [" ".join(token.rsplit("/", 1)[0] for token in line.split()) for line in text.split("\n") if line.strip()]
        for name, text in texts.items()
    }
    return [(genre, words[name]) for name, genre in map(str.split, filter(None, texts["cats.txt"].split("\n")))]


def _genres(files: Members) -> list[TableRow]:
    """Passages of three sentences."""
    return shuffled(
        {"text": " ".join(sentences[i : i + 3]), "label": genre}
        for genre, sentences in _brown(files)
        for i in range(0, len(sentences) - 2, 3)
    )


def _names(files: Members) -> list[tuple[str, Counter[str]]]:
    """First names in lower case, and how many children of each sex had them, the most frequent first."""
    from pyarrow import parquet

    (content,) = files.values()
    columns, children = parquet.read_table(io.BytesIO(content)).to_pydict(), dict[str, Counter[str]]()
    for name, sex, n in zip(columns["name"], columns["sex"], columns["n"], strict=True):
        children.setdefault(name.lower(), Counter())[sex] += int(n)
    return sorted(children.items(), key=lambda item: (-item[1].total(), item[0]))


def _sexes(files: Members) -> list[TableRow]:
    """The sex of nine in ten of the children with a name, of the 20,000 most frequent names."""
    usual = [(name, sexes.most_common(1)[0], sexes.total()) for name, sexes in _names(files)[:20_000]]
    return shuffled({"name": name, "label": sex} for name, (sex, n), total in usual if n >= 0.9 * total)


def mails(files: Members) -> list[tuple[str, str]]:
    """Folder and source of each mail."""
    return shuffled((PurePosixPath(path).parent.name, text) for path, text in _decoded(files).items())


def _spam(files: Members) -> list[TableRow]:
    """Subject, and beginning of the body without markup."""
    rows = []
    for group, text in mails(files):
        headers, _, body = text.partition("\n\n")
        if subject := re.search(r"^subject: *(.*)", headers, flags=re.I | re.M):
            plain = " ".join(re.sub(r"<[^>]*>", " ", body).split())[:1000]
            rows.append({"subject": subject[1], "text": plain, "label": group.split("-")[-2]})
    return rows


def _ratings(files: Members) -> list[TableRow]:
    """Sentences, and the mean of twenty ratings from -4 to 4."""
    (text,) = _decoded(files).values()
    fields = (line.split("\t") for line in text.splitlines())
    return shuffled({"text": text, "rating": rating} for _, rating, text in fields)


def _opinions(files: Members) -> list[TableRow]:
    """The sentences rated at least 0.5 from zero."""
    rated = [(row["text"], float(row["rating"])) for row in _ratings(files)]
    return [{"text": text, "label": "positive" if r > 0 else "negative"} for text, r in rated if abs(r) >= 0.5]


def _bigbench(files: Members) -> dict[str, bytes]:
    """Rows of tasks of BIG-bench (Srivastava et al. 2022): the text before the answer, right answers, and choices."""
    lines: dict[str, list[str]] = {}
    for path, text in _decoded(files).items():
        task, folder = json.loads(text), path.split("/benchmark_tasks/")[1].split("/")[0]
        before, after = task.get("example_input_prefix", "\nQ: "), task.get("example_output_prefix", "\nA: ")
        for one in task.get("examples", ()):
            scores = one.get("target_scores", {})
            right = [choice for choice, score in scores.items() if score == 1] or one["target"]
            row = {"context": (task.get("task_prefix", "") + before + one["input"] + after).strip()}
            row |= {"answers": [right] if isinstance(right, str) else right, "choices": [*scores]}
            lines.setdefault(f"bigbench_{folder}.jsonl", []).append(json.dumps(row) + "\n")
    return {name: "".join(of_task).encode() for name, of_task in lines.items()}


MADE: dict[str, Callable[[Members], str | list[TableRow] | dict[str, bytes]]] = {
    "file": lambda files: "".join(_decoded(files).values()),
    "documents": lambda files: documents(_decoded(files).values()),
    "encyclopaedia": lambda files: documents(f"{one['title']}\n{one['extract']}" for one in _articles(files)),
    "brown": lambda files: documents("\n".join(sentences) for _, sentences in shuffled(_brown(files))),
    "lines": lambda files: "".join(shuffled("".join(_decoded(files).values()).splitlines(keepends=True))),
    "names": lambda files: "".join(shuffled(f"{name}\n" for name, _ in _names(files)[:32_033])),
    "topics": _topics,
    "spam": _spam,
    "opinions": _opinions,
    "genres": _genres,
    "sexes": _sexes,
    "ratings": _ratings,
    "years": _years,
    "bigbench": _bigbench,
}
"""What is made of the members of an archive: a text, rows whose last cell is the label, or tasks as files."""
