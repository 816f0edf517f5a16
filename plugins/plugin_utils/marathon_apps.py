# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ready-made Marathon apps: a smoke job on every model of GPU, a notebook, and the points of a sweep.

Pure functions over the variables of the role marathon_apps (``params``) and the agents of the cluster as
mesos_state_info returns them. Each gives ``problems``, and ``apps`` in the shape of Marathon's /v2/apps. Nothing may be
sent where there is a problem.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon import app as marathon_app

Row = dict[str, Any]

# Label of the apps that are one of these, with its kind.
READY = "BAREMETAL_GPU_READY"
LEAST_MEM_MIB = 32
MODEL = re.compile(r"[A-Za-z0-9_/.-]+", re.ASCII)
APP_ID = re.compile(r"(/[a-z0-9]([a-z0-9-]*[a-z0-9])?)+", re.ASCII)
ACCOUNT = re.compile(r"[a-z]([a-z0-9_-]{0,30}[a-z0-9])?", re.ASCII)
SWEEP_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?", re.ASCII)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]*", re.ASCII)
KEY = re.compile(
    r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)|sk-ssh-ed25519@openssh\.com"
    r"|sk-ecdsa-sha2-nistp256@openssh\.com) ([A-Za-z0-9+/]+={0,2})( [^\r\n]*)?",
    re.ASCII,
)
# Of an app that stays in a sandbox of its own; the check of Mesos' own executors has the variable too.
_SANDBOX = '"${MESOS_SANDBOX:-.}'
_STAY = "while :; do sleep 3600; done"
# Far more failures than a day has: a check that only tells when something is done ends nothing.
_NEVER = 1000000


class Draft:
    """Collects the problems of an app."""

    def __init__(self, params: Mapping[str, Any], kind: str, role: str = "marathon_apps") -> None:
        self.params, self.kind, self.role, self.host = params, kind, role, str(params["host"])
        self.problems: list[Problem] = []

    def name(self, key: str) -> str:
        return f"{self.role}_{self.kind}_{key}"

    def refuse(self, cause: str, remedy: str) -> None:
        self.problems.append(Problem("invalid_app", self.host, cause, "", remedy))

    def must(self, key: str, pattern: re.Pattern[str], form: str) -> None:
        value = self.params[key]
        if not isinstance(value, str) or not pattern.fullmatch(value):
            self.refuse(f"{self.name(key)} is {value!r}", f"give {form}")

    def needs(self, key: str, form: str) -> None:
        if not str(self.params[key]).strip():
            self.refuse(f"{self.name(key)} is empty", f"give {form}")

    def limits(self) -> None:
        """cpus, mem and gpus: no app goes without."""
        for key, low, whole in (("cpus", 0.01, False), ("mem", LEAST_MEM_MIB, False), ("gpus", 0, True)):
            value = self.params[key]
            number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
            if not number or value < low:
                kind = "a whole number" if whole else "a number"
                unit = " MiB" if key == "mem" else ""
                self.refuse(f"{self.name(key)} is {value!r}", f"give {kind} of at least {low}{unit}")

    def base(self, app_id: str, model: str) -> Row:
        """What all apps have: limits, a container that may be given GPUs, and where it may go."""
        params = self.params
        app: Row = {"id": app_id, "cpus": params["cpus"], "mem": params["mem"], "instances": 1}
        if params["gpus"]:
            app["gpus"] = params["gpus"]
            app["container"] = {"type": "MESOS"}
        if params["image"]:
            app["container"] = {"type": "MESOS", "docker": {"image": params["image"]}}
        if model:
            app["constraints"] = [["gpu_model", "IS", model]]
        return app

    def fits(self, model: str, agents: Iterable[Mapping[str, Any]]) -> None:
        """Refuses what no agent could ever take. Without agents nothing is known."""
        rows = list(agents)
        if not rows or self.problems:
            return
        of_model = [row for row in rows if not model or row["attributes"].get("gpu_model") == model]
        if not of_model:
            known = sorted({str(row["attributes"]["gpu_model"]) for row in rows if "gpu_model" in row["attributes"]})
            self.refuse(f"no agent has GPUs of the model {model!r}", f"choose among {', '.join(known) or 'none'}")
            return
        for key, unit in (("gpus", ""), ("cpus", ""), ("mem", " MiB")):
            most = max(float(row["resources"].get(key, 0)) for row in of_model)
            if self.params[key] > most:
                where = f" with GPUs of the model {model}" if model else ""
                self.refuse(
                    f"{self.name(key)} is {self.params[key]:g}, and no agent{where} has more than {most:g}{unit}",
                    "ask for less",
                )

    def done(self, apps: list[Row]) -> Row:
        """The answer, after the app was looked at as Marathon would."""
        if not self.problems:
            self.problems = [replace(one, subject=self.host) for app in apps for one in marathon_app.problems(app)]
        return {"problems": self.problems, "apps": [] if self.problems else apps}


