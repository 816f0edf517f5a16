# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a desired document and the drift of a host to what the remediation's tasks loop over. For the controller."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

Item = dict[str, Any]

SOURCES = ("keys", "repositories", "pins", "early_files")
PENDING = "/var/lib/baremetal-gpu/pending"
MANAGERS = ("apt", "dnf")
OWNED = {"owner": "root", "group": "root"}


# Characters of a content from which on its checksum does where no difference is shown.
LONG = 4096


def as_sent(desired: Item, brief: bool = False) -> Item:
    """The document as it is sent to be compared: of a sensitive file only the checksum of its content.

    :param brief: of a long file too, since nobody is shown what differs in it.
    """
    files = []
    for item in desired.get("files") or ():
        content = item.get("content")
        if content is not None and (item.get("sensitive") or (brief and len(content) > LONG)):
            checksum = hashlib.sha256(str(item["content"]).encode("utf-8")).hexdigest()
            item = {**{key: value for key, value in item.items() if key != "content"}, "sha256": checksum}
        files.append(item)
    return {**desired, **({"files": files} if files else {})}


def joined(documents: Iterable[Item]) -> Item:
    """One document, from which a host differs if it differs from one of these.

    :raise ValueError: two of them say different things where a document says one.
    """
    whole: Item = {}
    for document in documents:
        for name, value in document.items():
            there = whole.get(name)
            if there is None:
                whole[name] = value
            elif isinstance(there, list) and isinstance(value, list):
                whole[name] = there + [item for item in value if item not in there]
            elif isinstance(there, dict) and isinstance(value, dict):
                whole[name] = joined([there, value])
            elif value not in (None, there):
                raise ValueError(f"{name} is {there} in one document and {value} in another")
    return whole


def _of_the_host(drift: Item) -> Item:
    """A drift as a host may tell it: what differs there, and never which file of the controller it wants to have."""
    return {
        section: [{key: value for key, value in item.items() if key != "source"} for item in items]
        if isinstance(items, list) and all(isinstance(item, dict) for item in items)
        else items
        for section, items in drift.items()
    }


def _merged(drifted: Iterable[Item], wanted: Iterable[Item] | None, key: str) -> list[Item]:
    """Items of the drift with what only the document has, such as the content of a file."""
    by_key = {item[key]: item for item in wanted or ()}
    return [{**by_key.get(item[key], {}), **item} for item in drifted]


def package_spec(item: Item, manager: str) -> str:
    """A package as its manager wants to be asked for it."""
    if not item.get("version"):
        return str(item["name"])
    return f"{item['name']}{'=' if manager == 'apt' else '-'}{item['version']}"


def _keys(desired: Item, drift: Item) -> list[Item]:
    """Keys of repositories as files."""
    keys = {}
    for row in desired.get("repositories") or ():
        # The path of a key is the controller's, that of a file in the drift is the host's.
        key = row.get("key") or {}
        keys[row["name"]] = {"source" if name == "path" else name: value for name, value in key.items()}
    return [{**keys[item["name"]], **item} for item in drift.get("keys", ())]


def _sources(desired: Item, drift: Item) -> dict[str, list[Item]]:
    """Repositories and pins as files to write and to remove, and keys to remove."""
    keys = [item for item in _keys(desired, drift) if item.get("state") == "absent"]
    early = _merged(drift.get("early_files", ()), desired.get("files"), "path")
    return _by_task([*keys, *drift.get("repositories", ()), *drift.get("pins", ()), *early])


# What the module host_files is told of an entry.
ENTRY = (
    *("path", "state", "content", "source", "sha256", "src"),
    *("mode", "owner", "group", "reclaim", "force", "validate", "backup"),
)
MODES = {"file": "0644", "directory": "0755"}


def _entry(item: Item) -> Item:
    """A file, directory or link as the module host_files takes it."""
    state = item.get("state") or "file"
    known = {key: item[key] for key in ENTRY if item.get(key) is not None}
    return {**({"mode": MODES[state]} if state in MODES else {}), **known, "state": state}


def _by_task(files: Iterable[Item]) -> dict[str, list[Item]]:
    """Files by the task that mends them. Downloads come first, since they may not be what was named."""
    tasks: dict[str, list[Item]] = {"directories": [], "downloads": [], "entries": [], "secrets": []}
    by_state: dict[str, list[Item]] = {"absent": [], "directory": [], "file": [], "link": []}
    for item in files:
        state = item.get("state") or "file"
        if state == "file" and item.get("url") and not item.get("source") and item.get("content") is None:
            tasks["downloads"].append(item)
        else:
            by_state[state].append(item)
    if tasks["downloads"]:
        tasks["directories"] = [_entry(item) for item in by_state["directory"]]
    for items in by_state.values():
        for item in items:
            tasks["secrets" if item.get("sensitive") else "entries"].append(_entry(item))
    return tasks


def _records(due: list[Item]) -> list[Item]:
    """What a run that is cut between a change and the restart that it asks for leaves for the next one."""
    if not due:
        return []
    files = [{"path": f"{PENDING}/{item['record']}", "content": f"{item['cause']}\n"} for item in due]
    return [_entry({**OWNED, **item}) for item in ({"path": PENDING, "state": "directory"}, *files)]


