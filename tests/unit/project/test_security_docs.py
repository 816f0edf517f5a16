# SPDX-License-Identifier: GPL-3.0-or-later
"""What docs/security.md says of the portal, held against what the role writes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import login
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import portal
from tests.unit.plugins.plugin_utils.desired.test_portal import files, plan
from tests.unit.project.tree import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n### The portal\n")[2].partition("\n### ")[0]
TEMPLATES = ROOT / "roles" / "portal" / "templates"
UNITS = {path.name.removesuffix(".j2"): path.read_text() for path in sorted(TEMPLATES.glob("*.socket.j2"))}
MESOS = {
    "marathons": ["http://m1:8080"],
    "masters": ["http://m1:5050"],
    "http_user": "operator",
    "operator": {"user": "operator", "password": "x"},
    "authority": "",
}


def rows(first: str) -> dict[str, list[str]]:
    """A table of the section by what is in its first column, which has this head."""
    table = next(part for part in SECTION.split("\n\n") if part.startswith(f"| {first} |"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {re.findall(r"`([^`]+)`", line[0])[0]: line[1:] for line in cells}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The files of the role, of Slurm and of Marathon, with SSH."""
    base = tmp_path_factory.mktemp("portal")
    slurm = files(plan(base)["service"])
    marathon = plan(base, peers={"mesos": MESOS}, scheduler="marathon", ssh=False, notebook=True)
    assert marathon["problems"] == []
    there = {path: row for path, row in files(marathon["service"]).items() if row.get("state") != "absent"}
    return {**there, **slurm, portal.MARATHON_FILE: there[portal.MARATHON_FILE]}


def of_unit(text: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(\S+)", text, re.MULTILINE)


def test_each_socket_is_told_with_who_can_open_it(written: dict[str, dict[str, Any]]) -> None:
    units = {path: row["content"] for path, row in written.items() if path.endswith(".socket")}
    assert len(units) == len(UNITS)
    told = rows("socket")
    found = {}
    for text in units.values():
        ((path,), (user,), (mode,)) = (of_unit(text, key) for key in ("ListenStream", "SocketUser", "SocketMode"))
        assert mode == "0600"
        found[path] = f"`{user}`"
    assert {path: cells[0] for path, cells in told.items()} == found


def test_each_account_is_told_and_root_runs_only_what_a_socket_starts(written: dict[str, dict[str, Any]]) -> None:
    accounts = set()
    for path, row in written.items():
        if path.endswith(".service"):
            users = of_unit(row["content"], "User")
            accounts |= set(users)
            assert users or path.endswith("@.service"), path
            if "CapabilityBoundingSet=\n" not in row["content"]:
                assert path.endswith("@.service") or of_unit(row["content"], "AmbientCapabilities"), path
    assert set(rows("account")) == accounts


def test_each_file_that_is_not_everybodys_is_told_with_its_rights(written: dict[str, dict[str, Any]]) -> None:
    found = {}
    for path, row in written.items():
        mode = row.get("mode", "0644")
        if row.get("state") in ("absent", "directory", "link") or int(mode, 8) & 0o004 or not path.startswith("/etc/"):
            continue
        group = f", group `{row['group']}`" if row["group"] != "root" else ""
        found[path] = f"{mode} {row['owner']}{group}"
    # Beside its key, which is told, the certificate is nobody's secret.
    for name in ("ca.pem", "certificate.pem"):
        found.pop(f"{portal.TLS}/{name}")
    told = {path: cells[0] for path, cells in rows("file").items()}
    assert {path: rights for path, rights in told.items() if path.startswith("/etc/")} == found
    assert told[portal.STATE] == f"0700 `{portal.USER}`"
    hub = written[f"/etc/systemd/system/{portal.HUB}"]["content"]
    assert of_unit(hub, "StateDirectoryMode") == ["0700"]
    assert told[login.PLACES] == "0700 root"


def test_each_port_is_told_with_its_number() -> None:
    defaults = yaml.safe_load((ROOT / "roles" / "portal" / "defaults" / "main.yml").read_text())
    ports = {name: number for name, number in defaults.items() if re.search("_port(?:$|_)", name)}
    assert len(ports) == 5
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    for name, number in ports.items():
        (line,) = [line for line in lines if f"`{name}`" in line]
        assert re.search(rf"\b{number}\b", line.split("|")[1])
    assert re.search(rf"^\| {portal.PROXY_API_PORT} \| .* \| the host itself \|", PAGE, re.MULTILINE)
