# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab's network: a bridge, a subnet that nothing else uses, a way out, and per machine a filter that counts."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import shlex
from pathlib import Path

from .state import CACHE_ROOT, Lab, MachineSpec, all_labs
from .system import LabError, locked, run, say

EGRESS = ("open", "closed", "isolated")
FIRST_OCTET, SECOND_OCTETS = 10, range(128, 248)


def iptables(*words: str, check: bool = True) -> int:
    """iptables that waits for its lock."""
    return run("iptables", "-w", *words, check=check).returncode


def occupied() -> list[ipaddress.IPv4Network]:
    """Networks that this host has a route to, other labs' subnets, and the addresses of its name servers."""
    routes = json.loads(run("ip", "-json", "-4", "route", "show", "table", "all").stdout or "[]")
    destinations = [route["dst"] for route in routes if route.get("dst", "default") != "default"]
    networks = [ipaddress.IPv4Network(destination, strict=False) for destination in destinations]
    networks.extend(lab.network for lab in all_labs() if lab.subnet)
    networks.extend(ipaddress.IPv4Network(server) for server in name_servers() if ":" not in server)
    return networks


def name_servers(path: Path = Path("/etc/resolv.conf")) -> list[str]:
    """The name servers that a machine behind the bridge can use: not the host's loopback."""
    behind = Path("/run/systemd/resolve/resolv.conf")
    for candidate in (path, behind):
        if candidate.exists():
            words = [line.split() for line in candidate.read_text(encoding="utf-8").splitlines()]
            servers = [pair[1] for pair in words if len(pair) > 1 and pair[0] == "nameserver"]
            servers = [server for server in servers if not server.startswith("127.") and server != "::1"]
            if servers:
                return servers
    return []


def pick_subnet(tag: str, taken: list[ipaddress.IPv4Network]) -> str:
    """The subnet that the lab's tag asks for, or the next one that overlaps with nothing."""
    count = len(SECOND_OCTETS) * 256
    first = int(hashlib.sha256(tag.encode()).hexdigest()[:8], 16)
    for step in range(count):
        number = (first + step) % count
        candidate = ipaddress.IPv4Network(f"{FIRST_OCTET}.{SECOND_OCTETS[number // 256]}.{number % 256}.0/24")
        if not any(candidate.overlaps(network) for network in taken):
            return str(candidate)
    raise LabError("no free /24 subnet in 10.128.0.0 to 10.247.255.255: this host has a route to all of them")


def reserve(lab: Lab) -> None:
    """Choose the lab's subnet once and write it down, while no other lab does the same."""
    with locked(CACHE_ROOT / "locks" / "subnets.lock", "another lab that chooses its subnet"):
        if not lab.subnet:
            lab.subnet = pick_subnet(lab.tag, occupied())
            lab.save()


def _machine_chains(lab: Lab, spec: MachineSpec) -> tuple[str, str]:
    last = spec.address.rpartition(".")[2]
    return f"{lab.chain}-I{last}", f"{lab.chain}-F{last}"


def ensure(lab: Lab) -> None:
    """Make the bridge, the address translation and the chains, as far as they are not there."""
    if not Path("/sys/class/net", lab.bridge).exists():
        run("ip", "link", "add", lab.bridge, "type", "bridge")
        say(f"network: bridge {lab.bridge} with {lab.subnet}")
    run("ip", "address", "replace", f"{lab.gateway}/{lab.network.prefixlen}", "dev", lab.bridge)
    run("ip", "link", "set", lab.bridge, "up")
    # Stays on when the lab goes: whatever else routes on this host may have come to rely on it.
    forward = Path("/proc/sys/net/ipv4/ip_forward")
    if forward.read_text(encoding="ascii").strip() != "1":
        forward.write_text("1\n", encoding="ascii")
    for chain in ("IN", "FW"):
        iptables("-N", f"{lab.chain}-{chain}", check=False)
    for table, rule in _hooks(lab):
        if iptables("-t", table, "-C", *rule, check=False) != 0:
            iptables("-t", table, "-I", *rule)
    for spec in lab.machines.values():
        _ensure_machine(lab, spec)
    # The lab's own chains hold no counters that matter: write them anew.
    incoming, forwarded = f"{lab.chain}-IN", f"{lab.chain}-FW"
    iptables("-F", incoming)
    iptables("-F", forwarded)
    # Between machines of the lab; comes by here only where bridges are filtered too (Docker switches that on).
    iptables("-A", forwarded, "-o", lab.bridge, "-j", "ACCEPT")
    iptables(
        "-A", incoming, "-p", "tcp", "--sport", "22", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT"
    )
    for spec in lab.machines.values():
        chain_in, chain_forward = _machine_chains(lab, spec)
        iptables("-A", incoming, "-s", spec.address, "-j", chain_in)
        iptables("-A", forwarded, "-s", spec.address, "-j", chain_forward)
    iptables("-A", forwarded, "-j", "ACCEPT")


