# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts against desired documents: the cases of drift_cases.yml, and what holds for all of them."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.drift import compare as drift
from ansible_collections.baremetal.gpu.plugins.modules import gpu_query
from ansible_collections.baremetal.gpu.plugins.plugin_utils import drift_remedy
from tests.unit.plugins.drift_host import KERNEL, DriftHost

CASES = yaml.safe_load((Path(__file__).parent / "drift_cases.yml").read_text())
FLAT = [(f"{section}: {case['case']}", case) for section, cases in CASES.items() for case in cases]

every_case = pytest.mark.parametrize("case", [case for _name, case in FLAT], ids=[name for name, _case in FLAT])


@pytest.fixture
def host(tmp_path):
    return DriftHost(tmp_path)


def inspect(host: DriftHost, desired: dict[str, Any], diff: bool = True) -> dict[str, Any]:
    return drift.inspect(desired, host.run, root=str(host.root), kernel=KERNEL, diff=diff)


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted(root.rglob("*"))
    }


def recorded(remedy):
    """Names of the records that are written."""
    return [item["path"].rsplit("/", 1)[1] for item in remedy["records"] if item["state"] == "file"]


@every_case
def test_case(case, host):
    host.build(case.get("host") or {})
    found = inspect(host, case["desired"])
    assert found["plan"] == case["plan"]
    assert found["drifted"] == bool(case["plan"])
    if "refresh" in case:
        assert found["refresh"] == case["refresh"]
    for section, actions in case.get("actions", {}).items():
        assert [item["actions"] for item in found["drift"][section]] == actions
    if "records" in case:
        assert recorded(drift_remedy.remedy(case["desired"], found)) == case["records"]


@every_case
def test_inspection_changes_neither_host_nor_document(case, host):
    host.build(case.get("host") or {})
    before, desired = tree(host.root), copy.deepcopy(case["desired"])
    inspect(host, case["desired"])
    assert tree(host.root) == before
    assert case["desired"] == desired


@every_case
def test_every_difference_is_told_and_shown(case, host):
    """Each item has its reason and its actions, a line of the plan, and a place in the diff."""
    host.build(case.get("host") or {})
    found = inspect(host, case["desired"])
    items = [item for items in found["drift"].values() for item in items]
    assert len(items) == len(found["plan"])
    assert all(item["why"] and item["actions"] for item in items)
    assert bool(found["diff"]) == bool(items)
    assert all(shown["before"] != shown["after"] or not shown["before"] for shown in found["diff"])
    assert list(found["drift"]) == [section for section in drift.SECTIONS if section in found["drift"]]


@every_case
def test_a_host_without_drift_costs_no_question_to_apt(case, host):
    host.build(case.get("host") or {})
    found = inspect(host, case["desired"])
    asked = {command[0] for command in host.commands}
    missing = any("install" in item["actions"] for item in found["drift"].get("packages", ()))
    assert ("apt-cache" in asked) == missing
    assert len([command for command in host.commands if command[0] == "systemctl"]) <= 1


@every_case
def test_options_that_are_left_out_may_be_null(case, host):
    """The module fills in null for every option that is not there."""
    host.build(case.get("host") or {})
    desired = {
        section: [{"mode": None, "version": None, "hold": None, "key": None, "enabled": None, **item} for item in items]
        if isinstance(items, list)
        else items
        for section, items in case["desired"].items()
    }
    nothing = dict.fromkeys(["repositories", "pins", "packages", "files", "units", "dkms", "initramfs", "alternatives"])
    assert inspect(host, {**nothing, **desired})["plan"] == case["plan"]


def test_the_diff_of_a_file_is_its_content(host):
    host.file("/etc/x", "old\n")
    found = inspect(host, {"files": [{"path": "/etc/x", "content": "new\n"}]})
    assert found["diff"] == [{"before_header": "/etc/x", "after_header": "/etc/x", "before": "old\n", "after": "new\n"}]