def _passed(command: str) -> str:
    """A check that is well once the file of that name is in the sandbox."""
    return f'test -e {_SANDBOX}/{command}"'


# The smoke job.


def smoke(params: Mapping[str, Any], agents: Iterable[Mapping[str, Any]]) -> Row:
    """One app for each model: it queries its GPUs, is healthy if they passed, and keeps them until it is taken away.

    :param params: ``host``, ``id``, ``models`` (none: all that agents have), ``gpus``, ``cpus``, ``mem``, ``image``,
        ``command`` (of the image) and ``program`` (the text of the query that needs no image).
    """
    draft, rows = Draft(params, "smoke"), list(agents)
    draft.must("id", APP_ID, "one as in /smoke")
    draft.limits()
    if not draft.problems and params["gpus"] < 1:
        draft.refuse(f"{draft.name('gpus')} is {params['gpus']}", "give at least 1")
    if params["image"]:
        draft.must("image", IMAGE, "the name of an image")
    models = [str(model) for model in params["models"]] or sorted(
        {
            str(row["attributes"]["gpu_model"])
            for row in rows
            if row["resources"].get("gpus", 0) > 0 and "gpu_model" in row["attributes"]
        }
    )
    if not models:
        draft.refuse("no agent gives out GPUs", "see what `gpuops up --tags scheduler` says of the hosts with GPUs")
    for model in models:
        if not MODEL.fullmatch(model):
            draft.refuse(f"{draft.name('models')} has {model!r}", "give models as the attribute gpu_model has them")
        else:
            draft.fits(model, rows)
    return draft.done([_smoke(draft, model) for model in models] if not draft.problems else [])


def _smoke(draft: Draft, model: str) -> Row:
    params = draft.params
    app = draft.base(f"{params['id']}/{_word(model)}", model)
    if params["image"]:
        query = params["command"] or f"test \"$(nvidia-smi -L | grep -c '^GPU ')\" -eq {params['gpus']}"
    else:
        devices = ",".join(map(str, range(params["gpus"])))
        query = f"printf '%s' \"$GPU_QUERY\" | python3 -I - --copy-mib 16 --devices {devices}"
        app["env"] = {"GPU_QUERY": params["program"]}
    app["labels"] = {READY: "smoke"}
    app["cmd"] = f'{query} && touch {_SANDBOX}/passed" && {_STAY}'
    app["healthChecks"] = [
        {
            "protocol": "COMMAND",
            "command": {"value": _passed("passed")},
            "gracePeriodSeconds": 300,
            "delaySeconds": 2,
            "intervalSeconds": 5,
            "timeoutSeconds": 10,
            "maxConsecutiveFailures": 3,
        }
    ]
    return app


def _word(model: str) -> str:
    """A part of an app's id."""
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-") or "gpu"


# The notebook.

