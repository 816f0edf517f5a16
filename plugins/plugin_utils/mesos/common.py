# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What masters, agents and Marathons share: where their programs come from, ZooKeeper, secrets and their documents."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import templates
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.draft import AGENT, MARATHON, OPERATOR, Row
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.members import members
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.tls import MODES

CONFIG = "/etc/baremetal-gpu/mesos"
# What is downloaded. Another file is unpacked beside the one that a program runs from.
STORE = "/var/lib/baremetal-gpu/mesos"
LIBEXEC = "/usr/libexec/baremetal-gpu"
START = f"{LIBEXEC}/mesos-program"
# Before that: shows the loader the libraries of an archive.
SHOW = f"{LIBEXEC}/mesos-show"
# The plugin by which programs show each other a secret. Without it SASL has no mechanism, and nobody is let in.
SASL = {"Debian": "libsasl2-modules", "RedHat": "cyrus-sasl-md5"}
# A program that was started without it has to be started anew.
SASL_FILES = [
    "/usr/lib/x86_64-linux-gnu/sasl2/libcrammd5.so",
    "/usr/lib/aarch64-linux-gnu/sasl2/libcrammd5.so",
    "/usr/lib64/sasl2/libcrammd5.so",
]
PACKAGES = {
    "apache": {"Debian": "mesos", "RedHat": "mesos"},
    "clusterd": {"Debian": "aventer-mesos", "RedHat": "mesos"},
}
# Units of old packages that would run a second agent beside ours.
OLD_AGENTS = {"apache": [doc.Unit.stopped("mesos-slave.service")]}
SUFFIXES = {"archive": {"": ".tar.gz"}, "package": {"Debian": ".deb", "RedHat": ".rpm"}}
# A package brings units of its own for programs that this host is not to run, a master with a quorum of 1 for one. They
# start at its installation or at the next boot; without the settings of our roles they do not.
GUARDED = {"mesos-master": "master", "mesos-agent": "agent", "marathon": "marathon"}
MASTERS_PORT = 5050


@cache
def text_of(role: str, name: str) -> str:
    """The text of `roles/ROLE/files/NAME`."""
    return (templates.ROLES / role / "files" / name).read_text(encoding="utf-8")


def escaped(command: Sequence[str]) -> str:
    """A command as a unit of systemd has it."""
    return " ".join(command).replace("%", "%%").replace("$", "$$")


def archive_home(directory: str, method: str, sha256: Any) -> str:
    """Where an archive is unpacked; empty for another method."""
    return f"{directory}/{str(sha256)[:12].lower()}" if method == "archive" else ""


def stored_file(method: str, sha256: Any, family: str) -> str:
    """Where the archive or package is kept on the host."""
    suffixes = SUFFIXES.get(method, {})
    return f"{STORE}/{str(sha256)[:12].lower()}{suffixes.get('', suffixes.get(family, ''))}"


