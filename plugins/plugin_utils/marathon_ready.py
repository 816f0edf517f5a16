# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ready-made Marathon apps: a smoke job on every model of card, a notebook, and the points of a sweep.

Pure functions over what is asked for (``asked``, the variables of the role marathon_apps) and the agents of the
cluster as mesos_state_info tells them. Each gives ``problems``, sentences with host, value and remedy, and ``apps`` in
the shape of Marathon's /v2/apps. Nothing may be sent where there is a problem.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.marathon import app as marathon_app

Row = dict[str, Any]

# Label of the apps that are one of these, with its kind.
READY = "BAREMETAL_GPU_READY"
LEAST_MEM_MIB = 32
MODEL = re.compile(r"[A-Za-z0-9_/.-]+", re.ASCII)
APP_ID = re.compile(r"(/[a-z0-9]([a-z0-9-]*[a-z0-9])?)+", re.ASCII)
ACCOUNT = re.compile(r"[a-z]([a-z0-9_-]{0,30}[a-z0-9])?", re.ASCII)
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
    """Collects what speaks against an app."""

    def __init__(self, asked: Mapping[str, Any], kind: str) -> None:
        self.asked, self.kind, self.host = asked, kind, str(asked["host"])
        self.problems: list[str] = []

    def name(self, key: str) -> str:
        return f"marathon_apps_{self.kind}_{key}"

    def refuse(self, text: str) -> None:
        self.problems.append(f"{self.host}: {text}")

    def must(self, key: str, pattern: re.Pattern[str], wanted: str) -> None:
        value = self.asked[key]
        if not isinstance(value, str) or not pattern.fullmatch(value):
            self.refuse(f"{self.name(key)} is {value!r}. To do: give {wanted}")

    def limits(self) -> None:
        """cpus, mem and gpus: no app goes without."""
        for key, low, whole in (("cpus", 0.01, False), ("mem", LEAST_MEM_MIB, False), ("gpus", 0, True)):
            value = self.asked[key]
            number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
            if not number or value < low:
                kind = "a whole number" if whole else "a number"
                unit = " MiB" if key == "mem" else ""
                self.refuse(f"{self.name(key)} is {value!r}. To do: give {kind} of at least {low}{unit}")

    def base(self, app_id: str, model: str) -> Row:
        """What all apps have: limits, a container that may be given cards, and where it may go."""
        asked = self.asked
        app: Row = {"id": app_id, "cpus": asked["cpus"], "mem": asked["mem"], "instances": 1}
        if asked["gpus"]:
            app["gpus"] = asked["gpus"]
            app["container"] = {"type": "MESOS"}
        if asked["image"]:
            app["container"] = {"type": "MESOS", "docker": {"image": asked["image"]}}
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
            self.refuse(f"no agent has cards of the model {model!r}. To do: choose among {', '.join(known) or 'none'}")
            return
        for key, unit in (("gpus", ""), ("cpus", ""), ("mem", " MiB")):
            most = max(float(row["resources"].get(key, 0)) for row in of_model)
            if self.asked[key] > most:
                where = f" with cards of the model {model}" if model else ""
                self.refuse(
                    f"{self.name(key)} is {self.asked[key]:g}, and no agent{where} has more than {most:g}{unit}. "
                    "To do: ask for less"
                )

    def done(self, apps: list[Row]) -> Row:
        """The answer, after the app was looked at as Marathon would."""
        if not self.problems:
            self.problems = [f"{self.host}: {text}" for app in apps for text in marathon_app.problems(app)]
        return {"problems": self.problems, "apps": [] if self.problems else apps}


def _passed(command: str) -> str:
    """A check that is well once the file of that name is in the sandbox."""
    return f'test -e {_SANDBOX}/{command}"'


# The smoke job.


