"""The rules of the house that can be read off the source: who imports whom, and what is nowhere."""

import ast
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.sources import imports

ROOT = Path(__file__).parents[1]

# From the ground up; "" is lmtool/__init__.py. A module may import what lies below its level, and its own room.
LEVELS = [
    {""},
    {"errors", "printable", "system"},
    {"extras"},
    {"storage"},
    {"recipe"},
    {"arrays", "batch"},
    {"tokenization", "compute"},
    {"model"},
    {"objective", "data"},
    {"runs"},
    {"interop"},
    {"generation"},
    {"evaluation"},
    {"tasks"},
    {"training"},
    {"report", "serving"},
    {"apps"},
    {"cli", "api"},
    {"estimators"},
    {"__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
HEAVY = {"torch", "numpy", "datasets", "tokenizers", "tiktoken", "pyarrow", "pandas", "safetensors", "transformers"}
LIGHT_ROOMS = {"", "errors", "system", "storage", "printable", "recipe", "cli", "__main__"}
LIGHT_PACKAGES = {("lmtool", "cli"), ("lmtool", "recipe")}
UNSAFE = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
OF_ONE_PLATFORM = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix", "msvcrt", "winreg", "_winapi"}
HOSTILE = {"tests/cli/test_hostile.py"}
"""Modules that make the files that nothing may open."""
DRAWERS = {"util.py", "utils.py", "helpers.py", "misc.py"}
SOURCES = [
    path.relative_to(ROOT)
    for folder in ("lmtool", "tests", "benchmarks", "data", "scripts")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """What each module of the project says, by its path in it."""
    assert len(SOURCES) > 20
    return {path: ast.parse((ROOT / path).read_text(encoding="utf-8")) for path in SOURCES}


def room_of(dotted: str) -> str:
    return [*dotted.split("."), ""][1]


def faults(path: Path, tree: ast.Module) -> Iterator[str]:
    """What a module of the project does against the rules, one line each; `path` is relative to the project."""
    is_ours = path.parts[0] == "lmtool"
    may_ask = not is_ours or str(path) == "lmtool/system.py"
    room = room_of(".".join(path.with_suffix("").parts)).removesuffix("__init__")
    for line, name, at_import in imports(path, tree):
        library = name.split(".")[0]
        if library in UNSAFE and str(path) not in HOSTILE:
            yield f"{path}:{line}: imports {library}; files hold safetensors and JSON only"
        if library in OF_ONE_PLATFORM and not may_ask:
            yield f"{path}:{line}: imports {library}, which not every platform has; lmtool/system.py asks which it is"
        if is_ours and library in HEAVY and room in LIGHT_ROOMS and (at_import or room == "recipe"):
            yield f"{path}:{line}: imports {library}, which the room '{room}' must not load when it is imported"
        if is_ours and library == "lmtool" and room_of(name) != room:
            below = LEVEL.get(room_of(name))
            if below is None or room not in LEVEL:
                yield f"{path}:{line}: {name} or {path} stands on no level of LEVELS"
            elif below >= LEVEL[room]:
                yield f"{path}:{line}: imports {name}, which does not lie below the room '{room}'"
    for node in ast.walk(tree):
        match node:
            case (
                ast.Attribute(value=ast.Name("sys"), attr="platform") | ast.Attribute(value=ast.Name("os"), attr="name")
            ):
                if not may_ask:
                    yield f"{path}:{node.lineno}: asks for the platform, as only lmtool/system.py does"
            case ast.Attribute(value=ast.Name("torch"), attr="load"):
                yield f"{path}:{node.lineno}: torch.load may run code; use safetensors"
            case ast.ImportFrom(module="torch", names=names) if "load" in {name.name for name in names}:
                yield f"{path}:{node.lineno}: torch.load may run code; use safetensors"
            case ast.ImportFrom(names=names) | ast.Import(names=names) if path.parts[0] == "tests":
                named = f"{getattr(node, 'module', '')}.{'.'.join(alias.name for alias in names)}".split(".")
                if named[0] == "tests" and any(name.startswith("test_") for name in named):
                    yield f"{path}:{node.lineno}: imports a test module; what tests share is in tests/support"
            case ast.keyword(arg="allow_pickle", value=value) if ast.unparse(value) != "False":
                yield f"{path}:{value.lineno}: allow_pickle may run code"
    if path.name in DRAWERS:
        yield f"{path}:1: a name for anything; call the module by what it does"


def test_the_source_keeps_the_rules(trees: dict[Path, ast.Module]) -> None:
    found = [fault for path, tree in trees.items() for fault in faults(path, tree)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "line"),
    [
        ("lmtool/model/part.py", "\nfrom lmtool.training.fit import fit", 2),
        ("lmtool/model/part.py", "from ..data import store", 1),
        ("lmtool/model/part.py", "def late():\n    import lmtool.data.store", 2),
        ("lmtool/report/page.py", "from lmtool.serving import page", 1),
        ("lmtool/recipe/spec/model.py", "def late():\n    import torch", 2),
        ("lmtool/cli/commands/pretrain.py", "import json\nimport numpy as np", 2),
        ("lmtool/attic/box.py", "import lmtool.batch", 1),
        ("lmtool/batch.py", "from lmtool import attic", 1),
        ("lmtool/runs/save.py", "import pickle", 1),
        ("tests/model/test_part.py", "\nfrom tests.model.test_cache import read", 2),
        ("tests/model/test_part.py", "from tests.model import test_cache", 1),
        ("lmtool/runs/save.py", "import torch\ntorch.load('x', weights_only=True)", 2),
        ("lmtool/runs/save.py", "from torch import load", 1),
        ("benchmarks/training.py", "import numpy\n\nnumpy.load('x', allow_pickle=True)", 3),
        ("lmtool/runs/lock.py", "def late():\n    import fcntl", 2),
        ("lmtool/runs/lock.py", "import sys\n\nis_mac = sys.platform == 'darwin'", 3),
        ("lmtool/data/utils.py", "", 1),
    ],
)
def test_a_module_against_the_rules_is_named(path: str, source: str, line: int) -> None:
    (found,) = faults(Path(path), ast.parse(source))
    assert found.startswith(f"{path}:{line}: ")


def circle(trees: Mapping[Path, ast.Module]) -> list[str]:
    """Modules that import each other, the first one also last; empty if there is none."""
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): tree for path, tree in trees.items()}
    imported = {
        name: {
            inner if (inner := f"{node.module}.{alias.name}") in names else node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        for name, tree in names.items()
    }
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other(trees: dict[Path, ast.Module]) -> None:
    """Also not inside functions."""
    assert circle(trees) == []
    late = ast.parse("def late():\n    from a import one")
    two = {Path("a/one.py"): ast.parse("from a.two import x"), Path("a/two.py"): late}
    assert {*circle(two)} == {"a.one", "a.two"}


def shared_names(trees: Mapping[Path, ast.Module]) -> dict[str, list[str]]:
    """Public names of classes and types that mean something else in several modules, and these modules."""
    places = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body:
            match node:
                case ast.ClassDef(name=name) if not name.startswith("_"):
                    places[name].append((str(path), str(path)))
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name[:1].isupper() and not name.isupper():
                    places[name].append((str(path), ast.unparse(value)))
    return {name: [path for path, _ in of] for name, of in places.items() if len({meaning for _, meaning in of}) > 1}


def test_a_name_has_one_meaning(trees: dict[Path, ast.Module]) -> None:
    assert shared_names({path: tree for path, tree in trees.items() if path.parts[0] == "lmtool"}) == {}
    one = "class A: ...\nclass _B: ...\nInts = list[int]\nName = str\nTWO = 2\nNeither = str"
    other = "class A: ...\nclass _B: ...\nInts = list[int]\nclass Name: ...\nTWO = 3\nNeither = bytes\nclass C: ..."
    two = {Path("a.py"): ast.parse(one), Path("b.py"): ast.parse(other)}
    assert shared_names(two) == {name: ["a.py", "b.py"] for name in ("A", "Name", "Neither")}


LOADER = """
import importlib, sys
for name in sys.argv[2:]:
    importlib.import_module(name)
    heavy = set(sys.argv[1].split()) & sys.modules.keys()
    if heavy:
        sys.exit(f"importing {name} loads {', '.join(sorted(heavy))}")
"""


def test_the_command_line_and_recipes_load_nothing_heavy() -> None:
    """Also not through others, which the source of one module cannot show."""
    light = [path.with_suffix("").parts for path in SOURCES]
    names = [".".join(parts).removesuffix(".__init__") for parts in light if parts[:2] in LIGHT_PACKAGES]
    assert len(names) > 10
    command = [sys.executable, "-c", LOADER, " ".join(HEAVY), *names]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


KEYS = {"top_k", "layer_types"}
"""Functions that have the name of a key, which messages may name."""


def test_messages_name_no_function(trees: dict[Path, ast.Module]) -> None:
    """A function that is renamed by its word is also renamed in the sentences that have the word."""
    ours = {path: tree for path, tree in trees.items() if path.parts[0] == "lmtool"}
    functions = {node.name for tree in ours.values() for node in tree.body if isinstance(node, ast.FunctionDef)}
    named = {name for name in functions - KEYS if "_" in name[1:]}
    assert [
        (str(path), node.lineno, word)
        for path, tree in ours.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if " " in node.value.strip() and "\n" not in node.value
        for word in re.findall(r"(?<![\w.`/\"'-])\w+(?![\w=(.\[:`])", node.value)
        if word in named
    ] == []


def test_contributing_names_files_that_exist() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+/)` \| (.+) \|$", guide, flags=re.MULTILINE)
    named = [(room, name) for room, files in rows for name in re.findall(r"`(\w+(?:\.py|/))`", files)]
    assert len(named) > 80
    assert [(room, name) for room, name in named if not [*(ROOT / "lmtool" / room).rglob(name.rstrip("/"))]] == []


REACHING = {
    *("socket", "ssl", "http", "urllib", "ftplib", "smtplib", "requests", "httpx", "aiohttp", "uvicorn"),
    *("huggingface_hub", "datasets", "lm_eval", "wandb", "mlflow", "subprocess"),
}
"""Libraries that open connections, or start programs that may."""

ALLOWED = {
    "compute/kernels/build.py": {"subprocess"},
    "compute/processes.py": {"socket"},
    "data/catalogue.py": {"subprocess"},
    "data/hub.py": {"datasets", "huggingface_hub"},
    "interop/export/exporting.py": {"huggingface_hub"},
    "interop/export/pushing.py": {"huggingface_hub"},
    "interop/published_models.py": {"huggingface_hub"},
    "report/dashboards.py": {"mlflow", "wandb"},
    "serving/guard.py": {"socket", "urllib"},
    "serving/server.py": {"socket", "uvicorn"},
    "tasks/benchmarks.py": {"lm_eval"},
    "tasks/lmeval.py": {"lm_eval"},
}
"""By module: the C compiler, processes of one run, data, models and tasks that are named, dashboards that are, and the
server, which listens.

`interop/export/exporting.py` uses a function that divides weights into files, and `urllib` divides an address.
"""


def test_nothing_is_asked_of_the_network_but_by_few_modules(trees: dict[Path, ast.Module]) -> None:
    reaching: dict[str, set[str]] = {}
    for path, tree in trees.items():
        names = {name.split(".")[0] for _, name, _ in imports(path, tree)} & REACHING
        if names and path.parts[0] == "lmtool":
            reaching[path.relative_to("lmtool").as_posix()] = names
    assert reaching == ALLOWED


def test_the_libraries_of_the_hub_count_nothing() -> None:
    program = "import lmtool, huggingface_hub.constants as known; print(known.HF_HUB_DISABLE_TELEMETRY)"
    env = {name: value for name, value in os.environ.items() if name != "HF_HUB_DISABLE_TELEMETRY"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
