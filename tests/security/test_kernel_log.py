# SPDX-License-Identifier: GPL-3.0-or-later
"""Nobody on a host, and root in the host's user space, forge lines in the real log of this machine's kernel.

The records are found again by a random word, so that only those of the test count.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import faulthandler
import os
import secrets
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log import records as kernel_log
from tests.unit.plugins.health_host import Host, address, uuid
from tests.unit.plugins.service_account import NOBODY, Account, needs_root

pytestmark = needs_root
KMSG = "/dev/kmsg"
HERE, ELSEWHERE = address(0)[:-2], "0000:fe:00"
# No commas, which part the options of a mount. Each is a line that counts where the driver says it.
LINES = {
    "a fault of a GPU": f"NVRM: Xid (PCI:{HERE}): 79 pid",
    "a fault of a GPU that is not there": f"NVRM: Xid (PCI:{ELSEWHERE}): 79 pid",
    "an all-clear": f"NVRM: Xid (PCI:{HERE}): 154 GPU recovery action changed from 0x2 (Reboot) to 0x0 (None)",
    "a UUID": f"NVRM: GPU at PCI:{HERE}: {uuid(1)}",
    "off the bus": f"NVRM: GPU {HERE}.0: GPU has fallen off the bus.",
    "a switch": f"nvidia-nvswitch0: SXid (PCI:{ELSEWHERE}.0): 20034 Fatal Link 30",
}
BREAKS = ("\r", "\n", "\x0b", "\x1e", "\u2028")


def everything() -> list[str]:
    """All that the kernel's log has, as a program finds it that is not ours."""
    descriptor, found = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK), []
    with contextlib.suppress(BlockingIOError):
        while True:
            with contextlib.suppress(BrokenPipeError):
                found.append(os.read(descriptor, kernel_log.RECORD_AT_MOST).decode("utf-8", "replace"))
    os.close(descriptor)
    return found


def forged(word: str, act: Callable[[], object]) -> list[str]:
    """The records that have the word after the act, of which our reader makes nothing."""
    log = kernel_log.Log(KMSG)
    log.read(None)
    act()
    found = [record for record in everything() if word in record]
    assert kernel_log.Parser(None).events(record for record in log.read(None) if word in record) == []
    log.close()
    return found


class Twins:
    """Two hosts of the same history; one of them hears of what was forged. GPU 0 waits for a reboot."""

    def __init__(self) -> None:
        self.host = Host(gpus=2)
        self.host.look()
        self.host.log(f"NVRM: Xid (PCI:{HERE}): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Reboot)")
        self.other = copy.deepcopy(self.host)

    def hears(self, records: list[str]) -> None:
        """As if the log of this machine were the host's, and nothing had been left out of it before."""
        parser = kernel_log.Parser(self.host.boot_id)
        assert parser.events(records) == []
        assert parser.uuids == {}
        self.host.replay(records)
        self.other.replay([])
        assert self.host.history == self.other.history
        assert self.host.codes(0) == ["xid_fatal"]
        assert self.host.codes(1) == []
        # The driver is heard behind it all.
        self.host.log(f"NVRM: Xid (PCI:{address(1)[:-2]}): 79, pid=1, name=x")
        assert self.host.codes(1) == ["xid_fatal"]


@pytest.fixture
def nobody(tmp_path: Path) -> Account:
    return Account(tmp_path / "nobody")


@pytest.fixture
def word() -> str:
    if not os.access(KMSG, os.R_OK):
        pytest.skip(f"{KMSG} cannot be read here")
    return f"attack-{secrets.token_hex(8)}"


def mounts(option: str) -> None:
    """What anybody may do who can make a user namespace; the mount is refused, and its option is in the log."""
    command = ["unshare", "-Urm", "mount", "-t", "tmpfs", "-o", option, "none", "/mnt"]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30)


def test_nobody_forges_the_drivers_lines_with_options_of_a_mount(nobody: Account, word: str) -> None:
    can = subprocess.run(
        ["unshare", "-Ur", "true"], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, check=False
    )
    if can.returncode:
        pytest.skip(f"nobody can make no user namespace here: {can.stderr.decode().strip()}")
    options = [f"x{sign}{line} {word}{sign}" for line in LINES.values() for sign in BREAKS[:2]]
    options += [f"x{sign}{LINES['a fault of a GPU']} {word}" for sign in BREAKS[2:]]
    options += [f"{line} {word}" for line in LINES.values()]
    found = forged(word, lambda: nobody.does(lambda: [mounts(option) for option in options]))
    if not found:
        pytest.skip("this kernel logs no options of a mount")
    assert len(found) > len(BREAKS)
    assert any("NVRM: Xid" in record for record in found)
    Twins().hears(found)


def crashes(name: bytes) -> int:
    """A process of this name that ends with a fault in its memory; its number."""
    child = os.fork()
    if child == 0:
        # What is handled is not logged.
        faulthandler.disable()
        ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
        ctypes.string_at(0)
        os._exit(0)
    _pid, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGSEGV
    return child


@pytest.mark.parametrize("name", ["NVRM: Xid (PCI:", "NVRM: GPU 0000:", "x\nNVRM: Xid (PC", "nvidia-nvswitch"])
def test_nobody_forges_them_with_the_name_of_a_process_that_crashes(nobody: Account, name: str) -> None:
    """Its line begins with the name, so that it can begin as the driver's does."""
    before = len(everything())
    nobody.does(lambda: Path("number").write_text(str(crashes(name.encode()))))
    shown = f"[{(nobody.directory / 'number').read_text()}]: segfault at 0"
    found = [record for record in everything()[max(0, before - 100) :] if shown in record]
    if not found:
        pytest.skip("this kernel logs no process that crashes (sysctl debug.exception-trace)")
    Twins().hears(found)


def test_root_in_user_space_forges_none_either(word: str) -> None:
    """In a container, say. The kernel takes few such lines in a short time."""

    def writes() -> None:
        for header, line in zip(("", "<0>", "<3>", "<11>"), LINES.values(), strict=False):
            with open(KMSG, "wb", buffering=0) as log, contextlib.suppress(OSError):
                log.write(f"{header}{line} {word}\r{line}".encode())

    try:
        found = forged(word, writes)
    except PermissionError as why:
        pytest.skip(f"{KMSG} cannot be written here: {why.strerror}")
    if not found:
        pytest.skip("this kernel takes no lines of user space at the moment (sysctl kernel.printk_devkmsg)")
    assert [record for record in found if record.partition(";")[2].startswith(kernel_log.DRIVERS)]
    Twins().hears(found)
