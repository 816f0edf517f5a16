# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every host of a Kubernetes cluster has: the vendor's packages, the kernel's settings and those of kubelet."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.one_scheduler import two_schedulers
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import bracketed, wrong

ROLE = "kubernetes_common"
REPOSITORIES = "https://pkgs.k8s.io/core:/stable:"
# kubelet of these minor versions and containerd from 2.0 on are what the roles were run with.
OLDEST = (1, 34)
PACKAGES = ("kubelet", "kubeadm", "kubectl")
TOOLS = ("cri-tools", "kubernetes-cni")
MODULES = ("overlay", "br_netfilter")
MODULES_FILE = "/etc/modules-load.d/baremetal-gpu-kubernetes.conf"
SYSCTLS_FILE = "/etc/sysctl.d/90-baremetal-gpu-kubernetes.conf"
# Pods are behind bridges, and a pod reaches a service of its own host only if iptables and nft see that traffic.
SYSCTLS = ("net.ipv4.ip_forward", "net.bridge.bridge-nf-call-iptables")
DROP_IN = "/etc/systemd/system/kubelet.service.d/20-baremetal-gpu.conf"
CONFIG_DIRECTORY = "/etc/kubernetes/kubelet.conf.d"
CONFIG = f"{CONFIG_DIRECTORY}/10-baremetal-gpu.conf"
PORT = 6443
_VERSION = re.compile(r"1\.([0-9]{1,3})\.[0-9]{1,3}", re.ASCII)
_PROGRAM_VERSION = re.compile(r"v?([0-9]{1,5})\.([0-9]{1,5})\.[0-9]{1,5}", re.ASCII)


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param params: the variables of the role; ``engine``, the container engine of the host; ``has``, what `kubelet
        --version` and `containerd --version` print, the texts of /proc/swaps and /proc/filesystems, each empty where it
        was not read, and whether there is /proc/sys/net/bridge.
    :param peers: ``host``, its name, and ``groups``, those it is in; ``control_planes``, the hosts of that group, and
        ``address``, that of the first of them; ``upgrades``, whether the host may get another version.
    :return: Parts: `server`, host:port of the API server; `kubelet`, the settings of kubelet; `kubeadm`, the document
        of a host that has kubeadm of the version; `is_other`, whether the host has another version of kubelet.
    """
    server = params["endpoint"] or f"{bracketed(peers['address'])}:{PORT}"
    has = _PROGRAM_VERSION.search(params["has"]["kubelet"])
    parts = {
        "server": server,
        "kubelet": _kubelet(params),
        "kubeadm": doc.Document(repositories=[_repository(params)], packages=[_package(params, "kubeadm")]).plain,
        "is_other": has is not None and has[0].lstrip("v") != params["version"],
    }
    problems = tuple(_problems(params, peers))
    return Plan(doc.Document() if problems else _document(params), problems, parts)


def _kubelet(params: Mapping[str, Any]) -> dict[str, Any]:
    of_gpus = {"topologyManagerPolicy": "best-effort", "cpuManagerPolicy": "static"} if params["has_gpus"] else {}
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        # At a shutdown pods end first, those that the node needs last.
        "shutdownGracePeriod": "60s",
        "shutdownGracePeriodCriticalPods": "20s",
        # What the host's own daemons keep.
        "systemReserved": {"cpu": "500m", "memory": "1Gi"},
        "seccompDefault": True,
        **of_gpus,
        **params["kubelet"],
    }


def _document(params: Mapping[str, Any]) -> doc.Document:
    config = json.dumps(_kubelet(params), indent=2, sort_keys=True)
    sysctls = "".join(f"{name} = 1\n" for name in SYSCTLS)
    return doc.Document(
        repositories=[_repository(params)],
        packages=[
            *(_package(params, name) for name in PACKAGES),
            *(doc.Package(name, hold=True) for name in TOOLS),
        ],
        kernel_modules=[doc.KernelModule(name) for name in MODULES if not _is_loaded(name, params["has"])],
        files=[
            doc.File(MODULES_FILE, "".join(f"{name}\n" for name in MODULES)),
            doc.File(SYSCTLS_FILE, sysctls),
            doc.Directory("/etc/kubernetes"),
            doc.Directory(CONFIG_DIRECTORY),
            doc.File(CONFIG, f"{config}\n"),
            doc.Directory("/etc/systemd/system/kubelet.service.d"),
            doc.File(DROP_IN, render(ROLE, "kubelet.conf.j2", directory=CONFIG_DIRECTORY)),
        ],
        units=[
            doc.Unit("systemd-sysctl.service", restart_on=[SYSCTLS_FILE]),
            # It starts with the host's membership, and restarts until then.
            doc.Unit("kubelet.service", enabled=True, restart_on=[CONFIG, DROP_IN, "kubelet"]),
        ],
    )


def _is_loaded(module: str, has: Mapping[str, Any]) -> bool:
    """By what it brings, since it may be part of the kernel."""
    return bool(has["bridge"]) if module == "br_netfilter" else f"\t{module}\n" in has["filesystems"]


def _package(params: Mapping[str, Any], name: str) -> doc.Package:
    return doc.Package(name, version=f"{params['version']}-*", hold=True)


def _repository(params: Mapping[str, Any]) -> doc.Repository:
    key = None
    if params["repo_key_sha256"]:
        source = "path" if params["repo_key_path"] else "url"
        key = {source: params[f"repo_key_{source}"], "sha256": params["repo_key_sha256"]}
    minor = params["version"].rpartition(".")[0]
    return doc.Repository(
        "kubernetes",
        uris=[params["repo_url"] or f"{REPOSITORIES}/v{minor}/deb/"],
        suites=["/"],
        key=key,
        options=params["repo_options"] or None,
    )


def _problems(params: Mapping[str, Any], peers: Mapping[str, Any]) -> Iterator[Problem]:
    yield from two_schedulers(peers["host"], peers["groups"])
    if not peers["control_planes"]:
        yield Problem(
            "no_control_plane",
            "kubernetes_control_planes",
            "the group kubernetes_control_planes has no host",
            remedy="add the host that is to run the API server to it",
        )
    elif len(peers["control_planes"]) > 1 and not params["endpoint"]:
        listed = ", ".join(peers["control_planes"])
        cause = f"there are several control planes ({listed}), and no address leads to all of them"
        remedy = "give host:port of a load balancer or of an address that they share"
        yield wrong("kubernetes_common_endpoint", cause, "", remedy)
    if peers["control_planes"] and len(peers["control_planes"]) % 2 == 0:
        count = len(peers["control_planes"])
        yield Problem(
            "even_control_planes",
            "kubernetes_control_planes",
            f"the group kubernetes_control_planes has {count} hosts, and etcd survives the loss of a host only with an "
            "odd number of 3 or more",
            str(count),
            "use 1, 3 or 5 hosts",
        )
    version = _VERSION.fullmatch(str(params["version"]))
    if not version or int(version[1]) < OLDEST[1]:
        oldest = ".".join(map(str, OLDEST))
        cause = f"it is not a version of Kubernetes from {oldest} on"
        yield wrong("kubernetes_common_version", cause, params["version"], f"give one such as {oldest}.0")
    has_key = params["repo_key_sha256"] and (params["repo_key_url"] or params["repo_key_path"])
    if not has_key and not params["repo_options"]:
        yield wrong(
            "kubernetes_common_repo_key_sha256",
            "the key of the repository of Kubernetes cannot be checked",
            params["repo_key_sha256"],
            "set it to what sha256sum prints for the repository's Release.key, once you have compared the key with the "
            "fingerprint of its owner, and one of kubernetes_common_repo_key_url and kubernetes_common_repo_key_path",
        )
    if params["engine"] != "containerd":
        cause = "kubelet runs containers with containerd alone"
        yield wrong("container_runtime_engine", cause, params["engine"], "set it to containerd for the host")
    yield from _address_problems(params)
    yield from _host_problems(params)
    if version:
        yield from _version_problems(params, peers["upgrades"])


def _address_problems(params: Mapping[str, Any]) -> Iterator[Problem]:
    try:
        ipaddress.ip_address(params["address"])
    except ValueError:
        cause = "it is not an IP address, by which the other hosts reach this one"
        yield wrong("kubernetes_common_address", cause, params["address"], "give one such as 10.0.0.11")
    networks = {}
    for name in ("pod_subnet", "service_subnet"):
        try:
            networks[name] = ipaddress.ip_network(params[name])
        except ValueError:
            cause = "it is not a network"
            yield wrong(f"kubernetes_common_{name}", cause, params[name], "give one such as 10.244.0.0/16")
    if len(networks) == 2 and networks["pod_subnet"].overlaps(networks["service_subnet"]):
        yield wrong(
            "kubernetes_common_pod_subnet",
            f"it overlaps with kubernetes_common_service_subnet, {params['service_subnet']}",
            params["pod_subnet"],
            "give two networks that no host of the site has an address in",
        )
    for name, network in networks.items():
        # A host's address in it would be taken for a pod's.
        if params["address"] and _is_in(params["address"], network):
            cause = f"the address of the host, {params['address']}, is in it"
            yield wrong(f"kubernetes_common_{name}", cause, params[name], "give a network that no host is in")


def _is_in(address: str, network: Any) -> bool:
    try:
        return ipaddress.ip_address(address) in network
    except ValueError:
        return False


def _version_problems(params: Mapping[str, Any], upgrades: bool) -> Iterator[Problem]:
    """What keeps the host from getting the version."""
    found = _PROGRAM_VERSION.search(params["has"]["kubelet"])
    if not found:
        return
    wanted = tuple(map(int, params["version"].split(".")))
    has = tuple(map(int, found[0].lstrip("v").split(".")))
    if has == wanted or (upgrades and has < wanted and wanted[1] - has[1] <= 1):
        return
    cause = f"the host has kubelet {found[0]}, and kubernetes_common_version is {params['version']}"
    if upgrades:
        cause += ". A cluster goes forward, and by one minor version at a time"
        remedy = f"set kubernetes_common_version to a newer one of 1.{has[1]} or 1.{has[1] + 1}"
    else:
        cause += ". The control planes get another version first, and then one node after the other"
        remedy = "run the playbook baremetal.gpu.kubernetes_upgrade, or set kubernetes_common_version back"
    yield Problem("other_version", "kubelet", cause, found[0], remedy)


def _host_problems(params: Mapping[str, Any]) -> Iterator[Problem]:
    """What the host has that does not go with the settings."""
    has = params["has"]
    swaps = [line.split()[0] for line in has["swaps"].splitlines()[1:] if line.strip()]
    if swaps and params["kubelet"].get("failSwapOn") is not False:
        yield Problem(
            "swap_on",
            "swap",
            f"swap is on ({', '.join(swaps)}), and kubelet does not start with it: memory limits of pods would not "
            "hold",
            ", ".join(swaps),
            "run 'swapoff -a' and remove it from /etc/fstab, or set failSwapOn: false in kubernetes_common_kubelet",
        )
    containerd = _PROGRAM_VERSION.search(has["containerd"])
    if containerd and int(containerd[1]) < 2:
        yield Problem(
            "old_containerd",
            "containerd",
            f"the host has containerd {containerd[0].lstrip('v')}, and kubelet needs 2.0 or newer",
            containerd[0],
            "name a repository with containerd.io in container_runtime_docker_repo_url",
        )
