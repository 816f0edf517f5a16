# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pools of Ceph: what is wanted of one against 'osd pool ls detail'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import Step
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

# Where the modules write it -> how 'osd pool set' names it.
SETTINGS = {
    "size": "size",
    "min_size": "min_size",
    "crush_rule": "crush_rule",
    "autoscale": "pg_autoscale_mode",
    "bulk": "bulk",
    "pg_num": "pg_num",
    "target_size_ratio": "target_size_ratio",
}
QUOTAS = {"quota_bytes": "max_bytes", "quota_objects": "max_objects"}


def view(pool: Mapping[str, Any], rules: Mapping[int, str]) -> dict[str, Any]:
    """One pool of 'osd pool ls detail' in the words of the modules; sizes are bytes."""
    return {
        "name": pool["pool_name"],
        "type": "replicated" if pool["type"] == 1 else "erasure",
        "size": pool["size"],
        "min_size": pool["min_size"],
        "crush_rule": rules.get(pool["crush_rule"], str(pool["crush_rule"])),
        "autoscale": pool["pg_autoscale_mode"],
        "bulk": "bulk" in pool["flags_names"].split(","),
        "pg_num": pool["pg_num_target"],
        "target_size_ratio": float(pool.get("options", {}).get("target_size_ratio", 0)),
        "application": sorted(pool["application_metadata"]),
        "quota_bytes": pool["quota_max_bytes"],
        "quota_objects": pool["quota_max_objects"],
    }


def read(ceph: Ceph) -> dict[str, dict[str, Any]]:
    """All pools by name."""
    rules = {rule["rule_id"]: rule["rule_name"] for rule in ceph.json("osd", "crush", "rule", "dump")}
    return {pool["pool_name"]: view(pool, rules) for pool in ceph.json("osd", "pool", "ls", "detail")}


def plan(found: Mapping[str, Any] | None, name: str, wanted: Mapping[str, Any]) -> list[Step]:
    """What brings a pool into its state; what is None in ``wanted`` stays as it is.

    :raises Refused: for what loses redundancy of what is there, or cannot be.
    """
    given = {key: value for key, value in wanted.items() if value is not None}
    size = given.get("size", found["size"] if found else None)
    least = given.get("min_size")
    if size is not None and least is not None and least > size:
        raise Refused(f"pool {name}: min_size {least} is more than size {size}, so it could never be written")
    steps = []
    if not found:
        steps.append(Step(f"make the pool {name}", _create(name, given)))
    there = found or {}
    for key, option in SETTINGS.items():
        if key not in given or there.get(key) == given[key]:
            continue
        if not found and key in ("crush_rule", "pg_num", "bulk"):
            continue
        if key == "size":
            steps += _size(name, there.get("size"), given["size"], there.get("min_size"), least)
            continue
        if key == "min_size" and found and given.get("size", there["size"]) != there["size"]:
            # Set beside the size, in the order that the mon accepts.
            continue
        value = given[key]
        text = str(value).lower() if isinstance(value, bool) else str(value)
        steps.append(Step(f"set {key} of pool {name} to {text}", ("osd", "pool", "set", name, option, text)))
    application = given.get("application")
    if application and application not in there.get("application", []):
        others = there.get("application", [])
        if others:
            raise Refused(f"pool {name} is in use by {', '.join(others)}", f"choose another pool for {application}")
        steps.append(
            Step(f"give pool {name} to {application}", ("osd", "pool", "application", "enable", name, application))
        )
    for key, option in QUOTAS.items():
        if key in given and there.get(key, 0) != given[key]:
            words = ("osd", "pool", "set-quota", name, option, str(given[key]))
            steps.append(Step(f"set {key} of pool {name} to {given[key] or 'none'}", words))
    return steps


def _create(name: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    # Without a number the autoscaler begins at one that suits it.
    words = ["osd", "pool", "create", name]
    if given.get("pg_num"):
        words += [str(given["pg_num"])]
    words += ["replicated"]
    if given.get("crush_rule"):
        words += [given["crush_rule"]]
    return (*words, "--bulk") if given.get("bulk") else tuple(words)


def _size(name: str, there: int | None, size: int, there_least: int | None, least: int | None) -> list[Step]:
    force = ("--yes-i-really-mean-it",) if size == 1 else ()
    steps = [Step(f"set size of pool {name} to {size}", ("osd", "pool", "set", name, "size", str(size), *force))]
    if there is not None and least is not None and least != there_least:
        smaller = Step(f"set min_size of pool {name} to {least}", ("osd", "pool", "set", name, "min_size", str(least)))
        # Growing: the size first, so that min_size never is more than it. Shrinking: the other way round.
        steps = [*steps, smaller] if size > there else [smaller, *steps]
    return steps


def plan_removal(found: Mapping[str, Any] | None, name: str, confirmed: str, may_delete: bool) -> list[Step]:
    """What removes a pool with all that is in it.

    :param confirmed: the name, written a second time.
    :param may_delete: whether the mons have mon_allow_pool_delete set.
    :raises Refused: unless it is named and the mons allow it.
    """
    if not found:
        return []
    if confirmed != name:
        raise Refused(
            f"removing the pool {name} deletes all that is in it, for good",
            f"write its name in confirm too, confirm: {name}",
        )
    if not may_delete:
        raise Refused(
            f"the mons do not allow the removal of pools, so {name} stays",
            "set mon_allow_pool_delete of mon to true with ceph_config, remove the pool, and remove the setting again",
        )
    words = ("osd", "pool", "rm", name, name, "--yes-i-really-really-mean-it")
    return [Step(f"remove the pool {name} and all that is in it", words)]
