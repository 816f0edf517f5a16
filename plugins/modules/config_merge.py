#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: config_merge
short_description: Merge settings into a configuration file that others write to as well
version_added: 0.1.0
description:
  - Merges settings into a configuration file such as C(/etc/docker/daemon.json) and keeps everything else in it, in its
    order.
  - Replaces the file in one step, after O(validate) has accepted the new one.
  - With O(unit) the module also reloads or restarts the service, in the same execution. It records that before it
    writes the file, so the next run completes an interrupted one. If the service does not start, the module restores
    the earlier file and fails with the end of the service's log.
  - With O(record=true) the module records which settings it made. It removes a setting that is no longer listed, unless
    it was changed since, and restores the value that the setting replaced. A setting that existed before with
    the same value stays.
options:
  path:
    description: The file. A symbolic link is followed. A missing file is created, its directory too.
    type: path
    required: true
  format:
    description:
      - The format of the file.
      - In a TOML file the places of the changed values are rewritten, and comments and layout stay. A change inside an
        array of tables is refused.
    type: str
    choices: [json, toml]
    default: json
  state:
    description:
      - V(present) merges O(values) into the file.
      - V(absent) removes the module's settings. Without a record, these are the values of O(values) that the file still
        has. An empty file is removed.
    type: str
    choices: [present, absent]
    default: present
  values:
    description:
      - The settings. Tables are merged with those of the file, other values replace the file's.
      - A value that would replace a whole table, or a table that would replace a value, is refused. Name the key in
        O(remove) to allow it.
    type: dict
    default: {}
  remove:
    description:
      - Keys that must not be in the file, no matter what wrote them. Removed before O(values) are merged.
      - A removed value of others does not return when its key is no longer named here; a warning says so, in check mode
        too.
      - A key is a list of its parts from the top, or a string with dots between the parts.
      - A table that becomes empty is removed too.
    type: list
    elements: raw
    default: []
  lists:
    description:
      - What happens to a list of the file. V(replace) replaces it.
      - V(union) keeps it and adds the missing items.
    type: str
    choices: [replace, union]
    default: replace
  record:
    description: Whether to record in O(state_dir) which settings the module made.
    type: bool
    default: false
  withdraw_from:
    description:
      - Other files, from which the module removes all its recorded settings, such as the file of a service that another
        one has replaced. A file without a record is not read.
      - Their services are not restarted.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The file.
        type: path
        required: true
      format:
        description: The format of the file.
        type: str
        choices: [json, toml]
        default: json
  validate:
    description:
      - Command that checks the new file before it replaces the old one, with C(%s) for its path. Runs only before a
        change, in check mode too.
      - The program may be named without its directory. If it is not installed, the check is skipped. RV(validated) says
        whether it ran.
    type: str
  unit:
    description:
      - The systemd unit that reads the file. Restarted after a change if it is running.
      - A unit that does not run or does not exist is left alone.
    type: str
  reload_keys:
    description: Top-level keys for which a reload of the unit is enough.
    type: list
    elements: str
    default: []
  backup:
    description: Whether to keep the earlier file, under a name with the time in it.
    type: bool
    default: false
  state_dir:
    description: Directory in which the module records its settings and unfinished work.
    type: path
    default: /var/lib/baremetal-gpu/config_merge
extends_documentation_fragment:
  - ansible.builtin.files
  - baremetal.gpu.attributes.changes
attributes:
  check_mode:
    description: Can run in check mode and says what it would change without changing it.
  diff_mode:
    description: Shows the file before and after. The two are the same in check mode.
  safe_file_operations:
    description: Writes the file through a temporary one.
    support: full
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Let Docker hand devices out by CDI and keep what the operator has set
  baremetal.gpu.config_merge:
    path: /etc/docker/daemon.json
    values:
      features:
        cdi: true
    validate: dockerd --validate --config-file=%s
    unit: docker.service
    record: true
    backup: true
    mode: "0644"