def _cleared(names: Iterable[str]) -> list[Item]:
    """Records that go."""
    return [{"path": f"{PENDING}/{name}", "state": "absent"} for name in names]


def _kernel_modules(drift: Item, removing: bool) -> dict[str, list[Item]]:
    """Kernel modules by what is done. Where packages go, the files of modules may be among what goes with them."""
    by_action = {
        action: [item for item in drift.get("kernel_modules", ()) if action in item["actions"]]
        for action in ("unload", "load", "reload", "reboot")
    }
    unload = by_action.pop("unload")
    return {"unload_first": unload if removing else [], "unload": [] if removing else unload, **by_action}


def remedy(desired: Item, found: Item) -> Item:
    """What the tasks of the remediation do, in their order."""
    drift, manager = _of_the_host(found["drift"]), found["manager"]
    if manager not in MANAGERS:
        raise ValueError(f"the host says that its packages are {manager!r}'s; there are {', '.join(MANAGERS)}")
    packages = drift.get("packages", ())

    def doing(action: str) -> list[Item]:
        return [item for item in packages if action in item["actions"]]

    due = [item for section in ("units", "initramfs") for item in drift.get(section, ()) if item.get("cause")]
    # Whoever proves it clears the record, once the proof has passed.
    proofs = list(drift.get("proofs", ()))
    over = [item for item in drift.get("pending", ()) if "clear" in item["actions"]]
    files = _merged(drift.get("files", ()), desired.get("files"), "path")
    installs = doing("install")
    # A package may put what it brings into the place of a file that is right.
    threatened = [item for item in desired.get("files") or () if item.get("content") is not None] if installs else []
    written = {item["path"]: item for item in [*threatened, *files] if not item.get("early")}
    units = drift.get("units", ())
    kernel_modules = _kernel_modules(drift, removing=bool(doing("remove")))
    # Before anything else is touched: the file of a unit may be among what goes.
    units_first = [item for item in units if {"stop", "disable"} & set(item["actions"])]
    return {
        "manager": manager,
        "touches_sources": any(drift.get(section) for section in SOURCES),
        "touches_kernel": any(drift.get(section) for section in ("dkms", "initramfs", "kernel_modules")),
        "stops": bool(units_first or kernel_modules["unload_first"]),
        "touches_packages": any(drift.get(section) for section in ("interrupted", *SOURCES, "packages")),
        "records": _records([*due, *proofs]),
        "interrupted": bool(drift.get("interrupted")),
        # Before anything else: a key that is not the one that was named stops the host while it is untouched.
        "new_keys": _by_task(item for item in _keys(desired, drift) if item.get("state") != "absent"),
        "sources": _sources(desired, drift),
        "refresh": found["refresh"],
        "unhold": [item["name"] for item in doing("unhold")],
        "install": [package_spec(item, manager) for item in installs],
        "remove": [item["name"] for item in doing("remove")],
        # Ansible's module takes either packages to install or packages to remove, and of the versions that a pin allows
        # only the newest; apt-get itself takes all of it.
        "at_once": bool(installs and (doing("remove") or any(item.get("narrowed") for item in installs))),
        # As apt-get takes both at once: what is to go has a minus behind its name.
        "transaction": [package_spec(item, manager) for item in installs]
        + [f"{item['name']}-" for item in doing("remove")],
        "purge": [item["name"] for item in doing("purge")],
        "hold": [item["name"] for item in doing("hold")],
        "files": _by_task(written.values()),
        "alternatives": list(drift.get("alternatives", ())),
        "daemon_reload": any(
            "/systemd/system/" in item["path"] or item["path"].startswith("/etc/systemd/")
            for item in [*files, *drift.get("early_files", ())]
        )
        or any("read" in item["actions"] for item in units),
        "initramfs": [item["command"] for item in drift.get("initramfs", ())],
        "initramfs_done": _cleared(item["record"] for item in drift.get("initramfs", ())),
        "dkms": _dkms_commands(drift.get("dkms", ())),
        "kernel_modules": kernel_modules,
        "units_first": units_first,
        "units_reset": [item["name"] for item in units if "reset" in item["actions"]],
        # Reading the units again, where that is all, is done for all of them at once.
        "units": [item for item in units if set(item["actions"]) - {"stop", "disable", "read"}],
        "done": _cleared([item["record"] for item in due] + [item["name"] for item in over]),
        "restore": any("restore" in item["actions"] for item in drift.get("pending", ())),
    }


def _dkms_commands(items: Iterable[Item]) -> list[list[str]]:
    """What builds the driver's modules.

    By name, because `autoinstall` may stop at whatever else DKMS cannot build; and with it, because packages that were
    changed meanwhile may have brought another version. Neither does anything again.
    """
    known = sorted({(item["name"], item["version"], item["kernel"]) for item in items if item.get("version")})
    kernels = sorted({item["kernel"] for item in items})
    return [
        *(["dkms", "install", "-m", name, "-v", version, "-k", kernel] for name, version, kernel in known),
        *(["dkms", "autoinstall", "-k", kernel] for kernel in kernels),
    ]
