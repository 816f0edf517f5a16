# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host keeps of ZooKeeper."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import node as zookeeper_node


def test_the_id_and_the_data_that_a_host_keeps(tmp_path):
    assert zookeeper_node.kept_id(str(tmp_path)) is None
    (tmp_path / "myid").write_text("replace this text with the cluster-unique zookeeper's instance id (1-255)\n")
    assert zookeeper_node.kept_id(str(tmp_path)) is None
    (tmp_path / "myid").write_text("42\n")
    assert zookeeper_node.kept_id(str(tmp_path)) == 42
    assert not zookeeper_node.has_data(str(tmp_path), "")
    (tmp_path / "version-2").mkdir()
    assert not zookeeper_node.has_data(str(tmp_path), "")
    (tmp_path / "version-2" / "log.100000001").touch()
    assert zookeeper_node.has_data("/nonexistent", str(tmp_path))
