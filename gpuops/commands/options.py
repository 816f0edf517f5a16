# SPDX-License-Identifier: GPL-3.0-or-later
"""Options that several commands have, and what they lead to."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.plugin_utils.stages import TAGS
from gpuops.run import playbooks, runner

LimitOption = Annotated[str, typer.Option("--limit", "-l", help="Only these hosts or groups.")]
TagsOption = Annotated[str, typer.Option("--tags", "-t", help=f"Only these stages: {', '.join(TAGS)}.")]
WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- OPTIONS", help="Further options of ansible-playbook, after --.", show_default=False),
]
PlaybookOption = Annotated[
    str, typer.Option("--playbook", "-p", help="Another playbook, a file or a name such as baremetal.gpu.verify.")
]
ShardsOption = Annotated[
    int | None,
    typer.Option(min=1, help="So many processes of Ansible side by side. By default as many as pay, or one with -p."),
]


YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def consents(question: str, yes: bool) -> bool:
    """Whether the operator wants it. Raises Refused where there is no terminal to ask on."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise Refused("there is no terminal to ask on, so nothing was changed", "give --yes")
    if typer.confirm(question):
        return True
    typer.echo("nothing was changed")
    return False


def playbook_named(given: str) -> str:
    """A file by its whole path, since ansible-runner works in a directory of its own; a name as it is."""
    return str(Path(given).resolve()) if Path(given).is_file() else given


def processes_for(playbook: str, shards: int | None) -> int | None:
    """How many processes of Ansible are to be used; None for as many as pay.

    Of another playbook than the site's nobody knows but its author whether its hosts can be divided.
    """
    return shards if shards or playbook == playbooks.SITE else 1


def passwords_for(words: Sequence[str]) -> dict[str, str]:
    """Passwords for the prompts to which these options lead; Ansible itself has no terminal."""
    prompts = dict(runner.PROMPTS[word] for word in words if word in runner.PROMPTS)
    return {pattern: typer.prompt(question, hide_input=True) for pattern, question in prompts.items()}
