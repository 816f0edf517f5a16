# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of the hosts of a site to be, and what is proposed from them."""

from __future__ import annotations

import ipaddress
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml_messages, pci
from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils import untrusted_document
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from gpuops.init.answers import Answers, is_device
from gpuops.run import events, runner
from gpuops.run.reducer import Reducer
from gpuops.site import Site, secrecy

PLAYBOOK = Path(__file__).with_name("discover.yml")
# Names of a disk that stay the same at every boot, the best first: by its own serial number, then by its port.
_BETTER = ("wwn-", "nvme-eui.", "nvme-", "scsi-3", "ata-", "scsi-", "virtio-", "usb-")
_NO_DISK = re.compile(r"(loop|ram|zram|dm-|sr|fd|md|nbd|mmcblk)")
# As mounts of ext4 and xfs have it.
_QUOTA = re.compile(r"(?:^|,)(?:quota|usrquota|uquota|usrjquota=[^,]+)(?:,|$)")
# No host has more of them.
MOST_GPUS, MOST_DISKS = 256, 1000
MODEL_AT_MOST, GROUP_AT_MOST = 80, 60


@dataclass
class Disk:
    """A disk that seems to be free.

    :ivar path: below /dev/disk/by-id where it has such a name.
    """

    path: str
    size: str
    model: str
    lasting: bool


@dataclass
class Found:
    """Facts of a host, as one printable line each.

    :ivar gpus: models of its GPUs, one for each.
    :ivar quotas: where file systems with quotas of users are mounted.
    :ivar gpu: the facts with them.
    :ivar refused: facts that cannot be used, with why.
    """

    system: str = ""
    gpus: list[str] = field(default_factory=list)
    disks: list[Disk] = field(default_factory=list)
    network: str = ""
    quotas: tuple[str, ...] = ()
    gpu: Mapping[str, Any] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)


@dataclass
class Look:
    """The result of looking at all hosts: facts by name, or (cause, remedy) of those without facts."""

    hosts: dict[str, Found] = field(default_factory=dict)
    problems: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    output: str = ""

    def rename(self, former: Mapping[str, str]) -> None:
        """Hosts have got other names: former ones by the new."""
        for name, before in former.items():
            for rows in (self.hosts, self.problems):
                if before in rows:
                    rows[name] = rows.pop(before)  # type: ignore[assignment]  # of the same mapping


def read(facts: Mapping[str, Any]) -> Found:
    """From Ansible's facts, without their prefix. Whatever is missing, or is no such thing, stays empty."""
    gpu = untrusted_document.mapping(facts.get("gpu"))
    devices = pci.gpus(untrusted_document.rows(gpu.get("pci")))
    refused = []
    if len(devices) > MOST_GPUS:
        refused.append(f"it reports {len(devices)} GPUs; look at the host. None of them is used")
        devices, gpu = [], {}
    gpus = [untrusted_document.text(row.get("model"), MODEL_AT_MOST) or "unknown GPU" for row in devices]
    system = " ".join(untrusted_document.text(facts.get(key), 40) for key in ("distribution", "distribution_version"))
    disks = free_disks(untrusted_document.mapping(facts.get("devices")), refused)
    quotas = tuple(
        untrusted_document.text(row.get("mount"), 200)
        for row in untrusted_document.rows(facts.get("mounts"))
        if _QUOTA.search(untrusted_document.text(row.get("options"), 1000))
    )
    return Found(system.strip(), gpus, disks, _network(facts.get("default_ipv4"), refused), quotas, gpu, refused)


def free_disks(devices: Mapping[str, Any], refused: list[str] | None = None) -> list[Disk]:
    """Whole disks that have no partitions, no file system and nothing on top of them. The roles look again, closer.

    :param refused: is given what has no name that a disk can have.
    """
    found: list[Disk] = []
    refused = [] if refused is None else refused
    for name, device in sorted(devices.items()):
        if not isinstance(device, Mapping):
            continue
        links = untrusted_document.mapping(device.get("links"))
        taken = device.get("partitions") or device.get("holders") or links.get("uuids") or links.get("labels")
        size = str(device.get("sectors") or "")
        if (
            _NO_DISK.match(name)
            or taken
            or device.get("removable") == "1"
            or not size.isdecimal()
            or not size.strip("0")
        ):
            continue
        paths = [f"/dev/disk/by-id/{link}" for link in sorted(untrusted_document.texts(links.get("ids")), key=_rank)]
        usable = [path for path in [*paths, f"/dev/{name}"] if is_device(path) and path.count("/") in (2, 4)]
        refused += [
            f"{untrusted_text.one_line(path, 120)!r} is not a name of a disk; look at /dev/disk/by-id there"
            for path in [*paths, f"/dev/{name}"]
            if path not in usable
        ]
        if not usable or len(found) >= MOST_DISKS:
            continue
        model = untrusted_document.text(device.get("model"), MODEL_AT_MOST).strip()
        size = untrusted_document.text(device.get("size"), 20)
        found.append(Disk(usable[0], size, model, usable[0].startswith("/dev/disk/")))
    return found


