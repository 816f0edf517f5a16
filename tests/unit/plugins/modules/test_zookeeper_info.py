# SPDX-License-Identifier: GPL-3.0-or-later
"""What zookeeper_info says of servers that are well, missing, electing or none at all."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import four_letter_words as zookeeper
from ansible_collections.baremetal.gpu.plugins.modules import zookeeper_info
from tests.unit.plugins.zookeeper_words import Ensemble, Words

# Captured from Debian 13's ZooKeeper 3.9.3, the leader of five; of mntr some lines are left out.
SRVR = """\
Zookeeper version: 3.9.3-${mvngit.commit.id}, built on 2026-03-08 16:19 UTC
Latency min/avg/max: 0/0.0/0
Received: 5
Sent: 8
Connections: 1
Outstanding: 0
Zxid: 0x200000000
Mode: leader
Node count: 5
Proposal sizes last/min/max: -1/-1/-1
"""
MNTR = """\
zk_version\t3.9.3-${mvngit.commit.id}, built on 2026-03-08 16:19 UTC
zk_server_state\tleader
zk_peer_state\tleading - broadcast
zk_avg_latency\t0.0
zk_synced_followers\t4
zk_synced_non_voting_followers\t0
zk_synced_observers\t0
"""


@pytest.fixture
def ensemble():
    one = Ensemble()
    yield one
    one.stop()


def ask(capsys, servers, **options):
    rows = [{"host": row["host"], "port": row["port"]} for row in servers]
    with patch_module_args({"servers": rows, **options}), pytest.raises(SystemExit) as ended:
        zookeeper_info.main()
    assert ended.value.code == 0
    return json.loads(capsys.readouterr().out)


def test_a_complete_ensemble(capsys, ensemble):
    told = ask(capsys, ensemble.rows())
    leader = ensemble.rows(2)[0]
    assert (told["complete"], told["quorum"], told["changed"], told["problems"]) == (True, True, False, [])
    assert told["leader"] == f"127.0.0.1:{leader['port']}"
    first, second, _third = told["servers"]
    assert (first["mode"], first["peers"], second["mode"], second["peers"]) == ("follower", None, "leader", 2)
    assert {key: second[key] for key in ("state", "version", "zxid", "epoch", "connections", "nodes")} == {
        "state": "serving",
        "version": "3.9.3",
        "zxid": "0x100000003",
        "epoch": 1,
        "connections": 3,
        "nodes": 7,
    }


def test_the_captured_answers_of_a_leader_are_understood():
    answers = {"srvr": SRVR, "mntr": MNTR}
    seen = zookeeper.look({"host": "zk5", "port": 2181}, asker=lambda _host, _port, word, _timeout: answers[word])
    assert seen == {
        "host": "zk5",
        "port": 2181,
        "state": "serving",
        "why": "",
        "mode": "leader",
        "version": "3.9.3",
        "zxid": "0x200000000",
        "epoch": 2,
        "connections": 1,
        "outstanding": 0,
        "nodes": 5,
        "peers": 4,
    }


def test_a_server_that_is_down_leaves_a_quorum_that_is_not_complete(capsys, ensemble):
    ensemble.members[0].server.shutdown()
    ensemble.members[0].server.server_close()
    ensemble.members[1].synced = 1
    told = ask(capsys, ensemble.rows())
    ensemble.members.pop(0)
    assert (told["complete"], told["quorum"]) == (False, True)
    assert told["servers"][0]["state"] == "unreachable"
    assert "nothing listens there" in told["problems"][0]
    assert "1 of 2 followers in step" in told["problems"][1]


def test_a_follower_that_the_leader_does_not_have_in_step_is_missing(capsys, ensemble):
    ensemble.members[1].synced = 1
    told = ask(capsys, ensemble.rows())
    assert (told["complete"], told["quorum"]) == (False, True)


def test_servers_without_a_majority_have_no_quorum(capsys, ensemble):
    for member in ensemble.members:
        member.mode = None
    told = ask(capsys, ensemble.rows())
    assert (told["complete"], told["quorum"], told["leader"]) == (False, False, None)
    assert {row["state"] for row in told["servers"]} == {"electing"}
    assert "no server leads" in told["problems"]


def test_two_leaders_are_no_ensemble(capsys, ensemble):
    ensemble.members[0].mode = "leader"
    told = ask(capsys, ensemble.rows())
    assert (told["complete"], told["quorum"], told["leader"]) == (False, False, None)
    assert "2 servers lead" in " ".join(told["problems"])


def test_a_word_that_is_not_allowed_and_a_port_of_something_else_are_told(capsys, ensemble):
    ensemble.members[0].allowed = []
    ensemble.members[2].other_program = "HTTP/1.1 400 Bad Request\r\n"
    told = ask(capsys, ensemble.rows())
    assert [row["state"] for row in told["servers"]] == ["not_allowed", "serving", "strange"]
    assert "4lw.commands.whitelist" in told["problems"][0]
    assert "HTTP/1.1 400" in told["problems"][1]


def test_a_single_server_is_complete_if_it_is_standalone(capsys):
    alone = Words("standalone")
    told = ask(capsys, [{"host": "127.0.0.1", "port": alone.port}])
    assert (told["complete"], told["quorum"], told["leader"]) == (True, True, f"127.0.0.1:{alone.port}")
    alone.mode = "follower"
    told = ask(capsys, [{"host": "127.0.0.1", "port": alone.port}])
    alone.stop()
    assert told["complete"] is False
    assert "standalone" in told["problems"][0]


def test_servers_that_are_each_alone_are_no_ensemble(capsys, ensemble):
    for member in ensemble.members:
        member.mode = "standalone"
    told = ask(capsys, ensemble.rows())
    assert (told["complete"], told["quorum"]) == (False, False)
    assert "not a member of the ensemble" in told["problems"][0]


def test_it_waits_until_the_ensemble_is_complete(capsys, ensemble):
    late = ensemble.members[0]
    late.mode = None
    answer = late.answer

    def joins_when_it_was_asked(word):
        text = answer(word)
        late.mode = "follower"
        return text

    late.answer = joins_when_it_was_asked
    assert ask(capsys, ensemble.rows())["complete"] is False
    late.mode = None
    assert ask(capsys, ensemble.rows(), wait=30)["complete"]