class Common:
    """The variables of mesos_common on one host of a site.

    :param params: the variables of the role, ``secrets`` and ``certificates`` as its entry points have registered them.
    :param peers: ``host``, ``groups`` and ``hostvars``.
    """

    def __init__(self, params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> None:
        self.params, self.peers = params, peers
        self.host = str(peers["host"])
        self.family = str(facts.get("os_family", ""))
        self.home = archive_home("/opt/mesos", params["method"], params["sha256"])
        # Programs are in sbin or bin below it, by who built them; what becomes the program finds it.
        self.below = self.home or params["prefix"]
        self.authenticated = params["authentication"] != "off"
        self.secrets: Mapping[str, str] = params["credentials"] or params["secrets"]

    def group(self, name: str) -> list[str]:
        return list(self.peers["groups"].get(name, []))

    def members(self, group: str, kind: str, port: Any) -> list[Row]:
        return members(self.group(group), self.peers["hostvars"], kind, int(port))

    def masters(self, port: Any = MASTERS_PORT) -> list[Row]:
        return self.members(self.params["masters_group"], "master", port)

    def source(self) -> Row:
        """Where the programs of Mesos come from."""
        params = self.params
        name = params["package"] or PACKAGES[params["flavour"]].get(self.family, "")
        return {
            "prefix": "mesos_common",
            **{key: params[key] for key in ("method", "url", "path", "sha256", "repository", "image", "engine")},
            "file": stored_file(params["method"], params["sha256"], self.family),
            "packages": [{"name": name}],
            "home": self.home,
            "proofs": ["sbin/mesos-agent", "bin/mesos-agent"],
        }

    def zookeeper(self) -> list[str]:
        """host:port of the servers of ZooKeeper."""
        if self.params["zookeeper"]:
            return list(self.params["zookeeper"])
        rows = self.members(self.params["zookeeper_group"], "zookeeper", self.params["zookeeper_port"])
        return [f"{row['address']}:{row['port']}" for row in rows]

    def names(self) -> list[str]:
        """Names that have to resolve on the host."""
        servers = [re.sub(r":\d+$", "", server) for server in self.zookeeper()]
        return list(dict.fromkeys([self.params["address"], *servers]))

    def principals(self) -> list[str]:
        """Whose secrets the site needs."""
        return [AGENT, MARATHON, OPERATOR, *self.params["principals"], *self.params["further"]]

    def login(self, principal: str) -> dict[str, str]:
        """The login of a principal at the masters; empty where nobody shows a secret."""
        if not self.authenticated:
            return {"user": "", "password": ""}
        return {"user": principal, "password": self.secrets.get(principal, "")}

    def tls(self, **more: Any) -> Row:
        groups = {"master": self.params["masters_group"], "agent": "mesos_agents", "marathon": "marathon"}
        return {
            "mode": self.params["tls"],
            "version": self.params["version"],
            "hosts": {kind: self.group(name) for kind, name in groups.items()},
            **more,
        }

    def authority(self) -> str:
        return str(self.params["tls_files"].get("authority", f"{self.params['tls_path']}/ca.pem"))

    def certificates(self) -> list[Row]:
        """The certificates of the host, and of executors where it is an agent."""
        files, address = self.params["tls_files"], self.params["address"]
        # The address by which programs know each other.
        ip = (self.params["node"].get("own_ip") or {}).get(address) or address
        names = list(dict.fromkeys([self.host, self.params["agent_hostname"], address, ip]))
        rows = [_pair(self.host, names, files, "")]
        if self.host in self.group("mesos_agents"):
            # A key of their own: whoever runs a task can read it.
            rows.append(_pair(f"{self.host}-executor", [ip], files, "executor_"))
        return rows

    def settings(self, **own: Any) -> Row:
        """What every program needs beside its own settings, for plan.py."""
        return {
            "certificates": self.params["certificates"],
            "zookeeper": self.zookeeper(),
            "secrets": self.secrets,
            **own,
        }

    def has_certificates(self) -> bool:
        """Whether the certificates of the host are known, or none are needed."""
        return self.params["tls"] not in MODES[1:] or bool(self.params["certificates"])

    def read_files(self, directory: str) -> list[str]:
        """The files of TLS at whose change a program is restarted."""
        if self.params["tls"] == "off":
            return []
        return [f"{directory}-ca.pem", f"{directory}/certificate.pem", f"{directory}/key.pem"]

    def present(
        self, unit: str, sources: Sequence[Row], files: Sequence[doc.Entry], other_units: Sequence[doc.Unit] = ()
    ) -> doc.Document:
        """The document of a host with one program more."""
        repositories = [row for row in sources if row["method"] == "repository"]
        unique: list[Row] = []
        for row in repositories:
            if row["repository"] not in unique:
                unique.append(row["repository"])
        packaged = any(row["method"] in ("package", "repository") for row in sources)
        packages = [doc.Package(**package) for row in repositories for package in row["packages"]]
        if self.authenticated and needs_libraries(sources):
            packages.append(doc.Package(SASL.get(self.family, "")))
        return doc.Document(
            repositories=unique,
            packages=packages,
            files=[*(_guards() if packaged else []), *_directories(), *files],
            # When it is started is the business of the next stage.
            units=[doc.Unit(unit, enabled=True), *other_units],
        )


def needs_libraries(sources: Sequence[Row]) -> bool:
    """Whether the host has to have the libraries of Mesos: not those of an image."""
    return any(row["prefix"] == "mesos_common" and row["method"] != "image" for row in sources)


def without(unit: str, paths: Sequence[str]) -> doc.Document:
    """The document of a host that loses a program."""
    return doc.Document(units=[doc.Unit.stopped(unit)], files=[*map(doc.Absent, paths)])


def _pair(name: str, names: list[str], files: Mapping[str, Any], prefix: str) -> Row:
    return {
        "name": name,
        "names": names,
        "certificate": files.get(f"{prefix}certificate"),
        "key": files.get(f"{prefix}key"),
    }


def _directories() -> list[doc.Entry]:
    return [
        *map(doc.Directory, ("/etc/baremetal-gpu", CONFIG, STORE, LIBEXEC)),
        doc.File(START, text_of("mesos_common", "mesos_program.sh"), "0755"),
        doc.File(SHOW, text_of("mesos_common", "mesos_show.sh"), "0755"),
    ]


def _guards() -> list[doc.Entry]:
    items: list[doc.Entry] = []
    for unit, settings in GUARDED.items():
        directory = f"/etc/systemd/system/{unit}.service.d"
        condition = templates.render("mesos_common", "guard.conf.j2", settings=f"{CONFIG}/{settings}.env")
        items.append(doc.Directory(directory, owner=None, group=None, early=True))
        items.append(doc.File(f"{directory}/baremetal-gpu.conf", condition, early=True))
    return items
