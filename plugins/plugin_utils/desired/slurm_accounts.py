# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The QOS, accounts and users of a Slurm cluster. It has no document of its own: see the module slurm_accounts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import limits, wanted
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import ACCOUNT, HOLDER_DAYS, QOS, USER
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan, built_in

# What is needed of a row for jobs to be accepted where associations are enforced.
FIRST = ("name", "state", "parent", "accounts")
# More than any cluster has. Slurm looks at a limit of a QOS in the place of the same one of the accounts above, so not
# even those of the account root reach the holders.
OUT_OF_REACH = 1 << 30
NAMES_SHOWN = 10
DAYS_OUT_OF_REACH = 10 * HOLDER_DAYS


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the host that runs sacctmgr.

    :param params: qos, accounts, users and default_account; homes_users, homes_accounts and homes_groups, those of the
        site's one list; made, whose accounts an earlier stage of the same run makes.
    :param facts: group, the lines of getent for homes_groups; passwd, those for `names`, None before
        they were looked up.
    :param peers: slurm_conf, the text of the file.
    :return: Parts: `accounting`, whether there is any; `names`, whom to look up; with accounting `cluster`, its name;
        `rows`, for the module slurm_accounts; `first`, of these what is needed before associations are enforced, empty
        where they are not; `unenforced`, whether there are limits that Slurm is not told to hold to;
        `remarks`, what to warn of.
    """
    params, facts = built_in(params), built_in(facts)
    by_name = {row.get("name") for row in params["accounts"]}
    further = [row for row in params["homes_accounts"] if row["name"] not in by_name]
    params = {**params, "accounts": [*params["accounts"], *further]}
    settings = _settings(str(peers.get("slurm_conf") or ""))
    if not settings.get("AccountingStorageType", "").endswith("slurmdbd"):
        problems = tuple(_without_accounting(params)) if settings else ()
        return Plan(problems=problems, parts={"first": {}, "accounting": False, "names": []})
    enforced = set(settings.get("AccountingStorageEnforce", "").lower().split(",")) - {"", "none"}
    users = _users(params, facts["group"])
    names = [str(row.get("name")) for row in users if row.get("state") != "absent"]
    gone: list[str] = []
    if facts["passwd"] is not None:
        known = {line.partition(":")[0] for line in facts["passwd"]}
        gone = _without_account(params, users, known)
        users = [row for row in users if row.get("name") not in gone]
    listed = {
        "qos": params["qos"],
        "accounts": [*params["accounts"], *_accounts_of(params, users)],
        "users": users,
    }
    goal, wrong = wanted.read(**listed)
    rows = _with_holders(listed, settings)
    parts = {
        "names": [name for name in names if limits.NAME.fullmatch(name)],
        "cluster": settings["ClusterName"],
        "rows": rows,
        "first": _first(rows) if enforced else {},
        "accounting": True,
        "remarks": [*_left_out(params, facts["group"]), *map(_gone, gone)],
        "unenforced": goal.has_limits() and not enforced & {"limits", "safe", "all"},
    }
    groups = {line.partition(":")[0] for line in facts["group"]}
    unknown = [_unknown_group(name) for name in params["homes_groups"] if name not in groups]
    problems = (*unknown, *_unknown_users(users, facts["passwd"], params["made"]), *_reserved(listed), *wrong)
    return Plan(problems=(*problems, *_setting_problems(goal, settings)), parts=parts)


def _without_account(
    params: Mapping[str, Any], users: Sequence[Mapping[str, Any]], known: Collection[str]
) -> list[str]:
    """Members of groups who have no account on the host. Nobody has listed them by name, so they are only left out."""
    by_name = {str(row.get("name")) for row in (*params["users"], *params["homes_users"])} | set(wanted.ALWAYS)
    return [str(row["name"]) for row in users if row.get("name") not in by_name and row.get("name") not in known]


def _gone(name: str) -> str:
    return (
        f"{name} of a group of slurm_accounts_homes_groups has no account on the host of slurmctld and is left out. To "
        f"do: see 'getent passwd {name}' there, or take the name out of the group"
    )


def _with_holders(listed: Mapping[str, Any], settings: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """The rows with those of the reconciler's holders, which no limit is to keep from a bad GPU."""
    account = {
        "name": ACCOUNT,
        "parent": wanted.ROOT,
        "description": "GPUs out of service",
        "limits": {"QOS": [QOS], "DefaultQOS": QOS},
    }
    level = {"name": QOS, "description": "GPUs out of service", "limits": _no_limits(settings)}
    users = [
        {**row, "accounts": [*row["accounts"], ACCOUNT]} if row.get("name") == USER and row.get("accounts") else row
        for row in listed["users"]
    ]
    return {"qos": [*listed["qos"], level], "accounts": [*listed["accounts"], account], "users": users}


