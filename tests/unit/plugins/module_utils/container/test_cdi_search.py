# SPDX-License-Identifier: GPL-3.0-or-later
"""Where engines look for specifications, and whose they take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.container import cdi_search

KIND = "nvidia.com/gpu"
NAMES = ["0", "GPU-8f0e", "all"]


@pytest.fixture
def where(tmp_path: Path) -> list[str]:
    """The directories of an engine: the later goes first."""
    for name in ("etc", "run"):
        (tmp_path / name).mkdir()
    return [str(tmp_path / "etc"), str(tmp_path / "run")]


def write(directory: str, name: str, kind: str = KIND, names: tuple[str, ...] = ("0", "all"), needs: str = "/") -> str:
    path = Path(directory, name)
    edits = {"mounts": [{"hostPath": needs, "containerPath": "/usr/lib/x"}]}
    devices = [{"name": one, "containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}} for one in names]
    spec = {"cdiVersion": "0.5.0", "kind": kind, "devices": devices, "containerEdits": edits}
    if name.endswith(".json"):
        path.write_text(json.dumps(spec))
        return str(path)
    rows = "".join(f"- name: '{one}'\n  containerEdits:\n    deviceNodes:\n    - path: /dev/null\n" for one in names)
    mounts = f"containerEdits:\n  mounts:\n  - hostPath: {needs}\n    containerPath: /usr/lib/x\n"
    path.write_text(f"---\ncdiVersion: 0.5.0\nkind: {kind}\ndevices:\n{rows}{mounts}")
    return str(path)


def judge(where: list[str]) -> tuple[str | None, list[str]]:
    return cdi_search.judge(f"{where[0]}/nvidia.json", NAMES, where, KIND)


def test_a_file_by_itself_is_taken(where: list[str]) -> None:
    write(where[0], "nvidia.json")
    write(where[0], "imex.yaml", kind="nvidia.com/imex-channel")
    write(where[0], "old.yaml.bak")
    assert judge(where) == (None, [])


@pytest.mark.parametrize("name", ["by-ctk.yaml", "by-ctk.json", ".hidden.yaml"])
def test_of_two_files_of_a_directory_an_engine_takes_none(where: list[str], name: str) -> None:
    other = write(where[0], name)
    refused, _notes = judge(where)
    assert refused is not None
    assert refused.startswith(f"{other} specify {KIND} too, and an engine takes no device that two files name")


def test_two_files_with_other_devices_go_together(where: list[str]) -> None:
    write(where[0], "mig.yaml", names=("mig0",))
    assert judge(where) == (None, [])


@pytest.mark.parametrize("name", ["nvidia.yaml", "nvidia.json"])
def test_a_file_that_goes_first_and_is_out_of_date_is_the_one_that_is_named(where: list[str], name: str) -> None:
    winner = write(where[1], name, needs="/usr/lib/libcuda.so.390.48")
    refused, _notes = judge(where)
    assert refused is not None
    assert f"engines take {KIND} from {winner} and not from {where[0]}/nvidia.json" in refused
    assert "it names /usr/lib/libcuda.so.390.48, which is not there" in refused
    assert f"or remove {winner}" in refused
    assert f"remove {where[0]}" not in refused


def test_a_file_that_goes_first_and_is_right_is_noted(where: list[str]) -> None:
    winner = write(where[1], "nvidia.json")
    refused, notes = judge(where)
    assert refused is None
    assert notes == [
        f"engines take {KIND} from {winner} and not from {where[0]}/nvidia.json, because {where[1]} goes first"
    ]


def test_a_file_that_goes_later_changes_nothing(where: list[str]) -> None:
    write(where[0], "other.yaml", needs="/nowhere")
    assert cdi_search.judge(f"{where[1]}/nvidia.json", NAMES, where, KIND) == (None, [])


def test_two_files_of_the_directory_that_goes_first_are_taken_from_none(where: list[str]) -> None:
    one, other = write(where[1], "a.yaml"), write(where[1], "b.yaml")
    refused, _notes = judge(where)
    assert refused is not None
    assert f"and {other} names it too, so they take none" in refused
    assert cdi_search.taken_from("0", cdi_search.specifications(where, KIND)) == [one, other]


def test_a_link_between_the_directories_is_one_directory(where: list[str], tmp_path: Path) -> None:
    (tmp_path / "var").symlink_to(tmp_path / "run")
    write(where[1], "nvidia.json")
    found = cdi_search.specifications([where[1], where[0], str(tmp_path / "var")], KIND)
    assert [(one.path, one.place) for one in found] == [(f"{tmp_path}/var/nvidia.json", 2)]


def test_a_directory_in_which_the_engine_does_not_look_is_refused(where: list[str]) -> None:
    refused, _notes = cdi_search.judge("/etc/cdi/nvidia.json", NAMES, where, KIND)
    assert refused is not None
    assert "/etc/cdi/nvidia.json would not be read" in refused
    assert where[1] in refused


PASSED_OVER = {
    "an empty file": "",
    "a list": "[]",
    "JSON that was cut": '{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "all", "cont',
    "no devices": '{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": []}',
    "devices of another form": '{"kind": "nvidia.com/gpu", "devices": [[]]}',
    "YAML without devices": "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n",
    "YAML that was cut": "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [\n",
    "another kind that mentions it": '{"kind": "x.com/y", "annotations": {"kind": "nvidia.com/gpu"}, "devices": [{}]}',
}


@pytest.mark.parametrize("name", ["x.json", "x.yaml"])
@pytest.mark.parametrize("case", PASSED_OVER)
def test_a_file_that_engines_pass_over_changes_nothing(where: list[str], case: str, name: str) -> None:
    own = write(where[0], "nvidia.json")
    for directory in where:
        Path(directory, name).write_text(PASSED_OVER[case])
    assert judge(where) == (None, [])
    assert cdi_search.taken_from("all", cdi_search.specifications(where, KIND)) == [own]


def test_json_in_any_writing_and_yaml_by_the_name_of_json_count(where: list[str]) -> None:
    escaped = '{"kind": "nvidia.com\\/gpu", "devices": [{"name": "all", "containerEdits": {}}]}'
    for text in (escaped, "kind: nvidia.com/gpu\ndevices:\n- name: all\n", "kind: nvidia.com/gpu\ndevices: *shared\n"):
        Path(where[0], "x.json").write_text(text)
        assert f"{where[0]}/x.json specify {KIND} too" in str(judge(where)[0]), text


CRI = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  cdi_spec_dirs = ["/srv/cdi"]\n'
PODMAN = '[engine]\ncdi_spec_dirs = ["/srv/cdi"]\n'
CONFIGURED: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "docker by default": ("docker", {}, ["/etc/cdi", "/var/run/cdi"]),
    "docker": ("docker", {"etc/docker/daemon.json": '{"cdi-spec-dirs": ["/srv/cdi"]}'}, ["/srv/cdi"]),
    "docker by flags": (
        "docker",
        {
            "usr/lib/systemd/system/docker.service": "ExecStart=/usr/bin/dockerd -H fd://\n",
            "etc/systemd/system/docker.service.d/cdi.conf": "ExecStart=dockerd --cdi-spec-dir=/a --cdi-spec-dir /b\n",
        },
        ["/a", "/b"],
    ),
    "podman": ("podman", {"etc/containers/containers.conf": PODMAN}, ["/srv/cdi"]),
    "podman's other files": (
        "podman",
        {
            "etc/containers/containers.conf": PODMAN,
            "etc/containers/containers.conf.d/9.conf": PODMAN.replace("srv", "opt"),
        },
        ["/opt/cdi"],
    ),
    "containerd": ("containerd", {"etc/containerd/config.toml": CRI}, ["/srv/cdi"]),
    "containerd's imports": (
        "containerd",
        {
            "etc/containerd/config.toml": 'imports = ["/etc/containerd/conf.d/*.toml"]\n' + CRI,
            "etc/containerd/conf.d/nvidia.toml": CRI.replace("srv", "opt"),
        },
        ["/opt/cdi"],
    ),
    "containerd's imports beside its file": (
        "containerd",
        {
            "etc/containerd/config.toml": 'version = 3\nimports = ["conf.d/*.toml"]\n',
            "etc/containerd/conf.d/nvidia.toml": CRI.replace("grpc.v1.cri", "cri.v1.runtime"),
        },
        ["/srv/cdi"],
    ),
    "a file that is not valid": ("containerd", {"etc/containerd/config.toml": "x ="}, ["/etc/cdi", "/var/run/cdi"]),
    "no engine": ("", {}, ["/etc/cdi", "/var/run/cdi"]),
}


@pytest.mark.parametrize("case", CONFIGURED)
def test_an_engine_looks_where_its_settings_say(tmp_path: Path, case: str) -> None:
    engine, files, expected = CONFIGURED[case]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found: Any = cdi_search.directories(engine, str(tmp_path))
    assert found == expected
