# SPDX-License-Identifier: GPL-3.0-or-later
"""Kubernetes and what runs with it, built from the Go modules of its makers.

The vendors' repositories are out of reach of a lab, and no other has a kubelet. What is built once stays in the lab's
cache, in a directory for each module and version; a build that was cut goes on with the next program. It takes Go, and
about half an hour on two cores for a first version of Kubernetes.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.machines.state import CACHE_ROOT
from tests.lab.machines.system import LabError, environment, locked, run, say

CACHE = CACHE_ROOT / "kubernetes"

# Two minor versions, the later to upgrade to, each with etcd of the minor version that its kubeadm asks for. They are
# among those that the proxy of Go's modules has, and so is all below.
ETCD = {"1.36.3": "3.6.16", "1.37.2": "3.7.3"}
# From 1.36 on a kubelet refuses an older one than 2.0.
CONTAINERD = "2.4.2"
CNI = "1.9.1"
# That of 1.36 is not among them; both minor versions have the same interface to container runtimes.
CRI_TOOLS = "1.37.0"
# Newer than kubeadm of either version asks for, with the same plugins.
COREDNS = "1.14.7"

KUBERNETES = (
    *("kubeadm", "kubelet", "kubectl"),
    *("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"),
)
PLUGINS = {
    "bridge": "main",
    "host-local": "ipam",
    "loopback": "main",
    "ptp": "main",
    "portmap": "meta",
    "firewall": "meta",
}


@dataclass(frozen=True)
class Module:
    """A module of Go.

    :ivar programs: their packages, by the names of the programs.
    :ivar stamps: what the linker writes into variables.
    """

    name: str
    path: str
    version: str
    programs: dict[str, str]
    stamps: dict[str, str] = field(default_factory=dict)


def modules(version: str) -> list[Module]:
    """What is built for a version of Kubernetes."""
    if version not in ETCD:
        raise LabError(f"Kubernetes {version} is not among those that are built for tests: {', '.join(ETCD)}")
    containerd, plugins = "github.com/containerd/containerd/v2", "github.com/containernetworking/plugins"
    tools = "sigs.k8s.io/cri-tools"
    return [
        _kubernetes(version),
        *(
            Module("etcd", f"go.etcd.io/etcd/{part}/v3", ETCD[version], {name: ""})
            for name, part in {"etcd": "server", "etcdctl": "etcdctl", "etcdutl": "etcdutl"}.items()
        ),
        Module(
            "containerd",
            containerd,
            CONTAINERD,
            {name: f"/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
            {f"{containerd}/version.Version": f"v{CONTAINERD}"},
        ),
        Module(
            "cni-plugins",
            plugins,
            CNI,
            {name: f"/plugins/{kind}/{name}" for name, kind in PLUGINS.items()},
            {f"{plugins}/pkg/utils/buildversion.BuildVersion": f"v{CNI}"},
        ),
        Module(
            "cri-tools",
            tools,
            CRI_TOOLS,
            {"crictl": "/cmd/crictl"},
            {f"{tools}/pkg/version.Version": f"v{CRI_TOOLS}"},
        ),
        Module("coredns", "github.com/coredns/coredns", COREDNS, {"coredns": ""}),
    ]


def _kubernetes(version: str) -> Module:
    major, minor, _patch = version.split(".")
    values = {
        "gitVersion": f"v{version}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitCommit": "0" * 40,
        "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z",
    }
    return Module(
        "kubernetes",
        "k8s.io/kubernetes",
        version,
        {name: f"/cmd/{name}" for name in KUBERNETES},
        {
            f"k8s.io/{package}.{name}": value
            for package in ("component-base/version", "client-go/pkg/version")
            for name, value in values.items()
        },
    )


def build(version: str, cache: Path = CACHE) -> dict[str, Path]:
    """All programs for a version of Kubernetes, by name; what the cache lacks is built now.

    The environment of `go` is the caller's, so GOPROXY and GOFLAGS are what they are for any other build.
    """
    wanted = modules(version)
    with locked(cache / "lock", "another build of Kubernetes"):
        owners = {name: module for module in wanted for name in module.programs}
        places = {name: cache / f"{module.name}-{module.version}" / name for name, module in owners.items()}
        gaps = [name for name, place in places.items() if not place.exists()]
        if gaps and shutil.which("go") is None:
            raise LabError("Kubernetes is built with Go, and there is no go on PATH: install Go 1.26.6 or newer")
        for number, name in enumerate(gaps, 1):
            what = f"{name} {owners[name].version}"
            say(f"kubernetes: building {what}, {number} of {len(gaps)}")
            started = time.monotonic()
            _build(owners[name], name, places[name])
            say(f"kubernetes: built {what} in {(time.monotonic() - started) / 60:.1f} minutes")
    return places


def _build(module: Module, name: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{name}.part")
    env = environment(CGO_ENABLED="0")
    stamps = " ".join(f"-X {variable}={value}" for variable, value in module.stamps.items())
    with tempfile.TemporaryDirectory() as work:
        go = ("go", "-C", work)
        try:
            told = json.loads(run(*go, "list", "-m", "-json", f"{module.path}@v{module.version}", env=env).stdout)
            Path(work, "go.mod").write_text(_requirement(module, told["GoVersion"], Path(told["GoMod"]).read_text()))
            options = ("-mod=mod", "-trimpath", "-ldflags", f"-s -w {stamps}", "-o", part)
            run(*go, "build", *options, f"{module.path}{module.programs[name]}", env=env)
        except LabError as error:
            raise LabError(
                f"{name} {module.version} was not built: {error}\n"
                "If a module could not be fetched, name a proxy that this host reaches in GOPROXY; what is built stays"
            ) from error
    part.replace(target)


def _requirement(module: Module, go: str, origin: str) -> str:
    """A module that requires another one. What replaces modules there does not count here, so Kubernetes' own parts,
    which it has as directories and requires at no version, get theirs."""
    parts = re.findall(r"^\s*(?:require )?(\S+) v0\.0\.0(?=\s)", origin, re.MULTILINE)
    version = f"v0.{module.version.split('.', 1)[1]}"
    return f"module lab\n\ngo {go}\n\nrequire {module.path} v{module.version}\n\n" + "".join(
        f"replace {part} => {part} {version}\n" for part in dict.fromkeys(parts)
    )
