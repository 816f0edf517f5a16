# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""QOS, accounts and users in the accounting of Slurm: what sacctmgr tells, and what it is asked to change.

What a list does not name stays, and nothing but a user whom it wants absent is ever deleted.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import limits, node
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.wanted import ROOT, Account, Qos, User, Wanted

SACCTMGR, SQUEUE = "/usr/bin/sacctmgr", "/usr/bin/squeue"
TIMEOUT_S = 60.0
Values = Mapping[str, str]


@dataclass
class Accounting:
    """What slurmdbd has for one cluster. Values have the texts of `limits`.

    :ivar accounts: of each account that the cluster has, its `parent` and values.
    :ivar texts: description and organization of each account.
    :ivar users: of each user who has an association in the cluster, the values of that with each account.
    :ivar held: the accounts of each user, those included that are for one partition alone.
    """

    known: bool = False
    resources: set[str] = field(default_factory=set)
    qos: dict[str, Values] = field(default_factory=dict)
    accounts: dict[str, Values] = field(default_factory=dict)
    texts: dict[str, Values] = field(default_factory=dict)
    users: dict[str, dict[str, Values]] = field(default_factory=dict)
    held: dict[str, set[str]] = field(default_factory=dict)
    default_accounts: dict[str, str] = field(default_factory=dict)
    admin_levels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """A command, and what it changes: `subject` with these values becomes one with those."""

    argv: tuple[str, ...]
    subject: str
    before: Values | None
    after: Values | None

    @property
    def does(self) -> str:
        values = " ".join(f"{key}={value or limits.NONE}" for key, value in (self.after or {}).items())
        if self.after is None:
            return f"remove the {self.subject}"
        return f"{'add' if self.before is None else 'change'} the {self.subject}{': ' if values else ''}{values}"


# --- what is there ---------------------------------------------------------------------------------------------------


def installed() -> bool:
    return os.path.exists(SACCTMGR)


