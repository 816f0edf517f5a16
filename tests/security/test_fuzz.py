# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever stands where untrusted input is read, it is refused in words, or what is made of it is bounded.

Here are the readers that have no such test beside their others. Those of verdicts, orders, facts, states, answers of
hosts and manifests do: `pytest -k "random or whatever or fuzz"` finds them.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import command as agent_command
from ansible_collections.baremetal.gpu.plugins.module_utils.agent import orders as agent_orders
from ansible_collections.baremetal.gpu.plugins.module_utils.agent import zookeeper as agent_zookeeper
from ansible_collections.baremetal.gpu.plugins.module_utils.config import record as config_record
from ansible_collections.baremetal.gpu.plugins.module_utils.health import agent_result
from ansible_collections.baremetal.gpu.plugins.module_utils.health import evaluate as health
from ansible_collections.baremetal.gpu.plugins.module_utils.health import facts as health_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import VERDICTS
from ansible_collections.baremetal.gpu.plugins.module_utils.host import boot
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log import records as kernel_log
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import agent_state as mesos_agent_state
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import operator as mesos_operator
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler import settings as reconciler_settings
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import rows as reconciler_rows
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper.client import Failure
from gpuops.run import records
from tests.unit.plugins.health_host import Host, address, uuid
from tests.unit.plugins.module_utils.agent.test_fuzz import SICK, changed
from tests.unit.plugins.module_utils.health.test_agent_result import result

FEW, MANY = 60, 3000


def often(number: int) -> Callable[[Any], Any]:
    return settings(max_examples=number, deadline=None, suppress_health_check=list(HealthCheck))


# --- records of the kernel --------------------------------------------------------------------------------------------

GPU = address(0)[:-2]
SAID = st.sampled_from(
    [
        *kernel_log.DRIVERS,
        *(f"NVRM: Xid (PCI:{where}): {xid}, pid=1, name=x" for where in (GPU, "0000:fe:00") for xid in (13, 79, 154)),
        f"NVRM: Xid (PCI:{GPU} GPU-I:03): 95",
        f"NVRM: GPU {GPU}.0: GPU has fallen off the bus.",
        f"NVRM: GPU at PCI:{GPU}: {uuid(1)}",
        f"NVRM: The NVIDIA GPU {GPU}.0",
        "NVRM: (PCI ID: 10de:20b0) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
        "GPU recovery action changed from 0x2 (Reboot) to 0x0 (None)",
        "nvidia-nvswitch1: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30",
        *("\\x0d", "\\x0a", "\n", "\n SUBSYSTEM=pci", "\r", "\u2028", "\\x1b[2J", "\\xff", "9" * 5000, "(" * 500),
    ]
)
TEXT = st.lists(SAID | st.text(max_size=30), max_size=4).map("".join)
PRIORITY, FLAG = st.sampled_from([4, 3, 11, 12]), st.sampled_from(["-", "c", "+", ""])
NUMBER = st.integers(0, 20) | st.integers(0, 10**25)
RECORD = st.builds("{},{},{},{};{}".format, PRIORITY | NUMBER, NUMBER, NUMBER, FLAG, TEXT) | st.text(max_size=60)


def counts(record: str) -> bool:
    """Whether a record may be the driver's at all, in the simplest words."""
    head, _semicolon, text = record.partition(";")
    priority = head.partition(",")[0]
    by_kernel = priority.isascii() and priority.isdigit() and int(priority[:30]) < 8
    return by_kernel and text.startswith(kernel_log.DRIVERS)


def hears(kept: list[str]) -> None:
    host = Host(gpus=2)
    host.look()
    host.log(f"NVRM: Xid (PCI:{address(1)[:-2]}): 79, pid=1, name=x")
    before = copy.deepcopy(host.history)
    events = kernel_log.Parser(host.boot_id).events(kept)
    assert len(events) <= len(kept)
    for event in events:
        assert event["text"].isprintable()
        assert len(event["text"]) <= kernel_log.TEXT_MOST
    if not any(map(counts, kept)):
        assert events == []
        assert host.history == before
    host.tell(events)
    # No word of this kernel makes a GPU well that has an Xid 79, or another one's out of it.
    assert "xid_fatal" in host.codes(1)
    assert len(host.history["devices"]) == 2
    assert len(json.dumps(host.history)) < 50_000
    assert len(health.xid_counts(host.history)) <= 64
    assert {row["verdict"] for row in host.report["devices"]} <= set(VERDICTS)
    json.dumps(host.report, allow_nan=False)


@often(150)
@given(st.lists(RECORD, max_size=6))
def test_records_of_the_kernel(kept: list[str]) -> None:
    hears(kept)


@pytest.mark.slow
@often(20_000)
@given(st.lists(RECORD, max_size=6))
def test_records_of_the_kernel_often(kept: list[str]) -> None:
    hears(kept)


def reads_log(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "kmsg")
        path.write_bytes(data)
        log = kernel_log.Log(str(path))
        kept = log.read(None)
        log.close()
    assert all(len(record) <= kernel_log.RECORD_AT_MOST for record in kept)
    hears(kept)


BYTES = st.lists(RECORD.map(lambda text: text.encode("utf-8", "replace")) | st.binary(max_size=40), max_size=5)


@often(FEW)
@given(BYTES.map(b"\n".join))
def test_bytes_in_the_logs_place(data: bytes) -> None:
    reads_log(data)


