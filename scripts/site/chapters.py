"""docs/course.md as eight pages, and where each of its headings is."""

import json
import re

GROUPS = [(1,), (2,), (3, 4), (5,), (6,), (7, 10), (8,), (9,)]
"""The chapters on each page."""
ANCHORS: dict[str, str] = {}
"""The page of each heading of the course."""


def anchor(heading: str) -> str:
    """As GitHub makes it, and the site's pages do."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def pages(course: str) -> dict[str, str]:
    """The pages by name: introduction on the first, the models behind the topics on the last, contents on each."""
    introduction, contents, *texts, models = re.split(r"^## ", course, flags=re.MULTILINE)
    chapters = {int(text.partition(".")[0]): text for text in texts}
    rows = table_of(contents)
    made = {}
    for number, group in enumerate(GROUPS, 1):
        titles = [chapters[one].partition("\n")[0].partition(" ")[2] for one in group]
        title = f"# The course, {number}: {titles[0]}" + "".join(
            f", {title[0].lower()}{title[1:]}" for title in titles[1:]
        )
        parts = [title, ""]
        if number == 1:
            parts += [introduction.partition("\n")[2].strip(), ""]
        for one, name in zip(group, titles, strict=True):
            text = chapters[one].partition("\n")[2]
            parts += [*([f"## {name}"] if len(group) > 1 else []), "", *rows[one], "", raised(text, len(group) > 1)]
        if number == len(GROUPS):
            parts += ["## " + models]
        topics = [topic for one in group for topic in re.findall(r"^### (.+)$", chapters[one], flags=re.MULTILINE)]
        above = json.dumps({"description": "; ".join(topics)}, ensure_ascii=False)
        made[f"course-{number}.md"] = f"---\n{above}\n---\n" + "\n".join(parts)
    for name, text in made.items():
        ANCHORS.update(
            {anchor(heading): name for heading in re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE)}
        )
    ANCHORS.update({"": "course-1.md", "contents": "course-1.md"})
    for number, group in enumerate(GROUPS, 1):
        ANCHORS.update({anchor(chapters[one].partition("\n")[0]): f"course-{number}.md" for one in group})
    return made


def table_of(contents: str) -> dict[int, list[str]]:
    """The rows of the table of contents for each chapter, with its head."""
    head = ["| question | topic | command |", "|---|---|---|"]
    rows: dict[int, list[str]] = {}
    for line in contents.splitlines():
        if chapter := re.match(r"\| \*\*(\d+)\.", line):
            rows[int(chapter[1])] = list(head)
        elif rows and line.startswith("|"):
            rows[max(rows)].append(line)
    return rows


def raised(text: str, is_below: bool) -> str:
    """The topics of a chapter, a level higher where it is alone on its page."""
    return text if is_below else re.sub(r"^### ", "## ", text, flags=re.MULTILINE)


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
