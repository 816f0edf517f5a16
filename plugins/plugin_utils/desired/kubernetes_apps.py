# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ready-made Jobs of Kubernetes: a smoke job on every product, a notebook, the points of a sweep, and a training.

Each is a Job in the namespace of its user, with the rights and numbers that the role kubernetes_users has given. The
name ends with a hash of the content, as a Job cannot be changed.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import (
    GIDS,
    RESOURCE,
    UID_LABEL,
    USER_LABEL,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.kubernetes_users import HOME
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.marathon_apps import QUERY
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan, built_in
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.slurm_apps import (
    COUNTS,
    PROGRAMS,
    PYTHON,
    arguments_of,
    check_counts,
    label,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.marathon_apps import (
    IMAGE,
    SWEEP_NAME,
    Draft,
    parameters_of,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.people.kubernetes import namespace_of

Row = dict[str, Any]

# Of what this role has made: the name without the hash.
APP = "baremetal-gpu/app"
# On a Job and its pods: the whole name.
JOB = "baremetal-gpu/job"
# How often an index is begun anew. A pod of a lost node never ends, so only a Job without a podFailurePolicy replaces
# it, and all that ends a pod counts: a lost node, a drain, a failure.
ATTEMPTS, FEW_ATTEMPTS = 10, 3
LOST_NODE_S = 60
GRACE_S = 120
PORT = 8888
# A ConfigMap has room for so many.
POINTS_AT_MOST = 2000
NUMBERS = (
    *("gpus", "cpus", "mem", "minutes", "parallel", "timeout", "nodes", "epochs", "batch", "micro_batch"),
    *("checkpoint_steps", "checkpoints_kept", "seed"),
)
POINT = """. /program/point-$JOB_COMPLETION_INDEX.sh
mkdir -p "$POINT" && cd "$POINT" || exit 1
read -r content job status 2>/dev/null <result
case "$content $job $status" in
"$JOB_CONTENT "*" 0") exit 0 ;;
"$JOB_CONTENT $JOB "*) AGAIN ;;
esac
(
COMMAND
) </dev/null >>output.log 2>&1
status=$?
echo "$JOB_CONTENT $JOB $status" >result
test "$status" = 0 || tail -n 20 output.log
exit "$status"
"""


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The objects of one kind of jobs.

    :param params: beside the variables ``kind`` (smoke, notebook, sweep or training).
    :param peers: ``host``; ``namespace``, that of the user as the API has it, and ``volumes``, ``nodes`` and ``jobs``.
    :return: Parts: `objects`; `stale`, what is to go before; `jobs`, with name, `wait` (ended or started) and
        `timeout`; `namespace`.
    """
    params = built_in(params)
    prefix = f"{params['kind']}_"
    own = {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}
    own.update({name: int(own[name]) for name in NUMBERS if name in own})
    draft = Draft({"host": peers["host"], **own}, params["kind"], "kubernetes_apps")
    user, image = str(params["user"]), str(params["image"])
    labels = peers["namespace"].get("metadata", {}).get("labels") or {}
    if not user or labels.get(USER_LABEL) != user:
        remedy = "give a user of cluster_users, for whom `gpuops up --tags kubernetes` has made a namespace"
        draft.refuse(f"kubernetes_apps_user is {user!r}, who has no namespace", remedy)
    if not IMAGE.fullmatch(image):
        draft.refuse(f"kubernetes_apps_image is {image!r}", "give the name of an image with the programs")
    draft.limits()
    volumes = {one["spec"]["claimRef"]["name"]: one["spec"]["hostPath"]["path"] for one in peers["volumes"]}
    if HOME not in volumes and params["kind"] != "smoke":
        remedy = "see kubernetes_users_home_hosts: nodes must have the homes mounted"
        draft.refuse(f"the namespace of {user} has no claim of the home", remedy)
    if draft.problems:
        return Plan(problems=tuple(draft.problems))
    site = _Site(peers, volumes)
    made = KINDS[params["kind"]](draft, params, site)
    if draft.problems:
        return Plan(problems=tuple(draft.problems))
    objects = [one for row in made for one in row["objects"]]
    stale = [one for row in made for one in _stale(row, peers["jobs"], params["state"], site.namespace)]
    if params["state"] == "absent":
        return Plan(parts={"objects": [], "stale": stale, "jobs": [], "namespace": site.namespace})
    jobs = [{key: row[key] for key in ("name", "wait", "timeout")} for row in made]
    return Plan(parts={"objects": objects, "stale": stale, "jobs": jobs, "namespace": site.namespace})


class _Site:
    """What there is for a user."""

    def __init__(self, peers: Mapping[str, Any], volumes: Mapping[str, str]) -> None:
        about = peers["namespace"]["metadata"]
        self.user, self.namespace = about["labels"][USER_LABEL], namespace_of(about["labels"][USER_LABEL])
        self.uid = int(about["labels"][UID_LABEL])
        self.gids = [int(one) for one in about["annotations"][GIDS].split(",")]
        self.volumes = {name: path.rstrip("/") for name, path in volumes.items()}
        self.home = self.volumes.get(HOME, "")
        nodes = [one["metadata"].get("labels") or {} for one in peers["nodes"]]
        # Product -> how many each node has of it.
        self.products: dict[str, list[int]] = {}
        for one in nodes:
            if one.get("nvidia.com/gpu.present") == "true":
                count = str(one.get("nvidia.com/gpu.count", "0"))
                self.products.setdefault(str(one.get("nvidia.com/gpu.product", "")), []).append(
                    int(count) if count.isdecimal() else 0
                )
        capacities = [(one.get("status") or {}).get("capacity") or {} for one in peers["nodes"]]
        self.has_plugin = any(RESOURCE in one for one in capacities)

    def fits(self, draft: Draft, product: str, nodes: int = 1) -> None:
        """Refuses what no node could ever give."""
        if not draft.params["gpus"]:
            return
        if product and product not in self.products:
            known = ", ".join(sorted(filter(None, self.products))) or "none"
            draft.refuse(f"no node has GPUs of the product {product!r}", f"choose among {known}")
            return
        counts = self.products[product] if product else [one for row in self.products.values() for one in row]
        if sum(count >= draft.params["gpus"] for count in counts) < nodes:
            draft.refuse(
                f"{draft.name('gpus')} is {draft.params['gpus']}, and fewer than {nodes} nodes have that many"
                + (f" of the product {product}" if product else ""),
                "ask for less",
            )


def _stale(row: Row, jobs: Sequence[Row], state: str, namespace: str) -> list[Row]:
    """Jobs of the same name that have another content or are to run again, with what belongs to them."""
    found = []
    for job in jobs:
        name = job["metadata"]["name"]
        if (job["metadata"].get("labels") or {}).get(APP) != row["app"]:
            continue
        ended = {one["type"] for one in (job.get("status") or {}).get("conditions") or () if one["status"] == "True"}
        again = "Failed" in ended or row["again"] == "always" or (row["again"] == "ended" and "Complete" in ended)
        if state == "absent" or name != row["name"]:
            found += [_object(api, kind, name, namespace) for api, kind in PARTS]
        elif again:
            found.append(_object("batch/v1", "Job", name, namespace))
    return found


PARTS = (("batch/v1", "Job"), ("v1", "ConfigMap"), ("resource.k8s.io/v1", "ResourceClaimTemplate"))


def _object(api: str, kind: str, name: str, namespace: str, **more: Any) -> Row:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": namespace}, **more}


def _job(
    draft: Draft,
    params: Mapping[str, Any],
    site: _Site,
    app: str,
    script: str,
    *,
    files: Mapping[str, str],
    product: str = "",
    spec: Mapping[str, Any],
    wait: str = "ended",
    again: str = "",
    timeout: int = 0,
    environment: Mapping[str, str] | None = None,
    grace_s: int = 30,
) -> Row:
    """A Job, and what its pods need beside it."""
    given = draft.params
    resources: Row = {"cpu": str(given["cpus"]), "memory": f"{given['mem']}Mi"}
    with_gpus = {**resources, **({RESOURCE: str(given["gpus"])} if given["gpus"] and site.has_plugin else {})}
    mounts: list[Row] = [{"name": "program", "mountPath": "/program"}, {"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[Row] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    for claim, path in sorted(site.volumes.items()) if params["kind"] != "smoke" else ():
        read_only: Row = {} if claim == HOME else {"readOnly": True}
        volumes.append({"name": claim, "persistentVolumeClaim": {"claimName": claim, **read_only}})
        mounts.append({"name": claim, "mountPath": path, **read_only})
    variables = {**({"HOME": site.home} if site.home and params["kind"] != "smoke" else {}), **(environment or {})}
    container = {
        "name": "main",
        "image": params["image"],
        "command": ["/bin/sh", "-c", script],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        # As much as it requests, so that kubelet gives it CPUs of its own.
        "resources": {"requests": resources, "limits": with_gpus},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": mounts,
    }
    pod: Row = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_s,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": site.uid,
            "runAsGroup": site.gids[0],
            "supplementalGroups": site.gids,
            "supplementalGroupsPolicy": "Strict",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # Pods of a lost node are begun elsewhere after that time.
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{what}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": LOST_NODE_S,
            }
            for what in ("not-ready", "unreachable")
        ],
        "containers": [container],
        "volumes": volumes,
        **({"nodeSelector": {"nvidia.com/gpu.product": product}} if product else {}),
    }
    claims = given["gpus"] and not site.has_plugin
    content = json.dumps([pod, files, spec, given["gpus"]], sort_keys=True)
    digest = sha256(content.encode()).hexdigest()[:8]
    name = f"{app[:50].rstrip('-')}-{digest}"
    container["env"] += [
        {"name": "JOB_CONTENT", "value": digest},
        {
            "name": "JOB",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}},
        },
    ]
    volumes.append({"name": "program", "configMap": {"name": name}})
    objects = [_object("v1", "ConfigMap", name, site.namespace, data=dict(files))]
    if claims:
        request = {"name": "gpus", "exactly": {"deviceClassName": "gpu", "count": given["gpus"]}}
        claim_spec = {"spec": {"devices": {"requests": [request]}}}
        objects.append(_object("resource.k8s.io/v1", "ResourceClaimTemplate", name, site.namespace, spec=claim_spec))
        pod["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": name}]
        container["resources"]["claims"] = [{"name": "gpus"}]
    minutes = {"activeDeadlineSeconds": given["minutes"] * 60} if given["minutes"] else {}
    labels = {JOB: name}
    template = {"metadata": {"labels": labels}, "spec": pod}
    job = _object("batch/v1", "Job", name, site.namespace, spec={**spec, **minutes, "template": template})
    job["metadata"]["labels"] = {APP: app, **labels}
    return {
        "name": name,
        "app": app,
        "objects": [*objects, job],
        "wait": wait,
        "again": again,
        "timeout": timeout or int(params["timeout"]),
    }


def _directory(app: str) -> str:
    return f'umask 077\nmkdir -p "$HOME/gpuops-jobs/{app}" && cd "$HOME/gpuops-jobs/{app}" || exit 1\n'


def _programs() -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(PROGRAMS.glob("*.py"))}


def smoke(draft: Draft, params: Mapping[str, Any], site: _Site) -> list[Row]:
    """One job for each product of GPU: it queries its GPUs, and ends as the query does."""
    if draft.params["gpus"] < 1:
        draft.refuse(f"{draft.name('gpus')} is {draft.params['gpus']}", "give at least 1")
    products = [str(one) for one in draft.params["products"]] or sorted(site.products)
    if not products:
        draft.refuse(
            "no node has GPUs", "see `gpuops status`, and what `gpuops up --tags kubernetes` says of the hosts"
        )
    for product in products:
        site.fits(draft, product)
    devices = ",".join(map(str, range(draft.params["gpus"])))
    return [
        _job(
            draft,
            params,
            site,
            "-".join(filter(None, ["smoke", re.sub("[^a-z0-9]+", "-", product.lower()).strip("-")])),
            f"exec python3 -I /program/query.py --copy-mib 16 --devices {devices}",
            files={"query.py": QUERY.read_text(encoding="utf-8")},
            product=product,
            spec={"backoffLimit": 0},
            again="always",
        )
        for product in products
        if not draft.problems
    ]


def notebook(draft: Draft, params: Mapping[str, Any], site: _Site) -> list[Row]:
    """A job that serves a notebook until its time is over. It listens on the pod's own loopback, to which only those
    come who may forward ports in the namespace."""
    draft.needs("program", "the command that serves the notebook")
    site.fits(draft, draft.params["product"])
    return [
        _job(
            draft,
            params,
            site,
            "notebook",
            f'cd "$HOME" || exit 1\nexec {str(draft.params["program"]).strip()}\n',
            files={},
            product=draft.params["product"],
            spec={"backoffLimit": FEW_ATTEMPTS},
            wait="started",
            again="ended",
        )
    ]


def sweep(draft: Draft, params: Mapping[str, Any], site: _Site) -> list[Row]:
    """An Indexed Job with an index for each point of the grid."""
    given = draft.params
    draft.must("name", SWEEP_NAME, "lowercase letters, digits and -")
    draft.needs("command", "what is run for each point")
    parameters = parameters_of(draft)
    site.fits(draft, given["product"])
    if draft.problems:
        return []
    points = [dict(zip(parameters, row, strict=True)) for row in itertools.product(*parameters.values())]
    if len(points) > POINTS_AT_MOST:
        remedy = f"divide it into sweeps of {POINTS_AT_MOST} at most"
        draft.refuse(f"{draft.name('parameters')} has {len(points)} combinations", remedy)
        return []
    is_resumable = bool(boolean(given["resumable"]))
    files = {
        f"point-{number}.sh": "".join(
            f"export {name}={shlex.quote(value)}\n" for name, value in {"POINT": label(point), **point}.items()
        )
        for number, point in enumerate(points)
    }
    files |= _programs() if is_resumable else {}
    # What has failed by itself in this Job does not run a second time, unless it goes on where it was.
    script = POINT.replace("AGAIN", ":" if is_resumable else 'exit "$status"')
    app = f"sweep-{given['name']}"
    return [
        _job(
            draft,
            params,
            site,
            app,
            _directory(app) + script.replace("COMMAND", str(given["command"]).rstrip()),
            files=files,
            product=given["product"],
            spec={
                "completionMode": "Indexed",
                "completions": len(points),
                "parallelism": min(given["parallel"] or len(points), len(points)),
                "backoffLimitPerIndex": ATTEMPTS if is_resumable else FEW_ATTEMPTS,
            },
            environment={**given["env"], "TRAINING": "/program"},
            timeout=given["timeout"],
            grace_s=GRACE_S if is_resumable else 30,
        )
    ]


def training(draft: Draft, params: Mapping[str, Any], site: _Site) -> list[Row]:
    """An Indexed Job with a pod for each node and a process for each GPU, that continues at its last checkpoint."""
    given = draft.params
    draft.must("name", SWEEP_NAME, "lowercase letters, digits and -")
    draft.must("python", PYTHON, "the path of a Python")
    check_counts(draft, ("nodes", *COUNTS))
    site.fits(draft, given["product"], given["nodes"])
    if draft.problems:
        return []
    app, processes = f"training-{given['name']}", max(1, given["gpus"])
    command = [given["python"], "/program/pods.py", given["nodes"], processes, given["python"], "/program/train.py"]
    command += arguments_of(given)
    return [
        _job(
            draft,
            params,
            site,
            app,
            f"{_directory(app)}exec {' '.join(shlex.quote(str(word)) for word in command)}\n",
            files=_programs(),
            product=given["product"],
            spec={
                "completionMode": "Indexed",
                "completions": given["nodes"],
                "parallelism": given["nodes"],
                "backoffLimitPerIndex": ATTEMPTS,
                "maxFailedIndexes": 0,
            },
            environment={
                # The network of the pod has one interface beside the loopback.
                "GLOO_SOCKET_IFNAME": "eth0",
                "NCCL_SOCKET_IFNAME": "eth0",
                "SLURM_CPUS_PER_TASK": str(max(1, int(given["cpus"]) // processes)),
            },
            timeout=given["timeout"],
            grace_s=GRACE_S,
        )
    ]


KINDS = {"smoke": smoke, "notebook": notebook, "sweep": sweep, "training": training}
