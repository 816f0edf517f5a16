# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take OSDs out of a cluster: what speaks against it, and the commands in their order.

The data of an OSD are moved first. Only when the cluster itself says that nothing depends on it any more is it removed,
or marked as destroyed so that another disk can have its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph, CephError
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import Step, shown
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused

OUT, DRAINED, DESTROYED, ABSENT = "out", "drained", "destroyed", "absent"
# The OSD comes back on another disk, so its number and its place in the map are kept.
KEPT = (OUT, DESTROYED)
# What 'osd safe-to-destroy' and 'osd ok-to-stop' end with where the answer is no, or not yet: EAGAIN and EBUSY.
NOT_YET = (11, 16)
# What a placement group is for some seconds after an OSD has failed, or while a new mgr has not heard of it.
PASSING = {"activating", "creating", "peering", "unknown"}


def read(ceph: Ceph) -> dict[str, Any]:
    """What is to be known before: {fsid, osds, nodes, pools, rules, nearfull, pgs, unfound}.

    Sizes are in KiB; `osds` is by number with uuid, up, in, destroyed, weight, kib and used.
    """
    dump, tree, df = ceph.json("osd", "dump"), ceph.json("osd", "tree"), ceph.json("osd", "df")
    nodes = {node["id"]: node for node in tree["nodes"]}
    sizes = {row["id"]: row for row in df["nodes"]}
    osds = {}
    for row in dump["osds"]:
        number = row["osd"]
        size = sizes.get(number, {})
        osds[number] = {
            "uuid": row["uuid"],
            "up": bool(row["up"]),
            "in": bool(row["in"]),
            "destroyed": "destroyed" in row["state"],
            "weight": nodes.get(number, {}).get("crush_weight", 0),
            "device_class": nodes.get(number, {}).get("device_class", ""),
            "kib": size.get("kb", 0),
            "used": size.get("kb_used", 0),
        }
    pgmap = ceph.json("status")["pgmap"]
    return {
        "fsid": dump["fsid"],
        "osds": osds,
        "nodes": nodes,
        "pools": [
            {"name": pool["pool_name"], "size": pool["size"], "rule": pool["crush_rule"]} for pool in dump["pools"]
        ],
        "rules": {rule["rule_id"]: rule for rule in ceph.json("osd", "crush", "rule", "dump")},
        "nearfull": dump["nearfull_ratio"],
        "pgs": {row["state_name"]: row["count"] for row in pgmap.get("pgs_by_state", [])},
        "unfound": pgmap.get("unfound_objects", 0),
    }


def show(found: Mapping[str, Any], numbers: Sequence[int]) -> dict[str, Any]:
    """Of what was read, what is changed of the OSDs; those that are not there are left out."""
    return {
        f"osd.{number}": {key: found["osds"][number][key] for key in ("in", "weight", "destroyed")}
        for number in numbers
        if number in found["osds"]
    }


def holding(found: Mapping[str, Any], leaving: Sequence[int]) -> list[int]:
    """The OSDs that have or may get data once some have left."""
    return [
        number
        for number, osd in found["osds"].items()
        if number not in leaving and osd["in"] and osd["weight"] > 0 and not osd["destroyed"]
    ]


def problems(found: Mapping[str, Any], numbers: Sequence[int]) -> list[Problem]:
    """What would be missing without these OSDs: places for all copies, and room."""
    leaving = [number for number in numbers if number in found["osds"]]
    if not leaving:
        return []
    wrong = []
    # One that is half out already counts as there: going on with it is to be judged as beginning with it was.
    after = holding(found, leaving)
    before = [*after, *leaving]
    short: dict[tuple[int, str, int], list[str]] = {}
    for pool in found["pools"]:
        domain, root, device_class = _domain(found["rules"][pool["rule"]])
        left = len(_buckets(found, after, domain, root, device_class))
        there = len(_buckets(found, before, domain, root, device_class))
        if left < pool["size"] and left < there:
            short.setdefault((pool["size"], domain, left), []).append(pool["name"])
    wrong += [
        _problem(
            f"{', '.join(names)} keep {size} copies, each on another {domain}, and there would be {left} with OSDs",
            "add OSDs first",
        )
        for (size, domain, left), names in short.items()
    ]
    room = sum(found["osds"][number]["kib"] for number in after)
    used = sum(osd["used"] for osd in found["osds"].values())
    if used > room * found["nearfull"]:
        wrong.append(
            _problem(
                f"what is stored, {shown(used << 10)}, would fill the {shown(room << 10)} that are left beyond "
                f"{found['nearfull']:.0%}",
                "add OSDs first, or remove data that is not needed",
            )
        )
    return wrong


def _problem(cause: str, remedy: str) -> Problem:
    return Problem("osd_needed", "osd", cause, remedy=remedy)


def _domain(rule: Mapping[str, Any]) -> tuple[str, str, str]:
    """Of what no two copies share one, the root, and the device class of a CRUSH rule."""
    domain, root, device_class = "osd", "default", ""
    for step in rule["steps"]:
        if step["op"] == "take":
            root, _tilde, device_class = step["item_name"].partition("~")
        elif step["op"].startswith("choose"):
            domain = step["type"]
    return domain, root, device_class


