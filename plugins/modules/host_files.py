#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_files
short_description: Bring files, directories and links of a host into their state
version_added: 0.1.0
description:
  - Writes, makes and removes all of them in one execution, in the order in which they are listed. The role
    P(baremetal.gpu.common#role) mends with it what M(baremetal.gpu.host_drift_info) found.
  - A file is replaced in one step and is never open to others before it has its mode. Where its path is a link, the
    file behind the link is replaced.
  - It stops at the first that cannot be brought into its state, and names it. What comes before it stays done.
  - Set C(no_log) on a task that writes secrets.
options:
  entries:
    description: The files, directories and links.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Absolute path.
        type: path
        required: true
      state:
        description: What should be at the path. With V(absent) a directory goes with all that is in it.
        type: str
        choices: [file, directory, link, absent]
        default: file
      content:
        description: Content of the file. Without it a file that is there keeps its own, and there must be one.
        type: str
      src:
        description: Where a link points to. A file in the link's place is replaced, a directory is not.
        type: str
      mode:
        description: Mode in octal digits, for a file or directory. Directories above that are missing get it too.
        type: str
      owner:
        description: Owner, by default who owns it, and root for what is new.
        type: str
      group:
        description: Group, by default the one that it has.
        type: str
      force:
        description: Whether a file with another content is replaced; otherwise it keeps it.
        type: bool
        default: true
      validate:
        description: Command that checks the content before it takes its place; C(%s) is the file.
        type: str
      backup:
        description: Whether to keep a copy of a file that is replaced beside it.
        type: bool
        default: false
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  check_mode:
    description: Can run in check mode and says what it would do; the content is not validated.
  diff_mode:
    description: Shows every file before and after.
  safe_file_operations:
    description: A file is replaced in one step.
    support: full
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Write a setting, and the directory that it is in
  baremetal.gpu.host_files:
    entries:
      - path: /etc/example.d
        state: directory
        mode: "0755"
      - path: /etc/example.d/site.conf
        content: "threads = 8\n"
        mode: "0644"
"""

RETURN = r"""
changes:
  description: What was not as wanted, by path, and is now. In check mode, what would be.
  returned: always
  type: dict
  sample: {/etc/example.d/site.conf: is missing}
backup_files:
  description: The copies that were kept, by path.
  returned: always
  type: dict
"""

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


def main() -> None:
    entry = {
        "path": {"type": "path", "required": True},
        "state": {"type": "str", "choices": ["file", "directory", "link", "absent"], "default": "file"},
        "content": {"type": "str"},
        "src": {"type": "str"},
        "mode": {"type": "str"},
        "owner": {"type": "str"},
        "group": {"type": "str"},
        "force": {"type": "bool", "default": True},
        "validate": {"type": "str"},
        "backup": {"type": "bool", "default": False},
    }
    module = AnsibleModule(
        argument_spec={
            "entries": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": entry,
                "required_if": [("state", "link", ["src"])],
            }
        },
        supports_check_mode=True,
    )
    wrong = problems(module.params["entries"])
    if wrong:
        module.fail_json(msg="; ".join(wrong))
    changes: dict[str, str] = {}
    diff, backups = [], {}
    for item in module.params["entries"]:
        path, why = item["path"], system.file_drift(item)
        if why is None:
            continue
        diff.append({"before_header": path, "after_header": path, **system.file_diff({**item, "why": why})})
        if not module.check_mode:
            try:
                backup = mend(module, item)
            except (OSError, Refused) as error:
                module.fail_json(msg=f"{path}: {error}", changed=bool(changes), changes=changes, backup_files=backups)
            if backup:
                backups[path] = backup
        changes[path] = why
    module.exit_json(changed=bool(changes), changes=changes, backup_files=backups, diff=diff)


if __name__ == "__main__":
    main()
