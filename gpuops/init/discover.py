# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hosts of a site to be say of themselves, and what is proposed from it."""

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

from ansible_collections.baremetal.gpu.plugins.module_utils import nvml_words, pci, progress, progress_text
from gpuops import runner
from gpuops.feed import Feed
from gpuops.init.answers import Answers
from gpuops.site import Site

PLAYBOOK = Path(__file__).with_name("discover.yml")
# Names of a disk that stay the same at every boot, the best first: by its own serial number, then by its port.
_BETTER = ("wwn-", "nvme-eui.", "nvme-", "scsi-3", "ata-", "scsi-", "virtio-", "usb-")
_NO_DISK = re.compile(r"(loop|ram|zram|dm-|sr|fd|md|nbd|mmcblk)")


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
    """What a host said. ``cards``: models of its cards, one for each; ``gpu``: the facts that tell them."""

    system: str = ""
    cards: list[str] = field(default_factory=list)
    disks: list[Disk] = field(default_factory=list)
    network: str = ""
    gpu: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Look:
    """What came of looking at all hosts: by name what they said, or (cause, remedy) of those that said nothing."""

    hosts: dict[str, Found] = field(default_factory=dict)
    problems: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    said: str = ""


def read(facts: Mapping[str, Any]) -> Found:
    """From Ansible's facts, without their prefix. Whatever is missing stays empty."""
    gpu = facts.get("gpu") or {}
    cards = [str(row.get("model") or "unknown card") for row in pci.gpus(gpu.get("pci"))]
    system = " ".join(str(facts[key]) for key in ("distribution", "distribution_version") if facts.get(key))
    return Found(system, cards, free_disks(facts.get("devices") or {}), _network(facts.get("default_ipv4") or {}), gpu)


def free_disks(devices: Mapping[str, Any]) -> list[Disk]:
    """Whole disks that have no partitions, no file system and nothing on top of them. The roles look again, closer."""
    found = []
    for name, device in sorted(devices.items()):
        links = device.get("links") or {}
        taken = device.get("partitions") or device.get("holders") or links.get("uuids") or links.get("labels")
        if _NO_DISK.match(name) or taken or device.get("removable") == "1" or not int(device.get("sectors") or 0):
            continue
        names = sorted(links.get("ids") or [], key=_rank)
        path = f"/dev/disk/by-id/{names[0]}" if names else f"/dev/{name}"
        model = str(device.get("model") or "").strip()
        found.append(Disk(path, str(device.get("size") or ""), model, bool(names)))
    return found


def _rank(name: str) -> tuple[int, str]:
    return next((place for place, prefix in enumerate(_BETTER) if name.startswith(prefix)), len(_BETTER)), name


def _network(default: Mapping[str, Any]) -> str:
    if not default.get("network") or not default.get("netmask"):
        return ""
    try:
        return str(ipaddress.ip_network(f"{default['network']}/{default['netmask']}"))
    except ValueError:
        return ""


def model_groups(answers: Answers, found: Mapping[str, Found]) -> dict[str, list[str]]:
    """GPU nodes by the model of their cards: group -> hosts. Empty unless every node of the site could be asked."""
    nodes = [host.name for host in answers.of("gpu")]
    if not nodes or any(name not in found for name in nodes):
        return {}
    groups: dict[str, list[str]] = {}
    for name in nodes:
        models = sorted(set(found[name].cards))
        if len(models) == 1:
            groups.setdefault("gpu_nodes_" + nvml_words.slug(models[0]).replace("-", "_"), []).append(name)
    return groups


def common_network(answers: Answers, found: Mapping[str, Found]) -> str:
    """The network that most storage hosts are in; empty if none is known."""
    networks = Counter(found[host.name].network for host in answers.of("storage") if host.name in found)
    networks.pop("", None)
    return networks.most_common(1)[0][0] if networks else ""


def look(answers: Answers) -> Look:
    """Ask all hosts. Changes nothing, here or there."""
    outcome = Look()
    facts: dict[str, dict[str, Any]] = {}

    def failed(failure: progress.Failure) -> None:
        outcome.problems[failure.host] = progress_text.explain(failure.host, failure.kind, failure.result)

    feed = Feed(progress.Run(time.monotonic(), on_failure=failed))
    said: list[str] = []

    def take(event: Mapping[str, Any]) -> None:
        feed.take(event, time.monotonic())
        data = event.get("event_data") or {}
        if event.get("event") == "runner_on_ok":
            rows = (data.get("res") or {}).get("ansible_facts") or {}
            facts.setdefault(data["host"], {}).update({key.removeprefix("ansible_"): rows[key] for key in rows})
        elif not feed.run.hosts:
            said.append(str(event.get("stdout") or ""))

    with tempfile.TemporaryDirectory(prefix="gpuops-init-") as private:
        inventory = Path(private) / "hosts.json"
        inventory.write_text(json.dumps(reach(answers)))
        runner.run(
            Site(inventory),
            Path(private) / "ansible-runner",
            take,
            runner.Stopper(lambda count: None),
            playbook=str(PLAYBOOK),
        )
    feed.run.finished(time.monotonic())
    for name, rows in facts.items():
        if name not in outcome.problems:
            outcome.hosts[name] = read(rows)
    outcome.said = "\n".join(said[-10:])
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
