# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The store of a monitor, and why a quorum does not come about."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import conf as ceph_conf
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run

IN_QUORUM = ("leader", "peon")
# Tickets of cephx live for an hour; far below that, monitors already warn and elections are lost.
CLOCK_TOLERANCE_S = 5.0


def store_of(cluster: str, name: str) -> str:
    """The directory of a monitor's data."""
    return f"/var/lib/ceph/mon/{cluster}-{name}"


def make_store(
    run: Run, cluster: str, name: str, fsid: str, monitors: Sequence[Mapping[str, str]], keyring: str
) -> None:
    """Make the store of a monitor beside its place and move it there whole, so that a cut leaves none or all of it.

    :param keyring: text of the keyring that the cluster starts with.
    """
    place = store_of(cluster, name)
    draft = f"{place}.new"
    ceph = pwd.getpwnam("ceph")
    try:
        with contextlib.suppress(FileNotFoundError):
            host_files.remove(draft)
        host_files.make_directories(draft, 0o750, ceph.pw_uid, ceph.pw_gid)
    except host_files.Unsafe as wrong:
        raise Refused(str(wrong)) from None
    # Ceph's user has to read both, and nobody else; and it must not be able to lead these writes elsewhere.
    scratch = tempfile.mkdtemp(prefix="baremetal-gpu-monitor-")
    keys, monmap = f"{scratch}/keyring", f"{scratch}/monmap"
    try:
        os.chown(scratch, -1, ceph.pw_gid)
        os.chmod(scratch, 0o750)
        _write_for(keys, keyring, ceph.pw_uid, ceph.pw_gid)
        argv = ["monmaptool", "--create", "--clobber", "--fsid", fsid, "--enable-all-features"]
        for row in sorted(monitors, key=lambda row: row["name"]):
            argv += ["--addv", row["name"], ceph_conf.address_vector(row["address"])]
        _must(run, [*argv, monmap])
        os.chown(monmap, ceph.pw_uid, ceph.pw_gid)
        argv = ["ceph-mon", "--cluster", cluster, "--mkfs", "--id", name, "--fsid", fsid, "--mon-data", draft]
        _must(run, [*argv, "--monmap", monmap, "--keyring", keys, "--setuser", "ceph", "--setgroup", "ceph"])
        _write_for(f"{draft}/baremetal-gpu-fsid", f"{fsid}\n", ceph.pw_uid, ceph.pw_gid)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    with host_files.place(place) as there:
        os.rename(os.path.basename(draft), there.name, src_dir_fd=there.directory, dst_dir_fd=there.directory)


def _write_for(path: str, text: str, uid: int, gid: int) -> None:
    host_files.write(path, text, 0o600, uid, gid)


def _must(run: Run, argv: list[str]) -> None:
    rc, stdout, stderr = run(argv, None, 120)
    if rc != 0:
        output = " / ".join((stderr or stdout).strip().splitlines()[-3:])
        raise Refused(
            f"'{argv[0]}' ended with {rc}: {output}", "correct what it names, then run again", evidence=output
        )


def is_complete(status: Mapping[str, Any] | None, expected: Iterable[str]) -> bool:
    """Whether a monitor is in a quorum of all expected monitors."""
    if not status or status["state"] not in IN_QUORUM:
        return False
    ranks = {row["rank"]: row["name"] for row in status["monmap"]["mons"]}
    return {ranks.get(rank) for rank in status["quorum"]} >= set(expected)


def connects(address: str, port: int, timeout: float = 3) -> str:
    """Empty if a TCP connection comes about, otherwise why not."""
    try:
        socket.create_connection((address, port), timeout).close()
    except OSError as wrong:
        return wrong.strerror or str(wrong) or "no answer"
    return ""


