# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: gpus
short_description: Groups hosts by the GPUs that facts have found in them
version_added: 0.1.0
description:
  - Reads what M(baremetal.gpu.gpu_facts) gathered, from Ansible's fact cache or from a snapshot file that
    C(gpuops inventory) wrote, and sorts the hosts of the inventory into groups. It asks no host anything.
  - Works on top of any other source (static files, MAAS, NetBox). Those say which hosts there are, so they have to be
    loaded before it; see the notes.
  - C(gpu_model_*) by model, such as C(gpu_model_a100_sxm4_40gb). Before there is a driver, the model's name is the one
    of the PCI table, which is not always the one that the driver gives.
  - C(gpu_count_*) by the number of GPUs on the PCI bus, C(gpu_arch_*) by architecture, C(driver_branch_*) by the
    branch of the driver, C(cuda_*) by the newest CUDA that the driver runs (C(cuda_12_4)).
  - C(nvlink) has the hosts with an NVLink that is up, C(mig) those with a GPU in MIG mode,
    C(mig_*) those with an instance of a profile, such as C(mig_1g_10gb).
  - C(gpu_unhealthy) has the hosts with a known fault, which is degraded or fatal. Where facts have no
    health report, it has those with GPUs that the driver cannot reach.
  - C(gpu_absent) has the hosts without a GPU, C(gpu_unknown) those without facts, with facts that cannot be used, or
    whose PCI bus could not be read.
options:
  plugin:
    description: Name of the plugin.
    type: str
    required: true
    choices: [baremetal.gpu.gpus]
  snapshot:
    description:
      - File that C(gpuops inventory) wrote. A relative path starts at the file with these options.
      - Ansible takes every file of an inventory directory for inventory, except one whose name begins with a dot.
      - While the file does not exist, every host is in C(gpu_unknown).
      - Without this option the facts come from the fact cache that C(fact_caching) in C(ansible.cfg) names.
    type: str
  within:
    description: Groups. Only their hosts are looked at; by default all hosts are.
    type: list
    elements: str
    default: []
  add_hosts:
    description: Whether to add hosts that only the facts know. Without it, such facts are left out.
    type: bool
    default: false
  gpus_variable:
    description:
      - Name of a variable to set on each host. It is a list with C(index), C(uuid), C(pci_address), C(name), C(slug),
        C(architecture), C(memory_mib) and C(verdict) of each GPU.
      - By default none is set, since the facts are variables already where there is a fact cache.
    type: str
    default: ''
  skip_facts:
    description:
      - Reads nothing and puts every host into C(gpu_unknown). C(gpuops inventory) sets it, so that a broken snapshot
        does not stand in the way of a new one.
    type: bool
    default: false
    env:
      - name: BAREMETAL_GPU_INVENTORY_SKIP_FACTS
extends_documentation_fragment:
  - constructed
  - inventory_cache
notes:
  - The name of the file with the options has to end in C(gpus.yml) or C(gpus.yaml).
  - The files of an inventory directory are loaded in the order of their names, so C(zz_gpus.yml) comes after
    C(hosts.yml). Of several C(-i) the last is loaded last.
  - O(compose), O(groups) and O(keyed_groups) see the host's variables from the sources before this one, and its facts
    as C(gpu). They are worked out for hosts with facts only, and only they make the plugin parse the facts in full.
  - With O(cache), the result is kept by the cache plugin, and facts are not read again until it expires or
    C(--flush-cache) is given.
seealso:
  - module: baremetal.gpu.gpu_facts
  - plugin: baremetal.gpu.select_gpus
    plugin_type: filter
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
# inventories/mysite/zz_gpus.yml: from the fact cache
plugin: baremetal.gpu.gpus
---
# From a snapshot, beside this file; switches and power supplies of the inventory are left out
plugin: baremetal.gpu.gpus
snapshot: .gpus.jsonl
within: [gpu_cluster]
---
# With groups of one's own
plugin: baremetal.gpu.gpus
snapshot: .gpus.jsonl
gpus_variable: gpu_gpus
compose:
  gpu_memory_mib: gpu.devices | sum(attribute='memory_mib')
groups:
  big_memory: gpu.devices | baremetal.gpu.select_gpus(memory_mib_min=40000) | length >= 4
