"""A ```sh block with what it prints below it, in a ```text block, as two tabs."""

import re

LINES = r"(?:(?!```)[^\n]*\n)*"
PAIR = re.compile(
    rf"^```sh\n(?P<command>{LINES})```\n(?:<!-- output:[^\n]*-->\n|\n)?```text\n(?P<output>{LINES})```$", re.MULTILINE
)


def tabbed(markdown: str) -> str:
    """The page with a tab for each command and a tab for its output."""
    return PAIR.sub(
        lambda found: tab("!", "Command", "sh", found["command"]) + tab("", "Output", "text", found["output"]), markdown
    )


def tab(begins: str, title: str, language: str, content: str) -> str:
    """A tab; begins: "!" for the first of a set, as another set may stand directly above."""
    lines = "".join(f"    {line}\n" if line else "\n" for line in content.splitlines())
    return f'==={begins} "{title}"\n\n    ```{language}\n{lines}    ```\n\n'
