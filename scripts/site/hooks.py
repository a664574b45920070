"""What MkDocs calls while it builds the site: pages that are made, links, tabs, formulas, llms.txt."""

import html
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GROUPS = [(1,), (2,), (3, 4), (5,), (6,), (7, 10), (8,), (9,)]
"""The chapters of the course on each of its pages."""
ANCHORS: dict[str, str] = {}
"""The page of each heading of the course."""
SUMMARIES: dict[str, tuple[str, str]] = {}
"""Title and first sentence of each page, by its source."""
OUTSIDE = ("../", "decisions/", "assignments/", "extending.md")
"""What the site does not have: the repository has it."""
CODE = r"^(?P<fence>```+|~~~+).*?^(?P=fence)$|^    [^\n]*$|`[^`\n]+`"
# a formula or a code block that is indented has no links; neither has a span of code but in the text of a link
LINK = re.compile(CODE + r"|(?P<text>!?\[(?:[^][]|\[[^][]*\])*\])\((?P<target>[^)\s]+)\)", re.MULTILINE | re.DOTALL)
LINES = r"(?:(?!```)[^\n]*\n)*"
WITH_OUTPUT = re.compile(
    rf"^```sh\n(?P<command>{LINES})```\n(?:<!-- output:[^\n]*-->\n|\n)?```text\n(?P<output>{LINES})```$", re.MULTILINE
)
FORMULA = re.compile(
    r'<(?P<tag>span|pre) class="arithmatex">\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)


def on_files(files: Any, config: Any) -> Any:
    """The chapters of the course in its place, and notebooks as pages."""
    from mkdocs.structure.files import File

    files.remove(files.get_file_from_path("course.md"))
    made = split_course((DOCS / "course.md").read_text(encoding="utf-8"))
    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        made[f"notebooks/{path.stem}.md"] = notebook_page(path, config.extra["repository"])
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The page with all that is made at build time in it."""
    source = page.file.src_uri
    markdown = with_tabs(with_links(with_cards(markdown), source, config.extra["repository"]))
    title, sentence = summarize(markdown)
    SUMMARIES[source] = title, page.meta.setdefault("description", sentence)
    return markdown


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Formulas as MathML; a picture is fetched when it comes into sight."""
    return with_formulas(html).replace("<img ", '<img loading="lazy" ')


def on_post_build(config: Any) -> None:
    """llms.txt: what lmtool is, and each page with a line."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for part in config.nav:
        ((name, entries),) = part.items()
        lines += [f"## {name}", ""]
        for source in page_sources(entries):
            title, sentence = SUMMARIES[source]
            lines.append(f"- [{title}]({source.removesuffix('.md')}.html): {sentence}")
        lines.append("")
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def page_sources(entry: Any) -> Iterator[str]:
    """The sources of a part of the navigation, those below headings too."""
    if isinstance(entry, str):
        yield entry
    else:
        for below in entry.values() if isinstance(entry, dict) else entry:
            yield from page_sources(below)


def summarize(markdown: str) -> tuple[str, str]:
    """The title of a page, and its first sentence as plain text."""
    title = re.search(r"^# (.+)$", markdown, flags=re.MULTILINE)
    prose = re.sub(r"^(```.*?^```|(#|<|\||    |!\[)[^\n]*)$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    sentence = re.search(r"\S.*?(?=(?<! al)[.](?:\s|$)|:?\n\n|:?\Z)", prose, flags=re.DOTALL)
    said = re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", " ".join(sentence[0].split())) if sentence else ""
    return (title[1].replace("`", "") if title else "", said)


def anchor(heading: str) -> str:
    """As GitHub makes it, and the site's pages do."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def split_course(course: str) -> dict[str, str]:
    """The pages by name: introduction on the first, the models behind the topics on the last, contents on each."""
    introduction, contents, *texts, models = re.split(r"^## ", course, flags=re.MULTILINE)
    rows = re.split(r"^\| \*\*(\d+)\..*\n", contents, flags=re.MULTILINE)[1:]
    rows_by_chapter = dict(zip(rows[::2], rows[1::2], strict=True))
    chapters = {int(text.partition(".")[0]): text.partition("\n") for text in texts}
    made = {}
    ANCHORS.update({"": "course-1.md", "contents": "course-1.md"})
    for number, group in enumerate(GROUPS, 1):
        name = f"course-{number}.md"
        titles = [chapters[one][0].partition(" ")[2] for one in group]
        title = ", ".join([titles[0], *(f"{other[0].lower()}{other[1:]}" for other in titles[1:])])
        parts = [f"# The course, {number}: {title}", ""]
        if number == 1:
            parts += [introduction.partition("\n")[2].strip(), ""]
        for one, heading in zip(group, titles, strict=True):
            text = chapters[one][2]
            if len(group) > 1:
                parts.append(f"## {heading}")
            else:
                text = re.sub(r"^### ", "## ", text, flags=re.MULTILINE)
            parts += ["", "| question | topic | command |", "|---|---|---|"]
            parts += [rows_by_chapter[str(one)].strip(), "", text]
            ANCHORS[anchor(chapters[one][0])] = name
        if number == len(GROUPS):
            parts.append("## " + models)
        topics = [topic for one in group for topic in re.findall(r"^### (.+)$", chapters[one][2], flags=re.MULTILINE)]
        above = json.dumps({"description": "; ".join(topics)}, ensure_ascii=False)
        text = "\n".join(parts)
        made[name] = f"---\n{above}\n---\n{text}"
        prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        ANCHORS.update({anchor(heading): name for heading in re.findall(r"^#+ (.+)$", prose, re.MULTILINE)})
    return made


def notebook_page(path: Path, repository: str) -> str:
    """The Markdown of a notebook with its outputs, and where the file is; with a repository on GitHub also in Colab."""
    first, *others = [
        part for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] for part in notebook_cell(cell)
    ]
    above = f"A [notebook](../../docs/notebooks/{path.name}), with what it printed and drew; "
    above += "`make notebooks` runs it again.\n"
    if repository.startswith("https://github.com/"):
        address = repository.replace("https://github.com/", "https://colab.research.google.com/github/", 1)
        above += f"\n[Open in Colab]({address}/blob/main/docs/notebooks/{path.name}){{ .md-button }}\n"
    return "\n".join([first, above, *others])