@pytest.mark.slow
@often(MANY)
@given(BYTES.map(b"\n".join))
def test_bytes_in_the_logs_place_often(data: bytes) -> None:
    reads_log(data)


# --- documents --------------------------------------------------------------------------------------------------------


def is_result(path: Path) -> None:
    """The agent's result, for facts and for gpuops on the host."""
    directory = path.parent
    where = directory / agent_result.RESULT.lstrip("/")
    where.parent.mkdir(parents=True)
    path.rename(where)
    found, why = health_facts.of_agent(str(directory))
    assert (found is None) == (why is not None)
    if found is None:
        assert why is not None
        assert why.isprintable()
        assert len(why) < 1000
    else:
        told = health_facts.by_agent(found, found["health"], details=False)
        assert told["verdict"] in VERDICTS
        assert len(told["problems"]) <= health_facts.PROBLEMS_MOST
        assert abs(agent_result.age_s(found)) <= agent_result.STALE_AFTER * agent_result.INTERVAL_MOST_S
        json.dumps(told)
    config = {"result": str(where), "settings": {"root": str(directory)}}
    for as_json in (False, True):
        code = agent_command.status(config, as_json)
        # Nothing that facts do not rely on is well for gpuops.
        assert found is not None or code != 0
    agent_command.fact(config)


def is_secret(path: Path) -> None:
    path.chmod(0o600)
    with contextlib.suppress(Failure):
        logins = agent_zookeeper.secret(str(path))
        assert all(isinstance(word, str) for login in logins for word in login)


def is_record(path: Path) -> None:
    record = config_record.Record(str(path.parent), "x")
    path.rename(record.path)
    with contextlib.suppress(config_record.Unreadable):
        record.load()
        json.loads(record.text())
        record.settle("x")


def is_ledger(path: Path) -> None:
    with contextlib.suppress(mesos_operator.Failed):
        ledger = mesos_agent_state.Ledger(str(path))
        assert all(isinstance(row, dict) for row in ledger.rows.values())


def is_run(path: Path) -> None:
    place = path.parent / "runs" / "1"
    place.mkdir(parents=True)
    path.rename(place / records.RECORD)
    kept = [record for _path, record in records.earlier(path.parent)]
    for seconds in records.expected(kept, ("x", "", False)).values():
        assert math.isfinite(seconds)
    records.most_hosts(kept)


def is_answer(path: Path) -> None:
    with contextlib.suppress(agent_orders.Unreadable, FileNotFoundError):
        assert isinstance(agent_orders.read_strictly(str(path)), dict)
    assert isinstance(agent_orders.read(str(path)), dict)


def are_settings(path: Path) -> None:
    with contextlib.suppress(reconciler_settings.Wrong):
        reconciler_settings.load(path)


def of_reconciler(read: Callable[[bytes], dict[str, Any]]) -> Callable[[Path], None]:
    def check(path: Path) -> None:
        with contextlib.suppress(Malformed):
            assert isinstance(read(path.read_bytes()), dict)

    return check


FLEET = {"schema": 1, "fences": [[5.0, "n1"]], "permitted": ["n1"], "held": False}
CLAIM = [["a", "b"], 1]
DOCUMENTS: dict[str, tuple[dict[str, Any], Callable[[Path], None]]] = {
    "the agent's result": (result(health=SICK.report, boot_id=boot.boot_id("/")), is_result),
    "the secret of a host": ({"user": "n1", "password": "x", "former_user": "a", "former_password": "y"}, is_secret),
    "a record of a merge": (
        {
            "schema": 1,
            "claims": [CLAIM],
            "replaced": [CLAIM],
            "next": {"file": "x", "claims": [CLAIM], "replaced": []},
            "pending": {"action": "restart", "boot_id": "x", "monotonic": 1.0},
        },
        is_record,
    ),
    "a ledger of drains": ({"S0": {"host": "n1", "state": "drained"}}, is_ledger),
    "the record of a run": (
        {"playbook": "x", "started": 1.0, "seconds": 2.0, "rc": 0, "stages": {"a": 1.0}, "hosts": {"n1": "done"}},
        is_run,
    ),
    "the answer to an order": ({"id": "n1-1", "state": "done", "error": "", "boot_id": "x"}, is_answer),
    "the reconciler's settings": (
        {"zookeeper": "z:1", "masters": ["http://m:1"], "poll_s": 1.0, "policy": {"breaker_share": 0.2}},
        are_settings,
    ),
    "a request": (
        {"kind": "clear", "host": "n1", "uuid": "GPU-0", "id": "r-1"},
        of_reconciler(reconciler_rows.request),
    ),
    "the fleet": (FLEET, of_reconciler(reconciler_rows.fleet)),
}


def reads(name: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "document")
        path.write_bytes(data)
        DOCUMENTS[name][1](path)


ODD = (b"", b"[]", b"null", b"3", b'"x"', b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000, b"1" * 5000, b"NaN")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_is_no_document_at_all(name: str) -> None:
    for data in ODD:
        reads(name, data)
        reads(name, json.dumps(DOCUMENTS[name][0]).encode()[:-1] + b', "more": ' + (data or b"{}") + b"}")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_changed_at_random(name: str) -> None:
    @often(FEW)
    @given(changed(DOCUMENTS[name][0]))
    def tried(data: bytes) -> None:
        reads(name, data)

    tried()


@pytest.mark.slow
@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_changed_at_random_often(name: str) -> None:
    @often(MANY)
    @given(changed(DOCUMENTS[name][0]))
    def tried(data: bytes) -> None:
        reads(name, data)

    tried()
