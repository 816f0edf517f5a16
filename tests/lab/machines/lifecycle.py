# SPDX-License-Identifier: GPL-3.0-or-later
"""The life of a lab: up, down, reset, and cleaning up after a crash."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import changes as layers
from . import disks, images, mirrors, needs, network
from .aptcache import AptCache
from .machine import KERNEL_LOG, SCENARIO_IN_MACHINE, SCENARIOS, SIMULATORS, Machine, names_left
from .state import CACHE_ROOT, STATE_ROOT, Lab, MachineSpec, all_labs
from .system import LabError, locked, mounts_below, run, say, unmount_below, write_atomically
from .vm import NAMES, Vm


@contextlib.contextmanager
def held(lab: Lab) -> Iterator[None]:
    """Nobody else changes this lab meanwhile; what they did before is seen."""
    with locked(lab.lock, f"another command that works on lab {lab.id}"):
        lab.load()
        yield


def in_parallel(work: Callable[[Machine], object], machines: Sequence[Machine]) -> None:
    """Do something to all machines at once; report every failure, not only the first."""
    if not machines:
        return
    with ThreadPoolExecutor(max_workers=len(machines)) as pool:
        futures = [pool.submit(work, machine) for machine in machines]
    problems = [str(error) for future in futures if (error := future.exception()) is not None]
    if problems:
        first = next(error for future in futures if (error := future.exception()) is not None)
        raise LabError("\n".join(problems)) from first


def up(lab: Lab, wanted: Sequence[MachineSpec]) -> None:
    """Bring the lab and the wanted machines up; what is up already stays as it is."""
    needs.ensure()
    with held(lab):
        needs.raise_limits()
        found = mirrors.find()
        build_simulators()
        network.reserve(lab)
        _start_cache(lab, found)
        specs = [lab.add(spec) for spec in wanted]
        _choose_images(specs, found)
        _make_keys(lab)
        lab.save()
        network.ensure(lab)
        machines = [Machine(lab, spec) for spec in specs]
        waiting = [machine for machine in machines if not (machine.running() and machine.baseline.exists())]
        for machine in waiting:
            machine.prepare(found)
        _write_known_hosts(lab)
        in_parallel(_boot, waiting)
        images.prune({spec.image for other in all_labs() for spec in other.machines.values()})
        if not waiting:
            say(f"lab {lab.id}: {', '.join(machine.spec.name for machine in machines)} up already")


def _start_cache(lab: Lab, found: mirrors.Mirrors) -> None:
    """The apt cache, and its port in machines that were made when it had another one."""
    before, lab.apt_port = lab.apt_port, AptCache().acquire(f"lab-{lab.id}", found)
    if before not in (0, lab.apt_port):
        for machine in machines_of(lab):
            network.remove_machine(lab, machine.spec)
            machine.mount()
            machine.write_apt_settings(found)


def _boot(machine: Machine) -> None:
    fresh = not machine.baseline.exists()
    if fresh and not machine.running():
        # An earlier first boot may have been cut: only a whole one tells what booting alone changes.
        machine.discard_changes()
    if not machine.running():
        machine.mount()
        disks.attach(machine)
    machine.start()
    machine.wait(fresh)


def _choose_images(specs: Sequence[MachineSpec], found: mirrors.Mirrors) -> None:
    """A machine keeps the image that it was made from; a new one gets the newest."""
    lacking = [spec for spec in specs if not spec.image or not images.root_of(spec.image).exists()]
    for spec in lacking:
        if spec.image:
            raise LabError(f"the image of {spec.name} ({spec.image}) is gone; 'tools/lab down' removes the machine")
    suites = sorted({spec.suite for spec in lacking})
    with ThreadPoolExecutor(max_workers=2) as pool:
        built = dict(zip(suites, pool.map(lambda suite: images.ensure(suite, found), suites), strict=True))
    for spec in lacking:
        spec.image = built[spec.suite]


def _make_keys(lab: Lab) -> None:
    lab.control_sockets.mkdir(mode=0o700, exist_ok=True)
    if not lab.private_key.with_suffix(".pub").exists():
        shutil.rmtree(lab.private_key.parent, ignore_errors=True)
        lab.private_key.parent.mkdir(mode=0o700)
        comment = f"baremetal-gpu-lab-{lab.id}"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", lab.private_key)


def _write_known_hosts(lab: Lab) -> None:
    keys = [machine.host_key() for machine in machines_of(lab) if (machine.directory / "seeded").exists()]
    write_atomically(lab.known_hosts, "".join(keys))


def build_simulators() -> None:
    """Compile the stand-ins for what this host does not have, and make the scenarios."""
    if (SIMULATORS / "install").exists():
        with locked(CACHE_ROOT / "locks" / "simulators.lock", "another build of the simulators"):
            run("make", "--silent", "-C", SIMULATORS)


def machines_of(lab: Lab, names: Sequence[str] = ()) -> list[Machine]:
    """The named machines, or all."""
    return [Machine(lab, lab.get(name)) for name in names or lab.machines]


def down(lab: Lab, names: Sequence[str] = ()) -> None:
    """Remove the named machines; without names, the whole lab, whatever state it is in."""
    needs.refuse_unless_root()
    with held(lab):
        if names:
            machines = machines_of(lab, names)
            in_parallel(Machine.remove, machines)
            for machine in machines:
                network.remove_machine(lab, machine.spec)
                del lab.machines[machine.spec.name]
            lab.save()
            _write_known_hosts(lab)
        if not names or not lab.machines:
            _remove_all(lab)
    say(f"lab {lab.id}: {'removed ' + ', '.join(names) if names else 'nothing left of it'}")


def clean(lab: Lab) -> None:
    """Like down, and without trust in what the lab wrote down about itself."""
    needs.refuse_unless_root()
    with locked(lab.lock, f"another command that works on lab {lab.id}"):
        with contextlib.suppress(LabError):
            lab.load()
        _remove_all(lab)
    say(f"lab {lab.id}: nothing left of it")


def _remove_all(lab: Lab) -> None:
    for name in NAMES:
        Vm(lab.id, name).down()
    directory = lab.directory / "machines"
    names = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    names |= lab.machines.keys() | names_left(lab.tag)
    machines = [Machine(lab, lab.machines.get(name) or MachineSpec(name, "", "")) for name in sorted(names)]
    in_parallel(Machine.remove, machines)
    network.remove(lab)
    unmount_below(lab.directory)
    shutil.rmtree(lab.directory, ignore_errors=True)
    if lab.directory.exists():
        raise LabError(f"{lab.directory} cannot be removed (mounted there: {mounts_below(lab.directory)})")
    with contextlib.suppress(OSError):
        STATE_ROOT.rmdir()
    AptCache().release(f"lab-{lab.id}")


def reset(lab: Lab, names: Sequence[str], keep_disks: bool = False) -> None:
    """Make machines bare again. Disks that are kept are as in a new machine that has got the old one's."""
    needs.refuse_unless_root()
    with held(lab):
        found = mirrors.find()
        machines = machines_of(lab, names)
        if keep_disks:
            in_parallel(Machine.take_disks_out, machines)
        in_parallel(Machine.remove, machines)
        build_simulators()
        for machine in machines:
            machine.prepare(found)
            if keep_disks:
                machine.put_disks_in()
            else:
                machine.spec.disks.clear()
        lab.save()
        _write_known_hosts(lab)
        network.ensure(lab)
        in_parallel(_boot, machines)


