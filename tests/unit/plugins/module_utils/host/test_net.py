# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses and ports of a host, on a hand-made file tree."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host import net as host_net

UNIT = "zookeeper.service"
# After the form of the kernel's file.
FIB_TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/8 2 0 2
        +-- 127.0.0.0/31 1 0 0
           |-- 127.0.0.0
              /8 host LOCAL
           |-- 127.0.0.1
              /32 host LOCAL
        |-- 127.255.255.255
           /32 link BROADCAST
     |-- 192.0.2.31
        /32 host LOCAL
     |-- 192.0.2.255
        /32 link BROADCAST
"""


@pytest.fixture
def kernel_tells(tmp_path):
    def write(path, text):
        file = tmp_path / "proc/net" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


def test_local_addresses(kernel_tells, tmp_path):
    kernel_tells("fib_trie", FIB_TRIE)
    kernel_tells("if_inet6", "20010db8000000000000000000000031 02 40 00 80     eth0\n")
    assert host_net.local_addresses(str(tmp_path)) == {"127.0.0.1", "192.0.2.31", "2001:db8::31"}


def test_an_address_of_which_the_kernel_knows_more_is_local_too(kernel_tells, tmp_path):
    kernel_tells("fib_trie", "     |-- 192.0.2.31\n        /32 link UNICAST\n        /32 host LOCAL\n")
    assert host_net.local_addresses(str(tmp_path)) == {"192.0.2.31"}


def test_a_host_that_shows_no_addresses_has_none(tmp_path):
    assert host_net.local_addresses(str(tmp_path)) == set()


def test_who_else_holds_a_port_is_told_and_our_own_unit_is_not(tmp_path):
    def proc(path: str, text: str) -> None:
        file = tmp_path / "proc" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    columns = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    line = "   0: 00000000:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1\n"
    proc(
        "net/tcp", columns + line.format(port=2181, state="0A", inode=91) + line.format(port=2888, state="01", inode=92)
    )
    proc("net/tcp6", columns + line.format(port=3888, state="0A", inode=93))
    for pid, inode, unit in ((815, 91, "other.service"), (816, 93, UNIT)):
        proc(f"{pid}/comm", "java\n")
        proc(f"{pid}/cgroup", f"0::/system.slice/{unit}\n")
        (tmp_path / f"proc/{pid}/fd").mkdir()
        (tmp_path / f"proc/{pid}/fd/5").symlink_to(f"socket:[{inode}]")
    # 2888 is only a connection, and 3888 is ours.
    assert host_net.held_ports([2181, 2888, 3888], UNIT, str(tmp_path)) == {2181: "java (pid 815)"}
