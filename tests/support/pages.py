"""Pages as a browser reads them, what they must not let through, and a run that they show."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from lmtool.runs.creation import create_and_lock_run
from lmtool.runs.directory import Run
from lmtool.runs.files import RunInfo

HOSTILE = [
    "<script>alert(1)</script>",
    "</title></style></script><img src=x onerror=alert(1)>",
    '" onload="alert(1)',
    "' autofocus onfocus='alert(1)",
    "&lt;b&gt; {{ 7 * 7 }} {% raw %}",
    "javascript:alert(1)",
    "<!-- <svg onload=alert(1)>",
]


Attributes = dict[str, str | None]


class Elements(HTMLParser):
    """What a browser reads: elements with their attributes, and the text outside of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, Attributes]] = []
        self.sources: list[tuple[str, Attributes, str]] = []
        self.text = self.inside = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self.inside = tag
            self.sources.append((tag, dict(attributes), ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == self.inside:
            self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside:
            tag, attributes, text = self.sources[-1]
            self.sources[-1] = tag, attributes, text + data
        else:
            self.text += data

    def tags(self) -> list[tuple[str, set[str]]]:
        """The elements in their order, with the names of their attributes."""
        return [(tag, set(attributes)) for tag, attributes in self.elements]


RECIPE = (
    "seed: {seed}\nmodel:\n  kind: transformer\n  d_model: 8\nobjective:\n  kind: {kind}\ndata:\n  train: [{train}]\n"
)


def make(
    folder: Path,
    *,
    name: str = "made",
    kind: str = "causal",
    seed: int = 1,
    text: str = "w0rd",
    steps: int = 40,
    **info: Any,
) -> Run:
    """A run with losses 5 - step / 10, a validation every ten steps, and a sample beside it."""
    with create_and_lock_run(
        folder / name,
        RunInfo.create(recipe=text, summary=text, fingerprints={"data": text, "tokenizer": "t"}, **info),
        {"recipe.yaml": RECIPE.format(kind=kind, seed=seed, train=json.dumps(text)).encode(), "tokenizer.json": b"{}"},
    ) as run:
        run.rewind_and_start_session(step=0, command=["lmtool", text], environment={"torch": text, "gpu": None})
        for step in range(1, steps + 1):
            valid = None if step % 10 else 4.5 - step / 10
            run.metrics.append(
                {
                    "step": step,
                    "loss": 5 - step / 10,
                    "valid_loss": valid,
                    "lr": 0.001,
                    "grad_norm": 0.5 + step,
                    "tokens": 100 * step,
                    "tokens_per_second": 200,
                    "seconds": step / 2,
                }
            )
            if valid is not None:
                run.samples.append({"step": step, "prompt": text, "text": f"{text} at {step}"})
        run.record_session_end("finished")
    return run
