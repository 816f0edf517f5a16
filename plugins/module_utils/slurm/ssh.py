# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Logins by SSH to a node: which need a job there, and the lines of PAM that put them into it.

The lines stand in sshd's own file of PAM, between two marks, and not in a file that it includes: PAM refuses everybody
where an included file is missing. So there is one file, which is replaced in one step.

- Root and administrators jump over pam_slurm_adopt. Nothing of Slurm is asked for them, so nothing of Slurm that is
  broken keeps them out.
- pam_slurm_adopt puts the others into the newest of their jobs on the node, or refuses them.
- pam_systemd would take them out again, into a session of its own. common-session-noninteractive is common-session
  without it. Whoever is in no job then is refused: with keyboard-interactive authentication sshd asks PAM from a
  process that is not the parent of the login.
"""

from __future__ import annotations

import contextlib
import fnmatch
import grp
import ipaddress
import json
import os
import pwd
import re
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import net
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import NOT_FOUND, Run

DIRECTORY = "/etc/pam.d"
FILE = "sshd"
MODULE = "pam_slurm_adopt.so"
NONINTERACTIVE = "common-session-noninteractive"
BEGIN = "# BEGIN baremetal.gpu.slurm_node: changes in these lines are lost."
END = "# END baremetal.gpu.slurm_node"
INSTEAD_OF = "# Instead of: "
ANSIBLE = "# Ansible logs in as: "
# Names that can stand in a rule of pam_succeed_if, whose lists have colons between them. What is no plain word, such as
# "domain admins" and CORP\jane of a directory, stands in brackets, and a backslash would hide the closing one.
NAME = re.compile(r"(?=\S)(?!-)[^\x00-\x1f\x7f:#\[\]]{0,127}[^\x00-\x1f\x7f:#\[\]\\\s]")
NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
PLAIN = re.compile(r"[A-Za-z0-9_.@$:-]+")
SUDOERS = "/etc/sudoers"
CVTSUDOERS = "/usr/bin/cvtsudoers"
SUDO = "/usr/bin/sudo"
NSSWITCH = "/etc/nsswitch.conf"
# PAM reads a line into 1024 bytes.
NAMES_IN_LINE = 600
TIMEOUT_S = 20.0
NO_LOGIN_UID = 0xFFFFFFFF
REFUSED_TEXT = "Access denied: the login is not in a job on this node. Log in with an SSH key."
# Exit status of what asks PAM where PAM could not be asked; PAM's own answers are below it.
UNASKED = 99

# In a process of its own: modules of PAM may end theirs.
ASK_PAM = """
import ctypes, sys
class Conversation(ctypes.Structure):
    _fields_ = [("call", ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)), ("data", ctypes.c_void_p)]
try:
    conversation = Conversation(type(Conversation().call)(lambda *_: 19), None)
    pam, handle = ctypes.CDLL("libpam.so.0"), ctypes.c_void_p()
    user, directory = (word.encode() for word in sys.argv[1:])
    answer = pam.pam_start_confdir(b"sshd", user, ctypes.byref(conversation), directory, ctypes.byref(handle))
    silent = 0x8000
    answer = answer or pam.pam_acct_mgmt(handle, silent)
except Exception as error:
    print(error, file=sys.stderr)
    answer = 99
