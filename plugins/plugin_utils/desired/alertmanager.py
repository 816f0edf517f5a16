# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Alertmanager: who is told of which alerts, and which alert hides which."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import ROLES
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import rules, settings
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import SEVERITIES

Row = dict[str, Any]

ROLE = "alertmanager"
PACKAGE = "prometheus-alertmanager"
UNIT = f"{PACKAGE}.service"
ARGUMENTS = f"/etc/default/{PACKAGE}"
CONFIG = "/etc/prometheus/alertmanager.yml"
TEMPLATES = "/etc/prometheus/alertmanager_templates"
TEMPLATE = "baremetal-gpu.tmpl"
GROUP = "prometheus"
NOBODY, WATCHDOG = "nobody", "watchdog"
# The ways to a receiver, of which each has one.
WAYS = ("webhook", "chat", "email")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_EMAIL = re.compile(r"[^\s,<>@]+@[^\s,<>@]+")
_SMTP = {"smarthost", "from", "user", "password", "require_tls"}


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the host that Alertmanager runs on.

    :param params: ``state``, ``listen``, ``external_url``, ``receivers``, ``smtp``, ``watchdog_webhook``,
        ``group_wait``, ``group_interval`` and ``repeat_interval``.
    """
    if params["state"] == "absent":
        return Plan(_absent())
    problems = tuple(_problems(params))
    if problems:
        return Plan(problems=problems)
    words = [
        f"--web.listen-address={params['listen']}",
        "--cluster.listen-address=",
        *settings.external_url(params["external_url"]),
    ]
    text = Path(ROLES, ROLE, "files", TEMPLATE).read_text(encoding="utf-8")
    return Plan(
        doc.Document(
            packages=[doc.Package(PACKAGE)],
            files=[
                doc.File(ARGUMENTS, settings.arguments(ROLE, words), early=True),
                doc.Directory(TEMPLATES),
                doc.File(f"{TEMPLATES}/{TEMPLATE}", text),
                doc.File(
                    CONFIG,
                    settings.yaml_text(ROLE, _config(params)),
                    # The addresses of webhooks let anybody write there who knows them.
                    "0640",
                    group=GROUP,
                    sensitive=True,
                    validate="amtool check-config %s",
                ),
            ],
            units=[doc.Unit.running(UNIT, [ARGUMENTS, CONFIG, f"{TEMPLATES}/{TEMPLATE}", PACKAGE])],
        ),
        parts={"url": f"http://{params['listen']}"},
    )


def _config(params: Mapping[str, Any]) -> Row:
    receivers = params["receivers"]
    routes: list[Row] = [{"matchers": ['alertname="Watchdog"'], "receiver": NOBODY}]
    named: list[Row] = [{"name": NOBODY}]
    if params["watchdog_webhook"]:
        # With both intervals equal, only each second flush would send.
        routes[0] |= {"receiver": WATCHDOG, "group_wait": "0s", "group_interval": "1m", "repeat_interval": "30s"}
        named.append(_receiver({"name": WATCHDOG, "webhook": params["watchdog_webhook"]}))
    for row in receivers:
        wanted = "|".join(severity for severity in SEVERITIES if severity in row["severities"])
        routes.append({"matchers": [f'severity=~"{wanted}"'], "receiver": row["name"], "continue": True})
        named.append(_receiver(row))
    return {
        **({"global": _smtp(params["smtp"])} if params["smtp"] else {}),
        "templates": [f"{TEMPLATES}/*.tmpl"],
        "route": {
            "receiver": NOBODY,
            # One message for all hosts that have the same fault.
            "group_by": ["alertname"],
            "group_wait": params["group_wait"],
            "group_interval": params["group_interval"],
            "repeat_interval": params["repeat_interval"],
            "routes": routes,
        },
        "inhibit_rules": rules.inhibit_rules(),
        "receivers": named,
    }


def _receiver(row: Mapping[str, Any]) -> Row:
    if row.get("webhook"):
        return {"name": row["name"], "webhook_configs": [{"url": row["webhook"], "send_resolved": True}]}
    if row.get("chat"):
        chat = {
            "api_url": row["chat"],
            "send_resolved": True,
            "title": '{{ template "baremetal_gpu.title" . }}',
            # By default it would lead to Alertmanager, which listens on loopback.
            "title_link": "{{ (index .Alerts 0).Annotations.runbook_url }}",
            "text": '{{ template "baremetal_gpu.text" . }}',
        }
        return {"name": row["name"], "slack_configs": [chat]}
    mail = {
        "to": row["email"],
        "send_resolved": True,
        "headers": {"Subject": '{{ template "baremetal_gpu.title" . }}'},
        "html": "",
        "text": '{{ template "baremetal_gpu.text" . }}',
    }
    return {"name": row["name"], "email_configs": [mail]}


def _smtp(smtp: Mapping[str, Any]) -> Row:
    found: Row = {"smtp_smarthost": smtp["smarthost"], "smtp_from": smtp["from"]}
    if smtp.get("user"):
        found |= {"smtp_auth_username": smtp["user"], "smtp_auth_password": smtp["password"]}
    if "require_tls" in smtp:
        found["smtp_require_tls"] = bool(smtp["require_tls"])
    return found


def _problems(params: Mapping[str, Any]) -> Iterator[Problem]:
    yield from settings.listen_problems("alertmanager_listen", str(params["listen"]), "Alertmanager", "127.0.0.1:9093")
    yield from settings.link_problems(
        "alertmanager_external_url", str(params["external_url"]), "https://alerts.example.org"
    )
    for name in ("group_wait", "group_interval", "repeat_interval"):
        yield from settings.duration_problems(f"alertmanager_{name}", str(params[name]))
    if params["watchdog_webhook"] and not _is_url(params["watchdog_webhook"]):
        yield _wrong("alertmanager_watchdog_webhook", "it is not an http or https URL", "", "give the whole URL")
    names = {NOBODY, WATCHDOG}
    for number, row in enumerate(params["receivers"], 1):
        yield from _receiver_problems(f"alertmanager_receivers, entry {number}", row, names, params["smtp"])
    if params["smtp"]:
        yield from _smtp_problems(params["smtp"])


def _receiver_problems(subject: str, row: Any, names: set[str], smtp: Any) -> Iterator[Problem]:
    if not isinstance(row, Mapping):
        yield _wrong(subject, "it is not a dict", str(row), "give name, severities and one of webhook, chat and email")
        return
    name, severities = row.get("name"), row.get("severities")
    if unknown := sorted(str(key) for key in row.keys() - {"name", "severities", *WAYS}):
        yield _wrong(subject, "it has a key that is not known", unknown[0], f"keys are name, severities, {_or(WAYS)}")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in names:
        yield _wrong(subject, "its name is missing, taken or no plain word", str(name), "give a name such as oncall")
    else:
        names.add(name)
    if not isinstance(severities, (list, tuple)) or not severities or set(severities) - set(SEVERITIES):
        yield _wrong(subject, "its severities are not known", str(severities), f"give a list of {_or(SEVERITIES)}")
    ways = [way for way in WAYS if row.get(way)]
    if len(ways) != 1:
        yield _wrong(subject, "it has no address, or several", ", ".join(ways), f"give one of {_or(WAYS)}")
    elif ways == ["email"]:
        if not _EMAIL.fullmatch(str(row["email"])):
            yield _wrong(subject, "its email is not an address", str(row["email"]), "give one such as ops@example.org")
        if not smtp:
            yield _wrong(subject, "there is no mail server", "", "give alertmanager_smtp, with smarthost and from")
    elif not _is_url(row[ways[0]]):
        # The URL may be a secret.
        yield _wrong(subject, f"its {ways[0]} is not an http or https URL", "", "give the whole URL")


def _smtp_problems(smtp: Any) -> Iterator[Problem]:
    subject = "alertmanager_smtp"
    if not isinstance(smtp, Mapping) or not smtp.get("smarthost") or not smtp.get("from"):
        yield _wrong(subject, "it has no smarthost or no from", "", "give smarthost (host:port) and from (an address)")
        return
    if unknown := sorted(str(key) for key in smtp.keys() - _SMTP):
        yield _wrong(subject, "it has a key that is not known", unknown[0], f"keys are {', '.join(sorted(_SMTP))}")
    if not re.fullmatch(r"[A-Za-z0-9._\[\]:-]+:[0-9]{1,5}", str(smtp["smarthost"])):
        yield _wrong(
            subject,
            "its smarthost is not a host with a port",
            str(smtp["smarthost"]),
            "give one such as mail.example.org:587",
        )
    if bool(smtp.get("user")) != bool(smtp.get("password")):
        yield _wrong(subject, "user goes with password, and one of them is not given", "", "give both or neither")


def _wrong(subject: str, cause: str, value: str, remedy: str) -> Problem:
    return Problem("wrong_setting", subject, cause, value[:200], remedy)


def _or(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _is_url(value: Any) -> bool:
    try:
        parts = urlsplit(str(value))
        return parts.scheme in ("http", "https") and bool(parts.hostname) and str(value).isprintable()
    except ValueError:
        return False


def _absent() -> doc.Document:
    """Silences and the log of notifications stay."""
    return doc.Document(
        units=[doc.Unit.stopped(UNIT)],
        packages=[doc.Package(PACKAGE, "absent")],
        files=[*map(doc.Absent, (f"{TEMPLATES}/{TEMPLATE}", CONFIG, ARGUMENTS))],
    )
