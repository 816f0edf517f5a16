# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ready-made jobs of Slurm: a smoke job on every type of GPU, a notebook, the points of a sweep, and a training."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import state as slurm_state
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import submission
from ansible_collections.baremetal.gpu.plugins.plugin_utils import image_catalogue
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.marathon_apps import QUERY
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import ROLES
from ansible_collections.baremetal.gpu.plugins.plugin_utils.marathon_apps import (
    IMAGE,
    SWEEP_NAME,
    Draft,
    parameters_of,
)

Row = dict[str, Any]

# The end of a document in the shell, which is no line of the query, nor of the programs.
END = "END-OF-QUERY"
# What failed stands at the end of the output, of which a failure shows the last lines.
QUERIED = """status=$?
cat query.json
test "$status" -eq 0 || { echo 'What failed:'; grep -E '"(call|name|text)": "' query.json; }
exit "$status"
"""
LABEL_AT_MOST = 60
# What is a whole number, whatever a command line made of it.
NUMBERS = (
    *("gpus", "cpus", "mem", "minutes", "parallel", "timeout"),
    *("nodes", "least_nodes", "epochs", "batch", "micro_batch", "checkpoint_steps", "checkpoints_kept", "seed"),
)
# What a job does not have of its own.
DEFAULTS = {
    "gpu_type": "",
    "tasks": [],
    "parallel": 0,
    "again": False,
    "nodes": 1,
    "least_nodes": 0,
    "processes": 1,
    "resumable": False,
}

# The socket is in the user's directory, which only the user opens: what listens on a port of the host is open to
# everybody there.
SOCKET = """umask 077
export NOTEBOOK_SOCKET="$PWD/notebook.sock"
rm -f "$NOTEBOOK_SOCKET"
"""
AT_HOME = """cd "$HOME" || exit 1
"""

