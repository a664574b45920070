"""Commands without a model start without importing heavy libraries."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
HEAVY = {
    *("datasets", "huggingface_hub", "numpy", "pandas", "prompt_toolkit", "pyarrow"),
    *("safetensors", "tiktoken", "tokenizers", "torch", "transformers"),
}

SCRIPT = """
import json, os, sys
from lmtool.cli import main
for number, commands in enumerate(json.loads(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(f"{number}.err", os.O_WRONLY | os.O_CREAT), 2)
        codes = []
        for words in commands:
            sys.argv = ["lmtool", *words]
            try:
                main()
            except SystemExit as end:
                codes.append(end.code or 0)
        with open(f"{number}.json", "w") as file:
            json.dump([codes, list(sys.modules)], file)
        os._exit(0)
    os.waitpid(pid, 0)
"""


Started = tuple[list[int], str, set[str]]


def start(folder: Path, *processes: list[list[str]]) -> Iterator[Started]:
    """Of processes, each of which has imported the command line and does some commands: their exit codes, what they
    said, and names of the imported modules."""
    own = {"PYTHONPATH": str(ROOT), "LMTOOL_RUNS": str(folder / "runs")}
    kept = {name: os.environ[name] for name in ("LMTOOL_CACHE", "OMP_NUM_THREADS")}
    command = [sys.executable, "-c", SCRIPT, json.dumps(processes)]
    subprocess.run(command, cwd=folder, env=own | kept, stdout=subprocess.DEVNULL, check=True)
    for number in range(len(processes)):
        codes, modules = json.loads((folder / f"{number}.json").read_text())
        yield codes, (folder / f"{number}.err").read_text(), set(modules)


LIGHT = {
    "--help": 0,
    "generate --help": 0,
    "recipes show gpt2-124m --resolved": 0,
    "runs ls": 0,
    "pretrain text.txt --recipe typo.yaml": 2,
    "pretrain text.txt -s training.stpes=5": 2,
    "pretrain text.txt --from last -s training.stpes=5": 2,
    "finetune table.csv -s training.stpes=5": 2,
    "plan text.txt -s training.stpes=5": 2,
    "plan tiny -s model.d_model=wide": 2,
    "resume last -s training.stpes=5": 2,
    "sweep text.txt -s optimizer.lrr=0.1,0.2": 2,
    "recipes batch bert-tiny text.txt -s model.d_model=wide": 2,
    "pretrian text.txt": 2,
}
"""Commands that import nothing heavy, and their exit codes."""
HEAVIER = "tokenize text.txt --kind char -o tokens"


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Started]:
    """What `start` tells of each command."""
    folder = tmp_path_factory.mktemp("started")
    (folder / "text.txt").write_text("text " * 20)
    (folder / "typo.yaml").write_text("modle: {}\n")
    commands = [*LIGHT, HEAVIER]
    return dict(zip(commands, start(folder, *([command.split()] for command in commands)), strict=True))


@pytest.mark.parametrize("command", LIGHT)
def test_nothing_heavy_is_imported(started: dict[str, Started], command: str) -> None:
    codes, said, modules = started[command]
    assert codes == [LIGHT[command]], said
    assert "lmtool" in modules
    assert not HEAVY & modules


def test_what_is_heavy_would_be_found(started: dict[str, Started]) -> None:
    codes, said, modules = started[HEAVIER]
    assert codes == [0], said
    assert HEAVY & modules


def test_training_imports_no_compiler(tmp_path: Path) -> None:
    """It takes longest to import."""
    (tmp_path / "text.txt").write_text("\n\n".join(f"the cat {n} sat on the mat" for n in range(60)))
    commands = []
    for recipe, width in (("tiny", "model.n_heads=2"), ("lstm", "model.n_layers=1"), ("t5-tiny", "model.n_heads=2")):
        small = ["training={steps: 1, batch_size: 2, device: cpu}", "model.n_layers=1", "model.d_model=16", width]
        small += ["tokenizer.vocab_size=300", "evaluation.sample_tokens=2"]
        commands.append(["pretrain", "text.txt", "--recipe", recipe, *(w for one in small for w in ("-s", one))])
    ((codes, said, modules),) = start(tmp_path, commands)
    assert codes == [0, 0, 0], said
    assert "torch" in modules
    assert "torch._dynamo" not in modules
