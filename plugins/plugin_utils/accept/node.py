# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The items of hosts that facts alone decide: settings, versions, links and devices, over the whole fleet.

`hosts` are {name: {"gpu": ansible_facts.gpu, "accept": what accept_info returns}}. What hosts send is untrusted: a
value of another kind than expected counts as one that could not be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import OK, UNKNOWN, VERDICTS
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept import rdma
from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import (
    NODE,
    NOT_APPLICABLE,
    NOT_TESTABLE,
    Item,
    judged,
    odd,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import mapping, number, rows

Host = Mapping[str, Any]
Hosts = Mapping[str, Host]

# What must be the same on all hosts: id, what it is called, where it is, the remedy.
SAME: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("node.driver", "the driver", ("gpu", "driver", "loaded"), "run `gpuops up --limit {host}`, then reboot the host"),
    ("node.kernel", "the kernel", ("accept", "versions", "kernel"), "install the others' kernel and reboot the host"),
    ("node.os", "the operating system", ("accept", "versions", "os"), "update the host as the others were"),
    ("node.bios", "the BIOS", ("accept", "versions", "bios"), "flash the BIOS of the others, and check its settings"),
)
# Less locked memory is too little to register memory with a network adapter, or to pin it for a GPU.
LOCKED_LEAST = 1 << 40
OPEN_FILES_LEAST = 65536
# Memory has a corrected error now and then; more tell that a module is about to fail.
CORRECTED_MOST = 100
# Sources of users, in nsswitch.conf, behind which there is a service for the whole site.
PROVIDERS = ("sss", "ldap", "winbind", "systemd-userdb")


def _at(host: Host, path: tuple[str, ...]) -> Any:
    value: Any = host
    for part in path:
        value = mapping(value).get(part)
    return value


def _text(host: Host, path: tuple[str, ...]) -> str | None:
    value = _at(host, path)
    return value if isinstance(value, str) and value else None


def _gpus(host: Host) -> list[dict[str, Any]]:
    return rows(_at(host, ("gpu", "devices")))


def _name(gpu: Mapping[str, Any]) -> str:
    return f"GPU {gpu.get('index', '?')}"


def same(hosts: Hosts) -> list[Item]:
    """Versions, models and settings that must be alike. What differs from most is named; else all are."""
    items = []
    keyed = {
        id: ({name: _text(host, path) for name, host in hosts.items()}, what, remedy) for id, what, path, remedy in SAME
    }
    models = {name: _models(host) for name, host in hosts.items()}
    with_gpus = {name: host for name, host in hosts.items() if _gpus(host)}
    if with_gpus:
        keyed["node.libraries"] = (
            {name: _libraries(host) for name, host in with_gpus.items()},
            "the libraries for programs on several GPUs",
            "install on {host} what the others have",
        )
    keyed["node.gpus"] = (
        models,
        "the GPUs",
        "see which GPU is missing or of another model, with `gpuops doctor {host}`",
    )
    for id, (values, what, remedy) in keyed.items():
        known = {name: value for name, value in values.items() if value}
        unknown = sorted(set(values) - set(known))
        items += [Item(id, NODE, name, NOT_TESTABLE, f"{what}: not known") for name in unknown]
        if len(known) == 1:
            ((name, value),) = known.items()
            items.append(
                Item(id, NODE, name, NOT_APPLICABLE, f"{what}: {value}; there is no other host to compare it with")
            )
            continue
        if not known:
            continue
        most, others = odd(known)
        for name, value in known.items():
            compared = f"most hosts have {most}" if most else "no value is that of most hosts"
            good = name not in others
            evidence = f"{what}: {value}" + ("" if good else f"; {compared}")
            items.append(judged(id, NODE, str(name), good, evidence, remedy.format(host=name)))
    return items


def _libraries(host: Host) -> str | None:
    found = _at(host, ("accept", "libraries"))
    return ", ".join(map(str, found)) or "none" if isinstance(found, list) else None


def _models(host: Host) -> str | None:
    names = [str(gpu.get("name")) for gpu in _gpus(host) if gpu.get("name")]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or None


