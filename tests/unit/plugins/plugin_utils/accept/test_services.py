# SPDX-License-Identifier: GPL-3.0-or-later
"""The judgement of what people use: what fails is named, and nothing else is."""

from __future__ import annotations

import copy

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import FAIL, NOT_APPLICABLE, NOT_TESTABLE, PASS
from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.services import items


def target(host, job="node"):
    return {"host": host, "job": job, "health": "up", "error": ""}


@pytest.fixture
def hosts():
    row = {"error": None, "image": "catalogue/tool:1", "pull_error": None, "bytes": 5e6, "seconds": 0.4}
    return {name: {"registry": dict(row)} for name in ("n1", "n2")}


@pytest.fixture
def services():
    monitoring = {
        "error": None,
        "expected": ["n1", "n2"],
        "targets": [target("n1"), target("n2"), target("", "prometheus")],
        "watchdog": True,
        "watchdog_error": None,
    }
    portal = {"error": None, "version": "5.2.1", "session": True, "session_error": None, "seconds": 9.5}
    return copy.deepcopy({"head": {"monitoring": monitoring, "portal": portal, "login": {"missing": []}}})


def failures(found):
    return {(item.host, item.subject, item.id) for item in found if item.outcome == FAIL}


def test_sound_services_pass(hosts, services):
    found = items(hosts, services)
    assert {item.outcome for item in found} == {PASS}
    assert {item.id.partition(".")[2] for item in found} == {
        *("prometheus", "exporter", "alert", "portal", "session", "login", "registry", "pull")
    }


def test_a_dead_exporter_is_named_and_nothing_else(hosts, services):
    services["head"]["monitoring"]["targets"][1].update(health="down", error="connection refused")
    found = items(hosts, services)
    assert failures(found) == {("n2", "node", "services.exporter")}
    (item,) = [item for item in found if item.outcome == FAIL]
    assert (item.evidence, bool(item.remedy)) == ("connection refused", True)


def test_an_exporter_that_nobody_asks_is_named(hosts, services):
    services["head"]["monitoring"]["targets"].pop(0)
    assert failures(items(hosts, services)) == {("n1", "node", "services.exporter")}


@pytest.mark.parametrize(
    ("healths", "failed"),
    [
        # The standby ones of Ceph's mgr have no metrics.
        (("up", "down", "down"), set()),
        (("down", "up"), set()),
        (("up",), set()),
        (("down", "down"), {("head", "ceph", "services.exporter")}),
        (("unknown",), {("head", "ceph", "services.exporter")}),
    ],
)
def test_one_mgr_of_ceph_serves_at_a_time(hosts, services, healths, failed):
    services["head"]["monitoring"]["targets"] += [
        {**target(f"ceph{number}", "ceph"), "health": health} for number, health in enumerate(healths)
    ]
    assert failures(items(hosts, services)) == failed


FAULTS = {
    "Prometheus": ("monitoring", {"error": "refused"}, "services.prometheus"),
    "an alert that does not come": ("monitoring", {"watchdog": False}, "services.alert"),
    "Alertmanager": ("monitoring", {"watchdog": None, "watchdog_error": "refused"}, "services.alert"),
    "a hub": ("portal", {"error": "refused"}, "services.portal"),
    "a session": ("portal", {"session": False, "session_error": "not ready"}, "services.session"),
    "a bare login": ("login", {"missing": ["git"]}, "services.login"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_service_that_fails_is_named_and_nothing_else(hosts, services, fault):
    part, change, id = FAULTS[fault]
    services["head"][part].update(change)
    assert failures(items(hosts, services)) == {("head", "", id)}


def test_an_image_that_does_not_come_is_named_for_the_host(hosts, services):
    hosts["n2"]["registry"].update(pull_error="401", bytes=None)
    assert failures(items(hosts, services)) == {("n2", "", "services.pull")}
    hosts["n2"]["registry"].update(error="certificate verify failed")
    assert failures(items(hosts, services)) == {("n2", "", "services.registry")}


def test_what_was_not_tried_says_what_it_needs(hosts, services):
    hosts["n1"]["registry"]["image"] = ""
    services["head"]["portal"].update(session=None)
    found = items({**hosts, "n3": {"registry": None}, "n4": {}}, services)
    assert failures(found) == set()
    told = {item.id: item.evidence for item in found if item.outcome == NOT_TESTABLE}
    assert "accept_image" in told["services.pull"]
    assert "accept_portal_token" in told["services.session"]
    assert {item.outcome for item in found if item.host == "n3"} == {NOT_APPLICABLE}
    assert {item.outcome for item in found if item.host == "n4"} == {NOT_TESTABLE}


def test_who_lies_breaks_nothing(hosts, services):
    for nonsense in (None, 7, "x", [7], {"error": None, "targets": 7, "expected": [7], "missing": 7}):
        hosts["n2"] = {"registry": nonsense}
        services["liar"] = dict.fromkeys(("monitoring", "portal", "login"), nonsense)
        assert {item.host for item in items(hosts, services) if item.outcome == FAIL} <= {"liar", "n2"}
