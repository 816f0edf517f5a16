# SPDX-License-Identifier: GPL-3.0-or-later
"""Print the manual page gpuops(1), from what the command itself says of its options.

.venv/bin/python tools/manual.py > gpuops.1
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpuops import __version__
from gpuops.cli import app

FILES = (
    ("ansible.cfg", "In the current directory, or named by ANSIBLE_CONFIG: names the inventory, as for Ansible."),
    (".gpuops/runs/", "Beside the inventory: output, events and times of the last 20 runs, for their owner alone."),
    (".secrets/", "Beside the inventory: generated keys and the password of the vault. Keep a copy."),
)
ENVIRONMENT = (
    ("ANSIBLE_CONFIG, ANSIBLE_INVENTORY", "As for Ansible."),
    ("NO_COLOR", "No colours."),
)


def roff(text: str) -> str:
    """Text that means nothing to troff."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    ascii_only = "".join(sign if sign.isascii() else f"\\[u{ord(sign):04X}]" for sign in escaped)
    return re.sub(r"^\.", r"\\&.", ascii_only, flags=re.MULTILINE)


def paragraphs(text: str) -> list[str]:
    """A docstring as roff: examples as they are, everything else filled."""
    out: list[str] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if block.startswith("  "):
            out += [".PP", ".nf", ".RS", roff(inspect.cleandoc(block)), ".RE", ".fi"]
        elif block == "Examples:":
            out += [".PP", "Examples:"]
        else:
            out += [".PP", roff(" ".join(block.split()))]
    return out


def options(command: Any) -> list[str]:
    """The options and arguments of a command."""
    out: list[str] = []
    for parameter in command.params:
        metavar = parameter.metavar or parameter.name.upper()
        if parameter.param_type_name == "option":
            if parameter.hidden:
                continue
            names = ", ".join(f"\\fB{roff(name)}\\fR" for name in (*parameter.opts, *parameter.secondary_opts))
            value = "" if parameter.is_flag else f" \\fI{roff(metavar)}\\fR"
            out += [".TP", f"{names}{value}", roff(parameter.help or "")]
        else:
            about = getattr(parameter, "help", None) or ""
            out += [".TP", f"\\fI{roff(metavar)}\\fR", roff(about)]
    return out


def named(commands: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its whole name; those of a group come after it."""
    for name, command in commands.items():
        if command.hidden:
            continue
        yield f"{before}{name}", command
        yield from named(getattr(command, "commands", {}), f"{before}{name} ")


def page() -> str:
    """The whole page as roff."""
    # Typer brings a copy of click of its own, whose types have no public names.
    root: Any = typer.main.get_command(app)
    lines = [
        f'.TH GPUOPS 1 "" "gpuops {__version__}" "baremetal.gpu"',
        ".SH NAME",
        "gpuops \\- build and look after a GPU cluster on bare metal",
        ".SH SYNOPSIS",
        "\\fBgpuops\\fR [\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]",
        ".SH DESCRIPTION",
        *paragraphs(inspect.getdoc(root.callback) or ""),
        ".SH OPTIONS",
        *options(root),
    ]
    for name, command in named(root.commands):
        lines += [f".SH GPUOPS {roff(name.upper())}", *paragraphs(command.help or ""), *options(command)]
    for title, rows in (("FILES", FILES), ("ENVIRONMENT", ENVIRONMENT)):
        lines.append(f".SH {title}")
        for name, about in rows:
            lines += [".TP", f"\\fI{roff(name)}\\fR", roff(about)]
    lines += [".SH SEE ALSO", "\\fBansible\\-playbook\\fR(1), \\fBansible\\-vault\\fR(1)"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
