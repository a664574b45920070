"""The templates for clusters in docs/devices.md, held against what their schedulers accept."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.support.docs import check_command

PAGE = (Path(__file__).parents[1] / "docs" / "devices.md").read_text(encoding="utf-8")
(SLURM,) = re.findall(r"^```\n(#!/bin/bash\n.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
TRAIN_JOB, SKYPILOT = map(yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL))

SBATCH_OPTIONS = {
    *("account", "array", "chdir", "constraint", "cpus-per-gpu", "cpus-per-task", "dependency", "error", "exclude"),
    *("exclusive", "export", "gpus", "gpus-per-node", "gpus-per-task", "gres", "job-name", "mail-type", "mem"),
    *("mem-per-cpu", "mem-per-gpu", "no-requeue", "nodelist", "nodes", "ntasks", "ntasks-per-node", "open-mode"),
    *("output", "partition", "qos", "requeue", "reservation", "signal", "time"),
}
"""From https://slurm.schedmd.com/sbatch.html, those that jobs like these have."""


_JOB = "spec.runtimePatches.trainingRuntimeSpec.template.spec.replicatedJobs"
_POD = f"{_JOB}.template.spec.template.spec"
TRAIN_JOB_FIELDS = {
    *("apiVersion", "kind", "metadata.name", "spec.runtimeRef.name", "spec.runtimePatches.manager", f"{_JOB}.name"),
    *(f"spec.trainer.{name}" for name in ("image", "command", "env.name", "env.value")),
    *(f"{_POD}.containers.{name}" for name in ("name", "volumeMounts.name", "volumeMounts.mountPath")),
    *(f"{_POD}.volumes.{name}" for name in ("name", "persistentVolumeClaim.claimName")),
}
TRAIN_JOB_COUNTS = {
    f"spec.trainer.{name}" for name in ("numNodes", "numProcPerNode", "resourcesPerNode.limits.nvidia.com/gpu")
}
"""From manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml of kubeflow/trainer at 8c0f5059."""

TASK_FIELDS = {
    *("name", "workdir", "resources.accelerators", "resources.use_spot", "volumes./shared", "envs.LMTOOL_CACHE"),
    *("setup", "run"),
}
"""From `get_task_schema` and `get_resources_schema` of skypilot 0.14.1, in sky/utils/schemas.py, beside num_nodes."""

SKYPILOT_VARIABLES = {
    *("SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_GPUS_PER_NODE", "SKYPILOT_NUM_NODES"),
    "SKYPILOT_TASK_ID",
}
"""From https://docs.skypilot.co/en/latest/running-jobs/environment-variables.html."""


def leaves(value: Any, *path: str) -> Iterator[tuple[str, bool]]:
    """The names of all fields, those of the objects that they are in first, and whether each is a count."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, *path, name)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, *path)
    else:
        yield ".".join(path), type(value) is int and value > 0


def check_syntax(script: str) -> None:
    """Has bash parse a script, and lmtool the command that torchrun starts in it."""
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (command,) = re.findall(r"torchrun .*", script.replace("\\\n", ""))
    check_command(shlex.split(command))


def test_options_of_the_slurm_script_are_those_of_sbatch() -> None:
    check_syntax(SLURM)
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", SLURM, flags=re.MULTILINE))
    assert len(options) == SLURM.count("#SBATCH")
    assert options.keys() <= SBATCH_OPTIONS
    assert all(options[name].isdecimal() for name in ("nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task"))
    assert f"--nproc-per-node {options['gpus-per-node']} " in SLURM


def test_the_train_job_fits_its_schema() -> None:
    assert {*leaves(TRAIN_JOB)} == {(name, name in TRAIN_JOB_COUNTS) for name in TRAIN_JOB_FIELDS | TRAIN_JOB_COUNTS}
    assert TRAIN_JOB["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
    trainer = TRAIN_JOB["spec"]["trainer"]
    check_command(trainer["command"])
    assert trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == trainer["numProcPerNode"]
    (patch,) = TRAIN_JOB["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    mounts = [mount for container in pod["containers"] for mount in container["volumeMounts"]]
    assert {mount["name"] for mount in mounts} == {volume["name"] for volume in pod["volumes"]}


def test_the_skypilot_task_fits_its_schema() -> None:
    assert {*leaves(SKYPILOT)} == {("num_nodes", True), *((name, False) for name in TASK_FIELDS)}
    assert re.fullmatch(r"[A-Z0-9-]+:[0-9]+", SKYPILOT["resources"]["accelerators"])
    check_syntax(SKYPILOT["run"])
    assert set(re.findall(r"\bSKYPILOT_\w+", SKYPILOT["run"])) <= SKYPILOT_VARIABLES
