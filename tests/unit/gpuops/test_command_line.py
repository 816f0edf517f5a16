# SPDX-License-Identifier: GPL-3.0-or-later
"""What all sub-commands have in common: help, the manual page, completion, and faults that nobody foresaw."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
import typer

from gpuops.cli import app
from tests.unit.project.tree import ROOT, run

COMMANDS = dict(typer.main.get_command(app).commands)


def test_there_are_commands():
    assert {"init", "plan", "up", "status", "doctor"} <= set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_has_an_example_and_explains_every_option(bench, name):
    done = bench.call(name, "--help", COLUMNS="80")
    assert done.returncode == 0
    assert "Examples:" in done.stdout
    assert f"gpuops {name}" in done.stdout.split("Examples:")[1]
    assert [option.name for option in COMMANDS[name].params if not getattr(option, "help", None)] == []


@pytest.fixture(scope="module")
def manual():
    return run(sys.executable, ROOT / "tools/manual.py", COLUMNS="80")


def test_the_manual_page_has_every_command_and_option(manual):
    for name, command in COMMANDS.items():
        title = name.upper().replace("-", "\\-")
        section = manual.split(f".SH GPUOPS {title}\n")[1].split("\n.SH ")[0]
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert option.replace("-", "\\-") in section, f"{name} {option}"
    assert manual.isascii()


def test_the_manual_page_is_good_roff(manual, tmp_path):
    groff = shutil.which("groff")
    if not groff:
        pytest.skip("groff, which checks manual pages, is not installed")
    done = subprocess.run(
        [groff, "-man", "-Tutf8", "-ww", "-z"], input=manual, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_installed(bench, shell):
    done = bench.call(_GPUOPS_COMPLETE=f"source_{shell}")
    assert done.returncode == 0
    assert "gpuops" in done.stdout
    assert "COMPLETE" in done.stdout


def test_completion_knows_the_commands(bench):
    done = bench.call(_GPUOPS_COMPLETE="complete_bash", COMP_WORDS="gpuops st", COMP_CWORD="1")
    assert done.stdout.split() == ["status"]


@pytest.mark.parametrize("debug", [False, True])
def test_a_fault_that_nobody_foresaw(debug):
    words = ["gpuops", "--debug", "up"] if debug else ["gpuops", "up"]
    broken = (
        "import sys, gpuops.commands.up\n"
        "def fail(given): raise RuntimeError('the flux\\ncapacitor is empty')\n"
        "gpuops.commands.up.find = fail\n"
        "from gpuops.cli import app\n"
        f"sys.argv = {words}\n"
        "app(prog_name='gpuops')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", broken], cwd=ROOT, capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode != 0
    assert ("Traceback" in done.stderr) is debug
    assert "RuntimeError: the flux" in done.stderr
    if not debug:
        assert done.returncode == 70
        assert "gpuops --debug" in done.stderr
