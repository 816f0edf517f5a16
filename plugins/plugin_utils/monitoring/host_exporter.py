# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of a role's plan that is the host exporter (module_utils/monitoring/exporter.py) and its timer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring import exporter
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import textfile

ROLE = "node_exporter"
PROGRAM = "/usr/libexec/baremetal-gpu/host-metrics"
COMMAND = f"/usr/local/bin/{exporter.NAME}"
CONFIG = exporter.CONFIG
SERVICE, TIMER = f"{exporter.NAME}.service", f"{exporter.NAME}.timer"
SERVICE_PATH, TIMER_PATH = f"/etc/systemd/system/{SERVICE}", f"/etc/systemd/system/{TIMER}"
FILE = "baremetal_gpu_host.prom"
# An alert on ZooKeeper waits for a minute.
INTERVAL_S = 60
PARTS = ("certificates", "zookeeper", "homes", "portal", "kubernetes")
# Those that talk to servers of the host.
ON_NETWORK = {"zookeeper", "portal", "kubernetes"}


def problems(settings: Mapping[str, Any], prefix: str) -> Iterator[Problem]:
    """What is wrong with the settings of `document`.

    :param prefix: of the role's variables, which have the names of the settings.
    """
    yield from textfile.directory_problems(f"{prefix}directory", str(settings.get("directory") or ""))
    interval = settings.get("interval_s", INTERVAL_S)
    if isinstance(interval, bool) or not isinstance(interval, int) or not 30 <= interval <= 3600:
        yield Problem(
            "wrong_setting",
            f"{prefix}interval_s",
            "it is not from 30 to 3600 seconds",
            str(interval),
            f"give seconds such as {INTERVAL_S}",
        )
    for name in PARTS:
        try:
            exporter.works({name: settings[name]} if settings.get(name) else {})
        except Malformed as why:
            yield Problem("wrong_setting", f"{prefix}{name}", str(why), remedy="give what the role's README says")


def files_and_units(settings: Mapping[str, Any]) -> tuple[list[doc.Entry], list[doc.Unit]]:
    """What a desired document gets.

    Settings; an empty part does not run, and without any there is no program:

    - `directory`: of the textfile collector. Where the program is to go it stays given, so that its file goes too.
    - `certificates`: paths of files in PEM, or patterns as a shell has them.
    - `zookeeper`: {host, port, config} of this host's server, with the path of its zoo.cfg.
    - `homes`: {root}, the directory that users' homes on CephFS are mounted in.
    - `portal`: {hub_port, port, told} of this host's portal, with the path of what its hub tells of itself.
    - `kubernetes`: {node, snapshots} of a control plane: the name of this host in the cluster, and the directory of
      the snapshots of etcd, left out where none are made.
    - `interval_s`: seconds between two looks, 60 by default.
    - `python`: the interpreter, version 3.9 or newer, /usr/bin/python3 by default.
    """
    directory = str(settings.get("directory") or "")
    config = {name: settings[name] for name in PARTS if settings.get(name)}
    path = f"{directory}/{FILE}"
    if not directory or not config:
        paths = [TIMER_PATH, SERVICE_PATH, COMMAND, PROGRAM, CONFIG, *([path] if directory else [])]
        return [*map(doc.Absent, paths)], [doc.Unit.stopped(TIMER)]
    service = render(
        ROLE,
        f"{SERVICE}.j2",
        python=settings.get("python") or "/usr/bin/python3",
        program=PROGRAM,
        name=exporter.NAME,
        directory=directory,
        textfile=path,
        families="AF_UNIX AF_INET AF_INET6" if ON_NETWORK & set(config) else "AF_UNIX",
    )
    files: list[doc.Entry] = [
        *(doc.Directory(one.rpartition("/")[0]) for one in (PROGRAM, CONFIG)),
        *textfile.directory(directory),
        doc.File(PROGRAM, bundle("monitoring.exporter"), "0755"),
        doc.Link(COMMAND, PROGRAM),
        doc.File(CONFIG, f"{json.dumps(config, indent=2, sort_keys=True)}\n"),
        doc.File(SERVICE_PATH, service),
        doc.File(TIMER_PATH, render(ROLE, f"{TIMER}.j2", interval=settings.get("interval_s", INTERVAL_S))),
    ]
    # A timer that starts looks at once.
    return files, [doc.Unit.running(TIMER, [PROGRAM, CONFIG, SERVICE_PATH, TIMER_PATH])]
