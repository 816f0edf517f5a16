# SPDX-License-Identifier: GPL-3.0-or-later
"""Making a snapshot: from the hosts themselves, or from what Ansible's fact cache knows of them."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils import untrusted_document
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import file as fleet_file
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import hosts as fleet
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from gpuops.run import events
from gpuops.run.environment import as_if_called_here
from gpuops.site import Site, redactor

_ABOUT_FACTS = re.compile(r"\[WARNING\]: \S*gpus\.ya?ml: the (?:snapshot|facts) ")
SKIP_FACTS = "BAREMETAL_GPU_INVENTORY_SKIP_FACTS"
# Of the file, in the inventory's directory.
NAME = ".gpus.jsonl"
PROBLEM_AT_MOST = 2000
# Of one host, as JSON.
FACTS_AT_MOST = 2_000_000


class InventoryError(Exception):
    """No snapshot can be made; the message says what to do."""


@dataclass
class Outcome:
    """What became of the hosts that were looked at: what the file is to have of them, or what is wrong."""

    time: float
    found: dict[str, fleet_file.Row] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def take(self, host: str, facts: Any) -> None:
        """Note the facts of a host, or why they cannot be used."""
        try:
            # As text, they take a tenth of the memory.
            row = fleet_file.row_of(host, self.time, facts)
            if len(row.line) > FACTS_AT_MOST:
                raise fleet.BrokenFacts(f"they have {len(row.line)} bytes, and those of 16 GPUs have some kilobytes")
            self.found[host] = row
        except fleet.BrokenFacts as error:
            self.problems[host] = f"its facts cannot be used: {untrusted_text.one_line(error, PROBLEM_AT_MOST)}"


# What looks at hosts: takes the inventory, the pattern of --limit and the hosts that match it.
Source = Callable[[Path, str, list[str], Outcome], None]


def take_event(outcome: Outcome, event: events.Event) -> None:
    """Note the facts of a host, or why there are none."""
    if not isinstance(event, events.HostResult):
        return
    facts = untrusted_document.mapping(event.result.get("ansible_facts"))
    if event.succeeded and "gpu" in facts:
        outcome.take(event.host, facts["gpu"])
    elif event.outcome in (progress.FAILED, progress.UNREACHABLE):
        message = untrusted_document.text(event.result.get("msg"), PROBLEM_AT_MOST)
        outcome.problems[event.host] = (message or event.outcome).strip()


def from_hosts(inventory: Path, limit: str, names: list[str], outcome: Outcome) -> None:
    """Run gpu_facts on the hosts. A fact cache that Ansible has is filled by the way."""
    import ansible_runner

    output: list[str] = []

    def note(event: events.Event) -> None:
        take_event(outcome, event)
        if not (outcome.found or outcome.problems):
            output.append(event.output)

    take = events.Entry(note, redactor(Site(inventory.resolve())).document)

    def handle(event: dict[str, Any]) -> bool:
        take(event)
        # The facts of a fleet are not kept on the disk a second time.
        return False

    with tempfile.TemporaryDirectory(prefix="gpuops-inventory-") as private:
        runner = ansible_runner.run(
            private_data_dir=private,
            inventory=str(inventory.resolve()),
            host_pattern=limit,
            module="baremetal.gpu.gpu_facts",
            event_handler=handle,
            quiet=True,
            suppress_env_files=True,
            # Not ansible-runner's own, but the one that ansible.cfg names.
            fact_cache_type="",
            envvars=as_if_called_here(),
        )
        if not (outcome.found or outcome.problems):
            last = "\n".join(output)[-4000:]
            raise InventoryError(f"ansible ended with {runner.rc} and looked at no host:\n{last}")


def from_cache(inventory: Path, limit: str, names: list[str], outcome: Outcome) -> None:
    """Read the fact cache that ansible.cfg names."""
    output = _output(
        inventory, [sys.executable, "-m", "gpuops.inventory.cached"], "".join(f"{name}\n" for name in names)
    )
    for row in output.splitlines():
        host, facts, problem = untrusted_document.parse(row)
        if problem:
            outcome.problems[host] = problem
        else:
            outcome.take(host, facts)
    for host in names:
        if host not in outcome.found:
            outcome.problems.setdefault(host, "the fact cache has no facts of its GPUs")


def _output(inventory: Path, command: list[str], given: str = "") -> str:
    """What _told has; the warnings are passed on."""
    output, warnings = _told(inventory, command, given)
    sys.stderr.write(warnings)
    return output


def _told(inventory: Path, command: list[str], given: str = "") -> tuple[str, str]:
    """Output and warnings of a command about an inventory, these without the inventory's secrets. Raises InventoryError
    with its error output if it fails."""
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, env={**os.environ, **as_if_called_here()}
    )
    if done.stderr or done.returncode:
        redact = redactor(Site(inventory.resolve()))
        problem = redact(untrusted_text.several_lines(done.stderr))
        if done.returncode:
            raise InventoryError((problem.strip() or redact(untrusted_text.several_lines(done.stdout)).strip())[-4000:])
        return done.stdout, problem
    return done.stdout, ""


def content_of(inventory: Path) -> dict[str, Any]:
    """Groups, and the variables of hosts as they are written, as `ansible-inventory --list` says them."""
    command = ["ansible-inventory", "-i", str(inventory), "--list"]
    return untrusted_document.mapping(untrusted_document.parse(_output(inventory, command)))


def hosts_of(inventory: Path, limit: str) -> tuple[list[str], list[str]]:
    """(every host of the inventory, those of the pattern).

    Warnings are passed on once. Those about facts of GPUs only where no host is chosen: most patterns ask for none.
    """
    warnings: dict[str, None] = {}

    def listed(pattern: str) -> list[str]:
        output, told = _told(inventory, ["ansible", pattern, "-i", str(inventory), "--list-hosts"])
        warnings.update(dict.fromkeys(line for line in told.splitlines() if line.strip()))
        # The first line is the number of hosts.
        return [line.strip() for line in output.splitlines()[1:]]

    everyone = listed("all")
    chosen = everyone if limit == "all" else listed(limit)
    for line in warnings:
        if not chosen or not _ABOUT_FACTS.match(line):
            sys.stderr.write(f"{line}\n")
    if not chosen:
        raise InventoryError(f"{inventory}: no host matches {limit!r}, so there is nothing to look at")
    return everyone, chosen


def _is_usable(row: fleet_file.Row) -> bool:
    try:
        row.facts()
    except fleet.BrokenFacts:
        return False
    return not row.problem


def earlier(path: Path) -> tuple[dict[str, fleet_file.Row], str]:
    """The usable rows of the snapshot that is there, and why there are none if it cannot be read."""
    try:
        return {row.host: row for row in fleet_file.read(str(path), facts=True) if _is_usable(row)}, ""
    except FileNotFoundError:
        return {}, ""
    except fleet_file.SnapshotError as error:
        return {}, str(error)


@dataclass
class Written:
    """What a run did: hosts by what became of them, and what was wrong with an earlier file."""

    looked_at: list[str]
    problems: dict[str, str]
    kept: list[str]
    groups: Counter[str]
    earlier_problem: str


@contextlib.contextmanager
def _without_facts(active: bool) -> Iterator[None]:
    """The inventory plugin reads no facts meanwhile: the file that it would fail over is about to be replaced."""
    before = os.environ.get(SKIP_FACTS)
    if active:
        os.environ[SKIP_FACTS] = "true"
    try:
        yield
    finally:
        if active:
            os.environ.pop(SKIP_FACTS)
            if before is not None:
                os.environ[SKIP_FACTS] = before


def make(inventory: Path, output: Path, limit: str, source: Source) -> Written:
    """Look at the hosts of the pattern and write the snapshot.

    A host that gave no facts this time, or was left out by the pattern, keeps what the file had of it. One that the
    inventory no longer has is dropped. Raises InventoryError, and then leaves the file as it was.
    """
    if not os.access(output.absolute().parent, os.W_OK):
        raise InventoryError(f"{output} cannot be written: {output.absolute().parent} is not a directory to write to")
    known, earlier_problem = earlier(output)
    outcome = Outcome(time.time())
    with _without_facts(bool(earlier_problem)):
        everyone, chosen = hosts_of(inventory, limit)
        source(inventory, limit, chosen, outcome)
    if not outcome.found:
        reasons = "; ".join(f"{host}: {text}" for host, text in list(outcome.problems.items())[:5])
        raise InventoryError(f"none of the {len(chosen)} hosts gave facts, so {output} is left as it was: {reasons}")

    rows = known | outcome.found
    rows = {host: rows[host] for host in everyone if host in rows}
    try:
        fleet_file.write(str(output), outcome.time, rows.values())
    except OSError as error:
        raise InventoryError(f"{output} cannot be written: {error.strerror}") from error
    counts = Counter(group for row in rows.values() for group in row.groups)
    # A host whose facts do not say whether it has GPUs is counted already.
    counts[fleet.UNKNOWN] += len(everyone) - len(rows)
    kept = [host for host in rows if host not in outcome.found]
    return Written(list(outcome.found), outcome.problems, kept, +counts, earlier_problem)
