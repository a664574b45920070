"""Nothing is asked of the network unless a person names it: which modules could, and no others."""

import ast
import os
import subprocess
import sys
from pathlib import Path

from tests.support.sources import imports

ROOT = Path(__file__).parents[1]
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


def test_few_modules_can_open_a_connection() -> None:
    reaching: dict[str, set[str]] = {}
    for path in sorted((ROOT / "lmtool").rglob("*.py")):
        inside = path.relative_to(ROOT / "lmtool").as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {name.split(".")[0] for _, name, _ in imports(path.relative_to(ROOT), tree)}
        if names & REACHING:
            reaching[inside] = names & REACHING
    assert reaching == ALLOWED


def test_the_libraries_of_the_hub_count_nothing() -> None:
    program = "import lmtool, huggingface_hub.constants as known; print(known.HF_HUB_DISABLE_TELEMETRY)"
    env = {name: value for name, value in os.environ.items() if name != "HF_HUB_DISABLE_TELEMETRY"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