def users(hosts: Hosts) -> list[Item]:
    """A user has the same uid and gid everywhere, as the files belong to these numbers."""
    told = {name: mapping(_at(host, ("accept", "identities", "ids"))) for name, host in hosts.items()}
    items = []
    for user in sorted({str(user) for ids in told.values() for user in ids}):
        known = {name: str(ids[user]) for name, ids in told.items() if ids.get(user)}
        most, others = odd(known) if known else (None, [])
        remedy = f"give {user} the same uid and gid as on the other hosts"
        items += [
            judged(
                "node.users",
                NODE,
                name,
                False,
                f"{known[name]}, {f'others have {most}' if most else 'all differ'}",
                remedy,
                user,
            )
            for name in others
        ]
    named = {item.host for item in items}
    sound = [name for name, ids in told.items() if ids and name not in named]
    evidence = "its users have the same uid and gid as on the other hosts"
    return items + [judged("node.users", NODE, name, True, evidence, "") for name in sound]


# --- Of one GPU -------------------------------------------------------------------------------------------------------


def _ecc(gpu: Mapping[str, Any]) -> tuple[bool | None, str, str]:
    ecc = gpu.get("ecc")
    if not isinstance(ecc, Mapping):
        return None, "the GPU has no error correction", ""
    return (
        ecc.get("enabled") is True,
        f"error correction is {'on' if ecc.get('enabled') else 'off'}",
        ("`nvidia-smi -i INDEX -e 1`, then reset the GPU"),
    )


def _width(gpu: Mapping[str, Any]) -> tuple[bool | None, str, str]:
    pcie = mapping(gpu.get("pcie"))
    width, most = number(pcie.get("width")), number(pcie.get("width_max"))
    if width is None or most is None:
        return None, "the width of the PCIe link is not known", ""
    return (
        width >= most,
        f"the PCIe link has {width:g} of {most:g} lanes",
        ("reseat the GPU or its riser, look for bent pins, and check the slot's bifurcation in the BIOS"),
    )


def _answers(gpu: Mapping[str, Any]) -> tuple[bool | None, str, str]:
    error = mapping(gpu.get("error"))
    return not error, f"{error.get('text')}" if error else "the GPU answers", str(error.get("remedy") or "")


EACH_GPU: dict[str, Callable[[Mapping[str, Any]], tuple[bool | None, str, str]]] = {
    "node.gpu_answers": _answers,
    "node.ecc": _ecc,
    "node.pcie_width": _width,
}


def of_gpus(name: str, host: Host) -> list[Item]:
    items = []
    for id, check in EACH_GPU.items():
        for gpu in _gpus(host):
            good, evidence, remedy = check(gpu)
            if good is None:
                items.append(Item(id, NODE, name, NOT_APPLICABLE, evidence, "", _name(gpu)))
            else:
                items.append(judged(id, NODE, name, good, evidence, remedy, _name(gpu)))
    return items


def _mig(name: str, host: Host) -> list[Item]:
    modes = {_name(gpu): mapping(gpu.get("mig")).get("enabled") for gpu in _gpus(host)}
    known = {key: mode for key, mode in modes.items() if isinstance(mode, bool)}
    if not known:
        return [Item("node.mig", NODE, name, NOT_APPLICABLE, "no GPU can be cut by MIG")]
    cut = [key for key, mode in known.items() if mode]
    good = not cut or len(cut) == len(known)
    evidence = f"MIG is on at {', '.join(cut)}" if cut else "MIG is off"
    remedy = "set the same MIG mode at all GPUs with `nvidia-smi -i INDEX -mig 0`, and reset them"
    return [judged("node.mig", NODE, name, good, evidence, remedy)]