def test_the_diff_of_a_mode_tells_the_mode(host):
    host.file("/etc/x", "same\n", mode=0o644)
    (shown,) = inspect(host, {"files": [{"path": "/etc/x", "content": "same\n", "mode": "0600"}]})["diff"]
    assert shown["before"] == "mode is 0644, not 0600\n"


LARGE = "".join(f"line {number} of a program\n" for number in range(8000))


def test_a_large_new_file_is_told_in_one_line(host):
    (shown,) = inspect(host, {"files": [{"path": "/usr/libexec/x", "content": LARGE}]})["diff"]
    digest = hashlib.sha256(LARGE.encode()).hexdigest()
    assert shown["before"] == ""
    assert shown["after"] == f"8000 lines, {len(LARGE)} bytes, too much to show, sha256 {digest}\n"


def test_of_a_large_file_the_differing_lines_are_shown(host):
    host.file("/usr/libexec/x", LARGE)
    wanted = LARGE.replace("line 7000 of", "line 7000 in")
    (shown,) = inspect(host, {"files": [{"path": "/usr/libexec/x", "content": wanted}]})["diff"]
    assert "\n-line 7000 of a program\n+line 7000 in a program\n" in shown["prepared"]
    assert len(shown["prepared"].splitlines()) == 11
    assert "before" not in shown


def test_a_large_file_with_another_mode_tells_the_mode(host):
    host.file("/usr/libexec/x", LARGE, mode=0o644)
    (shown,) = inspect(host, {"files": [{"path": "/usr/libexec/x", "content": LARGE, "mode": "0755"}]})["diff"]
    assert (shown["before"], shown["after"]) == ("mode is 0644, not 0755\n", "as wanted\n")


def test_a_secret_is_nowhere_in_the_answer(host):
    host.file("/etc/secret", "old-secret\n")
    desired = {"files": [{"path": "/etc/secret", "content": "new-secret\n", "sensitive": True}]}
    found = inspect(host, drift_remedy.as_sent(desired))
    assert found["plan"] == ["write /etc/secret (content differs)"]
    assert "secret\\n" not in repr(found)
    host.file("/etc/secret", "new-secret\n")
    assert inspect(host, drift_remedy.as_sent(desired))["plan"] == []


def test_a_module_that_need_not_be_unloaded_is_no_failure(host):
    host.kernel_module("nouveau", users=2)
    item = {"name": "nouveau", "state": "unloaded"}
    assert inspect(host, {"kernel_modules": [item]})["required"] is True
    found = inspect(host, {"kernel_modules": [{**item, "required": False}]})
    assert (found["drifted"], found["required"]) == (True, False)


def test_processes_that_hold_a_device_are_named_but_not_those_of_stopped_units(host):
    host.kernel_module("nvidia", version="535.10")
    host.directory("/var/lib/dkms/nvidia-current/550.9")
    host.link(f"/var/lib/dkms/nvidia-current/kernel-{KERNEL}-x86_64", f"550.9/{KERNEL}/x86_64")
    host.file(f"/lib/modules/{KERNEL}/updates/dkms/nvidia-current.ko")
    for process, name, group in ((10, "nvidia-persiste", "nvidia-persistenced.service"), (11, "python3", "user.slice")):
        host.link(f"/proc/{process}/fd/3", "/dev/nvidia0")
        host.file(f"/proc/{process}/comm", f"{name}\n")
        host.file(f"/proc/{process}/cgroup", f"0::/system.slice/{group}\n")
    module = {"name": "nvidia", "current": True, "devices": ["/dev/nvidia[0-9]*"], "units": ["nvidia-persistenced"]}
    (item,) = inspect(host, {"kernel_modules": [module]})["drift"]["kernel_modules"]
    assert item["actions"] == ["reboot"]
    assert item["held_by"] == ["python3 (pid 11)"]
    (host.root / "proc/11/fd/3").unlink()
    (item,) = inspect(host, {"kernel_modules": [module]})["drift"]["kernel_modules"]
    assert (item["actions"], item["unload"]) == (["reload"], ["nvidia"])


