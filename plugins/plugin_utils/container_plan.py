# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host's container engine is to be, from the variables of the role and what is known of the host.

One place works it out once for all tasks: the desired document for packages and units, what goes into which file, and
what speaks against it. Everything is data of Ansible; see `plan`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.utils.vars import merge_hash

from ansible_collections.baremetal.gpu.plugins.module_utils.config import merge, toml
from ansible_collections.baremetal.gpu.plugins.module_utils.container.engines import ENGINE_CONFIGS
from ansible_collections.baremetal.gpu.plugins.plugin_utils.system_of import planned_system, system_of

DOCKER_CE = ["docker-ce", "docker-ce-cli", "containerd.io", "docker-buildx-plugin", "docker-compose-plugin"]
# These bring the same files.
DOCKER_CE_CONFLICTS = ["docker.io", "docker-cli", "docker-doc", "docker-compose", "podman-docker", "containerd", "runc"]
TOOLKIT = [
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
]
PROOF = "container_runtime"
TOOLKIT_FILE = "/etc/nvidia-container-runtime/config.toml"

UNITS: dict[str, list[dict[str, Any]]] = {
    "docker": [
        {"name": "containerd.service", "enabled": True, "state": "started"},
        {"name": "docker.socket", "enabled": True},
        {"name": "docker.service", "enabled": True, "state": "started"},
    ],
    "podman": [],
    "containerd": [{"name": "containerd.service", "enabled": True, "state": "started"}],
}

FORMATS = {"docker": "json", "podman": "toml", "containerd": "toml"}
# The unit that reads the engine's file. Podman has no daemon.
READERS = {"docker": "docker.service", "podman": None, "containerd": "containerd.service"}
# Docker takes these in on a reload, and the containers do not notice.
DOCKER_RELOADS = [
    "debug",
    "default-runtime",
    "insecure-registries",
    "labels",
    "live-restore",
    "max-concurrent-downloads",
    "max-concurrent-uploads",
    "max-download-attempts",
    "registry-mirrors",
    "runtimes",
    "shutdown-timeout",
]

