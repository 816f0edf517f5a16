#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_drift_info
short_description: Return how a host differs from a desired document
version_added: 0.1.0
description:
  - Compares repositories, packages, files, units, kernel modules, alternatives and the initramfs of a host with a
    document that says how they should be, and returns what differs and why.
  - It changes nothing, uses no network, and reads dpkg's status file instead of apt's cache. It runs C(apt-cache) only
    if a package is missing, to find what would be installed.
  - The role P(baremetal.gpu.converge#role) passes what differs to the modules of ansible.builtin.
options:
  roles:
    description:
      - Roles of this collection that the play imports, instead of O(desired). The host is compared with the state in
        which none of them has anything left to do, in one execution for all.
      - Each role declares that state in its variable C(__ROLE_finished). If one of them declares none, nothing is
        compared, and the host counts as different.
      - What differs is not returned, because each role finds that itself.
    type: list
    elements: str
  desired:
    description: Desired state of the host. Sections and options that are left out are not checked.
    type: dict
    suboptions:
      repositories:
        description: Package repositories.
        type: list
        elements: dict
        suboptions:
          name:
            description: Name of the file in C(/etc/apt/sources.list.d) or C(/etc/yum.repos.d), without its suffix.
            type: str
            required: true
          state:
            description: Whether the repository should be there.
            type: str
            choices: [present, absent]
            default: present
          type:
            description: Kind of file; by default that of the host's package manager.
            type: str
            choices: [deb822, yum]
          uris:
            description: Addresses of the repository.
            type: list
            elements: str
          baseurl:
            description: Address of a yum repository, instead of O(desired.repositories[].uris).
            type: str
          suites:
            description: Suites of a deb822 repository.
            type: list
            elements: str
          extend:
            description:
              - Suites of which the host's own sources have the component C(main). The repository then adds
                O(desired.repositories[].components) from the same addresses and with the same key, except what the host
                already has.
            type: list
            elements: str
          components:
            description: Components.
            type: list
            elements: str
          architectures:
            description: Architectures.
            type: list
            elements: str
          signed_by:
            description: Path of a keyring that the host already has.
            type: path
          key:
            description: The key of the repository. It lies at C(dest), C(/etc/apt/keyrings/NAME.asc) by default.
            type: dict
          options:
            description: Further fields of the file by name.
            type: dict
      pins:
        description: Preferences of apt.
        type: list
        elements: dict
        suboptions:
          name:
            description: Name of the file in C(/etc/apt/preferences.d), without its suffix.
            type: str
            required: true
          state:
            description: Whether the pin should be there.
            type: str
            choices: [present, absent]
            default: present
          package:
            description: The packages, separated by spaces; shell patterns are allowed.
            type: str
          pin:
            description: What the pin is for, such as C(version 550.*).
            type: str
          priority:
            description: Priority of the pin.
            type: int
            default: 1001
      packages:
        description: Packages.
        type: list
        elements: dict
        suboptions:
          name:
            description: Name of the package. With O(desired.packages[].state=absent) it may be a shell pattern.
            type: str
            required: true
          state:
            description: Whether the package should be installed.
            type: str
            choices: [present, absent]
            default: present
          version:
            description: The version, exact or as a shell pattern such as C(550.*). By default any version.
            type: str
          hold:
            description: Whether the package should be held at its version. By default it does not matter.
            type: bool
          together:
            description:
              - Whether the package must have the same version as all others of the document with this option and a
                version. If some are installed at a suitable version, that one is desired for the others, the newest if
                they differ.
            type: bool
            default: false
          kernels:
            description:
              - Desires one package for every kernel, with the kernel's release in place of C({kernel}) in the name.
                Either V(installed), V(running) or a list of releases.
            type: raw
          follows:
            description:
              - Regular expression for names of installed packages. Every match desires one package, with the match's
                groups in place of C(\\1) and so on in the name.
            type: str
          purge:
            description:
              - Whether the configuration files of an absent package are removed too. If one of them was edited, all
                files of that package are kept.
            type: bool
            default: false
      files:
        description: Files, directories and links.
        type: list
        elements: dict
        suboptions:
          path:
            description: Absolute path.
            type: path
            required: true
          state:
            description: What should be at the path.
            type: str
            choices: [file, directory, link, absent]
            default: file
          content:
            description: Content of the file.
            type: str
          sha256:
            description: SHA-256 of the content, instead of the content.
            type: str
          src:
            description:
              - Target of a link.
              - With O(desired.files[].state=absent) only a link to that target must not exist.
            type: str
          mode:
            description: Mode in octal digits.
            type: str
          owner:
            description: Owner.
            type: str
          group:
            description: Group.
            type: str
          reclaim:
            description:
              - Whether the directories above this one that have its owner, group and mode ought to be root's, with
                C(0755).
            type: bool
            default: false
          force:
            description: Whether a file with another content is replaced; otherwise it only has to exist.
            type: bool
            default: true
          early:
            description: Whether the file is written before packages are installed.
            type: bool
            default: false
          sensitive:
            description: Whether the content is kept out of the diff.
            type: bool
            default: false
          url:
            description: Where the role downloads the file from. Not checked here.
            type: str
          source:
            description: File on the controller that the role copies. Not checked here.
            type: str
          validate:
            description: Command with which the role has the content checked. Not checked here.
            type: str
          backup:
            description: Whether the role keeps the file that it replaces. Not checked here.
            type: bool
      units:
        description: Units of systemd.
        type: list
        elements: dict
        suboptions:
          name:
            description: Name of the unit; without a suffix it is a service.
            type: str
            required: true
          enabled:
            description: Whether it should start at boot. By default it does not matter.
            type: bool
          state:
            description: Whether it should be running. By default it does not matter.
            type: str
            choices: [started, stopped]
          masked:
            description: Whether it should be masked. By default it does not matter.
            type: bool
          restart_on:
            description: Paths and names of packages, or shell patterns of them, whose change requires a restart.
            type: list
            elements: str
          reload_on:
            description: >-
              Paths, or shell patterns of them, whose change requires a reload. A restart makes it unnecessary.
            type: list
            elements: str
      kernel_modules:
        description: Kernel modules.
        type: list
        elements: dict
        suboptions:
          name:
            description: Name of the module.
            type: str
            required: true
          state:
            description: Whether it should be loaded.
            type: str
            choices: [loaded, unloaded]
            default: loaded
          current:
            description:
              - Whether the loaded module must have the installed version. If not, the module is reloaded, or a reboot
                is requested if something uses it.
            type: bool
            default: false
          unload_first:
            description: Modules that must be unloaded before this one is reloaded, in this order.
            type: list
            elements: str
          devices:
            description: Shell patterns of device files; a process that has one open holds the module.
            type: list
            elements: str
          units:
            description: Units that are stopped before the module is reloaded, so that their processes do not count.
            type: list
            elements: str
          packages:
            description:
              - Names of the module's packages, or shell patterns of them. After a change of one of them, a module with
                O(desired.kernel_modules[].current) is reloaded.
            type: list
            elements: str
          required:
            description: Whether the role fails if the module cannot be loaded or unloaded.
            type: bool
            default: true
      dkms:
        description:
          - Modules of the driver that DKMS must have installed for kernels. Other modules that match the name's
            pattern, such as nvidia-fs, and other versions do not count as drift; RV(notes) names them if they do not
            build.
        type: list
        elements: dict
        suboptions:
          name:
            description: Name of the module for DKMS, or a shell pattern of it.
            type: str
            required: true
          version:
            description: Version of the driver, or a shell pattern of it. A package's revision does not count.
            type: str
          kernels:
            description: Either V(installed), V(running) or a list of releases.
            type: raw
            default: installed
      initramfs:
        description: The initramfs of the installed kernels.
        type: dict
        suboptions:
          rebuild_on:
            description: Paths, or shell patterns of them, whose change requires a new initramfs.
            type: list
            elements: str
      alternatives:
        description: Choices of update-alternatives.
        type: list
        elements: dict
        suboptions:
          name:
            description: Name of the group.
            type: str
            required: true
          state:
            description: Whether the alternative should be registered and chosen.
            type: str
            choices: [present, absent]
            default: present
          link:
            description: The link that leads to the choice.
            type: path
          path:
            description: The alternative.
            type: path
            required: true
          priority:
            description: Priority of the alternative.
            type: int
            default: 50
      settings:
        description:
          - Files into which M(baremetal.gpu.config_merge) merges settings with O(ignore:record=true). What differs is
            in RV(others) and left to that module.
        type: list
        elements: dict
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
          state:
            description: Whether the file should have the settings.
            type: str
            choices: [present, absent]
            default: present
          values:
            description: The settings.
            type: dict
            default: {}
          remove:
            description: Keys that must not be in the file.
            type: list
            elements: raw
            default: []
          lists:
            description: What happens to a list of the file.
            type: str
            choices: [replace, union]
            default: replace
          mode:
            description: Mode of the file in octal digits. By default it does not matter.
            type: str
          withdraw_from:
            description: Other files, in which no setting of the module should remain.
            type: list
            elements: path
            default: []
          state_dir:
            description: Directory in which the module records its settings.
            type: path
            default: /var/lib/baremetal-gpu/config_merge
      cdi:
        description:
          - The specification of the GPUs that M(baremetal.gpu.nvidia_cdi) writes. What differs is in RV(others) and
            left to that module.
        type: dict
        suboptions:
          state:
            description: Whether the file should exist.
            type: str
            choices: [present, absent]
            default: present
          path:
            description: The file.
            type: path
            default: /etc/cdi/nvidia.json
          engine:
            description: The engine that reads the file. By default any engine.
            type: str
            choices: [docker, podman, containerd]
          devices:
            description: The C(devices) of M(baremetal.gpu.gpu_facts), with the UUIDs of the GPUs.
            type: list
            elements: dict
      proofs:
        description:
          - What a role proves after a change. A proof is due once something differs, and stays due until the role that
            proves it clears its record, even if nothing differs any more.
          - While it is due, the host counts as different, though not as RV(required).
        type: list
        elements: dict
        suboptions:
          name:
            description: Name of the proof and of its record.
            type: str
            required: true
          what:
            description: What is proven, in words that follow the word prove.
            type: str
          state:
            description: Whether there is still something to prove.
            type: str
            choices: [present, absent]
            default: present
      device_nodes:
        description:
          - Whether the device nodes that M(baremetal.gpu.gpu_device_nodes) creates are checked. What differs is in
            RV(others) and left to that module.
        type: bool
        default: false
  keep_drained:
    description:
      - Whether the host is drained on purpose. Otherwise the record of a drain, which an interrupted run left, is
        drift.
    type: bool
    default: false
requirements:
  - On the host nothing but Python 3.9.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  check_mode:
    description: Can run in check mode and answers the same there.
  diff_mode:
    description: Returns before and after of everything that differs.
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Ask whether Docker is as it should be
  baremetal.gpu.host_drift_info:
    desired:
      packages:
        - name: docker.io
          hold: true
      files:
        - path: /etc/docker/daemon.json
          content: "{}\n"
          mode: "0644"
      units:
        - name: docker.service
          enabled: true
          state: started
          restart_on: [/etc/docker/daemon.json]
  register: docker

- name: Show what would have to be done
  ansible.builtin.debug:
    var: docker.plan

- name: Ask in one execution whether Docker, its settings and the specification of the GPUs are as they should be
  baremetal.gpu.host_drift_info:
    desired:
      units:
        - {name: docker.service, state: started}
      settings:
        - path: /etc/docker/daemon.json
          values: {features: {cdi: true}}
      cdi:
        devices: "{{ ansible_facts['gpu']['devices'] }}"
"""

RETURN = r"""
drifted:
  description: Whether anything differs.
  returned: always
  type: bool
finished_roles:
  description: The O(roles) that have nothing to do on the host, which are all of them or none.
  returned: with O(roles)
  type: list
  elements: str
required:
  description: Whether anything differs that is not marked as C(required=false).
  returned: with O(desired)
  type: bool
refresh:
  description: Whether the package lists have to be fetched before the packages can be installed.
  returned: with O(desired)
  type: bool
manager:
  description: The package manager, V(apt) or V(dnf).
  returned: with O(desired)
  type: str
plan:
  description: What the repair of the drift would do, one line each.
  returned: with O(desired)
  type: list
  elements: str
  sample: ["install package docker.io 26.1.5+dfsg1-9 and hold it (is not installed)"]
others:
  description:
    - Files of O(desired.settings) and O(desired.cdi) and nodes of O(desired.device_nodes) that differ. They are not in
      RV(plan), because other modules repair them.
  returned: with O(desired)
  type: list
  elements: dict
  sample: [{path: /etc/docker/daemon.json, why: features.cdi differ}]
notes:
  description:
    - What an operator should know about the specification of O(desired.cdi), and modules of DKMS that are not the
      driver's and do not build.
  returned: with O(desired)
  type: list
  elements: str
drift:
  description: What differs, by section. Every item is one of the document with C(why) it differs and the C(actions).
  returned: with O(desired)
  type: dict
"""

from collections.abc import Sequence

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.drift import compare as drift
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run


def run(command: Sequence[str]) -> tuple[int, str]:
    """Status and output of a command that only reads; a missing program is a status of 127.

    One that does not end is an error: what it did not list would count as missing.
    """
    try:
        status, out, _error = host_run.execute(command, 120, environment={"LC_ALL": "C", "PATH": host_run.SYSTEM_PATH})
    except OSError:
        return host_run.NOT_FOUND, ""
    return status, host_run.text(out)


def listed(**options: dict) -> dict:
    return {"type": "list", "elements": "dict", "options": options}


def named(name: str = "name", kind: str = "str") -> dict:
    return {name: {"type": kind, "required": True}}


PRESENCE = {"type": "str", "choices": ["present", "absent"], "default": "present"}
STRINGS = {"type": "list", "elements": "str"}

SPEC = {
    "repositories": listed(
        **named(),
        state=PRESENCE,
        type={"type": "str", "choices": ["deb822", "yum"]},
        uris=STRINGS,
        baseurl={"type": "str"},
        suites=STRINGS,
        extend=STRINGS,
        components=STRINGS,
        architectures=STRINGS,
        signed_by={"type": "path"},
        key={"type": "dict", "no_log": False},
        options={"type": "dict"},
    ),
    "pins": listed(
        **named(),
        state=PRESENCE,
        package={"type": "str"},
        pin={"type": "str"},
        priority={"type": "int", "default": 1001},
    ),
    "packages": listed(
        **named(),
        state=PRESENCE,
        version={"type": "str"},
        hold={"type": "bool"},
        kernels={"type": "raw"},
        follows={"type": "str"},
        purge={"type": "bool", "default": False},
        together={"type": "bool", "default": False},
    ),
    "files": listed(
        **named("path", "path"),
        state={"type": "str", "choices": ["file", "directory", "link", "absent"], "default": "file"},
        content={"type": "str"},
        sha256={"type": "str"},
        src={"type": "str"},
        mode={"type": "str"},
        owner={"type": "str"},
        group={"type": "str"},
        reclaim={"type": "bool", "default": False},
        force={"type": "bool", "default": True},
        early={"type": "bool", "default": False},
        sensitive={"type": "bool", "default": False},
        url={"type": "str"},
        source={"type": "str"},
        validate={"type": "str"},
        backup={"type": "bool"},
    ),
    "units": listed(
        **named(),
        enabled={"type": "bool"},
        state={"type": "str", "choices": ["started", "stopped"]},
        masked={"type": "bool"},
        restart_on=STRINGS,
        reload_on=STRINGS,
    ),
    "kernel_modules": listed(
        **named(),
        state={"type": "str", "choices": ["loaded", "unloaded"], "default": "loaded"},
        current={"type": "bool", "default": False},
        unload_first=STRINGS,
        devices=STRINGS,
        units=STRINGS,
        packages=STRINGS,
        required={"type": "bool", "default": True},
    ),
    "dkms": listed(**named(), version={"type": "str"}, kernels={"type": "raw", "default": "installed"}),
    "initramfs": {"type": "dict", "options": {"rebuild_on": STRINGS}},
    "alternatives": listed(
        **named(),
        state=PRESENCE,
        link={"type": "path"},
        path={"type": "path", "required": True},
        priority={"type": "int", "default": 50},
    ),
    "settings": listed(
        **named("path", "path"),
        format={"type": "str", "choices": ["json", "toml"], "default": "json"},
        state=PRESENCE,
        values={"type": "dict", "default": {}},
        remove={"type": "list", "elements": "raw", "default": []},
        lists={"type": "str", "choices": ["replace", "union"], "default": "replace"},
        mode={"type": "str"},
        withdraw_from={"type": "list", "elements": "path", "default": []},
        state_dir={"type": "path", "default": "/var/lib/baremetal-gpu/config_merge"},
    ),
    "cdi": {
        "type": "dict",
        "options": {
            "state": PRESENCE,
            "path": {"type": "path", "default": "/etc/cdi/nvidia.json"},
            "engine": {"type": "str", "choices": ["docker", "podman", "containerd"]},
            "devices": {"type": "list", "elements": "dict"},
        },
    },
    "proofs": listed(**named(), what={"type": "str"}, state=PRESENCE),
    "device_nodes": {"type": "bool", "default": False},
}


def compared_by_their_modules(desired: dict) -> tuple[dict, list[str]]:
    """Why files that other modules of the collection keep differ, by path, None for one that does not; and notes."""
    differing, notes = {}, []
    # Python compiles on the host, at every execution, whatever a module imports; most documents have neither.
    if desired["settings"]:
        from ansible_collections.baremetal.gpu.plugins.module_utils.drift import settings as drift_settings

        differing = {item["path"]: drift_settings.settings(item) for item in desired["settings"]}
    if desired["device_nodes"]:
        from ansible_collections.baremetal.gpu.plugins.module_utils.drift import device_nodes as drift_devices

        differing.update(drift_devices.nodes())
    if specification := desired["cdi"]:
        from ansible_collections.baremetal.gpu.plugins.module_utils.drift import cdi as drift_cdi

        differing[specification["path"]], notes = drift_cdi.specification(specification)
    return differing, notes


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            # The action plugin makes a document of them.
            "roles": {"type": "list", "elements": "str"},
            "desired": {"type": "dict", "options": SPEC},
            "keep_drained": {"type": "bool", "default": False},
        },
        mutually_exclusive=[("roles", "desired")],
        required_one_of=[("roles", "desired")],
        supports_check_mode=True,
    )
    desired = module.params["desired"]
    differing, notes = compared_by_their_modules(desired)
    others = [{"path": path, "why": why} for path, why in differing.items() if why is not None]
    found = drift.inspect(
        desired,
        run,
        diff=module._diff,
        keep_drained=module.params["keep_drained"],
        others=[f"{other['path']}: {other['why']}" for other in others],
    )
    notes = [*found.pop("notes", []), *notes]
    differs = {name: found[name] or bool(others) for name in ("drifted", "required")}
    module.exit_json(changed=False, **{**found, **differs, "others": others, "notes": notes})


if __name__ == "__main__":
    main()
