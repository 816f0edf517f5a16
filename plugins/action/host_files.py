# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module as Ansible runs any; the files of the controller that its entries name go before it, all in one file."""

from __future__ import annotations

import hashlib
import tempfile
from typing import Any, BinaryIO

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.module_utils.common.validation import check_type_list
from ansible.plugins.action.normal import ActionModule as AsAnyModule


class ActionModule(AsAnyModule):
    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        entries = check_type_list(self._task.args.get("entries") or [])
        if any(isinstance(entry, dict) and entry.get("source") for entry in entries):
            with tempfile.NamedTemporaryFile(dir=constants.DEFAULT_LOCAL_TMP) as pack:
                self._task.args = {**self._task.args, "entries": [self._packed(entry, pack) for entry in entries]}
                pack.flush()
                if not self._task.check_mode:
                    self._task.args["pack"] = self._sent(pack.name)
        return dict(super().run(tmp, task_vars))

    def _packed(self, entry: dict[str, Any], pack: Any) -> dict[str, Any]:
        """An entry with the checksum of its file, and where in the pack the content is."""
        if not entry.get("source"):
            return entry
        # Where Ansible's vault has encrypted it, this is another file, with its clear text.
        path = self._loader.get_real_file(self._find_needle("files", entry["source"]))
        begin = pack.tell()
        try:
            with open(path, "rb") as file:
                digest = _copied(file, pack)
        except OSError as error:
            raise AnsibleActionFail(f"{entry['source']} of the controller cannot be read: {error.strerror}") from error
        finally:
            self._loader.cleanup_tmp_file(path)
        return {"sha256": digest, **entry, "part": [begin, pack.tell() - begin]}

    def _sent(self, path: str) -> str:
        """Send a file; its path on the host. It goes when the module has run."""
        directory = self._connection._shell.tmpdir or self._make_tmp_path()
        there: str = self._transfer_file(path, self._connection._shell.join_path(directory, "pack"))
        self._fixup_perms2((directory, there), execute=False)
        return there


def _copied(file: BinaryIO, pack: BinaryIO) -> str:
    """The checksum of what was copied."""
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
        pack.write(block)
    return digest.hexdigest()