# The daemon belongs to the owner of the home, so it lets in nobody else. The program listens on a socket in the home,
# which only the owner opens: what listens on a port of the host is open to everybody there.
_NOTEBOOK = """set -eu
umask 077
test -n "${NOTEBOOK_KEYS:-}" || { echo 'no SSH key was given: nobody could log in' >&2; exit 1; }
test -d "$NOTEBOOK_HOME" || { echo "the home $NOTEBOOK_HOME is not there" >&2; exit 1; }
own="$NOTEBOOK_HOME/.local/share/baremetal-gpu/notebook"
mkdir -p "$own"
printf '%s\\n' "$NOTEBOOK_KEYS" >"$own/authorized_keys"
test -s "$own/host_key" || ssh-keygen -q -t ed25519 -N '' -f "$own/host_key"
export HOME="$NOTEBOOK_HOME" NOTEBOOK_SOCKET="$own/notebook.sock"
rm -f "$NOTEBOOK_SOCKET"
cd "$HOME"
"$(command -v sshd || echo /usr/sbin/sshd)" -D -e -f /dev/null -p "$PORT0" -h "$own/host_key" \\
  -o AuthorizedKeysFile="$own/authorized_keys" -o PubkeyAuthentication=yes -o PasswordAuthentication=no \\
  -o KbdInteractiveAuthentication=no -o PidFile=none &
exec sh -c "$NOTEBOOK_PROGRAM"
"""

# An image of the catalogue has no account of the user. Its start makes it, with the numbers of the home, and then gives
# up root's rights.
_IN_SESSION = """set -eu
test -d "$NOTEBOOK_HOME" || { echo "the home $NOTEBOOK_HOME is not there" >&2; exit 1; }
SESSION_UID=$(stat -c %u "$NOTEBOOK_HOME") SESSION_GID=$(stat -c %g "$NOTEBOOK_HOME")
export SESSION_UID SESSION_GID
exec /usr/local/bin/session sh -c "$NOTEBOOK"
"""


def notebook(params: Mapping[str, Any], agents: Iterable[Mapping[str, Any]]) -> Row:
    """An app that lets one user log in by SSH key, with the home, and runs a notebook there.

    :param params: ``host``, ``user``, ``ssh_keys``, ``home``, ``image``, ``of_catalogue`` (whether the site has
        built the image), ``program``, ``model``, ``gpus``, ``cpus``, ``mem``.
    """
    draft = Draft(params, "notebook")
    draft.must("user", ACCOUNT, "the name of an account")
    if params["user"] == "root":
        draft.refuse(f"{draft.name('user')} is 'root'", "give the account of a person")
    draft.limits()
    home = params["home"] or f"/home/{params['user']}"
    if not re.fullmatch(r"(/[A-Za-z0-9._-]+)+", home, re.ASCII) or ".." in home.split("/"):
        draft.refuse(f"{draft.name('home')} is {home!r}", "give the path of a directory below /")
    if params["image"]:
        draft.must("image", IMAGE, "the name of an image")
    draft.needs("program", "the command that serves the notebook")
    if not params["ssh_keys"]:
        draft.refuse(f"{draft.name('ssh_keys')} is empty, so no user could log in", "give a public key")
    for number, key in enumerate(params["ssh_keys"]):
        wrong = key_problem(key)
        if wrong:
            # Not the value, which may be a private key.
            draft.refuse(f"{draft.name('ssh_keys')}[{number}] {wrong[0]}", wrong[1])
    if params["model"]:
        draft.must("model", MODEL, "a model as the attribute gpu_model has it")
    draft.fits(params["model"], agents)
    if draft.problems:
        return draft.done([])
    app = draft.base(f"/notebooks/{params['user'].replace('_', '-')}", params["model"])
    app["labels"] = {READY: "notebook"}
    app["cmd"] = _NOTEBOOK
    app["user"] = params["user"]
    app["env"] = {
        "NOTEBOOK_HOME": home,
        "NOTEBOOK_KEYS": "\n".join(str(key).strip() for key in params["ssh_keys"]),
        "NOTEBOOK_PROGRAM": params["program"],
    }
    if params["image"]:
        # Without an image the host's own directories are there anyway.
        app["container"]["volumes"] = [{"hostPath": home, "containerPath": home, "mode": "RW"}]
    if params["of_catalogue"]:
        app.update(cmd=_IN_SESSION, user="root")
        app["env"].update(SESSION_USER=params["user"], NOTEBOOK=_NOTEBOOK)
    app["portDefinitions"] = [{"port": 0, "name": "ssh"}]
    app["healthChecks"] = [
        {
            "protocol": "MESOS_TCP",
            "portIndex": 0,
            "gracePeriodSeconds": 300,
            "intervalSeconds": 10,
            "timeoutSeconds": 10,
        }
    ]
    return draft.done([app])


