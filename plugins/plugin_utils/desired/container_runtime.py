# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container engine of a host, from the variables of the role container_runtime and the facts of the host."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.utils.vars import merge_hash

from ansible_collections.baremetal.gpu.plugins.module_utils.config import merge, toml
from ansible_collections.baremetal.gpu.plugins.module_utils.container.engines import ENGINE_CONFIGS
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.system_of import planned_system, system_of

DOCKER_CE = ["docker-ce", "docker-ce-cli", "containerd.io", "docker-buildx-plugin", "docker-compose-plugin"]
CONTAINERD_IO = ["containerd.io"]
# These bring the same files.
DOCKER_CE_CONFLICTS = ["docker.io", "docker-cli", "docker-doc", "docker-compose", "podman-docker", "containerd", "runc"]
TOOLKIT = [
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
]
ROLE = "container_runtime"
TOOLKIT_FILE = "/etc/nvidia-container-runtime/config.toml"

UNITS: dict[str, list[doc.Unit]] = {
    "docker": [
        doc.Unit.running("containerd.service"),
        doc.Unit("docker.socket", enabled=True),
        doc.Unit.running("docker.service"),
    ],
    "podman": [],
    "containerd": [doc.Unit.running("containerd.service")],
}

FORMATS: dict[str, Literal["json", "toml"]] = {"docker": "json", "podman": "toml", "containerd": "toml"}
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
# kubelet and containerd leave the control groups to systemd.
CONTAINERD_KUBELET = {
    "containerd": {"runtimes": {"runc": {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}}}
}
REGISTRIES = "/etc/containerd/certs.d"
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
# The Container Runtime Interface as disabled_plugins may name it, in any version of the format of containerd's file.
CRI_NAMES = ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images")
# The plugin that has the settings, by the version of the format.
CONTAINERD_PLUGINS = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_SHA256 = re.compile(r"[0-9a-f]{64}")


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param params: the role's variables; its table `systems`, what the systems bring by their key; and
        `containerd_file`, the content of containerd's file in Base64, None where there is none or it was not read.
    :param facts: the host's facts; of them `gpu`, `gpu_plan` or, without that, the distribution.
    :return: The document is that of packages, repositories and units. The parts are `check`: whether preflight is
        needed before anything else. `finished`: the document of a host on which nothing is left to do, with `notes`;
        None where comparing it does not tell. `compared`: the document with the files that other modules keep. `file`
        and `toolkit`: arguments of config_merge, `toolkit` None where the toolkit is not desired; `validate`, `unit`,
        `reload_keys`, `others`: of the engine's file. `packaged`: whether the engine's package is about to bring that
        file. `specification`: arguments of nvidia_cdi, None where it cannot be told whether the host has GPUs.
        `proves`: whether the engine is to be proven. `runtimes`: what it is proven with. `notes`: what an operator
        should know.
    """
    if params["engine"] == "none":
        return Plan(parts={"check": False, "finished": {}, "notes": []})
    key = system_of(facts)
    system = re.sub(r"^el(8|9|10)$", "el", key)
    if system not in params["systems"]:
        unknown = Problem(
            "unknown_system",
            ROLE,
            f"no package names are known for {key}",
            key,
            "use Debian 12 or 13, Ubuntu 22.04 or 24.04 or Enterprise Linux 8 to 10, or set container_runtime_engine "
            "to none and bring your own",
        )
        path = ENGINE_CONFIGS[str(params["engine"])]
        return Plan(problems=(unknown,), parts={"check": True, "finished": None, "file": {"path": path}, "notes": []})
    encoded = params["containerd_file"]
    containerd = None if encoded is None else base64.b64decode(encoded).decode("utf-8", "replace")
    engine = _Engine(params, params["systems"][system], not key.startswith("el"), facts.get("gpu") or {}, containerd)
    problems = engine.problems() if engine.present else []
    document = engine.document()
    others = doc.Document(settings=engine.settings(), cdi=engine.specification())
    compared = {**document.plain, **others.plain}
    # As other modules take them.
    file, *toolkit = compared["settings"]
    unsure = not planned_system(facts) or "gpu" not in facts or engine.name == "containerd"
    check, notes = unsure or bool(problems), engine.notes()
    parts = {
        "check": check,
        "finished": None if check or params["validate"] == "always" else {**compared, "notes": notes},
        "compared": compared,
        "proves": bool(document.proofs) and engine.present,
        "file": file,
        "toolkit": toolkit[0] if toolkit else None,
        "validate": engine.validate(),
        "runtimes": engine.runtimes(),
        "unit": READERS[engine.name],
        "reload_keys": DOCKER_RELOADS if engine.name == "docker" else [],
        "others": engine.other_files(),
        # That of containerd.io turns off what a kubelet speaks to.
        "packaged": engine.name == "containerd" and engine.present and containerd is None and not engine.docker_ce,
        "specification": compared.get("cdi"),
        "notes": notes,
    }
    return Plan(doc.Document() if problems else document, tuple(problems), parts)


def _disabled(text: str) -> list[str]:
    """The plugins that containerd's file disables."""
    try:
        names = toml.parse(text).get("disabled_plugins")
    except merge.Malformed:
        # config_merge says what is wrong with it.
        return []
    return list(map(str, names)) if isinstance(names, list) else []


