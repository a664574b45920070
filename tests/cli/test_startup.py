"""Commands without a model start without importing heavy libraries."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
HEAVY = {
    "datasets",
    "huggingface_hub",
    "numpy",
    "pandas",
    "prompt_toolkit",
    "pyarrow",
    "safetensors",
    "tiktoken",
    "tokenizers",
    "torch",
    "transformers",
}

SCRIPT = """
import json, sys
from lmtool.cli import main
codes = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["lmtool", *words]
    try:
        main()
    except SystemExit as end:
        codes.append(end.code or 0)
print("", json.dumps([codes, list(sys.modules)]), sep="\\n", file=sys.stderr)
"""


def start(folder, *commands):
    """Exit codes, output, and names of the imported modules of commands in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(commands)],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "LMTOOL_RUNS": str(folder / "runs")},
        capture_output=True,
        text=True,
    )
    *said, last = done.stderr.splitlines()
    codes, modules = json.loads(last)
    return codes, "\n".join(said), set(modules)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["pretrain", "--help"], 0),
        (["generate", "--help"], 0),
        (["chat", "--help"], 0),
        (["recipes", "show", "gpt2-124m", "--resolved"], 0),
        (["runs", "ls"], 0),
        (["pretrain", "text.txt", "--recipe", "typo.yaml"], 2),
        (["pretrain", "text.txt", "-s", "training.stpes=5"], 2),
        (["tokenize", "text.txt", "-s", "tokenizer.knd=char"], 2),
        (["pretrian", "text.txt"], 2),
    ],
)
def test_nothing_heavy_is_imported(tmp_path, arguments, code):
    (tmp_path / "text.txt").write_text("text")
    (tmp_path / "typo.yaml").write_text("modle: {}\n")
    ended, said, modules = start(tmp_path, arguments)
    assert ended == [code], said
    assert "lmtool" in modules
    assert not HEAVY & modules


def test_what_is_heavy_would_be_found(tmp_path):
    _, _, modules = start(tmp_path, ["generate", "--greedy", "--top-k", "3"])
    assert HEAVY & modules


def test_training_imports_no_compiler(tmp_path):
    """It takes longest to import."""
    (tmp_path / "text.txt").write_text("\n\n".join(f"the cat {n} sat on the mat" for n in range(60)))
    commands = []
    for recipe, width in (("tiny", "model.n_heads=2"), ("lstm", "model.d_model=16"), ("t5-tiny", "model.n_heads=2")):
        small = ["training={steps: 1, batch_size: 2, device: cpu}", "model.n_layers=1", width]
        commands.append(["pretrain", "text.txt", "--recipe", recipe, *(w for one in small for w in ("-s", one))])
    ended, said, modules = start(tmp_path, *commands)
    assert ended == [0, 0, 0], said
    assert "torch" in modules
    assert "torch._dynamo" not in modules
