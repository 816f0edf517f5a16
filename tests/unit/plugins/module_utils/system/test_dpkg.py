# SPDX-License-Identifier: GPL-3.0-or-later
"""The status file of dpkg. Texts are made by hand in the form of the real ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baremetal.gpu.plugins.module_utils.system.dpkg import parse_dpkg


def test_dpkg_status():
    text = (
        "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nMulti-Arch: same\nVersion: 2.41-12\n"
        "Provides: libc6-amd64 (= 2.41), libc\nDescription: C library\n Package: no field\n\n"
        "Package: held\nStatus: hold ok installed\nArchitecture: all\nVersion: 1:2\n\n"
        "Package: broken\nStatus: install reinstreq half-installed\nVersion: 3\n"
    )
    libc, held, broken = parse_dpkg(text)
    assert "vendor" not in held
    assert libc["provides"] == ["libc6-amd64", "libc"]
    assert (libc["want"], libc["state"], libc["version"]) == ("install", "installed", "2.41-12")
    assert (held["want"], held["version"]) == ("hold", "1:2")
    assert (broken["flag"], broken["state"]) == ("reinstreq", "half-installed")


def test_a_vendor_and_a_file_without_a_last_line_end():
    text = "Package: a\nStatus: install ok installed\nMaintainer: A <a@b.example>\nVersion: 1\n\nPackage: b\nVersion: 2"
    assert [(row["name"], row.get("vendor"), row["version"], row["state"]) for row in parse_dpkg(text)] == [
        ("a", "A <a@b.example>", "1", "installed"),
        ("b", None, "2", "not-installed"),
    ]


def test_stanzas_of_other_packages_are_passed_over():
    text = "Package: cuda-nvcc\nVersion: 1\n\nPackage: bash\nVersion: 2\n\nPackage: cuda-cudart\nVersion: 3\n"
    assert [row["version"] for row in parse_dpkg(text, lambda name: name.startswith("cuda"))] == ["1", "3"]


@given(st.text(alphabet="PackgeStus: \nVion1", max_size=200))
def test_whatever_the_file_says_each_row_is_whole(text):
    for row in parse_dpkg(f"Package: {text}"):
        assert {"name", "want", "flag", "state"} <= set(row)
