# SPDX-License-Identifier: GPL-3.0-or-later
"""Kubernetes as its vendors publish it: packages, and the images that kubeadm asks for.

The programs are real (kubernetes_build.py). Names, relations, places and units are those of pkgs.k8s.io from 1.32 on
and of Docker's containerd.io, with two differences: containerd.io has no runc of its own and depends on Debian's, and
images have only the program, and kube-proxy's the iptables and nftables of Debian 13. As there, the package of kubelet
starts nothing, and that of containerd.io comes with the interface for kubelet off.
"""

from __future__ import annotations

import json
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpuops.image.registry import Registry
from tests.lab.machines import mirrors
from tests.lab.machines.system import run
from tests.repositories import oci
from tests.repositories.apt import Key, Package, build_repository
from tests.repositories.kubernetes_build import CACHE, CNI, CONTAINERD, CRI_TOOLS, PLUGINS, build

Programs = Mapping[str, Path]

UNITS = "/usr/lib/systemd/system"
KUBELET = """\
[Unit]
Description=kubelet: The Kubernetes Node Agent
Documentation=https://kubernetes.io/docs/
Wants=network-online.target
After=network-online.target

[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10

[Install]
WantedBy=multi-user.target
"""
KUBEADM = """\
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
--kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
# Written by kubeadm init and kubeadm join.
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
# The operator's.
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""
CONTAINERD_UNIT = """\
[Unit]
Description=containerd container runtime
Documentation=https://containerd.io
After=network.target dbus.service

[Service]
ExecStartPre=-/sbin/modprobe overlay
ExecStart=/usr/bin/containerd
Type=notify
Delegate=yes
KillMode=process
Restart=always
RestartSec=5
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
"""
# Started as debhelper does it.
CONTAINERD_POSTINST = """#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
deb-systemd-helper enable containerd.service >/dev/null
[ ! -d /run/systemd/system ] || { systemctl daemon-reload; deb-systemd-invoke restart containerd.service; }
"""
CONTAINERD_PRERM = """#!/bin/sh
set -e
[ "$1" != remove ] || [ ! -d /run/systemd/system ] || deb-systemd-invoke stop containerd.service
"""


def packages(version: str, programs: Programs) -> list[Package]:
    """What the vendor's repository of a minor version has."""

    def package(
        name: str, number: str, files: Mapping[str, str | Path], depends: str = "", recommends: str = ""
    ) -> Package:
        return Package(
            name,
            f"{number}-1.1",
            files=dict(files),
            depends=depends,
            recommends=recommends,
            description=f"{name}, built by a test of baremetal.gpu from the Go modules",
        )

    return [
        package(
            "kubelet",
            version,
            {
                "/usr/bin/kubelet": programs["kubelet"],
                f"{UNITS}/kubelet.service": KUBELET,
                "/etc/default/kubelet": "KUBELET_EXTRA_ARGS=\n",
                "/etc/kubernetes/manifests/.kubelet-keep": "",
                "/var/lib/kubelet/.kubelet-keep": "",
            },
            depends="kubernetes-cni (>= 1.2.0), mount, util-linux",
            recommends="iptables (>= 1.8.4)",
        ),
        package(
            "kubeadm",
            version,
            {"/usr/bin/kubeadm": programs["kubeadm"], f"{UNITS}/kubelet.service.d/10-kubeadm.conf": KUBEADM},
        ),
        package("kubectl", version, {"/usr/bin/kubectl": programs["kubectl"]}),
        package("cri-tools", CRI_TOOLS, {"/usr/bin/crictl": programs["crictl"]}),
        package(
            "kubernetes-cni",
            CNI,
            {
                **{f"/opt/cni/bin/{name}": programs[name] for name in PLUGINS},
                "/etc/cni/net.d/.kubernetes-cni-keep": "",
            },
        ),
    ]


