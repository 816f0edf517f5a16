# SPDX-License-Identifier: GPL-3.0-or-later
"""The virtual machine's disk and supervisor, as far as they can be tried without booting it."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.lab.machines import needs, state, vm, vm_cli, vm_image
from tests.lab.machines.system import LabError


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> vm.Vm:
    """A machine whose files are the test's own."""
    monkeypatch.setattr(state, "STATE_ROOT", tmp_path / "state")
    monkeypatch.setattr(state, "CACHE_ROOT", tmp_path / "cache")
    return vm.Vm("test")


def make(machine: vm.Vm, port: int = 20001, image: str = "/nowhere/disk.raw") -> None:
    machine.directory.mkdir(parents=True)
    machine.spec_file.write_text(f'{{"port": {port}, "image": "{image}"}}', encoding="utf-8")


def test_boot_record_has_one_bootable_linux_partition_behind_grub():
    record = vm_image.boot_record(b"\xeb" * 512, b"core" * 100, sectors=100_000)
    assert record[:440] == b"\xeb" * 440
    assert record[510:512] == b"\x55\xaa"
    active, kind, start, count = struct.unpack("<B3xB3xII", record[446:462])
    assert (active, kind, start, count) == (0x80, 0x83, 2048, 100_000 - 2048)
    assert record[462:510] == bytes(48)
    assert record[512:] == b"core" * 100


def test_boot_record_refuses_what_would_overwrite_the_partition():
    with pytest.raises(LabError, match="does not fit before the first partition"):
        vm_image.boot_record(bytes(512), bytes(1024 * 1024), sectors=100_000)


@pytest.mark.parametrize("what", ["FILES", "PACKAGES", "FINISH", "DISK_MIB", "GRUB_MODULES", "SUITE", "EXT4_FEATURES"])
def test_every_ingredient_makes_another_image(what: str, monkeypatch: pytest.MonkeyPatch):
    before = vm_image.recipe()
    others = {"FILES": {"/etc/motd": "x"}, "DISK_MIB": 1, "FINISH": "true", "SUITE": "sid", "EXT4_FEATURES": "^64bit"}
    monkeypatch.setattr(vm_image, what, others.get(what, ("x",)))
    assert vm_image.recipe() != before


def test_configuration_is_written_with_its_modes(tmp_path: Path):
    vm_image.write_files(tmp_path)
    assert (tmp_path / "etc/initramfs-tools/hooks/lab").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "etc/fstab").stat().st_mode & 0o777 == 0o644
    assert "10DEd000020B0" in (tmp_path / "etc/udev/rules.d/79-display-gpu.rules").read_text(encoding="utf-8")


def test_port_comes_from_the_name_and_gives_way_to_others():
    first = vm.free_port("some-lab")
    assert first in vm.PORTS
    assert vm.free_port("some-lab") == first
    assert vm.free_port("another-lab") != first
    with socket.socket() as other:
        other.bind(("127.0.0.1", first))
        other.listen()
        assert not vm.port_is_free(first)
        assert vm.free_port("some-lab") == first + 1


def test_inventory_is_empty_without_a_machine(machine: vm.Vm):
    assert machine.inventory() == {"_meta": {"hostvars": {}}}


def test_inventory_trusts_only_the_machines_own_key(machine: vm.Vm):
    make(machine)
    variables = machine.inventory()["_meta"]["hostvars"]["metal1"]
    assert (variables["ansible_host"], variables["ansible_port"]) == ("127.0.0.1", 20001)
    assert "StrictHostKeyChecking=yes" in variables["ansible_ssh_common_args"]
    assert f"UserKnownHostsFile={machine.known_hosts}" in variables["ansible_ssh_common_args"]


def test_commands_say_what_to_do_where_there_is_no_machine(machine: vm.Vm):
    with pytest.raises(LabError, match="'tools/lab vm up' makes it"):
        machine.ssh_command("true")
    with pytest.raises(LabError, match="'tools/lab vm up' starts it"):
        machine.power_cut()


def test_a_broken_note_names_the_remedy(machine: vm.Vm):
    make(machine)
    machine.spec_file.write_text("{", encoding="utf-8")
    with pytest.raises(LabError, match="'tools/lab vm down' removes it"):
        machine.spec()
    machine.down()
    assert not machine.directory.exists()


def test_a_machine_keeps_the_shape_that_it_was_made_with(machine: vm.Vm, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vm.needs, "refuse_unless_root", lambda: None)
    monkeypatch.setattr(vm.needs, "ensure", lambda programs: None)
    shape = vm.Shape(memory_mib=2048, disks={"data": 4}, joins=True)
    image = machine.directory / "disk.raw"
    make(machine, image=str(image))
    image.touch()
    machine.spec_file.write_text(json.dumps(asdict(vm.Spec(20001, str(image), shape))), encoding="utf-8")
    assert machine.spec() == vm.Spec(20001, str(image), shape)
    with pytest.raises(LabError, match=r"made otherwise.*'tools/lab vm down' removes it first"):
        machine.up(vm.Shape(disks={"data": 5}))
    with pytest.raises(LabError, match=r"no network for metal1 to join; 'tools/lab up' makes it"):
        machine.up(shape)


@pytest.mark.parametrize(("given", "said"), [("data", "such as data:4"), ("data:0", "size"), ("A:1", "lower-case")])
def test_a_disk_that_makes_no_sense_is_refused(given: str, said: str, machine: vm.Vm):
    with pytest.raises(LabError, match=said):
        machine._create(vm.Shape(disks=dict([vm_cli._disk(given)])))
    assert not machine.directory.exists()


def test_down_ends_the_process_that_has_the_machines_pid_file_and_no_other(machine: vm.Vm, tmp_path: Path):
    make(machine)
    # Stand-ins for qemu: what counts is the name of the program and the argument with the pid file.
    program, sleep = tmp_path / "qemu-system-x86_64", "import time; time.sleep(600)"
    own, other = (
        subprocess.Popen([program, "-c", sleep, "-pidfile", pid_file], executable=sys.executable)
        for pid_file in (machine.pid_file, tmp_path / "other")
    )
    try:
        while machine.pid() is None:
            assert own.poll() is None
        assert machine.pid() == own.pid
        machine.down()
        assert own.wait(10) == -9
        assert other.poll() is None
        assert not machine.directory.exists()
        machine.down()
    finally:
        own.kill()
        other.kill()
        own.wait()
        other.wait()


def test_only_the_virtual_machine_needs_qemu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    present = {name: f"/bin/{name}" for name in needs.PROGRAMS}
    monkeypatch.setattr(needs.shutil, "which", lambda name, path=None: present.get(name))
    assert not set(needs.missing().values()) & set(vm.PROGRAMS.values())
    assert set(vm.PROGRAMS.values()) <= set(needs.missing(vm.PROGRAMS).values())


def test_refuses_without_root(machine: vm.Vm, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(needs.os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="needs root"):
        machine.up()