class _Engine:
    """The engine of one host of a known system."""

    def __init__(
        self,
        params: Mapping[str, Any],
        system: Mapping[str, Any],
        apt: bool,
        gpu: Mapping[str, Any],
        containerd: str | None,
    ) -> None:
        self.params, self.system, self.apt, self.gpu = params, system, apt, gpu
        self.name: Literal["docker", "podman", "containerd"] = params["engine"]
        self.present = params["state"] == "present"
        # Docker's repository, which has containerd.io, too.
        self.docker_ce = bool(params["docker_repo_url"])
        self.nvidia = self._nvidia()
        self.toolkit = self.nvidia == "toolkit"
        self.cdi = self.nvidia != "none" and self._engine_speaks_cdi()
        disabled = [*_disabled(containerd or ""), *(params["containerd_config"].get("disabled_plugins") or ())]
        self.disabled = [name for name in CRI_NAMES if name in disabled]
        # A host of Kubernetes needs them; a list that has others, too, is the operator's.
        self.enables_cri = bool(boolean(params["kubernetes"]) and disabled and not set(disabled) - set(CRI_NAMES))
        self.containerd_version = self._containerd_version(containerd or "")

    def _nvidia(self) -> str:
        """How containers get GPUs: none, toolkit or cdi."""
        if self.gpu.get("present") is not True or not self.present:
            return "none"
        if self.params["nvidia"] != "auto":
            return str(self.params["nvidia"])
        return "toolkit" if self.params["toolkit_repo_url"] else "cdi"

    def _engine_speaks_cdi(self) -> bool:
        if self.name == "podman":
            return True
        if self.name == "docker" and str(self.params["docker_cdi"]).lower() != "auto":
            return bool(boolean(self.params["docker_cdi"]))
        return self.docker_ce or bool(self.system[self.name]["cdi"])

    # Packages, repositories and units --------------------------------------------------------------------------------

    def packages(self) -> list[str]:
        if self.params["packages"]:
            return list(self.params["packages"])
        of_docker = {"docker": DOCKER_CE, "containerd": CONTAINERD_IO} if self.docker_ce else {}
        return of_docker.get(self.name) or list(self.system[self.name]["packages"])

    def document(self) -> doc.Document:
        return doc.Document(
            repositories=[
                self._repository(
                    "baremetal-gpu-docker",
                    "docker_repo",
                    self.present and self.name in ("docker", "containerd") and self.docker_ce,
                    [self.system.get("codename")],
                ),
                self._repository(
                    "baremetal-gpu-container-toolkit",
                    "toolkit_repo",
                    self.toolkit and bool(self.params["toolkit_repo_url"]),
                    [],
                ),
            ],
            packages=self._package_rows(),
            units=UNITS[self.name] if self.present else [],
            proofs=self._proofs(),
        )

    def _proofs(self) -> list[doc.Proof] | None:
        """What is due after a change until it has passed. One that is never made keeps its record for later."""
        if not self.present:
            return [doc.Proof(ROLE, state="absent")]
        what = f"that {self.name} runs containers within their limits"
        return None if self.params["validate"] == "never" else [doc.Proof(ROLE, what)]

    def _repository(self, name: str, prefix: str, present: bool, suites: list[Any]) -> doc.Repository:
        """A field that is left out has a meaning of its own, so an item has only the fields that are set."""
        if not present:
            return doc.Repository(name, "absent")
        set_to = {key.removeprefix(f"{prefix}_"): value for key, value in self.params.items() if key.startswith(prefix)}
        key = None
        if set_to["key_sha256"]:
            source = "path" if set_to["key_path"] else "url"
            key = {source: set_to[f"key_{source}"], "sha256": set_to["key_sha256"]}
        options = set_to["options"] or None
        if not self.apt:
            return doc.Repository(name, baseurl=set_to["url"], key=key, options=options)
        return doc.Repository(
            name,
            uris=[set_to["url"]],
            suites=set_to["suites"] or suites,
            components=set_to["components"] or None,
            key=key,
            options=options,
        )

    def _package_rows(self) -> list[doc.Package]:
        packages, params = self.packages(), self.params
        if not self.present:
            removed = packages + TOOLKIT if boolean(params["remove_packages"]) else []
            return [doc.Package(name, "absent") for name in removed]
        rows = [doc.Package(name, hold=params["hold"]) for name in packages]
        if rows and params["version"]:
            rows[0] = replace(rows[0], version=params["version"])
        if self.name == "docker" and self.docker_ce:
            rows += [doc.Package(name, "absent") for name in DOCKER_CE_CONFLICTS if name not in packages]
        if self.toolkit:
            version = params["toolkit_version"] or None
            rows += [doc.Package(name, version=version, hold=params["toolkit_hold"]) for name in TOOLKIT]
        return rows

    # Files -----------------------------------------------------------------------------------------------------------

    def settings(self) -> list[doc.Settings]:
        return [self._file(), *([self._toolkit_file()] if self.toolkit else [])]

    def _file(self) -> doc.Settings:
        """What becomes of the engine's file."""
        # State absent takes out what is recorded: a setting of the same value that others have made stays.
        values = getattr(self, f"_{self.name}_values")() if self.present else {}
        docker = self.name == "docker"
        return doc.Settings(
            ENGINE_CONFIGS[self.name],
            FORMATS[self.name],
            self.params["state"],
            values,
            remove=self._removed() if self.present else [],
            lists=self.params["docker_config_lists"] if docker else "union",
            withdraw_from=[other["path"] for other in self.other_files()],
        )

    def _removed(self) -> Sequence[Any]:
        if self.name == "containerd":
            return ["disabled_plugins"] if self.enables_cri else []
        return list(self.params["docker_config_remove"]) if self.name == "docker" else []

    def runtimes(self) -> list[str]:
        """Runtimes that the role brings beside the default one, as container_check takes them."""
        if not self.toolkit:
            return []
        return {"docker": sorted(DOCKER_TOOLKIT["runtimes"]), "containerd": [CONTAINERD_RUNTIME]}.get(self.name, [])

    def _toolkit_file(self) -> doc.Settings:
        own = {"accept-nvidia-visible-devices-envvar-when-unprivileged": self.params["toolkit_unprivileged_envvar"]}
        values = merge_hash(own, self.params["toolkit_config"])
        return doc.Settings(TOOLKIT_FILE, "toml", values=values, mode="0644")

    def other_files(self) -> list[dict[str, str]]:
        """Of the other engines; what the role made there is taken out."""
        others = (name for name in ENGINE_CONFIGS if name != self.name)
        return [{"path": ENGINE_CONFIGS[name], "format": FORMATS[name]} for name in others]

    def validate(self) -> str | None:
        """The command that says whether the engine's file is valid."""
        if self.name == "containerd":
            return "containerd --config %s config dump"
        if self.name == "podman":
            return "podman --module=%s info" if self.system["podman"]["validate"] else None
        able = self.docker_ce or self.system["docker"]["validate"]
        return "dockerd --validate --config-file=%s" if able else None

    def _docker_values(self) -> dict[str, Any]:
        params, values = self.params, {}
        for key, name in (
            ("data-root", "docker_data_root"),
            ("registry-mirrors", "docker_registry_mirrors"),
            ("log-driver", "docker_log_driver"),
            ("log-opts", "docker_log_options"),
            ("default-runtime", "docker_default_runtime"),
        ):
            if params[name]:
                values[key] = params[name]
        if params["docker_live_restore"] is not None:
            values["live-restore"] = boolean(params["docker_live_restore"])
        if self.cdi:
            values["features"] = {"cdi": True}
        if self.toolkit:
            values.update(DOCKER_TOOLKIT)
        return dict(merge_hash(values, params["docker_config"]))

    def _podman_values(self) -> dict[str, Any]:
        return dict(self.params["podman_config"])

    def _containerd_values(self) -> dict[str, Any]:
        settings = self._containerd_settings()
        return {"version": self.containerd_version, **settings} if settings else {}

    def _containerd_settings(self) -> dict[str, Any]:
        cri = {**(CONTAINERD_CDI if self.cdi else {}), **(CONTAINERD_TOOLKIT if self.toolkit else {})}
        plugin = CONTAINERD_PLUGINS.get(self.containerd_version, CONTAINERD_PLUGINS[2])
        plugins = {plugin: cri} if cri else {}
        if boolean(self.params["kubernetes"]):
            plugins = merge_hash(plugins, self._kubelet_settings(plugin))
        return dict(merge_hash({"plugins": plugins} if plugins else {}, self.params["containerd_config"]))

    def _kubelet_settings(self, plugin: str) -> dict[str, Any]:
        """Control groups, where registries are described, and the image of a pod's sandbox, which has another name in
        each version of the file's format."""
        registry, image = {"config_path": REGISTRIES}, self.params["containerd_sandbox_image"]
        if self.containerd_version == 3:
            pinned = {"pinned_images": {"sandbox": image}} if image else {}
            return {plugin: CONTAINERD_KUBELET, "io.containerd.cri.v1.images": {"registry": registry, **pinned}}
        of_sandbox = {"sandbox_image": image} if image else {}
        return {plugin: {**CONTAINERD_KUBELET, "registry": registry, **of_sandbox}}

    def _containerd_version(self, text: str) -> int:
        """An existing file keeps its version; one without a version is of the first, unless nothing of it stays."""
        said = r"^\s*(?!disabled_plugins\b)[^#\s]" if self.enables_cri else r"^\s*[^#\s]"
        if not re.search(said, text, re.MULTILINE):
            return int(self.params["containerd_config_version"])
        version = re.search(r"^\s*version\s*=\s*(\d+)", text, re.MULTILINE)
        return int(version[1]) if version else 1

    def specification(self) -> doc.Cdi | None:
        # Where it cannot be told whether the host has GPUs, nothing is taken away.
        if not self.cdi and self.present and self.gpu.get("present") is None:
            return None
        devices = self.gpu.get("devices") or None
        return doc.Cdi("present", engine=self.name, devices=devices) if self.cdi else doc.Cdi("absent", devices=devices)

    # Problems and notes ----------------------------------------------------------------------------------------------

    def problems(self) -> list[Problem]:
        return [
            *self._package_problems(),
            *self._docker_problems(),
            *self._containerd_problems(),
            *self._key_problems(),
        ]

    def _package_problems(self) -> list[Problem]:
        if self.packages():
            return []
        return [
            Problem(
                "no_package",
                "container_runtime_packages",
                f"this system has no package of its own for {self.name}",
                self.name,
                "name a repository in container_runtime_docker_repo_url, or packages in container_runtime_packages, or "
                "set container_runtime_engine to podman",
            )
        ]

    def _docker_problems(self) -> list[Problem]:
        problems = []
        if "hosts" in self.params["docker_config"]:
            problems.append(
                Problem(
                    "hosts_in_docker_config",
                    "container_runtime_docker_config",
                    "container_runtime_docker_config has the key hosts, which the unit of Docker sets on its command "
                    "line; Docker does not start with both",
                    ", ".join(map(str, self.params["docker_config"]["hosts"] or ())),
                    "set the addresses in a drop-in of docker.service",
                )
            )
        if self.params["docker_default_runtime"] == "nvidia" and not self.toolkit:
            problems.append(
                Problem(
                    "no_nvidia_runtime",
                    "container_runtime_docker_default_runtime",
                    "container_runtime_docker_default_runtime is nvidia, and this host gets no NVIDIA Container "
                    f"Toolkit, which brings that runtime (container_runtime_nvidia comes out as {self.nvidia})",
                    self.nvidia,
                    "set container_runtime_nvidia to toolkit, or leave container_runtime_docker_default_runtime empty",
                )
            )
        return problems

    def _containerd_problems(self) -> list[Problem]:
        if self.name != "containerd":
            return []
        path, problems = ENGINE_CONFIGS["containerd"], []
        if boolean(self.params["containerd_cri"]) and self.disabled and not self.enables_cri:
            disabled = ", ".join(self.disabled)
            problems.append(
                Problem(
                    "cri_disabled",
                    path,
                    f"{path} has, or is to have, {disabled} in disabled_plugins, so that containerd serves no client "
                    "of the Container Runtime Interface, such as a kubelet, and gives none of them a GPU",
                    disabled,
                    "remove it from that list there (and in container_runtime_containerd_config), or set "
                    "container_runtime_containerd_cri to false if it is not needed",
                )
            )
        if self._containerd_settings() and self.containerd_version not in CONTAINERD_PLUGINS:
            problems.append(
                Problem(
                    "old_file_format",
                    path,
                    f"{path} is written in version {self.containerd_version} of its format, and settings can be merged "
                    "into versions 2 and 3",
                    str(self.containerd_version),
                    "write the file anew in version 2 (newer releases have `containerd config migrate` for it), or "
                    "remove it",
                )
            )
        return problems

    def _key_problems(self) -> list[Problem]:
        params, problems = self.params, []
        for prefix in ("docker_repo", "toolkit_repo"):
            url, sha256 = params[f"{prefix}_url"], params[f"{prefix}_key_sha256"]
            source = params[f"{prefix}_key_url"] or params[f"{prefix}_key_path"]
            if not url or params[f"{prefix}_options"] or (source and _SHA256.fullmatch(str(sha256))):
                continue
            name = f"container_runtime_{prefix}"
            problems.append(
                Problem(
                    "no_key_checksum",
                    f"{name}_key_sha256",
                    f"{name}_url is {url}, and the key that it is signed with cannot be checked (checksum '{sha256}')",
                    str(sha256),
                    f"set {name}_key_sha256 to what sha256sum prints for the key, once you have compared the key with "
                    f"its owner's fingerprint, and one of {name}_key_url and {name}_key_path",
                )
            )
        return problems

    def notes(self) -> list[str]:
        if self.nvidia == "none" or self.cdi or self.toolkit:
            return []
        return [
            f"This {self.name} has no CDI. Containers get GPUs by naming every device node and library, or with "
            "container_runtime_engine podman, with NVIDIA Container Toolkit (container_runtime_toolkit_repo_url) or "
            "with a newer Docker (container_runtime_docker_repo_url)."
        ]
