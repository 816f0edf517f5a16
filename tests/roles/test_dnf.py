# SPDX-License-Identifier: GPL-3.0-or-later
"""The path of dnf, on a machine that stands in for Enterprise Linux 9. The tests run in order on one machine.

It is a Debian 13 with Debian's dnf 4, whose plugins and modules are those of Enterprise Linux, and with these
differences: its release file names Rocky Linux 9, dpkg's list of packages and Debian's kernels are put aside, and
rpm's database knows stand-ins for a few packages of the system. So everything that the roles, Ansible's module and dnf
do is real; what the packages of Enterprise Linux themselves do (scripts, SELinux, dracut) is not shown here.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.repositories import el, rpm
from tests.roles.conftest import DEBIAN_13, ROOT, Role, lab, ssh
from tests.site.plays import Play, run_playbook

pytestmark = [pytest.mark.lab, pytest.mark.slow]

HOST = DEBIAN_13
PLAY = Path(__file__).with_name("converge.yml")
REPOSITORIES = "/srv/repositories"
PORT = 8099
SERVER = "stand-in-repositories.service"
LOCKS = "/etc/dnf/plugins/versionlock.list"

RELEASE = """\
NAME="Stand-in for Enterprise Linux"
ID="rocky"
ID_LIKE="rhel centos fedora"
VERSION_ID="9.5"
PLATFORM_ID="platform:el9"
PRETTY_NAME="Stand-in for Rocky Linux 9.5"
"""
# As Enterprise Linux has it.
DNF_CONF = """\
[main]
gpgcheck=1
installonly_limit=3
clean_requirements_on_remove=True
best=True
skip_if_unavailable=False
"""
SYSTEM_REPO = f"""\
[system]
name=Stand-in for the repositories of the distribution
baseurl=file://{REPOSITORIES}/system
gpgkey=file://{REPOSITORIES}/system/key.asc
"""
SYSTEM = ("stand-in-el", "kernel-core")

MAKE_EL = f"""
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install --no-install-recommends {" ".join(rpm.TOOLS)} python3-systemd >/dev/null
mkdir -p /root/workshop /etc/yum.repos.d
tar -C /root/workshop -x
/root/workshop/build 2>&1
systemd-run --quiet --unit={SERVER} python3 -u -m http.server --bind 127.0.0.1 --directory {REPOSITORIES} {PORT}
mkdir /root/debian
mv /lib/modules /boot/vmlinuz-* /root/debian
mkdir /lib/modules
mv /var/lib/dpkg/status /root/debian
# The plugin of Debian that has a repository of its own.
sed -i 's/^enabled.*/enabled = 0/' /etc/dnf/plugins/local.conf
rm /etc/os-release
cat > /etc/os-release <<'END'
{RELEASE}END
cat > /etc/dnf/dnf.conf <<'END'
{DNF_CONF}END
cat > /etc/yum.repos.d/system.repo <<'END'
{SYSTEM_REPO}END
dnf --quiet --assumeyes --releasever=9 install {" ".join(SYSTEM)} 2>&1
"""


def as_root(script: str, data: bytes = b"") -> str:
    """Run a script in the machine, with data on its standard input."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab.machines", "ssh", HOST, "--", "sudo", "bash", "-c", f"'{script}'"],
        cwd=ROOT,
        input=data,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return done.stdout.decode()


@pytest.fixture(scope="module")
def keys() -> Iterator[dict[str, str]]:
    """The machine, with the repositories in it; SHA-256 of the key of every repository."""
    lab("reset", HOST)
    escaped = MAKE_EL.replace("'", "'\\''")
    as_root(escaped, el.workshop(REPOSITORIES).archive())
    sums = ssh(HOST, f"cd {REPOSITORIES} && sha256sum */key.asc")
    yield {path.split("/")[0]: sum_ for sum_, path in (line.split() for line in sums.splitlines())}
    # It is a Debian no more.
    lab("reset", HOST)


def url(name: str) -> str:
    return f"http://127.0.0.1:{PORT}/{name}"


