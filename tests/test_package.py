"""What is built is complete: the wheel runs where there is no checkout."""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def run_installed(wheel, tmp_path_factory):
    """Runs `python ARGS` from an empty folder, with the wheel unpacked and the checkout out of reach."""
    folder = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    (folder / "elsewhere").mkdir()
    # -S leaves out the .pth file by which an editable install would let the checkout in.
    path = os.pathsep.join([str(folder / "site"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])

    def run(*args):
        command = [sys.executable, "-S", *args]
        env = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, cwd=folder / "elsewhere", env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_the_wheel_holds_package_recipes_and_data(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "lmtool").rglob("*.py")}
    templates = {str(path.relative_to(ROOT)) for path in (ROOT / "lmtool").glob("*/templates/*")}
    shipped = {
        f"lmtool/_bundled/{path.relative_to(ROOT)}"
        for folder in ("recipes", "data")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    metadata = {name for name in names if ".dist-info/" in name}
    assert names - metadata == modules | templates | shipped
    assert any(name.endswith("/licenses/LICENSE") for name in metadata)


def test_the_installed_wheel_finds_its_recipes(run_installed):
    assert str(ROOT) not in run_installed("-c", "import lmtool; print(lmtool.__file__)")
    listed = run_installed("-m", "lmtool", "recipes", "ls", "--json").splitlines()
    assert {json.loads(line)["name"] for line in listed} == {path.stem for path in (ROOT / "recipes").glob("*.yaml")}
    assert run_installed("-m", "lmtool", "recipes", "show", "tiny") == (ROOT / "recipes" / "tiny.yaml").read_text()


def test_the_installed_wheel_finds_its_texts(run_installed):
    program = "from lmtool.data.files import find_files; print(*find_files('data/stories.txt'))"
    assert run_installed("-c", program).strip().endswith("/site/lmtool/_bundled/data/stories.txt")
