# SPDX-License-Identifier: GPL-3.0-or-later
"""Driver, engine and the engine's access to the GPUs on a finished machine of the lab: the node stages against a list.

The list, peer_node.yml, has the tasks of DeepOps for the same work, rewritten, and names their sources. Both run with
ansible-playbook over SSH on the same machine, with the same settings (pipelining, one connection that stays open), in
turns, and neither changes anything. Ours compares all of its state on every run. CPU is the controller's.

A run over a fleet shows what one more host costs the controller. The fleet is the same machine under many names, so
Ansible's start and the building of its modules count once for all hosts, as on a site. All these hosts share one
machine, so only the CPU of the fleet is shown.

The effect of pipelining, which `ansible.cfg` and `gpuops init` set, is measured too. So is a playbook of one task that
does nothing on the host: no run of ansible-playbook costs less.

With pipelining a module execution is one command over SSH; copying a file takes several. Packets are what the machine
sent to hosts other than the controller.

It needs a finished machine `gpu1`: that of `make lab-node`, or of the lab that GPUOPS_LAB_ID names.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.harness import CPU, ROOT, WALL, Figure, Row, Sample, compare, paired
from tests.bench.lab_run import LAB, MACHINE, NOTHING, lab, machine, play

PEER = Path(__file__).with_name("peer_node.yml")
OURS = ROOT / "tests" / "site" / "node_stages.yml"
WALL_GOAL: dict[str, float | None] = {"wall_s": 10.0}
CPU_GOAL: dict[str, float | None] = {"cpu_s": 10.0}
COMMANDS_GOAL = 8.0
FLEET = 10


def fleet(hostvars: Mapping[str, Any], directory: Path) -> Path:
    """An inventory in which the machine has many names."""
    names = [f"{MACHINE}-{number}" for number in range(FLEET)]
    # A connection each, as to machines of their own.
    path = hostvars["ansible_control_path"]
    hosts = {name: {**hostvars, "ansible_control_path": path.replace(MACHINE, name)} for name in names}
    groups = {"gpu_nodes": {"hosts": hosts}}
    (directory / "hosts.json").write_text(json.dumps({"all": {"children": {"gpu_cluster": {"children": groups}}}}))
    (directory / "group_vars").symlink_to(ROOT / LAB / "group_vars")
    return directory / "hosts.json"


def counted(playbook: Path) -> tuple[float, float]:
    """(commands sent over SSH, packets that the machine sent to others) of one run."""
    lab("traffic", MACHINE, "--reset")
    told = play(playbook, "-vvv").outcome
    packets = sum(row["packets"] for row in json.loads(lab("traffic", MACHINE)).values())
    return float(len(re.findall(r"^<[^>]+> SSH: EXEC ", told, re.MULTILINE))), float(packets)


def unchanged(pairs: Sequence[tuple[Sample, Sample]]) -> Sequence[tuple[Sample, Sample]]:
    for both in pairs:
        if {word for sample in both for word in sample.outcome.split()} != {"0"}:
            raise SystemExit(f"{MACHINE} is not finished: a run has changed something. Run `make lab-node`")
    return pairs


def one_host(quick: bool) -> list[Row]:
    def theirs() -> Sample:
        return play(PEER)

    def ours() -> Sample:
        return play(OURS)

    # What the list wants and ours does not have is made first.
    theirs()
    control = unchanged(paired(ours, ours, 1 if quick else 3, [ours]))
    pairs = unchanged(paired(theirs, ours, 1 if quick else 7))
    least = [play(NOTHING) for _number in range(1 if quick else 5)]
    start = Sample.median(least)
    both = (WALL, CPU)
    rows: list[Row] = [
        *compare("a finished machine", pairs, {} if quick else WALL_GOAL, control, quantities=both),
        *compare("a finished machine, beyond a playbook of nothing", pairs, {}, control, start, quantities=both),
    ]
    plain = unchanged(paired(lambda: play(OURS, pipelining=False), ours, 1 if quick else 5))
    rows += compare("the node stages, without pipelining against with it", plain, {}, control, quantities=both)
    for quantity, seconds in (
        ("wall", [sample.wall_s for sample in least]),
        ("CPU", [sample.cpu_s for sample in least]),
    ):
        rows.append(Figure.of("a playbook of nothing", quantity, "s", seconds))
    return rows


def many_names(quick: bool, hostvars: Mapping[str, Any]) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="bench-node-") as directory:
        inventory = fleet(hostvars, Path(directory))

        def theirs() -> Sample:
            return play(PEER, inventory=inventory, hosts=FLEET)

        def ours() -> Sample:
            return play(OURS, inventory=inventory, hosts=FLEET)

        control = unchanged(paired(ours, ours, 1 if quick else 3, [ours]))
        pairs = unchanged(paired(theirs, ours, 1 if quick else 7))
    what = f"{FLEET} finished hosts, for each of them"
    return [*compare(what, pairs, {} if quick else CPU_GOAL, control, quantities=(CPU,))]


def run(quick: bool) -> list[Row]:
    hostvars = machine()
    rows = [*one_host(quick), *many_names(quick, hostvars)]
    for name, playbook, most in (("the list", PEER, (None, None)), ("the node stages", OURS, (COMMANDS_GOAL, 0.0))):
        commands, packets = counted(playbook)
        rows.append(Figure(name, "commands over SSH", "", commands, commands, 1, most[0]))
        rows.append(Figure(name, "packets sent to others", "", packets, packets, 1, most[1]))
    return rows
