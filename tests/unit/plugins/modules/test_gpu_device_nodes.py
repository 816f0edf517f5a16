# SPDX-License-Identifier: GPL-3.0-or-later
"""The module over a tree of its own: honest check mode, a diff, and nothing done twice."""

from __future__ import annotations

import json
import os
import stat

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import device_nodes
from ansible_collections.baremetal.gpu.plugins.modules import gpu_device_nodes
from tests.unit.plugins.driver_host import driver_loaded, needs_nodes

__all__ = ["needs_nodes"]


@pytest.fixture
def module(fake_host, monkeypatch, capsys):
    for name in ("expected_nodes", "may_modify", "module_differences", "loaded_modules", "boot_modules"):
        real = getattr(device_nodes, name)
        monkeypatch.setattr(device_nodes, name, lambda root=fake_host.path, real=real: real(root))
    for name in ("compare", "create"):
        real = getattr(device_nodes, name)
        monkeypatch.setattr(device_nodes, name, lambda nodes, root=fake_host.path, real=real: real(nodes, root))

    def run(check_mode=False, **arguments):
        with (
            patch_module_args({**arguments, "_ansible_check_mode": check_mode, "_ansible_diff": True}),
            pytest.raises(SystemExit),
        ):
            gpu_device_nodes.main()
        return json.loads(capsys.readouterr().out)

    return run


@pytest.mark.usefixtures("needs_nodes")
def test_check_mode_foretells_what_a_real_run_does(fake_host, module):
    driver_loaded(fake_host)
    foretold = module(check_mode=True)
    assert foretold["changed"] is True
    assert not (fake_host.root / "dev").exists()
    done = module()
    assert (done["changed"], done["diff"], done["differences"]) == (True, foretold["diff"], foretold["differences"])
    assert stat.S_ISCHR(os.lstat(fake_host.root / "dev/nvidia0").st_mode)
    again = module()
    assert (again["changed"], again["differences"], again["diff"]["after"]) == (False, [], "")
    assert {"path": "/dev/nvidia1", "major": 195, "minor": 1, "mode": "0666", "uid": 0, "gid": 0} in again["nodes"]


def test_without_the_driver_nothing_is_done(fake_host, module):
    fake_host.write("proc/devices", "Character devices:\n\nBlock devices:\n")
    answer = module()
    assert (answer["changed"], answer["loaded"], answer["nodes"]) == (False, False, [])
    assert not (fake_host.root / "dev").exists()


def test_nodes_that_are_not_ours_to_make_are_an_error(fake_host, module):
    driver_loaded(fake_host, modify=0)
    answer = module()
    assert answer["failed"] is True
    assert "/dev/nvidiactl is nothing" in answer["msg"]
    assert "ModifyDeviceFiles=0" in answer["msg"]
    assert not (fake_host.root / "dev").exists()


def test_modules_are_not_loaded_in_check_mode(fake_host, module, monkeypatch):
    driver_loaded(fake_host)
    calls = []
    monkeypatch.setattr(device_nodes, "load_modules", lambda: calls.append(1) or [])
    module(check_mode=True, load_modules=True)
    assert calls == []


@pytest.mark.usefixtures("needs_nodes")
def test_modules_of_a_boot_that_cannot_be_loaded_are_no_error(fake_host, module, monkeypatch):
    """A kernel for clouds has no DRM, and computes all the same."""
    driver_loaded(fake_host)
    monkeypatch.setattr(device_nodes, "load_modules", list)
    fake_host.write("proc/modules", "nvidia_uvm 4960256 0 - Live 0x0\nnvidia 62767104 1 nvidia_uvm, Live 0x0\n")
    fake_host.write("etc/modules-load.d/nvidia.conf", "nvidia-drm\nnvidia-uvm\n")
    called = []
    monkeypatch.setattr(device_nodes, "_call", lambda *words: called.append(words) or ["modprobe: Unknown symbol"])
    answer = module(load_modules=True)
    assert called == [("modprobe", "--use-blacklist", "nvidia_drm")]
    assert (answer.get("failed", False), answer["loaded"]) == (False, True)


def test_modules_that_are_not_there_after_loading_are_an_error(fake_host, module, monkeypatch):
    # As where `install nvidia /bin/true` in modprobe.d has modprobe say that all is well.
    fake_host.write("proc/devices", "Character devices:\n\nBlock devices:\n")
    monkeypatch.setattr(device_nodes, "load_modules", list)
    answer = module(load_modules=True)
    assert (answer["failed"], answer["loaded"]) == (True, False)
    assert "run `gpuops up --tags driver`, or set gpu_device_nodes_start: false" in answer["msg"]
    assert not (fake_host.root / "dev").exists()


def test_modules_that_cannot_be_loaded_are_an_error(fake_host, module, monkeypatch):
    fake_host.write("proc/devices", "Character devices:\n\nBlock devices:\n")
    monkeypatch.setattr(device_nodes, "load_modules", lambda: ["modprobe nvidia: FATAL: Module nvidia not found"])
    answer = module(load_modules=True)
    assert answer["failed"] is True
    assert "FATAL: Module nvidia not found" in answer["msg"]
    assert "To do:" in answer["msg"]