def _numa(name: str, host: Host) -> list[Item]:
    nodes = number(_at(host, ("accept", "numa_nodes")))
    if nodes is None:
        return [Item("node.numa", NODE, name, NOT_TESTABLE, "how many NUMA nodes there are is not known")]
    if nodes < 2:
        return [Item("node.numa", NODE, name, NOT_APPLICABLE, "the host has one NUMA node")]
    lost = [_name(gpu) for gpu in _gpus(host) if not isinstance(gpu.get("numa_node"), int) or gpu["numa_node"] < 0]
    evidence = f"of {', '.join(lost)} the NUMA node is not known" if lost else "every GPU has its NUMA node"
    remedy = "let the BIOS tell the NUMA node of PCI devices: its setting is often called NUMA or SRAT"
    return [judged("node.numa", NODE, name, not lost, evidence, remedy)]


def _health(name: str, host: Host) -> list[Item]:
    health = mapping(_at(host, ("gpu", "health")))
    verdict = health.get("verdict")
    reasons = rows(health.get("reasons")) + [
        reason for gpu in rows(health.get("devices")) for reason in rows(gpu.get("reasons"))
    ]
    if verdict not in VERDICTS or (verdict == UNKNOWN and not reasons):
        return [Item("node.health", NODE, name, NOT_TESTABLE, "there is no verdict on the GPUs' health")]
    found = "; ".join(str(row.get("text") or row.get("code")) for row in reasons) or "no fault is known"
    remedy = "; ".join(dict.fromkeys(str(row.get("remedy")) for row in reasons if row.get("remedy")))
    return [judged("node.health", NODE, name, verdict == OK, found, remedy)]


# --- Of one host ------------------------------------------------------------------------------------------------------


def _time(name: str, host: Host) -> list[Item]:
    kept = _at(host, ("accept", "time_synchronised"))
    known = kept if isinstance(kept, bool) else None
    evidence = {True: "the clock is synchronised", False: "the clock is not synchronised"}
    words = evidence[known] if known is not None else "it is unknown whether the clock is synchronised"
    return [judged("node.time", NODE, name, known, words, "install and configure chrony")]


def _acs(name: str, host: Host) -> list[Item]:
    found = _at(host, ("accept", "acs_redirects"))
    if len(_gpus(host)) < 2:
        return [Item("node.acs", NODE, name, NOT_APPLICABLE, "the host has no two GPUs")]
    if not isinstance(found, list):
        return [Item("node.acs", NODE, name, NOT_TESTABLE, "the configuration of the PCI bridges cannot be read")]
    bridges = ", ".join(map(str, found[:8]))
    evidence = f"ACS redirects transfers between GPUs at {bridges}" if found else "no PCI bridge redirects transfers"
    remedy = "switch ACS off in the BIOS, unless virtual machines are to own GPUs"
    return [judged("node.acs", NODE, name, not found, evidence, remedy)]


def _iommu(name: str, host: Host) -> list[Item]:
    """By what the kernel says of the groups: its command line has more than one word for it, and defaults."""
    groups = number(_at(host, ("accept", "iommu_groups")))
    types = mapping(_at(host, ("accept", "iommu_types")))
    if groups is None or (groups and not mapping(types.get("groups"))):
        return [Item("node.iommu", NODE, name, NOT_TESTABLE, "the state of the IOMMU is not known")]
    displays = mapping(types.get("displays"))
    addresses = {str(gpu.get("pci_address")) for gpu in _gpus(host)}
    of_gpus = {str(kind) for address, kind in displays.items() if address in addresses}
    kinds = of_gpus or {str(kind) for kind in mapping(types.get("groups"))}
    through = kinds == {"identity"}
    told = ", ".join(sorted(kinds))
    evidence = f"the IOMMU is on, {'in passthrough' if through else 'and translates'}: its groups are of type {told}"
    remedy = "boot with iommu=pt, or switch the IOMMU off in the BIOS: translation slows transfers down"
    return [judged("node.iommu", NODE, name, not groups or through, evidence if groups else "the IOMMU is off", remedy)]


