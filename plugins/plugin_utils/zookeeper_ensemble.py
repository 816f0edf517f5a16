# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is in an ensemble of ZooKeeper under which id, and what is against building it. Pure functions.

The id of a server is bound to its data: another id, or the same id with data that was lost, can make a quorum of
servers that never saw what was acknowledged. So ids are kept, and what endangers data is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import conf as zookeeper_conf

SIZES = (1, 3, 5)
IDS = range(1, 256)
# What the servers of one ensemble must have in common, in the variables' own names.
COMMON = ("client_port", "peer_port", "election_port", "quorum_auth")
DIRECTORIES = {"data_dir": "dataDir", "log_dir": "dataLogDir"}
HEAP_SHARE = 0.75

Row = dict[str, Any]


def rows(hosts: Sequence[str], variables: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """What is known of each host: ``params`` (its settings) and ``node`` (its state), empty where nobody has looked."""
    known_rows = []
    for host in hosts:
        known = variables[host]
        params = dict(known.get("zookeeper_params") or {})
        node = dict(known.get("zookeeper_node") or {})
        address = known.get("zookeeper_address") or known.get("ansible_host") or host
        known_rows.append(
            {
                "name": host,
                "address": str(params.get("address") or address),
                "chosen_id": int(params.get("id") or known.get("zookeeper_id") or 0),
                "params": params,
                "node": node if "addresses" in node else {},
            }
        )
    return known_rows


def listed(members: Sequence[Row]) -> dict[int, set[str]]:
    """The servers in the configurations that hosts have now: id -> addresses."""
    servers: dict[int, set[str]] = {}
    for row in members:
        for number, address in (row["node"].get("current") or {}).get("servers", {}).items():
            servers.setdefault(int(number), set()).add(address)
    return servers


def give_ids(members: Sequence[Row]) -> dict[str, int]:
    """An id for each host, by name; 0 where it is not known.

    The one that the inventory sets; or the one that the host keeps; or the one under which others know it; or, for a
    host in this run, the lowest that is free, in the order of names, so that the inventory's order does not matter.
    """
    known = listed(members)
    ids: dict[str, int] = {}
    for row in members:
        by_others = [number for number, addresses in known.items() if row["address"] in addresses]
        ids[row["name"]] = row["chosen_id"] or row["node"].get("id") or (by_others[0] if len(by_others) == 1 else 0)
    taken = set(ids.values()) | set(known)
    for row in sorted(members, key=lambda one: one["name"]):
        if not ids[row["name"]] and row["node"] and not row["node"].get("has_data"):
            number = next(one for one in IDS if one not in taken)
            ids[row["name"]] = number
            taken.add(number)
    return ids


def _setting(key: str, value: Any, cause: str, remedy: str, code: str = "invalid_setting") -> Problem:
    """A problem of the variable `zookeeper_KEY`."""
    return Problem(code, f"zookeeper_{key}", cause, str(value), remedy)


def _ensemble_problems(members: Sequence[Row], ids: Mapping[str, int], removed: Sequence[int]) -> list[Problem]:
    """What concerns every host."""
    problems = []
    names = [row["name"] for row in members]
    if len(names) not in SIZES:
        problems.append(
            Problem(
                "ensemble_size",
                "zookeeper_group",
                f"the ensemble has {len(names)} hosts ({', '.join(names)}); it must have 1, 3 or 5, since an even "
                "number tolerates no more failures than the odd one below it",
                str(len(names)),
                "add hosts to the group, or take some out",
            )
        )
    by_id: dict[int, list[str]] = {}
    for row in members:
        if ids[row["name"]]:
            by_id.setdefault(ids[row["name"]], []).append(row["name"])
    problems += [
        _setting(
            "id", number, f"{' and '.join(hosts)} have the same id {number}", "give each a zookeeper_id of its own"
        )
        for number, hosts in by_id.items()
        if len(hosts) > 1
    ]
    for address, times in Counter(row["address"] for row in members).items():
        if times > 1:
            hosts = " and ".join(row["name"] for row in members if row["address"] == address)
            cause = f"{hosts} have the same address {address}"
            problems.append(_setting("address", address, cause, "set zookeeper_address for each"))
    problems += [
        Problem(
            "unknown_id",
            row["name"],
            f"the id of {row['name']} is not known, because the host is not part of this run",
            remedy="bring it back or leave out --limit, or set its zookeeper_id",
        )
        for row in members
        if not ids[row["name"]] and not row["node"]
    ]
    for key in COMMON:
        values = {row["name"]: row["params"][key] for row in members if key in row["params"]}
        if len(set(values.values())) > 1:
            shown = ", ".join(f"{value} on {name}" for name, value in values.items())
            problems.append(_setting(key, shown, f"zookeeper_{key} is {shown}", "set it once for the whole group"))
    return problems + _data_problems(members, ids, removed)


def _data_problems(members: Sequence[Row], ids: Mapping[str, int], removed: Sequence[int]) -> list[Problem]:
    """Where servers could come to a majority without what was acknowledged."""
    problems = []
    before = listed(members)
    gone = sorted(set(before) - set(ids.values()) - {int(number) for number in removed})
    if gone:
        shown = ", ".join(f"{number} ({'/'.join(sorted(before[number]))})" for number in gone)
        problems.append(
            Problem(
                "forgotten_servers",
                "zookeeper_group",
                f"the ensemble has servers that are not in the inventory: {shown}",
                shown,
                "bring them back into the group; or, if they are to go, stop them for good and list their ids in "
                "zookeeper_removed_ids",
            )
        )
    # A host outside this run may have its data still.
    with_data = [row for row in members if not row["node"] or row["node"].get("has_data")]
    if not any(row["node"].get("has_data") for row in members):
        return problems
    lost = [row["name"] for row in members if ids[row["name"]] in before and row not in with_data]
    intact = len(before) - len(lost)
    if lost and len(before) > 1 and intact <= len(before) // 2:
        problems.append(
            Problem(
                "lost_data",
                " and ".join(lost),
                f"{' and '.join(lost)} lost the data of the ensemble of {len(before)}, and with {intact} left there is "
                "no majority that has it all",
                remedy="restore zookeeper_data_dir there from a backup, or build a new ensemble: see 'When servers "
                "have lost their data' in docs/zookeeper.md",
            )
        )
    majority = len(members) // 2 + 1
    if len(with_data) + 1 < majority:
        problems.append(
            Problem(
                "too_many_empty_servers",
                "zookeeper_group",
                f"{len(with_data)} of {len(members)} hosts would have data, and the empty ones could be a majority "
                "without it",
                remedy=f"grow by one step: {len(with_data)} to {'3' if len(with_data) == 1 else '5'}",
            )
        )
    return problems


def _host_problems(row: Row, number: int, known: Mapping[int, set[str]]) -> list[Problem]:
    """What concerns one host of this run."""
    params, node, problems = row["params"], row["node"], []
    kept, current = node.get("id"), node.get("current") or {}
    if number and number not in IDS:
        problems.append(_setting("id", number, f"zookeeper_id is {number}", "give one from 1 to 255"))
    if row["chosen_id"] and kept and kept != row["chosen_id"]:
        problems.append(
            _setting(
                "id",
                row["chosen_id"],
                f"zookeeper_id is {row['chosen_id']}, and the host keeps {kept} in {node['data_dir']}/myid; an id "
                "never changes",
                f"set zookeeper_id: {kept}, or leave it out",
            )
        )
    others = known.get(number, set()) - {row["address"]}
    if others and node.get("has_data"):
        problems.append(
            _setting(
                "id",
                number,
                f"its id {number} is that of {', '.join(sorted(others))} in the ensemble, and it has data of its own",
                f"if its address changed to {row['address']}, list the id in zookeeper_removed_ids for one run; "
                "otherwise give it another zookeeper_id",
            )
        )
    if not number:
        cause = f"it has data in {node['data_dir']} and no id"
        problems.append(_setting("id", "", cause, "set the zookeeper_id that it had"))
    for key, setting in DIRECTORIES.items():
        now, desired = current.get(key, ""), str(params[key]).rstrip("/")
        if node.get("has_data") and current.get("data_dir") and now != desired:
            problems.append(
                _setting(
                    key,
                    desired,
                    f"zookeeper_{key} is {desired or 'empty'}, and the server runs with {setting}={now}",
                    f"set it to that, or stop the server, move its files by hand, correct {setting} in its zoo.cfg and "
                    "run again",
                )
            )
    steps = zookeeper_conf.QUORUM_AUTH
    # Another word is a problem of the settings.
    if node.get("has_data") and current.get("servers") and params["quorum_auth"] in steps:
        now = current["quorum_auth"]
        if abs(steps.index(params["quorum_auth"]) - steps.index(now)) > 1:
            problems.append(
                _setting(
                    "quorum_auth",
                    params["quorum_auth"],
                    f"zookeeper_quorum_auth goes from {now} to {params['quorum_auth']}; servers would not know each "
                    "other while they restart",
                    f"go one step a run: {' → '.join(steps)}",
                )
            )
    return problems + _system_problems(row)


def _system_problems(row: Row) -> list[Problem]:
    """Names, ports and memory of a host."""
    params, node, problems = row["params"], row["node"], []
    for name, addresses in sorted(node["resolved"].items()):
        if not addresses:
            problems.append(
                Problem(
                    "name_not_resolved",
                    name,
                    f"{name} does not resolve here",
                    remedy="correct DNS or /etc/hosts, or set zookeeper_address to an IP",
                )
            )
    own = set(node["resolved"].get(row["address"], []))
    if own and params["size"] > 1:
        shown = ", ".join(sorted(own))
        if any(one.startswith("127.") or one == "::1" for one in own):
            cause = f"its own address {row['address']} is {shown} here, where no other server reaches it"
            problems.append(_setting("address", shown, cause, "correct /etc/hosts, or set zookeeper_address to an IP"))
        elif not own & set(node["addresses"]):
            cause = f"{row['address']} ({shown}) is none of its addresses ({', '.join(node['addresses'])})"
            problems.append(_setting("address", shown, cause, "set zookeeper_address"))
    problems += [
        Problem(
            "port_in_use", f"port {port}", f"port {port} is held by {holder}", holder, "stop it, or choose another port"
        )
        for port, holder in sorted(node["held_ports"].items())
    ]
    ports = [params[key] for key in ("client_port", "peer_port", "election_port")]
    if len(set(ports)) < 3:
        cause = f"the ports for clients, peers and elections are {ports}"
        problems.append(_setting("client_port", ports, cause, "give each one of its own"))
    if params["heap_mib"] > HEAP_SHARE * node["memory_mib"]:
        problems.append(
            _setting(
                "heap_mib",
                params["heap_mib"],
                f"zookeeper_heap_mib is {params['heap_mib']}, and the host has {node['memory_mib']} MiB",
                f"set at most {int(HEAP_SHARE * node['memory_mib'])}, or the server is swapped out and loses its "
                "sessions",
            )
        )
    return problems


def setting_problems(params: Mapping[str, Any]) -> list[Problem]:
    """Settings that make no sense by themselves."""
    problems = [
        _setting(key, params[key], f"zookeeper_{key} is {params[key]}", "give at least 1")
        for key in ("tick_time", "init_limit", "sync_limit", "heap_mib", "purge_interval")
        if params[key] < 1
    ]
    if params["snapshots_kept"] < 3:
        kept = params["snapshots_kept"]
        cause = f"zookeeper_snapshots_kept is {kept}, and ZooKeeper keeps at least 3"
        problems.append(_setting("snapshots_kept", kept, cause, "give at least 3"))
    missing = [word for word in ("srvr", "mntr") if word not in params["words"] and "*" not in params["words"]]
    if missing:
        cause = f"zookeeper_words lacks {' and '.join(missing)}, by which the role sees whether a server is well"
        problems.append(_setting("words", params["words"], cause, "add it"))
    for key in params["options"]:
        owner = zookeeper_conf.reserved(str(key))
        if owner:
            cause = f"zookeeper_options sets {key}, which comes from {owner}"
            problems.append(_setting("options", key, cause, "set that"))
    problems += [
        _setting(
            key,
            params[key],
            f"zookeeper_{key} is {params[key]!r}",
            "give an absolute path of letters, digits and ._/-",
        )
        for key in DIRECTORIES
        if params[key] and not re.fullmatch(r"/[A-Za-z0-9._/-]+", params[key])
    ]
    problems += [
        _setting("users", name, f"zookeeper_users has the name {name!r}", "give letters, digits and _.- only")
        for name in params["user_names"]
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", str(name))
    ]
    problems += [
        _setting(
            "chroots",
            path,
            f"zookeeper_chroots has {path!r} of {user!r}; a path begins with a slash, and has no empty part or space; "
            "a user has letters, digits and _.- only",
            "correct it",
        )
        for path, user in params["chroots"].items()
        if not re.fullmatch(r"(/[^/\s]+)+", str(path)) or not re.fullmatch(r"[A-Za-z0-9_.-]+", str(user))
    ]
    problems += [
        Problem(
            "weak_password",
            str(name),
            f"the password of {name} is shorter than 8 characters or not of printable ASCII",
            remedy="choose another",
        )
        for name in params["weak"]
    ]
    return problems + _login_problems(params) + _method_problems(params)


def _login_problems(params: Mapping[str, Any]) -> list[Problem]:
    """Logins that are set and not given."""
    given = {"quorum_auth": params["has_quorum_password"], "client_auth": params["user_names"]}
    source = {
        "quorum_auth": ("zookeeper_quorum_password is not set", "set it"),
        "client_auth": ("zookeeper_users is empty", "give it the users"),
    }
    problems = []
    for key, steps in zookeeper_conf.LOGINS.items():
        value = params[key]
        if value not in steps:
            # YAML takes off for a boolean.
            remedy = f'give "off", with quotes, or one of {", ".join(steps[1:])}'
            problems.append(_setting(key, value, f"zookeeper_{key} is {value}", remedy))
        elif value != "off" and not given[key]:
            cause, remedy = source[key]
            problems.append(_setting(key, value, f"zookeeper_{key} is {value} and {cause}", remedy))
    return problems


def _method_problems(params: Mapping[str, Any]) -> list[Problem]:
    if params["method"] == "package":
        if params["os_family"] == "Debian":
            return []
        cause = f"{params['os_family']} has no package of ZooKeeper"
        return [_setting("method", params["method"], cause, "set zookeeper_method: archive")]
    problems = []
    if bool(params["archive_url"]) == bool(params["archive_path"]):
        cause = "the method archive needs one of zookeeper_archive_url and zookeeper_archive_path"
        problems.append(_setting("archive_url", "", cause, "set one of them"))
    if not re.fullmatch(r"[0-9a-fA-F]{64}", params["archive_sha256"]):
        problems.append(
            _setting(
                "archive_sha256",
                params["archive_sha256"],
                f"zookeeper_archive_sha256 is {params['archive_sha256']!r}",
                "give the SHA-256 of the archive, 64 hexadecimal digits",
            )
        )
    return problems


def ensemble(hosts: Sequence[str], variables: Mapping[str, Mapping[str, Any]]) -> Row:
    """The ensemble of a group of hosts.

    :param hosts: the hosts of the group.
    :param variables: of all hosts; ``zookeeper_params`` and ``zookeeper_node`` of those in this run.
    :returns: ``ids`` by host, ``servers`` (id, host, port), ``joining`` (names of empty hosts that join an ensemble
        that has data) and ``problems`` by host, of those in this run.
    """
    members = rows(hosts, variables)
    ids = give_ids(members)
    in_run = [row for row in members if row["node"] and row["params"]]
    removed = sorted({int(number) for row in in_run for number in row["params"]["removed_ids"]})
    shared = _ensemble_problems(members, ids, removed) if in_run else []
    # An id that is named as removed no longer says where its server is.
    known = {number: addresses for number, addresses in listed(members).items() if number not in removed}
    has_data = any(row["node"].get("has_data") for row in in_run)
    port = in_run[0]["params"]["client_port"] if in_run else 2181
    return {
        "ids": ids,
        "servers": [{"id": ids[row["name"]], "host": row["address"], "port": port} for row in members],
        "joining": [row["name"] for row in in_run if has_data and not row["node"].get("has_data")],
        "problems": {
            row["name"]: setting_problems(row["params"]) + _host_problems(row, ids[row["name"]], known) + shared
            for row in in_run
        },
    }
