# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module as Ansible runs any; the files of the controller that its entries name go before it, all in one file.

A single one, such as NVIDIA's installer, goes as it is: a copy for each fork would fill the controller's disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.module_utils.common.validation import check_type_list
from ansible.plugins.action.normal import ActionModule as AsAnyModule


class ActionModule(AsAnyModule):
    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        entries = check_type_list(self._task.args.get("entries") or [])
        sources = {str(entry["source"]): "" for entry in entries if isinstance(entry, dict) and entry.get("source")}
        if sources:
            self._send(entries, sources)
        return dict(super().run(tmp, task_vars))

    def _send(self, entries: list[dict[str, Any]], sources: dict[str, str]) -> None:
        """Send the files, and name in the entries where in what was sent each is."""
        with contextlib.ExitStack() as done:
            for source in sources:
                # Where Ansible's vault has encrypted it, this is another file, with its clear text.
                sources[source] = self._loader.get_real_file(self._find_needle("files", source))
                done.callback(self._loader.cleanup_tmp_file, sources[source])
            (sent, *more), pack = sources.values(), None
            if more:
                pack = done.enter_context(tempfile.NamedTemporaryFile(dir=constants.DEFAULT_LOCAL_TMP))
                sent = pack.name
            parts = {source: _read(source, path, pack) for source, path in sources.items()}
            if pack:
                pack.flush()
            named = [{**parts.get(entry.get("source"), {}), **entry} for entry in entries]
            self._task.args = {**self._task.args, "entries": named}
            if not self._task.check_mode:
                self._task.args["pack"] = self._sent(sent)

    def _sent(self, path: str) -> str:
        """Send a file; its path on the host. It goes when the module has run."""
        directory = self._connection._shell.tmpdir or self._make_tmp_path()
        there: str = self._transfer_file(path, self._connection._shell.join_path(directory, "pack"))
        self._fixup_perms2((directory, there), execute=False)
        return there


def _read(source: str, path: str, pack: Any) -> dict[str, Any]:
    """The checksum of a file, and where its content is in the pack, to which it is copied; without one, in itself."""
    digest, begin, length = hashlib.sha256(), pack.tell() if pack else 0, 0
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                length += len(block)
                if pack:
                    pack.write(block)
    except OSError as error:
        raise AnsibleActionFail(f"{source} of the controller cannot be read: {error.strerror}") from error
    return {"sha256": digest.hexdigest(), "part": [begin, length]}
