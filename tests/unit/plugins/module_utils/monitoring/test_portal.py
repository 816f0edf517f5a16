# SPDX-License-Identifier: GPL-3.0-or-later
"""What is told of a portal: its metrics, and the same in words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.exposition import exposition
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring import portal
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring.metrics import METRICS
from tests.unit.plugins.exposition import parse
from tests.unit.plugins.module_utils.portal.tls_site import Site, serving

TOLD: dict[str, Any] = {
    "at": 1000.0,
    "sessions": {"run": 3, "wait": 1},
    "unmeasured": {"silent": 0, "unknown": 1},
    "starts": {"started": 9, "failed": 2, "refused": 1, "cancelled": 0},
    "idle_warnings": 4,
    "idle_stops": 2,
    "notices_failed": 0,
}


@pytest.fixture
def told(tmp_path: Path) -> Path:
    path = tmp_path / "told.json"
    path.write_text(json.dumps(TOLD))
    return path


def answers(hub: str = "", proxy: str = "") -> Any:
    asked = {(8081, "/hub/health"): hub, (443, "/_chp_healthz"): proxy}
    return lambda port, _certificates, path: asked[port, path]


def condition(told: Path, **answer: str) -> dict[str, Any]:
    return portal.condition(8081, 443, str(told), answers(**answer))


def test_everything_that_the_hub_tells_is_a_metric(told: Path) -> None:
    part = portal.look(8081, 443, str(told), answers())
    page = parse(exposition(part.samples, METRICS))
    assert {name for name in METRICS if name.startswith("portal_")} == set(page)
    assert page["portal_hub_up"].series == {(): 1.0}
    assert page["portal_session_starts_total"].series[(("result", "failed"),)] == 2.0
    assert page["portal_sessions_unmeasured"].series[(("reason", "unknown"),)] == 1.0
    assert part.complaints == []


def test_what_does_not_answer_is_told_and_so_is_why(told: Path) -> None:
    part = portal.look(8081, 443, str(told), answers(hub="port 8081 answers with status 503", proxy="refused"))
    page = parse(exposition(part.samples, METRICS))
    assert (page["portal_hub_up"].series, page["portal_proxy_up"].series) == ({(): 0.0}, {(): 0.0})
    assert part.complaints[0] == "the hub of the portal: port 8081 answers with status 503"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        json.dumps({**TOLD, "sessions": {"run": -1}}),
        json.dumps({**TOLD, "starts": {"a\nb": 1}}),
        "x" * 70_000,
    ],
)
def test_a_file_that_is_none_of_the_hubs_is_no_number(tmp_path: Path, text: str) -> None:
    (tmp_path / "told.json").write_text(text)
    part = portal.look(8081, 443, str(tmp_path / "told.json"), answers())
    assert {name for name, _labels, _value in part.samples} == {"portal_hub_up", "portal_proxy_up"}
    assert "cannot be read" in part.complaints[0]


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    """The directory is the hub's, which may not read what root reads."""
    (tmp_path / "other").write_text(json.dumps(TOLD))
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub").chmod(0o777)
    (tmp_path / "hub" / "told.json").symlink_to(tmp_path / "other")
    found = portal.condition(8081, 443, str(tmp_path / "hub" / "told.json"), answers())
    assert found["told"] is None


def of_hub(base: Path) -> Site:
    """A site in a directory, with what the hub has of it."""
    site = Site(base)
    for name, source in (
        ("hub-ca/hub-ca.crt", site.authority),
        ("proxy-client/proxy-client.crt", site.pair("hub").certificate),
        ("proxy-client/proxy-client.key", site.pair("hub").key),
    ):
        (base / name).parent.mkdir(exist_ok=True)
        shutil.copy(source, base / name)
    return site


@pytest.fixture(scope="module")
def hub_tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Site, str]:
    base = tmp_path_factory.mktemp("hub")
    return of_hub(base), str(base)


@pytest.mark.parametrize("status", [200, 503])
def test_only_a_server_that_is_well_answers(hub_tls: tuple[Site, str], status: int) -> None:
    site, directory = hub_tls
    with serving(site.pair("hub"), clients_of=site.authority) as server:
        server.status = status
        said = portal.ask(server.server_port, directory, "/hub/health")
        assert said == ("" if status == 200 else f"port {server.server_port} answers with status 503")
    with serving(None) as plain:
        assert "does not answer" in portal.ask(plain.server_port, "", "/")
    assert "does not answer" in portal.ask(1, "", "/")


def test_another_program_in_the_place_of_the_hub_is_no_hub(hub_tls: tuple[Site, str]) -> None:
    site, directory = hub_tls
    with serving(site.pair("bob")) as other:
        assert "does not answer" in portal.ask(other.server_port, directory, "/hub/health")
        assert other.came == []


def test_a_hub_whose_certificates_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert "cannot be read" in portal.ask(1, str(tmp_path), "/hub/health")


def test_a_portal_that_is_well_has_no_problems(told: Path) -> None:
    found = portal.summary(condition(told), 1010.0)
    assert found == {"hub": True, "proxy": True, "sessions": {"run": 3, "wait": 1}, "problems": []}


def codes(found: dict[str, Any]) -> list[str]:
    assert all(row["cause"] and row["remedy"] for row in found["problems"])
    return [row["code"] for row in found["problems"]]


def test_each_part_that_is_down_is_a_problem_with_a_remedy(told: Path) -> None:
    found = portal.summary(condition(told, hub="no", proxy="no"), 9999.0)
    assert (found["hub"], found["proxy"], found["sessions"]) == (False, False, None)
    # That it tells nothing follows from that.
    assert codes(found) == ["hub_down", "proxy_down"]


@pytest.mark.parametrize("now", [1200.0, 800.0])
def test_numbers_that_are_old_are_none_and_a_problem(told: Path, now: float) -> None:
    found = portal.summary(condition(told), now)
    assert found["sessions"] is None
    assert codes(found) == ["tells_nothing"]


def test_sessions_that_are_not_measured_are_a_problem(told: Path) -> None:
    told.write_text(json.dumps({**TOLD, "unmeasured": {"silent": 2, "unknown": 0}}))
    found = portal.summary(condition(told), 1010.0)
    assert codes(found) == ["sessions_unmeasured"]
    assert "2 sessions send no measurements" in found["problems"][0]["cause"]
