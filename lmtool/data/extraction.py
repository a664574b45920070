"""Makes texts and tables from members of published archives: one function for each data set of the catalogue.

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
MAX_TEST_ROWS = 2000
Members = Mapping[str, bytes]
TableRow = dict[str, str]
Item = TypeVar("Item")


def read_archive_members(archive: bytes, name: str, pattern: str) -> dict[str, bytes]:
    """Returns the files of a .whl, .zip or tar archive whose paths match, sorted.

    pattern: a glob, or several with | between them; OUTER!INNER matches files of an archive within the archive.
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
        read |= read_archive_members(read.pop(outer), outer, inner)
    return dict(sorted(read.items(), key=lambda item: PurePosixPath(item[0])))


def split_train_test_files(name: str, content: str | list[TableRow] | dict[str, bytes]) -> dict[str, bytes]:
    """Returns files by name: a part for training and a part for testing; files of several tasks unchanged.

    The last twentieth of a text is for testing, from the end of a document or else of a line on. The last seventh of
    rows is for testing, at most 2,000. Drops rows with empty cells or with a text that occurs before.
    """
    if isinstance(content, dict):
        return content
    if isinstance(content, str):
        end = "\n\n" if "\n\n" in content else "\n"
        cut = content.index(end, len(content) * 19 // 20) + len(end)
        return {f"{name}.txt": content[:cut].encode(), f"{name}.test.txt": content[cut:].encode()}
    rows = list({tuple(row.values())[:-1]: row for row in content if all(map(str.strip, row.values()))}.values())
    n_train = len(rows) - min(MAX_TEST_ROWS, len(rows) // 7)
    parts = {}
    for file, chosen in ((f"{name}.csv", rows[:n_train]), (f"{name}.test.csv", rows[n_train:])):
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, list(rows[0]))
        writer.writeheader()
        writer.writerows(chosen)
        parts[file] = table.getvalue().encode()
    return parts


def seeded_shuffle(items: Iterable[Item]) -> list[Item]:
    """Shuffles the items with a fixed seed."""
    listed = list(items)
    random.Random(SEED).shuffle(listed)
    return listed


def join_documents(texts: Iterable[str]) -> str:
    """Joins texts with blank lines."""
    return "\n\n".join(text.strip() for text in texts) + "\n"


def _decode_members(files: Members) -> dict[str, str]:
    return {path: content.decode(errors="replace").replace("\r\n", "\n") for path, content in files.items()}


def _read_wikipedia_articles(files: Members) -> list[dict[str, Any]]:
    """Returns title, extract and topic of Wikipedia articles."""
    (content,) = files.values()
    return seeded_shuffle(json.loads(content).values())


def _make_topic_rows(files: Members) -> list[TableRow]:
    known = (one for one in _read_wikipedia_articles(files) if one["topic"] != "Uncategorized")
    return [{"title": one["title"], "text": one["extract"], "label": one["topic"]} for one in known]


def _make_speech_passage_year_rows(files: Members) -> list[TableRow]:
    """Makes passages of four sentences, at most 40 of a speech, with the year in the name of its file."""
    rows = []
    for path, speech in _decode_members(files).items():
        sentences = re.split(r"(?<=[.?!]) +", " ".join(speech.split()))
        passages = [" ".join(sentences[i : i + 4]) for i in range(0, len(sentences), 4)]
        rows += [{"text": text, "year": PurePosixPath(path).name[:4]} for text in seeded_shuffle(passages)[:40]]
    return seeded_shuffle(rows)


def _read_brown_texts_with_genre(files: Members) -> list[tuple[str, list[str]]]:
    """Returns genre and sentences of each text of the Brown corpus, without its tags."""
    texts = {PurePosixPath(path).name: text for path, text in _decode_members(files).items()}
    words = {
        name: [" ".join(token.rsplit("/", 1)[0] for token in line.split()) for line in text.split("\n") if line.strip()]
        for name, text in texts.items()
    }
    return [(genre, words[name]) for name, genre in map(str.split, filter(None, texts["cats.txt"].split("\n")))]


def _make_brown_genre_rows(files: Members) -> list[TableRow]:
    """Makes passages of three sentences."""
    rows = []
    for genre, sentences in _read_brown_texts_with_genre(files):
        passages = (" ".join(sentences[i : i + 3]) for i in range(0, len(sentences) - 2, 3))
        rows += [{"text": text, "label": genre} for text in passages]
    return seeded_shuffle(rows)


def _count_children_by_name_and_sex(files: Members) -> list[tuple[str, Counter[str]]]:
    """Counts the children of each sex with a first name in lower case, the most frequent name first."""
    from pyarrow import parquet

    (content,) = files.values()
    columns, children = parquet.read_table(io.BytesIO(content)).to_pydict(), dict[str, Counter[str]]()
    for name, sex, n in zip(columns["name"], columns["sex"], columns["n"], strict=True):
        children.setdefault(name.lower(), Counter())[sex] += int(n)
    return sorted(children.items(), key=lambda item: (-item[1].total(), item[0]))


def _make_name_sex_rows(files: Members) -> list[TableRow]:
    """Makes rows of those of the 20,000 most frequent names that nine in ten children of one sex have."""
    rows = []
    for name, sexes in _count_children_by_name_and_sex(files)[:20_000]:
        ((sex, n),) = sexes.most_common(1)
        if n >= 0.9 * sexes.total():
            rows.append({"name": name, "label": sex})
    return seeded_shuffle(rows)


def _make_email_spam_rows(files: Members) -> list[TableRow]:
    """Makes rows of the subject and the beginning of the body without markup."""
    rows = []
    for path, text in seeded_shuffle(_decode_members(files).items()):
        headers, _, body = text.partition("\n\n")
        if subject := re.search(r"^subject: *(.*)", headers, flags=re.I | re.M):
            plain = " ".join(re.sub(r"<[^>]*>", " ", body).split())[:1000]
            label = PurePosixPath(path).parent.name.split("-")[-2]
            rows.append({"subject": subject[1], "text": plain, "label": label})
    return rows


def _make_vader_rating_rows(files: Members) -> list[TableRow]:
    """Makes rows of sentences and the mean of twenty ratings from -4 to 4."""
    (text,) = _decode_members(files).values()
    fields = (line.split("\t") for line in text.splitlines())
    return seeded_shuffle({"text": text, "rating": rating} for _, rating, text in fields)


def _make_polarity_rows(files: Members) -> list[TableRow]:
    """Makes rows of the sentences rated at least 0.5 from zero."""
    rated = [(row["text"], float(row["rating"])) for row in _make_vader_rating_rows(files)]
    return [{"text": text, "label": "positive" if r > 0 else "negative"} for text, r in rated if abs(r) >= 0.5]


def _make_bigbench_files(files: Members) -> dict[str, bytes]:
    """Makes rows of BIG-bench tasks (Srivastava et al. 2022): the text before the answer, right answers, choices."""
    lines: dict[str, list[str]] = {}
    for path, text in _decode_members(files).items():
        task, folder = json.loads(text), path.split("/benchmark_tasks/")[1].split("/")[0]
        before, after = task.get("example_input_prefix", "\nQ: "), task.get("example_output_prefix", "\nA: ")
        for one in task.get("examples", ()):
            scores = one.get("target_scores", {})
            right = [choice for choice, score in scores.items() if score == 1] or one["target"]
            row = {"context": (task.get("task_prefix", "") + before + one["input"] + after).strip()}
            row |= {"answers": [right] if isinstance(right, str) else right, "choices": [*scores]}
            lines.setdefault(f"bigbench_{folder}.jsonl", []).append(json.dumps(row) + "\n")
    return {name: "".join(of_task).encode() for name, of_task in lines.items()}


DATASET_BUILDERS: dict[str, Callable[[Members], str | list[TableRow] | dict[str, bytes]]] = {
    "file": lambda files: "".join(_decode_members(files).values()),
    "documents": lambda files: join_documents(_decode_members(files).values()),
    "encyclopaedia": lambda files: join_documents(
        f"{one['title']}\n{one['extract']}" for one in _read_wikipedia_articles(files)
    ),
    "brown": lambda files: join_documents(
        "\n".join(sentences) for _, sentences in seeded_shuffle(_read_brown_texts_with_genre(files))
    ),
    "lines": lambda files: "".join(seeded_shuffle("".join(_decode_members(files).values()).splitlines(keepends=True))),
    "names": lambda files: "".join(
        seeded_shuffle(f"{name}\n" for name, _ in _count_children_by_name_and_sex(files)[:32_033])
    ),
    "topics": _make_topic_rows,
    "spam": _make_email_spam_rows,
    "opinions": _make_polarity_rows,
    "genres": _make_brown_genre_rows,
    "sexes": _make_name_sex_rows,
    "ratings": _make_vader_rating_rows,
    "years": _make_speech_passage_year_rows,
    "bigbench": _make_bigbench_files,
}
"""Functions that make a text, rows whose last cell is the label, or task files from the members of an archive."""