# What `nvidia-ctk runtime configure` writes for Docker. Merged here instead, because what else is in the file stays.
DOCKER_TOOLKIT = {"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}
CONTAINERD_CDI = {"enable_cdi": True, "cdi_spec_dirs": ["/etc/cdi", "/var/run/cdi"]}
CONTAINERD_RUNTIME = "/usr/bin/nvidia-container-runtime"
CONTAINERD_TOOLKIT = {
    "containerd": {
        "runtimes": {
            "nvidia": {
                "runtime_type": "io.containerd.runc.v2",
                "privileged_without_host_devices": False,
                "options": {"BinaryName": CONTAINERD_RUNTIME},
            }
        }
    }
}
# containerd says where its settings are by the version of its file's format.
# As disabled_plugins may name it, in any version of the format.
CRI_NAMES = ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images")
CONTAINERD_PLUGINS = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_SHA256 = re.compile(r"[0-9a-f]{64}")


def plan(
    variables: Mapping[str, Any], systems: Mapping[str, Any], facts: Mapping[str, Any], containerd: str | None = None
) -> dict[str, Any]:
    """The plan of one host.

    :param variables: the role's variables, with their whole names.
    :param systems: what the systems bring, by the key of the system; see the role's variables.
    :param facts: the host's facts; of them `gpu`, `gpu_plan` or, for want of that, the distribution.
    :param containerd: what is in containerd's file; None where there is none, or where nobody has looked.
    :return: `check`: whether there is something to find out or to refuse before anything else. `system`: its key.
        `known`: whether the role knows the system; without that there is nothing more. `problems`: rows of why and
        remedy. `present`: whether there is to be an engine. `proves`: whether it is to be proven. `desired`: the
        document for packages, repositories and units; `compared`: the same with the files that other modules keep;
        `finished`: the same with `notes`, None where comparing the host does not tell all that there is to do. `file`
        and `toolkit`: arguments of config_merge, `toolkit` None where it is not wanted; `validate`, `unit`,
        `reload_keys`, `others`: of the engine's file. `packaged`: whether the engine's package is about to bring that
        file. `specification`: arguments of nvidia_cdi, None where it cannot be told whether there are cards. `notes`:
        what an operator should know.
    """
    key = system_of(facts)
    system = re.sub(r"^el(8|9|10)$", "el", key)
    asked = {name.removeprefix("container_runtime_"): value for name, value in variables.items()}
    unsure = not planned_system(facts) or "gpu" not in facts or asked["engine"] == "containerd"
    if system not in systems:
        return {"check": True, "system": key, "known": False, "problems": []}
    wanted = _Wanted(asked, systems[system], not key.startswith("el"), facts.get("gpu") or {}, containerd)
    problems = wanted.problems() if wanted.present else []
    file, toolkit = wanted.file(), wanted.toolkit_file() if wanted.toolkit else None
    specification = wanted.specification()
    proofs = wanted.proofs()
    desired = {**wanted.desired(), **({"proofs": proofs} if proofs else {})}
    compared = {**desired, "settings": [file, toolkit] if toolkit else [file]}
    compared = {**compared, "cdi": specification} if specification else compared
    check, notes = unsure or bool(problems), wanted.notes()
    return {
        "check": check,
        "system": key,
        "known": True,
        "problems": problems,
        "present": wanted.present,
        "proves": bool(proofs) and wanted.present,
        "desired": desired,
        "compared": compared,
        "finished": None if check else {**compared, "notes": notes},
        "file": file,
        "toolkit": toolkit,
        "validate": wanted.validate(),
        "runtimes": wanted.runtimes(),
        "unit": READERS[wanted.engine],
        "reload_keys": DOCKER_RELOADS if wanted.engine == "docker" else [],
        "others": wanted.other_files(),
        "packaged": wanted.engine == "containerd" and wanted.present and containerd is None,
        "specification": specification,
        "notes": notes,
    }


def _disabled(text: str) -> list[str]:
    """What containerd's file switches off."""
    try:
        named = toml.parse(text).get("disabled_plugins")
    except merge.Malformed:
        # config_merge says what is wrong with it.
        return []
    return list(map(str, named)) if isinstance(named, list) else []


class _Wanted:
    """What is asked for, for one host of a known system."""

    def __init__(
        self,
        asked: Mapping[str, Any],
        system: Mapping[str, Any],
        apt: bool,
        gpu: Mapping[str, Any],
        containerd: str | None,
    ) -> None:
        self.asked, self.system, self.apt, self.gpu = asked, system, apt, gpu
        self.engine = str(asked["engine"])
        self.present = asked["state"] == "present"
        self.docker_ce = bool(asked["docker_repo_url"])
        self.nvidia = self._nvidia()
        self.toolkit = self.nvidia == "toolkit"
        self.cdi = self.nvidia != "none" and self._engine_speaks_cdi()
        self.containerd_version = self._containerd_version(containerd or "")
        asked_for = asked["containerd_config"].get("disabled_plugins")
        self.disabled = [name for name in CRI_NAMES if name in [*_disabled(containerd or ""), *(asked_for or ())]]

    def _nvidia(self) -> str:
        """How containers get at the cards: none, toolkit or cdi."""
        if self.gpu.get("present") is not True or not self.present:
            return "none"
        if self.asked["nvidia"] != "auto":
            return str(self.asked["nvidia"])
        return "toolkit" if self.asked["toolkit_repo_url"] else "cdi"

    def _engine_speaks_cdi(self) -> bool:
        if self.engine == "podman":
            return True
        if self.engine == "docker" and str(self.asked["docker_cdi"]).lower() != "auto":
            return bool(boolean(self.asked["docker_cdi"]))
        return (self.engine == "docker" and self.docker_ce) or bool(self.system[self.engine]["cdi"])

    # Packages, repositories and units --------------------------------------------------------------------------------

    def packages(self) -> list[str]:
        if self.asked["packages"]:
            return list(self.asked["packages"])
        return DOCKER_CE if self.engine == "docker" and self.docker_ce else list(self.system[self.engine]["packages"])

    def desired(self) -> dict[str, Any]:
        return {
            "repositories": [
                self._repository(
                    "baremetal-gpu-docker",
                    "docker_repo",
                    self.present and self.engine == "docker" and self.docker_ce,
                    [self.system.get("codename")],
                ),
                self._repository(
                    "baremetal-gpu-container-toolkit",
                    "toolkit_repo",
                    self.toolkit and bool(self.asked["toolkit_repo_url"]),
                    [],
                ),
            ],
            "packages": self._desired_packages(),
            "units": UNITS[self.engine] if self.present else [],
        }

    def proofs(self) -> list[dict[str, Any]]:
        """What is due after a change until it has passed. One that is never made keeps its record for later."""
        if not self.present:
            return [{"name": PROOF, "state": "absent"}]
        what = f"that {self.engine} runs containers within their limits"
        return [] if self.asked["validate"] == "never" else [{"name": PROOF, "what": what}]

    def _repository(self, name: str, prefix: str, wanted: bool, suites: list[Any]) -> dict[str, Any]:
        """What an item leaves out means something, so it has only what was asked for."""
        if not wanted:
            return {"name": name, "state": "absent"}
        asked = {key.removeprefix(f"{prefix}_"): value for key, value in self.asked.items() if key.startswith(prefix)}
        item: dict[str, Any] = {"name": name}
        if self.apt:
            item.update(uris=[asked["url"]], suites=asked["suites"] or suites)
            if asked["components"]:
                item["components"] = asked["components"]
        else:
            item["baseurl"] = asked["url"]
        if asked["key_sha256"]:
            source = "path" if asked["key_path"] else "url"
            item["key"] = {source: asked[f"key_{source}"], "sha256": asked["key_sha256"]}
        if asked["options"]:
            item["options"] = asked["options"]
        return item

    def _desired_packages(self) -> list[dict[str, Any]]:
        packages = self.packages()
        if not self.present:
            gone = packages + TOOLKIT if boolean(self.asked["remove_packages"]) else []
            return [{"name": name, "state": "absent"} for name in gone]
        found: list[dict[str, Any]] = [{"name": name, "hold": self.asked["hold"]} for name in packages]
        if found and self.asked["version"]:
            found[0]["version"] = self.asked["version"]
        if self.engine == "docker" and self.docker_ce:
            found += [{"name": name, "state": "absent"} for name in DOCKER_CE_CONFLICTS if name not in packages]
        if self.toolkit:
            version = {"version": self.asked["toolkit_version"]} if self.asked["toolkit_version"] else {}
            found += [{"name": name, "hold": self.asked["toolkit_hold"], **version} for name in TOOLKIT]
        return found

    # Files -----------------------------------------------------------------------------------------------------------

    def file(self) -> dict[str, Any]:
        """What becomes of the engine's file."""
        # Absent goes by what is remembered: a setting of the same value that others have made stays.
        values = getattr(self, f"_{self.engine}_values")() if self.present else {}
        docker = self.engine == "docker"
        return {
            "path": ENGINE_CONFIGS[self.engine],
            "format": FORMATS[self.engine],
            "state": self.asked["state"],
            "values": values,
            "remove": self.asked["docker_config_remove"] if docker and self.present else [],
            "lists": self.asked["docker_config_lists"] if docker else "union",
            "withdraw_from": [other["path"] for other in self.other_files()],
        }

    def runtimes(self) -> list[str]:
        """Runtimes that the role brings beside the default one, as container_check takes them."""
        if not self.toolkit:
            return []
        return {"docker": sorted(DOCKER_TOOLKIT["runtimes"]), "containerd": [CONTAINERD_RUNTIME]}.get(self.engine, [])

    def toolkit_file(self) -> dict[str, Any]:
        own = {"accept-nvidia-visible-devices-envvar-when-unprivileged": self.asked["toolkit_unprivileged_envvar"]}
        values = merge_hash(own, self.asked["toolkit_config"])
        return {"path": TOOLKIT_FILE, "format": "toml", "values": values, "mode": "0644"}

    def other_files(self) -> list[dict[str, Any]]:
        """Of the engines that are not wanted; what the role made there is taken out."""
        others = (name for name in ENGINE_CONFIGS if name != self.engine)
        return [{"path": ENGINE_CONFIGS[name], "format": FORMATS[name]} for name in others]

    def validate(self) -> str | None:
        """The command that says whether the engine's file is valid."""
        if self.engine == "containerd":
            return "containerd --config %s config dump"
        if self.engine == "podman":
            return "podman --module=%s info" if self.system["podman"]["validate"] else None
        able = self.docker_ce or self.system["docker"]["validate"]
        return "dockerd --validate --config-file=%s" if able else None

    def _docker_values(self) -> dict[str, Any]:
        asked, values = self.asked, {}
        for key, name in (
            ("data-root", "docker_data_root"),
            ("registry-mirrors", "docker_registry_mirrors"),
            ("log-driver", "docker_log_driver"),
            ("log-opts", "docker_log_options"),
            ("default-runtime", "docker_default_runtime"),
        ):
            if asked[name]:
                values[key] = asked[name]
        if asked["docker_live_restore"] is not None:
            values["live-restore"] = boolean(asked["docker_live_restore"])
        if self.cdi:
            values["features"] = {"cdi": True}
        if self.toolkit:
            values.update(DOCKER_TOOLKIT)
        return dict(merge_hash(values, asked["docker_config"]))

    def _podman_values(self) -> dict[str, Any]:
        return dict(self.asked["podman_config"])

    def _containerd_values(self) -> dict[str, Any]:
        wanted = self._containerd_wanted()
        return {"version": self.containerd_version, **wanted} if wanted else {}

    def _containerd_wanted(self) -> dict[str, Any]:
        cri = {**(CONTAINERD_CDI if self.cdi else {}), **(CONTAINERD_TOOLKIT if self.toolkit else {})}
        plugin = CONTAINERD_PLUGINS.get(self.containerd_version, CONTAINERD_PLUGINS[2])
        return dict(merge_hash({"plugins": {plugin: cri}} if cri else {}, self.asked["containerd_config"]))

    def _containerd_version(self, text: str) -> int:
        """A file that is there keeps its version; one without a version is of the first."""
        if not re.search(r"^\s*[^#\s]", text, re.MULTILINE):
            return int(self.asked["containerd_config_version"])
        found = re.search(r"^\s*version\s*=\s*(\d+)", text, re.MULTILINE)
        return int(found[1]) if found else 1

    def specification(self) -> dict[str, Any] | None:
        # Where it cannot be told whether there are cards, nothing is taken away.
        if not self.cdi and self.present and self.gpu.get("present") is None:
            return None
        devices = {"devices": self.gpu["devices"]} if self.gpu.get("devices") else {}
        return {"state": "present", "engine": self.engine, **devices} if self.cdi else {"state": "absent", **devices}

    # What speaks against it, and what is to be known -----------------------------------------------------------------

    def problems(self) -> list[dict[str, str]]:
        asked, found = self.asked, []

        def problem(why: str, remedy: str) -> None:
            found.append({"why": why, "remedy": remedy})

        if not self.packages():
            problem(
                f"this system has no package of its own for {self.engine}",
                "name a repository in container_runtime_docker_repo_url, or packages in container_runtime_packages, or "
                "set container_runtime_engine to podman",
            )
        if "hosts" in asked["docker_config"]:
            problem(
                "container_runtime_docker_config has the key hosts, which the unit of Docker sets on its command line; "
                "Docker does not start with both",
                "set the addresses in a drop-in of docker.service",
            )
        if self.engine == "containerd" and boolean(asked["containerd_cri"]) and self.disabled:
            problem(
                f"{ENGINE_CONFIGS['containerd']} has, or is to have, {', '.join(self.disabled)} in disabled_plugins, "
                "so that containerd serves no client of the Container Runtime Interface, such as a kubelet, and gives "
                "none of them a GPU",
                "take it out of that list there (and in container_runtime_containerd_config), or set "
                "container_runtime_containerd_cri to false where nobody needs it",
            )
        if asked["docker_default_runtime"] == "nvidia" and not self.toolkit:
            problem(
                "container_runtime_docker_default_runtime is nvidia, and this host gets no NVIDIA Container Toolkit, "
                f"which brings that runtime (container_runtime_nvidia comes out as {self.nvidia})",
                "set container_runtime_nvidia to toolkit, or leave container_runtime_docker_default_runtime empty",
            )
        for prefix in ("docker_repo", "toolkit_repo"):
            url, sha256 = asked[f"{prefix}_url"], asked[f"{prefix}_key_sha256"]
            named = asked[f"{prefix}_key_url"] or asked[f"{prefix}_key_path"]
            if url and not asked[f"{prefix}_options"] and not (_SHA256.fullmatch(str(sha256)) and named):
                name = f"container_runtime_{prefix}"
                problem(
                    f"{name}_url is {url}, and the key that it is signed with cannot be checked (checksum '{sha256}')",
                    f"set {name}_key_sha256 to what sha256sum prints for the key, once you have compared the key with "
                    f"its owner's fingerprint, and one of {name}_key_url and {name}_key_path",
                )
        if (
            self.engine == "containerd"
            and self._containerd_wanted()
            and self.containerd_version not in CONTAINERD_PLUGINS
        ):
            problem(
                f"{ENGINE_CONFIGS['containerd']} is written in version {self.containerd_version} of its format, and "
                "settings can be merged into versions 2 and 3",
                "write the file anew in version 2 (newer releases have `containerd config migrate` for it), or remove "
                "it",
            )
        return found

    def notes(self) -> list[str]:
        if self.nvidia == "none" or self.cdi or self.toolkit:
            return []
        return [
            f"This {self.engine} has no CDI. Containers get cards by naming every device node and library, or with "
            "container_runtime_engine podman, with NVIDIA Container Toolkit (container_runtime_toolkit_repo_url) or "
            "with a newer Docker (container_runtime_docker_repo_url)."
        ]