def _buckets(found: Mapping[str, Any], osds: Sequence[int], domain: str, root: str, device_class: str) -> set[int]:
    """The buckets of a kind below a root that have one of the OSDs."""
    parents = {child: node["id"] for node in found["nodes"].values() for child in node.get("children", ())}
    buckets = set()
    for number in osds:
        if device_class and found["osds"][number]["device_class"] != device_class:
            continue
        place: int | None = number
        bucket = None
        while place is not None:
            node = found["nodes"].get(place)
            if node and node["type"] == domain:
                bucket = place
            if node and node["name"] == root and bucket is not None:
                buckets.add(bucket)
            place = parents.get(place)
    return buckets


def refuse(found: Mapping[str, Any], numbers: Sequence[int], state: str, lost: bool) -> None:
    """Stop before anything is changed.

    :param lost: the disk is gone for good, so that its copies are to be made again from the others in any case.
    :raises Refused: with everything that speaks against it.
    """
    leaving = [number for number in numbers if number in found["osds"] and not found["osds"][number]["destroyed"]]
    if state in KEPT:
        unknown = [f"osd.{number}" for number in numbers if number not in found["osds"]]
        if unknown:
            raise Refused(f"{', '.join(unknown)} is not in the cluster", "see 'sudo ceph osd tree'")
    if lost:
        wrong = _speaks_against_loss(found, leaving)
    else:
        wrong = problems(found, leaving)
        if wrong and state in KEPT:
            wrong.append(_problem("", "or, where the disk is broken for good, say so with lost"))
    if wrong:
        raise all_of(wrong)


def all_of(problems: Sequence[Problem]) -> Refused:
    """One refusal for all problems that were seen before anything was changed."""
    causes = "; ".join(problem.cause for problem in problems if problem.cause)
    remedies = "; ".join(dict.fromkeys(problem.remedy for problem in problems))
    return Refused(f"{causes}. Nothing was changed", remedies, code=problems[0].code, subject=problems[0].subject)


def _speaks_against_loss(found: Mapping[str, Any], leaving: Sequence[int]) -> list[Problem]:
    """A disk may only be given up as it is where everything that it held is somewhere else."""
    wrong = [
        _problem(f"osd.{number} runs, so its disk is not lost", "stop it, or leave out lost")
        for number in leaving
        if found["osds"][number]["up"]
    ]
    if leaving:
        wrong += [
            _problem(
                f"{found['pgs'][state]} placement groups are {state}, and what is left of this disk may be their only "
                "copy",
                "bring other OSDs back first",
            )
            for state in _inactive(found)
        ]
        if found["unfound"]:
            wrong.append(_problem(f"{found['unfound']} objects are nowhere else", "bring other OSDs back first"))
    return wrong


def _inactive(found: Mapping[str, Any]) -> list[str]:
    """The states of placement groups that serve nothing."""
    return sorted(state for state in found["pgs"] if "active" not in state.split("+"))


def is_passing(found: Mapping[str, Any]) -> bool:
    """Whether placement groups are inactive in no other way than one that soon passes by itself."""
    inactive = [set(state.split("+")) for state in _inactive(found)]
    return bool(inactive) and all(words & PASSING and not words & {"down", "incomplete"} for words in inactive)


def draining(found: Mapping[str, Any], numbers: Sequence[int], state: str) -> list[Step]:
    """What makes the others take over the data. An OSD whose number is kept keeps its place, so that data move once."""
    steps = []
    for number in numbers:
        osd = found["osds"].get(number)
        if not osd or osd["destroyed"]:
            continue
        if osd["in"]:
            steps.append(Step(f"move the data of osd.{number} to others", ("osd", "out", str(number))))
        if state not in KEPT and osd["weight"] > 0:
            # Its share of the map would move a second time when it is removed.
            steps.append(
                Step(
                    f"take the weight {osd['weight']:.5g} off osd.{number}",
                    ("osd", "crush", "reweight", f"osd.{number}", "0"),
                )
            )
    return steps


def ending(found: Mapping[str, Any], numbers: Sequence[int], state: str) -> list[Step]:
    """What takes the OSDs out of the map, or leaves but their numbers there."""
    there = [number for number in numbers if number in found["osds"]]
    sure = "--yes-i-really-mean-it"
    if state == ABSENT:
        return [Step(f"remove osd.{number}", ("osd", "purge", str(number), sure)) for number in there]
    if state == DESTROYED:
        return [
            Step(f"keep of osd.{number} its number and place alone", ("osd", "destroy", str(number), sure))
            for number in there
            if not found["osds"][number]["destroyed"]
        ]
    return []


def waits_for(ceph: Ceph, numbers: Sequence[int]) -> str:
    """Why these OSDs are still needed, as the cluster itself says; empty if they are not."""
    if not numbers:
        return ""
    try:
        ceph.json("osd", "safe-to-destroy", *map(str, numbers))
    except CephError as error:
        if error.rc in NOT_YET:
            return error.message
        raise
    return ""


def way_back(steps: Sequence[Step], before: Mapping[str, Any]) -> str:
    """The commands that take a drain back."""
    words = []
    for step in steps:
        if step.words[:2] == ("osd", "out"):
            words.append(f"ceph osd in {step.words[2]}")
        elif step.words[:3] == ("osd", "crush", "reweight"):
            name = step.words[3]
            words.append(f"ceph osd crush reweight {name} {before[name]['weight']:.5g}")
    return "; ".join(words)
