"""The templates for clusters in docs/devices.md, held against what their schedulers accept."""

import re
import shlex
import subprocess
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


TRAIN_JOB_KEYS = {
    *("apiVersion", "kind", "metadata", "name", "spec", "runtimeRef", "trainer", "image", "numNodes", "numProcPerNode"),
    *("command", "env", "value", "resourcesPerNode", "limits", "nvidia.com/gpu", "runtimePatches", "manager"),
    *("trainingRuntimeSpec", "template", "replicatedJobs", "containers", "volumeMounts", "mountPath", "volumes"),
    *("persistentVolumeClaim", "claimName"),
}
"""The fields that the template has, from manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml of kubeflow/trainer at
8c0f5059."""

TASK_KEYS = {"name", "workdir", "num_nodes", "resources", "volumes", "envs", "setup", "run"}
"""The same from `get_task_schema` of skypilot 0.14.1, in sky/utils/schemas.py."""

SKYPILOT_VARIABLES = {
    *("SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_GPUS_PER_NODE", "SKYPILOT_NUM_NODES"),
    "SKYPILOT_TASK_ID",
}
"""From https://docs.skypilot.co/en/latest/running-jobs/environment-variables.html."""


def keys_in(value: Any) -> set[str]:
    """The keys of objects in objects and lists."""
    if isinstance(value, list):
        return set().union(*map(keys_in, value))
    return set(value).union(*map(keys_in, value.values())) if isinstance(value, dict) else set()


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


def test_the_train_job_has_fields_that_there_are() -> None:
    assert (TRAIN_JOB["apiVersion"], TRAIN_JOB["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert keys_in(TRAIN_JOB) <= TRAIN_JOB_KEYS
    trainer = TRAIN_JOB["spec"]["trainer"]
    check_command(trainer["command"])
    assert trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == trainer["numProcPerNode"]
    (patch,) = TRAIN_JOB["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    mounts = [mount for container in pod["containers"] for mount in container["volumeMounts"]]
    assert {mount["name"] for mount in mounts} == {volume["name"] for volume in pod["volumes"]}


def test_the_skypilot_task_has_fields_that_there_are() -> None:
    assert SKYPILOT.keys() <= TASK_KEYS
    assert re.fullmatch(r"[A-Z0-9-]+:[0-9]+", SKYPILOT["resources"]["accelerators"])
    check_syntax(SKYPILOT["run"])
    assert set(re.findall(r"\bSKYPILOT_\w+", SKYPILOT["run"])) <= SKYPILOT_VARIABLES