- name: Add a mirror beside those that are there, and drop a key
  baremetal.gpu.config_merge:
    path: /etc/docker/daemon.json
    lists: union
    values:
      registry-mirrors: [https://mirror.example.com]
    remove: [graph]
    unit: docker.service
    reload_keys: [registry-mirrors]

- name: Configure Podman, and take out of Docker's file what was put in while Docker was used
  baremetal.gpu.config_merge:
    path: /etc/containers/containers.conf
    format: toml
    values:
      containers:
        pids_limit: 4096
    record: true
    withdraw_from:
      - path: /etc/docker/daemon.json

- name: Take out again what was put in
  baremetal.gpu.config_merge:
    path: /etc/docker/daemon.json
    state: absent
    record: true
    unit: docker.service
"""

RETURN = r"""
path:
  description: The file, after links were followed.
  returned: always
  type: str
changed_keys:
  description: The settings that are not the same before and after.
  returned: always
  type: list
  elements: str
  sample: [features.cdi]
action:
  description: What was done, or in check mode would be done, to the unit. V(none), V(reload) or V(restart).
  returned: always
  type: str
validated:
  description: Whether the new file was checked by O(validate).
  returned: always
  type: bool
backup_file:
  description: Where the earlier file is kept.
  returned: when O(backup=true) and there was a file to change
  type: str
"""

import errno
import os
import shlex
import tempfile
import time
from typing import Any, Callable

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.config import merge, toml
from ansible_collections.baremetal.gpu.plugins.module_utils.config import record as config_record
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files

MODE_OF_RECORDS = 0o600


# Format -> how to read a text, and how to make a text of data in place of an earlier one.
FORMATS: dict[str, tuple[Callable[[str], dict[str, Any]], Callable[[str, dict[str, Any]], str]]] = {
    "json": (merge.parse_json, lambda text, data: merge.render_json(data, like=text)),
    "toml": (toml.parse, toml.edit),
}


class Record(config_record.Record):
    """The record of one file, as this run leaves it."""

    def __init__(self, module: AnsibleModule, path: str) -> None:
        super().__init__(module.params["state_dir"], path)
        self.module = module
        try:
            self.load()
        except config_record.Unreadable as error:
            kept = f"{self.path}.unreadable"
            module.warn(
                f"{self.path} is unreadable and is made anew, so what the module has put into {path} stays there, and "
                f"what that replaced does not come back: {error}. It is kept as {kept}"
            )
            if not module.check_mode and os.path.isfile(self.path):
                os.replace(self.path, kept)
        self.saved = self.text()

    def save(self) -> None:
        text = self.text()
        if text == self.saved or self.module.check_mode:
            return
        if self.claims is None and self.pending is None and self.next is None:
            if os.path.exists(self.path):
                os.unlink(self.path)
        else:
            host_files.make_directories(os.path.dirname(self.path), 0o700)
            host_files.write(self.path, text, MODE_OF_RECORDS)
        self.saved = text


class Unit:
    """The service that reads the file."""

    def __init__(self, module: AnsibleModule, name: str) -> None:
        self.module = module
        self.name = name
        self.systemctl = module.get_bin_path("systemctl")

    def _systemctl(self, *arguments: str) -> tuple[int, str, str]:
        if not self.systemctl:
            return 1, "", "there is no systemctl"
        rc, out, err = self.module.run_command([self.systemctl, *arguments, self.name])
        return rc, out, err

    def running_since(self) -> float | None:
        """The monotonic second at which the running service was started, or None if it does not run."""
        rc, out, _err = self._systemctl("show", "--property=ActiveState,ExecMainStartTimestampMonotonic")
        properties = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
        if rc != 0 or properties.get("ActiveState") not in ("active", "activating", "reloading"):
            return None
        return int(properties.get("ExecMainStartTimestampMonotonic") or 0) / 1e6

    def do(self, action: str) -> str:
        """Restart or reload it. Returns what went wrong, or nothing."""
        rc, out, err = self._systemctl(action)
        return "" if rc == 0 else (err or out).strip()

    def start_again(self) -> str:
        # A service that failed a few times in a row is not started any more before this.
        self._systemctl("reset-failed")
        return self.do("restart")

    def log(self) -> str:
        journalctl = self.module.get_bin_path("journalctl")
        if not journalctl:
            return ""
        arguments = ["--no-pager", "--quiet", "--lines=15", "--output=cat", f"--unit={self.name}"]
        _rc, out, _err = self.module.run_command([journalctl, *arguments])
        return str(out).strip()


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        return stream.read().strip()


def write(module: AnsibleModule, path: str, text: str) -> None:
    try:
        with host_files.labelled(module, path):
            host_files.write(path, text, None)
    except OSError as error:
        if error.errno != errno.EBUSY or not module.params["unsafe_writes"]:
            module.fail_json(msg=f"{path} cannot be written: {error.strerror}", path=path)
        # It is mounted there, as in a container, and can only be written in its place.
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)


def real_path(module: AnsibleModule, path: str) -> str:
    """The path without links; where somebody else than root could lead it elsewhere, the module ends."""
    try:
        host_files.check(path)
    except OSError as error:
        module.fail_json(msg=f"{path} is left as it is: {error.strerror}", path=path)
    return os.path.realpath(path)


def read(module: AnsibleModule, path: str) -> str | None:
    """The text of the file, or None if there is none."""
    try:
        content = host_files.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(module.fail_json(msg=f"{path} cannot be read: {error.strerror}", path=path))
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8")
        raise merge.Malformed("not UTF-8", *merge.position(before, len(before))) from None


def check(module: AnsibleModule, path: str, text: str) -> bool:
    """Have the program that reads the file look at the new one. False where the program is not there."""
    if not module.params["validate"]:
        return False
    words = shlex.split(module.params["validate"])
    if not any("%s" in word for word in words):
        module.fail_json(msg="validate has no %s in it, which stands for the file to check", path=path)
    program = module.get_bin_path(words[0])
    if program is None:
        return False
    words[0] = program
    descriptor, temporary = tempfile.mkstemp(dir=module.tmpdir, suffix=os.path.splitext(path)[1])
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        rc, out, err = module.run_command([word.replace("%s", temporary) for word in words])
    finally:
        os.unlink(temporary)
    if rc != 0:
        module.fail_json(
            msg=f"{path} would not be valid with the wanted values and is left as it is: {words[0]} says: "
            f"{(err or out).strip().replace(temporary, path)}. Correct the values that are merged into it.",
            path=path,
            rc=rc,
        )
    return True


def outstanding(pending: dict[str, Any] | None, unit: Unit | None) -> str:
    """What the unit still has to do for an earlier change: none, reload or restart."""
    if pending is None or unit is None or pending.get("boot_id") != boot_id():
        return "none"
    since = unit.running_since()
    # A service that was started after the change has read it, whoever started it.
    return "none" if since is None or since > pending["monotonic"] else str(pending["action"])


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "format": {"type": "str", "choices": sorted(FORMATS), "default": "json"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "values": {"type": "dict", "default": {}},
            "remove": {"type": "list", "elements": "raw", "default": []},
            "lists": {"type": "str", "choices": ["replace", "union"], "default": "replace"},
            "record": {"type": "bool", "default": False},
            "withdraw_from": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "format": {"type": "str", "choices": sorted(FORMATS), "default": "json"},
                },
            },
            "validate": {"type": "str"},
            "unit": {"type": "str"},
            "reload_keys": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "backup": {"type": "bool", "default": False},
            "state_dir": {"type": "path", "default": config_record.DIRECTORY},
        },
        add_file_common_args=True,
        supports_check_mode=True,
    )
    params = module.params
    path = real_path(module, params["path"])
    result: dict[str, Any] = {
        "changed": False,
        "path": path,
        "changed_keys": [],
        "action": "none",
        "validated": False,
    }
    parse, render = FORMATS[params["format"]]

    # Gather.
    if os.path.isdir(path):
        module.fail_json(msg=f"{path} is a directory, not a {params['format'].upper()} file", path=path)
    try:
        text = read(module, path)
        before = parse(text or "")
    except merge.Malformed as error:
        module.fail_json(
            msg=f"{path} is not a valid {params['format'].upper()} file and is left untouched: line {error.line}, "
            f"column {error.column}: {error.reason}. Correct or remove the file, then run again.",
            path=path,
            line=error.line,
            column=error.column,
        )
        return
    record = Record(module, path)
    record.settle(text)
    unit = Unit(module, params["unit"]) if params["unit"] else None

    # Desired.
    claims, replaced = (record.claims, record.replaced) if params["record"] else (None, {})
    try:
        after, claimed, kept = merge.settled(
            before, params["state"], params["values"], params["remove"], params["lists"], claims, replaced
        )
        lost = merge.lost(before, [merge.key_path(key) for key in params["remove"]], claims)
    except (ValueError, merge.Conflict) as error:
        remedy = " Name the key in `remove` if that is what is wanted." if isinstance(error, merge.Conflict) else ""
        module.fail_json(msg=f"{path} is left as it is: {error}.{remedy}", path=path)
        return

    # Diff. A file whose settings are right is not written anew for the sake of its layout.
    differences = merge.differences(before, after)
    gone = params["state"] == "absent" and not after and text is not None and bool(differences)
    missing = params["state"] == "present" and text is None and bool(params["values"])
    rewrite = bool(differences) or missing
    try:
        new = "" if gone else render(text or "", after) if rewrite else (text or "")
    except toml.Unsupported as error:
        module.fail_json(msg=f"{path} is left as it is: {error}.", path=path)
        return
    result["changed_keys"] = [merge.name(path) for path in differences]
    result["diff"] = [
        {
            "before_header": path if text is not None else f"{path} (absent)",
            "after_header": f"{path} (absent)" if gone or (text is None and not rewrite) else path,
            "before": text or "",
            "after": new,
        }
    ]
    if lost:
        module.warn(
            f"{path}: {', '.join(map(merge.name, lost))} is removed, even if it was written by hand, and does not come "
            "back when `remove` no longer names it"
        )
    earlier = outstanding(record.pending, unit)
    if rewrite:
        result["changed"] = True
        result["validated"] = not gone and check(module, path, new)
        tops = {path[0] for path in differences}
        action = "reload" if tops <= set(params["reload_keys"]) else "restart"
        running = unit is not None and unit.running_since() is not None
        result["action"] = "restart" if "restart" in (earlier, action) else action
        if not running:
            result["action"] = "none"
    elif earlier != "none":
        result["changed"] = True
        result["action"] = earlier

    # Apply.
    if rewrite and not module.check_mode:
        if params["record"]:
            # Which of the two holds for the next run, if this one is cut, the file tells.
            record.announce(None if gone else new, claimed if params["state"] == "present" else None, kept)
        if result["action"] != "none":
            record.pending = {"action": result["action"], "boot_id": boot_id(), "monotonic": time.monotonic()}
        record.save()
        if params["backup"] and text is not None:
            result["backup_file"] = module.backup_local(path)
        if gone:
            os.unlink(path)
        else:
            host_files.make_directories(os.path.dirname(path))
            write(module, path, new)
    if not gone and os.path.exists(path):
        attributes: dict[str, Any] = {}
        arguments = module.load_file_common_arguments(params, path=path)
        if module.set_fs_attributes_if_different(arguments, False, attributes):
            result["changed"] = True
            result["diff"].append(attributes)
    if not module.check_mode:
        if unit is not None and result["action"] != "none":
            trouble = unit.do(result["action"])
            if trouble:
                take_file_back(module, record, unit, path, text, rewrite, trouble, result)
        record.pending = None
        if params["record"]:
            record.claims = claimed if params["state"] == "present" else None
            record.replaced = kept
        record.next = None
        record.save()
    for other in params["withdraw_from"]:
        withdraw_from(module, other["path"], other["format"], result)
    module.exit_json(**result)


def withdraw_from(module: AnsibleModule, name: str, file_format: str, result: dict[str, Any]) -> None:
    """Take out of a file what the module remembers to have put in."""
    path = real_path(module, name)
    record = Record(module, path)
    if not record.claims and record.next is None:
        return
    parse, render = FORMATS[file_format]
    text = None
    try:
        text = read(module, path)
        before = parse(text or "")
        record.settle(text)
        after = merge.withdraw(before, {}, [], module.params["lists"], record.claims, record.replaced)
        new = render(text or "", after) if after else ""
    except (merge.Malformed, toml.Unsupported) as error:
        # What is wrong with it is the business of whoever still uses it, and the record is kept.
        module.warn(f"{path} is left as it is, with settings that are wanted no longer: {error}")
        return
    differences = merge.differences(before, after)
    if differences:
        result["changed"] = True
        result["changed_keys"] += [f"{path}: {merge.name(key)}" for key in differences]
        header = path if after else f"{path} (absent)"
        result["diff"].append({"before_header": path, "after_header": header, "before": text or "", "after": new})
    if module.check_mode:
        return
    if differences:
        if module.params["backup"]:
            module.backup_local(path)
        if after:
            write(module, path, new)
        else:
            os.unlink(path)
    record.claims = record.pending = None
    record.replaced = {}
    record.save()


def take_file_back(
    module: AnsibleModule,
    record: Record,
    unit: Unit,
    path: str,
    text: str | None,
    rewritten: bool,
    trouble: str,
    result: dict[str, Any],
) -> None:
    """The service does not come up with the new file: give it the earlier one, and fail."""
    log = unit.log()
    if rewritten:
        if text is None:
            os.unlink(path)
        else:
            write(module, path, text)
        record.pending = record.next = None
        record.save()
        again = unit.start_again()
        state = (
            f"does not start with the earlier file either ({again})" if again else "runs with the earlier file again"
        )
    else:
        state = "was to be restarted for a change that an earlier run had made"
    module.fail_json(
        msg=f"{unit.name} did not {result['action']} with the new {path} and {state}: {trouble}. Correct the values "
        f"that are merged into the file. The end of its log: {log}",
        path=path,
        action=result["action"],
        changed_keys=result["changed_keys"],
    )


if __name__ == "__main__":
    main()
