# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a host differs from a desired document, section by section. Reads only, and asks no network.

A drift is a list of items per section; each says `why` it differs and which `actions` would mend it. What has to be
done after a change (a restart, a new initramfs, a proof) is recorded on the host before the change, so that a run that
was cut in between is found here: the record is part of the drift. That of a proof goes only when it has passed.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.drift import packages, system
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import driver
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Call
from ansible_collections.baremetal.gpu.plugins.module_utils.host.versions import version_key
from ansible_collections.baremetal.gpu.plugins.module_utils.system.repositories import apt_sources

PENDING = "/var/lib/baremetal-gpu/pending"
DRAINED = "drained"
# Recorded by whoever takes work off the host until its GPUs are verified; gpu_verify looks for the same.
VERIFICATION = "proof-gpu_verify"

# In the order in which they are mended.
SECTIONS = (
    "interrupted",
    "keys",
    "repositories",
    "pins",
    "early_files",
    "packages",
    "files",
    "alternatives",
    "dkms",
    "initramfs",
    "kernel_modules",
    "units",
    "proofs",
    "pending",
)

_FILES = ("keys", "repositories", "pins", "early_files", "files")

Item = dict[str, Any]
Drift = dict[str, list[Item]]


def _clean(items: Iterable[Item] | None) -> list[Item]:
    """Items without the options that were left out."""
    return [{key: value for key, value in item.items() if value is not None} for item in items or ()]


# --- keys, repositories and pins, which are files ---------------------------------------------------------------------


# Where keys lie by default; both directories are the system's own.
KEY_DIRECTORIES = {"apt": "/etc/apt/keyrings", "dnf": "/etc/pki/rpm-gpg"}


def key_path(repository: Item, manager: str) -> str | None:
    """Where the key of a repository lies on the host."""
    key = repository.get("key")
    if key:
        return str(key.get("dest") or f"{KEY_DIRECTORIES[manager]}/{repository['name']}.asc")
    path = repository.get("signed_by")
    return str(path) if path else None


def key_file(repository: Item, manager: str) -> Item | None:
    """The key of a repository as a file of the document; None where the host has it already."""
    key = {name: value for name, value in (repository.get("key") or {}).items() if value is not None}
    if not key:
        return None
    item: Item = {"path": key_path(repository, manager), "mode": "0644", "name": repository["name"]}
    if repository.get("state") == "absent":
        return {**item, "state": "absent"}
    return {**item, "state": "file", **{name: key[name] for name in ("content", "sha256") if name in key}}


def repository_file(repository: Item, root: str, manager: str) -> Item:
    """A repository as a file of the document."""
    name = repository["name"]
    yum = (repository.get("type") or ("yum" if manager == "dnf" else "deb822")) == "yum"
    path = f"/etc/yum.repos.d/{name}.repo" if yum else f"/etc/apt/sources.list.d/{name}.sources"
    item: Item = {"name": name, "path": path, "mode": "0644", "state": "file"}
    if repository.get("state") == "absent":
        return {**item, "state": "absent"}
    if yum:
        return {**item, "content": packages.render_yum(repository, key_path(repository, manager))}
    if repository.get("extend"):
        sources = [stanza for _path, stanza in apt_sources(root, without=os.path.basename(path))]
        stanzas = packages.missing_components(sources, repository["extend"], repository.get("components") or ())
        content = packages.render_components(stanzas)
        return {**item, "content": content} if content else {**item, "state": "absent"}
    return {**item, "content": packages.render_deb822(repository, key_path(repository, manager))}


def pin_file(pin: Item) -> Item:
    absent = pin.get("state") == "absent"
    item: Item = {"name": pin["name"], "path": f"/etc/apt/preferences.d/{pin['name']}.pref", "mode": "0644"}
    return {**item, "state": "absent"} if absent else {**item, "state": "file", "content": packages.render_pin(pin)}


def _file_section(items: Iterable[Item], root: str) -> list[Item]:
    found = []
    for item in items:
        why = system.file_drift(item, root)
        if why:
            action = "remove" if item.get("state") == "absent" else "write"
            found.append({**item, "why": why, "actions": [action]})
    return found


# --- packages --------------------------------------------------------------------------------------------------------


