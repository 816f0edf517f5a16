# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What people and operators use: metrics and alerts, images, sessions, and a login.

`hosts` are {name: {"registry": what accept_registry returns, or None}}, `services` {name: {part: what accept_services
returns}}; what hosts send is untrusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import (
    NOT_APPLICABLE,
    NOT_TESTABLE,
    SERVICES,
    Item,
    judged,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import mapping, number, rows

Row = Mapping[str, Any]
Rows = Mapping[str, Row]

# Jobs with a target on each host that may serve, of which one does at a time: only the active mgr of Ceph has metrics.
ONE_SERVES = ("ceph",)
EXPORTER = "`systemctl status prometheus-node-exporter` there, and see that Prometheus reaches port 9100"
NO_TOKEN = "accept_portal_token is not set: let a user make a token at /hub/token of the portal"
NO_IMAGE = "accept_image is not set: name an image, such as catalogue/pytorch:2.9"


def _exporters(server: str, row: Row) -> list[Item]:
    targets = rows(row.get("targets"))
    expected = (
        [name for name in row["expected"] if isinstance(name, str)] if isinstance(row.get("expected"), list) else []
    )
    bad = []
    up = {told.get("job") for told in targets if told.get("health") == "up"}
    standby = sum(told.get("health") != "up" and told.get("job") in up.intersection(ONE_SERVES) for told in targets)
    for told in targets:
        if told.get("health") != "up" and told.get("job") not in up.intersection(ONE_SERVES):
            # What is no host's is the server's own.
            host = str(told.get("host")) if told.get("host") in expected else server
            text = str(told.get("error") or f"it is {told.get('health')}")
            remedy = EXPORTER if told.get("job") == "node" else "see the page Targets of Prometheus"
            bad.append(judged("services.exporter", SERVICES, host, False, text, remedy, f"{told.get('job')}"))
    scraped = {told.get("host") for told in targets if told.get("job") == "node"}
    for name in expected:
        if name not in scraped:
            text, remedy = "Prometheus does not collect its metrics", "run `gpuops up --tags monitoring`"
            bad.append(judged("services.exporter", SERVICES, name, False, text, remedy, "node"))
    text = f"all {len(targets) - standby} targets are up" + (f", {standby} standby do not answer" if standby else "")
    return bad or [judged("services.exporter", SERVICES, server, True, text, "")]


def _monitoring(name: str, row: Row) -> list[Item]:
    if row.get("error"):
        remedy = f"`systemctl status prometheus` on {name}"
        return [judged("services.prometheus", SERVICES, name, False, str(row["error"]), remedy)]
    found = [judged("services.prometheus", SERVICES, name, True, "Prometheus answers", ""), *_exporters(name, row)]
    good = row.get("watchdog") is True
    evidence = "the alert that always fires has come to Alertmanager"
    if not good:
        evidence = str(row.get("watchdog_error") or "the alert that always fires has not come to Alertmanager")
    remedy = f"`systemctl status prometheus-alertmanager` on {name}, and see that Prometheus knows it"
    return [*found, judged("services.alert", SERVICES, name, good, evidence, remedy)]


def _portal(name: str, row: Row) -> list[Item]:
    remedy = f"`systemctl status baremetal-gpu-portal baremetal-gpu-portal-proxy` on {name}"
    if row.get("error"):
        return [judged("services.portal", SERVICES, name, False, str(row["error"]), remedy)]
    found = [judged("services.portal", SERVICES, name, True, f"the hub answers, version {row.get('version')}", "")]
    session, error = row.get("session"), row.get("session_error")
    if session is True:
        told = f"a session began, answered and was ended after {row.get('seconds')} s"
        found.append(judged("services.session", SERVICES, name, True, told, ""))
    elif session is False:
        remedy = f"`sudo journalctl -u baremetal-gpu-portal` on {name}"
        found.append(judged("services.session", SERVICES, name, False, str(error), remedy))
    else:
        found.append(Item("services.session", SERVICES, name, NOT_TESTABLE, str(error or NO_TOKEN)))
    return found


def _login(name: str, row: Row) -> list[Item]:
    missing = row.get("missing")
    if not isinstance(missing, list):
        return [Item("services.login", SERVICES, name, NOT_TESTABLE, "the programs are not known")]
    text = f"missing: {', '.join(map(str, missing))}" if missing else "the usual programs are there"
    return [judged("services.login", SERVICES, name, not missing, text, "install them for your users")]


def _registry(name: str, row: Row) -> list[Item]:
    if row.get("error"):
        remedy = "see that the registry answers, and run `gpuops up --tags registry`"
        return [judged("services.registry", SERVICES, name, False, str(row["error"]), remedy)]
    found = [judged("services.registry", SERVICES, name, True, "the registry answers, and the host trusts it", "")]
    image, size, seconds = row.get("image"), number(row.get("bytes")), number(row.get("seconds"))
    if not image:
        return [*found, Item("services.pull", SERVICES, name, NOT_TESTABLE, NO_IMAGE)]
    good = not row.get("pull_error") and size is not None
    told = f"{image}: {(size or 0) / 1e6:.1f} MB in {seconds or 0:.1f} s, and the digests are right"
    remedy = "push the image again, or give a login that may pull it in accept_registry_login"
    evidence = told if good else f"{image}: {row.get('pull_error')}"
    return [*found, judged("services.pull", SERVICES, name, good, evidence, remedy)]


PARTS = {"monitoring": _monitoring, "portal": _portal, "login": _login}


def items(hosts: Rows, services: Rows) -> list[Item]:
    """All items of the stage. A row may have "why": what kept the host from trying."""
    found = []
    for name, parts in services.items():
        for part, judge in PARTS.items():
            if mapping(parts.get(part)):
                found += judge(name, mapping(parts[part]))
    for name, host in hosts.items():
        row = mapping(host.get("registry"))
        if row:
            found += _registry(name, row)
        elif host.get("why") or "registry" not in host:
            why = str(host.get("why") or "the host did not answer")
            found.append(Item("services.registry", SERVICES, name, NOT_TESTABLE, why))
        else:
            found.append(Item("services.registry", SERVICES, name, NOT_APPLICABLE, "the host pulls from no registry"))
    return found
