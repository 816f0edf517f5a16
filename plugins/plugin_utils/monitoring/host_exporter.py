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
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Document
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import textfile

PROGRAM = "/usr/libexec/baremetal-gpu/host-metrics"
COMMAND = f"/usr/local/bin/{exporter.NAME}"
CONFIG = exporter.CONFIG
SERVICE, TIMER = f"{exporter.NAME}.service", f"{exporter.NAME}.timer"
SERVICE_PATH, TIMER_PATH = f"/etc/systemd/system/{SERVICE}", f"/etc/systemd/system/{TIMER}"
FILE = "baremetal_gpu_host.prom"
# An alert on ZooKeeper waits for a minute.
INTERVAL_S = 60
PARTS = ("certificates", "zookeeper", "homes", "portal")
# Those that talk to servers of the host.
ON_NETWORK = {"zookeeper", "portal"}
ROOT_OWNS = {"owner": "root", "group": "root"}
HEAD = "# Written by Ansible (baremetal.gpu). Changes made here are lost.\n"
SERVICE_UNIT = (
    HEAD
    + """\
[Unit]
Description=Metrics of certificates, ZooKeeper, homes and the portal of this host

[Service]
Type=oneshot
ExecStart={python} -I {program} --textfile {textfile}
SyslogIdentifier={name}
# Longer than all parts may take together.
TimeoutStartSec=150
# A child that hangs in the kernel does not end; nobody is to wait for it.
KillMode=process
MemoryMax=256M

# What was told, and locks that such a child keeps.
RuntimeDirectory={name}
RuntimeDirectoryMode=0700
RuntimeDirectoryPreserve=yes
ReadWritePaths={directory}

# It reads certificates and homes that are not root's, and writes one file.
CapabilityBoundingSet=CAP_DAC_READ_SEARCH
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictAddressFamilies={families}
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
"""
)
TIMER_UNIT = (
    HEAD
    + """\
[Unit]
Description=Metrics of certificates, ZooKeeper, homes and the portal of this host

[Timer]
OnActiveSec=5s
OnUnitActiveSec={interval}s
AccuracySec=5s

[Install]
WantedBy=timers.target
"""
)


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


def document(settings: Mapping[str, Any]) -> Document:
    """The files and the units, to be put into a desired document.

    Settings; an empty part does not run, and without any there is no program:

    - `directory`: of the textfile collector. Where the program is to go it stays given, so that its file goes too.
    - `certificates`: paths of files in PEM, or patterns as a shell has them.
    - `zookeeper`: {host, port, config} of this host's server, with the path of its zoo.cfg.
    - `homes`: {root}, the directory that users' homes on CephFS are mounted in.
    - `portal`: {hub_port, port, told} of this host's portal, with the path of what its hub tells of itself.
    - `interval_s`: seconds between two looks, 60 by default.
    - `python`: the interpreter, version 3.9 or newer, /usr/bin/python3 by default.
    """
    directory = str(settings.get("directory") or "")
    config = {name: settings[name] for name in PARTS if settings.get(name)}
    path = f"{directory}/{FILE}"
    if not directory or not config:
        paths = [TIMER_PATH, SERVICE_PATH, COMMAND, PROGRAM, CONFIG, *([path] if directory else [])]
        return {
            "files": [{"path": one, "state": "absent"} for one in paths],
            "units": [{"name": TIMER, "enabled": False, "state": "stopped"}],
        }
    service = SERVICE_UNIT.format(
        python=settings.get("python") or "/usr/bin/python3",
        program=PROGRAM,
        name=exporter.NAME,
        directory=directory,
        textfile=path,
        families="AF_UNIX AF_INET AF_INET6" if ON_NETWORK & set(config) else "AF_UNIX",
    )
    timer = TIMER_UNIT.format(interval=settings.get("interval_s", INTERVAL_S))
    return {
        "files": [
            {"path": PROGRAM.rpartition("/")[0], "state": "directory", "mode": "0755", **ROOT_OWNS},
            {"path": CONFIG.rpartition("/")[0], "state": "directory", "mode": "0755", **ROOT_OWNS},
            *textfile.directory(directory),
            {"path": PROGRAM, "content": bundle("monitoring.exporter"), "mode": "0755", **ROOT_OWNS},
            {"path": COMMAND, "state": "link", "src": PROGRAM},
            _text(CONFIG, f"{json.dumps(config, indent=2, sort_keys=True)}\n"),
            _text(SERVICE_PATH, service),
            _text(TIMER_PATH, timer),
        ],
        # A timer that starts looks at once.
        "units": [
            {
                "name": TIMER,
                "enabled": True,
                "state": "started",
                "restart_on": [PROGRAM, CONFIG, SERVICE_PATH, TIMER_PATH],
            }
        ],
    }


def _text(path: str, content: str) -> Document:
    return {"path": path, "content": content, "mode": "0644", **ROOT_OWNS}