def package_drift(item: Item, installed: packages.Packages) -> Item | None:
    """One wanted package against those that are there."""
    name, version, hold = item["name"], item.get("version"), item.get("hold")
    row = installed.installed(name)
    unhold = ["unhold"] if hold is not None and installed.is_bound(name) else []
    if row is None:
        provider = installed.provider(name)
        if provider and not version:
            return None
        there = installed.get(name)
        state = f"is {there['state']}" if there and there["state"] in packages.INCOMPLETE else "is not installed"
        return {**item, "why": state, "actions": [*unhold, "install", *(["hold"] if hold else [])]}
    held = row["want"] == "hold"
    twice = installed.versions(name)
    if len(twice) > 1:
        actions = [*unhold, "install", *(["hold"] if hold else [])]
        return {**item, "have": row["version"], "why": f"is installed at {' and '.join(twice)}", "actions": actions}
    if row["flag"] != "ok":
        return {**item, "have": row["version"], "why": f"is marked {row['flag']}", "actions": ["install"]}
    if version and not packages.version_matches(row, version):
        actions = [*unhold, "install", *(["hold"] if hold else [])]
        return {**item, "have": row["version"], "why": f"is {row['version']}, not {version}", "actions": actions}
    if hold is not None and held != hold:
        why = "is held" if held else "is not held"
        return {**item, "have": row["version"], "why": why, "actions": [*unhold, *(["hold"] if hold else [])]}
    return None


def expand_packages(wanted: list[Item], installed: packages.Packages, root: str, running: str) -> list[Item]:
    """Put names in place of what depends on the host: its kernels, which other packages it has, and what holds them."""
    found = []
    for item in wanted:
        rest = {key: value for key, value in item.items() if key not in ("kernels", "follows")}
        if item.get("kernels"):
            kernels = system.dkms_kernels(item, root, running)
            found += [{**rest, "name": item["name"].replace("{kernel}", kernel)} for kernel in kernels]
        elif item.get("follows"):
            found += [{**rest, "name": match.expand(item["name"])} for match in installed.following(item["follows"])]
        else:
            found.append(item)
    if installed.manager == "dnf" and any(item.get("hold") for item in found):
        found.append({"name": packages.VERSIONLOCK})
    return _at_one_version(found, installed)


def _at_one_version(wanted: list[Item], installed: packages.Packages) -> list[Item]:
    """Of packages that go together, those that are missing come at the version of those that are there.

    A pattern such as `570.*` alone would bring the newest: a Fabric Manager, say, that refuses the driver beside it.
    """
    together = [item for item in wanted if item.get("together") and item.get("state") != "absent"]
    rows = ((item, installed.installed(item["name"])) for item in together)
    there = {packages.upstream(row) for item, row in rows if row and packages.version_matches(row, item["version"])}
    if not there:
        return wanted
    version = f"{max(there, key=packages.numbers)}*"
    return [{**item, "version": version, "narrowed": True} if item in together else item for item in wanted]


def packages_drift(wanted: list[Item], installed: packages.Packages) -> list[Item]:
    found, present = [], {item["name"] for item in wanted if item.get("state") != "absent"}
    for item in wanted:
        if item.get("state") != "absent":
            drifted = package_drift(item, installed)
            if drifted:
                found.append(drifted)
            continue
        pattern = any(character in item["name"] for character in "*?[")
        for name in installed.matching(item["name"]) if pattern else [item["name"]]:
            drifted = None if name in present else _unwanted_package({**item, "name": name}, installed)
            if drifted:
                found.append(drifted)
    return found


def _unwanted_package(item: Item, installed: packages.Packages) -> Item | None:
    """A package that has to go. Its configuration files go too where that is asked for, but none that was edited."""
    row = installed.get(item["name"])
    if row is None or row["state"] == "not-installed":
        return None
    left_over = row["state"] == "config-files"
    if left_over and not item.get("purge"):
        return None
    edited = installed.edited(item["name"]) if item.get("purge") else []
    if left_over and edited:
        return None
    purge = ["purge"] if item.get("purge") and installed.manager == "apt" and not edited else []
    if left_over:
        return {**item, "why": "has left its configuration files", "actions": purge}
    state = f"is installed at {row.get('version')}" if row["state"] == "installed" else f"is {row['state']}"
    why = f"{state}; {', '.join(edited)} will be kept, because edited" if edited else state
    held = ["unhold"] if installed.is_bound(item["name"]) else []
    return {**item, "why": why, "actions": [*held, "remove", *purge]}