def rows(text: str, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """The rows of sacctmgr's parsable output. The last column may have bars in it, as text of somebody's has."""
    for line in text.splitlines():
        cells = line.split("|", len(columns) - 1)
        if len(cells) == len(columns):
            yield dict(zip(columns, cells))


def _ask(run: Run, what: Sequence[str], columns: Sequence[str]) -> list[dict[str, str]]:
    argv = [SACCTMGR, "--noheader", "--parsable2", "show", *what, f"format={','.join(columns)}"]
    status, out, error = run(argv, None, TIMEOUT_S)
    if status:
        raise Refused(
            "slurmdbd does not answer",
            "see 'sudo journalctl -u slurmdbd' on its host",
            code="no_answer",
            subject="slurmdbd",
            evidence=(error or out).strip()[:400],
        )
    return list(rows(out, columns))


def read(run: Run, cluster: str) -> Accounting:
    """What slurmdbd has.

    :raises Refused: if it does not answer.
    """
    found = Accounting()
    found.known = cluster in {row["Cluster"] for row in _ask(run, ["cluster"], ["Cluster"])}
    for row in _ask(run, ["tres"], ["Type", "Name"]):
        found.resources.add(f"{row['Type']}/{row['Name']}" if row["Name"] else row["Type"])
    for row in _ask(run, ["qos"], ["Name", *limits.QOS_FIELDS, "Description"]):
        found.qos[row["Name"]] = {"Description": row["Description"], **_shown(limits.QOS_FIELDS, row)}
    for row in _ask(run, ["account"], ["Account", "Organization", "Description"]):
        found.texts[row["Account"]] = {"Description": row["Description"], "Organization": row["Organization"]}
    # The values of the associations themselves, and not those that they have of the accounts above them.
    what = ["association", "where", f"cluster={cluster}", "WOPLimits", "WithRawQOSLevel"]
    for row in _ask(run, what, ["Account", "User", "Partition", "ParentName", *limits.ASSOCIATION_FIELDS]):
        values = _shown(limits.ASSOCIATION_FIELDS, row)
        if not row["User"]:
            found.accounts[row["Account"]] = {"parent": row["ParentName"], **values}
            continue
        found.held.setdefault(row["User"], set()).add(row["Account"])
        # An association for one partition alone is made by hand.
        if not row["Partition"]:
            found.users.setdefault(row["User"], {})[row["Account"]] = values
    for row in _ask(run, ["user"], ["User", "DefaultAccount", "AdminLevel"]):
        found.default_accounts[row["User"]] = row["DefaultAccount"]
        found.admin_levels[row["User"]] = row["AdminLevel"]
    return found


def _shown(fields: Mapping[str, limits.Field], row: Mapping[str, str]) -> dict[str, str]:
    return {key: limits.shown(field, row[key]) for key, field in fields.items()}


def users_with_jobs(run: Run) -> set[str]:
    """Who has running or waiting jobs.

    :raises Refused: if slurmctld does not answer.
    """
    status, out, error = run([SQUEUE, "--noheader", "--all", "--format=%u"], None, TIMEOUT_S)
    if status:
        raise Refused(
            "slurmctld does not answer, so it is unknown whose jobs there are",
            "see 'sudo journalctl -u slurmctld' on its host",
            code="no_answer",
            subject="slurmctld",
            evidence=(error or out).strip()[:400],
        )
    return set(out.split())


def shut_out(uids: Mapping[str, int]) -> list[str]:
    """Users of whom slurmctld has none or another uid than this host, so that it refuses every job of theirs.

    :param uids: of each user as slurmctld has it. Users whom the host does not know are left out.
    """
    known = {name: node.user(name) for name in uids}
    return sorted(name for name, there in known.items() if there and there["uid"] != uids[name])


# --- what is to be done ----------------------------------------------------------------------------------------------


def plan(
    current: Accounting, wanted: Wanted, cluster: str, busy: Collection[str]
) -> tuple[tuple[Step, ...], list[Problem]]:
    """The commands that make of what is there what is wanted, and what keeps them from it.

    :param busy: who has jobs.
    """
    problems = [*_unknown(current, wanted), *_busy(current, wanted, busy)]
    steps = [
        *(step for one in wanted.qos for step in _qos_added(current, one)),
        # A QOS may preempt one that comes after it.
        *(step for one in wanted.qos for step in _qos_changed(current, one)),
        *(step for one in wanted.accounts for step in _account(current, one, cluster)),
        *(step for one in wanted.users for step in _user(current, one, cluster)),
    ]
    return tuple(steps), problems


def _unknown(current: Accounting, wanted: Wanted) -> Iterator[Problem]:
    qos = {*current.qos, *(one.name for one in wanted.qos)}
    accounts = {ROOT, *current.accounts, *(one.name for one in wanted.accounts)}
    # Without a cluster nothing of it is known yet, as in check mode before the first run.
    missing = sorted(wanted.resources() - current.resources) if current.known else []
    if missing:
        yield Problem(
            "no_resource",
            "AccountingStorageTRES",
            f"limits are given of {', '.join(missing)}, which the accounting does not count",
            ", ".join(sorted(current.resources)),
            "correct the name, or add it to AccountingStorageTRES in slurm_common_options",
        )
    for one in wanted.accounts:
        if one.parent and one.parent not in accounts:
            yield _missing("account", one.parent, f"the parent of the account {one.name}")
    for user in wanted.users:
        for account in user.accounts if user.present else ():
            if account not in accounts:
                yield _missing("account", account, f"an account of the user {user.name}")
    for level in wanted.qos:
        for name in _names(level.values.get("Preempt", "")):
            if name not in qos:
                yield _missing("QOS", name, f"preempted by the QOS {level.name}")
    holders = [(f"account {one.name}", one.values) for one in wanted.accounts]
    holders += [(f"user {one.name}", one.values) for one in wanted.users]
    for holder, values in holders:
        for name in _names(values.get("QOS", "")) + _names(values.get("DefaultQOS", "")):
            if name not in qos:
                yield _missing("QOS", name, f"a QOS of the {holder}")


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _missing(what: str, name: str, where: str) -> Problem:
    cause = f"{name} is {where}, and there is no such {what}"
    return Problem(f"no_{what.lower()}", name, cause, remedy="correct the name, or list it")


def _busy(current: Accounting, wanted: Wanted, busy: Collection[str]) -> Iterator[Problem]:
    for user in wanted.users:
        if not user.present and user.name in current.held and user.name in busy:
            yield Problem(
                "user_has_jobs",
                user.name,
                f"{user.name} is to be absent, and has running or waiting jobs",
                remedy=f"see 'squeue -u {user.name}'; wait until they end, or cancel them with 'sudo scancel -u "
                f"{user.name}', and run again",
            )


def leaving(current: Accounting, wanted: Wanted) -> list[str]:
    """The users who are there and are to be absent."""
    return [user.name for user in wanted.users if not user.present and user.name in current.held]


def _sacctmgr(*words: str) -> tuple[str, ...]:
    return (SACCTMGR, "--immediate", "--quiet", *words)


def _different(before: Values, after: Values) -> dict[str, str]:
    return {key: value for key, value in after.items() if before.get(key, "") != value}


def _set(fields: Mapping[str, limits.Field], before: Values, after: Values) -> list[str]:
    return [limits.argument(key, fields[key], value, before.get(key, "")) for key, value in after.items()]


def _given(values: Values) -> dict[str, str]:
    return {key: value for key, value in values.items() if value}


def _described(before: Values, **texts: str) -> dict[str, str]:
    """What of descriptions is to be changed. sacctmgr writes them in small letters."""
    found = {key: text for key, text in texts.items() if text}
    return {key: text for key, text in found.items() if before.get(key, "").lower() != text.lower()}


def _qos_added(current: Accounting, one: Qos) -> Iterator[Step]:
    if one.name in current.qos:
        return
    values = {key: value for key, value in one.values.items() if key != "Preempt"}
    set_ones = {key: value for key, value in values.items() if value != limits.QOS_FIELDS[key].blank}
    described = _described({}, Description=one.description)
    argv = _sacctmgr("add", "qos", f"name={one.name}", *_set(limits.QOS_FIELDS, {}, set_ones), *_pairs(described))
    yield Step(argv, f"QOS {one.name}", None, {**described, **set_ones})


def _qos_changed(current: Accounting, one: Qos) -> Iterator[Step]:
    new = one.name not in current.qos
    before = current.qos.get(one.name, {})
    values = {key: value for key, value in one.values.items() if not new or key == "Preempt"}
    changed = _different(before, values)
    described = {} if new else _described(before, Description=one.description)
    if changed or described:
        argv = _sacctmgr("modify", "qos", "where", f"name={one.name}", "set")
        argv += (*_set(limits.QOS_FIELDS, before, changed), *_pairs(described))
        yield Step(argv, f"QOS {one.name}", _of(before, changed, described), {**described, **changed})


def _pairs(values: Values) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _of(before: Values, *changed: Values) -> dict[str, str]:
    return {key: before.get(key, "") for one in changed for key in one}


def _account(current: Accounting, one: Account, cluster: str) -> Iterator[Step]:
    fields, subject = limits.ASSOCIATION_FIELDS, f"account {one.name}"
    # The account root comes with the cluster.
    if one.name not in current.accounts and one.name != ROOT:
        parent = one.parent or ROOT
        values = {key: value for key, value in one.values.items() if value != fields[key].blank}
        # Without one sacctmgr takes the name.
        texts = _described({}, Description=one.description, Organization=one.organization)
        argv = _sacctmgr("add", "account", f"name={one.name}", f"cluster={cluster}", f"parent={parent}")
        argv += (*_pairs(texts), *_set(fields, {}, values))
        yield Step(argv, subject, None, {"parent": parent, **texts, **values})
        return
    before = {**current.accounts.get(one.name, {}), **current.texts.get(one.name, {})}
    changed = _different(before, one.values)
    if one.parent and before.get("parent") != one.parent:
        argv = _sacctmgr("modify", "account", "where", f"name={one.name}", f"cluster={cluster}")
        yield Step(
            (*argv, "set", f"parent={one.parent}"),
            subject,
            {"parent": before.get("parent", "")},
            {"parent": one.parent},
        )
    if changed:
        argv = _sacctmgr("modify", "account", "where", f"name={one.name}", f"cluster={cluster}", "set")
        yield Step((*argv, *_set(fields, before, changed)), subject, _of(before, changed), changed)
    texts = _described(before, Description=one.description, Organization=one.organization)
    if texts:
        argv = _sacctmgr("modify", "account", "where", f"name={one.name}", "set", *_pairs(texts))
        yield Step(argv, subject, _of(before, texts), texts)


def _user(current: Accounting, one: User, cluster: str) -> Iterator[Step]:
    fields = limits.ASSOCIATION_FIELDS
    there = current.users.get(one.name, {})
    if not one.present:
        # Slurm 22.05 does not remove the default account of a user who has others.
        default = current.default_accounts.get(one.name, "")
        for account in sorted(current.held.get(one.name, ()), key=lambda name: (name == default, name)):
            argv = _sacctmgr("delete", "user", "where", f"name={one.name}", f"cluster={cluster}", f"account={account}")
            yield Step(argv, f"user {one.name} in {account}", _given(there.get(account, {})), None)
        return
    for account in one.accounts:
        subject, before = f"user {one.name} in {account}", there.get(account)
        if before is None:
            values = {key: value for key, value in one.values.items() if value != fields[key].blank}
            argv = _sacctmgr("add", "user", f"name={one.name}", f"account={account}", f"cluster={cluster}")
            yield Step((*argv, *_set(fields, {}, values)), subject, None, values)
            continue
        changed = _different(before, one.values)
        if changed:
            argv = _sacctmgr("modify", "user", "where", f"name={one.name}", f"account={account}", f"cluster={cluster}")
            yield Step((*argv, "set", *_set(fields, before, changed)), subject, _of(before, changed), changed)
    # The first account that a user gets becomes the default one.
    default = current.default_accounts.get(one.name, "") if there else one.accounts[0]
    if one.default_account and one.default_account != default:
        argv = _sacctmgr("modify", "user", "where", f"name={one.name}", f"cluster={cluster}")
        argv += ("set", f"DefaultAccount={one.default_account}")
        yield Step(argv, f"user {one.name}", {"DefaultAccount": default}, {"DefaultAccount": one.default_account})
    level = current.admin_levels.get(one.name, "None") or "None"
    if one.admin_level and one.admin_level != level:
        argv = _sacctmgr("modify", "user", "where", f"name={one.name}", "set", f"AdminLevel={one.admin_level}")
        yield Step(argv, f"user {one.name}", {"AdminLevel": level}, {"AdminLevel": one.admin_level})


def apply(run: Run, steps: Sequence[Step]) -> None:
    """Run the commands, one after the other.

    :raises Refused: at the first that fails. Those before it stand; another run goes on from there.
    """
    for step in steps:
        status, out, error = run(list(step.argv), None, TIMEOUT_S)
        if status:
            raise Refused(
                f"sacctmgr did not {step.does}",
                "see what it says; a run that is repeated goes on from there",
                code="sacctmgr",
                subject=step.subject,
                evidence=(error.strip() or out.strip())[:400],
            )


def diff(steps: Sequence[Step]) -> dict[str, str]:
    """What the commands change, for people: a line for each thing."""
    return {
        "before": "".join(f"{line}\n" for step in steps for line in _lines(step.subject, step.before)),
        "after": "".join(f"{line}\n" for step in steps for line in _lines(step.subject, step.after)),
    }


def _lines(subject: str, values: Values | None) -> list[str]:
    if values is None:
        return []
    return [" ".join([subject, *(f"{key}={value or limits.NONE}" for key, value in values.items())])]
