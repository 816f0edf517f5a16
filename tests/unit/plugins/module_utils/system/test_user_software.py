# SPDX-License-Identifier: GPL-3.0-or-later
"""What people can load is what is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.system import user_software

# As Debian 12's programs say it.
SAID = {
    "/usr/bin/nvcc": "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 11.8, V11.8.89\n",
    "/usr/bin/ompi_info": "Open MPI v4.1.4\n\nhttps://www.open-mpi.org/community/help/\n",
}


def run(argv: list[str], _stdin: str | None, _timeout: float) -> tuple[int, str, str]:
    return (0, SAID[argv[0]], "") if argv[0] in SAID else (127, "", "")


def make(top: Path, *paths: str) -> None:
    for path in paths:
        place = top / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()


def names(top: Path, environments: dict[str, str] | None = None) -> dict[str, str]:
    return {row["name"]: row["path"] for row in user_software.modules(environments or {}, run, str(top))}


def test_toolkits_that_lie_side_by_side_are_found_with_the_default(tmp_path: Path) -> None:
    make(tmp_path, "usr/local/cuda-12.4/bin/nvcc", "usr/local/cuda-11.8/bin/nvcc", "usr/local/cuda-12/bin/nvcc")
    # What was removed leaves directories behind.
    make(tmp_path, "usr/local/cuda-11.2/lib64/left.so")
    (tmp_path / "usr/local/cuda").symlink_to(tmp_path / "usr/local/cuda-12.4")
    rows = user_software.modules({}, run, str(tmp_path))
    assert [(row["name"], row["path"], row["default"]) for row in rows] == [
        ("cuda/11.8", "/usr/local/cuda-11.8", False),
        ("cuda/12.4", "/usr/local/cuda-12.4", True),
    ]


def test_what_the_distribution_has_is_asked_for_its_version(tmp_path: Path) -> None:
    make(tmp_path, "usr/bin/nvcc", "usr/lib/cuda/version.txt", "usr/lib/x86_64-linux-gnu/openmpi/lib/x.so")
    make(tmp_path, "usr/bin/gcc-12", "usr/bin/gcc-ar-12", "usr/bin/gcc")
    (tmp_path / "usr/include").mkdir()
    header = '#define NCCL_MAJOR 2\n#define NCCL_MINOR 21\n#define NCCL_PATCH 5\n#define NCCL_SUFFIX ""\n'
    (tmp_path / "usr/include/nccl.h").write_text(header)
    assert names(tmp_path) == {
        "cuda/11.8": "/usr/lib/cuda",
        "openmpi/4.1.4": "/usr/lib/x86_64-linux-gnu/openmpi",
        "gcc/12": "/usr/bin/gcc-12",
        "nccl/2.21.5": "/usr",
    }


@pytest.mark.parametrize("header", ["", "#define NCCL_MAJOR 2\n"])
def test_what_does_not_tell_its_version_is_left_out(tmp_path: Path, header: str) -> None:
    make(tmp_path, "usr/include/nccl.h")
    (tmp_path / "usr/include/nccl.h").write_text(header)
    assert names(tmp_path) == {}


def test_an_environment_that_is_not_there_has_no_module(tmp_path: Path) -> None:
    make(tmp_path, "opt/torch/bin/python")
    found = names(tmp_path, {"pytorch/2.6": "/opt/torch", "gone": "/opt/gone"})
    assert found == {"pytorch/2.6": "/opt/torch"}


def test_module_files_of_the_role_are_known_and_others_stay(tmp_path: Path) -> None:
    make(tmp_path, "etc/lmod/modules/site/1.lua", "etc/lmod/modules/cuda/12.4.lua")
    (tmp_path / "etc/lmod/modules/cuda/12.4.lua").write_text(f"{user_software.MARK}\nwhatis('x')\n")
    assert user_software.written(str(tmp_path)) == ["/etc/lmod/modules/cuda/12.4.lua"]
