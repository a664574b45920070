"""What SECURITY.md promises: files of strangers run no code, whatever command opens them.

Each file tries to make Python import the module `payload`, or to run it, which is noticed; unpickling, starting a
program and connecting to a network are noticed by Python's audit events, wherever they come from. So is opening
a "secret".
"""

import json
import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.cli import CommandLine, pipe_in

PAYLOAD = "import pathlib; pathlib.Path('ran').touch()\n"
EVENTS = ("pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect")
noticed: list[tuple[str, ...]] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if noticed is not None and (event in EVENTS or (event == "open" and "secret" in str(arguments[0]))):
        noticed.append((event, *map(str, arguments)))


sys.addaudithook(_audit)


@pytest.fixture
def inert(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails when code of a file ran during the test."""
    global noticed
    (home / "payload.py").write_text(PAYLOAD)
    monkeypatch.syspath_prepend(str(home))
    noticed = []
    yield
    seen, noticed = noticed, None
    assert seen == []
    assert not (home / "ran").exists()
    assert "payload" not in sys.modules


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (PAYLOAD,)


def bomb(path: Path) -> None:
    """A file that runs code when it is unpickled."""
    path.write_bytes(pickle.dumps(Bomb()))


def test_the_bomb_and_the_notice_work(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other tests rely on."""
    global noticed
    monkeypatch.chdir(home)
    bomb(home / "bomb.pkl")
    noticed = []
    pickle.loads((home / "bomb.pkl").read_bytes())
    seen, noticed = noticed, None
    assert [event for event, *_ in seen] == ["pickle.find_class"]
    assert (home / "ran").exists()


@pytest.fixture
def published(lmtool: CommandLine, run: Path, home: Path) -> Path:
    """A run in the form of Transformers."""
    lmtool.succeeds("export", "last", "published")
    return home / "published"


def test_pickled_weights_are_refused(lmtool: CommandLine, published: Path, inert: None) -> None:
    (published / "model.safetensors").unlink()
    bomb(published / "pytorch_model.bin")
    lmtool.refuses(4, "import", "published", words=["pickle"])
    lmtool.refuses(4, "generate", "The", "--run", "published", words=["pickle"])


def test_pickles_beside_the_weights_are_not_opened(lmtool: CommandLine, published: Path, inert: None) -> None:
    for name in ("pytorch_model.bin", "optimizer.pt", "training_args.bin", "rng_state.pth", "tokenizer.pkl"):
        bomb(published / name)
    assert lmtool.succeeds("generate", "The", "--run", "published", "--greedy").out


def test_code_of_a_model_is_not_run(lmtool: CommandLine, published: Path, inert: None) -> None:
    """`auto_map` and `custom_pipelines`, with which Transformers finds the code of a repository."""
    shutil.copy("payload.py", published / "modeling_payload.py")
    code = {"AutoModelForCausalLM": "modeling_payload.Model", "AutoTokenizer": ["modeling_payload.Tokenizer", None]}
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((published / name).read_text())
        content |= {"auto_map": code, "custom_pipelines": {"x": {"impl": "modeling_payload.Pipeline"}}}
        (published / name).write_text(json.dumps(content))
    outcome = lmtool("generate", "The", "--run", "published", "--greedy")
    assert outcome.code in (0, 4)


def test_a_chat_template_cannot_leave_its_sandbox(
    lmtool: CommandLine, published: Path, inert: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('touch ran') }}",
        "{{ messages[0]['content'].format.__globals__ }}",
        "{% include '/etc/passwd' %}",
    ):
        (published / "chat_template.jinja").write_text(source)
        pipe_in(monkeypatch, "Hello.\n")
        outcome = lmtool("chat", "published", "--max-new-tokens", "2")
        assert (outcome.code, outcome.out) == (4, "")
        assert "template" in outcome.err


