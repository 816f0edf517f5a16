# SPDX-License-Identifier: GPL-3.0-or-later
"""Kubernetes as the lab gets it: what is built, and the packages and images made of it. The programs are made up."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuops.image.registry import Registry
from tests.lab.machines.system import LabError
from tests.local_registry import PASSWORDS, LocalRegistry, missing_programs
from tests.repositories import kubernetes, kubernetes_build, oci
from tests.repositories.apt import Key, build_package, build_repository

VERSION = "1.36.3"
TAGS = {
    "kube-apiserver": "v1.36.3",
    "kube-controller-manager": "v1.36.3",
    "kube-scheduler": "v1.36.3",
    "kube-proxy": "v1.36.3",
    "coredns": "v1.14.2",
    "pause": "3.10.2",
    "etcd": "3.6.8-0",
}
KUBEADM = f"""#!/bin/sh
[ "$*" = "config images list --kubernetes-version=v{VERSION} --image-repository=lab" ] || exit 64
printf 'lab/%s\\n' {" ".join(f"{name}:{tag}" for name, tag in TAGS.items())}
"""
# Notes what it builds and of what, and fails in the midst of a program that `fails` names.
GO = """#!/bin/sh
work=$2
case "$3" in
list) printf '{"GoVersion": "1.26.0", "GoMod": "%s"}' "${0%/*}/origin.mod" ;;
build)
  for package; do :; done
  while [ "$1" != -o ]; do shift; done
  echo "$GOPROXY $package" >>"${0%/*}/built"
  cp "$work/go.mod" "${0%/*}/used.mod"
  echo "$package" >"$2"
  ! grep -qsx "$package" "${0%/*}/fails" || { echo "dial tcp: no route to host" >&2; exit 1; } ;;
