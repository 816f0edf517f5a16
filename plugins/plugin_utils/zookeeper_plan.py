# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is in an ensemble of ZooKeeper under which id, and what speaks against building it. Pure functions.

The id of a server is bound to its data: another id, or the same id with data that was lost, can make a quorum of
servers that never saw what was acknowledged. So ids are kept, and what endangers data is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import conf as zookeeper_conf

SIZES = (1, 3, 5)
IDS = range(1, 256)
# What the servers of one ensemble must have in common, in the variables' own names.
COMMON = ("client_port", "peer_port", "election_port", "quorum_auth")
DIRECTORIES = {"data_dir": "dataDir", "log_dir": "dataLogDir"}
HEAP_SHARE = 0.75

Row = dict[str, Any]


def rows(hosts: Sequence[str], variables: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """What is known of each host: ``asked`` (its settings) and ``node`` (as it was found), empty if not looked at."""
    found = []
    for host in hosts:
        known = variables[host]
        asked = dict(known.get("zookeeper_asked") or {})
        node = dict(known.get("zookeeper_node") or {})
        address = known.get("zookeeper_address") or known.get("ansible_host") or host
        found.append(
            {
                "name": host,
                "address": str(asked.get("address") or address),
                "wanted_id": int(asked.get("id") or known.get("zookeeper_id") or 0),
                "asked": asked,
                "node": node if "addresses" in node else {},
            }
        )
    return found


def listed(members: Sequence[Row]) -> dict[int, set[str]]:
    """The servers in the configurations that hosts have now: id -> addresses."""
    servers: dict[int, set[str]] = {}
    for row in members:
        for number, address in (row["node"].get("current") or {}).get("servers", {}).items():
            servers.setdefault(int(number), set()).add(address)
    return servers


def give_ids(members: Sequence[Row]) -> dict[str, int]:
    """An id for each host, by name; 0 where it cannot be told.

    The one that is asked for; or the one that the host keeps; or the one under which others know it; or, for a host
    that was looked at, the lowest that is free, in the order of names, so that the inventory's order does not matter.
    """
    known = listed(members)
    ids: dict[str, int] = {}
    for row in members:
        by_others = [number for number, addresses in known.items() if row["address"] in addresses]
        ids[row["name"]] = row["wanted_id"] or row["node"].get("id") or (by_others[0] if len(by_others) == 1 else 0)
    taken = set(ids.values()) | set(known)
    for row in sorted(members, key=lambda one: one["name"]):
        if not ids[row["name"]] and row["node"] and not row["node"].get("has_data"):
            number = next(one for one in IDS if one not in taken)
            ids[row["name"]] = number
            taken.add(number)
    return ids


def _ensemble_problems(members: Sequence[Row], ids: Mapping[str, int], removed: Sequence[int]) -> list[str]:
    """What concerns every host."""
    found = []
    names = [row["name"] for row in members]
    if len(names) not in SIZES:
        found.append(
            f"the ensemble has {len(names)} hosts ({', '.join(names)}): it must have 1, 3 or 5, since an even number "
            "stands no more failures than the odd one below it. Add hosts to the group, or take some out"
        )
    by_id: dict[int, list[str]] = {}
    for row in members:
        if ids[row["name"]]:
            by_id.setdefault(ids[row["name"]], []).append(row["name"])
    found += [
        f"{' and '.join(hosts)} have the same id {number}: give each a zookeeper_id of its own"
        for number, hosts in by_id.items()
        if len(hosts) > 1
    ]
    for address, times in Counter(row["address"] for row in members).items():
        if times > 1:
            hosts = " and ".join(row["name"] for row in members if row["address"] == address)
            found.append(f"{hosts} have the same address {address}: set zookeeper_address for each")
    found += [
        f"the id of {row['name']} is not known, because it was not looked at in this run: bring it back or leave out "
        "--limit, or set its zookeeper_id"
        for row in members
        if not ids[row["name"]] and not row["node"]
    ]
    for key in COMMON:
        values = {row["name"]: row["asked"][key] for row in members if key in row["asked"]}
        if len(set(values.values())) > 1:
            told = ", ".join(f"{value} on {name}" for name, value in values.items())
            found.append(f"zookeeper_{key} is {told}: set it once for the whole group")
    return found + _data_problems(members, ids, removed)


def _data_problems(members: Sequence[Row], ids: Mapping[str, int], removed: Sequence[int]) -> list[str]:
    """Where servers could come to a majority without what was acknowledged."""
    found = []
    before = listed(members)
    gone = sorted(set(before) - set(ids.values()) - {int(number) for number in removed})
    if gone:
        told = ", ".join(f"{number} ({'/'.join(sorted(before[number]))})" for number in gone)
        found.append(
            f"the ensemble has servers that are not in the inventory: {told}. Bring them back into the group; or, if "
            "they are to go, stop them for good and list their ids in zookeeper_removed_ids"
        )
    # A host that was not looked at may have its data still.
    with_data = [row for row in members if not row["node"] or row["node"].get("has_data")]
    if not any(row["node"].get("has_data") for row in members):
        return found
    lost = [row["name"] for row in members if ids[row["name"]] in before and row not in with_data]
    intact = len(before) - len(lost)
    if lost and len(before) > 1 and intact <= len(before) // 2:
        found.append(
            f"{' and '.join(lost)} lost the data of the ensemble of {len(before)}, and with {intact} left there is no "
            "majority that has it all. Restore zookeeper_data_dir there from a backup, or build a new ensemble: see "
            "'When servers have lost their data' in docs/zookeeper.md"
        )
    majority = len(members) // 2 + 1
    if len(with_data) + 1 < majority:
        found.append(
            f"{len(with_data)} of {len(members)} hosts would have data, and the empty ones could be a majority without "
            f"it. Grow by one step: {len(with_data)} to {'3' if len(with_data) == 1 else '5'}"
        )
    return found


def _host_problems(row: Row, number: int, known: Mapping[int, set[str]]) -> list[str]:
    """What concerns one host that was looked at."""
    asked, node, found = row["asked"], row["node"], []
    kept, current = node.get("id"), node.get("current") or {}
    if number and number not in IDS:
        found.append(f"zookeeper_id is {number}: it must be from 1 to 255")
    if row["wanted_id"] and kept and kept != row["wanted_id"]:
        found.append(
            f"zookeeper_id is {row['wanted_id']}, and the host keeps {kept} in {node['data_dir']}/myid: an id never "
            f"changes. Set zookeeper_id: {kept}, or leave it out"
        )
    others = known.get(number, set()) - {row["address"]}
    if others and node.get("has_data"):
        found.append(
            f"its id {number} is that of {', '.join(sorted(others))} in the ensemble, and it has data of its own. If "
            f"its address changed to {row['address']}, list the id in zookeeper_removed_ids for one run; otherwise "
            "give it another zookeeper_id"
        )
    if not number:
        found.append(f"has data in {node['data_dir']} and no id: set the zookeeper_id that it had")
    for key, setting in DIRECTORIES.items():
        have, want = current.get(key, ""), str(asked[key]).rstrip("/")
        if node.get("has_data") and current.get("data_dir") and have != want:
            found.append(
                f"zookeeper_{key} is {want or 'empty'}, and the server runs with {setting}={have}: set it to that, or "
                f"stop the server, move its files by hand, correct {setting} in its zoo.cfg and run again"
            )
    steps = zookeeper_conf.QUORUM_AUTH
    # Another word is told where the settings are looked at.
    if node.get("has_data") and current.get("servers") and asked["quorum_auth"] in steps:
        have = current["quorum_auth"]
        if abs(steps.index(asked["quorum_auth"]) - steps.index(have)) > 1:
            way = " → ".join(steps)
            found.append(
                f"zookeeper_quorum_auth goes from {have} to {asked['quorum_auth']}: servers would not know each other "
                f"while they restart. Go one step a run: {way}"
            )
    return found + _system_problems(row)


def _system_problems(row: Row) -> list[str]:
    """Names, ports and memory of a host."""
    asked, node, found = row["asked"], row["node"], []
    for name, addresses in sorted(node["resolved"].items()):
        if not addresses:
            found.append(f"{name} does not resolve here: correct DNS or /etc/hosts, or set zookeeper_address to an IP")
    own = set(node["resolved"].get(row["address"], []))
    if own and asked["size"] > 1:
        if any(one.startswith("127.") or one == "::1" for one in own):
            found.append(
                f"its own address {row['address']} is {', '.join(sorted(own))} here, where no other server reaches it: "
                "correct /etc/hosts, or set zookeeper_address to an IP"
            )
        elif not own & set(node["addresses"]):
            found.append(
                f"{row['address']} ({', '.join(sorted(own))}) is none of its addresses "
                f"({', '.join(node['addresses'])}): set zookeeper_address"
            )
    for port, holder in sorted(node["held_ports"].items()):
        found.append(f"port {port} is held by {holder}: stop it, or choose another port")
    ports = [asked[key] for key in ("client_port", "peer_port", "election_port")]
    if len(set(ports)) < 3:
        found.append(f"the ports for clients, peers and elections are {ports}: each needs one of its own")
    if asked["heap_mib"] > HEAP_SHARE * node["memory_mib"]:
        found.append(
            f"zookeeper_heap_mib is {asked['heap_mib']}, and the host has {node['memory_mib']} MiB: set at most "
            f"{int(HEAP_SHARE * node['memory_mib'])}, or the server is swapped out and loses its sessions"
        )
    return found


def setting_problems(asked: Mapping[str, Any]) -> list[str]:
    """Settings that make no sense by themselves."""
    found = [
        f"zookeeper_{key} is {asked[key]}: it must be at least 1"
        for key in ("tick_time", "init_limit", "sync_limit", "heap_mib", "purge_interval")
        if asked[key] < 1
    ]
    if asked["snapshots_kept"] < 3:
        found.append(f"zookeeper_snapshots_kept is {asked['snapshots_kept']}: ZooKeeper keeps at least 3")
    missing = [word for word in ("srvr", "mntr") if word not in asked["words"] and "*" not in asked["words"]]
    if missing:
        found.append(f"zookeeper_words lacks {' and '.join(missing)}, by which the role sees whether a server is well")
    for key in asked["options"]:
        owner = zookeeper_conf.reserved(str(key))
        if owner:
            found.append(f"zookeeper_options sets {key}, which comes from {owner}: set that")
    found += [
        f"zookeeper_{key} is {asked[key]!r}: it must be an absolute path of letters, digits and ._/-"
        for key in DIRECTORIES
        if asked[key] and not re.fullmatch(r"/[A-Za-z0-9._/-]+", asked[key])
    ]
    found += [
        f"zookeeper_users has the name {name!r}: letters, digits and _.- only"
        for name in asked["user_names"]
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", str(name))
    ]
    found += [
        f"zookeeper_chroots has {path!r} of {user!r}: a path begins with a slash, and has no empty part or space; a "
        "user has letters, digits and _.- only"
        for path, user in asked["chroots"].items()
        if not re.fullmatch(r"(/[^/\s]+)+", str(path)) or not re.fullmatch(r"[A-Za-z0-9_.-]+", str(user))
    ]
    found += [
        f"the password of {name} is shorter than 8 characters or not of printable ASCII: choose another"
        for name in asked["weak"]
    ]
    return found + _login_problems(asked) + _method_problems(asked)


def _login_problems(asked: Mapping[str, Any]) -> list[str]:
    """Logins that are asked for and not given."""
    given = {"quorum_auth": asked["has_quorum_password"], "client_auth": asked["user_names"]}
    source = {"quorum_auth": "zookeeper_quorum_password is not set", "client_auth": "zookeeper_users is empty"}
    found = []
    for key, steps in zookeeper_conf.LOGINS.items():
        if asked[key] not in steps:
            # YAML takes off for a boolean.
            words = ", ".join(steps[1:])
            found.append(f'zookeeper_{key} is {asked[key]}: it must be "off", with quotes, or one of {words}')
        elif asked[key] != "off" and not given[key]:
            found.append(f"zookeeper_{key} is {asked[key]} and {source[key]}")
    return found


def _method_problems(asked: Mapping[str, Any]) -> list[str]:
    if asked["method"] == "package":
        if asked["os_family"] == "Debian":
            return []
        return [f"{asked['os_family']} has no package of ZooKeeper: set zookeeper_method: archive"]
    found = []
    if bool(asked["archive_url"]) == bool(asked["archive_path"]):
        found.append("set one of zookeeper_archive_url and zookeeper_archive_path")
    if not re.fullmatch(r"[0-9a-fA-F]{64}", asked["archive_sha256"]):
        found.append(
            f"zookeeper_archive_sha256 is {asked['archive_sha256']!r}: give the SHA-256 of the archive, 64 hexadecimal "
            "digits"
        )
    return found


def plan(hosts: Sequence[str], variables: Mapping[str, Mapping[str, Any]]) -> Row:
    """The ensemble of a group of hosts.

    :param hosts: the hosts of the group.
    :param variables: of all hosts; ``zookeeper_asked`` and ``zookeeper_node`` of those that were looked at.
    :returns: ``ids`` by host, ``servers`` (id, host, port), ``joining`` (names of empty hosts that join an ensemble
        that has data) and ``problems`` by host, of those that were looked at.
    """
    members = rows(hosts, variables)
    ids = give_ids(members)
    looked_at = [row for row in members if row["node"] and row["asked"]]
    removed = sorted({int(number) for row in looked_at for number in row["asked"]["removed_ids"]})
    shared = _ensemble_problems(members, ids, removed) if looked_at else []
    # An id that is named as removed no longer says where its server is.
    known = {number: addresses for number, addresses in listed(members).items() if number not in removed}
    has_data = any(row["node"].get("has_data") for row in looked_at)
    port = looked_at[0]["asked"]["client_port"] if looked_at else 2181
    return {
        "ids": ids,
        "servers": [{"id": ids[row["name"]], "host": row["address"], "port": port} for row in members],
        "joining": [row["name"] for row in looked_at if has_data and not row["node"].get("has_data")],
        "problems": {
            row["name"]: setting_problems(row["asked"]) + _host_problems(row, ids[row["name"]], known) + shared
            for row in looked_at
        },
    }
