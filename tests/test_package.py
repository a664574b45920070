"""What is built is complete: the wheel runs where there is no checkout."""

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import lmtool

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def run_installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs `python ARGS` from an empty folder, with the wheel unpacked and the checkout out of reach."""
    folder = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    (folder / "elsewhere").mkdir()
    # -S leaves out the .pth file by which an editable install would let the checkout in.
    path = os.pathsep.join([str(folder / "site"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])

    def run(*args: str) -> str:
        command = [sys.executable, "-S", *args]
        own = {"LMTOOL_RUNS": "runs", "LMTOOL_CACHE": str(folder / "cache")}
        env = {**os.environ, "PYTHONPATH": path, **own}
        done = subprocess.run(command, cwd=folder / "elsewhere", env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_the_wheel_holds_package_recipes_and_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = [path for name in ("*.py", "*.c", "*.h", "*.yaml", "templates/*") for path in (ROOT / "lmtool").rglob(name)]
    shipped = {
        f"lmtool/_bundled/{path.relative_to(ROOT)}"
        for folder in ("recipes", "data")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and ROOT / "data" / "make" not in path.parents
    }
    metadata = {name for name in names if ".dist-info/" in name}
    assert names - metadata == shipped | {str(path.relative_to(ROOT)) for path in ours}
    assert any(name.endswith("/licenses/LICENSE") for name in metadata)


def test_the_installed_wheel_finds_its_recipes(run_installed: Callable[..., str]) -> None:
    assert str(ROOT) not in run_installed("-c", "import lmtool; print(lmtool.__file__)")
    listed = run_installed("-m", "lmtool", "recipes", "ls", "--json").splitlines()
    assert {json.loads(line)["name"] for line in listed} == {path.stem for path in (ROOT / "recipes").glob("*.yaml")}
    assert run_installed("-m", "lmtool", "recipes", "show", "tiny") == (ROOT / "recipes" / "tiny.yaml").read_text()


def test_the_installed_wheel_finds_its_texts(run_installed: Callable[..., str]) -> None:
    program = "from lmtool.data.files import find_files; print(*find_files('data/stories.txt'))"
    assert run_installed("-c", program).strip().endswith("/site/lmtool/_bundled/data/stories.txt")


NEW_USER = """
import re, sys
from importlib.machinery import PathFinder
from pathlib import Path


def watched(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request"):
        raise RuntimeError(f"a connection: {event} {arguments}")
    is_program = event in ("subprocess.Popen", "os.exec", "os.posix_spawn")
    # the C compiler, and what `platform` of Python asks
    if is_program and arguments[0] != sys.executable and Path(arguments[0]).name not in ("uname", "cc", "gcc", "clang"):
        raise RuntimeError(f"a program: {arguments}")


sys.addaudithook(watched)
extras = {"datasets", "pyarrow", "pandas", "transformers", "uvicorn", "starlette", "tensorboard", "peft"}
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name in extras else find(name, *more)
from lmtool.cli import main


def run(*words):
    sys.argv = ["lmtool", *words]
    try:
        main()
    except SystemExit as end:
        return end.code or 0


small = "model.n_layers=1 model.d_model=16 model.n_heads=2 training.precision=float32"
few = "training.steps=2 evaluation.every=2 evaluation.tokens=300 evaluation.baseline=false checkpoint.every=2"
small, few = ([word for one in settings.split() for word in ("-s", one)] for settings in (small, few))
assert run("pretrain") == run("finetune") == 2
for command in (
    ["pretrain", "data/stories.valid.txt", "-r", "llama-tiny", *small, *few],
    ["generate", "One rainy morning in April,", "--max-new-tokens", "8"],
    ["eval", "last", "data/stories.valid.txt", "--stride", "256"],
    ["report", "last", "-o", "page.html"],
    ["attention", "last", "One rainy morning", "-o", "attention.html"],
    ["export", "last", "exported"],
    ["export", "last", "exported.gguf"],
    ["finetune", "data/reviews.test.csv", "-r", "dan", *few, "-s", "evaluation.epochs=null"],
    ["predict", "last", "data/reviews.test.csv", "-o", "answers.csv"],
    ["eval", "last", "data/reviews.test.csv"],
    ["tokenize", "data/stories.valid.txt", "--vocab-size", "400", "-o", "tokens"],
    ["recipes", "draw", "tiny"],
    ["runs", "ls"],
):
    assert run(*command) == 0, command
pages = [Path("page.html"), Path("attention.html"), *Path("runs").glob("*/report.html")]
assert len(pages) == 4
for page in pages:
    assert not re.search("(src|href)=.?https?:", page.read_text("utf-8")), page
assert len(Path("answers.csv").read_text("utf-8").splitlines()) == 1001
Path("a.parquet").touch()
assert run("pretrain", "a.parquet") == run("serve", "last") == 5
"""


def test_a_new_user_has_all_of_it_in_an_empty_folder(run_installed: Callable[..., str]) -> None:
    """From nothing but the wheel, without extras and connections: text to text, a table to answers."""
    run_installed("-W", "ignore", "-c", NEW_USER)


def test_the_wheel_asks_for_what_pyproject_names(wheel: Path) -> None:
    metadata = next(name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA"))
    written = zipfile.ZipFile(wheel).read(metadata).decode()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {line.removeprefix("Requires-Dist: ") for line in written.splitlines() if line.startswith("Requires-Dist:")}
    named = {line.replace("_", "-") for line in project["dependencies"]}
    assert {line for line in asked if ";" not in line} == named
    assert f"Version: {project['version']}" in written
    assert project["version"] == lmtool.__version__