def smoke(asked: Mapping[str, Any], agents: Iterable[Mapping[str, Any]]) -> Row:
    """One app for each model: it queries its cards, is healthy if they passed, and keeps them until it is taken away.

    :param asked: ``host``, ``id``, ``models`` (none: all that agents have), ``gpus``, ``cpus``, ``mem``, ``image``,
        ``command`` (of the image) and ``program`` (the text of the query that needs no image).
    """
    draft, rows = Draft(asked, "smoke"), list(agents)
    draft.must("id", APP_ID, "one as in /smoke")
    draft.limits()
    if not draft.problems and asked["gpus"] < 1:
        draft.refuse(f"{draft.name('gpus')} is {asked['gpus']}. To do: give at least 1")
    if asked["image"]:
        draft.must("image", IMAGE, "the name of an image")
    models = [str(model) for model in asked["models"]] or sorted(
        {
            str(row["attributes"]["gpu_model"])
            for row in rows
            if row["resources"].get("gpus", 0) > 0 and "gpu_model" in row["attributes"]
        }
    )
    if not models:
        draft.refuse("no agent gives out cards. To do: see what playbooks/scheduler.yml says of the hosts with cards")
    for model in models:
        if not MODEL.fullmatch(model):
            draft.refuse(
                f"{draft.name('models')} has {model!r}. To do: give models as the attribute gpu_model has them"
            )
        else:
            draft.fits(model, rows)
    return draft.done([_smoke(draft, model) for model in models] if not draft.problems else [])


def _smoke(draft: Draft, model: str) -> Row:
    asked = draft.asked
    app = draft.base(f"{asked['id']}/{_word(model)}", model)
    if asked["image"]:
        query = asked["command"] or f"test \"$(nvidia-smi -L | grep -c '^GPU ')\" -eq {asked['gpus']}"
    else:
        devices = ",".join(map(str, range(asked["gpus"])))
        query = f"printf '%s' \"$GPU_QUERY\" | python3 -I - --copy-mib 16 --devices {devices}"
        app["env"] = {"GPU_QUERY": asked["program"]}
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
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-") or "card"


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


def notebook(asked: Mapping[str, Any], agents: Iterable[Mapping[str, Any]]) -> Row:
    """An app that lets one user log in by SSH key, with the home, and runs a notebook there.

    :param asked: ``host``, ``user``, ``ssh_keys``, ``home``, ``image``, ``program``, ``model``, ``gpus``, ``cpus``,
        ``mem``.
    """
    draft = Draft(asked, "notebook")
    draft.must("user", ACCOUNT, "the name of an account")
    if asked["user"] == "root":
        draft.refuse(f"{draft.name('user')} is 'root'. To do: give the account of a person")
    draft.limits()
    home = asked["home"] or f"/home/{asked['user']}"
    if not re.fullmatch(r"(/[A-Za-z0-9._-]+)+", home, re.ASCII) or ".." in home.split("/"):
        draft.refuse(f"{draft.name('home')} is {home!r}. To do: give the path of a directory below /")
    if asked["image"]:
        draft.must("image", IMAGE, "the name of an image")
    if not str(asked["program"]).strip():
        draft.refuse(f"{draft.name('program')} is empty. To do: give the command that serves the notebook")
    if not asked["ssh_keys"]:
        draft.refuse(f"{draft.name('ssh_keys')} is empty, and nobody could log in. To do: give a public key")
    for number, key in enumerate(asked["ssh_keys"]):
        wrong = key_problem(key)
        if wrong:
            # Not the value, which may be a private key.
            draft.refuse(f"{draft.name('ssh_keys')}[{number}] {wrong}")
    if asked["model"]:
        draft.must("model", MODEL, "a model as the attribute gpu_model has it")
    draft.fits(asked["model"], agents)
    if draft.problems:
        return draft.done([])
    app = draft.base(f"/notebooks/{asked['user'].replace('_', '-')}", asked["model"])
    app["labels"] = {READY: "notebook"}
    app["cmd"] = _NOTEBOOK
    app["user"] = asked["user"]
    app["env"] = {
        "NOTEBOOK_HOME": home,
        "NOTEBOOK_KEYS": "\n".join(str(key).strip() for key in asked["ssh_keys"]),
        "NOTEBOOK_PROGRAM": asked["program"],
    }
    if asked["image"]:
        # Without an image the host's own directories are there anyway.
        app["container"]["volumes"] = [{"hostPath": home, "containerPath": home, "mode": "RW"}]
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