def power_cut(lab: Lab, names: Sequence[str]) -> None:
    """Kill machines without warning; `up` boots them again with what they had written."""
    needs.refuse_unless_root()
    with held(lab):
        in_parallel(Machine.kill, machines_of(lab, names))


def set_egress(lab: Lab, names: Sequence[str], wanted: str) -> None:
    """Say what machines may reach."""
    needs.refuse_unless_root()
    with held(lab):
        for machine in machines_of(lab, names):
            network.set_egress(lab, machine.spec, wanted)
        lab.save()


def add_disks(lab: Lab, name: str, wanted: list[str], gigabytes: int) -> None:
    """Give a running machine disks."""
    needs.refuse_unless_root()
    with held(lab):
        disks.add(Machine(lab, lab.get(name)), wanted, gigabytes)
        lab.save()


def scenario(lab: Lab, name: str, wanted: str) -> None:
    """Give a machine other simulated devices while it runs; the simulators read the file again."""
    needs.refuse_unless_root()
    machine = Machine(lab, lab.get(name))
    build_simulators()
    source = next(
        (path for path in (Path(wanted), SCENARIOS / wanted, SCENARIOS / f"{wanted}.json") if path.is_file()), None
    )
    if source is None:
        raise LabError(f"no scenario file {wanted!r}, neither as a path nor in {SCENARIOS}")
    text = source.read_text(encoding="utf-8")
    try:
        json.loads(text)
    except ValueError as error:
        raise LabError(f"{source} is not JSON: {error}") from error
    target = machine.root / SCENARIO_IN_MACHINE
    if not target.parent.is_dir():
        raise LabError(f"{name} has no simulated devices ({target.parent} is missing)")
    write_atomically(target, text)


def xid(lab: Lab, name: str, position: int, code: int) -> None:
    """Write what the driver writes of a fault of a GPU into the pipe that is the kernel log of a machine."""
    needs.refuse_unless_root()
    machine = Machine(lab, lab.get(name))
    devices = json.loads((machine.root / SCENARIO_IN_MACHINE).read_text(encoding="utf-8"))["devices"]
    if not 0 <= position < len(devices):
        raise LabError(f"{name} has {len(devices)} GPUs; --gpu counts from 0")
    address = devices[position]["pci"]["address"].rpartition(".")[0]
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    line = f"NVRM: Xid (PCI:{address}): {code}, pid=4242, name=python3, GPU has fallen off the bus."
    record = shlex.quote(f"4,{now},{now},-;{line}\n")
    machine.ssh(f"printf %s {record} | sudo tee {KERNEL_LOG} >/dev/null")
    say(f"{name}: {line}")


def changes(lab: Lab, name: str) -> list[layers.Change]:
    """What differs from the bare machine."""
    needs.refuse_unless_root()
    machine = Machine(lab, lab.get(name))
    baseline = json.loads(machine.baseline.read_text(encoding="utf-8")) if machine.baseline.exists() else {}
    return layers.changes(machine.upper, [machine.seed, images.root_of(machine.spec.image)], baseline)
