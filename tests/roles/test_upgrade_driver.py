# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/upgrade_driver.yml on a node that works, with drivers that stand in for NVIDIA's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.repositories.__main__ import BROKEN_DRIVER, DRIVERS
from tests.roles.conftest import DEBIAN_12, DEBIAN_13, ROOT, Role, lab, ssh
from tests.roles.driver_host import on_host
from tests.site.plays import Play, run_playbook

pytestmark = [pytest.mark.lab, pytest.mark.slow]

OLDER, NEWER, NEXT = DRIVERS
HOOKS = ROOT / "tests" / "roles" / "hooks"
SCENARIO, WRONG_RESULTS = "a100-sxm4-40gb-x2", "wrong-kernel-result"
# What an operator runs on the GPUs: a unit that holds one, and that notes with which driver it starts and stops.
WORK = """[Service]
ExecStartPre=/bin/sh -c 'echo start $(cat /sys/module/nvidia/version) >> /var/tmp/upgrade-order'
ExecStart=/usr/bin/python3 -I -c "import os, time; held = os.open('/dev/nvidia0', os.O_PATH); time.sleep(36000)"
ExecStopPost=/bin/sh -c 'echo stop $(cat /sys/module/nvidia/version) >> /var/tmp/upgrade-order'
"""


def order() -> list[str]:
    """What happened on the host since the last call, in its order."""
    said = on_host("cat /var/tmp/upgrade-order 2>/dev/null || true; sudo rm -f /var/tmp/upgrade-order")
    return said.splitlines()


@pytest.fixture(scope="module")
def nvidia(repositories: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {
        "nvidia_driver_method": "nvidia_repo",
        "nvidia_driver_flavour": "proprietary",
        "nvidia_driver_repo_url": repositories["driver"],
        "nvidia_driver_repo_key_url": repositories["key"],
        "nvidia_driver_repo_key_sha256": repositories["sha256"],
        "converge_drain_tasks": str(HOOKS / "drain.yml"),
        "converge_restore_tasks": str(HOOKS / "restore.yml"),
        "upgrade_stop_units": ["work.service"],
        "gpu_verify_report_dir": str(tmp_path_factory.mktemp("reports")),
        # There is no container engine on this machine.
        "container_runtime_engine": "none",
    }


@pytest.fixture(scope="module")
def working(nvidia: dict[str, Any]) -> None:
    """A node with the older branch, whose GPU is worked on."""
    Role("nvidia_driver", (DEBIAN_13,)).converge({**nvidia, "nvidia_driver_branch": 570})
    Role("gpu_device_nodes", (DEBIAN_13,)).converge()
    ssh(DEBIAN_13, f"sudo tee /etc/systemd/system/work.service <<'END'\n{WORK}END")
    ssh(DEBIAN_13, "sudo systemctl start work")
    order()


def upgrade(variables: dict[str, Any], options: str = "", machines: tuple[str, ...] = (DEBIAN_13,)) -> Play:
    return run_playbook("upgrade_driver.yml", limit=",".join(machines), extra_vars=variables, options=options)


def loaded() -> str:
    return on_host("cat /sys/module/nvidia/version")


def test_check_mode_announces_and_changes_nothing(working: None, nvidia: dict[str, Any]) -> None:
    play = upgrade({**nvidia, "nvidia_driver_branch": 580}, options="--check --diff")
    assert play.rc == 0, play.tail()
    assert f"install package nvidia-driver-cuda {NEXT}-1 and hold it (is {NEWER}-1, not 580.*)" in " ".join(
        play.stdout.split()
    )
    assert loaded() == NEWER
    assert order() == []


def test_work_is_off_while_the_driver_is_exchanged(working: None, nvidia: dict[str, Any]) -> None:
    play = upgrade({**nvidia, "nvidia_driver_branch": 580})
    assert play.rc == 0, play.tail()
    assert loaded() == NEXT
    assert order() == [f"drain {NEWER}", f"stop {NEWER}", f"start {NEXT}", f"restore {NEXT}, verified {NEXT}"]
    assert on_host("systemctl is-active work") == "active"
    assert on_host("ls /var/lib/baremetal-gpu/pending") == ""


def test_a_host_that_is_as_wanted_is_left_alone(working: None, nvidia: dict[str, Any]) -> None:
    play = upgrade({**nvidia, "nvidia_driver_branch": 580})
    assert play.rc == 0, play.tail()
    assert play.changed(DEBIAN_13) == 0, play.changed_tasks
    assert order() == []


def test_a_host_whose_upgrade_fails_stays_without_work(working: None, nvidia: dict[str, Any]) -> None:
    """It is named with the reason, and the batches after it are not begun."""
    other = lab("changes", DEBIAN_12)
    play = upgrade(
        {**nvidia, "nvidia_driver_branch": 590, "nvidia_driver_version": BROKEN_DRIVER, "upgrade_serial": 1},
        machines=(DEBIAN_13, DEBIAN_12),
    )
    assert play.rc != 0
    assert list(play.failures) == [DEBIAN_13]
    message = " ".join(play.failures[DEBIAN_13])
    assert "gpu1: the upgrade failed at" in message
    assert "this stand-in does not go with this kernel" in message
    assert "the host stays without work" in message
    assert order()[:2] == [f"drain {NEXT}", f"stop {NEXT}"]
    assert on_host("systemctl is-active work || true") == "inactive"
    assert on_host("cat /var/lib/baremetal-gpu/pending/drained") == "upgrade of the driver"
    assert lab("changes", DEBIAN_12) == other


def test_the_next_run_that_succeeds_gives_work_back(working: None, nvidia: dict[str, Any]) -> None:
    play = upgrade({**nvidia, "nvidia_driver_branch": 580})
    assert play.rc == 0, play.tail()
    assert loaded() == NEXT
    assert order()[-2:] == [f"start {NEXT}", f"restore {NEXT}, verified {NEXT}"]
    assert on_host("ls /var/lib/baremetal-gpu/pending") == ""


def test_a_gpu_that_computes_wrong_gets_no_work(working: None, nvidia: dict[str, Any]) -> None:
    """The new driver is installed and loaded, but what it computes is verified before work comes back."""
    wanted = {**nvidia, "nvidia_driver_branch": 570}
    lab("scenario", DEBIAN_13, WRONG_RESULTS)
    play = upgrade(wanted)
    message = " ".join(play.failures[DEBIAN_13])
    assert "gpu1: the upgrade failed at" in message
    assert "wrong" in message
    assert loaded() == NEWER
    assert not [line for line in order() if line.startswith("restore")]
    assert on_host("cat /var/lib/baremetal-gpu/pending/drained") == "upgrade of the driver"
    # Another run finds the driver as wanted, and gives no work back for that.
    assert on_host("ls /var/lib/baremetal-gpu/pending").split() == ["drained", "proof-gpu_verify"]
    # Once the GPU is exchanged.
    lab("scenario", DEBIAN_13, SCENARIO)
    play = upgrade(wanted)
    assert play.rc == 0, play.tail()
    assert order()[-1] == f"restore {NEWER}, verified {NEWER}"
    assert on_host("ls /var/lib/baremetal-gpu/pending") == ""