def test_processes_that_hold_a_module_that_is_not_wanted_are_named(host):
    host.kernel_module("nvidia", version="535.10")
    host.link("/proc/11/fd/3", "/dev/nvidia0")
    host.file("/proc/11/comm", "python3\n")
    module = {"name": "nvidia", "state": "unloaded", "devices": ["/dev/nvidia[0-9]*"]}
    (item,) = inspect(host, {"kernel_modules": [module]})["drift"]["kernel_modules"]
    assert (item["actions"], item["held_by"]) == (["unload"], ["python3 (pid 11)"])
    assert item["why"] == "is loaded and held by python3 (pid 11)"
    (host.root / "proc/11/fd/3").unlink()
    (item,) = inspect(host, {"kernel_modules": [module]})["drift"]["kernel_modules"]
    assert "held_by" not in item


def test_packages_that_apt_knows_need_no_fresh_lists(host):
    host.policy("curl", "8.1-2")
    assert inspect(host, {"packages": [{"name": "curl"}]})["refresh"] is False
    assert inspect(host, {"packages": [{"name": "curl", "version": "9.*"}]})["refresh"] is True
    assert inspect(host, {"packages": [{"name": "wget"}]})["refresh"] is True


VERSIONLOCK = "python3-dnf-plugin-versionlock\t0\t4.3.0\t13.el9\tnoarch\n"
LOCKS = "/etc/dnf/plugins/versionlock.list"


def make_rpm_host(host, *rows):
    (host.root / "var/lib/dpkg/status").unlink()
    host.rpms = "".join(rows)


def test_rpm_packages(host):
    make_rpm_host(
        host,
        "nvidia-driver-cuda\t3\t550.54.14\t1.el9\tx86_64\nbash\t0\t5.1.8\t9.el9\tx86_64\n",
        VERSIONLOCK,
    )
    host.file(LOCKS, "# kept\nnvidia-driver-cuda-3:550.54.14-1.el9.*\n!bash-0:5.0-1.el9.*\n")
    wanted = [
        {"name": "nvidia-driver-cuda", "version": "550.*", "hold": True},
        {"name": "bash", "hold": True},
        {"name": "dkms"},
    ]
    found = inspect(host, {"packages": wanted, "repositories": [{"name": "r", "baseurl": "http://r.example/"}]})
    assert found["manager"] == "dnf"
    assert found["plan"] == [
        "write repository r (is missing)",
        "hold package bash (is not held)",
        "install package dkms (is not installed)",
    ]
    assert found["drift"]["repositories"][0]["path"] == "/etc/yum.repos.d/r.repo"
    assert found["refresh"] is False


def test_rpm_locks_need_the_plugin_that_reads_them(host):
    make_rpm_host(host, "bash\t0\t5.1.8\t9.el9\tx86_64\n")
    host.file(LOCKS, "bash-0:5.1.8-9.el9.*\n")
    assert inspect(host, {"packages": [{"name": "bash", "hold": True}]})["plan"] == [
        "hold package bash (is not held)",
        "install package python3-dnf-plugin-versionlock (is not installed)",
    ]
    assert inspect(host, {"packages": [{"name": "bash"}]})["plan"] == []


def test_rpm_locks_of_other_versions_are_taken_away_first(host):
    """Of a package that is gone, or that somebody changed in spite of its lock."""
    make_rpm_host(host, "bash\t0\t5.1.8\t9.el9\tx86_64\n", VERSIONLOCK)
    host.file(LOCKS, "bash-0:5.0-1.el9.*\nnvidia-driver-cuda-3:550.54.14-1.el9.*\n")
    wanted = [{"name": "nvidia-driver-cuda", "version": "570.*", "hold": True}, {"name": "bash", "hold": True}]
    drift = inspect(host, {"packages": wanted})["drift"]
    assert [item["actions"] for item in drift["packages"]] == [["unhold", "install", "hold"], ["unhold", "hold"]]


