"""A notebook of docs/notebooks, with what it printed and drew, as a page."""

import json
from collections.abc import Iterator
from pathlib import Path

COLAB = "https://colab.research.google.com/github"


def page(path: Path, repository: str) -> str:
    """The Markdown of the notebook, and where the file is; where the repository is on GitHub, also opened in Colab."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    name = f"../../docs/notebooks/{path.name}"
    above = f"A [notebook]({name}), with what it printed and drew; `make notebooks` runs it again.\n"
    owner_and_name = repository.removeprefix("https://github.com/")
    if owner_and_name != repository:
        address = f"{COLAB}/{owner_and_name}/blob/main/docs/notebooks/{path.name}"
        above += f"\n[Open in Colab]({address}){{ .md-button }}\n"
    first, *others = [part for cell in cells for part in parts(cell)]
    return "\n".join([first, above, *others])


def parts(cell: dict) -> Iterator[str]:
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
