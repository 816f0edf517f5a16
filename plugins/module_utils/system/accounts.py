# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accounts of people on a host: what there is, what is to be, and the steps between.

Only what a list names is changed. A home is never touched, and neither is a password.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any, Callable, Optional

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run

PRESENT, CLOSED, REMOVED = "present", "closed", "removed"
NOLOGIN = "/usr/sbin/nologin"
# Outside of homes, which may be on a file system that is not mounted; root's own, so a user cannot keep a way in.
KEYS = "/etc/ssh/authorized_keys.d"
LINGER = "/var/lib/systemd/linger"
# The first day of which the field can tell that an account has expired.
EXPIRED = "1970-01-02"
EPOCH = date(1970, 1, 1)
LEAST_UID = 1000
COMMAND_S = 60.0
JOBS_S = 90.0
SQUEUE, SCANCEL = "/usr/bin/squeue", "/usr/bin/scancel"
# What is wanted of an account, and what passwd and shadow have of it.
Row = Mapping[str, Any]
# Its arguments are a name or a number; the name and number of an account or group that any source knows.
Look = Callable[[Any], Optional[tuple[str, int]]]


@dataclass(frozen=True)
class Account:
    uid: int
    gid: int
    full_name: str
    home: str
    shell: str
    expires: str = ""


@dataclass
class Host:
    """What the host's own files have.

    :ivar keys: the text of each file of keys.
    :ivar processes: how many each uid has.
    """

    accounts: dict[str, Account] = field(default_factory=dict)
    groups: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    processes: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """A change: a command, or the text of a file of keys, None to remove it, or the end of all processes of a uid."""

    does: str
    argv: tuple[str, ...] = ()
    keys: tuple[str, str | None] | None = None
    ends: tuple[str, int] | None = None


# --- what is there ---------------------------------------------------------------------------------------------------


def read(root: str = "", proc: str = "/proc") -> Host:
    found = Host(processes=processes(proc))
    expires = {row[0]: _day(row[7]) for row in _rows(f"{root}/etc/shadow", 8)}
    for row in _rows(f"{root}/etc/passwd", 7):
        with contextlib.suppress(ValueError):
            numbers = int(row[2]), int(row[3])
            found.accounts[row[0]] = Account(*numbers, row[4].split(",")[0], row[5], row[6], expires.get(row[0], ""))
    for row in _rows(f"{root}/etc/group", 4):
        with contextlib.suppress(ValueError):
            found.groups[row[0]] = (int(row[2]), tuple(name for name in row[3].split(",") if name))
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(f"{root}{KEYS}")):
            if not name.startswith("."):
                found.keys[name] = files.read_text(f"{root}{KEYS}/{name}")
    return found


def _rows(path: str, columns: int) -> Iterator[list[str]]:
    for line in files.read_text(path).splitlines():
        row = line.split(":")
        # A line that begins so asks a directory of users.
        if len(row) >= columns and row[0][:1] not in ("", "+", "-"):
            yield row


def _day(text: str) -> str:
    return (EPOCH + timedelta(days=int(text))).isoformat() if text.isdigit() and int(text) < 10**6 else ""


def processes(proc: str = "/proc") -> dict[int, int]:
    found: dict[int, int] = {}
    for pid in filter(str.isdigit, os.listdir(proc)):
        uid = _uid(f"{proc}/{pid}/status")
        if uid is not None:
            found[uid] = found.get(uid, 0) + 1
    return found


def _uid(path: str) -> int | None:
    """The real uid of a process that is no zombie."""
    text = files.read_text(path)
    number = re.search(r"^Uid:\s+(\d+)", text, re.MULTILINE)
    return int(number[1]) if number and not re.search(r"^State:\s+[ZX]", text, re.MULTILINE) else None


def account_known(key: Any) -> tuple[str, int] | None:
    """An account by name or number, wherever it is from: of a directory, too."""
    with contextlib.suppress(KeyError):
        row = pwd.getpwuid(key) if isinstance(key, int) else pwd.getpwnam(key)
        return row.pw_name, row.pw_uid
    return None


def group_known(key: Any) -> tuple[str, int] | None:
    with contextlib.suppress(KeyError):
        row = grp.getgrgid(key) if isinstance(key, int) else grp.getgrnam(key)
        return row.gr_name, row.gr_gid
    return None