esac
"""
ORIGIN = """module k8s.io/kubernetes
require (
\tk8s.io/api v0.0.0
\tk8s.io/klog/v2 v2.140.0
\tk8s.io/utils v0.0.0-20260210185600-b8788abfbbc2
)
replace k8s.io/api => ./staging/src/k8s.io/api
"""
KUBECTL = "k8s.io/kubernetes/cmd/kubectl"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for module in kubernetes_build.modules(VERSION):
        directory = tmp_path_factory.getbasetemp() / f"{module.name}-{module.version}"
        directory.mkdir(exist_ok=True)
        for name in module.programs:
            made[name] = directory / name
            made[name].write_text(KUBEADM if name == "kubeadm" else f"#!/bin/sh\n# {name}\n")
            made[name].chmod(0o755)
    return made


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "go").write_text(GO)
    (directory / "go").chmod(0o755)
    (directory / "origin.mod").write_text(ORIGIN)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    monkeypatch.setenv("GOPROXY", "the-proxy")
    return directory


# Building.


def test_all_is_built_once_with_the_settings_of_the_caller(go: Path, tmp_path: Path) -> None:
    places = kubernetes_build.build(VERSION, tmp_path / "cache")
    assert places["kubelet"].read_text() == "k8s.io/kubernetes/cmd/kubelet\n"
    assert {"etcd", "containerd", "crictl", "coredns", "bridge"} <= set(places)
    built = (go / "built").read_text().splitlines()
    assert len(built) == len(places)
    assert all(line.startswith("the-proxy ") for line in built)
    assert kubernetes_build.build(VERSION, tmp_path / "cache") == places
    assert (go / "built").read_text().splitlines() == built


def test_a_build_that_was_cut_goes_on_where_it_was(go: Path, tmp_path: Path) -> None:
    (go / "fails").write_text(f"{KUBECTL}\n")
    with pytest.raises(LabError, match=r"(?s)kubectl 1\.36\.3 was not built.*no route to host.*GOPROXY"):
        kubernetes_build.build(VERSION, tmp_path / "cache")
    first = (go / "built").read_text().split()[1::2]
    (go / "fails").unlink()
    (go / "built").unlink()
    places = kubernetes_build.build(VERSION, tmp_path / "cache")
    second = (go / "built").read_text().split()[1::2]
    assert set(first) & set(second) == {KUBECTL}
    assert len(first) + len(second) == len(places) + 1


def test_the_parts_of_kubernetes_have_its_own_version(go: Path, tmp_path: Path) -> None:
    (go / "fails").write_text(f"{KUBECTL}\n")
    with pytest.raises(LabError):
        kubernetes_build.build(VERSION, tmp_path / "cache")
    lines = (go / "used.mod").read_text().splitlines()
    assert "require k8s.io/kubernetes v1.36.3" in lines
    assert [line for line in lines if line.startswith("replace")] == ["replace k8s.io/api => k8s.io/api v0.36.3"]


def test_two_versions_share_what_is_the_same(go: Path, tmp_path: Path) -> None:
    first, second = (kubernetes_build.build(version, tmp_path / "cache") for version in kubernetes_build.ETCD)
    assert {name for name in first if first[name] == second[name]} == {
        *("containerd", "containerd-shim-runc-v2", "ctr", "crictl", "coredns", *kubernetes_build.PLUGINS)
    }


def test_without_go_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="install Go"):
        kubernetes_build.build(VERSION, tmp_path / "cache")


def test_an_unknown_version_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(LabError, match=r"1\.20\.2 .*1\.36\.3, 1\.37\.2"):
        kubernetes_build.modules("1.20.2")


# Packages.


def test_packages_have_the_places_and_relations_of_the_vendors(programs: dict[str, Path], tmp_path: Path) -> None:
    def told(*words: str | Path) -> str:
        return subprocess.run(["dpkg-deb", *words], check=True, capture_output=True, text=True).stdout

    found = {}
    for package in [*kubernetes.packages(VERSION, programs), kubernetes.containerd(programs)]:
        deb = build_package(package, tmp_path)
        rows = [line.split() for line in told("-c", deb).splitlines()]
        files = {row[5][1:]: row[0] for row in rows if not row[0].startswith("d")}
        found[package.name] = files, told("-f", deb, "Version", "Depends", "Recommends", "Conflicts"), deb
    files, fields, deb = found["kubelet"]
    assert files["/usr/bin/kubelet"] == "-rwxr-xr-x"
    assert {"/usr/lib/systemd/system/kubelet.service", "/var/lib/kubelet/.kubelet-keep"} <= set(files)
    assert "Depends: kubernetes-cni (>= 1.2.0), mount, util-linux" in fields
    assert "Recommends: iptables" in fields
    # dpkg keeps what an operator has written there.
    assert "/etc/default/kubelet" in told("-I", deb, "conffiles").splitlines()
    files, fields, _deb = found["kubeadm"]
    assert set(files) == {"/usr/bin/kubeadm", "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf"}
    assert "Version: 1.36.3-1.1" in fields
    assert set(found["kubectl"][0]) == {"/usr/bin/kubectl"}
    assert set(found["cri-tools"][0]) == {"/usr/bin/crictl"}
    assert {"/opt/cni/bin/bridge", "/opt/cni/bin/portmap"} <= set(found["kubernetes-cni"][0])
    files, fields, deb = found["containerd.io"]
    assert files["/usr/bin/containerd-shim-runc-v2"] == "-rwxr-xr-x"
    assert "Depends: runc" in fields
    assert "Conflicts: containerd" in fields
    assert 'disabled_plugins = ["cri"]' in told("--fsys-tarfile", deb)


def test_apt_takes_the_signed_repository(programs: dict[str, Path], tmp_path: Path) -> None:
    key = Key(tmp_path)
    repository = tmp_path / "deb"
    try:
        build_repository(repository, kubernetes.packages(VERSION, programs), key)
    finally:
        key.close()
    for name in ("etc", "lists/partial", "cache/archives/partial", "there"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "status").touch()
    (tmp_path / "etc" / "sources.list").write_text(f"deb [signed-by={repository}/key.asc] file:{repository} ./\n")
    settings = {
        "Dir::Etc": tmp_path / "etc",
        "Dir::Etc::sourceparts": "-",
        "Dir::State": tmp_path,
        "Dir::State::status": tmp_path / "status",
        "Dir::Cache": tmp_path / "cache",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "",
    }
    apt = ["apt-get", *(f"-o{name}={value}" for name, value in settings.items())]
    for words in (["update", "--error-on=any"], ["download", "kubeadm=1.36.3-1.1"]):
        done = subprocess.run([*apt, *words], cwd=tmp_path / "there", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    (fetched,) = (tmp_path / "there").iterdir()
    assert fetched.read_bytes() == (repository / "kubeadm_1.36.3-1.1_amd64.deb").read_bytes()


# Images.


@pytest.fixture(scope="module")
def layouts(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("images")
    rules = tmp_path_factory.mktemp("rules") / "iptables"
    rules.touch()
    kubernetes.images(directory, VERSION, programs, oci.layer({"/usr/sbin/iptables": rules}))
    return directory


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    if missing_programs():
        pytest.skip(missing_programs())
    found = LocalRegistry(tmp_path_factory.mktemp("registry"), public=["kubernetes"])
    found.start()
    yield found
    found.stop()


def test_the_images_that_kubeadm_asks_for_are_in_the_registry_of_a_site(layouts: Path, site: LocalRegistry) -> None:
    registry = Registry(f"127.0.0.1:{site.port}", site.base / "tls" / "ca.pem", "operator", PASSWORDS["operator"])
    pushed = kubernetes.push(layouts, registry)
    assert sorted(pushed) == sorted(f"{registry.address}/kubernetes/{name}:{tag}" for name, tag in TAGS.items())
    places = {"coredns": "/coredns", "pause": "/pause"}
    for name, tag in TAGS.items():
        place = places.get(name, f"/usr/local/bin/{name}")
        headers = {"Accept": f"{oci.KIND}.manifest.v1+json"}
        # Nodes have no login.
        manifest = site.ask("GET", f"/v2/kubernetes/{name}/manifests/{tag}", headers=headers)
        assert manifest.status == 200, manifest
        document = json.loads(manifest.body)
        blobs = [
            site.ask("GET", f"/v2/kubernetes/{name}/blobs/{row['digest']}").body
            for row in (document["config"], *document["layers"])
        ]
        config = json.loads(blobs[0])
        assert config["config"]["Entrypoint"] == [place]
        files = {}
        for blob in blobs[1:]:
            with tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob))) as archive:
                files |= {f"/{row.name}": row.mode for row in archive if row.isreg()}
        assert files[place] == 0o755
        assert ("/usr/sbin/iptables" in files) == (name == "kube-proxy")
        assert ("/usr/local/bin/etcdctl" in files) == (name == "etcd")


def test_an_image_tells_the_version_of_its_program(layouts: Path) -> None:
    def settings(name: str) -> dict[str, str]:
        done = subprocess.run(
            ["skopeo", "inspect", "--config", f"oci:{layouts / name}:{TAGS[name]}"], check=True, capture_output=True
        )
        return json.loads(done.stdout)["config"]

    assert settings("etcd")["Labels"] == {"baremetal.gpu.test": "etcd-3.6.16"}
    assert settings("pause")["User"] == "65535:65535"