def test_files_outside_of_a_model_are_not_read(lmtool: CommandLine, published: Path, inert: None, home: Path) -> None:
    weights = load_file(published / "model.safetensors")
    save_file(weights, home / "model-00001-of-00001.safetensors")
    (published / "model.safetensors").unlink()
    index = {"weight_map": dict.fromkeys(weights, "../model-00001-of-00001.safetensors")}
    (published / "model.safetensors.index.json").write_text(json.dumps(index))
    lmtool.refuses(4, "import", "published")


def test_a_recipe_makes_no_objects(lmtool: CommandLine, run: Path, corpus: Path, inert: None) -> None:
    tag = '!!python/object/apply:os.system ["touch ran"]'
    Path("bad.yaml").write_text(f"seed: {tag}\n")
    assert lmtool("pretrain", corpus, "--recipe", "bad.yaml").code == 2
    path = run / "recipe.yaml"
    path.write_text(path.read_text() + f"\nx: {tag}\n")
    assert lmtool("generate", "The", "--greedy").code in (0, 2, 4)


def test_a_recipe_is_shown_without_what_it_names(lmtool: CommandLine, home: Path, inert: None) -> None:
    files = "data: {train: [secret.txt, 'hf:a/secret']}\ntokenizer: {kind: file, path: secret.json}\nlogging: [wandb]\n"
    model = "model: {kind: transformer, n_layers: 1, d_model: 16, n_heads: 2, context: 16, embeddings: secret.vec}\n"
    (home / "shown.yaml").write_text(f"{model}{files}training: {{steps: 1, batch_size: 2}}\n")
    outcome = lmtool.succeeds("recipes", "show", "shown.yaml", "--resolved")
    for named in ("secret.txt", "hf:a/secret", "secret.json", "secret.vec", "wandb"):
        assert named in outcome.out


def test_pickles_in_a_run_are_refused(lmtool: CommandLine, run: Path, inert: None) -> None:
    """In the place of weights, optimizer state and tokenizer, with right checksums or without."""
    for name in ("model.safetensors", "optimizer.safetensors"):
        for checkpoint in (run / "checkpoints").iterdir():
            bomb(checkpoint / name)
    lmtool.refuses(4, "generate", "The")
    lmtool.refuses(4, "resume")
    bomb(run / "tokenizer.json")
    lmtool.refuses(4, "tokenize", "--tokenizer", run / "tokenizer.json", "--show", "The")


def test_a_dataset_runs_no_script_and_reads_no_pickle(lmtool: CommandLine, home: Path, inert: None) -> None:
    folder = home / "set"
    folder.mkdir()
    (folder / "set.py").write_text(PAYLOAD)
    bomb(folder / "train.pkl")
    lmtool.refuses(3, "pretrain", "hf:set")


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet", "rows.npz", "rows.pt"])
def test_a_pickle_is_no_table_and_no_text(lmtool: CommandLine, run: Path, home: Path, inert: None, name: str) -> None:
    bomb(home / name)
    lmtool.refuses(3, "eval", "last", name)
    lmtool.refuses(3, "finetune", name)


def test_word_vectors_are_no_pickles(lmtool: CommandLine, home: Path, corpus: Path, inert: None) -> None:
    torch.save({"vectors": torch.zeros(3, 4)}, home / "vectors.pt")
    bomb(home / "vectors.bin")
    for name in ("vectors.pt", "vectors.bin"):
        outcome = lmtool("pretrain", corpus, "-s", f"model.embeddings={name}", "-s", "tokenizer={kind: word}")
        assert outcome.code == 3, outcome


ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e[bold red]x[/]"


def test_text_of_others_is_printed_as_text(lmtool: CommandLine, home: Path, inert: None) -> None:
    rows = [f'"{ESCAPES} {i}",{ESCAPES if i % 2 else "b"}' for i in range(20)]
    (home / "rows.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    outcome = lmtool.succeeds(
        "finetune", "rows.csv", "-r", "dan", "-s", "training.steps=1", "-s", "training.epochs=null"
    )
    assert all(line.isprintable() for line in (outcome.out + outcome.err).splitlines())
    page = next(home.rglob("report.html")).read_text(encoding="utf-8")
    assert "\x1b" not in page
