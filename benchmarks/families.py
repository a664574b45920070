"""Every family at equal training time and about a million parameters: bits per byte of stories.valid.txt.

    python benchmarks/families.py [--seconds 180] [--only NAME ...]

Each contender is a recipe scaled to equal size, with the same 2,048 word pieces. A short run first estimates how many
steps fit into the time, so that its schedule ends with it. Counting is a single pass.
"""

import os
import statistics
import tempfile
from collections.abc import Sequence
from json import loads
from pathlib import Path

from bench import describe_machine, options_of, print_head, print_row, run_lmtool

from lmtool.data import bundled
from lmtool.model.size import count_parameters
from lmtool.recipe.load import load

TRAIN, VALID = "data/stories.txt", "data/stories.valid.txt"
VOCABULARY = 2048
PROBE_STEPS = 60
LAYERS_128 = ("model.d_model=128", "model.n_heads=2")

CONTENDERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "5-gram": ("ngram", ()),
    "Elman network": ("elman", ("model.d_model=368",)),
    "GRU": ("gru", ("model.d_model=272",)),
    "LSTM": ("lstm", ("model.d_model=256",)),
    "LSTM with attention": ("lstm-attention", ("model.d_model=224",)),
    "GPT": ("tiny", ("model.n_layers=3",)),
    "Llama": ("llama-tiny", ("model.n_layers=3",)),
    "prefix LM": ("prefix-tiny", ("model.n_layers=3",)),
    "T5 (removed spans)": ("t5-tiny", ("model.d_model=112", "model.n_heads=4", "model.n_layers=2")),
    "GRU encoder-decoder, Luong (prefixes)": (
        "seq2seq-luong",
        ("model.d_model=200", "model.context=256", "objective={kind: prefix}", "training.batch_size=8"),
    ),
    "ELMo (both directions)": ("elmo-tiny", ("model.d_model=152",)),
    "RoBERTa (pseudo)": ("roberta-tiny", LAYERS_128),
    "BERT (pseudo)": ("bert-tiny", LAYERS_128),
    "Longformer (pseudo)": ("longformer-tiny", LAYERS_128),
    "ALBERT (pseudo)": ("albert-tiny", ("model.d_model=256", "model.n_heads=4", "objective.sentence_order=false")),
}
"""Recipe and changes, by name. "Pseudo": pseudo-likelihood, each token given all others, not a generative model."""


def records(run: str) -> list[dict[str, float]]:
    return [loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]


def train(recipe: str, overrides: Sequence[str], steps: int) -> str:
    """The directory of a run of so many steps, validated only at its end."""
    fixed = (f"training.steps={steps}", f"evaluation.every={steps}", f"checkpoint.every={steps}")
    settings = [text for override in (*overrides, *fixed, "evaluation.prompts=[]") for text in ("-s", override)]
    return run_lmtool("pretrain", TRAIN, "--recipe", recipe, "--quiet", *settings).strip()


def steps_in(recipe: str, overrides: Sequence[str], seconds: float) -> int:
    """How many steps take that long, estimated from the later half of a short run."""
    steps = records(train(recipe, overrides, PROBE_STEPS))
    half, last = steps[len(steps) // 2], steps[-1]
    return round(seconds * (last["step"] - half["step"]) / (last["seconds"] - half["seconds"]))


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--seconds", type=float, default=180, help="training time of each")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=[*CONTENDERS], metavar="NAME")
    arguments = parser.parse_args()
    print(describe_machine())
    print_head("model", "bits per byte", "parameters", "tokens/s", "steps", "seconds")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LMTOOL_RUNS"] = folder
        for name in arguments.only:
            recipe, overrides = CONTENDERS[name]
            loaded = load(recipe).recipe
            overrides = (f"tokenizer.vocab_size={VOCABULARY}", *overrides)
            counts = loaded.model.kind == "ngram"
            steps = loaded.training.steps if counts else steps_in(recipe, overrides, arguments.seconds)
            run = train(recipe, overrides, steps)
            seconds = records(run)[-1]["seconds"]
            speed = statistics.median(record["tokens_per_second"] for record in records(run))
            model = load(Path(run) / "recipe.yaml").recipe.model
            size = "counts" if counts else f"{count_parameters(model, model.vocab_size or VOCABULARY).parameters:,}"
            bits = loads(run_lmtool("eval", run, VALID, "--json", "--quiet"))["bits_per_byte"]
            print_row(name, f"{bits:.3f}", size, f"{speed:,.0f}", f"{steps:,}", f"{seconds:.0f}")
    print_row(
        "the limit",
        f"{bundled.known_entropy_bits_per_byte([bundled.data_folder() / Path(VALID).name]):.3f}",
        "",
        "",
        "",
        "",
    )


if __name__ == "__main__":
    main()
