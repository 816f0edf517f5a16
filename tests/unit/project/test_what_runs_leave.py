# SPDX-License-Identifier: GPL-3.0-or-later
"""Nothing that a run writes lies where Ansible reads: a second run takes no report for inventory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.action.gpu_verify_report import is_read
from tests.unit.plugins.module_utils.verify.test_query import GPU, OTHER, answer, device, facts
from tests.unit.project.tree import BIN, ROOT, try_run

HOST = "gpu1"
PLAY = """
- hosts: gpu1
  gather_facts: false
  connection: ansible.builtin.local
  vars_files: [DEFAULTS]
  vars: {wanted: WANTED}
  tasks:
    - name: Judge
      baremetal.gpu.gpu_verify_report:
        facts: "{{ given.facts }}"
        query: "{{ given.query }}"
        directory: "{{ wanted | default(gpu_verify_report_dir, true) }}"
"""
OPTIONS = {"ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true", "ANSIBLE_LOCALHOST_WARNING": "false"}


def verify(inventory: Path, directory: Path, wanted: str = "", cwd: Path | None = None) -> tuple[str, list[Path]]:
    """(all that the play said, the files that it wrote) with the role's defaults below the inventory's own words."""
    before = set(directory.rglob("*"))
    play = directory / "play.yml"
    # Defaults give way to everything else; a play's vars_files do not, so they are left out where the site has a say.
    defaults = ROOT / "roles/gpu_verify/defaults/main.yml"
    empty = directory / "empty.yml"
    empty.write_text("{}\n")
    has_a_say = "gpu_verify_report_dir" in "".join(path.read_text() for path in inventory.rglob("gpu_nodes.yml"))
    play.write_text(
        PLAY.replace("DEFAULTS", str(empty if has_a_say else defaults)).replace("WANTED", json.dumps(wanted))
    )
    given = directory / "given.json"
    given.write_text(json.dumps({"given": {"facts": facts(GPU, OTHER), "query": answer(device(0), device(1, OTHER))}}))
    done = try_run(
        [BIN / "ansible-playbook", "-i", inventory, play, "-e", f"@{given}"],
        cwd=cwd or directory,
        **OPTIONS,
        PWD=str(cwd or directory),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    new = {path for path in directory.rglob("*") if path.is_file()} - before - {play, given, empty}
    return done.stdout + done.stderr, sorted(new)


def loaded(inventory: Path, directory: Path) -> tuple[dict, str]:
    done = try_run([BIN / "ansible-inventory", "-i", inventory, "--list"], cwd=directory, **OPTIONS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def made_by_init(directory: Path) -> Path:
    done = try_run(
        [BIN / "gpuops", "init", "mysite", "--offline", "--user", "admin", "--gpu", "gpu1=192.0.2.1"], cwd=directory
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory / "mysite" / "inventory"


def of_the_example(directory: Path) -> Path:
    shutil.copytree(ROOT / "inventories/example", directory / "mysite")
    (directory / "mysite/hosts.yml").write_text("all: {children: {gpu_nodes: {hosts: {gpu1: {}}}}}\n")
    return directory / "mysite"


def with_nothing_said(directory: Path) -> Path:
    (directory / "mysite").mkdir()
    (directory / "mysite/hosts.yml").write_text("gpu_nodes: {hosts: {gpu1: {}}}\n")
    return directory / "mysite"


@pytest.mark.parametrize("make", [made_by_init, of_the_example, with_nothing_said])
def test_a_report_is_no_inventory(make, tmp_path):
    inventory = make(tmp_path)
    before, told_before = loaded(inventory, tmp_path)
    said, written = verify(inventory, tmp_path)
    assert written == [inventory / ".gpuops" / "verify" / f"{HOST}.json"]
    assert "gpu_verify_report_dir" not in said
    again, told = loaded(inventory, tmp_path)
    assert again == before
    assert told == told_before
    assert "not a valid group definition" not in told


def test_called_in_the_directory_of_the_inventory(tmp_path):
    """`artifacts` below the directory in which one is would be inventory there."""
    inventory = with_nothing_said(tmp_path)
    _said, (report,) = verify(inventory, tmp_path, cwd=inventory)
    assert report == inventory / ".gpuops" / "verify" / f"{HOST}.json"
    assert "WARNING" not in loaded(inventory, inventory)[1]


def test_a_directory_of_ones_own_among_the_inventory_is_warned_of(tmp_path):
    inventory = with_nothing_said(tmp_path)
    said, written = verify(inventory, tmp_path, wanted=str(inventory / "reports"))
    assert written == [inventory / "reports" / f"{HOST}.json"]
    said = " ".join(said.split())
    assert "where Ansible looks for inventory" in said
    assert ".gpuops/verify" in said


def test_what_ansible_reads(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/hosts.yml").touch()
    (tmp_path / "link").symlink_to(tmp_path / "site")
    for place in ("reports", "group_vars/reports", "a/b", "../link/reports"):
        assert is_read(str(tmp_path / "site" / place / "gpu1.json"), str(tmp_path / "site")), place
    for place in (".gpuops/verify", "a/.b", "../reports", "../sites"):
        assert not is_read(str(tmp_path / "site" / place / "gpu1.json"), str(tmp_path / "site")), place
    assert not is_read(str(tmp_path / "site/reports/gpu1.json"), str(tmp_path / "site/hosts.yml"))
    assert not is_read(str(tmp_path / "site/reports/gpu1.json"), "gpu1,")
