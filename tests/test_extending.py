"""The examples of docs/extending.md hold: put into a copy of lmtool, each new part trains and decodes."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "extending.md"
TRANSFORMER = "{kind: transformer, n_layers: 2, d_model: 16, n_heads: 2, context: 16}"
PARTS = {
    "model.score=cosine": TRANSFORMER.replace("}", ", dropout: 0.1}"),
    "objective.kind=word-dropout": "{kind: recurrent, d_model: 16, context: 16, cell: gru}",
    "model.cell=mgu": "{kind: recurrent, n_layers: 2, d_model: 16, context: 16, attention: {score: dot}}",
} | dict.fromkeys(
    ("model.position.kind=log", "model.mixer=mingru", "model.feed_forward.kind=switch", "optimizer.kind=lion"),
    TRANSFORMER,
)
"""What each example adds to the recipe language, and a model to try it in."""

FAMILIES: dict[str, dict[str, object]] = {
    "example of a position": {"position": {"kind": "log"}},
    "example of a score": {"score": "cosine"},
    "example of a cell": {"kind": "recurrent", "cell": "mgu", "n_layers": 2, "d_model": 8, "context": 24},
    "example of a mixer": {"mixer": "mingru"},
    "example of a mixer behind norms": {"mixer": "mingru", "norm": {"place": "post"}, "bias": False},
    "example of experts": {"feed_forward": {"kind": "switch"}, "activation": "swiglu"},
    "example of experts of a source": {"feed_forward": {"kind": "switch"}, "shape": "encoder-decoder"},
}
"""What is added to `FAMILIES` in tests/support/tiny.py, so that models of the new parts are held to all invariants."""

TRY = """
import contextlib, io, sys, torch
from lmtool.batch import Batch
from lmtool.cli import app
from lmtool.runs.load import load_run

torch.set_num_threads(1)
for n, arguments in enumerate(sys.argv[1:]):
    sys.argv = ["lmtool", "pretrain", "text.txt", "--recipe", "small.yaml", "-o", f"run-{n}", "-q"]
    for setting in arguments.split("; "):
        sys.argv += ["-s", setting]
    assert not app(standalone_mode=False)
    model = load_run(f"run-{n}").model.double().eval()
    tokens = torch.arange(5, 17)[None]
    whole = model(Batch(tokens)).hidden_BTD
    state, chunks = model.initial_state(Batch(tokens)), []
    for start, stop in ((0, 5), (5, 6), (6, 12)):
        hidden, state = model.forward_incremental(tokens[:, start:stop], state)
        chunks.append(hidden)
    torch.testing.assert_close(torch.cat(chunks, 1), whole, rtol=1e-9, atol=1e-9)
    for how in (["--num-beams", "3"], ["--precision", "int8"]):
        sys.argv = ["lmtool", "generate", "the", "--run", f"run-{n}", "--max-new-tokens", "6", "-q", *how]
        with contextlib.redirect_stdout(io.StringIO()) as written:
            assert not app(standalone_mode=False)
        assert written.getvalue().startswith("the")
"""
TRY_FILTER = """
import contextlib, io, json, sys
from lmtool.cli import app
from lmtool.generation.params import choose_params
from lmtool.errors import UsageError