# --- what keeps it from being made -----------------------------------------------------------------------------------


def problems(
    users: Sequence[Row],
    groups: Sequence[Row],
    ledger: Row,
    host: Host,
    account: Look = account_known,
    group: Look = group_known,
) -> Iterator[Problem]:
    """What of the host does not go with the list.

    :param ledger: `users` with the numbers that were given before this run, `first` and `last` of their range.
    """
    given = ledger.get("users", {})
    strangers = [
        f"{name} ({one.uid})"
        for name, one in sorted(host.accounts.items())
        if ledger["first"] <= one.uid <= ledger["last"]
        and given.get(name) != one.uid
        and not any(row["name"] == name and row["uid"] == one.uid and row["listed"] for row in users)
    ]
    if strangers:
        listed = ", ".join(strangers[:5]) + (f" and {len(strangers) - 5} more" if len(strangers) > 5 else "")
        yield Problem(
            "unknown_numbers",
            "users-ledger",
            f"the host has accounts that the ledger .users-ledger.json does not know: {listed}",
            listed,
            "bring the ledger back, such as with `git checkout -- .users-ledger.json`; an account that is to stay gets "
            "its number in cluster_users (`gpuops user add NAME --uid NUMBER`), any other is removed by `userdel`",
        )
        return
    for row in users:
        if row["state"] == PRESENT:
            yield from _wrong_user(row, host, account, group)
        elif row["name"] in host.accounts and host.accounts[row["name"]].uid != row["uid"]:
            yield _other(row, host.accounts[row["name"]].uid)
    for row in groups:
        yield from _wrong_group(row["name"], row["gid"], group)


def _wrong_user(row: Row, host: Host, account: Look, group: Look) -> Iterator[Problem]:
    name, uid = row["name"], row["uid"]
    there, owner = account(name), account(uid)
    if there and there[1] < LEAST_UID:
        cause = f"{name} is an account of the system here, with the uid {there[1]}"
        yield Problem("system_account", name, cause, str(there[1]), "give the user another name in cluster_users")
    elif there and there[1] != uid:
        yield _other(row, there[1])
    elif there and name not in host.accounts:
        cause = f"{name} is known to the host from a directory of users"
        remedy = f"take {name} out of cluster_users, and name groups of the directory in cephfs_homes_groups"
        yield Problem("of_a_directory", name, cause, "", remedy)
    elif owner and owner[0] != name:
        cause = f"{name} is to have the uid {uid}, and here {owner[0]} has it"
        remedy = (
            f"give another uid (`gpuops user change {name} --uid NUMBER`), or rename {owner[0]} with `usermod --login`"
        )
        yield Problem("uid_taken", name, cause, str(uid), remedy)
    elif row["group"] == name:
        yield from _wrong_group(name, row["gid"], group)


def _other(row: Row, uid: int) -> Problem:
    name = row["name"]
    return Problem(
        "other_uid",
        name,
        f"{name} is to have the uid {row['uid']}, and has {uid} here",
        str(uid),
        f"if it is the same person, give that uid to all hosts (`gpuops user change {name} --uid {uid}`) or change it "
        f"here with `usermod --uid {row['uid']} {name}` and the owner of the files; otherwise give another name",
    )


def _wrong_group(name: str, gid: int, group: Look) -> Iterator[Problem]:
    there, owner = group(name), group(gid)
    if there and there[1] < LEAST_UID:
        cause = f"{name} is a group of the system here, with the gid {there[1]}"
        yield Problem("system_group", name, cause, str(there[1]), "give another name")
    elif there and there[1] != gid:
        cause = f"the group {name} is to have the gid {gid}, and has {there[1]} here"
        remedy = (
            f"give `gid: {there[1]}` in the list if that is so on all hosts, or run `groupmod --gid {gid} {name}` here"
        )
        yield Problem("other_gid", name, cause, str(there[1]), remedy)
    elif owner and owner[0] != name:
        cause = f"the group {name} is to have the gid {gid}, and here {owner[0]} has it"
        yield Problem("gid_taken", name, cause, str(gid), f"give another gid, or rename {owner[0]} with `groupmod`")


# --- from what is there to what is to be -----------------------------------------------------------------------------