def _limits(name: str, host: Host) -> list[Item]:
    limits = mapping(_at(host, ("accept", "limits")))
    if not limits:
        return [Item("node.limits", NODE, name, NOT_APPLICABLE, "no program here starts jobs")]
    items = []
    for program, told in limits.items():
        row = mapping(told)
        if set(row) != {"locked_bytes", "open_files"}:
            evidence = "its limits cannot be read"
            items.append(Item("node.limits", NODE, name, NOT_TESTABLE, evidence, "", str(program)))
            continue
        low = [
            f"{what}: {row[key]}"
            for key, what, least in (
                ("locked_bytes", "locked memory", LOCKED_LEAST),
                ("open_files", "open files", OPEN_FILES_LEAST),
            )
            if row[key] is not None and (number(row[key]) or 0) < least
        ]
        evidence = f"jobs are limited to {', '.join(low)}" if low else "jobs may lock memory and open files"
        remedy = f"set LimitMEMLOCK=infinity and LimitNOFILE={OPEN_FILES_LEAST} in the unit of {program}"
        items.append(judged("node.limits", NODE, name, not low, evidence, remedy, str(program)))
    return items


def _disks(name: str, host: Host) -> list[Item]:
    items = []
    for row in rows(_at(host, ("accept", "disks"))):
        passed = row.get("passed") if isinstance(row.get("passed"), bool) else None
        words = {True: "passes its own check", False: "fails its own check"}
        said = one_line(row.get("said") or "", 300)
        evidence = words[passed] if passed is not None else "says nothing of itself"
        evidence += f": {said}" if said else ""
        items.append(judged("node.disk", NODE, name, passed, evidence, "replace the disk", f"{row.get('name')}"))
    return items or [Item("node.disk", NODE, name, NOT_APPLICABLE, "the host has no disk of its own")]


def _interfaces(name: str, host: Host) -> list[Item]:
    items = []
    for row in rows(_at(host, ("accept", "interfaces"))):
        if row.get("state") != "up":
            items.append(Item("node.nic", NODE, name, NOT_APPLICABLE, "not in use", "", f"{row.get('name')}"))
            continue
        wrong = {key: value for key, value in mapping(row.get("errors")).items() if number(value)}
        told = ", ".join(f"{key} {value}" for key, value in wrong.items())
        evidence = f"{row.get('speed_mb_s')} Mbit/s, {told or 'no errors'}"
        remedy = "replace the cable or its transceivers, and look at the switch's port"
        items.append(judged("node.nic", NODE, name, not wrong, evidence, remedy, f"{row.get('name')}"))
    return items


# A port by its physical state, where it is not LinkUp: what to do.
RDMA_REMEDIES = {
    "Polling": "plug in or replace the cable, and look at the switch's port",
    "PortConfigurationTraining": "replace the cable, and look at the switch's port",
    "LinkErrorRecovery": "replace the cable, and look at the switch's port",
}


def _rdma(name: str, host: Host) -> list[Item]:
    """Ports of InfiniBand and RoCE. A port is at work if it is active and has a link; one that is switched off is not
    in use, as an Ethernet port whose network interface is down."""
    items = []
    for row in rows(_at(host, ("accept", "infiniband"))):
        port, state, layer = f"{row.get('name')}", rdma.word(row.get("state")), row.get("link_layer")
        # What is not known does not contradict the state.
        physical = rdma.word(row.get("phys_state")) or ("LinkUp" if state == "ACTIVE" else "")
        if state != "ACTIVE" and physical in ("Disabled", "Sleep"):
            evidence = f"not in use: {state}, its link is {physical}"
            items.append(Item("node.infiniband", NODE, name, NOT_APPLICABLE, evidence, "", port))
            continue
        wrong = {key: value for key, value in mapping(row.get("errors")).items() if number(value)}
        told = ", ".join(f"{key} {value}" for key, value in wrong.items())
        evidence = (
            f"{state or 'state not known'}, {physical or 'link not known'}, {row.get('rate')}, {told or 'no errors'}"
        )
        if state != "ACTIVE" and physical == "LinkUp":
            manager = "see that the network interface of the port is up: `ip -br link`"
            remedy = manager if layer == "Ethernet" else "see that a subnet manager runs in the fabric: `sminfo`"
        elif state == "ACTIVE" and physical not in ("LinkUp", *RDMA_REMEDIES):
            remedy = (
                "state and link of the port contradict each other: update its firmware and driver, reset the adapter"
            )
        else:
            remedy = RDMA_REMEDIES.get(physical, RDMA_REMEDIES["LinkErrorRecovery"])
        good = rdma.is_up(row) and not wrong
        items.append(judged("node.infiniband", NODE, name, good, evidence, remedy, port))
    return items


