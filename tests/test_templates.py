"""The templates for clusters in docs/devices.md, held against what their schedulers accept."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
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


def fields(*required: str, **properties: Any) -> dict[str, Any]:
    """The schema of an object that has no other fields."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def listed(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


TEXT, COUNT = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 1}
TEXT_BY_NAME = {"type": "object", "additionalProperties": TEXT}
MOUNT = fields("name", "mountPath", name=TEXT, mountPath=TEXT)
VOLUME = fields("name", name=TEXT, persistentVolumeClaim=fields("claimName", claimName=TEXT))
POD = fields(containers=listed(fields("name", name=TEXT, volumeMounts=listed(MOUNT))), volumes=listed(VOLUME))
JOB = fields("name", name=TEXT, template=fields(spec=fields(template=fields(spec=POD))))
PATCH = fields(
    "manager",
    manager=TEXT,
    trainingRuntimeSpec=fields(template=fields(spec=fields(replicatedJobs=listed(JOB)))),
)
TRAINER = fields(
    image=TEXT,
    numNodes=COUNT,
    numProcPerNode=COUNT,
    command=listed(TEXT),
    env=listed(fields("name", name=TEXT, value=TEXT)),
    resourcesPerNode=fields(limits={"type": "object", "additionalProperties": COUNT}),
)
TRAIN_JOB_SCHEMA = fields(
    *("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "trainer.kubeflow.org/v1alpha1"},
    kind={"const": "TrainJob"},
    metadata=fields("name", name=TEXT),
    spec=fields(
        "runtimeRef",
        runtimeRef=fields("name", name={"const": "torch-distributed"}),
        trainer=TRAINER,
        runtimePatches=listed(PATCH),
    ),
)
"""The fields that the template has, from manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml of kubeflow/trainer at
8c0f5059."""

TASK_SCHEMA = fields(
    name=TEXT,
    workdir=TEXT,
    num_nodes=COUNT,
    resources=fields(accelerators={"type": "string", "pattern": r"^[A-Z0-9-]+:[0-9]+$"}, use_spot={"type": "boolean"}),
    volumes=TEXT_BY_NAME,
    envs={**TEXT_BY_NAME, "propertyNames": {"pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}},
    setup=TEXT,
    run=TEXT,
)
"""The same from `get_task_schema` and `get_resources_schema` of skypilot 0.14.1, in sky/utils/schemas.py."""

SKYPILOT_VARIABLES = {
    *("SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_GPUS_PER_NODE", "SKYPILOT_NUM_NODES"),
    "SKYPILOT_TASK_ID",
}
"""From https://docs.skypilot.co/en/latest/running-jobs/environment-variables.html."""


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
    jsonschema.validate(TRAIN_JOB, TRAIN_JOB_SCHEMA)
    trainer = TRAIN_JOB["spec"]["trainer"]
    check_command(trainer["command"])
    assert trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == trainer["numProcPerNode"]
    (patch,) = TRAIN_JOB["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    mounts = [mount for container in pod["containers"] for mount in container["volumeMounts"]]
    assert {mount["name"] for mount in mounts} == {volume["name"] for volume in pod["volumes"]}


def test_the_skypilot_task_fits_its_schema() -> None:
    jsonschema.validate(SKYPILOT, TASK_SCHEMA)
    check_syntax(SKYPILOT["run"])
    assert set(re.findall(r"\bSKYPILOT_\w+", SKYPILOT["run"])) <= SKYPILOT_VARIABLES


@pytest.mark.parametrize(("template", "schema"), [(TRAIN_JOB, TRAIN_JOB_SCHEMA), (SKYPILOT, TASK_SCHEMA)])
def test_a_field_that_nobody_knows_is_refused(template: Any, schema: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(template | {"nodes": 2}, schema)