def repository(keys: dict[str, str], name: str = "tools", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "baseurl": url(name),
        "key": {"url": f"{url(name)}/key.asc", "sha256": keys[name]},
        **more,
    }


def run(document: dict[str, Any], options: str = "") -> Play:
    return run_playbook(PLAY, limit=HOST, extra_vars={"tested_document": document}, options=options)


def converge(document: dict[str, Any]) -> Play:
    play = run(document)
    assert play.rc == 0, play.tail()
    return play


def refused(document: dict[str, Any]) -> str:
    """Why the host failed."""
    play = run(document)
    assert play.rc != 0, play.tail()
    return " ".join(play.failures[HOST])


def tool(keys: dict[str, str], version: str, **more: Any) -> dict[str, Any]:
    return {
        "repositories": [repository(keys)],
        "packages": [{"name": "stand-in-tool", "version": version, "hold": True, **more}],
    }


def installed(pattern: str = "stand-in-*") -> list[str]:
    return sorted(ssh(HOST, f"rpm -qa --qf '%{{NAME}} %{{VERSION}}\\n' '{pattern}'").splitlines())


def locks() -> list[str]:
    return [line for line in ssh(HOST, f"cat {LOCKS}").splitlines() if line and not line.startswith("#")]


def requests() -> list[str]:
    return [line for line in ssh(HOST, f"sudo journalctl -o cat -u {SERVER}").splitlines() if '"GET ' in line]


def transactions() -> list[str]:
    """The lines of dnf's history, newest first."""
    return [line for line in ssh(HOST, "sudo dnf -q history list").splitlines() if line.split()[0].isdigit()]


BARE = ["stand-in-el 9.5"]


def test_check_mode_tells_the_truth_and_changes_nothing(keys: dict[str, str]) -> None:
    before = (installed("*"), ssh(HOST, "ls /etc/yum.repos.d /etc/pki/rpm-gpg"), locks())
    checked = run(tool(keys, "1.0"), "--check --diff")
    assert checked.rc == 0, checked.tail()
    assert checked.changed_tasks[HOST] == ["Compare the host with the desired document of document"]
    assert (installed("*"), ssh(HOST, "ls /etc/yum.repos.d /etc/pki/rpm-gpg"), locks()) == before
    done = converge(tool(keys, "1.0"))
    assert (
        checked.drifts[(HOST, "document")]
        == done.drifts[(HOST, "document")]
        == [
            "install the key of tools (is missing)",
            "write repository tools (is missing)",
            "install package stand-in-tool 1.0 and hold it (is not installed)",
            "install package python3-dnf-plugin-versionlock (is not installed)",
        ]
    )


def test_an_exact_version_from_a_signed_repository(keys: dict[str, str]) -> None:
    assert installed() == [*BARE, "stand-in-tool 1.0"]
    text = ssh(HOST, "cat /etc/yum.repos.d/tools.repo")
    assert "gpgcheck=1\n" in text
    assert "gpgkey=file:///etc/pki/rpm-gpg/tools.asc\n" in text
    assert locks() == ["stand-in-tool-0:1.0-1.el9.*"]


def test_a_second_run_changes_nothing_and_asks_nobody(keys: dict[str, str]) -> None:
    before = requests()
    play = converge(tool(keys, "1.0"))
    assert play.changed(HOST) == 0
    assert requests() == before


def test_dnf_itself_leaves_alone_what_is_held(keys: dict[str, str]) -> None:
    ssh(HOST, "sudo dnf -q -y upgrade")
    assert installed() == [*BARE, "stand-in-tool 1.0"]


def test_another_version_by_a_pattern_and_the_way_back(keys: dict[str, str]) -> None:
    """Of what a pattern fits the newest is taken; the lock follows."""
    converge(tool(keys, "1.*"))
    assert installed() == [*BARE, "stand-in-tool 1.0"], "it fits already"
    converge(tool(keys, "2.*"))
    assert installed() == [*BARE, "stand-in-tool 2.0"]
    assert locks() == ["stand-in-tool-0:2.0-1.el9.*"]
    converge(tool(keys, "1.*"))
    assert installed() == [*BARE, "stand-in-tool 1.1"]
    assert locks() == ["stand-in-tool-0:1.1-1.el9.*"]
    assert converge(tool(keys, "1.*")).changed(HOST) == 0


