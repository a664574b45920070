#!/usr/bin/env python3
"""Writes the pictures of the documentation, docs/pictures/*.svg: those of the pages that lmtool writes.

    scripts/pictures.py [NAME...]

NAME: files to write, without .svg; all by default. Models are trained on the bundled data, in ten minutes on one core,
and kept in build/pictures/, where the next call finds them.
"""

import re
import shlex
import subprocess
import sys
from math import log10
from pathlib import Path
from tempfile import TemporaryDirectory

from lmtool.analysis.attention import compute_attention
from lmtool.analysis.gradients import compute_gradient_flow_of_text
from lmtool.inference.load import load_run
from lmtool.report.charts import HeatMap, Line, LineChart, to_standalone_svg

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "build" / "pictures"
PICTURES = ROOT / "docs" / "pictures"

TRAINED = {
    "stories": "pretrain data/stories.txt --recipe tiny -s training.steps=800 -s training.precision=float32 "
    "-s evaluation.every=100",
    "translation": "finetune data/translation.tsv --recipe seq2seq-luong -s training.steps=600",
    "elman": "pretrain data/stories.txt --recipe elman -s training.steps=200 -s evaluation.baseline=false",
    "lstm": "pretrain data/stories.txt --recipe lstm -s training.steps=200 -s evaluation.baseline=false",
}

ON_PAGES = {
    "mask-causal": ("recipes draw tiny -o", 0),
    "mask-prefix": ("recipes draw prefix-tiny -o", 0),
    "mask-window": (
        "recipes draw longformer-tiny -s model.context=16 -s model.pattern.size=3 -s model.pattern.global_tokens=2 -o",
        0,
    ),
    "position-sinusoidal": ("recipes draw transformer-tiny -s model.d_model=32 -s model.context=24 -o", -1),
    "position-alibi": ("recipes draw tiny -s model.n_heads=4 -o", -1),
    "position-relative": ("recipes draw t5-tiny -o", -1),
    "position-rotary": ("recipes draw llama-tiny -o", -1),
    "loss": ("report {runs}/stories -o", 0),
    "beams": (
        "generate 'One rainy morning, a kind' --run {runs}/stories --num-beams 4 --max-new-tokens 9 -q --html",
        -1,
    ),
}
"""Pictures that a page holds: the command that writes the page, and which of its pictures it is."""

STORY = "Walter wound up the church clock for five days, before his own work. Then Ida was well again."
SENTENCE = "Before her brother punished the honest king, this rich man liked a gold cup."
STATES = [
    ("Elman network", "elman", "layer 1"),
    ("LSTM, hidden states", "lstm", "layer 1"),
    ("LSTM, memory cells", "lstm", "layer 1, cells"),
]
"""Lines of the picture of gradients: name, run, kind of state."""


def main(names: list[str]) -> None:
    drawn = {
        **dict.fromkeys(ON_PAGES, on_page),
        "attention": attention_of_a_story,
        "alignment": alignment_of_a_translation,
        "gradients": gradients_of_recurrent_models,
    }
    for name in names or drawn:
        write(name, drawn[name](name))


def write(name: str, picture: str, folder: Path = PICTURES) -> None:
    """Write a picture of a page as NAME.svg of a folder."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.svg").write_text(to_standalone_svg(picture), encoding="utf-8")


def pictures_of(page: Path) -> list[str]:
    """The pictures of a page that lmtool wrote, in their order."""
    return re.findall(r'<svg class="picture(?! narrow).*?</svg>', page.read_text(encoding="utf-8"), re.DOTALL)


def on_page(name: str) -> str:
    command, number = ON_PAGES[name]
    if "{runs}" in command:
        run("stories")
    with TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        lmtool(command.format(runs=RUNS), str(page))
        return pictures_of(page)[number]


def attention_of_a_story(name: str) -> str:
    part = compute_attention(load_run(run("stories")), [STORY]).part(None)
    label = f"Attention of the first head of the last layer: {STORY}"
    return HeatMap(part.head(-1, 0).tolist(), part.queries, part.keys, label=label, max_value=1.0).svg()


def alignment_of_a_translation(name: str) -> str:
    part = compute_attention(load_run(run("translation")), source=SENTENCE).part("cross")
    label = f"What each token of a translation attends to: {SENTENCE}"
    return HeatMap(part.head(-1, None).tolist(), part.queries, part.keys, label=label, max_value=1.0).svg()


def gradients_of_recurrent_models(name: str) -> str:
    """Norms relative to the last state that the loss reads."""
    text = (ROOT / "data" / "stories.valid.txt").read_text(encoding="utf-8").partition("\n")[0]
    lines = []
    for colour, (title, one, state) in enumerate(STATES):
        points = [
            (k, norm)
            for k, norm in enumerate(compute_gradient_flow_of_text(load_run(run(one)), text).gradient.norms[state])
            if norm
        ]
        last = points[0][1]
        lines.append(Line(title, [(k, log10(norm / last)) for k, norm in points], colour))
    label = "Norm of the loss's gradient in earlier states, of an Elman network and an LSTM"
    return LineChart(lines, x="steps back", y="log10 of the relative norm", label=label).svg()


def run(name: str) -> str:
    """The directory of a run of TRAINED."""
    if not (RUNS / name).exists():
        lmtool(TRAINED[name], "-q", "-o", str(RUNS / name))
    return str(RUNS / name)


def lmtool(command: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "lmtool", *shlex.split(command), *arguments], cwd=ROOT, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
