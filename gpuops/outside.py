# SPDX-License-Identifier: GPL-3.0-or-later
"""Where everything that hosts say enters gpuops: the events of ansible-runner, and files of JSON.

What comes in is cleaned here, once (see untrusted_document), and what is made of it may be printed and stored. A host
whose words nobody can make sense of is named, and does not keep the others from being heard.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils import untrusted_document

# What is raised where a document has another shape than its reader expects.
OF_ANOTHER_SHAPE = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)

Take = Callable[[Mapping[str, Any]], None]


class Events:
    """Hands on the events of ansible-runner, cleaned and with no secret in them.

    :param take: takes them.
    :param redact: takes secrets out of a document.
    """

    def __init__(self, take: Take, redact: Callable[[Any], Any] | None = None) -> None:
        self._take = take
        self._redact = redact
        self._odd: set[str] = set()

    def __call__(self, raw: Mapping[str, Any]) -> None:
        event = untrusted_document.cleaned(raw)
        data = event.get("event_data")
        host = str(data.get("host") or "") if isinstance(data, dict) else ""
        if self._redact:
            event = self._redact(event)
            data = event.get("event_data")
            if host:
                # Its name is the inventory's, and goes back to Ansible.
                event["event_data"] = data = {**data, "host": host}
        try:
            self._take(event)
        except OF_ANOTHER_SHAPE as error:
            if not host:
                raise
            if host not in self._odd:
                self._odd.add(host)
                print(
                    f"{host}: what it said at '{data.get('task')}' cannot be read "
                    f"({type(error).__name__}: {untrusted_text.one_line(error, 200)}), so it counts as not said. "
                    "Look at the host, and at the versions of what is installed there",
                    file=sys.stderr,
                )


def load(path: Path) -> Any:
    """What a file of JSON holds; None where there is none, or nothing that can be read."""
    try:
        return untrusted_document.load(str(path))
    except (OSError, ValueError):
        return None
