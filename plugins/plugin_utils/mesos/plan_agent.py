# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of mesos-agent on one host: what it gives out, and the cgroups that it needs; see plan.py."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import pci
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import flags as mesos_flags
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.replace import HELD_BACK, UUIDS, gpus_of
from ansible_collections.baremetal.gpu.plugins.plugin_utils import allocatable
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos import change as mesos_change
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos import render as mesos_render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.draft import (
    AGENT,
    Draft,
    Row,
    problem,
    set_address,
    set_master,
)

# How cgroups may be mounted for an agent. Apache Mesos knows v2 from 1.12 on, as ClusterD does; both then die at a
# hierarchy of v2 beside those of v1, which older ones do not look for.
CGROUPS = {"old": ("v1", "hybrid"), "new": ("v1", "v2")}
BOOT = {
    "v2": "systemd.unified_cgroup_hierarchy=1 (v2 alone)",
    "v1": "systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1 (v1 alone)",
}


def settle(draft: Draft) -> None:
    """All that an agent is told."""
    params, node, gpu = draft.params, draft.params["node"], draft.params["gpu"]
    set_address(draft, params["hostname"], "mesos_agent_hostname")
    draft.set("work_dir", params["work_dir"], "mesos_agent_work_dir")
    draft.attempt(lambda: set_master(draft, params["chroot"]))
    if "reconfiguration_policy" not in params["flags"]:
        # With `equal` not even more memory would be taken.
        draft.settings["reconfiguration_policy"] = "additive"
    if params["home"]:
        draft.settings["launcher_dir"] = f"{params['home']}/libexec/mesos"
    _cgroups(draft)
    built_in = pci.gpus(gpu.get("pci"))
    wanted = params["gpus"] == "healthy"
    if wanted and built_in and not gpu.get("devices"):
        draft.refuse(
            f"has {len(built_in)} GPUs, and none answers",
            "repair the driver (`gpuops up --tags driver`), or set mesos_agent_gpus: none",
        )
    before = node["environment"]
    kept = gpus_of(before)
    held_back = set(params["exclude_gpus"])
    strangers = sorted(held_back - {row.get("uuid") for row in gpu.get("devices") or []})
    if strangers:
        draft.refuse(f"mesos_agent_exclude_gpus has {', '.join(strangers)}, not on this host", "take it out")
    if not wanted:
        held_back = {row.get("uuid") for row in gpu.get("devices") or []}
    site = {**params["attributes"], **({"rack": params["rack"]} if params["rack"] else {})}
    # An operator's attribute is taken as it was written or not at all.
    draft.problems += [
        problem(
            f"attribute {name}: {value!r} has characters at which an agent crashes or which it drops",
            "take letters, digits and _ / . -",
        )
        for name, value in site.items()
        if mesos_render.attribute(name) != str(name) or mesos_render.attribute(value) != str(value)
    ]
    published = mesos_change.attributes(before)
    slots = draft.attempt(lambda: _slots(params["gpu_slots"]))
    feed = allocatable.feed(gpu, gpu.get("health"), held_back, kept, site, published, slots)
    if wanted and params["reconciled"]:
        feed = {**feed, "gpus": _left_to_the_reconciler(draft, feed["gpus"])}
    reserve = {name: _number(f"mesos_agent_reserve.{name}", value) for name, value in params["reserve"].items()}
    capacity = {
        **mesos_change.steady(node, reserve, before),
        "reserve": reserve,
        "ports": [mesos_change.span(one) for one in params["ports"]],
    }
    found = draft.attempt(lambda: mesos_render.agent_settings(feed, capacity, params["isolation"])) or {}
    for name, value in found.items():
        draft.settings[name] = value
    for name in ("resources", "attributes", "isolation", "nvidia_gpu_devices", "image_providers"):
        draft.owned[name] = f"the facts of the host, and mesos_agent_{_OWNERS.get(name, name)}"
    draft.notes[UUIDS] = ",".join(gpu["uuid"] for gpu in feed["gpus"])
    sliced = {row.get("uuid") for row in gpu.get("devices") or [] if (row.get("mig") or {}).get("enabled")}
    draft.notes[HELD_BACK] = ",".join(sorted({*params["exclude_gpus"], *filter(None, sliced)}))
    if feed["gpus"] and node["device_directories"]:
        draft.refuse(
            f"{', '.join(node['device_directories'])} is a directory, at which the launch of a container with a GPU "
            "fails",
            "remove it, or move it elsewhere",
        )
    if params["authentication"] != "off":
        draft.set("credential", params["credential_file"], "mesos_common_authentication")
        draft.file(
            params["credential_file"], mesos_render.credential(AGENT, params["secrets"].get(AGENT, "")), "0600", True
        )


def _left_to_the_reconciler(draft: Draft, gpus: list[Row]) -> list[Row]:
    """The list that a registered agent has: another one is the reconciler's to give, which drains the agent first."""
    before = mesos_change.as_before(draft.params["node"], draft.params["gpu"].get("devices") or [])
    if before is None:
        return gpus
    change = mesos_change.difference((gpu["uuid"] for gpu in before), (gpu["uuid"] for gpu in gpus))
    if change:
        draft.remarks.append(
            f"{draft.host}: the agent keeps its list of {len(before)} GPUs in this run. It ought to be {change}, "
            "which is left to the reconciler: `sudo gpuops-reconciler status` on its host shows how far it is"
        )
    return before


def _number(name: str, value: Any) -> float:
    """Also of text, which a template makes. Raises Refused."""
    if not re.fullmatch(r"\d+(\.\d+)?", str(value), re.ASCII):
        raise Refused(f"{name} is {value!r}", "give a number from 0 on")
    return float(value)


def _slots(value: Any) -> int | None:
    """None for what was published before. Raises Refused."""
    if value == "auto":
        return None
    if not re.fullmatch(r"\d{1,3}", str(value), re.ASCII):
        raise Refused(f"mesos_agent_gpu_slots is {value!r}", "give auto, or the number of GPUs")
    return int(value)


_OWNERS = {"resources": "reserve", "nvidia_gpu_devices": "exclude_gpus", "image_providers": "isolation"}


def _cgroups(draft: Draft) -> None:
    params, found = draft.params, draft.params["node"]["cgroups"]
    old = params["flavour"] == "apache" and mesos_flags.is_older(str(params["version"]), (1, 12))
    known = CGROUPS["old" if old else "new"]
    name = f"{'Apache Mesos' if params['flavour'] == 'apache' else 'ClusterD'} {params['version']}"
    if found == "v2" and "systemd_enable_support" not in params["flags"]:
        draft.settings["systemd_enable_support"] = False
    if found in known:
        containerizers = str(params["flags"].get("containerizers", "mesos"))
        if found == "v2" and params["flavour"] == "apache" and "docker" in containerizers.split(","):
            draft.refuse(f"containerizers is {containerizers}: with cgroup v2 there is only mesos", "set that")
        return
    if found == "hybrid":
        why = (
            f"cgroups are hybrid, v2 beside v1, and {name} ends there with 'Found cgroups2 mount at an unexpected "
            "location /sys/fs/cgroup/unified'"
        )
    else:
        told = {"v2": "cgroups are v2", "v1": "cgroups are v1"}.get(found, "no cgroups are mounted")
        why = f"{told}, and {name} knows only {' and '.join(known)}"
    ways = " or with ".join(BOOT[kind] for kind in known if kind in BOOT)
    draft.refuse(why, f"boot with {ways}")
