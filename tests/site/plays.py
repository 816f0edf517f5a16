# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the project's playbooks on the lab as an operator does, and read what happened from the events."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ansible_runner

from tests.molecule_scenario import Scenario

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = ROOT / "inventories" / "lab"
# A machine of the lab has no log of a kernel of its own; this pipe is it.
KERNEL_LOG = "/usr/lib/baremetal-gpu-simulators/run/kernel-log"
# Far more than the longest run takes: with an empty cache of the compiler, on two slow cores that three test workers
# share, the kernel modules of two distributions alone take 25 minutes. One that is not at its end after this hangs.
HANGS_AFTER_S = 2700


@dataclass
class Play:
    """What one ansible-playbook run did.

    ``drifts`` maps (host, stage) to the plan lines that the first inspection of that stage announced.
    ``executions`` counts the remote commands per host: with pipelining each module execution is one.
    """

    rc: int
    stdout: str
    stats: dict[str, dict[str, int]]
    failures: dict[str, list[str]] = field(default_factory=dict)
    changed_tasks: dict[str, list[str]] = field(default_factory=dict)
    drifts: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    executions: Counter[str] = field(default_factory=Counter)

    def changed(self, host: str) -> int:
        return self.stats.get("changed", {}).get(host, 0)

    def tail(self, characters: int = 6000) -> str:
        """The end of the output, for the message of a failing assertion."""
        return self.stdout[-characters:]


def run_playbook(
    playbook: str | Path,
    *,
    limit: str | None = None,
    extra_vars: dict[str, Any] | None = None,
    options: str = "",
    count_executions: bool = False,
) -> Play:
    """Run a playbook (a name under playbooks/, or a path) on the lab.

    :param options: further ansible-playbook options, as on a command line, such as ``--check --diff``.
    :param count_executions: run with ``-vvv`` and count the commands sent to each host.
    """
    path = playbook if isinstance(playbook, Path) else ROOT / "playbooks" / playbook
    with tempfile.TemporaryDirectory(prefix="baremetal-gpu-play-") as private:
        extra = Path(private) / "extra.json"
        extra.write_text(json.dumps(extra_vars or {}))
        cmdline = " ".join(part for part in (options, f"-e @{extra}") if part)
        runner = ansible_runner.run(
            private_data_dir=private,
            playbook=str(path),
            inventory=str(INVENTORY),
            limit=limit,
            cmdline=cmdline,
            verbosity=3 if count_executions else 0,
            timeout=HANGS_AFTER_S,
            quiet=True,
            suppress_env_files=True,
            envvars={
                "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
                "ANSIBLE_NOCOLOR": "1",
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            },
        )
        play = _read(runner)
        # A test that wants a run to fail would take this for one.
        assert runner.status != "timeout", f"{path.name} hung and was ended after {HANGS_AFTER_S} s:\n{play.tail()}"
        return play


def _read(runner: Any) -> Play:
    return read_events(Play(rc=runner.rc, stdout=runner.stdout.read(), stats=runner.stats or {}), runner.events)


def read_events(play: Play, events: Iterable[dict[str, Any]]) -> Play:
    """Add to a play what the events of its run say."""
    for event in events:
        data = event.get("event_data", {})
        host = data.get("host")
        result = data.get("res") or {}
        if event["event"] in ("runner_on_failed", "runner_on_unreachable") and not data.get("ignore_errors"):
            play.failures.setdefault(host, []).append(_message(result))
        if event["event"] == "runner_on_ok":
            if result.get("changed"):
                play.changed_tasks.setdefault(host, []).append(data.get("task", ""))
            stage = re.search(r"Compare the host with the desired document of (\w+)", data.get("task", ""))
            if stage and "plan" in result:
                play.drifts.setdefault((host, stage[1]), result["plan"])
    for host in re.findall(r"^<([^>]+)> SSH: EXEC ", play.stdout, flags=re.MULTILINE):
        play.executions[host] += 1
    return play