def notebook_cell(cell: dict) -> Iterator[str]:
    """The Markdown of a cell: its text, or its code and outputs."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source + "\n"
        return
    yield f"```python\n{source}\n```\n"
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/svg+xml" in data:
            yield f'<div class="drawn">{"".join(data["image/svg+xml"])}</div>\n'.replace("\n\n", "\n")
        elif text := "".join(output.get("text") or data.get("text/plain", "")):
            yield f"```text\n{text.rstrip()}\n```\n"


def with_cards(markdown: str) -> str:
    """The overview of the gallery: a card for each page, with its picture and the last line that it prints."""
    before, marker, after = markdown.partition("<!-- generated: gallery -->")
    if not marker:
        return markdown
    cards = ""
    for name in re.findall(r"\((\w+\.md)\)", after):
        page = (DOCS / "gallery" / name).read_text(encoding="utf-8")
        title, _, rest = page.removeprefix("# ").partition("\n")
        picture = re.search(r"^!\[([^]]+)\]\(([^)]+)\)", page, flags=re.MULTILINE)
        printed = re.findall(r"^```text\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
        shown = f"[![{picture[1]}]({picture[2]})]({name})" if picture else ""
        figure = f"`{printed[-1].splitlines()[-1]}`" if printed else ""
        told = rest.partition("\n\n")[0].strip()
        cards += f"<div markdown>\n\n**[{title}]({name})**\n\n{shown}\n\n{told}\n\n{figure}\n\n</div>\n"
    return f'{before}\n<div class="cards" markdown>\n{cards}</div>\n'


def with_links(markdown: str, source: str, repository: str) -> str:
    """The page of a source with links to where the site has what it names.

    What is outside of the site is in the repository; without one it is no link.
    """

    def relative(target: str) -> str:
        return posixpath.relpath(target, posixpath.dirname(source) or ".")

    def mended(found: re.Match[str]) -> str:
        text, target = found["text"], found["target"]
        if not target or re.match(r"[a-z]+:", target):
            return found[0]
        path, sharp, anchor = target.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source
        if target == "course.md" or (re.fullmatch(r"course-\d\.md", target) and not path):
            here = ANCHORS.get(anchor, "course.md")  # a heading that is not there fails the build
            return f"{text}({relative(here)}{sharp + anchor if anchor not in ('', 'contents') else ''})"
        if target.startswith(OUTSIDE):
            address = f"{repository}/blob/main/{posixpath.normpath(posixpath.join('docs', target))}{sharp}{anchor}"
            return f"{text}({address})" if repository else text[1:-1]
        if target.endswith(".ipynb"):
            return f"{text}({relative(target.removesuffix('.ipynb') + '.md')})"
        return found[0]

    return LINK.sub(mended, markdown)


def with_tabs(markdown: str) -> str:
    """The page with a tab for each command and a tab for its output."""

    def tabs(found: re.Match[str]) -> str:
        command, output = indent(found["command"], " " * 4), indent(found["output"], " " * 4)
        return (
            f'===! "Command"\n\n    ```sh\n{command}    ```\n\n'  # "!": another set may stand directly above
            f'=== "Output"\n\n    ```text\n{output}    ```\n\n'
        )

    return WITH_OUTPUT.sub(tabs, markdown)


def with_formulas(page: str) -> str:
    """The HTML of a page with its formulas as MathML, which browsers draw without a script.

    Those in lines of their own can be scrolled where they are wide.
    """

    def draw(found: re.Match[str]) -> str:
        from latex2mathml.converter import convert

        is_block = found["open"] == "["
        formula = convert(html.unescape(found["latex"]).strip(), display="block" if is_block else "inline")
        return f'<div class="formula" tabindex="0">{formula}</div>' if is_block else formula

    return FORMULA.sub(draw, page)
