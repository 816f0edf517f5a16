# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The users of a site in Kubernetes: namespaces with quotas, homes and datasets, and what pods with these may not do.

It has no document: its objects are those of the module kubernetes_objects.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import (
    GIDS,
    HOMES_LABEL,
    RESOURCE,
    UID_LABEL,
    USER_LABEL,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import limits
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan, built_in
from ansible_collections.baremetal.gpu.plugins.plugin_utils.people.kubernetes import (
    CLUSTER_ROLE,
    NAME,
    access,
    namespace_of,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import wrong

Row = dict[str, Any]

# Of the objects in a user's namespace.
OURS = "baremetal-gpu"
# The claim of a user's home.
HOME = "home"
GPUS, CLAIMED_GPUS = f"requests.{RESOURCE}", "gpu.deviceclass.resource.k8s.io/devices"
# Slurm's resources -> those of a quota.
QUOTAS = {"gres/gpu": (GPUS, CLAIMED_GPUS), "cpu": ("requests.cpu",), "mem": ("requests.memory",)}
# What would be at the cost of others: ports of all nodes, addresses of the site, and room in etcd.
SHARED = {
    "services.loadbalancers": "0",
    "services.nodeports": "0",
    "count/configmaps": "200",
    "count/secrets": "200",
}
NO_PODS = {"pods": "0", GPUS: "0", CLAIMED_GPUS: "0"}
# The size of a volume on a directory of the host means nothing. The home has a quota of its own.
SIZE = "1Gi"
# In which pods of a closed user have to end.
GRACE_S = 30
DATASET = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?", re.ASCII)
PATH = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._@+=-]*)+", re.ASCII)
CAN_READ = [
    ("", ["nodes"]),
    ("resource.k8s.io", ["deviceclasses", "resourceslices"]),
    ("scheduling.k8s.io", ["priorityclasses"]),
    ("storage.k8s.io", ["storageclasses"]),
]


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the first control plane.

    :param params: the variables of the role, and ``lists``, what the filter site_users made of the site's users.
    :param peers: ``namespaces`` as the API has them; ``nodes``, the names of the nodes in the cluster; ``pods``, a line
        for each with namespace, name and the seconds in which it ends, if it does; each empty before it was read.
    :return: Parts: `objects`; `access`, the bindings of those who are closed, which are to go; `nodes`, the nodes with
        the label of those that have the homes; `pods`, which are to end; `is_closing`, whether there are such users.
    """
    params = built_in(params)
    users = params["lists"]["accounts"]
    problems = [Problem(**row) for row in params["lists"]["problems"]]
    problems += [*_names(users), *_datasets(params), *_taken(users, peers["namespaces"])]
    quotas, bad_limits = _quotas(params)
    problems += bad_limits
    if problems:
        return Plan(problems=tuple(problems))
    owners = _owners(peers["namespaces"])
    is_open = {row["name"]: row["state"] == "present" for row in users}
    known = [row for row in users if is_open[row["name"]] or owners.get(namespace_of(row["name"])) == row["name"]]
    closed = {namespace_of(row["name"]) for row in known if not is_open[row["name"]]}
    has_homes = bool(params["home_hosts"])
    claims = [HOME, *(row["name"] for row in params["datasets"])] if has_homes else []
    objects = [_cluster_role(), *_policies(claims)]
    for row in known:
        objects += _of_user(row, params, quotas[row["name"]] if is_open[row["name"]] else NO_PODS)
        objects += _volumes(row["name"], params) if has_homes else []
    return Plan(
        parts={
            "objects": objects if known else [],
            "access": [one for row in known if not is_open[row["name"]] for one in access(row["name"])],
            "nodes": [_node(name, name in params["home_hosts"]) for name in peers["nodes"]] if known else [],
            "pods": [*_to_end(peers["pods"], closed)],
            "is_closing": bool(closed),
        }
    )


# --- what is wrong ---------------------------------------------------------------------------------------------------


def _names(users: Sequence[Row]) -> Iterator[Problem]:
    """What cannot be a namespace, or the one of another user."""
    owners: dict[str, str] = {}
    for row in users:
        name = row["name"]
        if row["state"] == "present" and not NAME.fullmatch(name):
            remedy = "give another name, which ends with a letter or a digit and begins with a letter"
            yield Problem("bad_name", name, f"{name} cannot be a user of Kubernetes", name, remedy)
        other = owners.setdefault(namespace_of(name), name)
        if other != name:
            cause = f"{other} and {name} would both have the namespace {namespace_of(name)}"
            yield Problem("same_namespace", name, cause, name, "give one of them another name")


def _taken(users: Sequence[Row], namespaces: Sequence[Row]) -> Iterator[Problem]:
    """Namespaces that are there for something else, such as kube-system."""
    owners = _owners(namespaces)
    for row in users:
        space = namespace_of(row["name"])
        if row["state"] == "present" and owners.get(space, row["name"]) != row["name"]:
            remedy = (
                f"give the user another name. If the namespace is theirs: "
                f"kubectl label namespace {space} {USER_LABEL}={row['name']} --overwrite"
            )
            whose = f"the user {owners[space]}" if owners[space] else "no user"
            cause = f"the namespace {space}, which {row['name']} would have, is there and belongs to {whose}"
            yield Problem("namespace_taken", row["name"], cause, space, remedy)


def _owners(namespaces: Sequence[Row]) -> dict[str, str]:
    """Namespace -> its user; empty for one of no user."""
    return {one["metadata"]["name"]: (one["metadata"].get("labels") or {}).get(USER_LABEL, "") for one in namespaces}


def _datasets(params: Mapping[str, Any]) -> Iterator[Problem]:
    seen = {HOME}
    for row in params["datasets"]:
        name, path = str(row.get("name")), str(row.get("path"))
        if not DATASET.fullmatch(name) or name in seen:
            cause = f"it has {name!r}, which is the name of no claim, or of another one"
            remedy = "give names of their own, of lower-case letters, digits and -"
            yield wrong("kubernetes_users_datasets", cause, name, remedy)
        if not PATH.fullmatch(path):
            yield wrong("kubernetes_users_datasets", f"{path!r} is not a path", path, "give one such as /datasets")
        seen.add(name)
    if params["home_hosts"] and not PATH.fullmatch(str(params["home_root"])):
        cause = f"{params['home_root']!r} is not a path"
        yield wrong("kubernetes_users_home_root", cause, params["home_root"], "give one such as /home")
    names = {row["name"] for row in params["lists"]["accounts"]}
    unknown = sorted(set(map(str, params["baseline"])) - names)
    if unknown and not params["lists"]["problems"]:
        cause = f"it has {', '.join(unknown)}, and cluster_users does not"
        yield wrong("kubernetes_users_baseline", cause, ", ".join(unknown), "correct the names")


# --- quotas ----------------------------------------------------------------------------------------------------------


def _quotas(params: Mapping[str, Any]) -> tuple[dict[str, dict[str, str]], list[Problem]]:
    """What the pods of each user may have together. Of a user's limits and those of their groups the smaller one, as
    in Slurm; of several groups the largest, since a job chooses one."""
    problems: list[Problem] = []

    def amounts(kind: str, row: Mapping[str, Any]) -> dict[str, int]:
        value = (row.get("limits") or {}).get("GrpTRES", limits.NONE)
        if value in (limits.NONE, ""):
            return {}
        try:
            text = limits.tres(value)
        except ValueError as form:
            cause = f"GrpTRES of the {kind} {row['name']} is {str(value)[:80]!r}"
            problems.append(Problem("bad_limits", row["name"], cause, str(value)[:80], f"give {form}"))
            return {}
        return {name: int(amount) for name, _equals, amount in (part.partition("=") for part in text.split(","))}

    lists = params["lists"]
    of_groups = {row["name"]: amounts("group", row) for row in lists["slurm_accounts"]}
    found = {}
    for row in lists["slurm_users"]:
        own, groups = amounts("user", row), [of_groups.get(name, {}) for name in row.get("accounts") or ()]
        hard = {**SHARED, **{key: str(value) for key, value in params["quota"].items()}}
        for kind, names in QUOTAS.items():
            capped = [max(one[kind] for one in groups)] if groups and all(kind in one for one in groups) else []
            least = min([*capped, *([own[kind]] if kind in own else [])], default=None)
            if least is not None:
                hard.update(dict.fromkeys(names, f"{least}Mi" if kind == "mem" else str(least)))
        found[row["name"]] = hard
    return found, problems


# --- objects ---------------------------------------------------------------------------------------------------------


def _cluster_role() -> Row:
    rules = [{"apiGroups": [group], "resources": kinds, "verbs": ["get", "list", "watch"]} for group, kinds in CAN_READ]
    about = {"name": CLUSTER_ROLE}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": about, "rules": rules}


def _of_user(row: Mapping[str, Any], params: Mapping[str, Any], hard: Mapping[str, str]) -> list[Row]:
    name, space = row["name"], namespace_of(row["name"])
    numbers = {group["name"]: group["gid"] for group in params["lists"]["groups"]}
    # The primary group first.
    gids = dict.fromkeys([row["gid"], *(numbers[group] for group in row["groups"])])
    labels = {USER_LABEL: name, UID_LABEL: str(row["uid"])}
    level = "baseline" if name in params["baseline"] else "restricted"
    labels["pod-security.kubernetes.io/enforce"] = level
    about = {"name": space, "labels": labels, "annotations": {GIDS: ",".join(map(str, gids))}}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": about},
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": OURS, "namespace": space},
            "spec": {"hard": dict(hard)},
        },
        {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": OURS, "namespace": space},
            "spec": {"limits": [{"type": "Container", **params["container"]}]},
        },
    ]


def _volumes(user: str, params: Mapping[str, Any]) -> list[Row]:
    """Directories that the nodes have mounted. A volume is for one claim, in one namespace."""
    # With a slash at the end a look at it mounts a home that is not mounted yet.
    found = _volume(user, HOME, f"{params['home_root'].rstrip('/')}/{user}/", "ReadWriteMany")
    for row in params["datasets"]:
        found += _volume(user, row["name"], f"{row['path']}/", "ReadOnlyMany")
    return found


def _volume(user: str, claim: str, path: str, mode: str) -> list[Row]:
    space = namespace_of(user)
    volume = f"{claim}.{space}"
    common = {"accessModes": [mode], "storageClassName": "", "volumeMode": "Filesystem"}
    has_it = {"key": HOMES_LABEL, "operator": "In", "values": ["true"]}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume, "labels": {USER_LABEL: user}},
            "spec": {
                **common,
                "capacity": {"storage": SIZE},
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": path, "type": "Directory"},
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim, "namespace": space},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [has_it]}]}},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": space},
            "spec": {**common, "volumeName": volume, "resources": {"requests": {"storage": SIZE}}},
        },
    ]


def _node(name: str, has_homes: bool) -> Row:
    labels = {HOMES_LABEL: "true"} if has_homes else {}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def _to_end(pods: Sequence[str], spaces: Collection[str]) -> Iterator[Row]:
    """The pods of these namespaces, without those that end in time."""
    for line in pods:
        space, name, ends_in = line.split("\t")
        if space in spaces and not (ends_in and int(ends_in) <= GRACE_S):
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": space}}


# --- what is refused to pods -----------------------------------------------------------------------------------------


def _policies(claims: Sequence[str]) -> list[Row]:
    """Rules for the namespaces of users, beside Pod Security."""
    own = "namespaceObject.metadata"
    listed = ", ".join(f"'{name}'" for name in claims)
    volumes = "object.spec.?volumes.orValue([])"
    claim = "v.?persistentVolumeClaim.claimName.orValue('')"
    containers = " + ".join(
        f"object.spec.?{kind}.orValue([])" for kind in ("containers", "initContainers", "ephemeralContainers")
    )
    pod = "object.spec.?securityContext"
    variables = {
        "uid": f"int({own}.labels['{UID_LABEL}'])",
        "gids": f"{own}.annotations['{GIDS}'].split(',').map(one, int(one))",
        "has": f"{volumes}.exists(v, {claim} in [{listed}])",
        "containers": f"({containers}).filter(c, has(c.securityContext)).map(c, c.securityContext)",
    }
    files = [
        (
            f"!variables.has || ({pod}.runAsUser.orValue(0) == variables.uid && "
            "variables.containers.all(c, c.?runAsUser.orValue(variables.uid) == variables.uid))",
            "'a pod with a home or datasets runs as its user: set securityContext.runAsUser to ' "
            "+ string(variables.uid)",
        ),
        (
            f"!variables.has || ({pod}.runAsGroup.orValue(0) in variables.gids && "
            "variables.containers.all(c, !has(c.runAsGroup) || c.runAsGroup in variables.gids) && "
            f"{pod}.supplementalGroups.orValue([]).all(g, g in variables.gids) && "
            f"{pod}.fsGroup.orValue(variables.gids[0]) in variables.gids)",
            "'a pod with a home or datasets has the groups of its user: set securityContext.runAsGroup, and further "
            f"ones, to some of ' + {own}.annotations['{GIDS}']",
        ),
        (
            f"!variables.has || {pod}.supplementalGroupsPolicy.orValue('') == 'Strict'",
            "'a pod with a home or datasets has no groups of its image: set securityContext.supplementalGroupsPolicy "
            "to Strict'",
        ),
        (
            f"{volumes}.all(v, !({claim} in [{listed}] && {claim} != '{HOME}') || "
            "v.persistentVolumeClaim.?readOnly.orValue(false))",
            "'datasets are read-only: set readOnly of the volume to true'",
        ),
    ]
    kept = [
        (
            f"!(oldObject.metadata.name in [{listed}]) || "
            f"!request.userInfo.username.startsWith({own}.labels['{USER_LABEL}'] + ':')",
            "'it is the claim of the home or of datasets, and would not be bound again'",
        )
    ]
    services = [
        ("size(object.spec.?externalIPs.orValue([])) == 0", "'a service has no address that belongs to others'"),
    ]
    found = [_policy("services", {"services": ["CREATE", "UPDATE"]}, {}, services)]
    if claims:
        # What is asked of a pod cannot be changed later, but by a further container.
        pods = {"pods": ["CREATE"], "pods/ephemeralcontainers": ["UPDATE"]}
        found.append(_policy("files", pods, variables, files))
        found.append(_policy("claims", {"persistentvolumeclaims": ["DELETE"]}, {}, kept))
    return [one for pair in found for one in pair]


def _policy(
    name: str,
    kinds: Mapping[str, list[str]],
    variables: Mapping[str, str],
    rules: Sequence[tuple[str, str]],
) -> tuple[Row, Row]:
    about = {"name": f"baremetal-gpu-{name}"}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "namespaceSelector": {"matchExpressions": [{"key": USER_LABEL, "operator": "Exists"}]},
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": [kind], "operations": operations}
                for kind, operations in kinds.items()
            ],
        },
        "variables": [{"name": key, "expression": text} for key, text in variables.items()],
        "validations": [{"expression": text, "messageExpression": message} for text, message in rules],
    }
    kind, api = "ValidatingAdmissionPolicy", "admissionregistration.k8s.io/v1"
    return (
        {"apiVersion": api, "kind": kind, "metadata": about, "spec": spec},
        {
            "apiVersion": api,
            "kind": f"{kind}Binding",
            "metadata": dict(about),
            "spec": {"policyName": about["name"], "validationActions": ["Deny"]},
        },
    )
