"""The rules of the house that can be read off the source: who imports whom, and what is nowhere."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.sources import BLOCKS, imports

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
    path
    for folder in ("lmtool", "tests", "benchmarks", "data", "scripts")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """The statements of a module, also those inside others; not their expressions, which are most of its nodes."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        yield node
        todo += [child for child in ast.iter_child_nodes(node) if isinstance(child, BLOCKS)][::-1]


def room_of(dotted: str) -> str:
    return [*dotted.split("."), ""][1]


def faults(path: Path, source: str) -> list[str]:
    """What a module of the project does against the rules, one line each; `path` is relative to the project."""
    found, tree = [], ast.parse(source)
    for line, name, at_import in imports(path, tree):
        where = f"{path}:{line}"
        library = name.split(".")[0]
        if library in UNSAFE and str(path) not in HOSTILE:
            found.append(f"{where}: imports {library}; files hold safetensors and JSON only")
        if path.parts[0] != "lmtool":
            continue
        if library in OF_ONE_PLATFORM and str(path) != "lmtool/system.py":
            found.append(f"{where}: imports {library}, which not every platform has; lmtool/system.py asks which it is")
        room = room_of(".".join(path.with_suffix("").parts)).removesuffix("__init__")
        if library in HEAVY and room in LIGHT_ROOMS and (at_import or room == "recipe"):
            found.append(f"{where}: imports {library}, which the room '{room}' must not load when it is imported")
        if library == "lmtool" and room_of(name) != room:
            below = LEVEL.get(room_of(name))
            if below is None or room not in LEVEL:
                found.append(f"{where}: {name} or {path} stands on no level of LEVELS")
            elif below >= LEVEL[room]:
                found.append(f"{where}: imports {name}, which does not lie below the room '{room}'")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("platform", "name"):
            is_asked = ast.unparse(node) in ("sys.platform", "os.name")
            if is_asked and path.parts[0] == "lmtool" and str(path) != "lmtool/system.py":
                found.append(f"{path}:{node.lineno}: asks for the platform, as only lmtool/system.py does")
        if isinstance(node, ast.Attribute) and node.attr == "load" and ast.unparse(node) == "torch.load":
            found.append(f"{path}:{node.lineno}: torch.load may run code; use safetensors")
        if isinstance(node, ast.ImportFrom) and node.module == "torch" and "load" in {a.name for a in node.names}:
            found.append(f"{path}:{node.lineno}: torch.load may run code; use safetensors")
        if isinstance(node, ast.ImportFrom | ast.Import) and path.parts[0] == "tests":
            named = f"{getattr(node, 'module', '')}.{'.'.join(alias.name for alias in node.names)}".split(".")
            if named[0] == "tests" and any(name.startswith("test_") for name in named):
                found.append(f"{path}:{node.lineno}: imports a test module; what tests share is in tests/support")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            found.append(f"{path}:{node.value.lineno}: allow_pickle may run code")
    if path.name in DRAWERS:
        found.append(f"{path}:1: a name for anything; call the module by what it does")
    return found


def test_the_source_keeps_the_rules():
    assert len(SOURCES) > 20
    found = [fault for path in SOURCES for fault in faults(path.relative_to(ROOT), path.read_text(encoding="utf-8"))]
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
def test_a_fault_is_found_and_named(path, source, line):
    found = faults(Path(path), source)
    assert len(found) == 1
    assert found[0].startswith(f"{path}:{line}: ")


def circle(sources: Iterable[tuple[str, str]]) -> list[str]:
    """Modules that import each other, the first one also last; empty if there is none."""
    trees = {".".join(Path(path).with_suffix("").parts).removesuffix(".__init__"): source for path, source in sources}
    imported = {
        name: {
            inner if (inner := f"{node.module}.{alias.name}") in trees else node.module
            for node in statements(ast.parse(source))
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        for name, source in trees.items()
    }
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_modules_import_each_other():
    """Also not inside functions."""
    sources = [(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in SOURCES]
    assert circle(sources) == []


def test_a_circle_is_found():
    late = "def late():\n    from a import one"
    assert sorted(set(circle([("a/one.py", "from a.two import x"), ("a/two.py", late)]))) == ["a.one", "a.two"]
    assert circle([("a/one.py", "from a import two"), ("a/two.py", "import a.one")]) == []


def shared_names(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Public names of classes and types that mean something else in several modules, and these modules."""
    places = defaultdict(list)
    for path, source in sources:
        for node in ast.parse(source).body:
            match node:
                case ast.ClassDef(name=name) if not name.startswith("_"):
                    meaning = path
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name[:1].isupper() and not name.isupper():
                    meaning = ast.unparse(value)
                case _:
                    continue
            places[name].append((path, meaning))
    return {name: [path for path, _ in of] for name, of in places.items() if len({meaning for _, meaning in of}) > 1}


def test_a_name_has_one_meaning():
    sources = [(path.relative_to(ROOT), path.read_text(encoding="utf-8")) for path in SOURCES]
    assert shared_names((str(path), source) for path, source in sources if path.parts[0] == "lmtool") == {}


def test_two_meanings_of_one_name_are_found():
    one = "class A: ...\nclass _B: ...\nInts = list[int]\nName = str\nTWO = 2\nNeither = str"
    other = "class A: ...\nclass _B: ...\nInts = list[int]\nclass Name: ...\nTWO = 3\nNeither = bytes\nclass C: ..."
    assert shared_names([("a.py", one), ("b.py", other)]) == {
        "A": ["a.py", "b.py"],
        "Name": ["a.py", "b.py"],
        "Neither": ["a.py", "b.py"],
    }


LOADER = """
import importlib, sys
for name in sys.argv[2:]:
    importlib.import_module(name)
    heavy = set(sys.argv[1].split()) & sys.modules.keys()
    if heavy:
        sys.exit(f"importing {name} loads {', '.join(sorted(heavy))}")
"""


def test_the_command_line_and_recipes_load_nothing_heavy():
    """Also not through others, which the source of one module cannot show."""
    light = [path.relative_to(ROOT).with_suffix("").parts for path in SOURCES]
    names = [".".join(parts).removesuffix(".__init__") for parts in light if parts[:2] in LIGHT_PACKAGES]
    assert len(names) > 10
    command = [sys.executable, "-c", LOADER, " ".join(HEAVY), *names]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


KEYS = {"top_k", "layer_types"}
"""Functions that have the name of a key, which messages may name."""


def test_messages_name_no_function() -> None:
    """A function that is renamed by its word is also renamed in the sentences that have the word."""
    functions: set[str] = set()
    sentences: list[tuple[str, int, str]] = []
    for path in sorted((ROOT / "lmtool").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and "_" in node.name[1:]}
        sentences += (
            (path.name, node.lineno, node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip()
        )
    assert [
        (file, line, word)
        for file, line, text in sentences
        if "\n" not in text
        for word in re.findall(r"(?<![\w.`/\"'-])\w+(?![\w=(.\[:`])", text)
        if word in functions - KEYS
    ] == []


def test_contributing_names_files_that_exist() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+/)` \| (.+) \|$", guide, flags=re.MULTILINE)
    named = [(room, name) for room, files in rows for name in re.findall(r"`(\w+(?:\.py|/))`", files)]
    assert len(named) > 80
    assert [(room, name) for room, name in named if not [*(ROOT / "lmtool" / room).rglob(name.rstrip("/"))]] == []
