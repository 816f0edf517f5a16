# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host says of the nodes that its own configuration has."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import node


def test_lines_of_single_nodes_are_told_by_their_file(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=slurm\n#NodeName=old Sockets=1\nNodeName=n1 Sockets=2 State=UNKNOWN\nNodeName=n[2-9] Sockets=1\n"
    )
    (tmp_path / "gres.conf").write_text("AutoDetect=off\nNodeName=n1 Name=gpu File=/dev/nvidia0\n")
    assert node.node_lines(str(tmp_path)) == {
        "n1": {
            "slurm_conf": ["NodeName=n1 Sockets=2 State=UNKNOWN"],
            "gres_conf": ["NodeName=n1 Name=gpu File=/dev/nvidia0"],
        }
    }


def test_without_files_there_are_none(tmp_path: Path) -> None:
    assert node.node_lines(str(tmp_path)) == {}