def diagnose(
    name: str,
    fsid: str,
    monitors: Sequence[Mapping[str, str]],
    status: Mapping[str, Any] | None,
    local: set[str],
    ports: Mapping[tuple[str, int], str],
    names: Mapping[str, Sequence[str]],
    clock_offset_s: float,
) -> list[Problem]:
    """Everything that speaks against a quorum, as seen from one monitor.

    :param monitors: all that are expected, [{name, address}].
    :param status: what this monitor says (mon_status); None if it does not answer.
    :param local: addresses of this host.
    :param ports: for address and port, why there is no connection; empty for one that came about.
    :param names: what the names of the monitors' hosts resolve to here; empty for one that does not.
    :param clock_offset_s: this host's clock against the controller's, in seconds.
    """
    problems = []
    addresses = {row["name"]: row["address"] for row in monitors}
    if addresses.get(name) not in local:
        listed = ", ".join(sorted(local - {"127.0.0.1", "::1"}))
        cause = f"this host does not have the address {addresses.get(name)} of its monitor (it has {listed})"
        problems.append(_problem(name, cause, listed, "set ceph_common_mon_address"))
    if status is None:
        problems.append(
            _problem(name, f"ceph-mon@{name} does not answer", "", f"read 'sudo journalctl -u ceph-mon@{name}'")
        )
    else:
        problems += _wrong_in_map(name, fsid, addresses, status)
    for row in monitors:
        refused = {port: why for (address, port), why in ports.items() if address == row["address"] and why}
        if refused and row["name"] != name:
            listed = ", ".join(f"{port} ({why})" for port, why in sorted(refused.items()))
            cause = f"no connection to {row['name']} at {row['address']}, port {listed}"
            remedy = "see that its monitor runs and that no firewall is in between"
            problems.append(_problem(row["name"], cause, listed, remedy))
    for host, resolved in names.items():
        address = addresses.get(host)
        if resolved and address and address not in resolved and not all(ip.startswith("127.") for ip in resolved):
            listed = ", ".join(resolved)
            cause = f"{host} resolves to {listed} here, its monitor has {address}"
            problems.append(_problem(host, cause, listed, "correct DNS or /etc/hosts"))
    if abs(clock_offset_s) > CLOCK_TOLERANCE_S:
        cause = f"the clock differs by {clock_offset_s:+.0f} s from the controller's"
        problems.append(_problem(name, cause, f"{clock_offset_s:+.0f} s", "let a time service set the clocks"))
    if status is not None:
        missing = ", ".join(sorted(set(addresses) - _in_quorum(status))) or "none"
        cause = f"its state is {status['state']}; not in the quorum: {missing}"
        problems.append(_problem(name, cause, status["state"], f"read 'sudo journalctl -u ceph-mon@{name}'"))
    return problems


def _problem(monitor: str, cause: str, evidence: str, remedy: str) -> Problem:
    return Problem("no_quorum", f"mon.{monitor}", cause, evidence, remedy)


def _in_quorum(status: Mapping[str, Any]) -> set[str]:
    ranks = {row["rank"]: row["name"] for row in status["monmap"]["mons"]}
    return {ranks[rank] for rank in status["quorum"] if rank in ranks}


def _wrong_in_map(name: str, fsid: str, addresses: Mapping[str, str], status: Mapping[str, Any]) -> list[Problem]:
    problems = []
    current = status["monmap"]["fsid"]
    if current != fsid:
        cause = f"its monitor belongs to the cluster {current}, not to {fsid}"
        problems.append(_problem(name, cause, current, "take that cluster off the host first, or correct the secrets"))
    known = {row["name"]: row for row in status["monmap"]["mons"]}
    for monitor, address in addresses.items():
        if monitor not in known:
            cause = f"its map of monitors does not know {monitor}"
            problems.append(_problem(monitor, cause, ", ".join(known), "see that the monitors reach each other"))
            continue
        vector = known[monitor].get("public_addrs", {}).get("addrvec", [])
        listed = sorted({entry["addr"].rpartition(":")[0].strip("[]") for entry in vector})
        if listed and address not in listed:
            cause = f"its map of monitors has {', '.join(listed)} for {monitor}, the inventory has {address}"
            problems.append(_problem(monitor, cause, ", ".join(listed), f"set ceph_common_mon_address of {monitor}"))
    return problems
