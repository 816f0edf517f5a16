# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files, directories and links that are brought into their state, one after another."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterable
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils import drift_system as system

Item = dict[str, Any]


class Refused(Exception):
    """It cannot be brought into its state; the words go behind the path and a colon."""


def problems(entries: Iterable[Item]) -> list[str]:
    """What is wrong with what is asked for, told before anything is changed."""
    found = []
    for item in entries:
        path, mode, check = item["path"], item.get("mode"), item.get("validate")
        if not path.startswith("/"):
            found.append(f"{path}: name an absolute path")
        if mode is not None and not (mode and set(mode) <= set("01234567")):
            found.append(f"{path}: mode {mode!r} is not in octal digits, such as '0644'")
        if check is not None and "%s" not in check:
            found.append(f"{path}: validate has no %s for the file that it checks: {check}")
    return found


def mend(module: AnsibleModule, item: Item) -> str | None:
    """Bring what differs into its state. The value is the copy that was kept of a file, if one was.

    :raises OSError, Refused: it stays as it was.
    """
    state, path = item["state"], item["path"]
    if state == "absent":
        _remove(path)
    elif state == "directory":
        _make_directory(module, item)
    elif state == "link":
        _link(path, item["src"])
    else:
        return _write(module, item)
    return None


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _make_directory(module: AnsibleModule, item: Item) -> None:
    path = item["path"]
    if os.path.lexists(path) and not os.path.isdir(path):
        raise Refused("is no directory; move it away")
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for path in reversed(missing):
        os.mkdir(path, 0o700)
        _give_rights(module, item, path)
    if not missing:
        _give_rights(module, item, path)


def _link(path: str, target: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        raise Refused(f"is a directory, and is to be a link to {target}; move it away")
    directory = tempfile.mkdtemp(dir=os.path.dirname(path), prefix=".baremetal-gpu-")
    try:
        draft = os.path.join(directory, "link")
        os.symlink(target, draft)
        os.replace(draft, path)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _write(module: AnsibleModule, item: Item) -> str | None:
    # An operator may keep the file elsewhere.
    path = os.path.realpath(item["path"])
    exists = os.path.isfile(path)
    if os.path.lexists(path) and not exists:
        raise Refused("is no file; move it away")
    backup = None
    if item.get("content") is None:
        if not exists:
            raise Refused("is missing, and no content is given")
    elif not exists or (item["force"] and system.read_bytes(path) != item["content"].encode("utf-8")):
        backup = _replace(module, item, path)
    _give_rights(module, item, path)
    return backup


def _replace(module: AnsibleModule, item: Item, path: str) -> str | None:
    descriptor, draft = tempfile.mkstemp(dir=module.tmpdir)
    module.add_cleanup_file(draft)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(item["content"].encode("utf-8"))
    if item.get("validate"):
        # The words are split first: a path with a blank stays one word.
        rc, out, err = module.run_command([word.replace("%s", draft) for word in shlex.split(item["validate"])])
        if rc != 0:
            raise Refused(
                f"the content did not pass {item['validate']}: {(err or out).strip() or f'it ended with {rc}'}"
            )
    if not os.path.isdir(os.path.dirname(path)):
        raise Refused(f"there is no directory {os.path.dirname(path)}")
    backup = str(module.backup_local(path)) if item["backup"] and os.path.exists(path) else None
    # What is new is for root alone until it has its mode.
    before = os.umask(0o077)
    try:
        module.atomic_move(draft, path)
    finally:
        os.umask(before)
    return backup


def _give_rights(module: AnsibleModule, item: Item, path: str) -> None:
    rights = {"path": path, **{key: item.get(key) for key in ("mode", "owner", "group")}}
    module.set_fs_attributes_if_different(module.load_file_common_arguments(rights), False)