def _hooks(lab: Lab) -> list[tuple[str, tuple[str, ...]]]:
    note = ("-m", "comment", "--comment", lab.comment)
    established = ("-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED")
    return [
        ("filter", ("INPUT", "-i", lab.bridge, *note, "-j", f"{lab.chain}-IN")),
        ("filter", ("FORWARD", "-i", lab.bridge, *note, "-j", f"{lab.chain}-FW")),
        ("filter", ("FORWARD", "-o", lab.bridge, *established, *note, "-j", "ACCEPT")),
        ("nat", ("POSTROUTING", "-s", lab.subnet, "!", "-d", lab.subnet, *note, "-j", "MASQUERADE")),
    ]


def _apt(lab: Lab) -> tuple[str, ...]:
    return ("-p", "tcp", "--dport", str(lab.apt_port), "-m", "comment", "--comment", "apt")


def _ensure_machine(lab: Lab, spec: MachineSpec) -> None:
    """The two chains of a machine: what it sends to this host, and what it sends elsewhere through it."""
    incoming, forwarded = _machine_chains(lab, spec)
    if iptables("-N", incoming, check=False) == 0:
        # Accepting and not only counting: hosts whose own firewall drops by default still serve packages.
        iptables("-A", incoming, *_apt(lab), "-j", "ACCEPT")
        iptables("-A", incoming, "-m", "conntrack", "--ctdir", "ORIGINAL", "-m", "comment", "--comment", "host")
    if iptables("-N", forwarded, check=False) == 0:
        iptables("-A", forwarded, "-m", "comment", "--comment", "forwarded")
    set_egress(lab, spec, spec.egress)


def set_egress(lab: Lab, spec: MachineSpec, wanted: str) -> None:
    """open: everywhere; closed: this host's bridge address and the lab's machines; isolated: not even the apt cache."""
    if wanted not in EGRESS:
        raise LabError(f"egress {wanted!r} is not one of {', '.join(EGRESS)}")
    incoming, forwarded = _machine_chains(lab, spec)
    prohibited = ("-j", "REJECT", "--reject-with", "icmp-admin-prohibited")
    rules = (
        (forwarded, "-A", prohibited, wanted != "open"),
        (incoming, "-A", ("!", "-d", lab.gateway, *prohibited), wanted != "open"),
        (incoming, "-I", (*_apt(lab), *prohibited), wanted == "isolated"),
    )
    for chain, where, rule, needed in rules:
        present = iptables("-C", chain, *rule, check=False) == 0
        if needed and not present:
            iptables(where, chain, *rule)
        if present and not needed:
            iptables("-D", chain, *rule)
    spec.egress = wanted


def traffic(lab: Lab, spec: MachineSpec, reset: bool = False) -> dict[str, dict[str, int]]:
    """Packets and bytes that a machine sent to the apt cache, to this host otherwise, and elsewhere."""
    counted = {name: {"packets": 0, "bytes": 0} for name in ("apt", "host", "forwarded")}
    for chain in _machine_chains(lab, spec):
        words = ["-w", "-nvxL", chain, *(["-Z"] if reset else [])]
        for line in run("iptables", *words).stdout.splitlines():
            name = next((name for name in counted if f"/* {name} */" in line), None)
            if name:
                packets, size = line.split()[:2]
                counted[name]["packets"] += int(packets)
                counted[name]["bytes"] += int(size)
    return counted


def remove_machine(lab: Lab, spec: MachineSpec) -> None:
    """Take a machine's chains out."""
    for chain, parent in zip(_machine_chains(lab, spec), ("IN", "FW"), strict=True):
        while iptables("-D", f"{lab.chain}-{parent}", "-s", spec.address, "-j", chain, check=False) == 0:
            pass
        iptables("-F", chain, check=False)
        iptables("-X", chain, check=False)


def remove(lab: Lab) -> None:
    """Remove every rule, chain and interface of the lab, also those of machines that nobody wrote down."""
    for table in ("filter", "nat"):
        # Found in the kernel's tables, not in the lab's file: that may be lost.
        saved = run("iptables-save", "-t", table, check=False).stdout.splitlines()
        chains = [line.split()[0][1:] for line in saved if line.startswith(f":{lab.chain}-")]
        for line in saved:
            if line.startswith("-A ") and (f'"{lab.comment}"' in line or f"--comment {lab.comment} " in line):
                iptables("-t", table, "-D", *shlex.split(line[3:]), check=False)
        for chain in chains:
            iptables("-t", table, "-F", chain, check=False)
        for chain in chains:
            iptables("-t", table, "-X", chain, check=False)
    members = Path("/sys/class/net", lab.bridge, "brif")
    for port in sorted(members.iterdir()) if members.is_dir() else []:
        run("ip", "link", "delete", port.name, check=False)
    if Path("/sys/class/net", lab.bridge).exists():
        run("ip", "link", "delete", lab.bridge)