sys.exit(answer)
"""


@dataclass(frozen=True)
class Rules:
    """Who comes in without a job, beside root.

    :ivar node: the node's name in Slurm.
    :ivar logins: those of Ansible that neither `users` nor `groups` tell of.
    :ivar conditions: further conditions of pam_succeed_if, such as ``uid eq 1005``.
    """

    node: str
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    logins: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()


def exceptions(rules: Rules) -> list[str]:
    """The conditions of pam_succeed_if, of which one is enough."""
    found = ["uid eq 0"]
    found += [f"user ingroup {names}" for names in _lines(rules.groups)]
    found += [f"user in {names}" for names in _lines(dict.fromkeys([*rules.users, *rules.logins]))]
    return [*found, *rules.conditions]


def _lines(names: Iterable[str]) -> Iterator[str]:
    line: list[str] = []
    for name in names:
        if line and len(":".join([*line, name]).encode("utf-8", "surrogateescape")) > NAMES_IN_LINE:
            yield _argument(line)
            line = []
        line.append(name)
    if line:
        yield _argument(line)


def _argument(names: Iterable[str]) -> str:
    listed = ":".join(names)
    return listed if PLAIN.fullmatch(listed) else f"[{listed}]"


def _jumps(kind: str, conditions: Sequence[str], over: int) -> list[str]:
    """Lines that jump over those behind them, and `over` more, where one of the conditions holds."""
    return [
        f"{kind} [success={len(conditions) - 1 - place + over} default=ignore] pam_succeed_if.so quiet {condition}"
        for place, condition in enumerate(conditions)
    ]


def account_lines(rules: Rules) -> list[str]:
    """The lines that stand behind all others of the type account."""
    return [
        BEGIN,
        *([ANSIBLE + ":".join(rules.logins)] if rules.logins else []),
        *_jumps("account", exceptions(rules), 1),
        f"account required {MODULE} action_adopt_failure=deny action_generic_failure=deny nodename={rules.node}",
        # For the jumps to end at.
        "account required pam_permit.so",
        END,
    ]


def session_lines(rules: Rules, instead_of: str) -> list[str]:
    """The lines that stand in the place of common-session."""
    in_job = "pam_exec.so quiet type=open_session /usr/bin/grep -q /job_ /proc/self/cgroup"
    others = [
        f"session [success=2 default=ignore] {in_job}",
        f"session optional pam_echo.so {REFUSED_TEXT}",
        "session requisite pam_deny.so",
        f"session substack {NONINTERACTIVE}",
        "session [success=1 default=ignore] pam_permit.so",
    ]
    return [
        BEGIN,
        INSTEAD_OF + instead_of,
        *_jumps("session", exceptions(rules), len(others)),
        *others,
        "session substack common-session",
        END,
    ]


class Damaged(ValueError):
    """The marks in a text do not belong together."""


def without(text: str) -> str:
    """The text as it was before `add`.

    :raises Damaged: somebody removed one of the marks.
    """
    kept: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        mark = line.strip()
        if mark in (BEGIN, END):
            if inside == (mark == BEGIN):
                raise Damaged
            inside = not inside
        elif not inside:
            kept.append(line)
        elif line.startswith(INSTEAD_OF):
            kept.append(line[len(INSTEAD_OF) :])
    if inside:
        raise Damaged
    return "".join(kept)


def _places(lines: Sequence[str]) -> tuple[int, int] | None:
    """Behind which line the accounts end, and where common-session is included."""
    sessions = [place for place, line in enumerate(lines) if re.fullmatch(r"@include\s+common-session\s*", line)]
    accounts = [
        place for place, line in enumerate(lines) if re.match(r"\s*-?account\s|@include\s+common-account\s*$", line)
    ]
    if len(sessions) != 1 or not accounts:
        return None
    last = accounts[-1]
    while lines[last].rstrip("\n").endswith("\\") and last + 1 < len(lines):
        last += 1
    return last, sessions[0]


def add(text: str, rules: Rules) -> str | None:
    """The text of a file without our lines, with them; None where it is not laid out as Debian's."""
    lines = text.splitlines(keepends=True)
    places = _places(lines)
    if places is None:
        return None
    account, session = places
    found: list[str] = []
    for place, line in enumerate(lines):
        if place == session:
            found += [f"{one}\n" for one in session_lines(rules, line.rstrip("\n"))]
        else:
            found.append(line if line.endswith("\n") else f"{line}\n")
        if place == account:
            found += [f"{one}\n" for one in account_lines(rules)]
    return "".join(found)


# --- administrators --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Host:
    """What a rule of sudo may call a host.

    :ivar netgroup: the members of a netgroup as (host, user, domain), each empty for any.
    """

    name: str
    addresses: frozenset[str] = frozenset()
    netgroup: Callable[[str], list[tuple[str, str, str]]] = lambda _name: []


@dataclass(frozen=True)
class Administrators:
    """Whom sudo lets run everything as root.

    :ivar conditions: those of pam_succeed_if that tell who they are where no name does.
    :ivar unclear: a problem for each that PAM cannot be told of, and for rules that were not read.
    """

    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    unclear: tuple[Problem, ...] = ()