def test_rpm_headers_of_one_of_several_kernels(host):
    """Their packages have one name; the version is part of what is asked for."""
    make_rpm_host(
        host,
        "kernel-devel\t0\t5.14.0\t427.el9\tx86_64\nkernel-devel\t0\t5.14.0\t503.el9\tx86_64\n",
    )
    kernels = ["5.14.0-427.el9.x86_64", "5.14.0-503.el9.x86_64", "5.14.0-570.el9.x86_64"]
    found = inspect(host, {"packages": [{"name": "kernel-devel-{kernel}", "kernels": kernels}]})
    assert found["plan"] == ["install package kernel-devel-5.14.0-570.el9.x86_64 (is not installed)"]


def test_rpm_package_at_two_versions_was_left_by_a_cut_transaction(host):
    make_rpm_host(host, "a\t3\t570.1\t1.el9\tx86_64\na\t3\t550.1\t1.el9\tx86_64\nb\t0\t1\t1\tnoarch\n")
    found = inspect(host, {"packages": [{"name": "a", "version": "550.*"}, {"name": "b"}]})
    assert found["plan"] == [
        "finish what was interrupted in rpm (dnf was interrupted: a is installed at 550.1-1.el9 and 570.1-1.el9)",
        "install package a 550.* (is installed at 550.1-1.el9 and 570.1-1.el9)",
    ]


def test_where_keys_lie_by_default(host):
    repository = {"name": "r", "baseurl": "http://r.example/", "uris": ["http://r.example/"], "suites": ["/"]}
    repository["key"] = {"content": "k"}
    assert inspect(host, {"repositories": [repository]})["drift"]["keys"][0]["path"] == "/etc/apt/keyrings/r.asc"
    make_rpm_host(host)
    drift = inspect(host, {"repositories": [repository]})["drift"]
    assert drift["keys"][0]["path"] == "/etc/pki/rpm-gpg/r.asc"
    assert "gpgkey=file:///etc/pki/rpm-gpg/r.asc\n" in drift["repositories"][0]["content"]


def test_whoever_drained_the_host_is_not_told_of_it(host):
    host.file("/var/lib/baremetal-gpu/pending/drained", "upgrade\n")
    assert drift.inspect({}, host.run, root=str(host.root))["drifted"] is True
    assert drift.inspect({}, host.run, root=str(host.root), keep_drained=True)["drifted"] is False


def test_a_proof_that_is_due_differs_and_is_not_what_mending_must_settle(host):
    """Otherwise the comparison after mending would fail before anything could be proven."""
    host.file("/var/lib/baremetal-gpu/pending/proof-a", "x changes\n")
    found = inspect(host, {"proofs": [{"name": "a", "what": "that a works"}]})
    assert (found["drifted"], found["required"]) == (True, False)


def test_work_comes_back_when_the_verification_has_passed(host):
    host.file("/var/lib/baremetal-gpu/pending/drained", "upgrade\n")
    host.file(f"/var/lib/baremetal-gpu/pending/{drift.VERIFICATION}", "upgrade\n")
    found = inspect(host, {})
    assert (found["drifted"], found["required"]) == (True, False)
    assert drift_remedy.remedy({}, found)["restore"] is False
    (host.root / "var/lib/baremetal-gpu/pending" / drift.VERIFICATION).unlink()
    assert drift_remedy.remedy({}, inspect(host, {}))["restore"] is True
    assert f"{drift.PENDING}/{drift.VERIFICATION}" == gpu_query.RECORD


def test_what_is_compared_elsewhere_asks_for_a_proof_too(host):
    wanted = {"proofs": [{"name": "a", "what": "that a works"}]}
    others = ["/etc/a.conf: b differ", "/etc/b.conf: c differ", "/etc/c.conf: d differ", "/etc/d.conf: e differ"]
    found = drift.inspect(wanted, host.run, root=str(host.root), others=others)
    cause = "/etc/a.conf: b differ, /etc/b.conf: c differ, /etc/c.conf: d differ, 1 more"
    assert found["plan"] == [f"prove that a works ({cause})"]