def containerd(programs: Programs) -> Package:
    """Docker's package for Debian 13."""
    return Package(
        "containerd.io",
        f"{CONTAINERD}-1~debian.13~trixie",
        files={
            **{f"/usr/bin/{name}": programs[name] for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
            f"{UNITS}/containerd.service": CONTAINERD_UNIT,
            "/etc/containerd/config.toml": 'disabled_plugins = ["cri"]\n',
        },
        scripts={"postinst": CONTAINERD_POSTINST, "prerm": CONTAINERD_PRERM},
        depends="runc",
        provides="containerd",
        conflicts="containerd",
        replaces="containerd",
        description="containerd, built by a test of baremetal.gpu from the Go modules",
    )


# Images ------------------------------------------------------------------------------------------------------------

SUITE = "trixie"
# Where the vendor's images have their programs; all others have them in /usr/local/bin.
PLACES = {"coredns": "/coredns", "pause": "/pause"}
BESIDE = {"etcd": ("etcdctl", "etcdutl")}
PAUSE = """\
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number) { (void)number; _exit(0); }
static void reap(int number) { (void)number; while (waitpid(-1, 0, WNOHANG) > 0) ; }

int main(void) {
  signal(SIGINT, end);
  signal(SIGTERM, end);
  signal(SIGCHLD, reap);
  for (;;) pause();
}
"""
# Of what Debian's packages bring, that which nft and iptables need.
NEEDED = re.compile(r"\./usr/(sbin|lib64|lib/[^/]*-linux-gnu)(?!.*/gconv)")


def images(directory: Path, version: str, programs: Programs, iptables: bytes) -> None:
    """The images that kubeadm of a version asks for, each as an OCI layout in a directory of its name.

    :param iptables: the layer below kube-proxy.
    """
    told = run(
        programs["kubeadm"],
        *("config", "images", "list", f"--kubernetes-version=v{version}", "--image-repository=lab"),
    ).stdout
    with tempfile.TemporaryDirectory() as scratch:
        source, pause = Path(scratch, "pause.c"), Path(scratch, "pause")
        source.write_text(PAUSE)
        run("cc", "-static", "-Os", "-s", "-o", pause, source)
        for line in told.split():
            name, tag = line.removeprefix("lab/").split(":")
            program = {**programs, "pause": pause}[name]
            place = PLACES.get(name, f"/usr/local/bin/{name}")
            beside = {f"/usr/local/bin/{other}": programs[other] for other in BESIDE.get(name, ())}
            oci.write(
                directory / name,
                tag,
                [*([iptables] if name == "kube-proxy" else []), oci.layer({place: program, **beside})],
                {
                    "Entrypoint": [place],
                    "Env": ["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                    # The tag is that which kubeadm asks for; this is the version that it is.
                    "Labels": {"baremetal.gpu.test": program.parent.name},
                    **({"User": "65535:65535"} if name == "pause" else {}),
                },
            )


def iptables(cache: Path = CACHE) -> bytes:
    """The layer of Debian's iptables, which speaks to nftables as on the hosts, and nft; made once."""
    made = cache / f"iptables-{SUITE}.tar"
    if not made.exists():
        found = mirrors.find()
        options = {**found.options, **({"Acquire::http::Proxy": found.proxy} if found.proxy else {})}
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
            whole, part = Path(scratch, "whole.tar"), Path(scratch, "part.tar")
            run(
                "mmdebstrap",
                *("--variant=extract", "--include=iptables,nftables"),
                *(f'--aptopt={key} "{value}"' for key, value in options.items()),
                *(SUITE, whole, "-"),
                stdin=found.one_line(SUITE),
            )
            with tarfile.open(whole) as source, tarfile.open(part, "w") as target:
                for row in source:
                    if NEEDED.match(row.name):
                        target.addfile(row, source.extractfile(row) if row.isreg() else None)
                for row in _links():
                    target.addfile(row)
            part.replace(made)
    return made.read_bytes()


def _links() -> Iterator[tarfile.TarInfo]:
    """What the packages' scripts and base-files make on a host."""
    names = [f"ip{kind}tables{use}" for kind in ("", "6") for use in ("", "-save", "-restore")]
    for path, goal in {
        "./lib": "usr/lib",
        "./lib64": "usr/lib64",
        **{f"./usr/sbin/{name}": "xtables-nft-multi" for name in names},
    }.items():
        row = tarfile.TarInfo(path)
        row.type, row.linkname = tarfile.SYMTYPE, goal
        yield row


def push(directory: Path, registry: Registry, namespace: str = "kubernetes") -> list[str]:
    """Push all images of a directory to REGISTRY/NAMESPACE/NAME:TAG; their names there."""
    pushed = []
    for layout in sorted(directory.iterdir()):
        index = json.loads((layout / "index.json").read_text())
        tag = index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"]
        repository = f"{registry.address}/{namespace}/{layout.name}"
        registry.push(f"oci:{layout}:{tag}", repository, (tag,))
        pushed.append(f"{repository}:{tag}")
    return pushed


# All of it ---------------------------------------------------------------------------------------------------------


def publish(directory: Path, versions: Sequence[str], key: Key, cache: Path = CACHE) -> list[Path]:
    """The vendors' repositories and the images of versions of Kubernetes, built if need be; where they are.

    Each minor version has a repository of its own, as at the vendor's.
    """
    made = []
    for version in versions:
        programs = build(version, cache)
        repository = directory / "kubernetes" / f"v{version.rpartition('.')[0]}" / "deb"
        build_repository(repository, packages(version, programs), key)
        build_repository(directory / "docker", [containerd(programs)], key)
        images(directory / "images" / version, version, programs, iptables(cache))
        made += [repository, directory / "images" / version]
    return [*made, directory / "docker"]
