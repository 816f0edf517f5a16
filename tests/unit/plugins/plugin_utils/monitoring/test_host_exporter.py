# SPDX-License-Identifier: GPL-3.0-or-later
"""The host exporter in the plan of a role: its files, its units, and what of the settings is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring import exporter
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.document import Document
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import host_exporter
from tests.unit.plugins.exposition import parse
from tests.unit.plugins.module_utils.monitoring.test_certificates import certificate

TEXTFILES = "/var/lib/prometheus/node-exporter"
ZOOKEEPER = {"host": "127.0.0.1", "port": 2181, "config": "/etc/zookeeper/ensemble/zoo.cfg"}
SETTINGS: dict[str, Any] = {
    "directory": TEXTFILES,
    "certificates": ["/etc/mesos/tls/*.pem"],
    "zookeeper": ZOOKEEPER,
    "homes": {"root": "/home"},
    "portal": {"hub_port": 8081, "port": 443, "told": "/var/lib/baremetal-gpu-portal/told.json"},
    "kubernetes": {"node": "head1"},
}


def document(settings: dict[str, Any]) -> dict[str, Any]:
    files, units = host_exporter.files_and_units(settings)
    return Document(files=files, units=units).plain


def files(**given: Any) -> dict[str, dict[str, Any]]:
    return {row["path"]: row for row in document({**SETTINGS, **given})["files"]}


def unit(path: str, **given: Any) -> list[str]:
    lines: list[str] = files(**given)[path]["content"].splitlines()
    return lines


def test_the_program_reads_settings_that_it_takes() -> None:
    config = json.loads(files()[host_exporter.CONFIG]["content"])
    assert config == {name: SETTINGS[name] for name in host_exporter.PARTS}
    assert set(exporter.works(config)) == set(host_exporter.PARTS)
    assert set(exporter.PATIENCE_S) == set(host_exporter.PARTS)


@pytest.mark.parametrize(
    "empty", [{"certificates": []}, {"zookeeper": None}, {"homes": {}}, {"portal": {}}, {"kubernetes": {}}]
)
def test_a_part_without_settings_does_not_run(empty: dict[str, Any]) -> None:
    config = json.loads(files(**empty)[host_exporter.CONFIG]["content"])
    assert set(config) == set(host_exporter.PARTS) - set(empty)


def test_the_timer_runs_and_begins_anew_with_another_program_or_other_settings() -> None:
    (row,) = document(SETTINGS)["units"]
    assert (row["name"], row["enabled"], row["state"]) == ("baremetal-gpu-host-metrics.timer", True, "started")
    written = {path for path, file in files().items() if "content" in file}
    assert set(row["restart_on"]) == written
    assert "OnUnitActiveSec=60s" in unit(host_exporter.TIMER_PATH)
    assert "OnUnitActiveSec=300s" in unit(host_exporter.TIMER_PATH, interval_s=300)


def test_the_service_writes_into_that_directory_alone_and_may_only_read_beyond_what_is_roots() -> None:
    lines = unit(host_exporter.SERVICE_PATH)
    file = f"{TEXTFILES}/baremetal_gpu_host.prom"
    assert f"ExecStart=/usr/bin/python3 -I {host_exporter.PROGRAM} --textfile {file}" in lines
    assert [line for line in lines if line.startswith("ReadWritePaths=")] == [f"ReadWritePaths={TEXTFILES}"]
    assert {"CapabilityBoundingSet=CAP_DAC_READ_SEARCH", "ProtectSystem=strict", "NoNewPrivileges=yes"} <= set(lines)
    assert "ProtectHome=read-only" in lines
    # Whose the directory is, is left as it is.
    assert files()[TEXTFILES] == {"path": TEXTFILES, "state": "directory"}


def test_all_parts_may_take_their_time() -> None:
    (limit,) = [line for line in unit(host_exporter.SERVICE_PATH) if line.startswith("TimeoutStartSec=")]
    assert int(limit.partition("=")[2]) > sum(exporter.PATIENCE_S.values())


def test_only_parts_that_talk_to_servers_need_the_network() -> None:
    none = {"zookeeper": None, "portal": None, "kubernetes": None}
    assert "RestrictAddressFamilies=AF_UNIX" in unit(host_exporter.SERVICE_PATH, **none)
    for name in none:
        only = {**none, name: SETTINGS[name]}
        assert "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6" in unit(host_exporter.SERVICE_PATH, **only)


@pytest.mark.parametrize(
    ("given", "has_textfile"),
    [
        ({"directory": ""}, False),
        ({"certificates": [], "zookeeper": None, "homes": None, "portal": {}, "kubernetes": {}}, True),
    ],
)
def test_with_nothing_to_do_there_is_no_program_no_timer_and_no_file(given: dict[str, Any], has_textfile: bool) -> None:
    found = document({**SETTINGS, **given})
    assert found["units"] == [{"name": host_exporter.TIMER, "enabled": False, "state": "stopped"}]
    assert {row["state"] for row in found["files"]} == {"absent"}
    gone = {row["path"] for row in found["files"]}
    paths = {path for path, file in files().items() if "content" in file or file["state"] == "link"}
    assert gone == paths | ({f"{TEXTFILES}/baremetal_gpu_host.prom"} if has_textfile else set())


@pytest.mark.parametrize(
    ("given", "variable"),
    [
        ({"directory": "/a\nExecStart=/bin/sh"}, "x_directory"),
        ({"directory": "metrics"}, "x_directory"),
        ({"interval_s": 29}, "x_interval_s"),
        ({"interval_s": "60"}, "x_interval_s"),
        ({"certificates": "/etc/a.pem"}, "x_certificates"),
        ({"certificates": ["a.pem"]}, "x_certificates"),
        ({"zookeeper": {**ZOOKEEPER, "port": "2181"}}, "x_zookeeper"),
        ({"homes": "/home"}, "x_homes"),
        ({"portal": {"hub_port": 8081, "port": 443}}, "x_portal"),
        ({"kubernetes": {"name": "head1"}}, "x_kubernetes"),
    ],
)
def test_settings_that_the_program_would_refuse_are_told_by_the_variable(given: dict[str, Any], variable: str) -> None:
    (problem,) = host_exporter.problems({**SETTINGS, **given}, "x_")
    assert (problem.subject, bool(problem.cause), bool(problem.remedy)) == (variable, True, True)


def test_good_settings_and_none_are_no_problem() -> None:
    assert list(host_exporter.problems(SETTINGS, "x_")) == []
    assert list(host_exporter.problems({}, "x_")) == []


def test_the_program_runs_with_nothing_installed(tmp_path: Path) -> None:
    program, config = tmp_path / "host-metrics", tmp_path / "config.json"
    program.write_text(files()[host_exporter.PROGRAM]["content"])
    (tmp_path / "a.pem").write_bytes(certificate())
    config.write_text(json.dumps({"certificates": [f"{tmp_path}/*.pem"], "homes": {"root": str(tmp_path)}}))
    done = subprocess.run(
        [sys.executable, "-I", program, "--config", config, "--textfile", tmp_path / "host.prom"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "baremetal_gpu_certificate_expiry_timestamp_seconds" in parse((tmp_path / "host.prom").read_text())
