# SPDX-License-Identifier: GPL-3.0-or-later
"""What gpuops does around a run of a whole site: wheels that it brings before, and what it tells at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuops.commands import wheels as command
from gpuops.fetch import wheels
from gpuops.fetch.manifest import ManifestError
from gpuops.run import playbooks
from gpuops.run.listing import Listing
from gpuops.site import Site
from gpuops.status import entrances

HEAD = {"ansible_host": "192.0.2.11", "ansible_user": "admin"}
EVERYTHING = {
    **HEAD,
    "portal_name": "portal.example.org",
    "registry_name": "registry.example.org",
    "cluster_users": [{"name": "alice"}, {"name": "bob", "state": "closed"}, {"name": "carol"}],
    "alertmanager_receivers": [{"name": "oncall"}],
    "gpu_reconciler_mode": "act",
}
GROUPS = ("portals", "slurm_logins", "registries", "prometheus_servers", "log_hosts", "gpu_reconcilers")


def listing(groups: tuple[str, ...] = GROUPS, **variables: Any) -> Listing:
    rows = {group: {"hosts": ["head1"]} for group in groups}
    return Listing({**rows, "_meta": {"hostvars": {"head1": {**EVERYTHING, **variables}}}})


def told(tmp_path: Path, groups: tuple[str, ...] = GROUPS, **variables: Any) -> str:
    return "\n".join(entrances.lines(listing(groups, **variables), tmp_path))


def test_a_site_tells_where_people_come_in_what_they_trust_and_where_passwords_lie(tmp_path: Path) -> None:
    text = told(tmp_path)
    assert "https://portal.example.org   people log in" in text
    assert f"{tmp_path}/.secrets/portal-tls/ca.pem" in text
    assert "Firefox: Settings" in text
    assert "ssh alice@192.0.2.11" in text
    assert "ssh -L 9090:127.0.0.1:9090 -L 9093:127.0.0.1:9093 admin@192.0.2.11" in text
    assert "https://portal.example.org/hub/now   every GPU" in text
    assert "consoles/gpu.html" not in text
    assert "http://127.0.0.1:9090/consoles/gpu.html" in told(tmp_path, ("prometheus_servers",))
    assert "registry.example.org:5000" in text
    assert f"passwords are in {tmp_path}/.secrets/registry, a file for each user" in text
    assert "gpuops user invite alice" in text
    # Names that the DNS has need no line on computers of people, and nothing is left to do.
    assert "/etc/hosts" not in text
    assert "left to do" not in text


def test_only_what_the_site_has_is_told(tmp_path: Path) -> None:
    text = told(tmp_path, ("slurm_logins",))
    assert "ssh alice@" in text
    for word in ("https", "registry", "9090", "invite", "journals", "trust"):
        assert word not in text
    assert entrances.lines(Listing({"_meta": {"hostvars": {"head1": HEAD}}}), tmp_path) == []


def test_without_dns_each_person_is_told_the_line_with_the_names_of_sessions(tmp_path: Path) -> None:
    text = told(tmp_path, portal_check_names=False, portal_port=8443)
    assert "https://portal.example.org:8443" in text
    # Not one who is closed.
    assert "192.0.2.11 portal.example.org alice.portal.example.org carol.portal.example.org" in text


def test_certificates_of_the_operators_own_and_another_login_need_no_steps(tmp_path: Path) -> None:
    text = told(tmp_path, portal_tls_files={"key": "k"}, registry_tls_files={"key": "k"}, portal_login="ldap")
    for words in ("Firefox", "ca.pem", "invite"):
        assert words not in text


def test_what_is_left_to_do_is_told_with_the_command_or_the_variable(tmp_path: Path) -> None:
    (tmp_path / ".secrets").mkdir()
    text = told(tmp_path, cluster_users=[], alertmanager_receivers=[], gpu_reconciler_mode="dry-run")
    left = text.partition("left to do")[2]
    assert "gpuops user add NAME" in left
    assert "alertmanager_receivers" in left
    assert "gpu_reconciler_mode" in left
    assert f"keep a copy of {tmp_path}/.secrets" in left


@pytest.mark.parametrize(
    ("group", "mode", "stays"),
    [
        ("gpu_reconcilers", "auto", True),
        ("gpu_reconcilers", "act", False),
        ("slurm_controllers", "auto", False),
        ("slurm_controllers", "record", True),
    ],
)
def test_a_site_whose_faulty_gpus_stay_in_service_is_told_so(
    tmp_path: Path, group: str, mode: str, stays: bool
) -> None:
    text = told(tmp_path, (group,), gpu_reconciler_mode=mode)
    assert ("faulty GPUs stay in service" in text) == stays


@pytest.mark.parametrize(
    ("state", "mode", "todo"),
    [
        ("absent", "act", "remove gpu_reconciler_state: absent for head1"),
        ("present", "dry-run", "set gpu_reconciler_mode to act for head1"),
        # What a template says is not known here.
        ("{{ state }}", "auto", ""),
    ],
)
def test_what_a_reconciler_needs_to_act_is_told(tmp_path: Path, state: str, mode: str, todo: str) -> None:
    text = told(tmp_path, ("slurm_controllers",), gpu_reconciler_state=state, gpu_reconciler_mode=mode)
    assert ("faulty GPUs stay in service" in text, todo in text) == (bool(todo), True)


def test_a_variable_that_is_a_template_is_not_shown_as_a_name(tmp_path: Path) -> None:
    text = told(tmp_path, portal_name="portal.{{ domain }}", registry_tls_path="{{ where }}")
    assert "{{" not in text
    assert "https://head1" in text


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    places: list[Path] = []

    def fetch(files: list[str], place: Path, told: Any) -> int:
        assert files == wheels.every()
        places.append(place)
        told(0, 2)
        told(1, 2)
        return 2

    monkeypatch.setattr(wheels, "fetch", fetch)
    return places


def test_wheels_of_a_portal_are_brought_before_the_run(
    fetched: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.bring("up", Site(tmp_path), listing(), "")
    assert fetched == [tmp_path / ".wheels"]
    said = capsys.readouterr().err
    # Without a terminal a line at the beginning and one at the end.
    assert said == f"fetching the wheels of the portal, once: 0 of 2\n2 wheels of the portal are in {fetched[0]}\n"


@pytest.mark.parametrize(
    ("groups", "variables", "tags"),
    [
        (("slurm_logins",), {}, ""),
        (GROUPS, {"portal_wheelhouse": "/mirror/wheels"}, ""),
        (GROUPS, {"portal_state": "absent"}, ""),
        (GROUPS, {}, "driver,slurm"),
    ],
)
def test_wheels_that_no_run_needs_or_that_the_operator_has_are_left(
    fetched: list[Path], tmp_path: Path, groups: tuple[str, ...], variables: dict[str, Any], tags: str
) -> None:
    command.bring("up", Site(tmp_path), listing(groups, **variables), tags)
    command.bring("up", Site(tmp_path), None, tags)
    assert fetched == []


def test_without_a_way_out_the_run_begins_all_the_same_and_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(*_words: Any, **_more: Any) -> int:
        raise ManifestError("pip download ended with 1: no route to host")

    monkeypatch.setattr(wheels, "fetch", fetch)
    command.bring("up", Site(tmp_path), listing(), "portal")
    said = capsys.readouterr().err
    assert "gpuops up: the wheels of the portal cannot be fetched: pip download ended with 1: no route to host" in said
    assert "docs/air-gapped.md" in said


def test_an_inventory_that_cannot_be_read_is_for_ansible_to_tell(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("all: [")
    assert command.listed(Site(tmp_path / "hosts.yml"), playbooks.SITE, []) is None
    (tmp_path / "hosts.json").write_text(json.dumps({"portals": {"hosts": {"head1": HEAD}}}))
    found = command.listed(Site(tmp_path / "hosts.json"), playbooks.SITE, [])
    assert found is not None
    assert found.hosts("portals") == ["head1"]
    # Of another playbook than the site's nothing is known.
    assert command.listed(Site(tmp_path / "hosts.json"), playbooks.STATUS, []) is None