def add_candidates(found: list[Item], policy: dict[str, Item]) -> None:
    """Tell of every package to install which version apt would take, and whether it knows one that will do."""
    for item in found:
        if "install" not in item["actions"]:
            continue
        row = policy.get(item["name"]) or {"candidate": None, "versions": []}
        version = item.get("version")
        if version:
            fitting = [have for have in row["versions"] if packages.version_matches({"version": have}, version)]
            item["candidate"] = fitting[0] if fitting else None
        else:
            item["candidate"] = row["candidate"]


# --- what follows from a change ---------------------------------------------------------------------------------------


def changed_names(drift: Drift) -> tuple[set[str], set[str]]:
    """Paths of files and names of packages that mending the drift would change."""
    paths = {item["path"] for section in _FILES for item in drift.get(section, ())}
    names = {item["name"] for item in drift.get("packages", ()) if {"install", "remove"} & set(item["actions"])}
    return paths, names


def triggered(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    names = list(names)
    return sorted({name for pattern in patterns for name in names if fnmatch.fnmatchcase(name, pattern)})


def pending_name(kind: str, name: str = "") -> str:
    return f"{kind}-{name.replace('/', '-')}" if name else kind


def read_pending(root: str = "/") -> dict[str, str]:
    """What a run that was cut has left to do: name of the record -> why."""
    directory = below(root, PENDING)
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return {}
    # A name that begins with a dot is a file that is still being written.
    return {name: read_text(os.path.join(directory, name)).strip() for name in names if not name.startswith(".")}


def _recorded(record: str, changes: list[str], pending: dict[str, str], what: str) -> Item:
    """What is due after changes of this run, or after those of an earlier one."""
    if changes:
        cause = ", ".join(changes)
        return {"record": record, "cause": cause, "why": cause}
    cause = pending.get(record) or "recorded by an earlier run"
    return {"record": record, "cause": cause, "why": f"{what} is due since an earlier run: {cause}"}


def stopped_for(unit: str, drift: Drift) -> list[str]:
    """Kernel modules that are exchanged while a unit is stopped."""
    return [
        item["name"]
        for item in drift.get("kernel_modules", ())
        if "reload" in item["actions"] and unit in map(system.unit_name, item.get("units") or ())
    ]


def units_drift(wanted: list[Item], have: dict[str, Item], drift: Drift, pending: dict[str, str]) -> list[Item]:
    paths, names = changed_names(drift)
    found = []
    for item in wanted:
        unit = system.unit_name(item["name"])
        properties = have.get(unit)
        reasons, actions = system.unit_drift(item, properties)
        if item.get("enabled") and "enable" not in actions and _is_replaced(unit, properties, paths):
            # Whether the other file could be enabled says nothing of the one that takes its place.
            reasons.append("gets another file")
            actions.append("enable")
        restart = item.get("restart_on") or []
        by_file, by_package = triggered(restart, paths), triggered(restart, names)
        record = pending_name("restart", unit)
        active = system.is_active(properties)
        # A package starts its daemon itself when it is installed; only a file that comes later asks for more.
        exchanged = [f"the exchange of {name}" for name in stopped_for(unit, drift)] if active else []
        due = bool(by_file) or (bool(by_package) and active) or bool(exchanged) or record in pending
        recorded: Item = {}
        runs = item.get("state", "started" if active else "stopped") == "started"
        if due and runs:
            actions.append("restart")
            recorded = _recorded(
                record, [f"{name} changes" for name in by_file + by_package] + exchanged, pending, "a restart"
            )
            reasons.append(recorded["why"])
        elif runs and (recorded := _reload(item, paths, pending)):
            actions.append("reload")
            reasons.append(recorded["why"])
        if actions:
            found.append({**item, "name": unit, **recorded, "why": ", ".join(reasons), "actions": actions})
    return found


def _reload(item: Item, paths: set[str], pending: dict[str, str]) -> Item:
    """The record of a unit that has to read its files again; nothing where it has not. A package may start its daemon
    before they are written, so one that does not run yet has to as well."""
    record = pending_name("reload", system.unit_name(item["name"]))
    changes = [f"{name} changes" for name in triggered(item.get("reload_on") or [], paths)]
    return _recorded(record, changes, pending, "a reload") if changes or record in pending else {}


def _is_replaced(unit: str, properties: dict[str, str] | None, paths: set[str]) -> bool:
    """Whether a unit of which no link tells that it is enabled gets a file that hides the present one."""
    path = f"/etc/systemd/system/{unit}"
    return path in paths and (properties or {}).get("UnitFileState") not in ("enabled", "enabled-runtime")


def holding_units(desired: Item, units: list[Item], drift: Drift, pending: dict[str, str]) -> list[Item]:
    """Units that are stopped to exchange a kernel module, and that nobody else starts again.

    They are the operator's, so they are only looked at while a module is exchanged, or if a run was cut meanwhile.
    """
    own = {system.unit_name(unit["name"]) for unit in units}
    exchanged = [item for item in drift.get("kernel_modules", ()) if "reload" in item["actions"]]
    stopped = {system.unit_name(name) for item in exchanged for name in item.get("units") or ()}
    known = {
        system.unit_name(name) for item in _clean(desired.get("kernel_modules")) for name in item.get("units") or ()
    }
    left = {name for name in known if pending_name("restart", name) in pending}
    return [
        *({"name": name} for name in sorted(stopped - left - own)),
        *({"name": name, "state": "started"} for name in sorted(left - own)),
    ]


def initramfs_drift(wanted: Item | None, drift: Drift, pending: dict[str, str], root: str) -> list[Item]:
    if not wanted:
        return []
    changes = triggered(wanted.get("rebuild_on") or (), changed_names(drift)[0])
    record = pending_name("initramfs")
    command = system.initramfs_command(root)
    if command is None or not (changes or record in pending):
        return []
    recorded = _recorded(record, [f"{path} changes" for path in changes], pending, "a rebuild")
    return [{"name": "initramfs", "command": command, "actions": ["rebuild"], **recorded}]


def proofs_drift(wanted: list[Item], drift: Drift, others: Iterable[str], pending: dict[str, str]) -> list[Item]:
    """What is to be proven after the changes of this run, or since those of an earlier one that never did.

    Not `required`: the host is as wanted, and whoever proves it says whether it does its work.
    """
    changes = [*plan(drift), *others]
    found = []
    for item in wanted:
        record = pending_name("proof", item["name"])
        if item.get("state") != "absent" and (changes or record in pending):
            recorded = _recorded(record, _brief(changes), pending, "it")
            found.append({**item, **recorded, "actions": ["prove"], "required": False})
    return found


def _brief(changes: list[str]) -> list[str]:
    more = len(changes) - 3
    return changes if more <= 0 else [*changes[:3], f"{more} more"]


def another_module(item: Item, drift: Drift, root: str, kernel: str) -> str | None:
    """Why the loaded module is not the one that modprobe would load, or soon would; None if it is.

    Only NVIDIA's modules have versions that matter: the libraries go with one of exactly their own.
    """
    if not item.get("current") or system.module_name(item["name"]) != "nvidia":
        return None
    version, flavour = driver.loaded(root)
    if version is None:
        return None
    changing = triggered(item.get("packages") or (), changed_names(drift)[1])
    if changing:
        return f"version {version} is loaded, and {', '.join(changing)} changes"
    ready = driver.modules(root)
    row = ready.get(kernel) or (ready[max(ready, key=version_key)] if ready else {})
    if row.get("version") and row["version"] != version:
        return f"version {version} is loaded, {row['version']} is installed"
    if flavour and row.get("flavour") and row["flavour"] != flavour:
        return f"the {flavour} module is loaded, the {row['flavour']} one is installed"
    return None


def stale_records(desired: Item, drift: Drift, pending: dict[str, str]) -> list[Item]:
    """Records of this document's units, proofs and initramfs that ask for nothing any more, as of a stopped unit."""
    own = {
        pending_name(kind, system.unit_name(unit["name"]))
        for unit in _clean(desired.get("units"))
        for kind in ("restart", "reload")
    }
    own |= {pending_name("proof", item["name"]) for item in _clean(desired.get("proofs"))}
    if desired.get("initramfs"):
        own.add(pending_name("initramfs"))
    used = {item.get("record") for section in ("units", "initramfs", "proofs") for item in drift.get(section, ())}
    return [
        {"name": name, "why": "nothing is due any more", "actions": ["clear"]} for name in pending if name in own - used
    ]


def left_drained(pending: dict[str, str]) -> list[Item]:
    """Work was taken off the host, and the run that did it never gave it back."""
    if DRAINED not in pending:
        return []
    why = f"an earlier run left it without work: {pending[DRAINED] or 'no reason recorded'}"
    if VERIFICATION in pending:
        # Whatever the work was taken off for has not been seen to work.
        why = f"{why}; it gets it back when its verification passes, which is due since: {pending[VERIFICATION]}"
        return [{"name": DRAINED, "why": why, "actions": ["wait"], "required": False}]
    return [{"name": DRAINED, "why": why, "actions": ["restore"]}]


# --- the whole -------------------------------------------------------------------------------------------------------


def inspect(
    desired: Item,
    run: Call,
    root: str = "/",
    kernel: str = "",
    diff: bool = False,
    keep_drained: bool = False,
    others: Iterable[str] = (),
) -> Item:
    """{drifted, required, refresh, drift, plan} of a host, and diff where it is asked for.

    `run` runs a command that only reads and returns its status and output. `keep_drained` is for whoever has taken
    work off the host and will give it back later. `others` says what differs that is not compared here.
    """
    drift: Drift = {}
    kernel = kernel or os.uname().release
    wanted_packages, repositories = _clean(desired.get("packages")), _clean(desired.get("repositories"))
    installed = None
    if wanted_packages or repositories or desired.get("pins"):
        installed = packages.read_packages(root, run)
        wanted_packages = expand_packages(wanted_packages, installed, root, kernel)
        interruption = installed.interruption(item["name"] for item in wanted_packages)
        if wanted_packages and interruption:
            name = "dpkg" if installed.manager == "apt" else "rpm"
            drift["interrupted"] = [{"name": name, "why": interruption, "actions": ["configure"]}]
    manager = installed.manager if installed else "apt"

    drift["keys"] = _file_section(filter(None, (key_file(row, manager) for row in repositories)), root)
    drift["repositories"] = _file_section((repository_file(row, root, manager) for row in repositories), root)
    drift["pins"] = _file_section(map(pin_file, _clean(desired.get("pins"))), root)
    if installed:
        drift["packages"] = packages_drift(wanted_packages, installed)
        missing = [item["name"] for item in drift["packages"] if "install" in item["actions"]]
        if missing and manager == "apt":
            _code, answer = run(packages.policy_command(missing))
            add_candidates(drift["packages"], packages.parse_policy(answer))
    files = _clean(desired.get("files"))
    drift["early_files"] = _file_section((item for item in files if item.get("early")), root)
    drift["files"] = _file_section((item for item in files if not item.get("early")), root)
    drift["alternatives"] = []
    for item in _clean(desired.get("alternatives")):
        why = system.alternative_drift(item, root)
        if why:
            action = "remove" if item.get("state") == "absent" else "choose"
            drift["alternatives"].append({**item, "why": why, "actions": [action]})

    drift["dkms"] = [row for item in _clean(desired.get("dkms")) for row in system.dkms_drift(item, root, kernel)]

    notes = [note for item in _clean(desired.get("dkms")) for note in system.dkms_notes(item, root, kernel)]

    pending = read_pending(root)
    drift["initramfs"] = initramfs_drift(desired.get("initramfs"), drift, pending, root)
    drift["kernel_modules"] = []
    if desired.get("kernel_modules"):
        loaded, builtin = system.read_kernel_modules(root, kernel)
        for item in _clean(desired["kernel_modules"]):
            other = another_module(item, drift, root, kernel)
            found = system.kernel_module_drift(item, loaded, builtin, other, root)
            if found:
                drift["kernel_modules"].append({**item, **found})
    units = _clean(desired.get("units"))
    units += holding_units(desired, units, drift, pending)
    drift["units"] = units_drift(units, system.read_units((unit["name"] for unit in units), run), drift, pending)
    drift["proofs"] = proofs_drift(_clean(desired.get("proofs")), drift, others, pending)
    drift["pending"] = stale_records(desired, drift, pending)
    if not keep_drained:
        drift["pending"] += left_drained(pending)

    drift = {section: drift[section] for section in SECTIONS if drift.get(section)}
    result = {
        "drifted": bool(drift),
        "required": any(item.get("required", True) for items in drift.values() for item in items),
        "refresh": needs_refresh(drift, manager),
        "manager": manager,
        "plan": plan(drift),
        **({"notes": notes} if notes else {}),
    }
    if diff:
        result["diff"] = diffs(drift, root)
    return {**result, "drift": slim(drift)}


def needs_refresh(drift: Drift, manager: str) -> bool:
    """Whether the package lists have to be fetched: for new sources, or for a package that apt does not know."""
    unknown = [item for item in drift.get("packages", ()) if "install" in item["actions"] and not item.get("candidate")]
    return manager == "apt" and bool(drift.get("repositories") or drift.get("keys") or unknown)


def slim(drift: Drift) -> Drift:
    """The drift without contents that the controller has anyway; a repository's may have been derived here."""
    return {
        section: [
            {key: value for key, value in item.items() if key != "content" or section in ("repositories", "pins")}
            for item in items
        ]
        for section, items in drift.items()
    }


_VERBS = {
    "interrupted": "finish what was interrupted in",
    "keys": {"write": "install the key of", "remove": "remove the key of"},
    "repositories": {"write": "write repository", "remove": "remove repository"},
    "pins": {"write": "write pin", "remove": "remove pin"},
    "alternatives": {"choose": "choose for", "remove": "remove from"},
    "dkms": "build DKMS module",
    "kernel_modules": {
        "load": "load kernel module",
        "unload": "unload kernel module",
        "reload": "exchange kernel module",
        "reboot": "reboot to exchange kernel module",
    },
}


def _plan_line(section: str, item: Item) -> str:
    last = item["actions"][-1]
    if section == "packages":
        main = next((name for name in ("install", "remove") if name in item["actions"]), last)
        version = item.get("candidate") or item.get("version")
        name = f"{item['name']} {version}" if main == "install" and version else item["name"]
        also = " and hold it" if main == "install" and "hold" in item["actions"] else ""
        also = " and its configuration files" if main == "remove" and "purge" in item["actions"] else also
        return f"{main} package {name}{also} ({item['why']})"
    if section == "initramfs":
        return f"rebuild the initramfs of every installed kernel ({item['why']})"
    if section == "proofs":
        return f"prove {item.get('what') or item['name']} ({item['why']})"
    if section == "pending" and last == "wait":
        return f"leave the host without work ({item['why']})"
    if section == "pending" and last == "restore":
        return f"give the host work again ({item['why']})"
    if section == "pending":
        return f"clear the record {item['name']} ({item['why']})"
    if section == "units":
        # A restart or a reload starts too, and what is reset is about to be started.
        silent = {"read", "reset", *(["start"] if last in ("restart", "reload") else [])}
        verbs = [verb for verb in item["actions"] if verb not in silent]
        words = " and ".join(filter(None, [", ".join(verbs[:-1]), *verbs[-1:]]))
        return f"{words or 'let systemd read'} unit {item['name']} ({item['why']})"
    if section in ("files", "early_files"):
        verb = {"directory": "make directory", "link": "make link"}.get(item.get("state") or "file", last)
        return f"{verb} {item['path']} ({item['why']})"
    verb = _VERBS[section]
    if isinstance(verb, dict):
        verb = verb[last]
    name = item["name"]
    if section == "dkms":
        name += f" for kernel {item['kernel']}"
    if section == "alternatives":
        return f"{verb} {name} the alternative {item['path']} ({item['why']})"
    return f"{verb} {name} ({item['why']})"


def plan(drift: Drift) -> list[str]:
    """What mending the drift does, one line each, in its order."""
    return [_plan_line(section, item) for section, items in drift.items() for item in items]


def diffs(drift: Drift, root: str = "/") -> list[dict[str, str]]:
    """Before and after of everything that drifted, as Ansible shows them."""
    shown = []
    for section, items in drift.items():
        if section in _FILES:
            shown += [
                {
                    "before_header": item["path"],
                    "after_header": item["path"],
                    **system.file_diff(item, root),
                }
                for item in items
            ]
            continue
        before = [f"{item['name']} {item['why']}\n" for item in items]
        after = [f"{_plan_line(section, item).rsplit(' (', 1)[0]}\n" for item in items]
        title = section.replace("_", " ")
        shown.append(
            {
                "before_header": f"{title} now",
                "after_header": f"{title} wanted",
                "before": "".join(before),
                "after": "".join(after),
            }
        )
    return shown
