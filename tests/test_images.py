"""The Dockerfile and the workflows, as far as they can be read: nothing is built here."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read_instructions() -> list[list[tuple[str, str]]]:
    """(instruction, its arguments) of the Dockerfile, by stage."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.M)
    stages: list[list[tuple[str, str]]] = []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        name, _, arguments = line.partition(" ")
        if name == "FROM":
            stages.append([])
        if line:
            stages[-1].append((name, arguments))
    return stages


def test_its_python_is_one_that_lmtool_is_for() -> None:
    for (_, image), *_ in read_instructions():
        (version,) = re.findall(r"^python:([\d.]+)-slim", image)
        assert f"Programming Language :: Python :: {version}" in PROJECT["project"]["classifiers"]


def test_it_installs_the_wheel_and_runs_as_another_user_than_root() -> None:
    _, last = read_instructions()
    runs = [arguments for name, arguments in last if name == "RUN"]
    assert sum("/tmp/dist/*.whl" in run for run in runs) == 1
    assert all("--no-cache-dir" in run for run in runs if run.startswith("pip "))
    (user,) = (arguments for name, arguments in last if name == "USER")
    assert int(user) > 0
    assert last[-1] == ("ENTRYPOINT", '["lmtool"]')


def test_what_the_wheel_is_made_from_is_not_ignored() -> None:
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    hatch = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*hatch["only-include"], *PROJECT["project"]["license-files"], PROJECT["project"]["readme"]}
    for path in {*needed, "pyproject.toml", "constraints.txt"}:
        *_, last = (rule for rule in rules if fnmatch(path, rule.removeprefix("!")))
        assert last.startswith("!"), path


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_hash(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"].values()
    used = [step["uses"] for job in jobs for step in job["steps"] if "uses" in step]
    assert used
    assert [name for name in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", name)] == []
    assert len(re.findall(r"uses: \S+ # v\d+(\.\d+)+$", text, flags=re.M)) == len(used)


def test_a_workflow_builds_both_images() -> None:
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "images.yml").read_text())["jobs"].values()
    (build,) = (step["run"] for step in job["steps"] if "docker build" in step.get("run", ""))
    (default,) = re.findall(r"^ARG TORCH_INDEX=(\S+)", (ROOT / "Dockerfile").read_text(), flags=re.M)
    assert "--build-arg TORCH_INDEX=" in build
    assert len({default, *job["strategy"]["matrix"]["torch"]}) == 2