PROGRAMS = ROLES / "slurm_apps" / "files" / "training"
PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]*", re.ASCII)
PYTHON = re.compile(r"[A-Za-z0-9._+@=/-]+", re.ASCII)
# The numbers of a training that are 1 at least.
COUNTS = ("epochs", "batch", "micro_batch", "checkpoint_steps", "checkpoints_kept")
# A lost GPU ends a program in many ways. So whatever fails is begun anew, unless it has said that this is of no use (2,
# as for wrong arguments), or it has failed three times and no checkpoint has come in between.
GO_ON = """test "${SLURM_RESTART_COUNT:-0}" != 0 || rm -f failures
(
trap : TERM USR1
COMMAND
)
status=$?
case "$status" in 0 | 2 | 119) exit "$status" ;; esac
last=$(ls checkpoints 2>/dev/null | grep '\\.json$' | tail -n 1)
echo "${last:-none}" >>failures
if test "$(grep -cxF "${last:-none}" failures)" -ge 3; then
  echo "It has ended with exit status $status for the third time, and without a new checkpoint: it is not begun again."
  exit "$status"
fi
echo "It has ended with exit status $status, and is queued again. Last checkpoint: ${last:-none}."
exit 119
"""
# The processes meet in a file of a directory that only the user opens: at a port, whoever listens first would be taken
# for one of them. And the first two hosts of the job, by which a process finds the network interface between them.
# Slurm knows their addresses where no DNS knows their names.
MEET = r"""address() {
  told=$(scontrol show node "$1" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
  echo "${told:-$1}"
}
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=$(echo "$hosts" | sed -n 1p) second=$(echo "$hosts" | sed -n 2p)
MASTER_ADDR=$(address "$first")
PEER_ADDR=${second:+$(address "$second")}
rm -rf meeting.*
MEETING=$(mktemp -d "$PWD/meeting.XXXXXXXXXX")/processes || exit 1
export MASTER_ADDR PEER_ADDR MEETING
rm -f training.json
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" </dev/null """
# The outcome is written last: what ends a process after it, such as the fault of a GPU, takes nothing away.
HAS_ENDED = """
ended=$?
rm -rf "${MEETING%/*}"
test -s training.json && exit 0
test "$ended" != 0 || ended=1
exit "$ended\""""


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The jobs of one kind as arguments of the module slurm_job, as the part ``jobs``.

    The part ``look`` has the hosts whose driver an image of the catalogue depends on and nobody knows yet. The kind
    ``packages`` gives the document of a node that a training runs on.

    :param params: beside the variables ``kind`` (smoke, notebook, sweep, training or packages), ``nodes``, those of
        the cluster, and ``image_catalogue``.
    :param peers: ``host`` and ``hostvars``.
    """
    if params["kind"] == "packages":
        return packages(params, peers["host"])
    prefix = f"{params['kind']}_"
    own = {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}
    own.update({name: int(own[name]) for name in NUMBERS if name in own})
    draft = Draft({"host": peers["host"], **own}, params["kind"], "slurm_apps")
    user = str(params["user"])
    if not submission.ACCOUNT.fullmatch(user):
        draft.refuse(f"slurm_apps_user is {user!r}", "give the account whose jobs they are")
    directory = str(params["directory"]) or "~/gpuops-jobs"
    if not submission.DIRECTORY.fullmatch(directory.replace("~/", "/", 1)) and not draft.problems:
        draft.refuse(f"slurm_apps_directory is {directory!r}", "give a path of letters, digits and . _ + @ = -")
    draft.limits()
    look = use_image(draft, params, peers["hostvars"])
    common = {
        **{key: own[key] for key in ("gpus", "cpus", "minutes")},
        "memory_mib": own["mem"],
        **DEFAULTS,
    }
    made = KINDS[params["kind"]](draft, params) if not draft.problems else []
    jobs = [{**common, "directory": f"{directory}/{job['name']}", **job} for job in made]
    return Plan(problems=tuple(draft.problems), parts={"jobs": [] if draft.problems else jobs, "look": look})


def use_image(draft: Draft, params: Mapping[str, Any], hostvars: Mapping[str, Any]) -> list[str]:
    """Refuses an image of the catalogue that a node cannot run, and names it by its digest; hosts to be looked at."""
    image = str(draft.params.get("image") or "")
    if not image:
        return []
    draft.must("image", IMAGE, "the name of an image")
    if not params["containers"]:
        remedy = "set slurm_common_containers for the hosts of Slurm and run `gpuops up --tags slurm`, or name no image"
        draft.refuse(f"{draft.name('image')} is {image!r}, and jobs have no containers", remedy)
    kind = str(draft.params["type"])
    hosts = [str(node.get("name")) for node in params["nodes"] if draft.params["gpus"] and _has(node, kind)]
    catalogue = params["image_catalogue"]
    exact, found = image_catalogue.resolve(image, catalogue, image_catalogue.facts_of(hosts, hostvars))
    draft.params = {**draft.params, "image": exact}
    draft.problems += found
    return image_catalogue.to_look_at(image, catalogue, hosts, hostvars)


def packages(params: Mapping[str, Any], host: str) -> Plan:
    """What a training needs on a node."""
    draft = Draft({"host": host}, "training", "slurm_apps")
    wanted = params["training_packages"]
    for name in wanted:
        if not isinstance(name, str) or not PACKAGE.fullmatch(name):
            draft.refuse(f"{draft.name('packages')} has {name!r}", "give names of packages")
    if draft.problems:
        return Plan(problems=tuple(draft.problems))
    return Plan(doc.Document(packages=[*map(doc.Package, wanted)]))


def _has(node: Mapping[str, Any], kind: str) -> bool:
    """Whether a node has GPUs of the type, or of any."""
    found = types([node])
    return kind in found if kind else bool(found)


def types(nodes: list[Mapping[str, Any]]) -> dict[str, int]:
    """Type of GPU -> the most that a node has of it. GPUs without a type have the empty one."""
    found: dict[str, int] = {}
    for node in nodes:
        for one in slurm_state.gpus(str(node.get("gres") or "")):
            words = one.split("(")[0].split(":")
            kind = words[1] if len(words) > 1 and not words[1].isdigit() else ""
            found[kind] = max(found.get(kind, 0), slurm_state.count(one))
    return found


def fits(draft: Draft, kind: str, nodes: list[Mapping[str, Any]]) -> None:
    """Refuses what no node could ever give."""
    known = types(nodes)
    if not draft.params["gpus"]:
        return
    if kind and kind not in known:
        names = ", ".join(sorted(filter(None, known))) or "none"
        draft.refuse(f"no node has GPUs of the type {kind!r}", f"choose among {names}")
        return
    most = known[kind] if kind else max(known.values(), default=0)
    if draft.params["gpus"] > most:
        of_type = f" of the type {kind}" if kind else ""
        draft.refuse(
            f"{draft.name('gpus')} is {draft.params['gpus']}, and no node has more than {most} GPUs{of_type}",
            "ask for less",
        )


def in_image(image: str, command: str) -> str:
    """The command, or what runs it in an image, whose name has only signs that the shell takes as they are."""
    if not image:
        return command
    return f"export IMAGE={image}\nexec gpu-image run {image} /bin/sh -c {shlex.quote(command)}\n"


def fit_on(draft: Draft, kind: str, nodes: list[Mapping[str, Any]]) -> None:
    """Refuses more nodes than have so many GPUs."""
    given = draft.params
    if given["nodes"] < 1:
        draft.refuse(f"{draft.name('nodes')} is {given['nodes']}", "give at least 1")
    if not 0 <= given["least_nodes"] <= given["nodes"]:
        least = f"{draft.name('least_nodes')} is {given['least_nodes']}"
        draft.refuse(f"{least}, and {draft.name('nodes')} is {given['nodes']}", "give at most as many, or 0")
    fits(draft, kind, nodes)
    if draft.problems:
        return
    found = [types([node]) for node in nodes]
    enough = sum((one.get(kind, 0) if kind else max(one.values(), default=0)) >= given["gpus"] for one in found)
    least = given["least_nodes"] or given["nodes"]
    if enough < least:
        draft.refuse(f"it needs {least} nodes with {given['gpus']} GPUs each, and {enough} have them", "ask for less")


def programs() -> str:
    """Lines that write the programs of the training into the job's directory."""
    found = ["mkdir -p program"]
    for path in sorted(PROGRAMS.glob("*.py")):
        text = path.read_text(encoding="utf-8").rstrip("\n")
        found += [f"cat >program/{path.name} <<'{END}'", text, END]
    return "\n".join(found) + "\n"


