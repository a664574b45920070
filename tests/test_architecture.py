"""The rules of the house that can be read off the source: who imports whom, and what is nowhere."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From the ground up; "" is lmtool/__init__.py. A module may import what lies below its floor, and its own room.
FLOORS = [
    {""},
    {"errors", "durable", "printable", "records"},
    {"recipe"},
    {"batch"},
    {"compute", "run"},
    {"model", "text"},
    {"objective", "decoding"},
    {"inference"},
    {"tables"},
    {"training"},
    {"report", "interop", "serving"},
    {"cli", "api"},
    {"__main__"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
HEAVY = {"torch", "numpy", "datasets", "tokenizers", "tiktoken", "pyarrow", "pandas", "safetensors", "transformers"}
LIGHT_ROOMS = {"", "errors", "durable", "printable", "records", "recipe", "cli", "__main__"}
LIGHT_PACKAGES = {("lmtool", "cli"), ("lmtool", "recipe")}
UNSAFE = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
HOSTILE = {"tests/cli/test_hostile.py"}
"""Modules that make the files that nothing may open."""
DRAWERS = {"util.py", "utils.py", "helpers.py", "misc.py"}
SOURCES = [
    path
    for folder in ("lmtool", "tests", "benchmarks", "data", "scripts")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def imports(path: Path, tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """(line, dotted name, whether it runs when the module is imported) of all imports of a module of `path`.

    `from lmtool import text` is an import of lmtool.text. What only a type checker sees does not run.
    """
    package = path.with_suffix("").parts[:-1]

    def visit(node: ast.AST, at_import: bool) -> Iterator[tuple[int, str, bool]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, at_import
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            if module == "lmtool":
                for alias in node.names:
                    is_room = not alias.name.startswith("__")
                    yield node.lineno, f"lmtool.{alias.name}" if is_room else "lmtool", at_import
            else:
                yield node.lineno, module, at_import
        later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        unseen = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, at_import and not later and not unseen)

    return visit(tree, True)


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
        room = room_of(".".join(path.with_suffix("").parts)).removesuffix("__init__")
        if library in HEAVY and room in LIGHT_ROOMS and (at_import or room == "recipe"):
            found.append(f"{where}: imports {library}, which the room '{room}' must not load when it is imported")
        if library == "lmtool" and room_of(name) != room:
            below = FLOOR.get(room_of(name))
            if below is None or room not in FLOOR:
                found.append(f"{where}: {name} or {path} stands on no floor of FLOORS")
            elif below >= FLOOR[room]:
                found.append(f"{where}: imports {name}, which does not lie below the room '{room}'")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "load" and ast.unparse(node) == "torch.load":
            found.append(f"{path}:{node.lineno}: torch.load may run code; use safetensors")
        if isinstance(node, ast.ImportFrom) and node.module == "torch" and "load" in {a.name for a in node.names}:
            found.append(f"{path}:{node.lineno}: torch.load may run code; use safetensors")
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
        ("lmtool/model/part.py", "from lmtool import text", 1),
        ("lmtool/model/part.py", "from ..text import store", 1),
        ("lmtool/model/part.py", "def late():\n    import lmtool.text.store", 2),
        ("lmtool/run/order.py", "from lmtool.compute.device import Compute", 1),
        ("lmtool/recipe/spec/model.py", "from lmtool.batch import Batch", 1),
        ("lmtool/recipe/spec/model.py", "def late():\n    import torch", 2),
        ("lmtool/errors.py", "from lmtool.recipe import spec", 1),
        ("lmtool/cli/pretrain.py", "import json\nimport numpy as np", 2),
        ("lmtool/cli/pretrain.py", "class A:\n    from torch import nn", 2),
        ("lmtool/attic/box.py", "import lmtool.batch", 1),
        ("lmtool/batch.py", "import lmtool.attic", 1),
        ("lmtool/batch.py", "from lmtool import attic", 1),
        ("lmtool/run/save.py", "import pickle", 1),
        ("lmtool/run/save.py", "import torch\ntorch.load('x', weights_only=True)", 2),
        ("lmtool/run/save.py", "from torch import load", 1),
        ("benchmarks/training.py", "import numpy\n\nnumpy.load('x', allow_pickle=True)", 3),
        ("lmtool/text/utils.py", "", 1),
    ],
)
def test_a_fault_is_found_and_named(path, source, line):
    found = faults(Path(path), source)
    assert len(found) == 1
    assert found[0].startswith(f"{path}:{line}: ")


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("lmtool/training/fit.py", "from lmtool.batch import Batch\nfrom lmtool.recipe.spec import Recipe"),
        ("lmtool/model/part.py", "import torch\nfrom .attention import attend\nfrom lmtool.model import norm"),
        ("lmtool/recipe/load.py", "from lmtool.errors import RecipeError"),
        ("lmtool/cli/pretrain.py", "from lmtool import __version__\n\ndef run():\n    import torch"),
        ("lmtool/cli/pretrain.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("tests/run/test_save.py", "from lmtool.training import fit\nfrom lmtool.model import stack"),
    ],
)
def test_what_is_allowed_is_not_a_fault(path, source):
    assert faults(Path(path), source) == []


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
