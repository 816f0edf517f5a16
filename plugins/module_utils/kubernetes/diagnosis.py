# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a node takes no pods and why a pod waits, in plain words and with what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import known_texts
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.host.known_texts import Known
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import maintenance

# Conditions of a node that are bad where they are True.
PRESSURES = {
    "MemoryPressure": ("its memory is full", "see `free -m` and `ps --sort=-rss -eo rss,args` there"),
    "DiskPressure": (
        "its disk is full, so kubelet evicts pods and removes images",
        "see `df -h /var/lib/kubelet /var/lib/containerd` there and make room",
    ),
    "PIDPressure": ("it has nearly no process number left", "see `ps -eo user,args` there for what starts so many"),
    "NetworkUnavailable": (
        "it has no route for the network of pods",
        "run `gpuops up --tags kubernetes`, then see `ip route` there",
    ),
}
# The daemon of a node renews the condition of its GPUs at least every five minutes.
SILENT_S = 900.0
DAEMON = "`systemctl status baremetal-gpu-kubernetes` and `sudo journalctl -u baremetal-gpu-kubernetes`"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
# Of problems of pods with the same code; the others are counted.
PODS_SHOWN = 10


# Problems for an operator. What keeps a user's pod waiting is none.
DEGRADING = (
    *("cni_missing", "kubelet_silent", "engine_slow", "engine_down", "shutting_down", "not_ready"),
    *("cordoned", "maintenance", "fenced"),
    *("pressure", "gpus_not_registered", "gpus_not_watched", "gpus_not_judged", "system_pod"),
)


# By who has closed a node: code, cause and remedy.
CORDONED = {
    maintenance.OPERATOR: ("maintenance", "gpuops drain took it out", "once it is well, `gpuops restore {node}`"),
    maintenance.RECONCILER: (
        "fenced",
        "the reconciler closed it",
        "see `sudo gpuops-reconciler status` on its host for the remedy; once it is repaired, "
        "`sudo gpuops-reconciler clear {node}` there",
    ),
    maintenance.OTHER: (
        "cordoned",
        "it was closed (cordoned), and not by gpuops",
        "ask who did it; once it is well, `kubectl uncordon {node}`",
    ),
}


# Why a node is not Ready, by the message of that condition; the first that is in it counts.
NOT_READY = (
    Known(
        "cni",
        "cni_missing",
        "it has no network for pods: the container engine finds no configuration of CNI",
        "run `gpuops up --tags kubernetes`; then /etc/cni/net.d there has a file, and /opt/cni/bin the programs",
    ),
    Known(
        "kubelet stopped posting",
        "kubelet_silent",
        "its kubelet does not report any more",
        "see `systemctl status kubelet` and `sudo journalctl -u kubelet` there, and whether it reaches the API server; "
        "`gpuops doctor {node}` examines the host",
    ),
    Known(
        "pleg is not healthy",
        "engine_slow",
        "its container engine answers too slowly",
        "see `sudo journalctl -u containerd` and the load there; then `sudo systemctl restart containerd`",
    ),
    Known(
        "runtime",
        "engine_down",
        "its container engine does not answer kubelet",
        "see `systemctl status containerd` there, then `sudo systemctl restart containerd`",
    ),
    Known("shutting down", "shutting_down", "it is shutting down", "wait until it has booted"),
)

