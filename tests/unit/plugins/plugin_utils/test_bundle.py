# SPDX-License-Identifier: GPL-3.0-or-later
"""The program for hosts in one file, run by a Python that knows nothing of this project."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.baremetal.gpu.plugins.filter.bundle import make
from ansible_collections.baremetal.gpu.plugins.plugin_utils import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import MODULES, PACKAGE, imported

# The interpreter of the system, not that of the tests: neither the collection nor pynvml is installed there.
PYTHON = "/usr/bin/python3"


def run(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PYTHON, "-I", path, *words], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "gpu-agent"
    path.write_text(make("agent.command"), encoding="utf-8")
    return path


def test_it_needs_nothing_installed(program: Path) -> None:
    done = run(program, "--help")
    assert done.returncode == 0, done.stderr
    assert "clear" in done.stdout
    assert "probe" in done.stdout


def test_the_agent_holds_no_library_that_it_does_not_use(program: Path) -> None:
    """It always runs, on every host; OpenSSL and its like would be a quarter of its memory."""
    done = subprocess.run(
        [PYTHON, "-X", "importtime", "-I", program, "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert f"{PACKAGE}.agent.agent" in loaded
    assert not loaded & {"_hashlib", "_ssl", "email", "http.client", "pathlib", "tempfile", "urllib.request", "zipfile"}


def test_without_an_agent_it_says_so_and_what_to_look_at(program: Path, tmp_path: Path) -> None:
    config = tmp_path / "agent.json"
    config.write_text(f'{{"result": "{tmp_path}/gpu.json", "settings": {{"socket": "{tmp_path}/socket"}}}}')
    done = run(program, "--config", str(config), "status")
    assert done.returncode == 4
    assert "systemctl status baremetal-gpu-agent" in done.stdout
    done = run(program, "--config", str(config), "clear")
    assert done.returncode == 4
    assert "the agent does not answer" in done.stderr


def test_a_broken_configuration_is_named(program: Path, tmp_path: Path) -> None:
    config = tmp_path / "agent.json"
    config.write_text("{")
    done = run(program, "--config", str(config), "status")
    assert done.returncode == 1
    assert f"{config} is not valid JSON" in done.stderr


def test_the_same_sources_give_the_same_file_and_a_traceback_names_the_module() -> None:
    first = make("agent.command")
    assert first == make("agent.command")
    # Sources stand in the file line by line, so that a diff of two versions can be read.
    assert "#|def main(words: Sequence[str] | None = None) -> int:\n" in first


@pytest.mark.parametrize("path", sorted(MODULES.rglob("*.py")), ids=lambda path: str(path.relative_to(MODULES)))
def test_imports_are_found_as_pythons_parser_finds_them(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    needed = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or not f"{node.module}.".startswith(f"{PACKAGE}."):
            continue
        where = str(node.module)[len(PACKAGE) :].lstrip(".")
        if MODULES.joinpath(*where.split("."), "__init__.py").exists():
            needed |= {f"{where}.{alias.name}" for alias in node.names}
        else:
            needed.add(where)
    assert set(imported(source)) == needed


def test_an_import_may_be_in_a_function_have_another_name_and_a_comment() -> None:
    many = f"from {PACKAGE}.gpu import (\n        nvml,  # why, of all\n        session as nvml_session,\n    )"
    source = f"def f():\n    {many}\nfrom {PACKAGE}.host.files import write\n"
    source += f"from {PACKAGE}.ceph.osd import activate\n"
    assert imported(source) == ["gpu.nvml", "gpu.session", "host.files", "ceph.osd.activate"]


@pytest.mark.parametrize(
    "line",
    [
        "from . import pci",
        "from .pci import gpus",
        "    from ..host import files",
        f"import {PACKAGE}.gpu.pci",
        f"import {PACKAGE}.gpu.pci as pci",
        f"from {PACKAGE} import gpu",
        f"from {PACKAGE}.gpu import GPU",
        f"from {PACKAGE}.gpu.gpu import GPU",
        f"from {PACKAGE}.gpu import *",
    ],
)
def test_an_import_that_a_bundle_would_lack_is_refused(line: str) -> None:
    with pytest.raises(LookupError, match=r"write from|is not a module of module_utils"):
        imported(f"import os\n{line}\n")


def test_what_cannot_be_bundled_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu/__init__.py").write_text("")
    (tmp_path / "gpu/facts.py").write_text(f"from {PACKAGE}.gpu import pci\n")
    (tmp_path / "gpu/pci.py").write_text("from .driver import loaded\n")
    monkeypatch.setattr(bundle, "MODULES", tmp_path)
    with pytest.raises(AnsibleFilterError, match=r"gpu\.facts cannot be bundled: gpu\.pci has 'from \.driver import"):
        make("gpu.facts")


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(AnsibleFilterError, match=r"no program can be made of agent\.comand"):
        make("agent.comand")
