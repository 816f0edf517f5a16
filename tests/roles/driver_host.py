# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests of the driver ask the machine that it is installed on."""

from __future__ import annotations

import shlex

from tests.roles.conftest import DEBIAN_13, lab, ssh

HOLDER = "import os, time; held = os.open('/dev/nvidia0', os.O_PATH); time.sleep(3600)"


def on_host(command: str) -> str:
    return ssh(DEBIAN_13, command).strip()


def packages() -> dict[str, str]:
    """Versions of the installed packages of a driver."""
    listing = on_host("dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n'")
    rows = [line.split() for line in listing.splitlines()]
    return {row[1]: row[2] for row in rows if row[0] == "installed" and ("nvidia" in row[1] or "libcuda" in row[1])}


def loaded() -> dict[str, str]:
    """Versions of the loaded modules of a driver, as the kernel tells them."""
    listing = on_host("cd /sys/module && grep -H . nvidia*/version || true")
    return {line.split("/")[0]: line.split(":")[1] for line in listing.splitlines()}


def is_driven_by(version: str) -> None:
    """The driver of this version, and no other, is installed, built and loaded, and its daemon runs."""
    assert {found.removesuffix("-1") for found in packages().values()} == {version}
    built = on_host("sudo dkms status")
    assert f"nvidia/{version}" in built
    assert built.count("nvidia/") == built.count(": installed") == len(built.splitlines()), built
    assert {"nvidia", "nvidia_uvm"} <= set(loaded())
    assert set(loaded().values()) == {version}
    assert f" {version} " in on_host("cat /proc/driver/nvidia/version")
    assert on_host("systemctl is-active nvidia-persistenced") == "active"
    # Of another driver nothing is left, neither source nor library.
    assert on_host("cd /usr/src && echo nvidia-*") == f"nvidia-{version}"
    libraries = on_host(
        "cd /usr/lib/x86_64-linux-gnu && ls | grep -E '^lib(cuda|nvidia-ml|nvidia-cfg)[.]so[.][0-9]{3}'"
    )
    assert libraries.split() == [f"{name}.so.{version}" for name in ("libcuda", "libnvidia-cfg", "libnvidia-ml")]


def transactions() -> int:
    """How often apt has changed the host."""
    return int(on_host("sudo grep -c ^Start-Date /var/log/apt/history.log || true") or 0)


def hold_a_gpu() -> None:
    ssh(DEBIAN_13, f'sudo systemd-run --unit=holder --quiet python3 -I -c "{HOLDER}"')


def left_behind() -> set[str]:
    """Paths that the bare machine did not have and that are of a driver, as far as their names tell.

    The headers of the kernel stay: other modules are built with them, too. So do dpkg's own notes of names that it has
    once seen, and directories that it leaves behind empty.
    """
    added = [line.split(maxsplit=1)[1] for line in lab("changes", DEBIAN_13).splitlines() if line.startswith("A ")]
    found = [
        path
        for path in added
        if any(word in path for word in ("nvidia", "libcuda"))
        and not path.startswith(("/usr/src/linux-", "/var/cache/", "/var/lib/dpkg/triggers/"))
    ]
    holds_a_file = '[ ! -d "$path" ] || [ -n "$(sudo find "$path" ! -type d)" ]'
    asked = f'for path in {shlex.join(found)}; do if {holds_a_file}; then echo "$path"; fi; done'
    return set(on_host(asked).splitlines())


def nothing_is_left() -> None:
    """No package, no hold, no module, built or loaded."""
    assert packages() == {}
    assert on_host("apt-mark showhold; sudo dkms status; grep ^nvidia /proc/modules || true") == ""
    assert on_host("systemctl list-unit-files --no-legend 'nvidia-*' || true") == ""