# Why the scheduler finds no node, by its message: the cause, and what is to be done where that does not change by
# itself. The first that is in it counts: a volume that is not there keeps a pod from every node.
WAITS = (
    Known(
        "unbound immediate persistentvolumeclaims",
        "volume",
        "a volume that it asks for is not there",
        "`kubectl -n {namespace} describe pvc` says why it is not bound",
    ),
    Known(
        "persistentvolumeclaim",
        "volume",
        "a volume that it asks for is not there",
        "compare the names in `kubectl -n {namespace} get pvc` with those that the pod has",
    ),
    Known(
        "volume node affinity conflict",
        "volume",
        "no free node has its volume",
        "`kubectl get pv -o yaml` says on which nodes it is (nodeAffinity)",
    ),
    Known("insufficient nvidia.com/gpu", "", "no node has enough free GPUs", ""),
    Known("cannot allocate all claims", "", "no node has enough free GPUs that its claims can have", ""),
    Known("insufficient cpu", "", "no node has enough free CPUs", ""),
    Known("insufficient memory", "", "no node has enough free memory", ""),
    Known("too many pods", "", "no node can have more pods", ""),
    Known("resourceclaim", "", "its claim is not made yet", ""),
    Known("were unschedulable", "", "nodes that it could have are closed (cordoned)", ""),
    Known("not ready", "", "nodes that it could have are not ready", ""),
    Known(
        "node affinity/selector",
        "no_such_node",
        "no node has the labels that it asks for",
        "compare its nodeSelector and affinity with `kubectl get nodes --show-labels`",
    ),
    Known(
        "untolerated taint",
        "taints",
        "every node that it could have has a taint that it does not tolerate",
        "`kubectl describe nodes` lists them; take one away with `kubectl taint nodes NODE KEY-`, or give the pod a "
        "toleration",
    ),
)
GATED = "SchedulingGated"
_DESCRIBE = "`kubectl -n {namespace} describe pod {pod}` says why"
# Why a container does not start, by the reason that it waits for.
STARTS = {
    "ImagePullBackOff": (
        "image",
        "its image cannot be fetched",
        "see that the registry has the image and answers (`gpuops status`); " + _DESCRIBE,
    ),
    "InvalidImageName": ("image", "the name of its image is not valid", "correct the name in the pod's specification"),
    "ErrImageNeverPull": (
        "image",
        "its image is not on the node and may not be fetched",
        "load it there, or give imagePullPolicy: IfNotPresent",
    ),
    "CreateContainerConfigError": (
        "configuration",
        "a ConfigMap or Secret that it names is not there",
        _DESCRIBE,
    ),
    "CreateContainerError": ("not_created", "the container engine cannot make its container", _DESCRIBE),
    "RunContainerError": ("not_created", "the container engine cannot start its container", _DESCRIBE),
}
STARTS["ErrImagePull"] = STARTS["ImagePullBackOff"]


def node_problems(node: Mapping[str, Any], now: float) -> list[Problem]:
    """What is wrong with a node (see `cluster.node_row`)."""
    name, told = node["name"], node["reason"]
    found = []
    if not node["in_service"]:
        known = known_texts.first(NOT_READY, told)
        if known is None:
            see = f"see `kubectl describe node {name}`, and `sudo journalctl -u kubelet` there"
            return [Problem("not_ready", name, "it is not ready for pods", f"{node['state']}: {told}", see)]
        # Nothing else that it has told is of now.
        return [Problem(known.code, name, known.cause, f"{node['state']}: {told}", known.remedy.format(node=name))]
    for owner, why in node["cordoned_by"].items():
        code, cause, remedy = CORDONED[owner]
        cause = f"{cause}: {why}" if why else cause
        found.append(Problem(code, name, cause, node["state"], remedy.format(node=name)))
    for kind in node["pressures"]:
        cause, remedy = PRESSURES[kind]
        found.append(Problem("pressure", name, cause, kind, remedy))
    return found + _gpu_problems(node, now)


def _gpu_problems(node: Mapping[str, Any], now: float) -> list[Problem]:
    name, health, at = node["name"], node["gpu_health"], node["gpu_health_at"]
    if not node["is_gpu_node"]:
        return []
    if not node["gpus"]:
        cause = "it has GPUs, and Kubernetes knows none of them: nothing has registered them with kubelet"
        evidence = "no nvidia.com/gpu and no ResourceSlice"
        remedy = f"run `gpuops up --tags kubernetes`, then see {DAEMON} there"
        return [Problem("gpus_not_registered", name, cause, evidence, remedy)]
    if health is not None and at is not None and now - at > SILENT_S:
        cause = "the program that gives its GPUs to pods does not report, so a fault would not be known"
        return [Problem("gpus_not_watched", name, cause, f"for {int(now - at) // 60} minutes", f"see {DAEMON} there")]
    if health is not None and health["status"] == "Unknown":
        remedy = "see `systemctl status baremetal-gpu-agent` there"
        return [Problem("gpus_not_judged", name, "the health of its GPUs is not known", health["message"], remedy)]
    return []


