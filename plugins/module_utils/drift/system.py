# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the files, units, kernel modules and alternatives of a host differ from what is wanted. Reads only."""

from __future__ import annotations

import difflib
import fnmatch
import glob
import grp
import hashlib
import os
import pwd
import re
import stat
from collections.abc import Iterable, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import driver
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Call
from ansible_collections.baremetal.gpu.plugins.module_utils.system.kernels import installed_kernels, kernels_to_check

# Answers of `systemctl is-enabled` with exit status 0, and what an alias of an enabled unit says.
ENABLED = ("enabled", "enabled-runtime", "static", "indirect", "generated", "alias", "linked", "linked-runtime")
MASKED = ("masked", "masked-runtime")
# Characters of a file that a diff shows in full: Ansible's own limit (max_diff_size). A program of the collection is
# larger, and nobody reads its 7000 lines once per host.
LARGE = 104_448
UNIT_PROPERTIES = ("Id", "Names", "LoadState", "ActiveState", "UnitFileState", "NeedDaemonReload")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def user_id(name: str) -> int | None:
    if name.isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def group_id(name: str) -> int | None:
    if name.isdigit():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


# --- files -----------------------------------------------------------------------------------------------------------


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a link"
    if stat.S_ISDIR(mode):
        return "a directory"
    return "a file" if stat.S_ISREG(mode) else "neither file nor directory"


def _attributes(item: dict[str, Any], status: os.stat_result) -> list[str]:
    """In words, what is wrong with mode and owner."""
    wrong = []
    if item.get("mode"):
        mode, wanted = stat.S_IMODE(status.st_mode), int(str(item["mode"]), 8)
        if mode != wanted:
            wrong.append(f"mode is {mode:04o}, not {wanted:04o}")
    for key, have, lookup in (("owner", status.st_uid, user_id), ("group", status.st_gid, group_id)):
        if not item.get(key):
            continue
        wanted_id = lookup(str(item[key]))
        if wanted_id is None:
            wrong.append(f"{key} {item[key]} does not exist yet")
        elif have != wanted_id:
            wrong.append(f"{key} is {have}, not {item[key]}")
    return wrong


def above(item: dict[str, Any], path: str) -> list[str]:
    """What `reclaim` gives back to root: directories above one that have its mode and owner, the highest first."""
    uid, gid = user_id(str(item.get("owner") or "")), group_id(str(item.get("group") or ""))
    if not item.get("reclaim") or not item.get("mode") or uid is None or gid is None:
        return []
    return host_files.handed_down(path, int(str(item["mode"]), 8), uid, gid)


def _content(item: dict[str, Any], there: host_files.Place) -> str | None:
    """In words, what is wrong with the content, None if nothing is."""
    wanted, checksum = item.get("content"), item.get("sha256")
    if wanted is None and not checksum:
        return None
    try:
        have = there.read()
    except host_files.Unsafe as error:
        return str(error.strerror)
    except OSError:
        return "content differs"
    same = have == wanted.encode("utf-8") if wanted is not None else sha256(have) == str(checksum).lower()
    return None if same else "content differs"


def file_drift(item: dict[str, Any], root: str = "/") -> str | None:
    """Why a file, directory or link is not as wanted; None if it is."""
    path, state = below(root, item["path"]), item.get("state") or "file"
    try:
        # What a link of root's leads to counts: an operator may keep the file elsewhere.
        with host_files.place(path, follow=state in ("file", "directory")) as there:
            return _drift(item, state, there)
    except (FileNotFoundError, NotADirectoryError):
        if state == "absent":
            return None
        return "is a link to nothing" if os.path.islink(path) else "is missing"
    except OSError as error:
        return str(error.strerror)