def sudoers(text: str, host: Host, given: Iterable[str] = ()) -> Administrators:
    """The administrators of a host, from what cvtsudoers prints as JSON.

    :param given: users and groups whom the operator lets in by name: what sudo calls so is clear.
    """
    known = {name.casefold() for name in given}
    users: dict[str, None] = {}
    groups: dict[str, None] = {}
    conditions: dict[str, None] = {}
    unclear: dict[str, Problem] = {}
    try:
        for row in json.loads(text).get("User_Specs", ()):
            is_here = _last(row["Host_List"], lambda one: _names_host(one, host))
            if not is_here or not any(_is_everything(one) for one in row["Cmnd_Specs"]):
                continue
            for who in row["User_List"]:
                if who.get("negated"):
                    continue
                ((kind, value),) = ((key, value) for key, value in who.items() if key != "negated")
                name = str(value)
                if kind == "usergid":
                    with contextlib.suppress(KeyError, OverflowError):
                        kind, name = "usergroup", grp.getgrgid(int(value)).gr_name
                if kind == "userid":
                    conditions[f"uid eq {int(value)}"] = None
                elif kind == "usergid":
                    conditions[f"gid eq {int(value)}"] = None
                elif kind == "username" and name in ("root", "ALL"):
                    # A rule for ALL asks for the password of another account, or else everybody would be root.
                    continue
                elif kind in ("username", "usergroup", "netgroup") and NAME.fullmatch(name):
                    users.update({name: None} if kind == "username" else {})
                    groups.update({name: None} if kind == "usergroup" else {})
                    if kind == "netgroup":
                        conditions[f"user innetgr {_argument([name])}"] = None
                        # PAM asks for the host that the login is from as well, sudo does not.
                        members = (user for from_host, user, _domain in host.netgroup(name) if from_host)
                        users.update(dict.fromkeys(user for user in members if NAME.fullmatch(user)))
                elif name.casefold() not in known:
                    unclear[name] = _unclear(kind, name)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        return Administrators(unclear=(not_read(f"cvtsudoers: {type(error).__name__}: {error}"),))
    conditions.pop("uid eq 0", None)
    return Administrators(tuple(users), tuple(groups), tuple(conditions), tuple(unclear.values()))


def _last(rows: Iterable[Mapping[str, Any]], holds: Callable[[Mapping[str, Any]], bool]) -> bool:
    """Whether a list of sudo has something: the last that matches decides."""
    found = [not one.get("negated") for one in rows if holds(one)]
    return bool(found) and found[-1]


def _names_host(one: Mapping[str, Any], host: Host) -> bool:
    names = {host.name.lower(), host.name.lower().split(".")[0]}
    if "hostname" in one:
        name = str(one["hostname"])
        return name == "ALL" or any(fnmatch.fnmatchcase(own, name.lower()) for own in names)
    if "networkaddr" in one:
        network = ipaddress.ip_network(str(one["networkaddr"]), strict=False)
        return any(ipaddress.ip_address(address.partition("%")[0]) in network for address in host.addresses)
    return any(not member or member.lower() in names for member, _user, _domain in host.netgroup(str(one["netgroup"])))


def _is_everything(rule: Mapping[str, Any]) -> bool:
    def root(one: Mapping[str, Any]) -> bool:
        return one.get("username") in ("ALL", "root") or one.get("userid") == 0 or one.get("usergroup") == "root"

    commands = rule["Commands"]
    return _last(rule.get("runasusers") or [{"username": "root"}], root) and any(
        one.get("command") == "ALL" and not one.get("negated") for one in commands
    )


def _unclear(kind: str, name: str) -> Problem:
    mark = {"username": "", "usergroup": "%", "netgroup": "+"}.get(kind, "%:")
    return Problem(
        "unclear_administrators",
        "sudo",
        "sudo lets them run everything, but PAM cannot identify them, so they would be locked out",
        f"{mark}{name}",
        f"add their accounts to slurm_node_adopt_users and {json.dumps(name, ensure_ascii=False)} to "
        "slurm_node_adopt_groups, or take the rule out of sudo"
        if NAME.fullmatch(name)
        else "take the rule out of sudo, or set slurm_node_adopt: false",
    )


