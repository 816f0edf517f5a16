# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops user``: who uses the cluster."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused, text
from ansible_collections.baremetal.gpu.plugins.plugin_utils.people import site as people
from gpuops.commands.locked_run import run_locked
from gpuops.commands.options import YesOption, consents
from gpuops.run import playbooks, records, screen, session
from gpuops.run.table import table
from gpuops.site import InventoryOption, Site, SiteError, find
from gpuops.users import invitations, kubeconfigs, site_list
from gpuops.users.site_list import UserList

# Options of ansible-playbook, after --.
words: list[str] = []


class Commands(TyperGroup):
    """Commands that may end with options of ansible-playbook, after --."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        place = args.index("--") if "--" in args else len(args)
        words[:] = args[place + 1 :]
        return super().parse_args(ctx, args[:place])


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    help="""Add, change, close and remove users, everywhere at once.

    Each command changes the list in group_vars/all/users.yml, shows what
    changes, asks, and then runs what that change needs, with the options of
    ansible-playbook that come after --.

    Examples:

      gpuops user add alice --key alice.pub --groups physics

      gpuops user import course.csv --groups ml2027 --until 2027-03-31

      gpuops user close alice

      gpuops user close alice -- --ask-become-pass
    """,
)
LOCK = ("user.lock", "gpuops user")
NAME_AT_MOST = 32
SHOWN_NAMES, DAY_S = 10, 86400

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the account.")]
NamesArgument = Annotated[list[str], typer.Argument(metavar="NAME", help="Names of accounts.")]
NoRunOption = Annotated[bool, typer.Option("--no-run", help="Change the list alone, and leave the run to `gpuops up`.")]
FullNameOption = Annotated[str | None, typer.Option("--full-name", help="Name of the person.")]
MailOption = Annotated[str | None, typer.Option("--mail", help="Mail address.")]
GroupsOption = Annotated[str | None, typer.Option("--groups", help="Groups, as a,b; those that are new are made.")]
KeyOption = Annotated[
    list[str] | None, typer.Option("--key", help="A public key for SSH, or its file. May be given several times.")
]
UidOption = Annotated[int | None, typer.Option("--uid", help="Number; by default the next that was never given.")]
GidOption = Annotated[int | None, typer.Option("--gid", help="Number of the group; by default that of the user.")]
ShellOption = Annotated[str | None, typer.Option("--shell", help="Shell, such as /bin/zsh.")]
HomeSizeOption = Annotated[str | None, typer.Option("--home-size", help="Quota of the home, such as 200G.")]
UntilOption = Annotated[str | None, typer.Option("--until", help="First day on which the user is closed: 2027-03-31.")]
LimitOption = Annotated[
    list[str] | None, typer.Option("--limit", help="Limit in Slurm, such as MaxJobs=4. May be given several times.")
]


@contextlib.contextmanager
def _refusals(command: str) -> Iterator[None]:
    """What was refused or failed, in a sentence and without a traceback."""
    try:
        yield
    except (Refused, SiteError) as why:
        typer.echo(f"gpuops user {command}: {why}", err=True)
        raise typer.Exit(session.USAGE) from why
    except records.Busy as why:
        typer.echo(f"gpuops user {command}: {why}", err=True)
        raise typer.Exit(session.BROKEN) from why
    except (OSError, UnicodeDecodeError) as why:
        typer.echo(f"gpuops user {command}: {why}", err=True)
        raise typer.Exit(session.BROKEN) from why


def _change(
    command: str, inventory: Path | None, yes: bool, no_run: bool, change: Callable[[UserList], object]
) -> None:
    """Change the list, show and ask, and run what that needs."""
    with _refusals(command):
        known = find(inventory)
        known.remembered.mkdir(mode=0o700, exist_ok=True)
        with records.lock(known.remembered, *LOCK):
            found = site_list.find(known)
            change(found)
            wrong = found.people().problems
            if wrong:
                raise Refused(text(wrong, "Nothing was changed."))
            lines = found.difference()
            if not lines:
                typer.echo(f"{found.path} says so already")
            else:
                typer.echo("\n".join(lines))
                if not consents("Write this, and bring it to the hosts?", yes):
                    raise typer.Exit(session.BROKEN)
                found.write()
                typer.echo(f"{found.path} is written")
    if no_run:
        typer.echo("to do: `gpuops up` brings it to the hosts")
        return
    _run(command, known)


def _run(command: str, known: Site) -> None:
    outcome = run_locked(f"user {command}", known, False, playbook=playbooks.USER_CHANGES, options=words)
    if outcome.status:
        if not outcome.run.hosts and outcome.status != session.INTERRUPTED:
            typer.echo(f"Ansible came to no host. Its output:\n{outcome.output}", err=True)
        typer.echo("to do: fix the causes above, then run `gpuops up`: the list is written, but not on all hosts")
        typer.echo(f"output and events: {outcome.directory}")
        raise typer.Exit(outcome.status)


def _values(
    full_name: FullNameOption = None,
    mail: MailOption = None,
    groups: GroupsOption = None,
    key: KeyOption = None,
    uid: UidOption = None,
    gid: GidOption = None,
    shell: ShellOption = None,
    home_size: HomeSizeOption = None,
    until: UntilOption = None,
    limit: LimitOption = None,
) -> dict[str, Any]:
    """What the options say; an empty text takes a value away. Raises Refused."""
    given: dict[str, Any] = {
        "uid": uid,
        "gid": gid,
        "full_name": full_name,
        "mail": mail,
        "groups": None if groups is None else [name for name in groups.replace(",", " ").split() if name],
        "ssh_keys": None if key is None else [_key(one) for one in key if one],
        "shell": shell,
        "home_size": home_size,
        "limits": None if limit is None else dict(_limit(one) for one in limit if one),
        "until": None if until is None else until and _day(until),
    }
    return {name: value if value not in ("", [], {}) else None for name, value in given.items() if value is not None}


def _key(given: str) -> str:
    """A key, or the one in a file."""
    if people.KEY.fullmatch(given.strip()):
        return given.strip()
    try:
        found = Path(given).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError, ValueError) as why:
        raise Refused(f"{given!r} is neither a public key nor its file", "give a file such as alice.pub") from why
    if not people.KEY.fullmatch(found):
        raise Refused(f"{given} has no public key without options", "give the file whose name ends in .pub")
    return found


def _limit(given: str) -> tuple[str, Any]:
    name, equals, value = given.partition("=")
    if not name or not equals or not value:
        raise Refused(f"--limit is {given!r}", "give NAME=VALUE, such as MaxJobs=4")
    return name, int(value) if value.isdecimal() else value


def _day(given: str) -> date:
    try:
        return date.fromisoformat(given)
    except ValueError:
        raise Refused(f"--until is {given!r}", "give a day such as 2027-03-31") from None


@app.command("list")
def list_users(
    inventory: InventoryOption = None,
    everybody: Annotated[bool, typer.Option("--all", help="Show users who were removed, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the users, with their numbers and what becomes of them when."""
    with _refusals("list"):
        found = site_list.find(find(inventory)).people()
        if found.problems:
            raise Refused(text(found.problems))
    shown = [one for one in found.users if everybody or one.state != people.REMOVED]
    rows: list[dict[str, Any]] = [
        {
            "name": one.name,
            "uid": one.uid,
            "state": one.state,
            "until": str(one.row.get("until") or ""),
            "groups": list(one.groups),
            "full_name": str(one.row.get("full_name") or ""),
        }
        for one in shown
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        typer.echo("there are no users; add one with `gpuops user add NAME --key FILE`")
        return
    cells = [
        (one["name"], str(one["uid"]), one["state"], one["until"] or "-", f"{groups}  {one['full_name']}".rstrip())
        for one in rows
        for groups in [", ".join(one["groups"]) or "-"]
    ]
    output = screen.Quiet()
    output.lines(table(("NAME", "UID", "STATE", "UNTIL", "GROUPS"), cells, output.width, "", cut_at=NAME_AT_MOST))


def _with_values(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of _values() in the place of **given."""
    name, inventory, *more, _given = inspect.signature(command, eval_str=True).parameters.values()
    values = inspect.signature(_values, eval_str=True).parameters.values()
    command.__signature__ = inspect.Signature([name, inventory, *values, *more])  # type: ignore[attr-defined]
    return command


@app.command("add")
@_with_values
def add(
    name: NameArgument,
    inventory: InventoryOption = None,
    yes: YesOption = False,
    no_run: NoRunOption = False,
    **given: Any,
) -> None:
    """Add a user: accounts on all hosts, a home, Slurm, the registry and the portal.

    Examples:

      gpuops user add alice --full-name "Alice Example" --key alice.pub

      gpuops user add bob --groups physics --limit MaxJobs=4 --home-size 200G
    """

    def change(found: UserList) -> None:
        if any(row.get("name") == name for row in found.users):
            raise Refused(f"{found.path} has {name} already", f"change it with `gpuops user change {name}`")
        found.put({name: _values(**given)})

    _change("add", inventory, yes, no_run, change)


@app.command("change")
@_with_values
def change_user(
    name: NameArgument,
    inventory: InventoryOption = None,
    yes: YesOption = False,
    no_run: NoRunOption = False,
    **given: Any,
) -> None:
    """Change a user. What is not given stays, and an empty text takes a value away.

    Examples:

      gpuops user change alice --home-size 500G

      gpuops user change alice --until ''
    """

    def change(found: UserList) -> None:
        found.user(name)
        found.put({name: _values(**given)})

    _change("change", inventory, yes, no_run, change)


@app.command("close")
def close(
    names: NamesArgument, inventory: InventoryOption = None, yes: YesOption = False, no_run: NoRunOption = False
) -> None:
    """Close users: no login, session, token or job is left anywhere. All data stays.

    Examples:

      gpuops user close alice
    """

    def change(found: UserList) -> None:
        for name in names:
            found.user(name)
            found.put({name: {"state": people.CLOSED, "confirm": None}})

    _change("close", inventory, yes, no_run, change)


@app.command("reopen")
def reopen(
    names: NamesArgument,
    inventory: InventoryOption = None,
    until: UntilOption = None,
    yes: YesOption = False,
    no_run: NoRunOption = False,
) -> None:
    """Open users again who were closed, or whose day has come.

    Examples:

      gpuops user reopen alice
    """

    def change(found: UserList) -> None:
        for name in names:
            row = found.user(name)
            if row.get("state") == people.REMOVED:
                remedy = (
                    f"take the row of {name} out of {found.path}, and add another name; numbers are never given twice"
                )
                raise Refused(f"{name} was removed, and the home with it", remedy)
            day = _day(until) if until else None
            keep = day is None and not people.has_ended(row, date.today())
            found.put({name: {"state": None, **({} if keep else {"until": day})}})

    _change("reopen", inventory, yes, no_run, change)


@app.command("remove")
def remove(
    name: NameArgument,
    again: Annotated[str, typer.Argument(metavar="NAME", help="The name again: the home goes.")],
    inventory: InventoryOption = None,
    yes: YesOption = False,
    no_run: NoRunOption = False,
) -> None:
    """Remove a user, and the home. The number is never assigned again. `close` keeps the data.

    Examples:

      gpuops user remove alice alice
    """

    def change(found: UserList) -> None:
        found.user(name)
        if again != name:
            remedy = (
                f"give the name twice, `gpuops user remove {name} {name}`, or keep the data with `gpuops user close`"
            )
            raise Refused(f"{name} and {again} are two names, and the home of {name} would be removed", remedy)
        found.put({name: {"state": people.REMOVED, "confirm": name}})

    _change("remove", inventory, yes, no_run, change)


@app.command("import")
def import_users(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV with columns name,full_name,mail,groups,key.")],
    inventory: InventoryOption = None,
    groups: Annotated[str, typer.Option("--groups", help="Groups that all of them get, as a,b.")] = "",
    until: UntilOption = None,
    yes: YesOption = False,
    no_run: NoRunOption = False,
) -> None:
    """Add the users of a CSV file, such as those of a course. Who is there already gets groups and keys besides.

    Examples:

      gpuops user import course.csv --groups ml2027 --until 2027-03-31
    """

    def change(found: UserList) -> None:
        rows = site_list.read_csv(file)
        day = _day(until) if until else None
        there = {row.get("name"): row for row in found.users}
        changes: dict[str, dict[str, Any]] = {}
        for row in rows:
            name = row["name"].strip()
            values = site_list.values_of(row, groups.replace(",", " ").split(), day)
            if name in changes:
                raise Refused(f"{file} has {name} twice", "take one of the lines out")
            old = there.get(name, {})
            if old.get("state", people.PRESENT) != people.PRESENT:
                remedy = f"see `gpuops user reopen {name}`, or take the line out"
                raise Refused(f"{name} of {file} is {old['state']}", remedy)
            for field in ("groups", "ssh_keys"):
                if values.get(field) and old.get(field):
                    values[field] = list(dict.fromkeys([*old[field], *values[field]]))
            if old and not old.get("until"):
                # Who is here for longer than the course stays.
                values.pop("until", None)
            changes[name] = values
        found.put(changes)
        new = sorted(set(changes) - set(there))
        listed = ", ".join(new[:SHOWN_NAMES]) + (
            f" and {len(new) - SHOWN_NAMES} more" if len(new) > SHOWN_NAMES else ""
        )
        typer.echo(f"{len(rows)} users, of whom {len(new)} are new{': ' if new else ''}{listed}")

    _change("import", inventory, yes, no_run, change)


@app.command("invite")
def invite_users(
    names: NamesArgument,
    inventory: InventoryOption = None,
    days: Annotated[int, typer.Option("--days", min=1, max=30, help="Days for which the code is valid.")] = 7,
) -> None:
    """Print a code that lets a user set the password for the portal. It works once.

    The portal has only its hash, and the code is printed nowhere else: hand
    it over in person, or by a channel that others cannot read. A new code
    replaces an earlier one; this is also how to replace a lost password.

    Examples:

      gpuops user invite alice
    """
    with _refusals("invite"):
        known = find(inventory)
        users = _present(known, names, "invite")
        until = int(time.time()) + days * DAY_S
        made = {name: invitations.make(row.uid, until) for name, row in users.items()}
    variables = {
        "invite_numbers": {name: users[name].uid for name in made},
        "invite_files": [invitations.entry(name, row) for name, (_code, row) in made.items()],
    }
    _run_with("invite", known, playbooks.USER_INVITE, variables, "there is no portal: give the group portals a host")
    day = time.strftime("%Y-%m-%d", time.localtime(until))
    for name, (code, _row) in made.items():
        typer.echo(f"{name}: {code}    (good once, until {day}, on the portal's page /hub/invite)")


@app.command("kubeconfig")
def kubeconfig(
    names: NamesArgument,
    inventory: InventoryOption = None,
    days: Annotated[int, typer.Option("--days", min=1, max=365, help="Days for which it is valid.")] = 30,
) -> None:
    """Make the file with which a user reaches Kubernetes. It takes the place of an earlier one at once.

    The file has the user's key: hand it over by a channel that others cannot
    read. A new one is also how to make a lost one worthless.

    Examples:

      gpuops user kubeconfig alice

      gpuops user kubeconfig alice bob --days 90
    """
    with _refusals("kubeconfig"):
        known = find(inventory)
        users = _present(known, names, "kubeconfig")
        directory = known.directory / kubeconfigs.DIRECTORY
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = [kubeconfigs.make(row, days, directory, datetime.now()) for row in users.values()]
    missing = "the site has no Kubernetes: add a host to the group kubernetes_control_planes"
    _run_with("kubeconfig", known, playbooks.USER_KUBECONFIG, {"kubeconfigs": made}, missing)
    for row in made:
        typer.echo(f"{row['user']}: {row['path']}    (valid for {row['hours'] // 24} days, as ~/.kube/config)")


def _present(known: Site, names: list[str], command: str) -> dict[str, people.User]:
    """The users of these names. Raises Refused for one that is not there, or is closed."""
    found = site_list.find(known).people()
    if found.problems:
        raise Refused(text(found.problems))
    users = {one.name: one for one in found.users}
    for name in names:
        if name not in users:
            raise Refused(f"there is no user {name!r}", f"see `gpuops user list`, or `gpuops user add {name}`")
        if users[name].state != people.PRESENT:
            remedy = f"run `gpuops user reopen {name}`, then `gpuops user {command} {name}` again"
            raise Refused(f"{name} is {users[name].state}", remedy)
    return {name: users[name] for name in names}


def _run_with(command: str, known: Site, playbook: str, variables: dict[str, Any], missing: str) -> None:
    """Run a playbook with variables that only its user may read.

    :param missing: what is said where it has no host.
    """
    with tempfile.TemporaryDirectory(prefix="gpuops-user-") as scratch:
        path = Path(scratch) / "variables.json"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
            json.dump(variables, stream)
        options = [*words, "-e", f"@{path}"]
        outcome = run_locked(f"user {command}", known, False, LOCK, playbook=playbook, options=options)
    if outcome.status:
        if not outcome.run.hosts:
            typer.echo(f"gpuops user {command}: {missing}", err=True)
        raise typer.Exit(outcome.status)