def key_problem(key: Any) -> tuple[str, str] | None:
    """Why that is no public key of OpenSSH, without showing it, and the remedy; None if it is one."""
    text = str(key).strip()
    if "PRIVATE KEY" in text:
        return ("is a private key", "give the public one, the file that ends with .pub, and make a new pair")
    found = KEY.fullmatch(text)
    if not found:
        return ("is not a public key", "give one line as in a file .pub, without options")
    try:
        blob = base64.b64decode(found[2], validate=True)
    except (binascii.Error, ValueError):
        return ("is a public key that was cut", "give the whole line of the file .pub")
    kind = found[1].encode()
    if blob[:4] != len(kind).to_bytes(4, "big") or blob[4 : 4 + len(kind)] != kind:
        return (f"says {found[1]} and holds something else", "give the whole line of the file .pub")
    return None


# The sweep.


def sweep(params: Mapping[str, Any], agents: Iterable[Mapping[str, Any]]) -> Row:
    """One app for each point of the grid, which the module marathon_sweep runs.

    :param params: ``host``, ``name``, ``command``, ``parameters`` (name -> list of values), ``image``, ``model``,
        ``gpus``, ``cpus``, ``mem``, ``parallel``, ``env``.
    """
    draft = Draft(params, "sweep")
    draft.must("name", SWEEP_NAME, "lowercase letters, digits and -")
    draft.limits()
    draft.needs("command", "what is run for each point")
    if params["image"]:
        draft.must("image", IMAGE, "the name of an image")
    if params["model"]:
        draft.must("model", MODEL, "a model as the attribute gpu_model has it")
    if params["parallel"] < 1:
        draft.refuse(f"{draft.name('parallel')} is {params['parallel']}", "give at least 1")
    parameters = parameters_of(draft)
    draft.fits(params["model"], agents)
    if draft.problems:
        return draft.done([])
    return draft.done(
        [_point(draft, dict(zip(parameters, row, strict=True))) for row in itertools.product(*parameters.values())]
    )


def parameters_of(draft: Draft) -> dict[str, list[str]]:
    """Name -> values as text. Refuses what is not a grid, and further variables that are not right beside it."""
    given, found = draft.params["parameters"], {}
    if not given:
        draft.refuse(f"{draft.name('parameters')} is empty", "give each parameter a list of values")
    for name, values in given.items():
        if not VARIABLE.fullmatch(str(name)):
            draft.refuse(f"{draft.name('parameters')} has {name!r}", "name it with letters, digits and _")
        if not isinstance(values, (list, tuple)) or not values:
            draft.refuse(f"{draft.name('parameters')}.{name} is {values!r}", "give a list of values")
            continue
        plain = [value for value in values if isinstance(value, (str, int, float))]
        words = [json.dumps(value) if not isinstance(value, str) else value for value in plain]
        if len(plain) != len(values) or len(set(words)) != len(words):
            draft.refuse(f"{draft.name('parameters')}.{name} is {values!r}", "give numbers or text, each once")
        found[str(name)] = words
    for name, value in draft.params["env"].items():
        if not VARIABLE.fullmatch(str(name)) or name in found or not isinstance(value, str):
            draft.refuse(f"{draft.name('env')} has {name!r}", "name a variable that is not a parameter, and quote text")
    return found


def _point(draft: Draft, values: Mapping[str, str]) -> Row:
    params = draft.params
    told = json.dumps(values, sort_keys=True)
    app = draft.base(f"/sweeps/{params['name']}/p-{sha256(told.encode()).hexdigest()[:12]}", params["model"])
    # A point that ends well waits to be taken away, since Marathon would start it anew.
    app["cmd"] = f'( {params["command"]}\n) && touch {_SANDBOX}/finished" && {_STAY}'
    app["env"] = {**params["env"], **values}
    app["labels"] = {"BAREMETAL_GPU_POINT": told}
    app["healthChecks"] = [
        {
            "protocol": "COMMAND",
            "command": {"value": _passed("finished")},
            "gracePeriodSeconds": 0,
            "delaySeconds": 2,
            "intervalSeconds": 5,
            "timeoutSeconds": 10,
            "maxConsecutiveFailures": _NEVER,
        }
    ]
    return app


KINDS = {"smoke": smoke, "notebook": notebook, "sweep": sweep}