def not_read(why: str, remedy: str = "correct what 'visudo -c' finds on the host") -> Problem:
    """The problem of rules of sudo that were not read."""
    return Problem(
        "sudoers_not_read",
        SUDOERS,
        "whom sudo lets run everything is not known, so they could be locked out",
        why.strip(),
        f"{remedy}, or set slurm_node_adopt: false",
    )


def administrators(run: Run, given: Iterable[str] = ()) -> Administrators:
    """Whom this host's sudo lets run everything as root; nobody where there is no sudo."""
    status, out, error = run([CVTSUDOERS, "-e", "-f", "json", SUDOERS], None, TIMEOUT_S)
    if status == NOT_FOUND:
        missing = not_read(error, "install the package sudo, which has cvtsudoers")
        return Administrators(unclear=(missing,) if os.path.exists(SUDO) else ())
    if status:
        return Administrators(unclear=(not_read(error or out),))
    here = Host(socket.gethostname(), frozenset(net.local_addresses()), lambda name: netgroup(name, run))
    return sudoers(out, here, given)


def netgroup(name: str, run: Run) -> list[tuple[str, str, str]]:
    """The members of a netgroup as (host, user, domain), each empty for any; none where it is not known."""
    _status, out, _error = run(["/usr/bin/getent", "netgroup", name], None, TIMEOUT_S)
    found = re.findall(r"\(([^,()]*),([^,()]*),([^,()]*)\)", out)
    return [(host.strip(), user.strip(), domain.strip()) for host, user, domain in found]


def unread_sources() -> str:
    """Where sudo has further rules from, which cvtsudoers does not print; empty without one."""
    line = re.search(r"^\s*sudoers:([^#\n]*)", read_text(NSSWITCH), re.MULTILINE)
    sources = re.sub(r"\[[^]]*\]", " ", line.group(1)).split() if line else []
    return ", ".join(source for source in sources if source != "files")


def logins(environment: Mapping[str, str], given: str = "", root: str = "/") -> list[str]:
    """By which accounts this program may have come in: what the caller says, sudo's word, and the kernel's."""
    found = {given, environment.get("SUDO_USER", "")}
    text = read_text(os.path.join(root, "proc/self/loginuid")).strip()
    if re.fullmatch(r"\d{1,10}", text) and int(text) != NO_LOGIN_UID:
        with contextlib.suppress(KeyError):
            found.add(pwd.getpwuid(int(text)).pw_name)
    return sorted(name for name in found if name != "root" and NAME.fullmatch(name))


def earlier_logins(text: str) -> list[str]:
    """The logins that an earlier run has put into the text: another operator's is not to be locked out."""
    found = (line[len(ANSIBLE) :].split(":") for line in text.splitlines() if line.startswith(ANSIBLE))
    return [name for names in found for name in names if NAME.fullmatch(name)]


def is_member(user: str, groups: Iterable[str]) -> bool:
    """Whether a user is in one of the groups."""
    numbers = set()
    for name in groups:
        with contextlib.suppress(KeyError):
            numbers.add(grp.getgrnam(name).gr_gid)
    try:
        return bool(numbers & set(os.getgrouplist(user, pwd.getpwnam(user).pw_gid)))
    except KeyError:
        return False


def rules_for(node: str, users: Sequence[str], groups: Sequence[str], found: Administrators, known: list[str]) -> Rules:
    """The rules of a host.

    :param users: and `groups`, as the operator names them.
    :param found: whom sudo lets run everything.
    :param known: logins of Ansible.
    """
    everyone = tuple(dict.fromkeys([*users, *found.users]))
    every_group = tuple(dict.fromkeys([*groups, *found.groups]))
    left = [name for name in dict.fromkeys(known) if name not in everyone and not is_member(name, every_group)]
    return Rules(node, everyone, every_group, tuple(left), found.conditions)


# --- problems --------------------------------------------------------------------------------------------------------


def other_adoption(text: str, common_account: str) -> str:
    """The line of somebody else that names pam_slurm_adopt; empty without one."""
    for line in [*text.splitlines(), *common_account.splitlines()]:
        if MODULE in line.partition("#")[0]:
            return line.strip()
    return ""


