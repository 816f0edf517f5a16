# SPDX-License-Identifier: GPL-3.0-or-later
"""What dpkg, apt and rpm have on disk. All texts are made by hand in the form of the real ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baremetal.gpu.plugins.module_utils.drift import packages
from ansible_collections.baremetal.gpu.plugins.module_utils.system.repositories import parse_deb822


def test_the_native_architecture_counts_whatever_comes_first():
    for rows in (["i386", "amd64"], ["amd64", "i386"]):
        listed = [{"name": "dpkg", "architecture": "amd64", "state": "installed", "want": "install", "flag": "ok"}] + [
            {"name": "libz", "architecture": one, "state": "installed", "want": "install", "flag": "ok"} for one in rows
        ]
        found = packages.Packages("apt", listed)
        assert found.installed("libz")["architecture"] == "amd64"
        assert found.installed("libz:i386")["architecture"] == "i386"


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("550.163.01-2", "550.163.01-2", True),
        ("550.163.01-2", "550.163.01", False),
        ("550.163.01-2", "550.163.01*", True),
        ("550.163.01-2", "55.*", False),
        ("5:27.1-1", "27.*", True),
        ("5:27.1-1", "5:27.*", True),
        ("1.0", "", False),
    ],
)
def test_versions(version, wanted, fits):
    assert packages.version_matches({"version": version}, wanted) is fits


def test_policy():
    text = (
        "libcuda1:\n  Installed: 535.1-1\n  Candidate: 550.9-1\n  Version table:\n     550.9-1 500\n"
        "        500 http://m.example/debian trixie/non-free amd64 Packages\n *** 535.1-1 100\n"
        "        100 /var/lib/dpkg/status\n"
        "awk:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n"
    )
    assert packages.parse_policy(text) == {
        "libcuda1": {"candidate": "550.9-1", "versions": ["550.9-1", "535.1-1"]},
        "awk": {"candidate": None, "versions": []},
    }


def test_asking_apt_writes_no_cache():
    command = packages.policy_command(["curl"])
    assert "Dir::Cache::pkgcache=" in command
    assert "Dir::Cache::srcpkgcache=" in command


def source(**fields):
    return {"types": "deb", "uris": "http://m.example/debian", "suites": "s", "components": "main", **fields}


def test_missing_components_come_from_where_main_comes_from():
    sources = [
        source(**{"suites": "s s-updates", "signed-by": "/k"}),
        source(uris="http://m.example/security/", suites="s-security", components="main contrib"),
        source(uris="http://other.example/", components="stable"),
        source(types="deb-src", uris="http://src.example/"),
    ]
    assert packages.missing_components(sources, ["s", "s-updates", "s-security"], ["contrib", "non-free"]) == [
        {
            "uris": ["http://m.example/debian"],
            "suites": ["s", "s-updates"],
            "components": ["contrib", "non-free"],
            "keep": {"signed-by": "/k"},
        },
        {"uris": ["http://m.example/security"], "suites": ["s-security"], "components": ["non-free"], "keep": {}},
    ]


COMPONENTS = st.lists(st.sampled_from(["main", "contrib", "non-free", "non-free-firmware"]), unique=True, max_size=4)


@given(have=st.lists(COMPONENTS, max_size=4), wanted=COMPONENTS)
def test_what_was_added_is_not_missing_any_more(have, wanted):
    """Rendering what is missing and reading it again leaves nothing missing, and names nothing twice."""
    sources = [source(components=" ".join(components)) for components in have]
    missing = packages.missing_components(sources, ["s"], wanted)
    rendered = parse_deb822(packages.render_components(missing))
    assert packages.missing_components(sources + rendered, ["s"], wanted) == []
    offered = [name for row in sources + rendered for name in row["components"].split()]
    added = [name for row in rendered for name in row["components"].split()]
    assert all(offered.count(name) == 1 for name in added)


@given(st.text(alphabet="abc./:-_ ", min_size=1, max_size=20).map(str.strip).filter(bool))
def test_a_rendered_repository_reads_back(uri):
    text = packages.render_deb822({"name": "n", "uris": [uri], "suites": ["/"], "options": {"Trusted": True}}, "/k")
    (stanza,) = parse_deb822(text)
    assert (stanza["uris"], stanza["suites"], stanza["signed-by"], stanza["trusted"]) == (uri, "/", "/k", "yes")


def test_yum_repository():
    text = packages.render_yum({"name": "r", "uris": ["http://r.example/"], "options": {"gpgcheck": False}}, "/k.asc")
    assert text.splitlines()[1:] == [
        "[r]",
        "name=r",
        "baseurl=http://r.example/",
        "enabled=1",
        "gpgcheck=0",
        "gpgkey=file:///k.asc",
    ]


def test_rpm_lock_of_any_release():
    text = "a\t0\t1.2\t3.el9\tx86_64\n"
    assert packages.parse_rpm(text, ["a-0:1.2-3.el9.*"])[0]["want"] == "hold"
    assert packages.parse_rpm(text, ["a-0:1.3-3.el9.*"])[0]["want"] == "install"