def _drift(item: dict[str, Any], state: str, there: host_files.Place) -> str | None:
    status = there.status()
    if state == "absent":
        # With a target, a link that leads elsewhere and what is no link belong to somebody else.
        return "exists" if status is not None and item.get("src") in (None, _target(status, there)) else None
    if status is None:
        return "is a link to nothing" if os.path.islink(there.path) else "is missing"
    if state == "link":
        if not stat.S_ISLNK(status.st_mode):
            return f"is {_kind(status.st_mode)}, not a link"
        target = _target(status, there)
        return None if target == item["src"] else f"points to {target}"
    right_kind = stat.S_ISDIR(status.st_mode) if state == "directory" else stat.S_ISREG(status.st_mode)
    if not right_kind:
        return f"is {_kind(status.st_mode)}, not a {state}"
    wrong = _attributes(item, status)
    wrong += [f"{path} above it is {item['owner']}'s, not root's" for path in above(item, there.path)]
    if state == "file" and item.get("force") is not False:
        content = _content(item, there)
        if content:
            wrong.insert(0, content)
    return ", ".join(wrong) or None


def _target(status: os.stat_result, there: host_files.Place) -> str | None:
    """Where a link leads; None for what is no link."""
    return os.readlink(there.name, dir_fd=there.directory) if stat.S_ISLNK(status.st_mode) else None


def file_diff(item: dict[str, Any], root: str = "/") -> dict[str, str]:
    """Before and after of a drifted file; ``prepared`` instead, the differing lines alone, where it is large."""
    state = item.get("state") or "file"
    before = _shown_now(item, below(root, item["path"]))
    wanted = _shown_wanted(item)
    after = before if wanted is None else wanted
    if state == "file" and before == after and before:
        # Then it is the mode or the owner, which a diff of content would not show.
        before, after = f"{item['why']}\n", "as wanted\n"
    if max(len(before), len(after)) <= LARGE:
        return {"before": before, "after": after}
    if before and after:
        lines = difflib.unified_diff(
            before.splitlines(keepends=True), after.splitlines(keepends=True), f"before: {item['path']}", item["path"]
        )
        prepared = "".join(lines)
        if len(prepared) <= LARGE:
            return {"prepared": prepared}
    return {"before": _in_short(before), "after": _in_short(after)}


def _shown_now(item: dict[str, Any], path: str) -> str:
    state = item.get("state") or "file"
    try:
        with host_files.place(path, follow=state in ("file", "directory")) as there:
            status = there.status()
            if status is None:
                return f"link to {os.readlink(path)}\n" if os.path.islink(path) else ""
            if stat.S_ISLNK(status.st_mode):
                return f"link to {os.readlink(there.name, dir_fd=there.directory)}\n"
            if stat.S_ISDIR(status.st_mode):
                return "directory\n"
            if item.get("sensitive"):
                return "content is not shown\n"
            data = there.read()
    except host_files.Unsafe as error:
        return f"content is not shown: {error.strerror}\n"
    except OSError:
        return f"link to {os.readlink(path)}\n" if os.path.islink(path) else ""
    return f"binary, sha256 {sha256(data)}\n" if b"\0" in data else data.decode("utf-8", "replace")


def _shown_wanted(item: dict[str, Any]) -> str | None:
    """What the path should hold; None where any content will do."""
    state = item.get("state") or "file"
    if state == "link":
        return f"link to {item['src']}\n"
    if state == "directory":
        return "directory\n"
    if state == "absent":
        return ""
    if item.get("sensitive"):
        return "content is not shown, and differs\n"
    if item.get("content") is not None:
        return str(item["content"])
    return f"sha256 {item['sha256']}\n" if item.get("sha256") else None


def _in_short(text: str) -> str:
    if len(text) <= LARGE:
        return text
    data = text.encode("utf-8", "replace")
    return f"{text.count(chr(10))} lines, {len(data)} bytes, too much to show, sha256 {sha256(data)}\n"


# --- units -----------------------------------------------------------------------------------------------------------


def parse_systemctl_show(text: str) -> dict[str, dict[str, str]]:
    """`systemctl show` of several units: each of a unit's names -> its properties."""
    units: dict[str, dict[str, str]] = {}
    for block in text.split("\n\n"):
        properties = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        for name in {properties.get("Id", ""), *properties.get("Names", "").split()} - {""}:
            units[name] = properties
    return units


def unit_name(name: str) -> str:
    return name if "." in name else f"{name}.service"