@pytest.fixture
def outdated(host):
    """A host whose loaded driver is older than the installed one."""
    host.kernel_module("nvidia", version="535.10")
    host.link(f"/var/lib/dkms/nvidia-current/kernel-{KERNEL}-x86_64", f"550.9/{KERNEL}/x86_64")
    host.file(f"/lib/modules/{KERNEL}/updates/dkms/nvidia-current.ko")
    return host


EXCHANGE = {
    "kernel_modules": [{"name": "nvidia", "current": True, "units": ["persistenced", "dcgm", "gridd"]}],
    "units": [{"name": "persistenced", "enabled": True, "state": "started"}],
}


def test_what_is_stopped_for_an_exchange_is_started_again(outdated):
    """Also the operator's units that the document does not name; not those that did not run."""
    outdated.unit("persistenced.service")
    outdated.unit("dcgm.service")
    outdated.unit("gridd.service", active="inactive")
    found = inspect(outdated, EXCHANGE)
    assert found["plan"] == [
        "exchange kernel module nvidia (version 535.10 is loaded, 550.9 is installed)",
        "restart unit persistenced.service (the exchange of nvidia)",
        "restart unit dcgm.service (the exchange of nvidia)",
    ]
    assert recorded(drift_remedy.remedy(EXCHANGE, found)) == ["restart-persistenced.service", "restart-dcgm.service"]


def test_a_package_that_changes_announces_the_exchange_of_its_module(host):
    host.kernel_module("nvidia", "535.10")
    host.unit("persistenced.service")
    host.package("nvidia-kernel-dkms", "535.10-1")
    desired = {
        "packages": [{"name": "nvidia-kernel-dkms", "version": "550.*"}],
        "kernel_modules": [{**EXCHANGE["kernel_modules"][0], "packages": ["*nvidia*dkms*"]}],
        "units": EXCHANGE["units"],
    }
    plan = inspect(host, desired)["plan"]
    assert "exchange kernel module nvidia (version 535.10 is loaded, and nvidia-kernel-dkms changes)" in plan
    assert "restart unit persistenced.service (the exchange of nvidia)" in plan


def test_the_other_flavour_of_the_same_version_is_another_module(host):
    host.kernel_module("nvidia", "550.90")
    host.file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90  Thu\n")
    host.file(f"/lib/modules/{KERNEL}/modules.builtin")
    host.link(f"/var/lib/dkms/nvidia-current-open/kernel-{KERNEL}-x86_64", f"550.90/{KERNEL}/x86_64")
    host.file(f"/lib/modules/{KERNEL}/updates/dkms/nvidia-current-open.ko")
    assert inspect(host, {"kernel_modules": EXCHANGE["kernel_modules"]})["plan"] == [
        "exchange kernel module nvidia (the proprietary module is loaded, the open one is installed)"
    ]


def test_what_was_stopped_for_an_exchange_that_was_cut_is_started_by_the_next_run(host):
    host.kernel_module("nvidia")
    host.unit("persistenced.service", active="inactive")
    host.unit("dcgm.service", active="inactive")
    for name in ("persistenced", "dcgm"):
        host.file(f"{drift.PENDING}/restart-{name}.service", "the exchange of nvidia\n")
    due = "a restart is due since an earlier run: the exchange of nvidia"
    assert inspect(host, EXCHANGE)["plan"] == [
        f"restart unit persistenced.service (is inactive, {due})",
        f"restart unit dcgm.service (is inactive, {due})",
    ]