keyed_groups:
  - key: gpu.devices | map(attribute='compute_capability') | unique
    prefix: compute_capability
"""

import contextlib
import difflib
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

from ansible.errors import AnsibleError, AnsibleParserError
from ansible.inventory.helpers import get_group_vars
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable
from ansible.utils.vars import combine_vars

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils import fact_cache
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import file as fleet_file
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import hosts as fleet

# Host, its groups, and its facts where an option needs them.
Found = tuple[str, list[str], Any]

SHOWN_PROBLEMS = 5

# Of what is kept in the inventory cache: another number, and what an older version has kept is not read.
CACHE_SCHEMA = 1


@contextlib.contextmanager
def _garbage_waits() -> Iterator[None]:
    """Hosts and groups are there to stay. Looking for garbage among them while they are made takes a tenth of the time
    that making them does, and finds none."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class _Members(dict[str, Callable[[Any], Any]]):
    """By the name of a group what puts a host into it; a group that is not there is made.

    Asking the inventory for it each time costs twice as much, and takes a host's name for a group's if there is such a
    group.
    """

    def __init__(self, inventory: Any) -> None:
        super().__init__()
        self._inventory = inventory

    def __missing__(self, group: str) -> Callable[[Any], Any]:
        if group not in self._inventory.groups:
            self._inventory.add_group(group)
        found: Callable[[Any], Any] = self._inventory.groups[group].add_host
        self[group] = found
        return found


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    NAME = "baremetal.gpu.gpus"

    def verify_file(self, path: str) -> bool:
        return super().verify_file(path) and path.endswith(("gpus.yml", "gpus.yaml"))

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        super().parse(inventory, loader, path, cache)
        self._path = path
        self._problems: dict[str, str] = {}
        self._check_options(self._read_config_data(path))
        self._gpus_variable = self.get_option("gpus_variable")
        self._constructs = any(self.get_option(name) for name in ("compose", "groups", "keyed_groups"))
        self._wants_facts = self._constructs or bool(self._gpus_variable)
        scope = self._scope()
        if not inventory.hosts and not self.get_option("add_hosts"):
            self.display.warning(
                f"{path}: no source before this one has a host, so there is nothing to group. The files of a directory "
                "are loaded in the order of their names: give this one a name that comes last, such as zz_gpus.yml"
            )
        with _garbage_waits():
            known = self._add(self._found(scope, cache), scope)
            self._add_unknown(scope - known)
        self._report()

    def _check_options(self, config: dict[str, Any]) -> None:
        """Ansible takes any option and does nothing with those that it does not know."""
        known = sorted({str(name) for name in self.option_definitions} | {"plugin"})
        for name in map(str, config):
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
                raise AnsibleParserError(f"{self._path}: unknown option {name}; {hint}")
        name = self.get_option("gpus_variable")
        if name and not name.isidentifier():
            raise AnsibleParserError(
                f"{self._path}: gpus_variable is {name!r}, which is not the name of a variable; "
                "use letters, digits and underscores, such as gpu_gpus"
            )

    def _scope(self) -> set[str]:
        """The hosts to look at, of those that the inventory has so far."""
        within = self.get_option("within")
        if not within:
            return set(self.inventory.hosts)
        found: set[str] = set()
        for name in within:
            if name not in self.inventory.groups:
                raise AnsibleParserError(
                    f"{self._path}: within names the group {name}, which no source before this one has; "
                    f"there are {', '.join(sorted(self.inventory.groups))}"
                )
            found.update(host.name for host in self.inventory.groups[name].get_hosts())
        return found

    def _found(self, scope: set[str], cache: bool) -> Iterator[Found]:
        """What is known of hosts, from the inventory cache if that is wanted and has it."""
        if self.get_option("skip_facts"):
            return iter(())
        if not self.get_option("cache"):
            return self._read(scope)
        key = f"{self.get_cache_key(self._path)}_{CACHE_SCHEMA}"
        if cache:
            try:
                kept = self._cache[key]
            except KeyError:
                kept = {}
            if kept and (kept["facts"] or not self._wants_facts):
                self._problems.update(kept["problems"])
                return iter(kept["hosts"])
        rows = [list(row) for row in self._read(scope)]
        self._cache[key] = {"facts": self._wants_facts, "hosts": rows, "problems": self._problems}
        return iter(rows)

    def _read(self, scope: set[str]) -> Iterator[Found]:
        name = self.get_option("snapshot")
        if name:
            return self._read_snapshot(os.path.join(os.path.dirname(self._path), os.path.expanduser(name)))
        return self._read_fact_cache(scope)

    def _read_snapshot(self, file: str) -> Iterator[Found]:
        try:
            for row in fleet_file.read(file, facts=self._wants_facts):
                problem, facts = row.problem, None
                if self._wants_facts and not problem:
                    try:
                        facts = row.facts()
                    except fleet.BrokenFacts as error:
                        problem = str(error)
                if problem:
                    self._problems[row.host] = problem
                else:
                    yield row.host, row.groups, facts
        except FileNotFoundError:
            self.display.warning(
                f"{self._path}: the snapshot {file} does not exist yet, so every host is in {fleet.UNKNOWN}; "
                "write it with `gpuops inventory`"
            )
        except fleet_file.SnapshotError as error:
            raise AnsibleParserError(f"{self._path}: snapshot {error}") from error

    def _read_fact_cache(self, scope: set[str]) -> Iterator[Found]:
        try:
            # In the inventory's order, which is the order of plays.
            names = [name for name in self.inventory.hosts if name in scope]
            if self.get_option("add_hosts"):
                names += [name for name in fact_cache.hosts() if name not in self.inventory.hosts]
            for host, facts, problem in fact_cache.read(names):
                try:
                    if problem:
                        raise fleet.BrokenFacts(problem)
                    yield host, fleet.groups(facts), facts if self._wants_facts else None
                except fleet.BrokenFacts as error:
                    self._problems[host] = str(error)
        except AnsibleError as error:
            raise AnsibleParserError(f"{self._path}: there are no facts to read: {error}") from error

    def _add(self, found: Iterator[Found], scope: set[str]) -> set[str]:
        """Puts hosts into their groups and returns the hosts."""
        # Looked up once: on the wrapper that Ansible gives to plugins, every look-up costs as much as a call.
        hosts, add_host, members = self.inventory.hosts, self.inventory.add_host, _Members(self.inventory)
        add_hosts = self.get_option("add_hosts")
        wants_facts = self._wants_facts
        known: set[str] = set()
        for host, groups, facts in found:
            if host not in hosts:
                if not add_hosts:
                    continue
                add_host(host)
            elif host not in scope:
                continue
            seen = hosts[host]
            for group in groups:
                members[group](seen)
            known.add(host)
            if wants_facts:
                self._set_variables(host, facts)
        return known

    def _set_variables(self, host: str, facts: dict[str, Any]) -> None:
        if self._gpus_variable:
            # Past the wrapper that Ansible gives to plugins: it copies every value to note where it came from, which
            # for the GPUs of a fleet takes longer than all the rest.
            self.inventory.hosts[host].set_variable(self._gpus_variable, fleet.gpus(facts))
        if not self._constructs:
            return
        strict = self.get_option("strict")
        seen = self.inventory.hosts[host]
        variables = combine_vars(get_group_vars(seen.get_groups()), seen.get_vars())
        variables["gpu"] = facts
        self._set_composite_vars(self.get_option("compose"), variables, host, strict=strict)
        self._add_host_to_composed_groups(self.get_option("groups"), variables, host, strict=strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), variables, host, strict=strict)

    def _add_unknown(self, hosts: set[str]) -> None:
        members = _Members(self.inventory)
        for name, host in list(self.inventory.hosts.items()):
            if name in hosts:
                members[fleet.UNKNOWN](host)

    def _report(self) -> None:
        if not self._problems:
            return
        shown = [
            untrusted_text.one_line(f"{host}: {text}") for host, text in list(self._problems.items())[:SHOWN_PROBLEMS]
        ]
        more = len(self._problems) - len(shown)
        self.display.warning(
            f"{self._path}: the facts of {len(self._problems)} hosts cannot be used, so these are in {fleet.UNKNOWN}: "
            + "; ".join(shown)
            + (f"; and {more} more" if more else "")
            + ". Gather them again with `gpuops inventory` or baremetal.gpu.gpu_facts"
        )
