"""lmtool: pretrain, fine-tune, evaluate and decode language models of every family.

from lmtool import SamplingParams, load

for token in load("last").generate(["Once upon a time"], SamplingParams(temperature=0.8)):
    print(token.text, end="")
"""

import os
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# unless the user chooses how the threads of OpenMP wait; read when torch is imported
if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY"}:
    # spins of libgomp, milliseconds of the others: docs/decisions/kernels.md
    os.environ |= {"GOMP_SPINCOUNT": "3000", "KMP_BLOCKTIME": "1"}

# operations that Apple's GPUs lack run on the CPU; libraries report no usage. Read when the libraries are imported
os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

_MODULES_BY_NAME = {
    "load": "lmtool.api",
    "pretrain": "lmtool.api",
    "finetune": "lmtool.api",
    "TextClassifier": "lmtool.estimators",
    "TextRegressor": "lmtool.estimators",
    "open_index": "lmtool.apps.search.index",
    "SamplingParams": "lmtool.generation.params",
    "MaskPredict": "lmtool.generation.params",
    "TextForm": "lmtool.generation.forms",
}
"""Public names and their modules, which are imported on first use, because importing torch takes seconds."""


def __getattr__(name: str) -> Any:
    if name in _MODULES_BY_NAME:
        return getattr(import_module(_MODULES_BY_NAME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES_BY_NAME])