@pytest.mark.parametrize(
    ("there", "content", "plan"),
    [
        ("static", "new\n", ["enable unit x.service (gets another file)"]),
        ("enabled", "new\n", []),
        ("static", "old\n", []),
    ],
    ids=["a package's that cannot be enabled", "enabled", "as wanted"],
)
def test_a_unit_whose_file_hides_another_is_enabled(host, there, content, plan):
    path = "/etc/systemd/system/x.service"
    host.unit("x.service", enabled=there)
    host.file(path, "old\n")
    desired = {"files": [{"path": path, "content": content}], "units": [{"name": "x.service", "enabled": True}]}
    assert [line for line in inspect(host, desired)["plan"] if "unit" in line] == plan


def test_units_of_the_operator_are_otherwise_left_alone(host):
    host.kernel_module("nvidia")
    host.unit("persistenced.service")
    host.unit("dcgm.service", active="failed")
    assert inspect(host, EXCHANGE)["plan"] == []


def test_alternatives_of_enterprise_linux(host):
    """Hand-made, in the form that chkconfig's alternatives writes: a family before the priority, a service behind."""
    host.file(
        "/var/lib/alternatives/cuda",
        "manual\n/usr/local/cuda\n\n/usr/local/cuda-12.4\n124\n/usr/local/cuda-12.6\n@cuda@126 cuda-service\n",
    )
    host.link("/etc/alternatives/cuda", "/usr/local/cuda-12.6")
    host.link("/usr/local/cuda", "/etc/alternatives/cuda")
    item = {"name": "cuda", "link": "/usr/local/cuda", "path": "/usr/local/cuda-12.6", "priority": 126}
    assert inspect(host, {"alternatives": [item]})["drifted"] is False
    other = {**item, "path": "/usr/local/cuda-12.4", "priority": 124}
    assert inspect(host, {"alternatives": [other]})["drift"]["alternatives"][0]["why"] == (
        "/usr/local/cuda-12.6 is chosen"
    )


def test_strangers_in_the_tree_of_dkms_are_named_at_most(host):
    host.directory("/var/lib/dkms/nvidia-current/550.9/source")
    host.link(f"/var/lib/dkms/nvidia-current/kernel-{KERNEL}-x86_64", f"550.9/{KERNEL}/x86_64")
    desired = {"dkms": [{"name": "nvidia*", "kernels": "running", "version": "550.*"}]}
    assert "notes" not in inspect(host, desired)
    host.link("/var/lib/dkms/nvidia/390.48/source", "/usr/src/nvidia-390.48")
    host.directory("/var/lib/dkms/nvidia-fs/2.17.5/source")
    found = inspect(host, desired)
    assert (found["drifted"], found["required"]) == (False, False)
    assert found["notes"] == [
        "DKMS has nvidia-fs 2.17.5 not built for every kernel; it is not part of the wanted driver; if it is not "
        "needed, remove it with `dkms remove nvidia-fs/2.17.5 --all`",
        "DKMS knows nvidia 390.48, whose source is gone; forget it with `dkms remove nvidia/390.48 --all`",
    ]
    # Somebody's own module that is built is nobody's business.
    host.link(f"/var/lib/dkms/nvidia-fs/kernel-{KERNEL}-x86_64", f"2.17.5/{KERNEL}/x86_64")
    assert len(inspect(host, desired)["notes"]) == 1


def test_the_driver_is_built_by_its_name(host):
    """`dkms autoinstall` ends at a module whose source is gone, before it comes to the driver."""
    host.link("/var/lib/dkms/nvidia/390.48/source", "/usr/src/nvidia-390.48")
    desired = {"dkms": [{"name": "nvidia*", "kernels": "running", "version": "550.*"}]}
    autoinstall = ["dkms", "autoinstall", "-k", KERNEL]
    assert drift_remedy.remedy(desired, inspect(host, desired))["dkms"] == [autoinstall]
    host.directory("/var/lib/dkms/nvidia-current/550.9/source")
    assert drift_remedy.remedy(desired, inspect(host, desired))["dkms"] == [
        ["dkms", "install", "-m", "nvidia-current", "-v", "550.9", "-k", KERNEL],
        autoinstall,
    ]
