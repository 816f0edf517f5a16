# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the loader of a host finds what the programs of Mesos are linked with, and how it is shown what it does not.

An archive may bring libmesos and other libraries, and its programs may have no rpath by which they find them. A
variable in a unit is no way: executors do not inherit it, so that every task fails, and the agent's other children do,
so that systemd's programs fail at a libcrypto that was meant for Mesos. So the loader is shown a directory with links:
to libmesos, and to those libraries of the archive that the host itself lacks. None of the host's is replaced.

The directory is part of the archive's own, and `SHOWN` is a link to it, which the unit of a program sets before it
starts. So the executors of an agent that runs find its libraries until the agent itself is another one.
"""

from __future__ import annotations

import glob
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import NOT_FOUND, Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import flag_table as mesos_flag_table

SHOWN = "/opt/mesos/lib"
# The last of its directory, so that the directories of the distribution come first.
CONFIG = "/etc/ld.so.conf.d/zz-baremetal-gpu-mesos.conf"
LINKS = "baremetal-gpu-lib"
# What tasks get.
ENVIRONMENT = ("LC_ALL=C", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
PROGRAMS = ("mesos-master", "mesos-agent", "mesos-execute")
OWN = re.compile(r"lib(mesos|process|stout)\b.*\.so[.0-9]*")


@dataclass
class Needs:
    """What the loader says of some files."""

    # Library -> its path, None where it is not found.
    found: dict[str, str | None] = field(default_factory=dict)
    # Sentences about versions of a library that its file does not have.
    versions: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        return sorted(name for name, path in self.found.items() if path is None)


def is_elf(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def programs(home: str) -> dict[str, str]:
    """Name -> path of the programs of Mesos below a directory: sbin goes before bin."""
    found = {}
    for name in PROGRAMS:
        for directory in ("sbin", "bin"):
            path = os.path.join(home, directory, name)
            if os.access(path, os.X_OK) and os.path.isfile(path):
                found[name] = path
                break
    return found


def started(home: str) -> list[str]:
    """Programs, and those that an agent starts for a task."""
    helpers = glob.glob(os.path.join(glob.escape(home), "libexec/mesos/mesos-*"))
    return sorted([*programs(home).values(), *(path for path in helpers if os.path.isfile(path))])


def brought(home: str) -> dict[str, str]:
    """Name -> path of the libraries that an archive has."""
    found: dict[str, str] = {}
    for directory in ("lib", "lib64"):
        for path in glob.glob(os.path.join(glob.escape(home), directory, "*.so*")):
            if is_elf(path):
                found.setdefault(os.path.basename(path), path)
    return found


def parse(out: str, error: str) -> Needs:
    """Of what ldd prints."""
    told = Needs()
    for line in out.splitlines():
        name, arrow, place = line.strip().partition(" => ")
        if arrow:
            told.found[os.path.basename(name)] = None if place.startswith("not found") else place.split(" (")[0]
    told.versions = sorted(
        {one_line(line) for line in error.splitlines() if re.search(r"version `.*' not found", line)}
    )
    return told


def needs(files: Iterable[str], run: Run, shown: str = "") -> Needs:
    """What the loader says of these files to whom it is started as a task is; with `shown` as a place to look at.

    :raises Refused: without ldd.
    """
    told = Needs()
    more = [f"LD_LIBRARY_PATH={shown}"] if shown else []
    for path in files:
        if not is_elf(path):
            continue
        code, out, error = run(["env", "-i", *ENVIRONMENT, *more, "ldd", path], None, 60)
        if code == NOT_FOUND:
            raise Refused("ldd cannot be run", "install libc-bin (Debian, Ubuntu) or glibc-common (EL)")
        one = parse(out, error)
        told.versions += [text for text in one.versions if text not in told.versions]
        for name, place in one.found.items():
            if told.found.get(name, "") is not None:
                told.found[name] = place
    return told


def inside(path: str | None, directory: str) -> bool:
    return path is not None and os.path.realpath(path).startswith(os.path.realpath(directory) + os.sep)


def by_link(path: str | None, shown: str) -> bool:
    """Whether the loader came to a library through the links that were made for it, whatever they lead to."""
    return path is not None and (path.startswith(shown + os.sep) or LINKS in path.split(os.sep))


def to_show(home: str, run: Run, shown: str = SHOWN) -> tuple[dict[str, str], Needs]:
    """(libraries of the archive that the loader has to be shown, what is said of the programs with these)."""
    files, own = started(home), brought(home)
    libraries = [path for name, path in own.items() if OWN.fullmatch(name)]
    told = needs([*files, *libraries], run)
    linked = {name: path for name, path in told.found.items() if OWN.fullmatch(name)}
    # What is found only because it is shown, by an earlier call or by another archive's, is not found by an rpath.
    through = any(by_link(path, shown) for path in told.found.values())
    if not told.missing and not through and linked and all(inside(path, home) for path in linked.values()):
        # They have an rpath.
        return {}, told
    chosen = {name: path for name, path in own.items() if OWN.fullmatch(name)}
    while True:
        with tempfile.TemporaryDirectory() as place:
            for name, path in chosen.items():
                os.symlink(path, os.path.join(place, name))
            told = needs([*files, *libraries], run, place)
        # What is shown of another archive goes away with it.
        more = [
            name
            for name, path in told.found.items()
            if path is None or by_link(path, shown) or inside(path, os.path.dirname(shown))
        ]
        more = [name for name in more if name in own and name not in chosen]
        if not more:
            return chosen, told
        chosen.update({name: own[name] for name in more})


def source(name: str, home: str, family: str) -> str:
    """How a library that is missing comes to the programs in `home`, in words."""
    place = brought(home).get(name)
    if place is not None:
        return f"it is {place}, which the loader does not know of: `gpuops up --tags mesos_agent` shows it"
    if OWN.fullmatch(name):
        return f"it is a part of Mesos itself, and {home} lacks it: take an archive or a package that is whole"
    return f"install {package(name, family)}"


def package(name: str, family: str) -> str:
    """What has a library of the system, in words."""
    for beginning, packages in mesos_flag_table.LIBRARIES.items():
        if name.startswith(beginning) and family in packages:
            return packages[family]
    return f"'{name}()(64bit)'" if family == "RedHat" else f"the package that `apt-file search {name}` names"


def problem(home: str, told: Needs, family: str) -> str:
    """Why the programs do not start, empty if they do."""
    said = []
    if told.missing:
        missing = [f"{name} ({source(name, home, family)})" for name in told.missing]
        said.append(f"the programs in {home} do not start without {', '.join(missing)}")
    if told.versions:
        said.append(f"they were built for another system: {'; '.join(told.versions[:3])}")
    if not said:
        return ""
    if not told.versions and all(name in brought(home) for name in told.missing):
        return f"{'; '.join(said)}. To do: run `gpuops up --tags mesos_agent` for this host"
    return f"{'; '.join(said)}. To do: install what is missing, or take programs that were built for this release"


def without(told: Needs, shown: str = SHOWN) -> Needs:
    """The same, without what is found only because an archive's is shown."""
    opt = os.path.dirname(shown)
    found = {name: None if inside(path, opt) and not OWN.fullmatch(name) else path for name, path in told.found.items()}
    return Needs(found, told.versions)