def test_a_version_that_is_not_to_be_had(keys: dict[str, str]) -> None:
    message = refused(tool(keys, "3.*"))
    assert f"{HOST}: document failed at 'Install packages': Failed to install some of the" in message
    assert "No package stand-in-tool-3.* available" in message
    assert installed() == [*BARE, "stand-in-tool 1.1"]
    assert converge(tool(keys, "1.*")).changed_tasks[HOST], "the hold that was taken away is set again"
    assert locks() == ["stand-in-tool-0:1.1-1.el9.*"]


def test_one_goes_and_the_other_comes_in_one_transaction(keys: dict[str, str]) -> None:
    document = {
        "packages": [{"name": "stand-in-rival", "hold": True}, {"name": "stand-in-tool", "state": "absent"}],
    }
    before = transactions()
    converge(document)
    assert installed() == [*BARE, "stand-in-rival 1.0"]
    assert locks() == ["stand-in-rival-0:1.0-1.el9.*"]
    assert len(transactions()) == len(before) + 1
    assert converge(document).changed(HOST) == 0


def test_nothing_goes_where_what_is_to_come_cannot_be_had(keys: dict[str, str]) -> None:
    """dnf's own shell would remove the old one and say that all went well."""
    document = {
        "packages": [{"name": "stand-in-tool", "version": "3.*"}, {"name": "stand-in-rival", "state": "absent"}],
    }
    message = refused(document)
    assert "failed at 'Download the packages before any is removed'" in message
    assert "Unable to find a match: stand-in-tool-3.*" in message
    assert installed() == [*BARE, "stand-in-rival 1.0"]


def test_removal_leaves_what_the_package_needed_and_takes_its_lock(keys: dict[str, str]) -> None:
    both = [{"name": "stand-in-needs", "hold": True}, {"name": "stand-in-rival", "state": "absent"}]
    converge({"packages": both})
    assert installed() == [*BARE, "stand-in-library 1.0", "stand-in-needs 1.0"]
    gone = {"packages": [{"name": "stand-in-n*", "state": "absent"}]}
    converge(gone)
    assert installed() == [*BARE, "stand-in-library 1.0"]
    assert locks() == []
    assert converge(gone).changed(HOST) == 0


def test_a_transaction_that_was_cut_is_finished(keys: dict[str, str]) -> None:
    """Cut between the new package and the removal of the old: rpm's database has both."""
    converge(tool(keys, "2.0"))
    ssh(HOST, f"sudo rpm -i --force --nodeps --justdb {REPOSITORIES}/tools/stand-in-tool-1.0-1.el9.x86_64.rpm")
    assert installed("stand-in-tool") == ["stand-in-tool 1.0", "stand-in-tool 2.0"]
    play = converge(tool(keys, "1.*"))
    assert "dnf was interrupted: stand-in-tool is installed at 1.0-1.el9 and 2.0-1.el9" in str(play.drifts)
    assert installed("stand-in-tool") == ["stand-in-tool 1.1"]
    assert converge(tool(keys, "1.*")).changed(HOST) == 0


def test_a_package_that_somebody_else_signed(keys: dict[str, str]) -> None:
    document = {"repositories": [repository(keys, "forged")], "packages": [{"name": "stand-in-forged"}]}
    message = refused(document)
    assert f"{HOST}: document failed at 'Install packages': Failed to validate GPG signature" in message
    assert "stand-in-forged" in message
    assert "stand-in-forged 1.0" not in installed()
    converge({"repositories": [{"name": "forged", "state": "absent"}]})


def test_a_key_that_is_not_the_one_that_was_checked(keys: dict[str, str]) -> None:
    wrong = repository(keys, "docker", key={"url": f"{url('docker')}/key.asc", "sha256": "0" * 64})
    message = refused({"repositories": [wrong], "packages": [{"name": "docker-ce"}]})
    assert "0" * 64 in message
    assert "docker" not in ssh(HOST, "ls /etc/pki/rpm-gpg /etc/yum.repos.d")


