"""What MkDocs calls while it builds the site: pages that are made, links, tabs, formulas, llms.txt."""

import re
from pathlib import Path
from typing import Any

import chapters
import formulas
import gallery_cards
import links
import notebooks
import tabs
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SUMMARIES: dict[str, tuple[str, str]] = {}
"""Title and first sentence of each page, by its source."""


def on_files(files: Files, config: Any) -> Files:
    """The chapters of the course in its place, and notebooks as pages."""
    files.remove(files.get_file_from_path("course.md"))
    made = chapters.pages((DOCS / "course.md").read_text(encoding="utf-8"))
    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        made[f"notebooks/{path.stem}.md"] = notebooks.page(path, config.extra["repository"])
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The page with all that is made at build time in it."""
    source = page.file.src_uri
    markdown = gallery_cards.filled(markdown, DOCS)
    markdown = tabs.tabbed(links.led(markdown, source, config.extra["repository"]))
    title, sentence = summary_of(markdown)
    SUMMARIES[source] = title, page.meta.setdefault("description", sentence)
    return markdown


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Formulas as MathML; a picture is fetched when it comes into sight."""
    return formulas.rendered(html).replace("<img ", '<img loading="lazy" ')


def on_post_build(config: Any) -> None:
    """llms.txt: what lmtool is, and each page with a line."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for part in config.nav:
        ((name, entries),) = part.items()
        lines += [f"## {name}", "", *(line_of(entry) for entry in flat(entries)), ""]
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def flat(entries: list[Any]) -> list[str]:
    """The sources of a part of the navigation, those below headings too."""
    return [
        one for entry in entries for one in ([entry] if isinstance(entry, str) else flat(next(iter(entry.values()))))
    ]


def line_of(source: str) -> str:
    title, sentence = SUMMARIES[source]
    return f"- [{title}]({source.removesuffix('.md')}.html): {sentence}"


def summary_of(markdown: str) -> tuple[str, str]:
    """The title of a page, and its first sentence as plain text."""
    title = re.search(r"^# (.+)$", markdown, flags=re.MULTILINE)
    prose = re.sub(r"^(```.*?^```|(#|<|\||    |!\[)[^\n]*)$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    sentence = re.search(r"\S.*?(?=(?<! al)[.](?:\s|$)|:?\n\n|:?\Z)", prose, flags=re.DOTALL)
    said = re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", " ".join(sentence[0].split())) if sentence else ""
    return (title[1].replace("`", "") if title else "", said)
