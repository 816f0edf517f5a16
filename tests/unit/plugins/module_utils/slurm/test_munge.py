# SPDX-License-Identifier: GPL-3.0-or-later
"""Credentials between two hosts, each with a real munged: what is taken, and what is refused with which reason."""

from __future__ import annotations

import base64
import subprocess
import time
from collections.abc import Iterator

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import munge
from tests.local_munge import LocalMunge, NotHere

# Whatever comes between blanks and lines of the programs' own has to come through.
PAYLOADS = [b"x", b"\n", b'{"a": 1}\n', b"STATUS: 0\n\nUID: 0\n", bytes(range(256)) * 16, b"p" * munge.PAYLOAD_AT_MOST]


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[LocalMunge, LocalMunge]]:
    """A node and a host of slurmctld, of one cluster."""
    try:
        node = LocalMunge("127.0.0.2")
    except NotHere as why:
        pytest.skip(str(why))
    controller = LocalMunge("127.0.0.1", node.key)
    yield node, controller
    node.remove()
    controller.remove()


@pytest.mark.parametrize("payload", PAYLOADS, ids=len)
def test_a_payload_comes_through_with_its_user_and_its_host(hosts, payload):
    node, controller = hosts
    credential = munge.encode(payload, socket=node.socket)
    assert munge.decode(credential, controller.socket) == munge.Credential(payload, 0, "127.0.0.2")


def test_a_payload_is_not_seen_on_the_way(hosts):
    credential = munge.encode(b"secret" * 10, socket=hosts[0].socket)
    assert b"secret" not in base64.b64decode(credential.removeprefix("MUNGE:").removesuffix(":"))


def test_a_credential_is_taken_once(hosts):
    node, controller = hosts
    credential = munge.encode(b"x", socket=node.socket)
    munge.decode(credential, controller.socket)
    with pytest.raises(CallFailed, match=r"(?i)replayed|used before"):
        munge.decode(credential, controller.socket)


def test_an_old_credential_is_refused(hosts):
    node, controller = hosts
    credential = munge.encode(b"x", ttl_s=1, socket=node.socket)
    time.sleep(2.1)
    with pytest.raises(CallFailed, match=r"(?i)expired"):
        munge.decode(credential, controller.socket)


def test_another_user_can_neither_read_one_nor_pass_for_root(hosts):
    node, controller = hosts
    credential = munge.encode(b"secret", socket=node.socket)
    argv = [munge.UNMUNGE, f"--socket={controller.socket}"]
    done = subprocess.run(argv, input=credential, text=True, capture_output=True, user=65534, check=False)
    assert done.returncode == 18
    assert "secret" not in done.stdout
    argv = [munge.MUNGE, f"--socket={node.socket}", "--restrict-uid=0"]
    theirs = subprocess.run(argv, input="x", text=True, capture_output=True, user=65534, check=True).stdout.strip()
    assert munge.decode(theirs, controller.socket).uid == 65534


def test_one_for_another_user_is_refused(hosts):
    node, controller = hosts
    with pytest.raises(CallFailed, match=r"(?i)unauthorized|another user"):
        munge.decode(munge.encode(b"x", reader=65534, socket=node.socket), controller.socket)


def test_one_of_another_cluster_is_refused(hosts):
    other = LocalMunge("127.0.0.2")
    try:
        credential = munge.encode(b"x", socket=other.socket)
    finally:
        other.remove()
    with pytest.raises(CallFailed, match=r"(?i)invalid|another key"):
        munge.decode(credential, hosts[1].socket)


@pytest.mark.parametrize(
    "credential",
    ["", "x", "MUNGE:", "MUNGE:AAAA:", "MUNGE:\nAAAA:", "MUNGE:" + "A" * munge.CREDENTIAL_AT_MOST + ":", "-h", "é"],
    ids=lambda text: f"{text[:12]!r}",
)
def test_garbage_is_refused(hosts, credential):
    with pytest.raises(CallFailed):
        munge.decode(credential, hosts[1].socket)


def test_a_changed_credential_is_refused(hosts):
    node, controller = hosts
    credential = munge.encode(b"x" * 100, socket=node.socket)
    place = len(credential) // 2
    changed = credential[:place] + ("A" if credential[place] != "A" else "B") + credential[place + 1 :]
    with pytest.raises(CallFailed):
        munge.decode(changed, controller.socket)


@pytest.mark.parametrize("payload", [b"", b"x" * (munge.PAYLOAD_AT_MOST + 1)], ids=len)
def test_a_payload_of_no_length_or_too_long_a_one_is_not_sent(hosts, payload):
    with pytest.raises(CallFailed, match="bytes"):
        munge.encode(payload, socket=hosts[0].socket)


def test_without_munged_both_say_so(hosts, tmp_path):
    with pytest.raises(CallFailed, match="systemctl status munge"):
        munge.encode(b"x", socket=str(tmp_path / "none"))
    with pytest.raises(CallFailed, match="systemctl status munge"):
        munge.decode(munge.encode(b"x", socket=hosts[0].socket), str(tmp_path / "none"))


def test_without_the_programs_both_say_so(monkeypatch):
    def missing(*_args, **_more):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(munge.host_run, "execute", missing)
    with pytest.raises(CallFailed, match="munge: No such file"):
        munge.encode(b"x")
