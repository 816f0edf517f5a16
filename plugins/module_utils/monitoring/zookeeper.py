# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the ZooKeeper server of this host serves, and how many servers its configuration names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring.part import Part
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import four_letter_words, node
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper.ensemble import ELECTION_S

# A server that follows without a vote answers clients as well.
MODES = (*four_letter_words.MEMBER_MODES, "observer")

Wait = Callable[[Callable[[dict[str, Any]], bool], Iterable[dict[str, Any]], float], dict[str, Any]]


def look(host: str, port: int, config: str, wait: Wait = four_letter_words.wait_until) -> Part:
    """The metrics of the server at `host` and `port`, with the file `config`.

    One that is between two leaders, or starts, is waited for: the series would say 0 until the next look.
    """
    part = Part()
    named = node.current([config]).get("servers")
    if named is None:
        part.complain(f"{config} cannot be read or is empty, so the number of servers is unknown")
    else:
        # A server alone needs no list.
        part.add("zookeeper_ensemble_servers", {}, float(len(named) or 1))
    modes = MODES if named else (*MODES, "standalone")

    def serves(seen: dict[str, Any]) -> bool:
        return seen["servers"][0]["mode"] in modes

    seen = wait(
        lambda found: serves(found) or found["servers"][0]["state"] == "not_allowed",
        [{"host": host, "port": port}],
        ELECTION_S,
    )
    row = seen["servers"][0]
    if row["state"] == "not_allowed":
        part.complain(f"it is unknown whether ZooKeeper serves: {row['why']}. To do: put srvr into zookeeper_words")
        return part
    part.add("zookeeper_serving", {}, float(serves(seen)))
    if not serves(seen):
        what = row["why"] or f"it is {row['mode']}, and {config} names {len(named or ())} servers"
        part.complain(f"ZooKeeper at {host}:{port} does not serve: {one_line(what)}")
    return part
