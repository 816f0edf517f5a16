# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that works as root for the hub: it submits, ends, reads and saves sessions as the users that they are of,
and tells what these have.

systemd starts it for each order, at a socket that the hub's account alone can open. So everything is checked here
again: that the user is a person who may have sessions, what the session may have, and that nothing of what is given is
more than a word. It takes one object of JSON from its standard input and prints one: {"do": "submit", "user": …} ->
{"job": 12}, or {"problem": {…}}. What takes long has lines with {"progress": …} before that.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    json_object,
    mapping_of,
    object_of,
    one_of,
    text,
    whole,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import (
    accounts,
    docker_backend,
    environments,
    form,
    hub_variables,
    marathon_backend,
    own,
    session,
    settings,
    ssh,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.accounts import Account
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.backend import Orders
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.form import Request
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.settings import Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.slurm_backend import SlurmOrders
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import images, submission
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.submission import Submitter

BYTES_AT_MOST = 512 << 10
OUTPUT_AT_MOST = 4000
# What an order may take, and one that saves an environment.
ORDER_S, SAVE_S = 85, 3600
SUBMIT, CANCEL, OUTPUT, KEYS, SAVE, LOOK = "submit", "cancel", "output", "keys", "save", "look"
HOME, HOURS, EXTEND = "home", "hours", "extend"
NUMBER, NAMED = whole(1, 10**10), text(f"{marathon_backend.APP.pattern}|{docker_backend.NAME.pattern}")
Hear = Callable[[str], None]
# Runs a program that takes long, and hands on each line as it comes; the exit status.
Listen = Callable[[Sequence[str], Hear], int]
LINES_AT_MOST = 20
# In a step of the session's job, so on its node, and with what its script has left there.
SAVING = f"""
image="$1/{session.SHARED}-$SLURM_JOB_ID/{session.IMAGE}"
test -s "$image" || {{ echo 'the session runs in no image'; exit 1; }}
exec {images.NAME} save "$(cat "$image")" "$2"
"""
LOCKING = f'exec {environments.NAME} save "$1" "$2"'


def _job(value: Any, where: str) -> Any:
    """By what the scheduler knows a session."""
    return NAMED(value, where) if isinstance(value, str) else NUMBER(value, where)


REQUEST = object_of(
    {
        **{name: whole(0, 10**6) for name in form.NUMBERS},
        "model": text(at_most=63),
        "environment": text(at_most=form.VALUE_AT_MOST),
    }
)
# Of whoever is closed or gone, too: it is ended what is theirs, and nothing is done as them.
ENDING = object_of({"do": one_of(CANCEL), "user": text(r"[^\0\n]*", 100), "job": _job})
ORDER = object_of(
    {"do": one_of(SUBMIT, OUTPUT, KEYS, SAVE, HOME, HOURS, EXTEND), "user": text(accounts.NAME.pattern)},
    {
        "server": text(f"(?:{form.SERVER.pattern})?"),
        "job": NUMBER,
        "more_hours": whole(1, 24),
        "target": text(r"[^\0\n]*"),
        "environment": text(form.OWN.pattern),
        "request": REQUEST,
        "variables": mapping_of(text(session.VARIABLE.pattern), text(r"[^\0\n]*", session.VALUE_AT_MOST)),
        "certificates": mapping_of(one_of(*session.CERTIFICATES), text(session.PEM.pattern, 65536)),
    },
)


def listen(argv: Sequence[str], hear: Hear) -> int:
    signal.alarm(SAVE_S)
    kinds: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(list(argv), **kinds) as process:
        for line in process.stdout or ():
            hear(line.decode("utf-8", "replace"))
    return process.returncode


def tell(row: Mapping[str, Any]) -> None:
    # A hub that is gone meanwhile is no reason to stop in the middle.
    with contextlib.suppress(ConnectionError):
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


def do(given: bytes, known: Settings, run: Run = host_run.run, listening: Listen = listen) -> Mapping[str, Any]:
    """What an order comes to. Raises Refused, Malformed."""
    orders = _orders(known, run)
    told = json_object(given, BYTES_AT_MOST)
    if told == {"do": LOOK}:
        return orders.look()
    if told.get("do") == CANCEL:
        ending = ENDING(told, "order")
        orders.cancel(ending["user"], ending["job"])
        return {"cancelled": ending["job"]}
    order = ORDER(told, "order")
    account = known.person(order["user"])
    submitter = Submitter(run)
    if order["do"] == KEYS:
        return _keys(account.name, account.home, submitter, run)
    if order["do"] == HOME:
        return own.home(submitter.as_user(account.name), account.home, run)
    if order["do"] == HOURS:
        return own.hours(account.name, run, time.time())
    if order["do"] == EXTEND:
        limits = form.limits_of(account.groups, known.limits_by_group, known.limits)
        if not isinstance(orders, SlurmOrders):
            raise Refused("only sessions of Slurm get more time", "start it again", code="no_more_time")
        number, more = _needed(order, "job"), _needed(order, "more_hours")
        return {"minutes": orders.extend(account.name, number, more, limits.hours)}
    server = order.get("server", "")
    if order["do"] == SAVE:
        return _save(account, order, known, submitter, run, listening)
    request = Request(**order["request"]) if "request" in order else Request(environment=next(iter(known.names), ""))
    variables = hub_variables.checked(order.get("variables", {}), account.name, server, known)
    if orders.gives_port:
        variables = {name: value for name, value in variables.items() if name != "JUPYTERHUB_SERVICE_URL"}
    wanted = session.job(account, server, request, known, variables, order.get("certificates", {}))
    if order["do"] == OUTPUT:
        return {"output": submitter.output(wanted, wanted.directory)[-OUTPUT_AT_MOST:]}
    problems = submission.problems(wanted)
    if problems:
        raise Refused(problems[0].cause, problems[0].remedy, code=problems[0].code, subject=problems[0].subject)
    image = known.image_of(request.environment, account.name)
    return {"job": orders.submit(wanted, server, variables, image)}


def _orders(known: Settings, run: Run) -> Orders:
    if known.scheduler == settings.SLURM:
        return SlurmOrders(run)
    if known.scheduler == settings.DOCKER:
        return docker_backend.DockerOrders(run)
    return marathon_backend.orders(run=run)


def _needed(order: Mapping[str, Any], name: str) -> Any:
    if name not in order:
        raise Malformed(f"order has no {name}")
    return order[name]


def _keys(user: str, home: str, submitter: Submitter, run: Run) -> dict[str, Any]:
    """The public keys of the jump and of a user's sessions, by which people know them; the latter is made here, in the
    home, where no session has made it yet."""
    made = f'key="$HOME/{ssh.HOST_KEY}"\n{ssh.MAKE_KEY}'
    asked = {
        "session": [*submitter.as_user(user), "/bin/sh", "-c", made],
        "jump": ["/usr/bin/cat", "--", f"{ssh.JUMP_KEY}.pub"],
    }
    found = {}
    for name, argv in asked.items():
        status, out, error = run(argv, None, 20.0)
        key = " ".join(out.split()[:2])
        if status or not ssh.KEY.fullmatch(key):
            cause = f"the key of the {name} cannot be had: {one_line(error or out, 300)}"
            if name == "session":
                raise submitter.not_written(user, f"{home}/{ssh.HOST_KEY}", cause)
            raise CallFailed(cause, f"the operators see `sudo systemctl status {ssh.ACCOUNT}` on the portal's host")
        found[name] = key
    return found


def _save(
    account: Account, order: Mapping[str, Any], known: Settings, submitter: Submitter, run: Run, listening: Listen
) -> dict[str, Any]:
    """Keep the environment of a session, with the rights of its user: as an image that is pushed, or as a lock file."""
    number, target, place = _needed(order, "job"), _needed(order, "target"), known.place_of(account.name)
    directory = order.get("environment", "")
    if directory and not form.LOCK.fullmatch(target):
        remedy = "give a name of letters and digits, such as torch"
        raise Refused(f"the lock file is {one_line(repr(target), 200)}", remedy, code="no_lock", subject="target")
    if not directory and (not form.is_own_image(target, place) or "@" in target):
        remedy = f"give a name of lower case letters and digits, and a tag, such as {place}lectures:v1"
        raise Refused(f"the image is {one_line(repr(target), 200)}", remedy, code="no_image", subject="target")
    if (number, account.name) not in {(one.job, one.user) for one in session.running(run)}:
        raise Refused(f"job {number} is not a running session of {account.name}", "start it again", code="no_session")
    step = ["/usr/bin/srun", "--quiet", f"--jobid={number}", "--overlap", "--ntasks=1", "--mem=0", "--cpu-bind=none"]
    if directory:
        words = [LOCKING, "save", *(account.home + path[1:] for path in (directory, target))]
    else:
        words = [SAVING, "save", session.directory(account, order.get("server", "")), target]
    said: list[str] = []

    def hear(line: str) -> None:
        text = one_line(line.strip(), 500)
        if text and not text.startswith("srun:"):
            said.append(text)
            del said[:-LINES_AT_MOST]
            if text.startswith(f"{images.NAME}: "):
                tell({"progress": text.partition(": ")[2]})

    status = listening([*submitter.as_user(account.name), *step, "/bin/sh", "-c", *words], hear)
    return _locked(target, account, status, said) if directory else _pushed(target, known, place, status, said)


def _pushed(target: str, known: Settings, place: str, status: int, said: Sequence[str]) -> dict[str, Any]:
    last = said[-3:]
    saved = next((one for one in reversed(last) if one.startswith(place) and "@sha256:" in one), "")
    if status or not images.IMAGE.fullmatch(saved):
        cause = f"{target} was not saved: {' / '.join(last) or f'srun ended with {status}'}"
        login = f"`skopeo login --authfile ~/.docker/config.json {known.registry}`"
        remedy = f"where it says unauthorized, log in once with {login} on a node, such as with SSH in the session"
        raise Refused(cause, f"{remedy}, and save it again", code="not_saved", subject=target)
    return {"saved": saved}


def _locked(target: str, account: Account, status: int, said: Sequence[str]) -> dict[str, Any]:
    told = [re.sub(rf"(?<!/){re.escape(account.home)}/", "~/", line) for line in said]
    if status or not told or not told[-1].startswith(f"{target} has "):
        why, _to_do, remedy = " / ".join(told[-3:]).partition(". To do: ")
        cause = f"{target} was not saved: {why or f'srun ended with {status}'}"
        raise Refused(cause, remedy or "save it again, or tell the operators", code="not_saved", subject=target)
    return {"saved": told[-1], "left_out": [line for line in told if line.startswith("left out: ")]}


def main(words: Sequence[str] | None = None, path: str = settings.PATH) -> int:
    """The exit status: 0 where the order was done."""
    if sys.argv[1:] if words is None else words:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    # What nothing else limits is the questions to a directory of users.
    signal.alarm(ORDER_S)
    try:
        answer = do(sys.stdin.buffer.read(BYTES_AT_MOST + 1), settings.read(path))
    except Refused as why:
        answer = {"problem": why.problem.as_dict()}
    except Malformed as why:
        problem = Refused(one_line(why, 300), code="malformed").problem
        answer = {
            "problem": replace(
                problem, remedy="the operators run `gpuops up --tags portal`: hub and program differ"
            ).as_dict()
        }
    tell(answer)
    return 1 if "problem" in answer else 0