def _no_limits(settings: Mapping[str, str]) -> dict[str, Any]:
    counted = [kind for kind in settings.get("AccountingStorageTRES", "").split(",") if kind.startswith("gres/")]
    amounts = ",".join(f"{kind}={OUT_OF_REACH}" for kind in ("cpu", "mem", "node", "billing", *counted))
    found: dict[str, Any] = {"UsageFactor": 0, "MinTRESPerJob": limits.NONE, "Flags": limits.NONE}
    values: dict[Any, Any] = {limits.tres: amounts, limits.duration: f"{DAYS_OUT_OF_REACH}-00:00:00"}
    for key, one in limits.QOS_FIELDS.items():
        if key.startswith(("Grp", "Max")):
            found[key] = values.get(one.canonical, OUT_OF_REACH)
    return found


def _reserved(listed: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Problem]:
    for what, key in (("QOS", "qos"), ("account", "accounts")):
        if any(row.get("name") == ACCOUNT for row in listed[key]):
            yield Problem(
                "reserved_name",
                f"slurm_accounts_{key}",
                f"the {what} {ACCOUNT} is listed, and it is that of the jobs that keep bad GPUs out of service",
                ACCOUNT,
                "choose another name",
            )


def _unknown_users(
    users: Sequence[Mapping[str, Any]], passwd: Sequence[str] | None, made: Collection[str]
) -> Iterator[Problem]:
    """Users without an account: slurmctld would have their associations without a uid, and refuse their jobs."""
    names = [str(row.get("name")) for row in users if row.get("state") != "absent"]
    known = {*wanted.ALWAYS, *made, *(line.partition(":")[0] for line in passwd or ())}
    unknown = [name for name in names if name not in known and limits.NAME.fullmatch(name)]
    if unknown and passwd is not None:
        listed = ", ".join(unknown[:NAMES_SHOWN]) + (", …" if len(unknown) > NAMES_SHOWN else "")
        yield Problem(
            "unknown_user",
            "slurm_accounts_users",
            f"the host of slurmctld has no account of {listed}, so Slurm would refuse every job of theirs",
            listed,
            f"create it there and on the other hosts with one uid, such as 'useradd --create-home {unknown[0]}'; for a "
            f"directory see 'getent passwd {unknown[0]}' and 'systemctl status sssd'; or take the name out of the list",
        )


def _settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if re.match(r"[A-Za-z]+=", line))