def plan(users: Sequence[Row], groups: Sequence[Row], host: Host) -> list[Step]:
    """The steps in their order: who is closed first, so that nothing keeps that from being done."""
    leaving = [step for row in users if row["state"] != PRESENT for step in _leave(row, host)]
    made = [_make_group(row["name"], row["gid"]) for row in groups if row["name"] not in host.groups]
    coming = [step for row in users if row["state"] == PRESENT for step in _come(row, host)]
    return [*leaving, *made, *coming, *_members(users, groups, host)]


def _make_group(name: str, gid: int) -> Step:
    return Step(f"add the group {name} ({gid})", ("groupadd", "--gid", str(gid), name))


def _come(row: Row, host: Host) -> Iterator[Step]:
    name, there = row["name"], host.accounts.get(row["name"])
    wanted = Account(row["uid"], row["gid"], row["full_name"], row["home"], row["shell"], row["until"])
    options = {
        "gid": str(wanted.gid),
        "comment": wanted.full_name,
        "home_dir": wanted.home,
        "shell": wanted.shell,
        "expiredate": wanted.expires,
    }
    if row["group"] == name and name not in host.groups:
        yield _make_group(name, wanted.gid)
    if there is None:
        words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items() if value]
        # The home is made by the role that has the homes. Without a password nobody logs in by one.
        argv = ("useradd", "--no-create-home", "--no-user-group", f"--uid={wanted.uid}", *words, name)
        yield Step(f"add the account {name} ({wanted.uid})", argv)
    elif there != wanted:
        current = (str(there.gid), there.full_name, there.home, there.shell, there.expires)
        changed = {key: value for (key, value), old in zip(options.items(), current) if value != old}
        words = [f"--{key.replace('_dir', '')}={value}" for key, value in changed.items()]
        what = ", ".join(f"{key.replace('_dir', '')} {value or 'none'}" for key, value in changed.items())
        yield Step(f"change the account {name}: {what}", ("usermod", *words, name))
    text = "".join(f"{key}\n" for key in row["ssh_keys"])
    if host.keys.get(name, "") != text:
        count = len(row["ssh_keys"])
        yield Step(f"{name} logs in with {count} SSH {'key' if count == 1 else 'keys'}", keys=(name, text or None))


def _leave(row: Row, host: Host) -> Iterator[Step]:
    name, there = row["name"], host.accounts.get(row["name"])
    if name in host.keys:
        yield Step(f"remove the SSH keys of {name}", keys=(name, None))
    if there is None:
        return
    if there.shell != NOLOGIN or there.expires != EXPIRED:
        yield Step(f"close the account {name}", ("usermod", f"--expiredate={EXPIRED}", f"--shell={NOLOGIN}", name))
    if host.processes.get(there.uid):
        yield Step(f"end {host.processes[there.uid]} processes of {name}", ends=(name, there.uid))
    if row["state"] == REMOVED:
        yield Step(f"remove the account {name}; what is in the home stays", ("userdel", name))


def _members(users: Sequence[Row], groups: Sequence[Row], host: Host) -> Iterator[Step]:
    """Members whom the list does not know are somebody else's."""
    states = {row["name"]: row["state"] for row in users}
    for row in groups:
        name = row["name"]
        current = [one for one in host.groups.get(name, (0, ()))[1] if states.get(one) != REMOVED]
        wanted = [one["name"] for one in users if one["state"] == PRESENT and name in one["groups"]]
        after = [*(one for one in current if one not in states), *wanted]
        if set(after) != set(current):
            listed = ", ".join(after) or "none"
            yield Step(f"members of {name}: {listed}", ("gpasswd", "--members", ",".join(after), name))


def apply(steps: Sequence[Step], run: Run) -> None:
    """Raises Refused."""
    for step in steps:
        if step.argv:
            status, out, error = run(list(step.argv), None, COMMAND_S)
            if status:
                said = " ".join((error or out).split())[:400]
                remedy = "see what the message says; where another program holds /etc/.pwd.lock, run it again"
                raise Refused(f"{step.argv[0]} did not {step.does}", remedy, code="not_done", evidence=said)
        elif step.keys:
            write_keys(*step.keys)
        elif step.ends:
            end(*step.ends, run)