def lmtool(*words):
    sys.argv = ["lmtool", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert not app(standalone_mode=False)
    return out.getvalue()

def refused(*words):
    try:
        lmtool(*words)
    except UsageError as error:
        return error.what

model = "model={kind: recurrent, d_model: 16, context: 16, cell: gru}"
lmtool("pretrain", "text.txt", "--recipe", "small.yaml", "-o", "run-filter", "-q", "-s", model)
ask = ["generate", "the", "--run", "run-filter", "--seed", "1", "-q"]
wild = [*ask, "--temperature", "2", "--max-new-tokens", "60", "--show-probs", "--json"]
free, filtered = json.loads(lmtool(*wild)), json.loads(lmtool(*wild, "--eta", "0.9"))
assert filtered["settings"] == {**free["settings"], "eta": 0.9} and free["settings"]["eta"] is None
assert filtered["tokens"] != free["tokens"]
assert min(filtered["removed"]) > max(free["removed"]) + 0.1
assert max(filtered["ranks"]) < max(free["ranks"])
with open("records.jsonl", "w") as file:
    file.write(json.dumps(filtered))
assert lmtool("generate", "--replay", "records.jsonl") == "same: the\\n"
assert refused(*ask, "--eta", "1") == "--eta is 1.0"
assert refused(*ask, "--greedy", "--eta", "0.5") == "--greedy contradicts --eta"
assert choose_params("mask-predict", eta=0.5).by == "gibbs"
"""
TRY_TASK = """
few = "-q -s training.epochs=1 -s objective.least=0.52".split()
lmtool("finetune", "table.csv", "--from", "run-filter", "-o", "open", "--test", "table.csv", *few)
results = json.loads(lmtool("eval", "open", "table.csv", "--json"))
assert 0 <= results["coverage"] < 1 and 0 <= results.get("selective_accuracy", 0) <= 1
predicted = [line.split(",")[-3] for line in lmtool("predict", "open", "table.csv", "-q").splitlines()]
assert predicted.count("") == round((1 - results["coverage"]) * (len(predicted) - 1))
"""
TRY_COMMAND = """
first, second, *_ = lmtool("zipf", "text.txt", "-n", "3").splitlines()
assert (first, second) == ("1\\tthe\\t120\\t120", "2\\tcat\\t60\\t120")
"""
SMALL = """\
tokenizer: {kind: char}
training: {steps: 3, batch_size: 4, device: cpu, precision: float32}
evaluation: {every: 3, tokens: 200, prompts: ["the"], sample_tokens: 4}
checkpoint: {every: 3}
"""


def changes() -> list[tuple[str, str, str]]:
    """(file, text as it is, text as it becomes) of each diff in docs/extending.md."""
    found = []
    for block in re.findall(r"^```diff\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        file, *lines = block.splitlines()
        assert all(line[:1] in (" ", "+", "-") for line in lines)
        old, new = ("".join(line[1:] + "\n" for line in lines if line[0] in marks) for marks in (" -", " +"))
        found.append((file, old, new))
    return found


def changed() -> dict[str, str]:
    """The text of each file once all of docs/extending.md has been done."""
    texts: dict[str, str] = {}
    for name, old, new in changes():
        file = ROOT / name
        text = texts.get(name) or (file.read_text(encoding="utf-8") if file.exists() else "")
        assert text.count(old) == 1 if old else not text, f"{name} does not have once:\n{old}"
        texts[name] = text.replace(old, new) if old else new
    return texts


def test_examples_fit_the_files_of_which_each_touches_three_at_most() -> None:
    assert len(changed()) > 10
    page = PAGE.read_text(encoding="utf-8")
    for example in page.split("\n## ")[1:]:
        files = set(re.findall(r"^```diff\n(.*)$", example, re.MULTILINE))
        assert 1 <= len(files) <= 3, example.splitlines()[0]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with lmtool in it, to which docs/extending.md has been done."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("lmtool", "tests", "recipes"):
        shutil.copytree(ROOT / name, folder / name)  # with what is compiled, which stays valid for unchanged files
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name, text in changed().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")


def python(folder: Path, *words: str) -> str:
    """What Python prints in a folder, where it ends well."""
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.system
def test_each_new_part_trains_and_decodes_as_the_forward_pass_does(copy: Path) -> None:
    """And a new filter follows from its field: as an option with a range, in samples, records and strategies."""
    (copy / "text.txt").write_text("\n\n".join(f"the cat {n} sat on the mat and ran away" for n in range(60)))
    (copy / "small.yaml").write_text(SMALL)
    rows = [f"the film was {label} and long {n},{label}" for n in range(30) for label in ("good", "bad")]
    (copy / "table.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    tried = [f"model={model}; {part}" for part, model in PARTS.items()]
    printed = python(copy, "-c", TRY + TRY_FILTER + TRY_TASK + TRY_COMMAND, *tried)
    assert [line.rpartition("/")[2] for line in printed.splitlines()] == [f"run-{n}" for n in range(len(PARTS))]


@pytest.mark.system
def test_the_new_family_comes_in_goes_out_and_comes_back(copy: Path) -> None:
    """By the row that the page adds, which tries each of its heads."""
    assert "3 passed" in python(copy, *PYTEST, "tests/interop/families/test_families.py", "-k", "seed_oss")


@pytest.mark.system
@pytest.mark.slow
def test_each_new_part_keeps_the_invariants_and_its_formula(copy: Path) -> None:
    """What all families are held to, and what is held of the examples alone."""
    tiny = copy / "tests" / "support" / "tiny.py"
    first = "FAMILIES: dict[str, dict[str, Any]] = {\n"
    lines = "".join(f"    {name!r}: {of!r},\n" for name, of in FAMILIES.items())
    assert tiny.read_text().count(first) == 1
    tiny.write_text(tiny.read_text().replace(first, first + lines))
    held = ["tests/extending/mingru.py", "tests/extending/experts.py", "tests/extending/lion.py"]
    held += [f"tests/model/test_{name}.py" for name in ("cache", "invariance", "packed", "parameters", "classifier")]
    python(copy, *PYTEST, *held, "-k", "example or extending")


@pytest.mark.system
def test_without_the_examples_there_are_no_such_parts() -> None:
    """So that the tests above try the examples and not lmtool."""
    from lmtool.errors import RecipeError
    from lmtool.generation.params import SamplingParams
    from lmtool.recipe.load import load

    for part, model in PARTS.items():
        with pytest.raises(RecipeError):
            load("tiny", [f"model={model}", part])
    assert not hasattr(SamplingParams, "eta")


@pytest.mark.system
def test_the_changed_files_are_well_kept(copy: Path) -> None:
    files = sorted({file for file, _, _ in changes() if file.endswith(".py")})
    for command in (["check"], ["format", "--check"]):
        python(copy, "-m", "ruff", *command, "--config", str(ROOT / "pyproject.toml"), *files)