def read_units(names: Iterable[str], run: Call) -> dict[str, dict[str, str]]:
    wanted = sorted({unit_name(name) for name in names})
    if not wanted:
        return {}
    _code, out = run(["systemctl", "show", f"--property={','.join(UNIT_PROPERTIES)}", "--", *wanted])
    return parse_systemctl_show(out)


def is_active(properties: dict[str, str] | None) -> bool:
    return (properties or {}).get("ActiveState") in ("active", "reloading", "refreshing", "activating")


def unit_drift(item: dict[str, Any], properties: dict[str, str] | None) -> tuple[list[str], list[str]]:
    """Why a unit is not as wanted and what to do, both empty if it is."""
    properties = properties or {}
    load, file_state = properties.get("LoadState", "not-found"), properties.get("UnitFileState", "")
    masked = load == "masked" or file_state in MASKED
    wanted_masked, enabled, state = item.get("masked"), item.get("enabled"), item.get("state")
    why: list[str] = []
    actions: list[str] = []
    if load == "not-found" and not masked:
        for wanted, action in ((wanted_masked, "mask"), (enabled, "enable"), (state == "started", "start")):
            if wanted:
                # Its package may start it before its files are there, in vain, until systemd refuses it.
                actions += ["reset", action] if action == "start" else [action]
        return (["does not exist yet"] if actions else []), actions
    if masked and (wanted_masked is False or (not wanted_masked and (enabled or state == "started"))):
        why, actions = ["is masked"], ["unmask", *(["enable"] if enabled else [])]
    elif wanted_masked and not masked:
        why, actions = ["is not masked"], ["mask"]
    if enabled is not None and not masked and (file_state in ENABLED) != enabled:
        # A unit without an [Install] section counts as enabled, and cannot be disabled any further.
        if enabled:
            why.append(f"is {file_state or 'not enabled'}")
            actions.append("enable")
        elif file_state not in ("static", "indirect", "generated", "alias"):
            why.append("is enabled")
            actions.append("disable")
    if state == "started" and not is_active(properties):
        why.append(f"is {properties.get('ActiveState') or 'not running'}")
        # Else systemd refuses to start what has failed too often of late; for Ceph's daemons that is half an hour.
        actions += ["reset", "start"] if properties.get("ActiveState") == "failed" else ["start"]
    if state == "stopped" and is_active(properties):
        why.append("is running")
        actions.append("stop")
    if properties.get("NeedDaemonReload") == "yes":
        why.append("changed on disk, and systemd has not read it")
        actions.append("read")
    return why, actions


# --- kernel modules --------------------------------------------------------------------------------------------------


def read_kernel_modules(root: str = "/", kernel: str = "") -> tuple[dict[str, list[str]], set[str]]:
    """Loaded modules with what holds each, and the names of what is built in."""
    loaded = {}
    # What is built in has a directory here too, but no state.
    for state in glob.glob(below(root, "/sys/module/*/initstate")):
        directory = os.path.dirname(state)
        try:
            holders = sorted(os.listdir(os.path.join(directory, "holders")))
        except OSError:
            holders = []
        users = read_text(os.path.join(directory, "refcnt")).strip()
        loaded[os.path.basename(directory)] = holders or ([f"{users} users"] if users not in ("", "0", "-1") else [])
    builtin = {
        os.path.basename(line).split(".")[0].replace("-", "_")
        for line in read_text(below(root, f"/lib/modules/{kernel}/modules.builtin")).splitlines()
    }
    return loaded, builtin


def module_name(name: str) -> str:
    return name.replace("-", "_")


def device_users(patterns: Iterable[str], units: Iterable[str] = (), root: str = "/") -> list[str]:
    """Processes that have device files open, as `name (pid N)`; those of the given units do not count."""
    patterns, own = list(patterns), [f"/{unit_name(unit)}" for unit in units]
    users = []
    for directory in glob.glob(below(root, "/proc/[0-9]*")):
        try:
            targets = {os.readlink(path) for path in glob.glob(os.path.join(directory, "fd", "*"))}
        except OSError:
            # It ended meanwhile.
            continue
        if not any(fnmatch.fnmatchcase(target, pattern) for target in targets for pattern in patterns):
            continue
        groups = read_text(os.path.join(directory, "cgroup"))
        if not any(unit in groups for unit in own):
            name = read_text(os.path.join(directory, "comm")).strip() or "?"
            users.append(f"{name} (pid {os.path.basename(directory)})")
    return sorted(users)