def _users(params: Mapping[str, Any], groups: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of users: those that are Slurm's own, those of the list, and those who have a home and are not in it."""
    listed = {str(row.get("name")): dict(row) for row in params["users"]}
    # Twice in the list is told as a problem.
    rows = [dict(row) for row in params["users"]]
    for name, accounts in _of_homes(params, groups).items():
        if name not in listed:
            rows.append({"name": name, **accounts})
        elif not listed[name].get("accounts"):
            rows = [_with_home(row, accounts) if row.get("name") == name else row for row in rows]
    rows = [
        row if row.get("accounts") or row.get("state") == "absent" else {**row, "accounts": [params["default_account"]]}
        for row in rows
    ]
    for name in wanted.ALWAYS:
        rows = [_in_root(row) if row.get("name") == name and row.get("state") != "absent" else row for row in rows]
        if name not in listed:
            rows.append({"name": name, "accounts": [wanted.ROOT]})
    return rows


def _with_home(row: Mapping[str, Any], home: Mapping[str, Any]) -> dict[str, Any]:
    """A row that has no accounts, with those of the home; what it has of its own wins."""
    return {**home, **row, **({"accounts": home["accounts"]} if "accounts" in home else {})}


def _in_root(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "accounts": list(dict.fromkeys([wanted.ROOT, *row.get("accounts", ())]))}


def _of_homes(params: Mapping[str, Any], groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Who has a home, with the accounts of the groups that give one, or with the default account."""
    accounts: dict[str, list[str]] = {}
    for line in groups:
        group, _colon, members = line.strip().partition(":")
        for name in map(str.strip, members.rpartition(":")[2].split(",")):
            # A directory may have names that Slurm cannot have.
            if limits.NAME.fullmatch(name):
                accounts.setdefault(name, []).append(group.lower())
    found: dict[str, dict[str, Any]] = {name: {"accounts": rows} for name, rows in accounts.items()}
    for row in params["homes_users"]:
        name = str(row.get("name"))
        # Whoever has no home any more, if only for a while, runs no jobs.
        if row.get("state", "present") != "present":
            found[name] = {"state": "absent"}
            continue
        found[name] = {"accounts": row.get("accounts") or accounts.get(name) or [params["default_account"]]}
        if row.get("limits"):
            found[name]["limits"] = row["limits"]
    return found


def _left_out(params: Mapping[str, Any], groups: Sequence[str]) -> Iterator[str]:
    listed = {str(row.get("name")) for row in (*params["users"], *params["homes_users"])}
    names = (name.strip() for line in groups for name in line.rpartition(":")[2].split(","))
    for name in dict.fromkeys(names):
        if name and name not in listed and not limits.NAME.fullmatch(name):
            yield (
                f"{name!r} of a group of slurm_accounts_homes_groups cannot be a user of Slurm: it takes lower-case "
                "letters, digits and _ . - @. To do: give the account another name, or leave it out of the group"
            )


def _accounts_of(params: Mapping[str, Any], users: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of accounts that nobody listed: those of the groups, and the default one where somebody has it."""
    listed = {str(row.get("name")) for row in params["accounts"]}
    groups = [str(name).lower() for name in params["homes_groups"]]
    used = {name for row in users for name in row.get("accounts") or ()}
    for name in dict.fromkeys([*groups, params["default_account"]]):
        if name in used and name not in listed:
            yield {"name": name}


def _first(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Of the rows what lets users submit jobs."""
    present = [row for row in rows["users"] if row.get("state") != "absent"]
    found = {
        key: [{name: row[name] for name in FIRST if name in row} for row in some]
        for key, some in (("accounts", rows["accounts"]), ("users", present))
    }
    # The account of the holders has no other QOS.
    holders = [{**row, "limits": rows["accounts"][-1]["limits"]} for row in found["accounts"][-1:]]
    return {"qos": [{"name": QOS}], **found, "accounts": [*found["accounts"][:-1], *holders]}


def _unknown_group(name: str) -> Problem:
    return Problem(
        "unknown_group",
        "slurm_accounts_homes_groups",
        f"the host of slurmctld does not know the group {name}",
        name,
        f"see 'getent group {name}' there, and for a directory 'systemctl status sssd'; or take the group out",
    )


def _without_accounting(params: Mapping[str, Any]) -> Iterator[Problem]:
    if params["qos"] or params["accounts"] or params["users"]:
        yield Problem(
            "no_accounting",
            "slurm_databases",
            "QOS, accounts or users are listed, and the cluster has no accounting",
            remedy="put a host into the group slurm_databases, or take the lists away",
        )


def _setting_problems(goal: wanted.Wanted, settings: Mapping[str, str]) -> Iterator[Problem]:
    preempting = [one.name for one in goal.qos if one.values.get("Preempt")]
    if preempting and settings.get("PreemptType") != "preempt/qos":
        listed = ", ".join(preempting)
        yield Problem(
            "no_preemption",
            listed,
            f"the QOS {listed} is to preempt others, and slurm.conf does not have it so",
            settings.get("PreemptType", ""),
            "set PreemptType to preempt/qos and PreemptMode to REQUEUE or CANCEL in slurm_common_options",
        )
    counted = settings.get("AccountingStorageTRES", "").split(",")
    for kind in sorted(goal.resources()):
        if kind.startswith("gres/") and kind not in counted:
            yield Problem(
                "no_resource",
                kind,
                f"limits are given of {kind}, which the accounting does not count",
                ", ".join(counted),
                "correct the name, or add it to AccountingStorageTRES in slurm_common_options",
            )
