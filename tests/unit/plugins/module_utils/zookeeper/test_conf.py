# SPDX-License-Identifier: GPL-3.0-or-later
"""zoo.cfg and the file with the secrets, as written and as read back."""

from __future__ import annotations

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import conf as zookeeper_conf

SETTINGS: dict[str, Any] = {
    "data_dir": "/var/lib/zookeeper",
    "log_dir": "",
    "client_port": 2181,
    "client_address": "",
    "peer_port": 2888,
    "election_port": 3888,
    "tick_time": 2000,
    "init_limit": 10,
    "sync_limit": 5,
    "max_client_connections": 60,
    "snapshots_kept": 5,
    "purge_interval": 24,
    "words": ["srvr", "mntr"],
    "options": {},
    "client_auth": "off",
    "quorum_auth": "off",
}
SERVERS = [{"id": 10, "host": "zk-b"}, {"id": 2, "host": "2001:db8::2"}, {"id": 1, "host": "192.0.2.1"}]


def written(servers: Any = SERVERS, **changed: Any) -> list[str]:
    return zookeeper_conf.zoo_cfg({**SETTINGS, **changed}, servers).splitlines()


def test_the_whole_file_of_an_ensemble():
    assert written() == [
        "# Written by Ansible (baremetal.gpu.zookeeper). Changes made here are lost.",
        "dataDir=/var/lib/zookeeper",
        "clientPort=2181",
        "tickTime=2000",
        "initLimit=10",
        "syncLimit=5",
        "maxClientCnxns=60",
        "autopurge.snapRetainCount=5",
        "autopurge.purgeInterval=24",
        "4lw.commands.whitelist=srvr,mntr",
        "admin.enableServer=false",
        "server.1=192.0.2.1:2888:3888",
        "server.2=[2001:db8::2]:2888:3888",
        "server.10=zk-b:2888:3888",
    ]


def test_the_order_of_servers_in_the_inventory_makes_no_difference():
    assert written(SERVERS) == written(SERVERS[::-1])


def test_a_server_alone_has_no_list_of_servers():
    assert not [line for line in written(SERVERS[:1]) if line.startswith("server.")]


def test_directories_addresses_and_options_are_written_where_they_are_set():
    lines = written(log_dir="/srv/log", client_address="192.0.2.1", options={"snapCount": 5000, "forceSync": True})
    for line in ("dataLogDir=/srv/log", "clientPortAddress=192.0.2.1", "snapCount=5000", "forceSync=true"):
        assert line in lines


def test_each_step_of_authentication_between_servers():
    keys = ("enableSasl", "learnerRequireSasl", "serverRequireSasl")
    seen = {}
    for step in zookeeper_conf.QUORUM_AUTH:
        pairs = dict(line.split("=", 1) for line in written(quorum_auth=step)[1:])
        seen[step] = [pairs.get(f"quorum.auth.{key}") for key in keys]
        assert zookeeper_conf.parse("\n".join(written(quorum_auth=step)))["quorum_auth"] == step
    assert seen == {
        "off": [None, None, None],
        "offered": ["true", "false", "false"],
        "sent": ["true", "true", "false"],
        "required": ["true", "true", "true"],
    }


def test_clients_may_or_must_authenticate():
    provider = "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
    required = "sessionRequireClientSASLAuth=true"
    assert provider in written(client_auth="offered")
    assert required not in written(client_auth="offered")
    assert {provider, required} <= set(written(client_auth="required"))


def test_what_is_written_is_read_back():
    assert zookeeper_conf.parse("\n".join(written(log_dir="/srv/log"))) == {
        "data_dir": "/var/lib/zookeeper",
        "log_dir": "/srv/log",
        "servers": {1: "192.0.2.1", 2: "2001:db8::2", 10: "zk-b"},
        "quorum_auth": "off",
    }


def test_files_that_others_have_written_are_read_too():
    text = "#server.9=no:1:2\n tickTime = 2000\ndataDir: /data/\nserver.1 = a:2888:3888:participant;0.0.0.0:2181\n"
    assert zookeeper_conf.parse(text) == {
        "data_dir": "/data",
        "log_dir": "",
        "servers": {1: "a"},
        "quorum_auth": "off",
    }


def test_secrets_are_quoted_for_java():
    assert zookeeper_conf.jaas({"mesos": 'a"b\\c d'}, "") == (
        "// Written by Ansible (baremetal.gpu.zookeeper). Changes made here are lost.\n"
        "Server {\n"
        "  org.apache.zookeeper.server.auth.DigestLoginModule required\n"
        '  user_mesos="a\\"b\\\\c d";\n'
        "};\n"
    )


def test_servers_show_each_other_the_same_password():
    text = zookeeper_conf.jaas({}, "long enough")
    assert 'user_quorum="long enough"' in text
    assert 'username="quorum"\n  password="long enough";' in text
    assert "Server {" in text
    assert "\nServer {" not in text


def test_without_secrets_there_is_no_file():
    assert zookeeper_conf.jaas({}, "") == ""