def kernel_module_drift(
    item: dict[str, Any],
    loaded: dict[str, list[str]],
    builtin: set[str],
    other: str | None = None,
    root: str = "/",
) -> dict[str, Any] | None:
    """Why a kernel module is not as wanted and what to do; None if it is.

    `other` says why another module than the loaded one ought to be loaded, where that matters.
    """
    name = module_name(item["name"])
    if item.get("state", "loaded") == "unloaded":
        if name in loaded:
            users = device_users(item.get("devices") or (), item.get("units") or (), root)
            by = loaded[name] + users
            held = f" and held by {', '.join(by)}" if by else ""
            return {"why": f"is loaded{held}", "actions": ["unload"], **({"held_by": users} if users else {})}
        return {"why": "is built into the kernel", "actions": ["unload"]} if name in builtin else None
    if name not in loaded:
        return None if name in builtin else {"why": "is not loaded", "actions": ["load"]}
    if not other:
        return None
    # In this order, the module itself last.
    unload = [one for one in [*map(module_name, item.get("unload_first") or ()), name] if one in loaded]
    foreign = sorted({holder for one in unload for holder in loaded[one] if " " not in holder} - set(unload))
    users = device_users(item.get("devices") or (), item.get("units") or (), root) + foreign
    if users:
        return {"why": f"{other}, and {', '.join(users)} hold it", "actions": ["reboot"], "held_by": users}
    return {"why": other, "actions": ["reload"], "unload": unload}


# --- DKMS ------------------------------------------------------------------------------------------------------------


def dkms_kernels(item: dict[str, Any], root: str = "/", running: str = "") -> list[str]:
    """The kernels that DKMS is to have built an item for."""
    return kernels_to_check(item.get("kernels") or "installed", running, installed_kernels(root))


