# SPDX-License-Identifier: GPL-3.0-or-later
"""What a lab is called, where it keeps its files, and which machines it has."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .system import LabError, write_atomically

STATE_ROOT = Path("/var/lib/baremetal-gpu-lab")
CACHE_ROOT = Path("/var/cache/baremetal-gpu-lab")
CHECKOUT = Path(__file__).resolve().parents[3]

SUITES = ("trixie", "bookworm")
FIRST_HOST = 10
USER = "admin"
DISKS_IN_MACHINE = "/etc/tmpfiles.d/lab-disks.conf"


@dataclass
class MachineSpec:
    """What was asked for, and what the lab decided on: the address, the network filter and the disks."""

    name: str
    suite: str
    scenario: str
    groups: list[str] = field(default_factory=list)
    address: str = ""
    image: str = ""
    egress: str = "open"
    disks: list[str] = field(default_factory=list)
    # Whether it sees the cgroups of version 1 alone, which a real Mesos agent needs on a host that has both.
    cgroup_v1: bool = False


CGROUP_V1 = "cgroup-v1"
STANDARD_MACHINES = (
    MachineSpec("gpu1", "trixie", "a100-sxm4-40gb-x2", ["gpu_nodes"]),
    MachineSpec("gpu2", "bookworm", "k20c-x1", ["gpu_nodes"]),
    MachineSpec("cpu1", "trixie", "no-gpu", ["cpu_nodes"]),
)


def lab_id() -> str:
    """The lab of this checkout, or the one that GPUOPS_LAB_ID names.

    GPUOPS_LAB_SUFFIX names a further lab of this checkout; each Molecule scenario has one.
    """
    checkout = hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:8]
    chosen = os.environ.get("GPUOPS_LAB_ID", "")
    suffix = os.environ.get("GPUOPS_LAB_SUFFIX", "")
    identifier = chosen or (f"{checkout}-{suffix}" if suffix else checkout)
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", identifier):
        source = f"GPUOPS_LAB_ID={chosen!r}" if chosen else f"GPUOPS_LAB_SUFFIX={suffix!r}"
        raise LabError(f"{source}: use 1 to 31 lower-case letters, digits and hyphens for the lab's name")
    return identifier


class Lab:
    """One lab: names derived from its id, and its machines as written down in lab.json."""

    def __init__(self, identifier: str | None = None, load: bool = True) -> None:
        self.id = identifier or lab_id()
        self.tag = hashlib.sha256(self.id.encode()).hexdigest()[:8]
        self.directory = STATE_ROOT / self.id
        self.file = self.directory / "lab.json"
        # Interface names have at most 15 characters, iptables chains 28.
        self.bridge = f"bgl{self.tag}"
        self.chain = f"BGL-{self.tag}"
        self.comment = f"baremetal-gpu-lab:{self.id}"
        self.lock = CACHE_ROOT / "locks" / f"lab-{self.id}.lock"
        self.subnet = ""
        self.apt_port = 0
        self.machines: dict[str, MachineSpec] = {}
        if load:
            self.load()

    def load(self) -> None:
        """Read lab.json again; a lab that was never made has no subnet and no machines."""
        self.subnet, self.apt_port, self.machines = "", 0, {}
        if not self.file.exists():
            return
        try:
            data = json.loads(self.file.read_text(encoding="utf-8"))
            self.subnet = data["subnet"]
            self.apt_port = data["apt_port"]
            self.machines = {entry["name"]: MachineSpec(**entry) for entry in data["machines"]}
        except (ValueError, KeyError, TypeError) as error:
            raise LabError(f"{self.file} cannot be read ({error}); 'tools/lab clean' removes this lab") from error

    def save(self) -> None:
        """Write lab.json."""
        data = {
            "id": self.id,
            "checkout": str(CHECKOUT),
            "subnet": self.subnet,
            "apt_port": self.apt_port,
            "machines": [asdict(spec) for spec in self.machines.values()],
        }
        write_atomically(self.file, json.dumps(data, indent=2) + "\n")

    @property
    def network(self) -> ipaddress.IPv4Network:
        """The lab's subnet."""
        return ipaddress.IPv4Network(self.subnet)

    @property
    def gateway(self) -> str:
        """The lab host's address on the bridge."""
        return str(self.network[1])

    @property
    def apt_proxy(self) -> str:
        """The setting of apt by which packages come through the host's cache."""
        return f'Acquire::http::Proxy "http://{self.gateway}:{self.apt_port}";'

    @property
    def private_key(self) -> Path:
        """The SSH key of this lab, made with it and removed with it."""
        return self.directory / "ssh" / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """The host keys of this lab's machines."""
        return self.directory / "ssh" / "known_hosts"

    @property
    def control_sockets(self) -> Path:
        """SSH connections that are kept open; the lab's own, so that it can close them with a machine."""
        return self.directory / "cp"

    def add(self, wanted: MachineSpec) -> MachineSpec:
        """Take a machine in, with the next free address; one that is there already stays as it is."""
        known = self.machines.get(wanted.name)
        if known is not None:
            if (known.suite, known.scenario) != (wanted.suite, wanted.scenario):
                raise LabError(
                    f"{wanted.name} exists as {known.suite} with scenario {known.scenario}; "
                    f"'tools/lab down --machine {wanted.name}' removes it first"
                )
            return known
        used = {spec.address for spec in self.machines.values()}
        wanted.address = next(
            str(address) for address in list(self.network.hosts())[FIRST_HOST - 1 :] if str(address) not in used
        )
        self.machines[wanted.name] = wanted
        return wanted

    def get(self, name: str) -> MachineSpec:
        """A machine by name, or an error that lists the ones there are."""
        if name not in self.machines:
            there = ", ".join(self.machines) or "none; 'tools/lab up' makes them"
            raise LabError(f"lab {self.id} has no machine {name!r} (machines: {there})")
        return self.machines[name]


def parse_machine(text: str) -> MachineSpec:
    """NAME of a standard machine, or NAME:SUITE:SCENARIO; with :cgroup-v1 behind it one with cgroups of version 1."""
    name, _, rest = text.partition(":")
    standard = {spec.name: spec for spec in STANDARD_MACHINES}
    if not rest:
        if name not in standard:
            raise LabError(
                f"machine {name!r} is not one of {', '.join(standard)}; write NAME:SUITE:SCENARIO for another one"
            )
        return MachineSpec(**asdict(standard[name]))
    suite, _, rest = rest.partition(":")
    scenario, colon, more = rest.partition(":")
    if colon and more != CGROUP_V1:
        raise LabError(f"machine {name}: {more!r} behind the scenario is not {CGROUP_V1}")
    if not re.fullmatch(r"[a-z][a-z0-9]{0,14}", name):
        raise LabError(f"machine name {name!r}: use a lower-case letter and up to 14 letters or digits")
    if suite not in SUITES:
        raise LabError(f"machine {name}: suite {suite!r} is not one of {', '.join(SUITES)}")
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", scenario):
        raise LabError(f"machine {name}: scenario {scenario!r} is not a name")
    groups = ["cpu_nodes"] if scenario == "no-gpu" else ["gpu_nodes"]
    return MachineSpec(name, suite, scenario, groups, cgroup_v1=bool(colon))


def all_labs() -> Iterable[Lab]:
    """Every lab on this machine that has state, whoever made it; not those whose notes cannot be read."""
    if STATE_ROOT.is_dir():
        for directory in sorted(STATE_ROOT.iterdir()):
            if (directory / "lab.json").exists():
                with contextlib.suppress(LabError):
                    yield Lab(directory.name)