def smoke(draft: Draft, params: Mapping[str, Any]) -> list[Row]:
    """One job for each type: it queries its GPUs, and its exit status is that of the query."""
    if draft.params["gpus"] < 1:
        draft.refuse(f"{draft.name('gpus')} is {draft.params['gpus']}", "give at least 1")
    kinds = [str(kind) for kind in draft.params["types"]] or sorted(types(params["nodes"]))
    if not kinds:
        draft.refuse("no node has GPUs", "see `sinfo -o '%N %G'`, and what `gpuops up --tags slurm` says of the hosts")
    for kind in kinds:
        fits(draft, kind, params["nodes"])
    devices = ",".join(map(str, range(draft.params["gpus"])))
    query = QUERY.read_text(encoding="utf-8").rstrip("\n")
    command = f"python3 -I - --copy-mib 16 --devices {devices} >query.json <<'{END}'\n{query}\n{END}\n{QUERIED}"
    return [
        {
            "name": f"smoke-{kind.lower()}" if kind else "smoke",
            "command": command,
            "gpu_type": kind,
            "again": True,
            "wait": "ended",
            "timeout": int(params["timeout"]),
        }
        for kind in kinds
    ]


def notebook(draft: Draft, params: Mapping[str, Any]) -> list[Row]:
    """A job that serves a notebook until its time is over."""
    program = str(draft.params["program"]).strip()
    draft.needs("program", "the command that serves the notebook")
    if params["user"] == "root":
        draft.refuse("slurm_apps_user is 'root'", "give the account of a person")
    fits(draft, draft.params["type"], params["nodes"])
    return [
        {
            "name": "notebook",
            "command": SOCKET + in_image(draft.params["image"], f"{AT_HOME}{program}\n"),
            "gpu_type": draft.params["type"],
            # One that has ended is begun anew.
            "again": True,
            "wait": "started",
            "timeout": int(params["timeout"]),
        }
    ]