def write_keys(name: str, text: str | None) -> None:
    path = f"{KEYS}/{name}"
    if text is None:
        files.remove(path)
        return
    files.make_directories(KEYS)
    # sshd reads it with the rights of the user, and of a session with those of the user's own sshd.
    files.write(path, text, 0o644, 0, 0)


def end(name: str, uid: int, run: Run, proc: str = "/proc", kill: Callable[[int, int], None] = os.kill) -> None:
    """End whatever a user has here; what is started meanwhile, too."""
    with contextlib.suppress(FileNotFoundError):
        files.remove(f"{LINGER}/{name}")
    run(["loginctl", "terminate-user", name], None, COMMAND_S)
    for _round in range(20):
        found = [pid for pid in filter(str.isdigit, os.listdir(proc)) if _uid(f"{proc}/{pid}/status") == uid]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                kill(int(pid), signal.SIGKILL)
        time.sleep(0.1)
    remedy = f"see 'ps -u {name}': a process that waits for a disk or a mount ends when that answers"
    raise Refused(f"{len(found)} processes of {name} do not end", remedy, code="not_ended", subject=name)


# --- jobs ------------------------------------------------------------------------------------------------------------


def jobs(names: Sequence[str], run: Run) -> list[str]:
    """Who of these has jobs of Slurm. Raises Refused where slurmctld does not tell."""
    if not names or not os.path.exists(SQUEUE):
        return []
    status, out, error = run([SQUEUE, "--noheader", "--all", "--format=%u"], None, COMMAND_S)
    if status:
        cause = "slurmctld does not answer, so jobs of closed users cannot be ended"
        remedy = "see 'sudo journalctl -u slurmctld', then run it again"
        raise Refused(cause, remedy, code="no_answer", subject="slurmctld", evidence=(error or out).strip()[:400])
    return sorted(set(out.split()) & set(names))


def end_jobs(names: Sequence[str], run: Run, wait: Callable[[float], None] = time.sleep) -> None:
    """Cancel all jobs of users. Raises Refused where they do not end."""
    for name in names:
        run([SCANCEL, f"--user={name}"], None, COMMAND_S)
    for _second in range(int(JOBS_S)):
        left = jobs(names, run)
        if not left:
            return
        wait(1.0)
    cause, remedy = f"jobs of {', '.join(left)} do not end", f"see `squeue --user={left[0]}`"
    raise Refused(cause, remedy, code="not_ended", subject=left[0])


# --- how it is shown -------------------------------------------------------------------------------------------------


def shown(users: Sequence[Row], groups: Sequence[Row], host: Host) -> str:
    """What the host has of the list, a line for each."""
    lines = []
    for row in users:
        one = host.accounts.get(row["name"])
        if one:
            keys = len(host.keys.get(row["name"], "").splitlines())
            expires = f" until {one.expires}" if one.expires else ""
            lines.append(
                f"{row['name']}:{one.uid}:{one.gid}:{one.full_name}:{one.home}:{one.shell} keys: {keys}{expires}\n"
            )
    for row in groups:
        if row["name"] in host.groups:
            gid, members = host.groups[row["name"]]
            lines.append(f"group {row['name']}:{gid}:{','.join(members)}\n")
    return "".join(lines)


def after(users: Sequence[Row], groups: Sequence[Row], host: Host) -> Host:
    """What the host has once the list holds."""
    accounts, keys, rows = dict(host.accounts), dict(host.keys), dict(host.groups)
    states = {row["name"]: row["state"] for row in users}
    for row in users:
        name = row["name"]
        text = "".join(f"{key}\n" for key in row["ssh_keys"])
        keys.pop(name, None)
        if row["state"] == PRESENT:
            accounts[name] = Account(row["uid"], row["gid"], row["full_name"], row["home"], row["shell"], row["until"])
            keys.update({name: text} if text else {})
        elif name in accounts and row["state"] == CLOSED:
            one = accounts[name]
            accounts[name] = Account(one.uid, one.gid, one.full_name, one.home, NOLOGIN, EXPIRED)
        else:
            accounts.pop(name, None)
    for row in groups:
        current = [one for one in host.groups.get(row["name"], (0, ()))[1] if one not in states]
        wanted = [one["name"] for one in users if one["state"] == PRESENT and row["name"] in one["groups"]]
        rows[row["name"]] = (row["gid"], (*current, *wanted))
    return Host(accounts, rows, keys)
