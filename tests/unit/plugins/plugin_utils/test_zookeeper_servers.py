# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.filter.zookeeper_servers import zookeeper_servers


def test_address_and_port_come_from_the_variables_of_each_host():
    variables = {
        "c1": {"zookeeper_address": "192.0.2.1", "ansible_host": "198.51.100.1", "zookeeper_client_port": 2182},
        "c2": {"ansible_host": "198.51.100.2"},
        "c3": {},
    }
    assert zookeeper_servers(list(variables), variables) == [
        {"host": "192.0.2.1", "port": 2182},
        {"host": "198.51.100.2", "port": 2181},
        {"host": "c3", "port": 2181},
    ]