def sweep(draft: Draft, params: Mapping[str, Any]) -> list[Row]:
    """An array with a task for each point of the grid."""
    given = draft.params
    draft.must("name", SWEEP_NAME, "lowercase letters, digits and -")
    draft.needs("command", "what is run for each point")
    parameters = parameters_of(draft)
    fits(draft, given["type"], params["nodes"])
    if draft.problems:
        return []
    points = [dict(zip(parameters, row, strict=True)) for row in itertools.product(*parameters.values())]
    if len(points) > submission.TASKS_AT_MOST:
        draft.refuse(
            f"{draft.name('parameters')} has {len(points)} combinations",
            f"divide it into sweeps of {submission.TASKS_AT_MOST} at most",
        )
    command = in_image(given["image"], given["command"])
    is_resumable = bool(boolean(given["resumable"]))
    if is_resumable:
        command = f'{programs()}export TRAINING="$PWD/program"\n{GO_ON.replace("COMMAND", command.rstrip())}'
    return [
        {
            "name": f"sweep-{given['name']}",
            "command": command,
            "resumable": is_resumable,
            "gpu_type": given["type"],
            "parallel": given["parallel"],
            "tasks": [{"name": label(point), "environment": {**given["env"], **point}} for point in points],
            "wait": "ended",
            "timeout": given["timeout"],
        }
    ]


def training(draft: Draft, params: Mapping[str, Any]) -> list[Row]:
    """A job on one node or several, with a process for each GPU, that continues at its last checkpoint."""
    given = draft.params
    draft.must("name", SWEEP_NAME, "lowercase letters, digits and -")
    draft.must("python", PYTHON, "the path of a Python")
    data = str(given["data"])
    if data != "digits" and not submission.DIRECTORY.fullmatch(data):
        draft.refuse(f"{draft.name('data')} is {data!r}", "give digits, or the path of a directory")
    check_counts(draft, COUNTS)
    fit_on(draft, given["type"], params["nodes"])
    if draft.problems:
        return []
    words = [given["python"], "program/train.py", *arguments_of(given)]
    # An end that nobody has seen is none.
    run = MEET + " ".join(shlex.quote(str(word)) for word in words) + HAS_ENDED
    return [
        {
            "name": f"training-{given['name']}",
            "command": programs() + GO_ON.replace("COMMAND", run),
            "gpu_type": given["type"],
            "nodes": given["nodes"],
            "least_nodes": given["least_nodes"],
            "processes": max(1, given["gpus"]),
            "resumable": True,
            "wait": "ended",
            "timeout": given["timeout"],
        }
    ]


def check_counts(draft: Draft, keys: Sequence[str]) -> None:
    """Refuses numbers of a training that are below 1, and a micro-batch that is larger than a batch."""
    given = draft.params
    for key in keys:
        if given[key] < 1:
            draft.refuse(f"{draft.name(key)} is {given[key]}", "give at least 1")
    if given["micro_batch"] > given["batch"]:
        cause = f"{draft.name('micro_batch')} is {given['micro_batch']}, and {draft.name('batch')} is {given['batch']}"
        draft.refuse(cause, "give at most as many")


def arguments_of(given: Mapping[str, Any]) -> list[str]:
    """The words for train.py."""
    options = {
        "data": given["data"],
        "epochs": given["epochs"],
        "batch": given["batch"],
        "micro-batch": given["micro_batch"],
        "rate": given["rate"],
        "seed": given["seed"],
        "every": given["checkpoint_steps"],
        "keep": given["checkpoints_kept"],
    }
    return [*(f"--{name}={value}" for name, value in options.items()), *given["arguments"]]


def label(point: Mapping[str, str]) -> str:
    """The name of a point and of its directory, such as BATCH=32,LR=0.1."""
    told = ",".join(f"{name}={value}" for name, value in sorted(point.items()))
    plain = re.sub(r"[^A-Za-z0-9._=,-]", "_", told)[:LABEL_AT_MOST].lstrip("_")
    if plain == told:
        return told
    return f"{plain}-{sha256(json.dumps(point, sort_keys=True).encode()).hexdigest()[:8]}"


KINDS = {"smoke": smoke, "notebook": notebook, "sweep": sweep, "training": training}
