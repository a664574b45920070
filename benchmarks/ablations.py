"""Parts of a Transformer taken away, one at a time; docs/transformer.md has the results.

    python benchmarks/ablations.py [--steps 400] [--seeds 2] [--folder DIR]

Each row is `tiny`, narrower and without one part, after so many steps on the bundled stories: nats per token of the
validation text, mean and standard deviation over seeds. Results that are already in the folder are reused.
"""

import tempfile
from pathlib import Path

from bench import DATA, Series, last_of, mean, options_of, parameters, table

from lmtool.errors import NumericalError

WHOLE = ("model.d_model=64", "model.n_heads=4", "model.context=128", "evaluation.prompts=[]", "evaluation.tokens=30000")
PARTS: dict[str, tuple[str, ...]] = {
    "the whole": (),
    "one head": ("model.n_heads=1",),
    "no feed-forward network": ("model.d_ff=0",),
    "the same, of as many parameters": ("model.d_ff=0", "model.n_layers=12"),
    "no residual connections": ("model.residual=false",),
    "no norm": ("model.norm.kind=none",),
    "neither": ("model.residual=false", "model.norm.kind=none"),
    "no positions": ("model.position={kind: none}",),
    "attention alone: no residual, norm, network or positions": (
        *("model.residual=false", "model.norm.kind=none", "model.d_ff=0", "model.position={kind: none}"),
    ),
    "one layer": ("model.n_layers=1",),
    "layers that share weights": ("model.share_layers=true",),
    "no mask": ("model.causal_mask=false",),
}
"""What each row takes away."""


def losses(series: Series, part: str, steps: int, seeds: int) -> tuple[str, str]:
    """The parameters without a part, and nats per token."""
    found = []
    size = ""
    for seed in range(1, seeds + 1):
        settings = [*WHOLE, *PARTS[part], f"training.steps={steps}", f"evaluation.every={steps}", f"seed={seed}"]
        name = f"{part.replace(' ', '-').replace(',', '').replace(':', '')}-{seed}"
        try:
            run = series.train("pretrain", name, str(DATA / "stories.txt"), "--recipe", "tiny", settings=settings)
        except NumericalError:
            return size, "diverges"
        size = parameters(run)
        found.append(float(last_of(run)["valid_loss"]))
    return size, mean(found)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--steps", type=int, default=400, metavar="N")
    parser.add_argument("--seeds", type=int, default=2, metavar="N")
    parser.add_argument("--folder", type=Path, help="where runs are saved; a temporary folder by default")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (asked.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        series = Series(folder, quick=False)
        rows = [[part, *losses(series, part, asked.steps, asked.seeds)] for part in PARTS]
        print(table(["without", "parameters", "nats per token"], rows))
    print(f"\n{sum(series.spent.values()):.0f} s of CPU time")


if __name__ == "__main__":
    main()
