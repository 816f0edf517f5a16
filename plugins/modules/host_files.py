#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_files
short_description: Keep files, directories and links of a host
version_added: 0.1.0
description:
  - Writes, creates and removes all of them in one execution, in the listed order. The role
    P(baremetal.gpu.converge#role) uses it to remove drift that M(baremetal.gpu.host_drift_info) found.
  - Replaces a file in one step, with its mode from the start. If its path is a link that root owns, the file behind the
    link is replaced.
  - Does not follow a link that root does not own, or that is in a directory that others than root can change. It
    replaces such a link at the end of a path, and stops and names one further up. It replaces a hard link in such a
    directory, without reading it or changing its owner.
  - Stops at the first entry that fails, and names it. Earlier entries stay changed.
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
        description: What should be at the path. With V(absent) a directory is removed with its content.
        type: str
        choices: [file, directory, link, absent]
        default: file
      content:
        description:
          - Content of the file. Without it and O(entries[].source) the file must exist, and keeps its content.
        type: str
      source:
        description:
          - File of the controller with the content. Those of all entries are sent together.
          - Where their contents do not have O(entries[].sha256), the module stops before it changes anything.
        type: str
      sha256:
        description: Checksum of O(entries[].source), by default that of the controller's file.
        type: str
      part:
        description: Where in O(pack) the content is, its begin and its length in bytes. Set on the controller.
        type: list
        elements: int
      src:
        description:
          - Target of a link. A file in the link's place is replaced, a directory is not.
          - With O(entries[].state=absent) only a link to that target is removed.
        type: str
      mode:
        description:
          - Mode in octal digits, for a file or directory.
          - Missing directories above it become root's, with C(0755).
        type: str
      owner:
        description: Owner, by default the current one, or root for a new entry.
        type: str
      group:
        description: Group, by default the current one.
        type: str
      reclaim:
        description:
          - For a directory, whether those above it that have its owner, group and mode are given back to root, with
            C(0755). Earlier versions made missing ones so.
        type: bool
        default: false
      force:
        description: Whether a file with another content is replaced; otherwise it keeps it.
        type: bool
        default: true
      validate:
        description: Command that checks the content before the file is replaced; C(%s) is the file.
        type: str
      backup:
        description: Whether to keep a copy of a replaced file beside it.
        type: bool
        default: false
  no_links:
    description:
      - Paths that other modules write afterwards. A link there that root does not own, or that is in a directory that
        others than root can change, is removed. The module stops if such a link is further up in the path.
    type: list
    elements: path
    default: []
  pack:
    description: File of the host with the content of each O(entries[].source). Set on the controller.
    type: path
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

import contextlib
import hashlib
import os
import shlex
import stat
import tempfile
import time
from collections.abc import Iterable
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.drift import system
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import KEEP, Place

Item = dict[str, Any]


def words(path: str, error: Exception) -> str:
    return str(error) if isinstance(error, host_files.Unsafe) else f"{path}: {error}"


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


def content_of(module: AnsibleModule, item: Item) -> bytes | None:
    """What a file is to hold; None where it keeps what it has."""
    if item.get("part"):
        begin, length = item["part"]
        with open(module.params["pack"], "rb") as pack:
            pack.seek(begin)
            return pack.read(length)
    return None if item.get("content") is None else str(item["content"]).encode("utf-8")


def torn(module: AnsibleModule, entries: Iterable[Item]) -> list[str]:
    """Which files of the controller did not come as they should be, told before anything is changed."""
    found = []
    for item in entries:
        if item.get("source") and not module.check_mode:
            wanted = str(item.get("sha256")).lower()
            if hashlib.sha256(content_of(module, item) or b"").hexdigest() != wanted:
                found.append(
                    f"{item['path']}: its SHA-256 did not match, {item['source']} of the controller is not {wanted}. "
                    "To do: fetch the file again, or correct the checksum"
                )
    return found


def led_astray(entries: Iterable[Item], paths: Iterable[str]) -> list[str]:
    """Where the way leads through a link that others than root can turn, told before anything is changed."""
    found, removed = [], []
    for item in [*entries, *({"path": path} for path in paths)]:
        path = item["path"]
        if item.get("state") == "absent":
            removed.append(f"{path}/")
        if path.startswith(tuple(removed)):
            # What leads there may go before.
            continue
        try:
            with host_files.place(path):
                continue
        except host_files.Unsafe as error:
            found.append(str(error))
        except OSError:
            continue
    return found


def mend(module: AnsibleModule, item: Item) -> str | None:
    """Bring what differs into its state. The value is the copy that was kept of a file, if one was.

    :raises OSError, Refused: it stays as it was.
    """
    state, path = item["state"], item["path"]
    if state == "absent":
        host_files.remove(path)
    elif state == "directory":
        _make_directory(item)
    elif state == "link":
        _link(path, item["src"])
    else:
        try:
            with host_files.place(path, follow=True) as there:
                return _write(module, item, there)
        except FileNotFoundError:
            raise Refused(f"there is no directory {os.path.dirname(path)}") from None
    return None


def _ids(item: Item) -> tuple[int, int]:
    """Numbers of owner and group, KEEP for what is not asked for."""
    found = []
    for key, lookup in (("owner", system.user_id), ("group", system.group_id)):
        name = item.get(key)
        number = KEEP if name is None else lookup(str(name))
        if number is None:
            raise Refused(f"there is no {key} {name} on the host; make it first")
        found.append(number)
    return found[0], found[1]


def _mode(item: Item) -> int | None:
    return None if item.get("mode") is None else int(item["mode"], 8)


def _make_directory(item: Item) -> None:
    path, (uid, gid) = item["path"], _ids(item)
    try:
        mode = _mode(item)
        made = host_files.make_directories(path, 0o700 if mode is None else mode, uid, gid)
    except NotADirectoryError:
        raise Refused("is not a directory; move it away") from None
    # The highest first: from there on nobody else turns the way to the next.
    for parent in system.above(item, path):
        with host_files.place(parent, follow=True) as there:
            there.give(0o755, 0, 0)
    if not made:
        with host_files.place(path, follow=True) as there:
            there.give(mode, uid, gid)


def _link(path: str, target: str) -> None:
    with host_files.place(path) as there:
        status = there.status()
        if status is not None and stat.S_ISDIR(status.st_mode):
            raise Refused(f"is a directory, and is to be a link to {target}; move it away")
        there.link(target)


def _write(module: AnsibleModule, item: Item, there: Place) -> str | None:
    status, content, mode, (uid, gid) = there.status(), content_of(module, item), _mode(item), _ids(item)
    # A link is here only where it is somebody else's; it is replaced.
    is_link = status is not None and stat.S_ISLNK(status.st_mode)
    if status is not None and not (stat.S_ISREG(status.st_mode) or is_link):
        raise Refused("is not a file; move it away")
    if content is None:
        if status is None:
            raise Refused("is missing, and no content is given")
    elif status is None or is_link or _differs(item, content, there):
        return _replace(module, item, content, there, None if is_link else status)
    there.give(mode, uid, gid)
    return None


def _differs(item: Item, content: bytes, there: Place) -> bool:
    try:
        return bool(item["force"]) and there.read() != content
    except host_files.Unsafe:
        # It has a second name: a file of its own takes its place.
        return True


def _replace(
    module: AnsibleModule, item: Item, content: bytes, there: Place, status: os.stat_result | None
) -> str | None:
    if item.get("validate"):
        _validate(module, item["validate"], content)
    mode, (uid, gid) = _mode(item), _ids(item)
    real, backup = there.real_path, None
    if status is not None:
        if item["backup"]:
            backup = f"{real}.{os.getpid()}.{time.strftime('%Y-%m-%d@%H:%M:%S~')}"
            host_files.write(backup, there.read(), stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
        uid, gid = (status.st_uid if uid == KEEP else uid), (status.st_gid if gid == KEEP else gid)
        mode = stat.S_IMODE(status.st_mode) if mode is None else mode
    # What is new and has no mode is for root alone.
    with contextlib.nullcontext() if there.is_foreign else host_files.labelled(module, real):
        there.replace(content, 0o600 if mode is None else mode, uid, gid)
    return backup


def _validate(module: AnsibleModule, command: str, content: bytes) -> None:
    descriptor, draft = tempfile.mkstemp(dir=module.tmpdir)
    module.add_cleanup_file(draft)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
    # The words are split first: a path with a blank stays one word.
    rc, out, err = module.run_command([word.replace("%s", draft) for word in shlex.split(command)])
    if rc != 0:
        raise Refused(f"the content did not pass {command}: {(err or out).strip() or f'it ended with {rc}'}")


def without_foreign_link(path: str, pretend: bool) -> bool:
    """Whether a link that is not root's own was in a path's place; it is removed.

    :raises OSError: where the way leads through one.
    """
    try:
        with host_files.place(path, follow=True) as there:
            status = there.status()
            planted = status is not None and stat.S_ISLNK(status.st_mode)
            if planted and not pretend:
                there.remove()
            return planted
    except FileNotFoundError:
        return False


def main() -> None:
    entry = {
        "path": {"type": "path", "required": True},
        "state": {"type": "str", "choices": ["file", "directory", "link", "absent"], "default": "file"},
        "content": {"type": "str"},
        "source": {"type": "str"},
        "sha256": {"type": "str"},
        "part": {"type": "list", "elements": "int"},
        "src": {"type": "str"},
        "mode": {"type": "str"},
        "owner": {"type": "str"},
        "group": {"type": "str"},
        "reclaim": {"type": "bool", "default": False},
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
            },
            "no_links": {"type": "list", "elements": "path", "default": []},
            "pack": {"type": "path"},
        },
        supports_check_mode=True,
    )
    wrong = problems(module.params["entries"])
    wrong = wrong or led_astray(module.params["entries"], module.params["no_links"])
    wrong = wrong or torn(module, module.params["entries"])
    if wrong:
        module.fail_json(msg="; ".join(wrong))
    changes: dict[str, str] = {}
    diff: list[Item] = []
    backups: dict[str, str] = {}
    for item in module.params["entries"]:
        path, why = item["path"], system.file_drift(item)
        if why is None:
            continue
        diff.append({"before_header": path, "after_header": path, **system.file_diff({**item, "why": why})})
        if not module.check_mode:
            try:
                backup = mend(module, item)
            except (OSError, Refused) as error:
                module.fail_json(msg=words(path, error), changed=bool(changes), changes=changes, backup_files=backups)
            if backup:
                backups[path] = backup
        changes[path] = why
    for path in module.params["no_links"]:
        try:
            planted = without_foreign_link(path, module.check_mode)
        except OSError as error:
            module.fail_json(msg=words(path, error), changed=bool(changes), changes=changes, backup_files=backups)
        if planted:
            changes[path] = "is a link that is not root's own"
            diff.append({"before_header": path, "after_header": path, "before": "a link\n", "after": ""})
    module.exit_json(changed=bool(changes), changes=changes, backup_files=backups, diff=diff)


if __name__ == "__main__":
    main()
