# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CUDA toolkits of a host, from the variables of the role cuda and the facts of the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.nvidia_repository import (
    has_repository,
    nvidia_repository,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.system_of import planned_system, system_of

ROLE = "cuda"
# The version that stands for the distribution's own toolkit.
DISTRO = "distro"
# Debian's packages have a tree of links for programs that need one directory; NVIDIA's bring /usr/local/cuda-X.Y.
DISTRO_DIRECTORY = "/usr/lib/cuda"
DISTRO_COMPILER = "/usr/bin/nvcc"

PROFILE = "/etc/profile.d/baremetal-gpu-cuda.sh"
LOADER = "/etc/ld.so.conf.d/baremetal-gpu-cuda.conf"
# A unit, because a restart that a changed file makes necessary is made up for when a run was cut in between.
UNIT = "baremetal-gpu-ldconfig.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
UNIT_LINK = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param params: the role's variables, and its tables `systems` (what the systems bring, by their key),
        `distro_packages`, `distro_removed` and `repo_removed` (names of packages).
    :param facts: the host's facts; of them `gpu_plan` or, without that, the distribution.
    :return: The document is empty where no toolkit is to be installed or removed. The parts are `check`: whether
        preflight is needed before anything else. `finished`: the document of a host on which nothing is left to do;
        None where comparing it does not tell. `proves`: whether the toolkits are to be proven. `compilers`: their
        paths. `login`: the compiler that a login finds.
    """
    toolkits = _Toolkits(params, facts)
    problems = toolkits.problems()
    document = doc.Document() if problems or not toolkits.manages_any() else toolkits.document()
    check = not planned_system(facts) or bool(problems)
    named = [*params["versions"], *params["versions_absent"]]
    unfinished = bool(named) and (check or params["validate"] == "always")
    parts = {
        "check": check,
        "finished": None if unfinished else document.plain if named else {},
        "proves": toolkits.proves,
        "compilers": toolkits.compilers(),
        "login": toolkits.login_compiler(),
    }
    return Plan(document, tuple(problems), parts)


class _Toolkits:
    """The toolkits of one host."""

    def __init__(self, params: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        self.params = params
        self.present = params["state"] == "present"
        planned: Mapping[str, Any] = facts.get("gpu_plan") or {}
        os: Mapping[str, Any] = planned.get("os") or {}
        self.key = system_of(facts)
        self.machine = str(os.get("machine") or facts.get("architecture") or "x86_64")
        self.apt = not self.key.startswith("el")
        self.system: Mapping[str, Any] = params["systems"].get(self.key) or {}
        distro: Mapping[str, Any] = self.system.get("distro") or {}
        self.distro_version = str(distro.get("version") or "")
        # All versions from the distribution are the one that it has.
        self.from_distro = [DISTRO, *([self.distro_version] if params["method"] == "distro" else [])]
        # The distribution's toolkit is left out where its packages would bring the library of another driver; preflight
        # has a note about it.
        branch = int((planned.get("driver") or {}).get("branch") or 0)
        fits = branch == 0 or branch >= int(distro.get("driver") or 0)
        self.versions = [
            version for version in map(str, params["versions"]) if fits or not self.present or version != DISTRO
        ]
        self.absent = [str(version) for version in params["versions_absent"]]
        self.default = str(params["default"] or (self.versions or [""])[0])
        self.default_directory = self._directory(self.default)
        self.any = self.present and bool(self.versions)
        self.proves = self.any and params["validate"] != "never"

    def manages_any(self) -> bool:
        """Whether there is a toolkit to install or to remove."""
        return bool(self.versions or self.absent)

    def _directory(self, version: str) -> str:
        return DISTRO_DIRECTORY if version in self.from_distro else f"/usr/local/cuda-{version}"

    def _distro_versions(self) -> list[str]:
        return [version for version in self.versions if version in self.from_distro]

    def _repository_versions(self) -> list[str]:
        return [version for version in self.versions if version not in self.from_distro]

    def compilers(self) -> list[str]:
        own = [f"/usr/local/cuda-{version}/bin/nvcc" for version in self._repository_versions()]
        return [*own, *([DISTRO_COMPILER] if self._distro_versions() else [])]

    def login_compiler(self) -> str:
        return DISTRO_COMPILER if self.default in self.from_distro else f"{self.default_directory}/bin/nvcc"

    def problems(self) -> list[Problem]:
        if not self.system:
            return [
                Problem(
                    "unknown_system",
                    ROLE,
                    f"no CUDA toolkit is known for {self.key}",
                    self.key,
                    f"use one of {', '.join(self.params['systems'])}",
                )
            ]
        if not self.present:
            return []
        return [*self._version_problems(), *self._repository_problems()]

    def _version_problems(self) -> list[Problem]:
        problems = []
        both = [version for version in self.versions if version in self.absent]
        others = self._repository_versions()
        if self.versions and self.default not in self.versions:
            problems.append(
                Problem(
                    "default_not_installed",
                    "cuda_default",
                    f"cuda_default is {self.default}, which is not among cuda_versions ({', '.join(self.versions)})",
                    self.default,
                    "add it there or choose another",
                )
            )
        if both:
            problems.append(
                Problem(
                    "version_in_both_lists",
                    "cuda_versions",
                    f"cuda_versions names {', '.join(both)}, and so does cuda_versions_absent",
                    ", ".join(both),
                    "take it out of one of them",
                )
            )
        if self._distro_versions() and not self.distro_version:
            problems.append(
                Problem(
                    "no_toolkit_in_distribution",
                    "cuda_versions",
                    "this system has no CUDA toolkit of its own",
                    self.key,
                    "name versions in cuda_versions and set cuda_method to nvidia_repo",
                )
            )
        if self.params["method"] == "distro" and others:
            problems.append(
                Problem(
                    "not_in_distribution",
                    "cuda_versions",
                    f"the distribution has CUDA {self.distro_version} only, and cuda_versions names "
                    f"{', '.join(others)}",
                    ", ".join(others),
                    "set cuda_method to nvidia_repo",
                )
            )
        return problems

    def _repository_problems(self) -> list[Problem]:
        params, problems = self.params, []
        if not self._repository_versions():
            return []
        if not params["repo_url"] and not has_repository(self.machine):
            problems.append(
                Problem(
                    "no_repository",
                    "cuda_repo_url",
                    f"NVIDIA has no repository for machines of type {self.machine}",
                    self.machine,
                    "set cuda_repo_url to one of your own",
                )
            )
        if not params["repo_key_sha256"] and not params["repo_options"]:
            problems.append(
                Problem(
                    "no_key_checksum",
                    "cuda_repo_key_sha256",
                    "cuda_repo_key_sha256 is not set, so the key of the repository cannot be checked",
                    remedy="set it to what sha256sum prints for the key at cuda_repo_key_url or cuda_repo_key_path, "
                    "once you have compared it with NVIDIA's fingerprint",
                )
            )
        return problems

    def document(self) -> doc.Document:
        # With state absent, the toolkits that the variables name are removed too.
        absent = [*self.absent, *([] if self.present else self.versions)]
        # A proof that is never made keeps its record, for when it is required again.
        proofs = None if self.any else [doc.Proof(ROLE, state="absent")]
        return doc.Document(
            repositories=self._repositories() if self.present else [],
            packages=[*self._packages(), *self._packages_absent(absent)],
            alternatives=self._alternatives(absent),
            files=self._files(),
            units=[doc.Unit.running(UNIT, [LOADER])] if self.any else [],
            proofs=[doc.Proof(ROLE, "that the toolkits compile a program")] if self.proves else proofs,
        )

    def _repositories(self) -> list[doc.Repository]:
        repositories: list[doc.Repository] = []
        if self._distro_versions() and self.apt:
            codename = self.system.get("codename") or ""
            suites = [codename, f"{codename}-updates", f"{codename}-security"]
            debian = ["contrib", "non-free", "non-free-firmware"]
            components = debian if self.key.startswith("debian") else ["restricted", "multiverse"]
            repositories.append(doc.Repository("baremetal-gpu-components", extend=suites, components=components))
        if self._repository_versions():
            repositories.append(nvidia_repository(self.params, self.system["repository"], self.machine, self.apt))
        return repositories

    def _packages(self) -> list[doc.Package]:
        if not self.present:
            return []
        names = (name for version in self.versions for name in self._names(version))
        return [doc.Package(name, hold=self.params["hold"]) for name in names]

    def _names(self, version: str) -> list[str]:
        if version in self.from_distro:
            return list(self.params["distro_packages"])
        return [f"{name}-{_dashed(version)}" for name in self.params["repo_packages"]]

    def _packages_absent(self, versions: Iterable[str]) -> list[doc.Package]:
        return [doc.Package(name, "absent") for version in versions for name in self._names_removed(version)]

    def _names_removed(self, version: str) -> list[str]:
        if version in self.from_distro:
            return list(self.params["distro_removed"])
        return [name.replace("{version}", _dashed(version)) for name in self.params["repo_removed"]]

    def _alternatives(self, absent: Iterable[str]) -> list[doc.Alternative]:
        own = doc.Alternative("cuda", self.default_directory, link="/usr/local/cuda", priority=1000)
        return [
            *([own] if self.any else []),
            *(doc.Alternative("cuda", self._directory(version), "absent") for version in absent),
        ]

    def _files(self) -> list[doc.Entry]:
        files = [
            _file(PROFILE, render(ROLE, "profile.sh.j2"), self.any),
            # The loader finds the libraries of the distribution's toolkit without it.
            _file(LOADER, f"{self.default_directory}/lib64\n", self.any and self.default not in self.from_distro),
            _file(UNIT_FILE, render(ROLE, "ldconfig.service.j2"), self.any),
        ]
        return [*files, *([] if self.any else [doc.Absent(UNIT_LINK)])]


def _dashed(version: str) -> str:
    return version.replace(".", "-")


def _file(path: str, content: str, present: bool) -> doc.File:
    return doc.File(path, content, owner=None, group=None, state="file" if present else "absent")
