# SPDX-License-Identifier: GPL-3.0-or-later
"""The judgement over hand-made hosts: what is in the way, in which words, and the plan."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import facts as gpu_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight import checks as preflight
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight import gather
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight import report as preflight_report
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight import sources as preflight_sources
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight import system as preflight_system
from ansible_collections.baremetal.gpu.plugins.module_utils.system.repositories import repositories
from tests.unit.plugins.module_utils.system.test_osinfo import FIB_TRIE, INDEX, SECURE_BOOT

KERNEL = "6.12.48+deb13-amd64"
LIST = "var/lib/apt/lists/mirror_dists_trixie_main_binary-amd64_Packages"
DISK = {
    "driver": {"/usr": 1500, "/var": 1500, "/boot": 150},
    "cuda": {"/usr": 6000},
    "container_runtime": {"/var": 1000},
}


def no_nvml(source, deadline_s, root, bus, subset):
    return {"error": None, "cuda": None, "devices": [], "topology": None}


@pytest.fixture
def host(fake_host):
    """A bare Debian 13 with two A100, ready for a driver."""
    fake_host.os("debian13")
    fake_host.kernel(KERNEL)
    fake_host.packages(bash="5.2")
    fake_host.pci("0000:3b:00.0", "20b0")
    fake_host.pci("0000:86:00.0", "20b0")
    fake_host.write("etc/hosts", "192.0.2.31 gpu1\n")
    fake_host.write("proc/net/fib_trie", FIB_TRIE)
    fake_host.write("etc/apt/sources.list", "deb http://mirror/debian trixie main\n")
    return fake_host


def judge(host, running=KERNEL, free_mib=100_000, machine="x86_64", clock=0, options=None, **variables):
    options = {"kernels": "running", "disk_mib": DISK, "host": "gpu1", **(options or {})}
    found = gather.gather(
        kernels=options["kernels"],
        root=host.path,
        running=running,
        machine=machine,
        clock=lambda: clock,
        host="gpu1",
        resolver=lambda name: [],
    )
    found["disk"] = {path: {"free_mib": free_mib, "device": 1} for path in ("/", "/boot", "/usr", "/var")}
    gpus = gpu_facts.gather(root=host.path, kernel=running, probe=no_nvml)
    return preflight.judge(found, gpus, variables, options)


def codes(rows):
    return [row["code"] for row in rows]


def the_problem(verdict):
    (row,) = verdict["problems"]
    return row


def test_a_bare_host_and_its_plan(host):
    verdict = judge(host)
    assert verdict["problems"] == []
    assert verdict["cautions"] == []
    gpu = {"model": "A100 SXM4 40GB", "architecture": "ampere"}
    assert verdict["plan"] == {
        "host": "gpu1",
        "os": {"key": "debian13", "family": "debian", "codename": "trixie", "machine": "x86_64"},
        "gpus": [{"address": "0000:3b:00.0", **gpu}, {"address": "0000:86:00.0", **gpu}],
        "driver": {
            "branch": 550,
            "flavour": "proprietary",
            "method": "distro",
            "version": "550.*",
            "packages": ["nvidia-kernel-dkms"],
        },
        "cuda": ["12.4"],
        "runtime": {"engine": "docker", "nvidia": "auto"},
        "reboot_expected": False,
        "reboot_reasons": [],
        "steps": [
            "install driver branch 550 (proprietary) from the distribution",
            "install CUDA 12.4 from the distribution",
            "install the container engine docker",
        ],
        "installs": True,
    }


def test_a_converged_host_has_nothing_to_install(host):
    host.packages(nvidia__cuda__toolkit="12.4.131~12.4.1-2", docker_dot_io="26.1.5", libnvidia__ml1="550.163.01-2")
    host.write("usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.550.163.01", "")
    host.dkms("nvidia-current", "550.163.01", KERNEL)
    host.loaded("550.163.01")
    verdict = judge(host, free_mib=10)
    assert verdict["problems"] == []
    assert verdict["plan"]["steps"] == []
    assert verdict["plan"]["installs"] is False
    assert verdict["plan"]["reboot_expected"] is False


def test_a_host_without_gpus_passes(fake_host):
    fake_host.os("debian13")
    fake_host.write("etc/hosts", "127.0.1.1 gpu1\n")
    verdict = judge(fake_host, nvidia_driver_branch=550)
    assert verdict["problems"] == []
    assert verdict["plan"]["steps"] == [
        "no NVIDIA GPU: GPU stages are skipped",
        "install the container engine docker",
    ]
    assert verdict["plan"]["driver"] is None
    assert verdict["plan"]["runtime"]["nvidia"] == "none"


@pytest.mark.parametrize(
    ("variables", "message", "value", "remedy"),
    [
        (
            {"nvidia_driver_branch": "latest"},
            "nvidia_driver_branch is not a driver branch",
            "latest",
            "set nvidia_driver_branch to auto or to the number of a branch, such as 550",
        ),
        (
            {"nvidia_driver_method": "apt"},
            "nvidia_driver_method is none of the values it can have",
            "apt",
            "set nvidia_driver_method to one of distro, nvidia_repo, runfile",
        ),
        (
            {"nvidia_driver_version": "newest"},
            "nvidia_driver_version is not a driver version",
            "newest",
            "set nvidia_driver_version to a version such as 550.163.01, or leave it empty",
        ),
        (
            {"nvidia_driver_version": "550.163.01", "nvidia_driver_branch": 535},
            "version 550.163.01 is not of nvidia_driver_branch 535",
            "550.163.01",
            "set nvidia_driver_branch to 550 or auto, or correct the version",
        ),
        (
            {"container_runtime_engine": "lxc"},
            "container_runtime_engine is none of the values it can have",
            "lxc",
            "set container_runtime_engine to one of docker, podman, containerd, none",
        ),
        (
            {"cuda_versions": "12.4"},
            "cuda_versions is not a list",
            "12.4",
            "set cuda_versions to a list such as ['distro'] or ['12.4', '11.8'], or to [] for none",
        ),
        (
            {"cuda_versions": ["twelve"]},
            "cuda_versions names something that is not a CUDA version",
            "twelve",
            "write the versions as texts such as '12.4', or distro for the distribution's own",
        ),
        (
            {"nvidia_driver_branch": 525},
            "Debian 13 has no driver of branch 525; it has 550 and 535",
            "525",
            "set nvidia_driver_branch to 550 or 535, or nvidia_driver_method to nvidia_repo",
        ),
        (
            {"nvidia_driver_branch": 535, "nvidia_driver_flavour": "open"},
            "Debian 13 has no open kernel modules of branch 535",
            "open",
            "set nvidia_driver_flavour to proprietary, or take another branch",
        ),
        (
            {"cuda_versions": ["11.8"]},
            "Debian GNU/Linux 13 (trixie) has CUDA 12.4 only",
            "11.8",
            "set cuda_versions to ['12.4'] or ['distro'], or cuda_method to nvidia_repo",
        ),
        (
            {"cuda_versions": ["13.0"], "cuda_method": "nvidia_repo"},
            "CUDA 13.0 needs driver 580.65.06 or newer, and the driver is 550",
            "13.0",
            "set nvidia_driver_branch to 580 or newer, or take CUDA 12.9 or older",
        ),
    ],
)
def test_words_for_variables(host, variables, message, value, remedy):
    row = the_problem(judge(host, **variables))
    assert (row["cause"], row["evidence"], row["remedy"]) == (message, value, remedy)


def test_a_branch_as_text_and_null_variables_are_fine(host):
    verdict = judge(host, nvidia_driver_branch="535", nvidia_driver_flavour=None, cuda_versions=[])
    assert verdict["problems"] == []
    assert verdict["plan"]["driver"]["branch"] == 535
    assert verdict["plan"]["driver"]["packages"] == ["nvidia-tesla-535-kernel-dkms"]


def test_branch_550_for_a_k20c(host):
    host.pci("0000:c1:00.0", "1022")
    rows = judge(host, nvidia_driver_branch=550)["problems"]
    assert codes(rows) == ["branch_too_new", "cuda_architecture"]
    assert rows[0]["cause"] == "driver branch 550 has no support for Tesla K20c (Kepler): branch 470 is the last"
    assert rows[0]["remedy"] == "set nvidia_driver_branch to 470 or auto, or take the GPU out"


@pytest.fixture
def k20c(fake_host):
    fake_host.os("debian12")
    fake_host.kernel("6.1.0-40-amd64")
    fake_host.pci("0000:c1:00.0", "1022")
    fake_host.write("etc/hosts", "192.0.2.31 gpu1\n")
    return fake_host


def test_a_k20c_gets_its_last_branch_by_itself(k20c):
    verdict = judge(k20c, running="6.1.0-40-amd64")
    assert verdict["problems"] == []
    assert verdict["plan"]["driver"]["branch"] == 470
    assert verdict["plan"]["driver"]["packages"] == ["nvidia-tesla-470-kernel-dkms"]
    assert verdict["plan"]["cuda"] == []
    (row,) = verdict["cautions"]
    assert row["cause"] == (
        "CUDA 11.8 of Debian GNU/Linux 12 (bookworm) wants libcuda of branch 520 or newer, and the driver is of branch "
        "470, so no toolkit is installed"
    )


def test_the_distributions_toolkit_by_name_beside_an_older_driver(k20c):
    row = the_problem(judge(k20c, running="6.1.0-40-amd64", cuda_versions=["11.8"]))
    assert (row["code"], row["evidence"]) == ("cuda_libcuda", "11.8")
    assert row["remedy"] == "set cuda_versions to [], or to older ones with cuda_method: nvidia_repo"


def test_cuda_12_on_470(k20c):
    rows = judge(k20c, running="6.1.0-40-amd64", cuda_versions=["12.4"], cuda_method="nvidia_repo")["problems"]
    assert codes(rows) == ["cuda_driver", "cuda_architecture"]
    assert rows[0]["cause"] == "CUDA 12.4 needs driver 525.60.13 or newer, and the driver is 470"
    assert rows[0]["remedy"] == "take CUDA 11.8 or older: branch 470 is the last for these GPUs"


def test_a_k20c_on_debian_13(k20c):
    k20c.os("debian13")
    row = judge(k20c, running="6.1.0-40-amd64", cuda_versions=[])["problems"][0]
    assert row["cause"] == "no driver of Debian 13 (550 and 535) drives these GPUs; they need branch 470"
    assert row["evidence"] == "Tesla K20c"


def test_gpus_that_no_branch_drives_together(k20c):
    k20c.pci("0000:01:00.0", "2330")
    row = judge(k20c, running="6.1.0-40-amd64", cuda_versions=[])["problems"][0]
    assert row["code"] == "gpus_mixed"
    assert row["evidence"] == "H100 SXM, Tesla K20c"
    assert row["remedy"] == "put them into different hosts: Kepler, Hopper"


def test_a_gpu_nobody_knows_is_taken_for_a_newer_one(host):
    host.pci("0000:c1:00.0", "3500")
    verdict = judge(host, cuda_versions=[])
    row = the_problem(verdict)
    assert row["cause"] == (
        "no driver of Debian 13 (550 and 535) drives these GPUs; they need branch 580 or newer with open kernel modules"
    )
    assert verdict["plan"]["driver"]["branch"] is None
    (row,) = verdict["cautions"]
    assert (row["code"], row["evidence"]) == ("gpu_unknown", "10de:3500")
    verdict = judge(host, nvidia_driver_method="nvidia_repo", cuda_versions=[])
    assert verdict["problems"] == []
    assert (verdict["plan"]["driver"]["branch"], verdict["plan"]["driver"]["flavour"]) == (580, "open")


def test_of_a_gpu_nobody_knows_the_operator_knows_better(host):
    host.pci("0000:c1:00.0", "3500")
    verdict = judge(host, nvidia_driver_branch=550, nvidia_driver_flavour="proprietary")
    assert verdict["problems"] == []
    assert (verdict["plan"]["driver"]["branch"], verdict["plan"]["driver"]["flavour"]) == (550, "proprietary")


@pytest.mark.parametrize(
    ("device", "branch"), [("2e12", 580), ("2e2a", 580), ("2901", 580), ("3182", 580), ("2bb1", 580), ("233f", 580)]
)
def test_a_gpu_of_a_known_generation_gets_what_that_needs(fake_host, device, branch):
    """DGX Spark among them: 550 with proprietary modules would not drive it."""
    fake_host.os("ubuntu24.04")
    fake_host.kernel(KERNEL)
    fake_host.pci("000f:01:00.0", device, pci_class="030000")
    driver = judge(fake_host, nvidia_driver_method="nvidia_repo", cuda_versions=[])["plan"]["driver"]
    assert (driver["branch"], driver["flavour"]) == (branch, "open")


def test_a_branch_that_is_too_old_for_one_model_of_its_generation(host):
    host.pci("000f:01:00.0", "2e12")
    row = the_problem(judge(host, nvidia_driver_branch=570, nvidia_driver_method="nvidia_repo", cuda_versions=[]))
    assert row["cause"] == "driver branch 570 does not know GB10 (Blackwell) yet: branch 580 is the first"
    assert row["remedy"].startswith("set nvidia_driver_branch to 580 or newer")


def test_gpus_that_no_flavour_drives_together_are_named_as_mixed(host):
    host.pci("0000:c1:00.0", "1db6")
    host.pci("0000:c2:00.0", "2e12")
    rows = judge(host, nvidia_driver_method="nvidia_repo", cuda_versions=[])["problems"]
    assert codes(rows) == ["gpus_mixed"]
    assert rows[0]["remedy"] == "put them into different hosts: Volta, Ampere, Blackwell"


def test_a_gpu_at_vfio_is_left_out_of_the_plan_and_named(host):
    """A K20c has another last branch than an A100; handed through it hinders nothing."""
    host.pci("0000:c1:00.0", "1022", driver="vfio-pci")
    verdict = judge(host)
    assert verdict["problems"] == []
    assert verdict["plan"]["driver"]["branch"] == 550
    assert [row["address"] for row in verdict["plan"]["gpus"]] == ["0000:3b:00.0", "0000:86:00.0"]
    (row,) = verdict["cautions"]
    assert (row["code"], row["evidence"]) == ("gpu_left_out", "vfio-pci")
    assert "0000:c1:00.0 (Tesla K20c) is bound to vfio-pci" in row["cause"]


def test_a_host_that_hands_all_its_gpus_through_passes_as_one_without(host):
    for address in ("0000:3b:00.0", "0000:86:00.0"):
        host.pci(address, "20b0", driver="vfio-pci")
    verdict = judge(host)
    assert verdict["problems"] == []
    assert verdict["plan"]["steps"] == [
        "no NVIDIA GPU: GPU stages are skipped",
        "install the container engine docker",
    ]
    assert (verdict["plan"]["gpus"], verdict["plan"]["driver"]) == ([], None)
    assert codes(verdict["cautions"]) == ["gpu_left_out", "gpu_left_out"]


def test_a_gpu_of_nouveau_that_is_handed_through_asks_for_no_reboot(host):
    host.pci("0000:c1:00.0", "1022", driver="vfio-pci")
    assert judge(host)["plan"]["reboot_expected"] is False


def test_a_bridge_of_an_old_board_asks_for_no_fabric_manager(host):
    host.pci("0000:00:08.0", "0373", pci_class="068000")
    assert judge(host)["problems"] == []


def test_switches_behind_bridges_need_a_subnet_manager(fake_host):
    fake_host.os("ubuntu24.04")
    fake_host.kernel(KERNEL)
    fake_host.pci("0000:1b:00.0", "2901")
    fake_host.switch_bridge("0000:05:00.0")
    row = the_problem(judge(fake_host, cuda_versions=[]))
    assert (row["code"], row["remedy"]) == ("fabric_manager", "set nvidia_driver_method to nvidia_repo")
    assert "nvlsm" in row["cause"]
    verdict = judge(fake_host, nvidia_driver_method="nvidia_repo", cuda_versions=[])
    assert verdict["problems"] == []
    assert "nvswitch_unknown" not in codes(verdict["cautions"])
    assert verdict["plan"]["steps"][:2] == [
        "install driver branch 580 (open) from NVIDIA's repository",
        "install Fabric Manager and the NVLink Subnet Manager for the NVSwitches",
    ]


def test_a_board_whose_bridges_are_not_found_is_told(fake_host):
    fake_host.os("ubuntu24.04")
    fake_host.kernel(KERNEL)
    fake_host.pci("0000:1b:00.0", "2901")
    verdict = judge(fake_host, nvidia_driver_method="nvidia_repo", cuda_versions=[])
    (row,) = [row for row in verdict["cautions"] if row["code"] == "nvswitch_unknown"]
    assert row["evidence"] == "B200"


def test_nvidias_installer_brings_no_fabric_manager(host):
    host.pci("0000:c4:00.0", "22a3", pci_class="068000")
    runfile = {"path": "/x/NVIDIA-Linux-x86_64-550.163.01.run", "sha256": "0" * 64}
    verdict = judge(host, nvidia_driver_method="runfile", cuda_versions=[], options={"runfile": runfile})
    assert verdict["problems"] == []
    (row,) = verdict["cautions"]
    assert row["code"] == "fabric_manager_missing"
    assert row["remedy"].startswith("add nvidia-fabricmanager of exactly the driver's version")


PVE = "6.8.12-1-pve"


def test_headers_that_another_package_provides_can_be_had(host):
    """As on a kernel of Proxmox, whose headers have a name of their own."""
    host.kernel(PVE, headers=False)
    host.write(LIST, f"Package: proxmox-headers-{PVE}\nProvides: linux-headers-{PVE}, pve-headers-{PVE}\n\n")
    verdict = judge(host, running=PVE)
    assert verdict["problems"] == []
    assert verdict["plan"]["installs"] is True


def test_switches_need_a_fabric_manager(host):
    host.pci("0000:c4:00.0", "22a3", pci_class="068000")
    row = the_problem(judge(host))
    assert (row["code"], row["remedy"]) == ("fabric_manager", "set nvidia_driver_method to nvidia_repo")
    assert judge(host, nvidia_driver_method="nvidia_repo")["problems"] == []


def test_an_operating_system_that_is_not_in_the_table(host):
    host.os("debian11")
    row = the_problem(judge(host))
    assert row["cause"] == "the operating system is not supported"
    assert row["evidence"] == "Debian GNU/Linux 11 (bullseye)"
    assert row["remedy"].startswith("install one of Debian 12, Debian 13, Ubuntu 22.04")


def test_a_system_that_was_not_tried(host):
    host.os("ubuntu24.04")
    assert codes(judge(host)["cautions"]) == ["os_untested", "cuda_distro_unknown"]


def test_a_machine_without_drivers(host):
    assert the_problem(judge(host, machine="riscv64"))["code"] == "machine_unsupported"


def test_headers_that_nobody_has(host):
    running = "6.12.43+deb13-amd64"
    host.kernel(running, headers=False)
    host.write(LIST, INDEX)
    row = the_problem(judge(host, running=running))
    assert row["cause"] == "no package source has the headers of this kernel"
    assert row["evidence"] == running
    assert row["remedy"] == (
        f"reboot into the newest installed kernel {KERNEL}, or add the repository that has linux-headers-{running}"
    )


def test_headers_of_an_old_kernel(host):
    host.kernel("6.12.1+deb13-amd64", headers=False)
    host.write(LIST, INDEX)
    row = the_problem(judge(host, options={"kernels": "installed"}))
    assert row["remedy"].startswith("remove this old kernel, set nvidia_driver_kernels to running, or add")


def test_headers_that_nobody_has_for_the_newest_kernel(host):
    newest = "6.12.99+deb13-amd64"
    host.kernel(newest, headers=False)
    host.write(LIST, INDEX)
    row = the_problem(judge(host, running=newest))
    assert row["remedy"].startswith("upgrade the kernel and reboot into it, or add the repository")


def test_headers_on_a_host_without_package_lists(host):
    host.kernel("6.12.99+deb13-amd64", headers=False)
    verdict = judge(host, running="6.12.99+deb13-amd64")
    assert verdict["problems"] == []
    (row,) = verdict["cautions"]
    assert row["code"] == "headers_unknown"
    assert row["remedy"] == "refresh the package lists and see whether linux-headers-6.12.99+deb13-amd64 is there"


def test_headers_do_not_matter_once_the_module_is_there(host):
    host.kernel("6.1.0-1-amd64", headers=False)
    host.write(LIST, INDEX)
    host.dkms("nvidia-current", "550.163.01", "6.1.0-1-amd64")
    assert judge(host, running="6.1.0-1-amd64")["problems"] == []


@pytest.mark.parametrize(
    ("choice", "good"),
    [
        ("running", True),
        ("installed", True),
        (["6.1.0-40-amd64"], True),
        ("newest", False),
        ([6.1], False),
        (None, False),
    ],
)
def test_what_names_kernels(choice, good):
    assert preflight_system.good_kernels(choice) is good


def test_kernels_that_mean_nothing(host):
    judgement = preflight_report.Judgement()
    found = gather.gather(kernels="installed", root=host.path, running=KERNEL, clock=lambda: 0)
    preflight_system.judge_kernels(found, {"kernels": "newest"}, True, judgement)
    (row,) = judgement.problems
    assert row["evidence"] == "newest"
    assert row["remedy"] == "set nvidia_driver_kernels to running, installed or a list of kernel releases"


def test_kernels_by_name(host):
    row = the_problem(judge(host, options={"kernels": ["6.6.6"]}))
    assert row["cause"] == "gpu_preflight_kernels names a kernel that is not installed"
    assert row["remedy"] == f"name installed ones: {KERNEL}"


def test_no_kernel_at_all(fake_host):
    fake_host.os("debian13")
    fake_host.pci("0000:3b:00.0", "20b0")
    assert "no_kernel" in codes(judge(fake_host, options={"kernels": "installed"})["problems"])


def test_secure_boot(host):
    host.write(SECURE_BOOT, b"\x06\0\0\0\x01")
    row = the_problem(judge(host))
    assert row["code"] == "secure_boot"
    assert row["remedy"].startswith("install dkms and mokutil, make a key with `dkms generate_mok`")
    assert row["remedy"].endswith("or turn Secure Boot off in the firmware")
    host.write("var/lib/dkms/mok.pub", "KEY")
    assert the_problem(judge(host))["remedy"].startswith("`sudo mokutil --import /var/lib/dkms/mok.pub`, reboot")


def test_secure_boot_does_not_matter_to_a_loaded_driver(host):
    host.write(SECURE_BOOT, b"\x06\0\0\0\x01")
    host.loaded("550.163.01")
    assert judge(host)["problems"] == []


def test_secure_boot_that_cannot_be_read(host):
    host.write(SECURE_BOOT, b"")
    assert codes(judge(host)["cautions"]) == ["secure_boot_unknown"]


def test_a_full_disk(host):
    row = the_problem(judge(host, free_mib=500))
    assert row["cause"] == (
        "the file system of /boot, /usr, /var has too little space: 10150 MiB are needed for what is to be installed"
    )
    assert row["evidence"] == "500 MiB free"
    assert row["remedy"].startswith("free 9650 MiB or enlarge the file system")


def test_a_driver_by_another_method(host):
    host.link("usr/bin/nvidia-uninstall", "nvidia-installer")
    row = the_problem(judge(host))
    assert row["cause"] == ("a driver from NVIDIA's installer is on the host, and nvidia_driver_method is distro")
    assert row["evidence"] == "/usr/bin/nvidia-uninstall"
    assert row["remedy"].startswith("remove it with `nvidia-uninstall --silent`")
    host.packages(libnvidia__ml1="550.163.01-2")
    assert codes(judge(host)["problems"]) == ["driver_other_method"]
    rows = judge(host, nvidia_driver_method="nvidia_repo")["problems"]
    assert [row["evidence"] for row in rows] == ["package libnvidia-ml1 550.163.01-2", "/usr/bin/nvidia-uninstall"]


def test_a_loaded_driver_that_nothing_on_the_host_has_installed(host):
    """As images have it whose driver lies outside the places of packages."""
    host.loaded("580.159.04", "open")
    verdict = judge(host)
    assert verdict["problems"] == []
    (row,) = verdict["cautions"]
    assert (row["code"], row["evidence"]) == ("driver_unknown_origin", "580.159.04")
    host.packages(libnvidia__ml1="580.159.04-1")
    assert judge(host)["cautions"] == []


def test_a_repository_with_two_keys(host):
    host.write(
        "etc/apt/sources.list.d/d.sources",
        "Types: deb\nURIs: http://mirror/debian/\nSuites: trixie\nComponents: contrib\nSigned-By: /k.gpg\n",
    )
    row = the_problem(judge(host))
    assert row["cause"] == (
        "/etc/apt/sources.list and /etc/apt/sources.list.d/d.sources name the same repository with different keys, "
        "which apt refuses"
    )
    assert row["evidence"] == "http://mirror/debian trixie"


def test_a_repository_in_two_files(host):
    host.write("etc/apt/sources.list.d/again.list", "deb http://mirror/debian trixie main contrib\n")
    verdict = judge(host)
    assert verdict["problems"] == []
    assert codes(verdict["cautions"]) == ["repository_duplicate"]


def test_other_components_of_a_repository_are_no_duplicate(host):
    host.write("etc/apt/sources.list.d/more.list", "deb http://mirror/debian trixie contrib non-free\n")
    assert judge(host)["cautions"] == []


@pytest.mark.parametrize(
    ("directory", "variables", "code"),
    [
        ("debian13", {}, "repository_mixed"),
        ("debian12", {"nvidia_driver_method": "nvidia_repo"}, "repository_wrong_os"),
        ("debian13", {"nvidia_driver_method": "nvidia_repo"}, None),
        ("debian13", {"cuda_method": "nvidia_repo"}, None),
    ],
)
def test_nvidias_repository(host, directory, variables, code):
    host.write("etc/apt/sources.list.d/cuda.list", f"deb https://mirror/compute/cuda/repos/{directory}/x86_64/ /\n")
    verdict = judge(host, **variables)
    assert codes(verdict["problems"]) == ([code] if code else [])


@pytest.mark.parametrize(
    ("engine", "path", "content"),
    [
        ("docker", "/etc/docker/daemon.json", '{\n  "log-driver": json-file\n}\n'),
        ("podman", "/etc/containers/containers.conf", "[engine]\nruntime = crun\n"),
        ("containerd", "/etc/containerd/config.toml", "version = 2\n[plugins\n"),
    ],
)
def test_a_malformed_configuration_of_the_engine(host, engine, path, content):
    host.write(path.lstrip("/"), content)
    row = the_problem(judge(host, container_runtime_engine=engine))
    assert row["code"] == "engine_config"
    assert path in row["cause"]
    assert row["evidence"].startswith("line 2, column ")
    assert judge(host, container_runtime_engine="none")["problems"] == []


@pytest.mark.parametrize(
    ("nvidia", "urls", "installed", "step"),
    [
        ("auto", {}, False, False),
        ("auto", {"container_runtime_toolkit_repo_url": "https://mirror/toolkit"}, False, True),
        ("toolkit", {}, False, True),
        ("toolkit", {}, True, False),
        ("cdi", {"container_runtime_toolkit_repo_url": "https://mirror/toolkit"}, False, False),
    ],
)
def test_the_container_toolkit_is_a_step(host, nvidia, urls, installed, step):
    if installed:
        host.packages(nvidia__container__toolkit="1.18.0-1")
    plan = judge(host, container_runtime_nvidia=nvidia, options={"urls": urls})["plan"]
    assert ("install the NVIDIA Container Toolkit" in plan["steps"]) is step


def test_podman_in_dockers_clothes(host):
    host.packages(podman__docker="5.4.2")
    assert the_problem(judge(host))["evidence"] == "podman-docker 5.4.2"


def test_docker_of_another_source(host):
    host.packages(docker__ce="5:28.0.1")
    row = the_problem(judge(host))
    assert row["cause"] == "docker-ce is on the host, and the distribution's docker.io would take its place"
    assert judge(host, container_runtime_docker_repo_url="https://mirror/docker")["problems"] == []


@pytest.mark.parametrize(
    ("runfile", "expected"),
    [
        ({}, ["runfile_missing", "runfile_checksum"]),
        ({"url": "https://mirror/x.run", "sha256": "abc"}, ["runfile_checksum"]),
        ({"path": "/srv/x.run", "sha256": "0" * 64}, []),
        ({"path": "/srv/x.run", "sha256": "A" * 64, "found_sha256": "a" * 64}, []),
        ({"path": "/srv/x.run", "sha256": "0" * 64, "found_sha256": "1" * 64}, ["runfile_mismatch"]),
        ({"path": "/srv/x.run", "sha256": "0" * 64, "error": "No such file or directory"}, ["runfile_missing"]),
    ],
)
def test_runfile(host, runfile, expected):
    verdict = judge(host, nvidia_driver_method="runfile", options={"runfile": runfile})
    assert codes(verdict["problems"]) == expected


@pytest.mark.parametrize(
    ("name", "branch"),
    [
        ("NVIDIA-Linux-x86_64-570.211.01.run", 570),
        ("NVIDIA-Linux-x86_64-535.1.02-no-compat32.run", 535),
        ("x.run", 580),
    ],
)
def test_the_installers_name_tells_its_version(host, name, branch):
    runfile = {"url": f"https://mirror/{name}", "sha256": "0" * 64}
    driver = judge(host, nvidia_driver_method="runfile", cuda_versions=[], options={"runfile": runfile})["plan"][
        "driver"
    ]
    assert driver["branch"] == branch


def test_urls(host):
    row = the_problem(judge(host, options={"urls": {"cuda_repository_url": "mirror/cuda", "other_url": ""}}))
    assert row["cause"].startswith("cuda_repository_url is not a URL: it does not begin with http://")


def test_what_would_be_fetched_from(host):
    host.write(
        "etc/apt/sources.list.d/more.list",
        "deb http://mirror/debian/ trixie contrib\ndeb file:///srv/m ./\ndeb cdrom:x y\n",
    )
    host.write("etc/yum.repos.d/a.repo", "[a]\nbaseurl=https://yum/a/\n[b]\nbaseurl=https://yum/$releasever/\n")
    found = {"repositories": repositories(host.path), "os": {"codename": "trixie"}}
    urls = {"a_key_url": "https://other/key", "b_url": "not one", "c_repo_url": "https://other/c/"}
    assert preflight_sources.targets(found, urls) == [
        {"name": "https://other/key", "urls": ["https://other/key"], "apt": False, "strict": True},
        {
            "name": "https://other/c/",
            "urls": [
                "https://other/c/dists/trixie/InRelease",
                "https://other/c/InRelease",
                "https://other/c/Release",
                "https://other/c/repodata/repomd.xml",
                "https://other/c/",
            ],
            "apt": True,
            "strict": False,
        },
        {
            "name": "http://mirror/debian trixie",
            "urls": ["http://mirror/debian/dists/trixie/InRelease", "http://mirror/debian/dists/trixie/Release"],
            "apt": True,
            "strict": True,
        },
        {
            "name": "file:///srv/m ./",
            "urls": ["file:///srv/m/./InRelease", "file:///srv/m/./Release"],
            "apt": True,
            "strict": True,
        },
        {
            "name": "https://yum/a",
            "urls": ["https://yum/a/repodata/repomd.xml", "https://yum/a/"],
            "apt": True,
            "strict": True,
        },
    ]


OWN = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/sbsa/"
URLS = {
    "nvidia_driver_runfile_url": "https://m/run",
    "nvidia_driver_repo_url": "https://m/repo",
    "nvidia_driver_repo_key_url": "",
    "container_runtime_docker_repo_url": "https://m/docker",
    "container_runtime_toolkit_repo_url": "https://m/toolkit",
}
ENGINE = ["container_runtime_docker_repo_url"]


@pytest.mark.parametrize(
    ("present", "variables", "names"),
    [
        (True, {}, [*ENGINE, "container_runtime_toolkit_repo_url"]),
        (True, {"container_runtime_nvidia": "cdi"}, ENGINE),
        (False, {"nvidia_driver_method": "nvidia_repo"}, ENGINE),
        (False, {"container_runtime_engine": "podman"}, []),
        (True, {"nvidia_driver_method": "runfile", "container_runtime_state": "absent"}, ["nvidia_driver_runfile_url"]),
        (True, {"cuda_method": "nvidia_repo", "container_runtime_state": "absent"}, ["nvidia_driver_repo_url"]),
    ],
)
def test_only_urls_in_use_are_tried(present, variables, names):
    host = {"os": {"repository": "ubuntu2404", "machine": "aarch64"}}
    assert preflight_sources.urls_in_use(host, present, variables, URLS) == {name: URLS[name] for name in names}


def test_nvidias_own_repository_where_none_is_named():
    host = {"os": {"repository": "ubuntu2404", "machine": "aarch64"}}
    variables = {"nvidia_driver_method": "nvidia_repo"}
    assert preflight_sources.urls_in_use(host, True, variables, {}) == {"nvidia_driver_repo_url": OWN}
    assert preflight_sources.urls_in_use(host, True, {**variables, "nvidia_driver_state": "absent"}, {}) == {}
    assert preflight_sources.urls_in_use({"os": {"repository": None, "machine": "x86_64"}}, True, variables, {}) == {}


def test_words_for_what_cannot_be_reached():
    (row,) = preflight_sources.judge_reach({"http://mirror/": "timed out", "http://good/": None})
    assert row["cause"] == "the host cannot reach what it is to install from: timed out"
    assert row["evidence"] == "http://mirror/"


def test_nouveau_may_take_a_reboot(host):
    host.pci("0000:c1:00.0", "1b80", driver="nouveau")
    host.write("proc/modules", "nouveau 3248128 4 - Live 0x0\n")
    plan = judge(host)["plan"]
    assert plan["reboot_expected"] is True
    assert plan["reboot_reasons"] == ["nouveau is bound to 0000:c1:00.0 and may be in use"]
    assert plan["steps"][0] == "keep nouveau from loading and unload it"


def test_another_driver_is_loaded(host):
    host.write("usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.535.261.03", "")
    host.loaded("535.261.03")
    plan = judge(host)["plan"]
    assert plan["reboot_reasons"] == ["driver 535.261.03 is loaded and may be in use"]
    assert plan["steps"][0] == "install driver branch 550 (proprietary) from the distribution in place of 535.261.03"
    assert plan["steps"][1] == "load the new driver in place of 535.261.03"
    assert judge(host, nvidia_driver_load=False)["plan"]["reboot_expected"] is False


def test_the_driver_is_for_another_kernel_than_the_running_one(host):
    host.kernel("6.12.99+deb13-amd64")
    plan = judge(host, running="6.12.99+deb13-amd64", options={"kernels": [KERNEL]})["plan"]
    assert plan["reboot_reasons"] == ["the running kernel 6.12.99+deb13-amd64 is not one that gets the driver"]


def test_in_a_container_no_reboot_brings_another_kernel(host):
    assert judge(host, running="6.18-foreign", options={"kernels": "installed"})["plan"]["reboot_expected"] is False


def test_removal(host):
    host.write("usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.550.163.01", "")
    host.packages(libnvidia__ml1="550.163.01-2", docker_dot_io="26")
    verdict = judge(host, nvidia_driver_state="absent", cuda_state="absent")
    assert verdict["problems"] == []
    assert verdict["plan"]["steps"] == ["remove driver 550.163.01"]
    assert verdict["plan"]["driver"] is None


def test_clock_and_name(host):
    host.write("etc/hosts", "192.0.2.99 gpu1\n")
    assert codes(judge(host, clock=0x40)["cautions"]) == ["hostname_elsewhere", "time_unsynchronised"]
    host.write("etc/hosts", "")
    assert codes(judge(host, clock=None)["cautions"]) == ["hostname_unresolved", "time_unknown"]


def test_the_operator_has_the_last_word(host):
    host.link("usr/bin/nvidia-uninstall", "nvidia-installer")
    options = {"accept": ["driver_other_method"], "refuse": ["time_unsynchronised"]}
    verdict = judge(host, clock=0x40, options=options)
    assert codes(verdict["problems"]) == ["time_unsynchronised"]
    assert codes(verdict["cautions"]) == ["driver_other_method"]


def test_all_problems_come_at_once_and_in_words(host):
    host.write("etc/docker/daemon.json", "[]")
    host.write(SECURE_BOOT, b"\x06\0\0\0\x01")
    verdict = judge(host, nvidia_driver_branch="latest", free_mib=1)
    assert codes(verdict["problems"]) == ["variable", "secure_boot", "engine_config", "disk_space"]
    lines = preflight_report.report("gpu1", verdict["problems"]).splitlines()
    assert lines[:3] == [
        "gpu1: 4 problems. Nothing was changed.",
        "1. nvidia_driver_branch is not a driver branch [latest].",
        "   To do: set nvidia_driver_branch to auto or to the number of a branch, such as 550",
    ]
    assert len(lines) == 9
    assert preflight_report.report("gpu1", []) == ""
    only = preflight_report.report("gpu1", verdict["problems"][:1])
    assert only == f"gpu1: {lines[1][3:]} {lines[2].strip()}. Nothing was changed."
