"""lmtool: pretrain, fine-tune, evaluate and decode language models of every family.

from lmtool import SamplingParams, load

for token in load("last").generate(["Once upon a time"], SamplingParams(temperature=0.8)):
    print(token.text, end="")
"""

import os
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
"""Variables by which a person chooses how the threads of OpenMP wait."""

if not any(name in os.environ for name in _WAITING):
    # spins of libgomp, else milliseconds; read when torch is imported: docs/decisions/kernels.md
    os.environ |= {"GOMP_SPINCOUNT": "3000", "KMP_BLOCKTIME": "1"}

for _name in ("PYTORCH_ENABLE_MPS_FALLBACK", "HF_HUB_DISABLE_TELEMETRY"):
    # operations that Apple's GPUs lack run on the CPU; nothing is counted elsewhere. Read when libraries are imported
    os.environ.setdefault(_name, "1")

_HOMES = {
    "load": "lmtool.api",
    "pretrain": "lmtool.api",
    "finetune": "lmtool.api",
    "TextClassifier": "lmtool.estimators",
    "TextRegressor": "lmtool.estimators",
    "open_index": "lmtool.search.index",
    "SamplingParams": "lmtool.generation.params",
    "MaskPredict": "lmtool.generation.params",
    "TextForm": "lmtool.generation.forms",
}
"""Public names and their modules, which are imported lazily, since importing torch takes seconds."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