def run_scenario(scenario: Scenario, command: str, directory: Path) -> Play:
    """What the last playbook of `molecule COMMAND` did; molecule keeps its state in the directory.

    Of its first playbooks, which make and prepare the machines, only failures are seen.
    """
    recorded = directory / f"{command}.jsonl"
    status, output = scenario.run(
        command,
        MOLECULE_EPHEMERAL_DIRECTORY=str(directory),
        ANSIBLE_CALLBACK_PLUGINS=str(ROOT / "tests" / "site" / "callback"),
        ANSIBLE_CALLBACKS_ENABLED="record",
        PLAY_EVENTS=str(recorded),
    )
    events = [json.loads(line) for line in recorded.read_text().splitlines()] if recorded.exists() else []
    ends = [place for place, event in enumerate(events) if event["event"] == "playbook_on_stats"]
    failed = [event for event in events if event["event"] in ("runner_on_failed", "runner_on_unreachable")]
    begin = ends[-2] + 1 if len(ends) > 1 else 0
    stats = events[ends[-1]]["event_data"] if ends else {}
    return read_events(Play(rc=status, stdout=output, stats=stats), events[begin:] if ends else failed)


def _message(result: dict[str, Any]) -> str:
    message = result.get("msg", "")
    return message if isinstance(message, str) else json.dumps(message)


def lab(*arguments: str, check: bool = True, timeout: int = 600, given: str | None = None) -> str:
    """Output of ``tools/lab ARGUMENTS``, with what is `given` to its standard input."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab.machines", *arguments],
        cwd=ROOT,
        input=given,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check and done.returncode != 0:
        raise AssertionError(
            f"tools/lab {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def run_gpuops(inventory: Path, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """A command of gpuops on a site, which has to end with this status."""
    done = subprocess.run(
        [sys.executable, "-m", "gpuops", *words, "-i", str(inventory)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def ssh(machine: str, command: str, check: bool = True, given: str | None = None) -> str:
    """Output of a shell command in a machine of the lab, with what is `given` to its standard input."""
    return lab("ssh", machine, "--", command, check=check, given=given)


def kernel_says(machine: str, line: str) -> None:
    """Write a line into a machine's kernel log."""
    ssh(
        machine,
        f"now=$(awk '{{printf \"%d\", $1 * 1000000}}' /proc/uptime); "
        f"printf '4,%s,%s,-;%s\\n' \"$now\" \"$now\" '{line}' | sudo tee {KERNEL_LOG} >/dev/null",
    )


def xid(machine: str, address: str) -> float:
    """A fault of the GPU at this address, and when its line was in the kernel's log."""
    line = f"NVRM: Xid (PCI:{address}): 79, pid=4242, name=python3, GPU has fallen off the bus."
    told = ssh(
        machine,
        "now=$(awk '{printf \"%d\", $1 * 1000000}' /proc/uptime); date +%s.%N; "
        f"printf '4,%s,%s,-;%s\\n' \"$now\" \"$now\" '{line}' | sudo tee {KERNEL_LOG} >/dev/null",
    )
    return float(told.split()[0])


def until(wanted: Callable[[], Any], seconds: float, told: Callable[[], Any]) -> Any:
    """Wait for something that must come; the time is no measure, only the end of the patience.

    :param told: asked for what there is instead when it does not come.
    """
    end = time.monotonic() + seconds
    while not (found := wanted()):
        assert time.monotonic() < end, f"did not come about in {seconds} s: {told()}"
        time.sleep(0.5)
    return found


def services(machine: str, run: Callable[[str, str], str] = ssh) -> dict[str, str]:
    """The invocation of every running service, which a restart makes another and a reload does not, but of the ones
    that come and go with a login. `run` gives what a command prints on a machine."""
    listing = run(machine, "systemctl show --type=service --state=running '*' -p Id,InvocationID")
    found = {}
    for block in listing.strip().split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines())
        if not values["Id"].startswith(("user@", "ssh", "systemd-", "session-")):
            found[values["Id"]] = values["InvocationID"]
    return found


def run_and_cut(words: Sequence[str | Path], task: int, seconds: float) -> str | None:
    """Run ansible-playbook, and kill it `seconds` after its `task`-th task began. The value is the name of that task;
    None if the run ended before."""
    process = subprocess.Popen(
        [Path(sys.executable).with_name("ansible-playbook"), *words],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    begun = 0
    for line in process.stdout:
        begun += line.startswith("TASK [")
        if begun == task:
            time.sleep(seconds)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return re.sub(r"\]? \**$", "", line.removeprefix("TASK [").strip())
    process.wait()
    return None