def _hugepages(name: str, host: Host) -> list[Item]:
    mode = _text(host, ("accept", "hugepages", "transparent"))
    evidence = f"transparent huge pages: {mode}" if mode else "the mode of transparent huge pages is not known"
    good = None if mode is None else mode in ("madvise", "always")
    return [judged("node.hugepages", NODE, name, good, evidence, "set transparent_hugepage=madvise")]


def _memory(name: str, host: Host) -> list[Item]:
    found = mapping(_at(host, ("accept", "memory_errors")))
    corrected, uncorrected = number(found.get("corrected")), number(found.get("uncorrected"))
    if corrected is None or uncorrected is None:
        why = "nothing counts the errors of the host's memory: no driver (EDAC) is loaded"
        return [Item("node.memory", NODE, name, NOT_TESTABLE, why)]
    good = not uncorrected and corrected <= CORRECTED_MOST
    evidence = f"since the boot {corrected:.0f} errors of the host's memory were corrected, {uncorrected:.0f} were not"
    remedy = "find the module of memory with `ras-mc-ctl --error-count` or the BMC's log, and replace it"
    return [judged("node.memory", NODE, name, good, evidence, remedy)]


def _identity(name: str, host: Host) -> list[Item]:
    sources = _at(host, ("accept", "identities", "sources"))
    if not isinstance(sources, list) or not sources:
        return [Item("node.identity", NODE, name, NOT_TESTABLE, "where users come from is not known")]
    provided = [source for source in sources if source in PROVIDERS]
    if not provided:
        return [Item("node.identity", NODE, name, NOT_APPLICABLE, "users are only those of the host's own files")]
    ids = mapping(_at(host, ("accept", "identities", "ids")))
    lost = [user for user, uid in ids.items() if not uid]
    evidence = f"users come from {', '.join(provided)}"
    evidence += f"; not known: {', '.join(map(str, lost[:8]))}" if lost else ""
    remedy = "see that the service of the identities answers: `systemctl status sssd`"
    return [judged("node.identity", NODE, name, not lost, evidence, remedy)]


def _gpudirect(name: str, host: Host) -> list[Item]:
    ports = [row for row in rows(_at(host, ("accept", "infiniband"))) if rdma.is_up(row)]
    if not ports or not _gpus(host):
        return [Item("node.gpudirect", NODE, name, NOT_APPLICABLE, "the host has no GPU, or no active RDMA port")]
    found = mapping(_at(host, ("accept", "dmabuf")))
    flavour = _text(host, ("gpu", "driver", "flavour"))
    through = "nvidia_peermem" if found.get("peermem") is True else "dma-buf"
    good: bool | None = found.get("peermem") is True or (found.get("built") is True and flavour == "open")
    if not good and (found.get("built") is None or flavour is None):
        good = None
    evidence = f"RDMA reaches the GPUs' memory through {through}" if good else "RDMA cannot reach the GPUs' memory"
    if good is None:
        evidence = "it is unknown whether RDMA reaches the GPUs' memory"
    remedy = "use the open kernel modules with a kernel that has DMABUF_MOVE_NOTIFY, or load nvidia_peermem"
    return [judged("node.gpudirect", NODE, name, good, evidence, remedy)]


EACH_HOST = (
    _memory,
    _identity,
    _gpudirect,
    _health,
    _mig,
    _numa,
    _time,
    _acs,
    _iommu,
    _limits,
    _hugepages,
    _disks,
    _interfaces,
    _rdma,
)


def items(hosts: Hosts) -> list[Item]:
    """All items of the stage."""
    found = same(hosts) + users(hosts)
    for name, host in hosts.items():
        if not mapping(host.get("accept")):
            found.append(Item("node.facts", NODE, name, NOT_TESTABLE, "the host did not answer"))
            continue
        found += of_gpus(name, host)
        for check in EACH_HOST:
            found += check(name, host)
    return found
