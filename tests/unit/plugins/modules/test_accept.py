# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules of gpuops accept: what they refuse, what they do in check mode, and that a fault is no failure."""

from __future__ import annotations

import json
import threading

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import network
from ansible_collections.baremetal.gpu.plugins.modules import (
    accept_collective,
    accept_hold,
    accept_info,
    accept_jobs,
    accept_network,
    accept_registry,
    accept_services,
    accept_storage,
)

TOKEN = "t" * 40


def run(module, capsys, check_mode=False, **arguments):
    with patch_module_args({**arguments, "_ansible_check_mode": check_mode}), pytest.raises(SystemExit):
        module.main()
    return json.loads(capsys.readouterr().out)


WRONG = [
    (accept_network, {"state": "listening", "token": TOKEN, "idle": 1}, "idle is 1.0; set it to 5 to 3600"),
    (accept_network, {"state": "listening", "token": TOKEN, "port": 70000}, "port is 70000"),
    (accept_network, {"state": "measured", "token": TOKEN}, "peer, address"),
    (accept_storage, {"mib": 0}, "mib is 0"),
    (accept_storage, {"seconds": 10000}, "seconds is 10000.0"),
    (accept_services, {"part": "moon"}, "value of part must be one of"),
    (accept_hold, {"state": "held", "node": "n1"}, "missing required arguments: name"),
]


@pytest.mark.parametrize(("module", "arguments", "told"), WRONG)
def test_wrong_arguments_are_refused_with_the_right_ones(capsys, module, arguments, told):
    answer = run(module, capsys, **arguments)
    assert answer["failed"] is True
    assert told in answer["msg"]


NOTHING = [
    (accept_network, {"state": "listening", "token": TOKEN}, "port"),
    (accept_network, {"state": "measured", "token": TOKEN, "peer": "n2", "address": "127.0.0.1"}, "measured"),
    (accept_storage, {"directories": ["/"]}, "storage"),
    (accept_jobs, {"node": "n1", "name": "x"}, "jobs"),
    (accept_collective, {"addresses": {"n1": ""}, "name": "x"}, "service"),
]


@pytest.mark.parametrize(("module", "arguments", "key"), NOTHING)
def test_check_mode_does_nothing(capsys, module, arguments, key):
    answer = run(module, capsys, check_mode=True, **arguments)
    assert (answer["changed"], answer[key]) == (False, None)


def test_a_pair_measures_and_the_token_is_not_told(capsys):
    server = network.open_socket(0)
    port = server.getsockname()[1]
    thread = threading.Thread(target=network.serve, args=(server, TOKEN, 30.0))
    thread.start()
    words = {"token": TOKEN, "port": port}
    answer = run(
        accept_network, capsys, state="measured", peer="n2", address="localhost", seconds=0.1, streams=1, **words
    )
    assert answer["measured"]["error"] is None
    assert answer["measured"]["peer"] == "n2"
    assert TOKEN not in json.dumps(answer)
    assert run(accept_network, capsys, state="ended", **words)["ended"] is True
    thread.join(20)
    assert not thread.is_alive()


def test_a_host_of_no_cluster_is_told(capsys):
    answer = run(accept_jobs, capsys, node="n1", name="x")
    assert answer["failed"] is True
    assert "there is no scontrol" in answer["msg"]
    held = run(accept_hold, capsys, state="held", node="n1", name="x")["held"]
    assert (held["job"], held["minors"], "there is no scontrol" in held["why"]) == (None, [], True)


def test_services_that_do_not_answer_are_findings(capsys):
    answer = run(accept_services, capsys, part="monitoring", prometheus="127.0.0.1:1", alertmanager="127.0.0.1:1")
    assert "refused" in answer["service"]["error"]
    assert run(accept_registry, capsys, server="127.0.0.1:1", authority="/nowhere")["registry"]["error"]
    assert run(accept_services, capsys, part="login")["service"]["missing"] is not None


def test_what_of_this_host_bears_on_acceptance(capsys):
    found = run(accept_info, capsys, users=["root", "nobody-here"])["accept"]
    assert found["identities"]["ids"] == {"root": "0:0", "nobody-here": None}
    assert set(found) >= {"memory_errors", "libraries", "dmabuf"}