def key_problem(key: Any) -> str:
    """Why that is no public key of OpenSSH, without showing it; empty if it is one."""
    text = str(key).strip()
    if "PRIVATE KEY" in text:
        return "is a private key. To do: give the public one, the file that ends with .pub, and make a new pair"
    found = KEY.fullmatch(text)
    if not found:
        return "is no public key. To do: give one line as in a file .pub, without options"
    try:
        blob = base64.b64decode(found[2], validate=True)
    except (binascii.Error, ValueError):
        return "is a public key that was cut. To do: give the whole line of the file .pub"
    kind = found[1].encode()
    if blob[:4] != len(kind).to_bytes(4, "big") or blob[4 : 4 + len(kind)] != kind:
        return f"says {found[1]} and holds something else. To do: give the whole line of the file .pub"
    return ""


# The sweep.


def sweep(asked: Mapping[str, Any], agents: Iterable[Mapping[str, Any]]) -> Row:
    """One app for each point of the grid, which the module marathon_sweep runs.

    :param asked: ``host``, ``name``, ``command``, ``parameters`` (name -> list of values), ``image``, ``model``,
        ``gpus``, ``cpus``, ``mem``, ``parallel``, ``env``.
    """
    draft = Draft(asked, "sweep")
    draft.must("name", re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?", re.ASCII), "lowercase letters, digits and -")
    draft.limits()
    if not str(asked["command"]).strip():
        draft.refuse(f"{draft.name('command')} is empty. To do: give what is run for each point")
    if asked["image"]:
        draft.must("image", IMAGE, "the name of an image")
    if asked["model"]:
        draft.must("model", MODEL, "a model as the attribute gpu_model has it")
    if asked["parallel"] < 1:
        draft.refuse(f"{draft.name('parallel')} is {asked['parallel']}. To do: give at least 1")
    parameters = _parameters(draft)
    for name, value in asked["env"].items():
        if not VARIABLE.fullmatch(str(name)) or name in parameters or not isinstance(value, str):
            draft.refuse(
                f"{draft.name('env')} has {name!r}. To do: name a variable that is no parameter, and quote text"
            )
    draft.fits(asked["model"], agents)
    if draft.problems:
        return draft.done([])
    return draft.done(
        [_point(draft, dict(zip(parameters, row, strict=True))) for row in itertools.product(*parameters.values())]
    )


def _parameters(draft: Draft) -> dict[str, list[str]]:
    """Name -> values as text. Refuses what is no grid."""
    given, found = draft.asked["parameters"], {}
    if not given:
        draft.refuse(f"{draft.name('parameters')} is empty. To do: give each parameter a list of values")
    for name, values in given.items():
        if not VARIABLE.fullmatch(str(name)):
            draft.refuse(f"{draft.name('parameters')} has {name!r}. To do: name it with letters, digits and _")
        if not isinstance(values, (list, tuple)) or not values:
            draft.refuse(f"{draft.name('parameters')}.{name} is {values!r}. To do: give a list of values")
            continue
        plain = [value for value in values if isinstance(value, (str, int, float))]
        words = [json.dumps(value) if not isinstance(value, str) else value for value in plain]
        if len(plain) != len(values) or len(set(words)) != len(words):
            draft.refuse(f"{draft.name('parameters')}.{name} is {values!r}. To do: give numbers or text, each once")
        found[str(name)] = words
    return found


def _point(draft: Draft, values: Mapping[str, str]) -> Row:
    asked = draft.asked
    told = json.dumps(values, sort_keys=True)
    app = draft.base(f"/sweeps/{asked['name']}/p-{sha256(told.encode()).hexdigest()[:12]}", asked["model"])
    # A point that ends well waits to be taken away, since Marathon would start it anew.
    app["cmd"] = f'( {asked["command"]}\n) && touch {_SANDBOX}/finished" && {_STAY}'
    app["env"] = {**asked["env"], **values}
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
