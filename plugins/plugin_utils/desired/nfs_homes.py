# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Homes without Ceph: the export of an NFS server, the mounts of its clients, or directories on a host's own disk."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.homes.directories import REMOVED
from ansible_collections.baremetal.gpu.plugins.module_utils.homes.mounts import MARK
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph import users as home_users
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph.mount_units import unit_name
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import bracketed, unit_path, wrong

ROLE = "nfs_homes"
NFS, LOCAL = "nfs", "local"
EXPORTS = "/etc/exports.d/baremetal-gpu-homes.exports"
CONF = "/etc/nfs.conf.d/baremetal-gpu.conf"
SERVER, PURGE = "nfs-server.service", "baremetal-gpu-homes-purge"
# The family of the operating system -> packages of a server and of a client.
PACKAGES = {
    "Debian": (("nfs-kernel-server", "quota"), ("nfs-common",)),
    "RedHat": (("nfs-utils", "quota"), ("nfs-utils",)),
}
SYSTEM = (
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/srv",
    "/sys",
    "/usr",
    "/var",
)
_PATH = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9_.@-]*)+", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9:.-]+(/[0-9]{1,3})?", re.ASCII)
_OPTIONS = re.compile(r"[A-Za-z0-9_.=:/-]+(,[A-Za-z0-9_.=:/-]+)*", re.ASCII)


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the role.

    :param params: the role's variables without their prefix, and ``kind``, the site's cluster_homes.
    :param facts: ``os_family``; ``group`` and ``passwd``, the lines of getent for the groups and the users; ``mount``,
        where the file system of the homes is mounted, empty before it was asked for; ``host``, the answer of
        home_mounts_info, empty before.
    :param peers: ``host``, the name of this host; ``servers``, those of the group nfs_servers; ``clients``, of each
        host with homes the name and the addresses that the inventory has of it; ``address``, the server's; and
        ``cephfs_root``, where CephFS has homes on this host, empty without.
    :returns: with the parts names (whom to look up), homes (for home_directories), remarks (what to warn of), root (the
        directory of the homes on a host that keeps them, empty on others), paths (where they are mounted), checked (for
        home_mounts_info), and server: the document of the host that keeps the homes. `desired` is that of a client.
    """
    homes, problems = home_users.homes(params["users"], facts["passwd"], facts["group"], params["size"])
    problems += _problems(params, facts, peers, homes)
    keeps = params["kind"] == LOCAL or peers["host"] in peers["servers"]
    root = params["root"] if params["kind"] == LOCAL else params["export"]
    present = [home for home in homes if home["state"] == "present"]
    mounts = [f"{params['root']}/{home['name']}" for home in present] if params["kind"] == NFS else []
    kinds = [] if keeps else ["nfs4", "nfs"]
    parts = {
        "names": list(
            dict.fromkeys([*(user["name"] for user in params["users"]), *home_users.members(facts["group"])])
        ),
        "homes": homes,
        "remarks": home_users.left_out(facts["group"], "nfs_homes_groups"),
        "root": root if keeps else "",
        "paths": mounts,
        "checked": [
            {"path": path, "uid": home["uid"], "gid": home["gid"], "kinds": kinds}
            for path, home in zip(mounts, present, strict=False)
        ],
        "server": _keeper(params, facts, peers, root).plain if keeps and not problems else {},
    }
    return Plan(doc.Document() if problems else _client(params, facts, peers, mounts), tuple(problems), parts)


def _problems(
    params: Mapping[str, Any],
    facts: Mapping[str, Any],
    peers: Mapping[str, Any],
    homes: Sequence[Mapping[str, Any]],
) -> Iterator[Problem]:
    servers, server, root, export = peers["servers"], str(params["server"]), params["root"], params["export"]
    unknown = sorted(set(params["groups"]) - {line.split(":")[0] for line in facts["group"]})
    if unknown:
        listed = ", ".join(unknown)
        remedy = "see `getent group NAME` there, and for a directory `systemctl status sssd`; or take the group out"
        yield Problem("unknown_group", "nfs_homes_groups", f"the host does not know {listed}", listed, remedy)
    if peers["cephfs_root"] == root:
        cause = f"{root} would have the homes of CephFS, too: cluster_homes is {params['kind']}"
        remedy = "set `cluster_homes: cephfs`, or empty cephfs_homes_users and cephfs_homes_groups"
        yield Problem("two_kinds_of_homes", "cluster_homes", cause, root, remedy)
    for name, path in (("root", root), ("export", export)):
        if not _PATH.fullmatch(path) or path in SYSTEM or ".." in path:
            cause = "it is not a directory for homes"
            yield wrong(f"nfs_homes_{name}", cause, path, "name an absolute path of its own, such as /srv/homes")
    if f"{export}/".startswith(f"{root}/") or f"{root}/".startswith(f"{export}/"):
        cause = f"it is {export}, and the homes are mounted in {root}: one would hide the other"
        yield wrong("nfs_homes_export", cause, export, "name a directory outside, such as /srv/homes")
    if int(params["removed_days"]) < 1:
        cause = "a home that is removed has to stay for a day or more"
        yield wrong("nfs_homes_removed_days", cause, params["removed_days"], "give a number of days, such as 30")
    if params["kind"] == NFS:
        yield from _nfs_problems(params, facts, peers, homes)
    elif servers or server:
        cause = f"the site has {', '.join(servers) or server} for homes on NFS, and cluster_homes is {params['kind']}"
        remedy = "set `cluster_homes: nfs`, or empty the group nfs_servers and nfs_homes_server"
        yield Problem("two_kinds_of_homes", "cluster_homes", cause, str(params["kind"]), remedy)


def _nfs_problems(
    params: Mapping[str, Any],
    facts: Mapping[str, Any],
    peers: Mapping[str, Any],
    homes: Sequence[Mapping[str, Any]],
) -> Iterator[Problem]:
    servers, server = peers["servers"], str(params["server"])
    if len(servers) + bool(server) != 1:
        cause = f"one server has the homes, and there are {len(servers) + bool(server)}"
        remedy = "put one host into the group nfs_servers, or name a filer in nfs_homes_server, not both"
        evidence = ", ".join([*servers, *([server] if server else [])])
        yield Problem("not_one_server", "nfs_servers", cause, evidence, remedy)
    if not _OPTIONS.fullmatch(params["options"]):
        cause = "mount options have letters, digits, commas and ="
        yield wrong("nfs_homes_options", cause, params["options"], "write them as `mount -o` takes them")
    for address in [*_clients(params, peers), *([server] if server else [])]:
        if not _HOST.fullmatch(address):
            cause = f"{address!r} is neither an address nor a host name"
            remedy = "give the host an ansible_host or nfs_homes_address"
            yield Problem("bad_address", address, cause, address, remedy)
    gone = [home["name"] for home in homes if home["state"] == "absent"]
    if server and gone:
        cause = f"the homes of {', '.join(gone)} are on {server}, where this role removes nothing"
        remedy = "remove them there, then take the users out of the list"
        yield Problem("not_on_a_filer", "nfs_homes_server", cause, ", ".join(gone), remedy)
    host, keeps = facts["host"], peers["host"] in servers
    if host and not host["nfs_server" if keeps else "nfs_client"]:
        kind = "server" if keeps else "client"
        cause = f"the kernel has no NFS {kind}"
        remedy = (
            f"boot a kernel of the distribution: `sudo modprobe {'nfsd' if keeps else 'nfs'}` has to succeed; or "
            + ("put another host into nfs_servers" if keeps else "set another `cluster_homes`")
        )
        yield Problem(f"no_nfs_{kind}", peers["host"], cause, "", remedy)


def _clients(params: Mapping[str, Any], peers: Mapping[str, Any]) -> list[str]:
    """The addresses that may mount."""
    own = [row[2] or row[1] or row[0] for row in peers["clients"] if row[0] != peers["host"]]
    return list(dict.fromkeys(map(str, [*own, *params["clients"]])))


def _keeper(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any], root: str) -> doc.Document:
    """A host that keeps homes: their directory, what deletes removed ones, and what exports them."""
    mount = facts["mount"] if facts["mount"] not in ("", "/") else ""
    days, place = int(params["removed_days"]), f"{root}/{REMOVED}"
    service, timer = f"{PURGE}.service", f"{PURGE}.timer"
    is_server = params["kind"] == NFS
    server, _client = PACKAGES.get(facts["os_family"], PACKAGES["Debian"])
    texts = {
        unit_path(service): render(ROLE, f"{service}.j2", root=root, place=place, mount=mount, minutes=days * 1440),
        unit_path(timer): render(ROLE, f"{timer}.j2"),
    }
    units = [doc.Unit.running(timer)]
    files: list[doc.Entry] = []
    if is_server:
        files = [*map(doc.Directory, _directories()), doc.Directory(root, "0711")]
        clients = [f"[{one}]" if one.count(":") > 1 and "/" not in one else one for one in _clients(params, peers)]
        rights = f"(rw,sync,root_squash,sec=sys,no_subtree_check{f',mountpoint={mount}' if mount else ''})"
        texts[EXPORTS] = render(ROLE, "exports.j2", root=root, clients=[f"{one}{rights}" for one in clients])
        texts[CONF] = render(ROLE, "nfs.conf.j2", only=bool(params["only_v4"]))
        units.append(doc.Unit.running(SERVER, restart_on=[CONF], reload_on=[EXPORTS]))
    files += [doc.File(path, text) for path, text in texts.items()]
    packages = [doc.Package(name) for name in server if is_server or (name == "quota" and params["quota"])]
    return doc.Document(packages=packages, files=files, units=units)


def _directories() -> list[str]:
    return [path.rpartition("/")[0] for path in (EXPORTS, CONF)]


def _client(
    params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any], paths: Sequence[str]
) -> doc.Document:
    """The mounts of a host. What earlier runs wrote and nothing lists any more goes."""
    keeps = peers["host"] in peers["servers"]
    server = bracketed(str(params["server"] or peers["address"]))
    _server, packages = PACKAGES.get(facts["os_family"], PACKAGES["Debian"])
    host = facts["host"] or {"automount": False, "written": []}
    # What is on the host's own disk is there from the boot on.
    automount = host["automount"] and not keeps
    files: list[doc.Entry] = []
    units: list[doc.Unit] = []
    listed = set()
    for path in paths:
        source = f"{params['export']}/{path.rpartition('/')[2]}"
        values = {"mark": MARK, "path": path, "automount": automount, "local": keeps}
        what = source if keeps else f"{server}:{source}"
        options = "bind,nosuid,nodev" if keeps else f"{params['options']},nosuid,nodev,_netdev"
        texts = {"mount": render(ROLE, "home.mount.j2", what=what, options=options, **values)}
        if automount:
            texts["automount"] = render(ROLE, "home.automount.j2", **values)
        for kind, text in texts.items():
            place = unit_path(unit_name(path, kind))
            files.append(doc.File(place, text))
            listed.add(place)
        units.append(doc.Unit.running(unit_name(path, "automount" if automount else "mount")))
    # The automount first, or a look at it would mount it again.
    for place in sorted(set(host["written"]) - listed):
        units.append(doc.Unit.stopped(place.rpartition("/")[2]))
        files.append(doc.Absent(place))
    return doc.Document(packages=[*map(doc.Package, packages)] if paths and not keeps else [], files=files, units=units)