def test_a_repository_that_cannot_be_reached(keys: dict[str, str]) -> None:
    ssh(HOST, f"sudo systemctl kill --signal=STOP {SERVER}; sudo systemctl kill --signal=KILL {SERVER}")
    message = refused(tool(keys, "2.0"))
    assert f"{HOST}: document failed at 'Install packages': Failed to download metadata for repo 'tools'" in message
    assert installed("stand-in-tool") == ["stand-in-tool 1.1"]
    ssh(
        HOST,
        f"sudo systemctl reset-failed {SERVER}; sudo systemd-run --quiet --unit={SERVER} python3 -u -m http.server"
        f" --bind 127.0.0.1 --directory {REPOSITORIES} {PORT}",
    )
    converge(tool(keys, "2.0"))
    assert installed("stand-in-tool") == ["stand-in-tool 2.0"]


# Roles ---------------------------------------------------------------------------------------------------------------


def from_repository(keys: dict[str, str], name: str, prefix: str) -> dict[str, str]:
    """The variables of a role that name a repository and its key."""
    return {
        f"{prefix}_url": url(name),
        f"{prefix}_key_url": f"{url(name)}/key.asc",
        f"{prefix}_key_sha256": keys[name],
    }


def driver(keys: dict[str, str], **more: Any) -> dict[str, Any]:
    """NVIDIA's driver from its repository; not loaded, because there is none in the stand-ins."""
    return {
        "nvidia_driver_method": "nvidia_repo",
        "nvidia_driver_load": False,
        "container_runtime_engine": "none",
        "cuda_versions": [],
        **from_repository(keys, "cuda", "nvidia_driver_repo"),
        **more,
    }


DRIVER = Role("nvidia_driver", (HOST,))
OPEN_550 = {"nvidia_driver_branch": 550, "nvidia_driver_flavour": "open"}
CLOSED_570 = {"nvidia_driver_branch": 570, "nvidia_driver_flavour": "proprietary"}


def driver_packages() -> dict[str, str]:
    """Versions of the installed packages of the driver."""
    return dict(line.split() for line in installed("*nvidia*"))


def test_the_driver_is_announced_and_installed_at_one_version(keys: dict[str, str]) -> None:
    exact = driver(keys, **OPEN_550, nvidia_driver_version="550.54.15")
    checked = DRIVER.run(exact, options="--check")
    assert checked.rc == 0, checked.tail()
    assert driver_packages() == {}
    done = DRIVER.converge(exact)
    assert checked.drifts[(HOST, "nvidia_driver")] == done.drifts[(HOST, "nvidia_driver")]
    names = {"kmod-nvidia-open-dkms", "nvidia-driver-cuda", "nvidia-driver-cuda-libs", "nvidia-kmod-common"}
    have = driver_packages()
    assert {have[name] for name in names} == {"550.54.15"}
    held = {lock.rsplit("-", 2)[0] for lock in locks()}
    assert names <= held
    assert ssh(HOST, "readlink /var/lib/dkms/nvidia/kernel-*") == f"550.54.15/{el.KERNEL}\n"
    assert ssh(HOST, "systemctl is-active nvidia-persistenced").strip() == "active"
    before = requests()
    # dnf has read the file that chooses the stream, and has not written it anew.
    DRIVER.is_converged(exact)
    assert [line for line in requests()[len(before) :] if "repodata" in line or ".rpm" in line] == []


def test_a_branch_takes_the_newest_of_its_stream(keys: dict[str, str]) -> None:
    DRIVER.converge(driver(keys, **OPEN_550, nvidia_driver_version="550.163.01"))
    assert driver_packages()["nvidia-driver-cuda"] == "550.163.01"
    DRIVER.is_converged(driver(keys, **OPEN_550))
    # And back, as after a release that does not do.
    DRIVER.converge(driver(keys, **OPEN_550, nvidia_driver_version="550.54.15"))
    assert driver_packages()["kmod-nvidia-open-dkms"] == "550.54.15"