def bad_names(node: str, names: Iterable[str]) -> list[Problem]:
    """A problem for each name that cannot stand in a rule."""
    wrong = [] if NODE.fullmatch(node) else [node]
    wrong += [name for name in names if not NAME.fullmatch(name)]
    return [
        Problem(
            "bad_name",
            "slurm_node_adopt",
            "a rule of PAM cannot have this name of a user, a group or a node",
            name,
            "correct it; for a group that has a colon, '#' or a bracket in its name, name its members",
        )
        for name in wrong
    ]


def problems(text: str, directory: str, run: Run) -> list[Problem]:
    """What of a host keeps `add` from working, where `text` is sshd's file without our lines."""
    found = []
    line = other_adoption(text, read_text(os.path.join(directory, "common-account")))
    if line:
        found.append(
            Problem(
                "adopted_elsewhere",
                f"{directory}/{FILE}",
                "pam_slurm_adopt is set up already, in a way that may lock administrators out",
                line,
                "remove the line ('pam-auth-update --disable slurm-adopt' where it is in common-account), or set "
                "slurm_node_adopt: false",
            )
        )
    if _places(text.splitlines(keepends=True)) is None:
        found.append(
            Problem(
                "unknown_layout",
                f"{directory}/{FILE}",
                f"{directory}/{FILE} does not include common-session once, as Debian's does, or has no accounts",
                "",
                "bring it into that form, or set slurm_node_adopt: false and set up pam_slurm_adopt yourself",
            )
        )
    if not os.path.exists(os.path.join(directory, NONINTERACTIVE)):
        found.append(
            Problem(
                "unknown_layout",
                f"{directory}/{NONINTERACTIVE}",
                f"{directory}/{NONINTERACTIVE} is missing, which Debian's libpam-runtime has",
                "",
                "run pam-auth-update, or set slurm_node_adopt: false",
            )
        )
    status, out, _error = run(["/usr/sbin/sshd", "-T"], None, TIMEOUT_S)
    if status == 0 and re.search(r"^usepam no$", out, re.MULTILINE):
        found.append(
            Problem(
                "sshd_without_pam",
                "sshd",
                "sshd does not ask PAM, so that every user comes in",
                "usepam no",
                "set 'UsePAM yes' in its configuration, or slurm_node_adopt: false",
            )
        )
    return found


def damaged(path: str) -> Problem:
    """The problem of a file that has one of our marks without the other."""
    return Problem(
        "damaged",
        path,
        f"{path} has a line that begins or ends the lines of this role without its counterpart",
        f"{BEGIN} / {END}",
        "put the file of the package openssh-server in its place and run it again",
    )


def kept_out(text: str, names: Sequence[str], directory: str, run: Run) -> list[Problem]:
    """Which of the accounts PAM would let in now, but not any more with `text` as sshd's file.

    PAM itself is asked, about a copy of its directory, so that a file that would lock administrators out is never
    there.
    """
    found = []
    with tempfile.TemporaryDirectory(prefix="baremetal-gpu-pam-") as copy:
        for name in sorted(os.listdir(directory)):
            if name != FILE:
                os.symlink(os.path.join(directory, name), os.path.join(copy, name))
        with open(os.path.join(copy, FILE), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        for name in names:
            before = _answer(name, directory, run)
            after = _answer(name, copy, run)
            if after >= UNASKED:
                found.append(
                    Problem(
                        "pam_not_asked",
                        name,
                        f"PAM did not show whether {name} could log in with the new {directory}/{FILE}",
                        str(after),
                        "install libpam0g 1.4 or newer, or set slurm_node_adopt: false",
                    )
                )
            elif after and before in (0, UNASKED):
                found.append(
                    Problem(
                        "locked_out",
                        name,
                        f"with the new {directory}/{FILE} PAM would refuse {name}",
                        f"error {after} of PAM",
                        f"look in {directory} for what refuses it",
                    )
                )
    return found


def _answer(user: str, directory: str, run: Run) -> int:
    return run([sys.executable, "-c", ASK_PAM, user, directory], None, TIMEOUT_S)[0]
