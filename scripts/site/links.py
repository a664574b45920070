"""Links of the Markdown pages, which lead to files of the repository, as links of the site."""

import posixpath
import re

import chapters

OUTSIDE = ("../", "decisions/", "assignments/", "extending.md")
"""What the site does not have: the repository has it."""
CODE = r"^(?P<fence>```+|~~~+).*?^(?P=fence)$|^    [^\n]*$|`[^`\n]+`"
LINK = re.compile(CODE + r"|(?P<text>!?\[(?:[^][]|\[[^][]*\])*\])\((?P<target>[^)\s]+)\)", re.MULTILINE | re.DOTALL)


def led(markdown: str, source: str, repository: str) -> str:
    """The page of this source with its links mended; without a repository what is outside of the site is no link."""

    def mended(found: re.Match[str]) -> str:
        if not found["target"] or re.match(r"[a-z]+:", found["target"]):
            return found[0]
        path, sharp, anchor = found["target"].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source
        if target == "course.md" or (re.fullmatch(r"course-\d\.md", target) and not path):
            here = chapters.ANCHORS.get(anchor, "course.md")  # a heading that is not there fails the build
            is_whole = here in ("course-1.md",) and anchor in ("", "contents")
            return f"{found['text']}({relative(here, source)}{'' if is_whole else sharp + anchor})"
        if target.startswith(OUTSIDE):
            file = posixpath.normpath(posixpath.join("docs", target))
            return (
                f"{found['text']}({repository}/blob/main/{file}{sharp}{anchor})" if repository else found["text"][1:-1]
            )
        if target.endswith(".ipynb"):
            return f"{found['text']}({relative(target.removesuffix('.ipynb') + '.md', source)})"
        return found[0]

    # a formula or a code block that is indented has no links; neither has a span of code but in the text of a link
    return LINK.sub(mended, markdown)


def relative(target: str, source: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(source) or ".")