def test_another_branch_and_flavour_in_one_transaction(keys: dict[str, str]) -> None:
    before = transactions()
    DRIVER.converge(driver(keys, **CLOSED_570))
    assert len(transactions()) == len(before) + 1
    have = driver_packages()
    assert "kmod-nvidia-open-dkms" not in have
    assert {have["kmod-nvidia-latest-dkms"], have["nvidia-driver-cuda"]} == {"570.133.20"}
    assert ssh(HOST, "readlink /var/lib/dkms/nvidia/kernel-*") == f"570.133.20/{el.KERNEL}\n"
    assert "nvidia-driver 570-dkms [e]" in " ".join(ssh(HOST, "sudo dnf -q module list").split())
    assert all("550." not in lock for lock in locks())
    DRIVER.is_converged(driver(keys, **CLOSED_570))


def test_a_branch_that_the_repository_does_not_have_leaves_the_driver(keys: dict[str, str]) -> None:
    before = driver_packages()
    play = DRIVER.run(driver(keys, nvidia_driver_branch=565, nvidia_driver_flavour="open"))
    assert play.rc != 0
    assert "Unable to find a match: kmod-nvidia-open-dkms-565.*" in " ".join(play.failures[HOST])
    assert driver_packages() == before
    DRIVER.converge(driver(keys, **CLOSED_570))


@pytest.mark.slow
def test_two_toolkits_of_cuda_side_by_side(keys: dict[str, str]) -> None:
    role = Role("cuda", (HOST,))
    two = {
        # The driver that they are for.
        **driver(keys, **CLOSED_570),
        "cuda_method": "nvidia_repo",
        "cuda_versions": ["12.6", "12.4"],
        **from_repository(keys, "cuda", "cuda_repo"),
    }
    role.converge(two)
    assert "release 12.6" in ssh(HOST, "bash -lc 'nvcc --version'")
    assert "release 12.4" in ssh(HOST, "/usr/local/cuda-12.4/bin/nvcc --version")
    role.is_converged(two)
    gone = {**two, "cuda_versions": ["12.4"], "cuda_versions_absent": ["12.6"]}
    role.converge(gone)
    assert installed("cuda-*12-6*") == []
    assert "release 12.4" in ssh(HOST, "bash -lc 'nvcc --version'")
    role.is_converged(gone)


@pytest.mark.slow
def test_docker_and_the_container_toolkit_from_their_repositories(keys: dict[str, str]) -> None:
    role = Role("container_runtime", (HOST,))
    wanted = {
        **driver(keys, **CLOSED_570),
        "container_runtime_engine": "docker",
        "container_runtime_validate": "never",
        "container_runtime_docker_cdi": False,
        **from_repository(keys, "docker", "container_runtime_docker_repo"),
        **from_repository(keys, "toolkit", "container_runtime_toolkit_repo"),
        "container_runtime_toolkit_version": "1.17.7-1",
    }
    role.converge(wanted)
    assert installed("docker-ce") == ["docker-ce 27.5.1"]
    assert installed("nvidia-container-toolkit") == ["nvidia-container-toolkit 1.17.7"]
    assert "nvidia-container-toolkit-0:1.17.7-1.*" in locks()
    assert ssh(HOST, "systemctl is-active docker.service").strip() == "active"
    role.is_converged(wanted)
    role.converge({**wanted, "container_runtime_toolkit_version": "1.17.8-1"})
    assert installed("*nvidia-container*")[:1] == ["libnvidia-container-tools 1.17.8"]
    assert "nvidia-container-toolkit-0:1.17.8-1.*" in locks()


def test_the_driver_goes(keys: dict[str, str]) -> None:
    absent = driver(keys, **CLOSED_570, nvidia_driver_state="absent")
    DRIVER.converge(absent)
    assert {name for name in driver_packages() if "container" not in name} == set()
    assert not [lock for lock in locks() if "driver" in lock or "kmod" in lock]
    assert ssh(HOST, "ls /etc/dnf/modules.d /var/lib/dkms/nvidia").split() == [
        "/etc/dnf/modules.d:",
        "/var/lib/dkms/nvidia:",
    ]
    DRIVER.is_converged(absent)