def strangers(home: str, told: Needs, shown: str = SHOWN) -> str:
    """Which of Mesos' own libraries are found elsewhere, in words; empty if none is.

    :param home: the directory of an archive; empty for programs of a package, which find none of an archive.
    """
    found = {name: path for name, path in told.found.items() if OWN.fullmatch(name) and path}
    wrong = {name for name, path in found.items() if inside(path, home or os.path.dirname(shown)) is not bool(home)}
    if not wrong:
        return ""
    return (
        f"the programs find {', '.join(f'{name} in {found[name]}' for name in sorted(wrong))}, of other programs. To "
        "do: remove these, or start the programs of the host again"
    )


def links(home: str) -> dict[str, str]:
    """The links that are there, name -> target."""
    directory = os.path.join(home, LINKS)
    try:
        return {name: os.readlink(os.path.join(directory, name)) for name in sorted(os.listdir(directory))}
    except FileNotFoundError:
        return {}
    except OSError as why:
        raise Refused(f"{directory} is not what this module made: {why.strerror}", "move it away") from why


def wanted_links(home: str, chosen: dict[str, str]) -> dict[str, str]:
    return {name: os.path.relpath(chosen[name], os.path.join(home, LINKS)) for name in sorted(chosen)}


def is_shown(home: str, chosen: dict[str, str], shown: str = SHOWN, config: str = CONFIG) -> bool:
    """Whether nothing is left to do until a unit starts."""
    if not chosen:
        return links(home) == {}
    # A link that leads nowhere is that of an archive that is gone.
    known = read_text(config) == f"{shown}\n" and os.path.islink(shown) and os.path.isdir(shown)
    return known and links(home) == wanted_links(home, chosen)


def show(home: str, chosen: dict[str, str], run: Run, shown: str = SHOWN, config: str = CONFIG) -> None:
    """Makes the links, and has the loader look at them. Each part may be done twice.

    :raises Refused: where ldconfig does not succeed.
    """
    directory, wanted = os.path.join(home, LINKS), wanted_links(home, chosen)
    there = links(home)
    if chosen:
        os.makedirs(directory, mode=0o755, exist_ok=True)
    for name in sorted(set(there) - set(wanted)):
        os.unlink(os.path.join(directory, name))
    for name, target in wanted.items():
        if there.get(name) != target:
            _link(target, os.path.join(directory, name))
    if not chosen:
        if os.path.isdir(directory):
            os.rmdir(directory)
        return
    if not os.path.exists(shown):
        # Later the unit of a program sets it, when its program starts.
        _link(directory, shown)
    if read_text(config) != f"{shown}\n":
        host_files.write(config, f"{shown}\n", 0o644, durable=False)
    code, out, error = run(["ldconfig"], None, 120)
    if code:
        raise Refused(f"ldconfig ended with {code}: {one_line(error or out)}")


def _link(target: str, path: str) -> None:
    part = f"{path}.new"
    if os.path.lexists(part):
        os.unlink(part)
    os.symlink(target, part)
    os.replace(part, path)
