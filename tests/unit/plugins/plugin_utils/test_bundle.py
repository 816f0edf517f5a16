# SPDX-License-Identifier: GPL-3.0-or-later
"""The program for hosts in one file, run by a Python that knows nothing of this project."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.filter.bundle import make
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import MODULES, PACKAGE, imported

# The interpreter of the system, not that of the tests: neither the collection nor pynvml is installed there.
PYTHON = "/usr/bin/python3"


def run(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PYTHON, "-I", path, *words], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "gpuops"
    path.write_text(make("node_command"), encoding="utf-8")
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
    assert f"{PACKAGE}.agent" in loaded
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
    first = make("node_command")
    assert first == make("node_command")
    # Sources stand in the file line by line, so that a diff of two versions can be read.
    assert "#|def main(words: Sequence[str] | None = None) -> int:\n" in first


@pytest.mark.parametrize("path", sorted(MODULES.glob("*.py")), ids=lambda path: path.stem)
def test_imports_are_found_as_pythons_parser_finds_them(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    wanted = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            wanted |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
            wanted.add(str(node.module).rpartition(".")[2])
    assert set(imported(source)) == wanted


def test_an_import_may_be_in_a_function_have_another_name_and_a_comment() -> None:
    many = f"from {PACKAGE} import (\n        a,  # why, of all\n        b as c,\n    )"
    source = f"def f():\n    {many}\nfrom {PACKAGE}.d import e\n"
    assert imported(source) == ["a", "b", "d"]