def _dkms_known(
    item: dict[str, Any], kernels: list[str], root: str
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The driver's modules and versions in DKMS' tree, and whatever else there has a name of the pattern."""
    tree = below(root, "/var/lib/dkms")
    # A version that is known to DKMS has a link to its source; a failed build may leave directories without one.
    paths = sorted(glob.glob(os.path.join(tree, item["name"], "*", "source")))
    known = [(path.split(os.sep)[-3], path.split(os.sep)[-2]) for path in paths]
    own = [
        (name, version)
        for (name, version), path in zip(known, paths)
        if driver.is_dkms_driver(name, version)
        and fnmatch.fnmatchcase(version, (item.get("version") or "*").split(":", 1)[-1].split("-", 1)[0])
        # Without its source it can be built for no further kernel, which is no fault while there is none.
        and (_dkms_source(path, root) or all(_dkms_installed(name, version, kernel, root) for kernel in kernels))
    ]
    # An upgrade may have left an older one behind. The libraries say which one it is that counts.
    installed = driver.library_version(root)
    own = [one for one in own if one[1] == installed] or own
    return own, [one for one in known if one not in own]


def _dkms_source(path: str, root: str) -> bool:
    """Whether the source of a module is there: what is left of a removed one is a link to nothing."""
    try:
        target = os.readlink(path)
    except OSError:
        return os.path.isdir(path)
    return os.path.isdir(below(root, target) if target.startswith("/") else os.path.join(os.path.dirname(path), target))


def _dkms_installed(name: str, version: str, kernel: str, root: str) -> bool:
    links = glob.glob(below(root, f"/var/lib/dkms/{glob.escape(name)}/kernel-{glob.escape(kernel)}-*"))
    return any(os.path.islink(link) and os.readlink(link).split("/")[0] == version for link in links)


def dkms_notes(item: dict[str, Any], root: str = "/", running: str = "") -> list[str]:
    """What in DKMS' tree is not the driver's and does not build, which is nothing that a role has to mend."""
    kernels = dkms_kernels(item, root, running)
    _own, strangers = _dkms_known(item, kernels, root)
    notes = []
    for name, version in strangers:
        remove = f"`dkms remove {name}/{version} --all`"
        if not _dkms_source(below(root, f"/var/lib/dkms/{name}/{version}/source"), root):
            notes.append(f"DKMS knows {name} {version}, whose source is gone; forget it with {remove}")
        elif not all(_dkms_installed(name, version, kernel, root) for kernel in kernels):
            notes.append(
                f"DKMS has {name} {version} not built for every kernel; it is not part of the wanted driver; "
                f"if it is not needed, remove it with {remove}"
            )
    return notes


def dkms_drift(item: dict[str, Any], root: str = "/", running: str = "") -> list[dict[str, Any]]:
    """For which kernels the driver's module is not installed by DKMS, with the end of the log of its build."""
    tree = below(root, "/var/lib/dkms")
    kernels = dkms_kernels(item, root, running)
    versions, _strangers = _dkms_known(item, kernels, root)
    found = []
    for kernel in kernels:
        if not versions:
            found.append({"name": item["name"], "kernel": kernel, "why": "has no source yet"})
        for name, version in versions:
            if _dkms_installed(name, version, kernel, root):
                continue
            why = f"version {version} is not installed"
            log = read_text(os.path.join(tree, name, version, "build", "make.log"))
            if log and kernel in log:
                why += f"; its build ends with: {log_end(log)}"
            found.append({"name": name, "version": version, "kernel": kernel, "why": why})
    return [{**row, "actions": ["build"]} for row in found]


def log_end(text: str, lines: int = 15) -> str:
    return " | ".join(line.strip() for line in text.splitlines()[-lines:] if line.strip())


# --- alternatives ----------------------------------------------------------------------------------------------------


def parse_alternatives(text: str) -> dict[str, int]:
    """Path -> priority of a file in the database of alternatives, dpkg's or Enterprise Linux's.

    The latter may have a family (`@name@`) before the priority and a service behind it.
    """
    lines = text.split("\n")
    try:
        # Status and master link, then pairs of a slave's name and link up to an empty line.
        start = 2
        while lines[start]:
            start += 2
        slaves = (start - 2) // 2
        index, found = start + 1, {}
        while index < len(lines) and lines[index]:
            found[lines[index]] = int(re.sub("^@[^@]*@", "", lines[index + 1]).split()[0])
            index += 2 + slaves
        return found
    except (IndexError, ValueError):
        return {}


def alternative_drift(item: dict[str, Any], root: str = "/") -> str | None:
    database = ""
    for directory in ("/var/lib/dpkg/alternatives", "/var/lib/alternatives"):
        database = database or read_text(below(root, f"{directory}/{item['name']}"))
    registered = parse_alternatives(database)
    if (item.get("state") or "present") == "absent":
        return "is registered" if item["path"] in registered else None
    if item["path"] not in registered:
        return "is not registered"
    if item.get("priority") is not None and registered[item["path"]] != item["priority"]:
        return f"has priority {registered[item['path']]}, not {item['priority']}"
    try:
        chosen = os.readlink(below(root, f"/etc/alternatives/{item['name']}"))
    except OSError:
        return "has no link in /etc/alternatives"
    if chosen != item["path"]:
        return f"{chosen} is chosen"
    if item.get("link") and not os.path.islink(below(root, item["link"])):
        return f"{item['link']} is missing"
    return None


# --- initramfs -------------------------------------------------------------------------------------------------------

INITRAMFS_TOOLS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("usr/sbin/update-initramfs", ("update-initramfs", "-u", "-k", "all")),
    ("usr/bin/dracut", ("dracut", "--force", "--regenerate-all")),
    ("usr/sbin/dracut", ("dracut", "--force", "--regenerate-all")),
)


def initramfs_command(root: str = "/") -> list[str] | None:
    """What rebuilds the initramfs of every installed kernel; None where no tool for it is installed."""
    for path, command in INITRAMFS_TOOLS:
        if os.path.exists(below(root, path)):
            return list(command)
    return None
