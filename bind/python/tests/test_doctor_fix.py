"""Validates the manifests that `fordway doctor --fix kubernetes` writes for every recorded kind of node. The
schemas are published by Kubernetes and by the scheduler plug-ins.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

FORDWAY = os.environ.get("FORDWAY_BIN") or shutil.which("fordway")
NODES = Path(__file__).parents[3] / "lab/machine/tests/fixtures"
KINDS = sorted(node.name for node in NODES.iterdir())
SCHEDULER_PLUGINS = "sigs.k8s.io/scheduler-plugins@v0.31.8"
POD_GROUP = "config/crd/bases/scheduling.x-k8s.io_podgroups.yaml"
LABEL = "scheduling.x-k8s.io/pod-group"


def manifests(kind: str, nodes: int = 3) -> dict[str, Any]:
    if not FORDWAY:
        pytest.skip("FORDWAY_BIN is not set, and no fordway is in PATH")
    command = [FORDWAY, "doctor", "--root", NODES / kind, "--fix", "kubernetes", "--nodes", str(nodes)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def close(schema: object) -> None:
    """Forbids fields that are not in the schema, as the API server's strict mode does."""
    parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else []
    for part in parts:
        close(part)
    if isinstance(schema, dict) and "properties" in schema:
        schema.setdefault("additionalProperties", False)


@pytest.fixture(scope="module")
def pod_group_schema() -> dict[str, Any]:
    go = shutil.which("go")
    if not go:
        pytest.skip("there is no go to bring the definition of PodGroups with")
    command = [go, "mod", "download", "-json", SCHEDULER_PLUGINS]
    told = subprocess.run(command, capture_output=True, text=True, cwd="/")
    # With an old version of Go, the command succeeds but does not print JSON.
    if told.returncode != 0 or not told.stdout.startswith("{"):
        pytest.skip(f"go does not bring {SCHEDULER_PLUGINS}: {told.stdout or told.stderr}")
    definition = yaml.safe_load((Path(json.loads(told.stdout)["Dir"]) / POD_GROUP).read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    close(schema)
    # The definition omits the metadata fields that every object has, because the API server checks them.
    schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    return schema


@pytest.mark.parametrize("kind", KINDS)
def test_the_job_is_one_for_kubernetes(kind: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    job = manifests(kind)["Job"]
    validator.validate(job, validator.latest_version(), strict=True)
    job["spec"]["template"]["spec"]["containers"][0]["resources"]["limit"] = {}
    with pytest.raises(validator.ValidationError, match="limit"):
        validator.validate(job, validator.latest_version(), strict=True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_pod_group_is_one_for_the_scheduler(kind: str, pod_group_schema: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    group = manifests(kind)["PodGroup"]
    jsonschema.validate(group, pod_group_schema)
    for name, value in [("minMembers", 3), ("minMember", 0)]:
        wrong = group | {"spec": group["spec"] | {name: value}}
        with pytest.raises(jsonschema.ValidationError, match=r"minMembers|minimum"):
            jsonschema.validate(wrong, pod_group_schema)


@pytest.mark.parametrize("kind", KINDS)
def test_all_pods_start_together_and_own_what_they_ask_for(kind: str) -> None:
    found = manifests(kind, nodes=3)
    group, job = found["PodGroup"], found["Job"]["spec"]
    pod = job["template"]
    assert pod["metadata"]["labels"][LABEL] == group["metadata"]["name"]
    assert group["spec"]["minMember"] == job["parallelism"] == job["completions"] == 3
    resources = pod["spec"]["containers"][0]["resources"]
    # The QoS class is Guaranteed, and the number of processors is an integer, so the static CPU manager
    # assigns the processors exclusively.
    assert resources["requests"] == resources["limits"]
    assert isinstance(resources["limits"]["cpu"], int)
    assert group["spec"]["minResources"]["cpu"] == 3 * resources["limits"]["cpu"]
