"""Files that are whole and false: checksums are right, but a value is of another type, unknown, missing, or absurd."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from lmtool.storage.durable import TEMPORARY_PREFIX
from lmtool.storage.records import encode_with_checksum
from tests.campaigns.harness import Told
from tests.faults.damage import TARGETS, Reader
from tests.support.damage import sign

VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 3, 10**30, 1e308, -0.5, float("nan")),
    *("", "x" * 5000, "../../../etc/passwd", "\x1b[31m\n[bold]", "\ud800", "2026-11-22T00:00:00", "float16"),
    *([], {}, [[[[]]]], ["x"] * 3, {"x": {"x": 1}}),
)
JSON = (".json", ".jsonl")
EDITS = (
    ("n_heads: 2", "n_heads: 4"),
    ("activation: gelu-tanh", "activation: relu"),
    ("eps: 1.0e-05", "eps: 0.1"),
    ("place: pre", "place: post"),
    ("scale_head: false", "scale_head: true"),
    ("scale_embedding: false", "scale_embedding: true"),
)
"""Other models with the same weights: what a recipe.yaml may say, and no command may believe."""


def forge_json(content: Any, rng: random.Random) -> str:
    """Change one place of a JSON value that is an object or a list; returns how."""
    places = list(_places(content))
    if not places:
        return "nothing to change"
    holder, key = rng.choice(places)
    how = rng.choice(["value", "value", "value", "delete", "unknown", "number", "twice"])
    match how:
        case "value":
            holder[key] = copy.deepcopy(rng.choice(VALUES))
        case "delete":
            del holder[key]
        case "unknown":
            if isinstance(holder, dict):
                holder[rng.choice(["x", "", "__class__", "x" * 3000])] = rng.choice(VALUES)
            else:
                holder.append(rng.choice(VALUES))
        case "number":
            old = holder[key]
            numeric = isinstance(old, int | float) and not isinstance(old, bool)
            holder[key] = rng.choice([old + 1, -old, old * 1000, old / 3]) if numeric else [old]
        case "twice":
            holder[key] = [copy.deepcopy(holder[key])] * 2
    return f"{how} of {str(key)[:30]}"


def _places(content: Any) -> list[tuple[Any, Any]]:
    """Every place in nested objects and lists: the holder, and the key or index in it."""
    found: list[tuple[Any, Any]] = []
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        found.append((content, key))
        if isinstance(value, dict | list):
            found += _places(value)[:200]
    return found


def forge_tensors(file: Path, rng: random.Random) -> str:
    """Change one tensor of a safetensors file; returns how."""
    tensors = load_file(file)
    if not tensors:
        return "no tensors"
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    how = rng.choice(["shape", "type", "missing", "unknown", "not finite", "cut"])
    match how:
        case "shape":
            tensors[name] = tensor.reshape(-1, 1).contiguous() if tensor.dim() != 2 else tensor.T.contiguous()[:-1]
        case "type":
            tensors[name] = tensor.to(rng.choice([torch.int64, torch.bool, torch.uint8]))
        case "missing":
            del tensors[name]
        case "unknown":
            tensors[rng.choice(["x", "", "../x"])] = torch.zeros(3)
        case "not finite":
            if not tensor.is_floating_point():
                return "an integer"
            tensors[name] = torch.full_like(tensor, rng.choice([float("nan"), float("inf")]))
        case "cut":
            tensors[name] = tensor.reshape(-1)[: tensor.numel() // 2].clone()
    save_file(tensors, file)
    return how


REFUSED = ("shape", "missing", "unknown", "not finite", "cut")
"""Forgeries of the weights of a run that no command may use."""


def case(home: Path, rng: random.Random, number: int) -> Told:
    """Forge one file, sign its checkpoint, and run a command that reads it."""
    runs = ["runs/base", "runs/half", "runs/half", "runs/tuned", "runs/shared", "runs/imported"]
    target = rng.choice([*runs, "published", "tokens"])
    files = [path for path in sorted((home / target).rglob("*")) if path.suffix in (*JSON, ".safetensors", ".yaml")]
    files = [path for path in files if not path.parent.name.startswith(TEMPORARY_PREFIX)]  # of a save that was killed
    # the steps of a run are alike: the same file in all of them
    name = rng.choice(sorted({path.name for path in files}))
    told = []
    seed = rng.random()
    for file in (path for path in files if path.name == name):
        same = random.Random(seed)
        told.append(_forge(file, same))
        if (file.parent / "MANIFEST.json").exists() and name != "MANIFEST.json":
            sign(file.parent)
    reader: Reader = rng.choice([reader for reader in TARGETS[target] if not reader.shows or rng.random() < 0.2])
    outcome, problems = reader.judge(home, checked=name == "recipe.yaml")
    loads = not reader.shows and reader.words[0] != "tokenize"
    forged_weights = name.startswith("model") and name.endswith(".safetensors") and told[0] in REFUSED
    if target.startswith("runs/") and forged_weights and loads and outcome.code == 0:
        problems.append(f"{reader.name}: took weights with {told[0]}")
    how = f"{target}: {name}: {told[0]}"
    return [name, f"code {outcome.code}"], [f"{how}: {problem}" for problem in problems]


def _forge(file: Path, rng: random.Random) -> str:
    if file.suffix == ".safetensors":
        return forge_tensors(file, rng)
    if file.suffix == ".yaml":
        if rng.random() < 0.6:
            content = file.read_text()
            old, new = rng.choice([edit for edit in EDITS if edit[0] in content])
            file.write_text(content.replace(old, new))
            return f"{new} instead of {old}"
        lines = file.read_text().splitlines()
        others = ["x: y", "  n_layers: 1e9", "model: null", "- 1", "\t{", "&a [*a]"]
        lines[rng.randrange(len(lines))] = rng.choice(others)
        file.write_text("\n".join(lines))
        return "a line"
    lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    at = rng.randrange(len(lines))
    content = json.loads(lines[at])
    if rng.random() < 0.1:
        content, how = rng.choice(VALUES), "another root"
    else:
        is_sealed = isinstance(content, dict) and "checksum" in content
        how = forge_json(content, rng)
        if is_sealed and "checksum" in content and "NaN" not in json.dumps(content):
            del content["checksum"]
            content = json.loads(encode_with_checksum(content))
    lines[at] = json.dumps(content, indent=None if file.suffix == ".jsonl" else 1)
    file.write_text("\n".join(lines) + "\n")
    return how
