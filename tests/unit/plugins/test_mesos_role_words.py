# SPDX-License-Identifier: GPL-3.0-or-later
"""What the roles of Mesos need of a host beside the program: SASL's plugin, and no variable that leaks to children."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.plugins.mesos_params import ADDRESS, SECRETS, node
from tests.unit.plugins.plugin_utils.desired.role_site import evaluate
from tests.unit.project.tree import ROOT

IMAGE = "mesos@sha256:" + "0" * 64
HOSTS = {
    "debian": ({"family": "Debian"}, ["libsasl2-modules"]),
    "el": ({"family": "RedHat"}, ["cyrus-sasl-md5"]),
    "offered": ({"family": "Debian", "mesos_common_authentication": "offered"}, ["libsasl2-modules"]),
    "off": ({"family": "Debian", "mesos_common_authentication": "off"}, []),
    "image": ({"family": "Debian", "mesos_common_method": "image", "mesos_common_image": IMAGE}, []),
    "repository": (
        {"family": "RedHat", "mesos_common_method": "repository", "mesos_common_repository": {"name": "x"}},
        ["cyrus-sasl-md5", "mesos"],
    ),
}


def site(variables: dict[str, Any]) -> dict[str, Any]:
    """One master with these variables."""
    host = {
        "ansible_facts": {"os_family": variables["family"]},
        "ansible_host": ADDRESS,
        "mesos_common_url": "https://mirror.example.com/mesos.tar.gz",
        "mesos_common_sha256": "ab" * 32,
        "mesos_common_zookeeper": ["zk1:2181"],
        "mesos_common_secrets": {"secrets": SECRETS},
        "mesos_master_node": node(),
        **variables,
    }
    packages = "(__mesos_master_plan['problems'], __mesos_master_plan['desired'].packages | default('none'))"
    return {"hosts": {"m1": host}, "groups": {"mesos_masters": ["m1"]}, "values": {"m1": {"packages": packages}}}


def test_sasls_plugin_comes_along_where_programs_show_a_secret() -> None:
    answers = evaluate(["mesos_master", "mesos_common"], [site(row) for row, _names in HOSTS.values()])
    for name, answer in zip(HOSTS, answers, strict=True):
        problems, packages = answer["m1"]["packages"]
        assert problems == [], name
        assert sorted(row["name"] for row in packages) == HOSTS[name][1], name


@pytest.mark.parametrize("path", sorted(ROOT.glob("roles/*/templates/*.service.j2")), ids=lambda path: path.stem)
def test_no_unit_has_a_loaders_variable_that_its_children_inherit(path: Path) -> None:
    text = path.read_text()
    assert "[Service]" in text
    assert "LD_LIBRARY_PATH" not in text
    assert "LD_PRELOAD" not in text
