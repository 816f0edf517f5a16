# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages for people who compute, and module files of what a host has."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.filter.desired import desired
from ansible_collections.baremetal.gpu.plugins.module_utils.system.user_software import MARK

PARAMS: dict[str, Any] = {
    "packages": ["lmod", "git"],
    "optional_packages": ["nvtop", "linux-perf"],
    "vendor_packages": [],
    "repositories": [],
    "environments": {},
}
# As apt-cache of Debian 12 says it, without the component contrib.
POLICY = """\
nvtop:
  Installed: (none)
  Candidate: (none)
  Version table:
linux-perf:
  Installed: (none)
  Candidate: 6.1.140-1
  Version table:
     6.1.140-1 500
        500 http://packages.example.org/debian bookworm/main amd64 Packages
""".splitlines()
CUDA = [
    {"name": "cuda/11.8", "kind": "cuda", "path": "/usr/local/cuda-11.8", "default": False},
    {"name": "cuda/12.4", "kind": "cuda", "path": "/usr/local/cuda-12.4", "default": True},
]


def plan(modules: Any = (), written: Any = (), **more: Any) -> dict[str, Any]:
    facts = {
        "os_family": more.pop("os_family", "Debian"),
        "policy": POLICY,
        "software": {"modules": list(modules), "written": list(written)},
    }
    return desired({**PARAMS, **more}, "user_software", facts)


def test_a_package_that_the_release_lacks_is_left_out() -> None:
    made = plan()
    assert made["asked"] == ["nvtop", "linux-perf"]
    assert [row["name"] for row in made["desired"]["packages"]] == ["lmod", "git", "linux-perf"]


def test_each_toolkit_has_a_module_and_one_is_the_default() -> None:
    files = {row["path"]: row for row in plan(CUDA)["modules"]["files"]}
    text = files["/etc/lmod/modules/cuda/12.4.lua"]["content"]
    assert text.startswith(f"{MARK}\n")
    assert 'prepend_path("PATH", "/usr/local/cuda-12.4/bin")' in text
    assert 'setenv("CUDA_HOME", "/usr/local/cuda-12.4")' in text
    assert 'prepend_path("PATH", "/usr/local/cuda-11.8/bin")' in files["/etc/lmod/modules/cuda/11.8.lua"]["content"]
    assert 'module_version("cuda/12.4", "default")' in files["/etc/lmod/modules/cuda/.modulerc.lua"]["content"]
    assert files["/etc/lmod/modules/cuda"]["state"] == "directory"


@pytest.mark.parametrize(
    ("name", "kind", "path", "line"),
    [
        ("gcc/12", "gcc", "/usr/bin/gcc-12", 'setenv("CXX", "g++-12")'),
        ("openmpi/4.1.4", "mpi", "/usr/lib/x86_64-linux-gnu/openmpi", 'setenv("MPI_HOME", "/usr/lib/x86_64-linux-gnu'),
        ("nccl/2.21.5", "nccl", "/usr", 'setenv("NCCL_HOME", "/usr")'),
        ("pytorch", "environment", "/opt/torch", 'prepend_path("PATH", "/opt/torch/bin")'),
    ],
)
def test_what_each_module_sets(name: str, kind: str, path: str, line: str) -> None:
    made = plan([{"name": name, "kind": kind, "path": path, "default": False}])
    (text,) = [row["content"] for row in made["modules"]["files"] if row["path"].endswith(f"/{name}.lua")]
    assert line in text
    assert made["loaded"] == [name]
    assert [proof["name"] for proof in made["modules"]["proofs"]] == ["user_software"]


def test_the_module_of_what_is_gone_goes() -> None:
    old = ["/etc/lmod/modules/cuda/11.2.lua", "/etc/lmod/modules/cuda/12.4.lua"]
    files = plan(CUDA, old)["modules"]["files"]
    assert [row["path"] for row in files if row.get("state") == "absent"] == old[:1]
    assert plan([], old)["modules"] == {"files": [{"path": path, "state": "absent"} for path in old]}


def test_a_name_that_a_host_makes_up_is_no_module() -> None:
    made = plan([{"name": 'cuda/1")os.execute("x', "kind": "cuda", "path": "/usr/local", "default": False}])
    assert made["modules"] == {"files": []}


@pytest.mark.parametrize(
    ("more", "subject"),
    [
        ({"os_family": "RedHat"}, "user_software"),
        ({"packages": ["git; reboot"]}, "user_software_packages"),
        ({"optional_packages": ["--help"]}, "user_software_optional_packages"),
        ({"environments": {"py torch": "/opt/torch"}}, "user_software_environments"),
        ({"environments": {"pytorch": 'opt"'}}, "user_software_environments"),
        ({"vendor_packages": ["nvtop"]}, "user_software_vendor_packages"),
    ],
)
def test_what_cannot_be_is_refused(more: Any, subject: str) -> None:
    made = plan(**more)
    assert [problem["subject"] for problem in made["problems"]] == [subject]
    assert made["desired"] == {}


def test_vendor_packages_come_from_a_repository_that_the_site_names() -> None:
    repository = {"name": "vendor", "uris": ["https://packages.example.org"], "suites": ["./"]}
    made = plan(vendor_packages=["gdrcopy"], repositories=[repository])
    assert made["problems"] == []
    assert made["desired"]["repositories"] == [repository]
    assert {"name": "gdrcopy"} in made["desired"]["packages"]