def _rank(name: str) -> tuple[int, str]:
    return next((place for place, prefix in enumerate(_BETTER) if name.startswith(prefix)), len(_BETTER)), name


def _network(default: Any, refused: list[str]) -> str:
    default = untrusted_document.mapping(default)
    if not default.get("network") or not default.get("netmask"):
        return ""
    text = untrusted_text.one_line(f"{default['network']}/{default['netmask']}", 80)
    try:
        return str(ipaddress.ip_network(text))
    except ValueError:
        refused.append(f"{text!r} is not a network; name it with --public-network")
        return ""


def model_groups(answers: Answers, found: Mapping[str, Found]) -> dict[str, list[str]]:
    """GPU nodes by the model of their GPUs: group -> hosts. Empty unless every node of the site has facts."""
    nodes = [host.name for host in answers.of("gpu")]
    if not nodes or any(name not in found for name in nodes):
        return {}
    groups: dict[str, list[str]] = {}
    for name in nodes:
        models = sorted(set(found[name].gpus))
        slug = nvml_messages.slug(models[0]).replace("-", "_")[:GROUP_AT_MOST] if len(models) == 1 else ""
        if slug:
            groups.setdefault(f"gpu_nodes_{slug}", []).append(name)
    return groups


def common_network(answers: Answers, found: Mapping[str, Found]) -> str:
    """The network that most storage hosts are in; empty if none is known."""
    networks = Counter(found[host.name].network for host in answers.of("storage") if host.name in found)
    networks.pop("", None)
    return networks.most_common(1)[0][0] if networks else ""


def look(answers: Answers) -> Look:
    """Gather facts of all hosts. Changes nothing, here or there."""
    outcome = Look()
    facts: dict[str, dict[str, Any]] = {}

    def failed(failure: progress.Failure) -> None:
        outcome.problems[failure.host] = progress_text.explain(failure.host, failure.kind, failure.result)

    reducer = Reducer(progress.Run(time.monotonic(), on_failure=failed))
    output: list[str] = []

    def take(event: events.Event) -> None:
        reducer.take(event, time.monotonic())
        if isinstance(event, events.HostResult) and event.succeeded:
            rows = untrusted_document.mapping(event.result.get("ansible_facts"))
            facts.setdefault(event.host, {}).update({key.removeprefix("ansible_"): rows[key] for key in rows})
        elif not reducer.run.hosts:
            output.append(event.output)

    known = secrecy.Secrets()
    known.leaves([answers.variables, *(host.variables for host in answers.hosts)], sealed=False)
    with tempfile.TemporaryDirectory(prefix="gpuops-init-") as private:
        inventory = Path(private) / "hosts.json"
        inventory.write_text(json.dumps(reach(answers)))
        runner.run(
            Site(inventory),
            Path(private) / "ansible-runner",
            take,
            runner.Stopper(lambda count: None),
            playbook=str(PLAYBOOK),
            redact=secrecy.Redactor(known.found).document,
        )
    reducer.run.finished(time.monotonic())
    for name, rows in facts.items():
        if name not in outcome.problems:
            outcome.hosts[name] = read(rows)
    outcome.output = "\n".join(output[-10:])
    return outcome


def reach(answers: Answers) -> dict[str, Any]:
    """An inventory that is enough to reach the hosts."""
    everywhere = {
        **({"ansible_user": answers.user} if answers.user else {}),
        "ansible_become": answers.become,
        "ansible_python_interpreter": "/usr/bin/python3",
        **({"ansible_ssh_private_key_file": answers.private_key} if answers.private_key else {}),
        **answers.variables,
    }
    hosts = {
        host.name: {
            **({"ansible_host": host.address} if host.address else {}),
            **({"ansible_port": host.port} if host.port else {}),
            **host.variables,
        }
        for host in answers.hosts
    }
    return {"all": {"vars": everywhere, "hosts": hosts}}