def waits_for(reason: str, message: str) -> str:
    """Why a pod has no node, in plain words; what the scheduler says where there are none for it."""
    if reason == GATED:
        return "something else has to let it start first (schedulingGates)"
    known = known_texts.first(WAITS, message)
    return known.cause if known else message or "the scheduler has not considered it yet"


def pod_problems(
    pod: Mapping[str, Any], message: str, hindrance: tuple[str, str], most_gpus: int, is_system: bool
) -> list[Problem]:
    """Why a pod (see `cluster.job_row`) does not start by itself. A user's program that ends is none.

    :param message: what the scheduler says of it.
    :param hindrance: why a container of it does not start, as reason and message.
    :param most_gpus: how many GPUs the largest node has.
    """
    name, namespace, told = (
        pod["id"],
        pod["partition"],
        {"namespace": pod["partition"], "pod": pod["id"].split("/")[-1]},
    )
    reason, detail = hindrance
    if not pod["waits"]:
        if is_system and reason == "CrashLoopBackOff":
            see = f"see `kubectl -n {namespace} logs {told['pod']} --previous`"
            return [Problem("system_pod", name, "a program of the cluster itself ends again and again", detail, see)]
        if reason not in STARTS:
            return []
        code, cause, remedy = STARTS[reason]
        return [Problem(code, name, cause, detail or reason, remedy.format(**told))]
    if pod["gpus"] > most_gpus:
        cause = f"it asks for {pod['gpus']} GPUs, and no node has more than {most_gpus}"
        return [Problem("too_many_gpus", name, cause, message, "ask for fewer in each pod, and for more pods")]
    known = known_texts.first(WAITS, message)
    if known is None or not known.code:
        return []
    return [Problem(known.code, name, known.cause, message, known.remedy.format(**told))]


def shortened(problems: Iterable[Problem]) -> list[Problem]:
    """Those of nodes, and the first of each kind of pods'; a line counts what is left out."""
    found: list[Problem] = []
    counts: dict[str, int] = {}
    for one in problems:
        counts[one.code] = counts.get(one.code, 0) + ("/" in one.subject)
        if counts[one.code] <= PODS_SHOWN:
            found.append(one)
    more = {code: count - PODS_SHOWN for code, count in counts.items() if count > PODS_SHOWN}
    see = "`kubectl get pods --all-namespaces` lists them"
    return found + [
        Problem(code, "pods", f"{count} more pods have the problem {code}", "", see) for code, count in more.items()
    ]


# What kubectl says where it is refused, in lower case.
NO_ANSWER = (
    Known(
        "certificate has expired|certificate is expired",
        "certificates_ended",
        "a certificate of the cluster has ended",
        "run `sudo systemctl start baremetal-gpu-kubernetes-renew` on the control planes, and see "
        "`sudo kubeadm certs check-expiration` there",
    ),
    Known(
        "kubectl: no such file",
        "not_installed",
        "kubectl is not installed there",
        "run `gpuops up --tags kubernetes`",
    ),
    Known(
        "admin.conf",
        "no_control_plane",
        "the host is not a control plane yet: it has no /etc/kubernetes/admin.conf",
        "run `gpuops up --tags kubernetes`",
    ),
    Known(
        "refused|no route|eof|reset",
        "no_answer",
        "the API server does not run",
        "see `sudo crictl ps -a` and `sudo journalctl -u kubelet` on the control plane",
    ),
    Known(
        "etcdserver|etcd",
        "no_etcd",
        "etcd does not answer the API server",
        "see `sudo crictl logs $(sudo crictl ps -a --name etcd -q | head -1)` and `df -h /var/lib/etcd` there",
    ),
    Known(
        "unauthorized|forbidden|unknown authority",
        "not_trusted",
        "the API server does not accept /etc/kubernetes/admin.conf",
        "make it anew with `sudo kubeadm init phase kubeconfig admin` on the control plane",
    ),
)


_NO_ANSWER = Known(
    "",
    "no_answer",
    "the API server does not answer",
    "see `sudo crictl ps -a` and `sudo journalctl -u kubelet` on the control plane, and its port 6443",
)


def no_answer(evidence: str) -> Problem:
    """Why the API server was not asked, by what kubectl said."""
    return known_texts.problem("Kubernetes", NO_ANSWER, evidence, _NO_ANSWER)
