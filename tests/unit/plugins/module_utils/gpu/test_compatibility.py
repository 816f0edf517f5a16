# SPDX-License-Identifier: GPL-3.0-or-later
"""Which driver goes with which GPU and CUDA: tables from the vendor's texts, and properties of the rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import compatibility, releases
from ansible_collections.baremetal.gpu.plugins.module_utils.host.versions import version_key

ARCHITECTURES = list(releases.ARCHITECTURES)
BRANCHES = [row[0] for row in releases.BRANCH_CUDA]
TOOLKITS = sorted({row[0] for row in releases.TOOLKIT_DRIVERS}, key=version_key)


def gpus(*names):
    return [{"kind": "gpu", "architecture": name, "model": None, "device": "0000"} for name in names]


@pytest.mark.parametrize(
    ("architecture", "first", "last"),
    [
        ("fermi", 0, 390),
        ("kepler", 0, 470),
        ("maxwell", 0, 580),
        ("pascal", 367, 580),
        ("volta", 384, 580),
        ("turing", 410, None),
        ("ampere", 450, None),
        ("ada", 520, None),
        ("hopper", 520, None),
        ("blackwell", 570, None),
    ],
)
def test_branches_of_an_architecture(architecture, first, last):
    assert compatibility.branch_range([architecture]) == (first, last)


@pytest.mark.parametrize(
    ("branch", "names", "expected"),
    [
        (550, ["ampere"], ["proprietary", "open"]),
        (580, ["ampere"], ["open", "proprietary"]),
        (470, ["ampere"], ["proprietary"]),
        (580, ["volta"], ["proprietary"]),
        (580, ["blackwell"], ["open"]),
        (580, ["volta", "blackwell"], []),
        (580, [], ["open", "proprietary"]),
    ],
)
def test_flavours(branch, names, expected):
    assert compatibility.flavours(branch, names) == expected


@pytest.mark.parametrize(
    ("names", "offered", "branch"),
    [
        (["ampere"], [550, 535], 550),
        (["kepler"], [535, 470], 470),
        (["kepler"], [550, 535], None),
        (["kepler", "ampere"], [535, 470], 470),
        (["blackwell"], [550, 535], None),
        (["blackwell"], None, 580),
        (["fermi"], None, 390),
        (["kepler", "hopper"], None, None),
        ([], [550, 535], 550),
    ],
)
def test_branch_by_itself(names, offered, branch):
    assert compatibility.choose_branch(gpus(*names), offered) == branch


@pytest.mark.parametrize(
    ("cuda", "driver"),
    [
        ("13.0", "580.65.06"),
        ("12.4", "525.60.13"),  # any driver of the major version, not the one it was released with
        ("12.4.1", "525.60.13"),
        ("11.8", "450.80.02"),
        ("10.2", "440.33"),
        ("8.0", "367.48"),
        ("12.7", None),
        ("99.0", None),
        ("12", None),
    ],
)
def test_oldest_driver_for_a_toolkit(cuda, driver):
    assert compatibility.minimum_driver(cuda) == driver


@pytest.mark.parametrize(
    ("driver", "cuda", "runs"),
    [
        ("550.163.01", "12.4", True),
        ("550", "12.4", True),
        ("470.256.02", "12.0", False),
        ("470", "12.4", False),
        ("470", "11.8", True),
        ("525.60.11", "12.0", False),
        ("610.43.02", "8.0", True),  # a newer driver runs older CUDA
        ("580.95.05", "11.2", True),
        ("550", "12.7", None),
    ],
)
def test_driver_runs_cuda(driver, cuda, runs):
    assert compatibility.runs_cuda(driver, cuda) is runs


@pytest.mark.parametrize(
    ("branch", "cuda"), [(550, "12.4"), (470, "11.4"), (565, "12.7"), (553, "12.4"), (700, "13.3")]
)
def test_newest_cuda(branch, cuda):
    assert compatibility.newest_cuda(branch) == cuda


def test_newest_cuda_of_nothing():
    assert compatibility.newest_cuda(None) is None
    assert compatibility.newest_cuda(100) is None


@pytest.mark.parametrize(
    ("os_key", "branches", "cuda"), [("debian12", [535, 470], "11.8"), ("debian13", [550, 535], "12.4")]
)
def test_what_debian_has(os_key, branches, cuda):
    assert [row["branch"] for row in compatibility.distro_drivers(os_key)] == branches
    assert compatibility.distro_cuda(os_key) == cuda


def test_what_is_not_known_of_a_distribution():
    assert compatibility.distro_drivers("ubuntu24.04") is None
    assert compatibility.distro_drivers(None) is None
    assert compatibility.distro_cuda("el9") is None


K20C = [{"kind": "gpu", "architecture": "kepler", "model": "Tesla K20c", "device": "1022"}]


def test_words_for_a_branch_that_dropped_the_gpu():
    assert compatibility.check(K20C, 550) == [
        {
            "code": "branch_too_new",
            "subject": "",
            "cause": "driver branch 550 has no support for Tesla K20c (Kepler): branch 470 is the last",
            "evidence": "550",
            "remedy": "set nvidia_driver_branch to 470 or auto, or take the GPU out",
        }
    ]


def test_words_for_a_toolkit_that_the_last_driver_does_not_run():
    too_new, dropped = compatibility.check(K20C, 470, cuda=["12.4"])
    assert too_new["cause"] == "CUDA 12.4 needs driver 525.60.13 or newer, and the driver is 470"
    assert too_new["remedy"] == "take CUDA 11.8 or older: branch 470 is the last for these GPUs"
    assert dropped["cause"] == "CUDA 12.4 no longer builds for Tesla K20c (Kepler): 12.0 dropped it"


def test_words_for_a_toolkit_that_a_newer_driver_runs():
    (row,) = compatibility.check(gpus("ampere"), 535, cuda=["13.0"])
    assert row["remedy"] == "set nvidia_driver_branch to 580 or newer, or take CUDA 12.9 or older"


def test_words_for_a_toolkit_nobody_knows():
    (row,) = compatibility.check(gpus("ampere"), 550, cuda=["12.7"])
    assert row["code"] == "cuda_unknown"
    assert row["remedy"].endswith("the newest known are 12.8, 12.9, 13.0, 13.1, 13.2, 13.3")


@pytest.mark.parametrize(
    ("name", "branch", "flavour", "words"),
    [
        ("blackwell", 580, "proprietary", "the proprietary kernel modules do not drive Some GPU (Blackwell)"),
        ("volta", 550, "open", "the open kernel modules do not drive Some GPU (Volta)"),
        ("ampere", 470, "open", "there are no open kernel modules in branch 470: 515 is the first with them"),
    ],
)
def test_words_for_a_flavour(name, branch, flavour, words):
    gpu = {"kind": "gpu", "architecture": name, "model": "Some GPU", "device": "0000"}
    (row,) = compatibility.check([gpu], branch, flavour)
    assert row["cause"] == words


def test_words_for_gpus_that_no_flavour_drives_together():
    (row,) = compatibility.check(gpus("volta", "blackwell"), 580)
    assert row["code"] == "flavour_mixed"


def test_a_branch_that_does_not_know_the_gpu_yet():
    (row,) = compatibility.check(gpus("blackwell"), 550)
    assert row["code"] == "branch_too_old"
    assert row["remedy"].startswith("set nvidia_driver_branch to 570 or newer")


def test_switches_are_no_gpus():
    switch = [{"kind": "nvswitch", "architecture": None, "model": None, "device": "22a3"}]
    assert compatibility.architectures(switch) == []
    assert compatibility.check(switch, 550, "open", ["12.4"]) == []


@given(st.lists(st.sampled_from(ARCHITECTURES), max_size=4), st.sampled_from([None, [550, 535], [535, 470]]))
def test_what_auto_chooses_has_no_problem(names, offered):
    branch = compatibility.choose_branch(gpus(*names), offered)
    if branch is not None:
        assert compatibility.check(gpus(*names), branch) == []
        flavour = compatibility.choose_flavour(gpus(*names), branch)
        assert flavour in compatibility.FLAVOURS
        assert compatibility.check(gpus(*names), branch, flavour) == []


@given(st.sampled_from(TOOLKITS), st.sampled_from(BRANCHES), st.sampled_from(BRANCHES))
def test_a_newer_driver_runs_whatever_an_older_one_runs(cuda, one, other):
    older, newer = sorted((one, other))
    assert not (compatibility.runs_cuda(str(older), cuda) and not compatibility.runs_cuda(str(newer), cuda))


@given(st.sampled_from(BRANCHES))
def test_a_driver_runs_the_cuda_that_it_reports(branch):
    cuda = compatibility.newest_cuda(branch)
    if cuda in TOOLKITS:
        assert compatibility.runs_cuda(str(branch), cuda) is True


@given(st.sampled_from(ARCHITECTURES), st.sampled_from(BRANCHES))
def test_check_and_drives_agree(name, branch):
    codes = {row["code"] for row in compatibility.check_branch(gpus(name), branch)}
    assert bool(codes) != compatibility.drives(branch, name)


def test_every_row_names_its_source():
    for table in (
        releases.TOOLKIT_DRIVERS,
        releases.MINOR_VERSION_COMPATIBILITY,
        releases.BRANCH_CUDA,
        releases.BRANCH_SUPPORT,
    ):
        assert all(isinstance(row[-1], str) and len(row[-1]) > 20 for row in table)
    for row in releases.ARCHITECTURES.values():
        assert all(len(entry[1]) > 20 for entry in row.values() if entry)
