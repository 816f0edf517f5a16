# SPDX-License-Identifier: GPL-3.0-or-later
"""A site to load inventories from, and a fact cache that Ansible itself has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench import made_up_fleet
from tests.unit.project.tree import BIN, ROOT, run, try_run

# Keeps the environment of whoever runs the tests out.
ENVIRONMENT = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0"}


def plain(value: Any) -> Any:
    """Without the marks that ansible-inventory puts on strings which Ansible does not take for templates."""
    if isinstance(value, dict):
        if set(value) == {"__ansible_unsafe"}:
            return value["__ansible_unsafe"]
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


class Site:
    """An inventory directory and what Ansible makes of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environment = dict(ENVIRONMENT)

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text, encoding="utf-8")

    def write_plugin(self, *options: str) -> None:
        self.write("zz_gpus.yml", "\n".join(["plugin: baremetal.gpu.gpus", *options]) + "\n")

    def write_hosts(self, *names: str) -> None:
        self.write("hosts.yml", json.dumps({"all": {"hosts": dict.fromkeys(names)}}))

    def load(self, *words: str, source: str = "") -> tuple[dict[str, Any], str]:
        """(what `ansible-inventory --list` says, its warnings)"""
        done = try_run(
            [BIN / "ansible-inventory", "-i", self.path / source, "--list", *words], cwd=self.path, **self.environment
        )
        assert done.returncode == 0, done.stderr
        return plain(json.loads(done.stdout)), " ".join(done.stderr.split())

    def failure(self) -> str:
        """Why the inventory cannot be loaded, on one line."""
        done = try_run([BIN / "ansible-inventory", "-i", self.path, "--list"], cwd=self.path, **self.environment)
        assert done.returncode != 0, done.stdout
        assert "Traceback" not in done.stderr
        return " ".join(done.stderr.split())


def members(listed: dict[str, Any], group: str) -> list[str]:
    return listed.get(group, {}).get("hosts", [])


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path)


@pytest.fixture(scope="session")
def fact_cache(tmp_path_factory) -> Path:
    """Facts of node0 to node4 of the made-up fleet; node5's are of another schema, bare has only others."""
    folder = tmp_path_factory.mktemp("fact-cache")
    cache = folder / "cache"
    facts: dict[str, Any] = {f"node{number}": made_up_fleet.facts_of(number) for number in range(5)}
    facts["node5"] = {"schema": 0, "present": True}
    hosts = {"bare": {"fact": None}, **{name: {"fact": value} for name, value in facts.items()}}
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))

    def play(pattern: str, fact: str) -> dict[str, Any]:
        task = {"name": "Cache", "ansible.builtin.set_fact": {"cacheable": True, fact: "{{ fact }}"}}
        return {"hosts": pattern, "gather_facts": False, "tasks": [task]}

    (folder / "play.yml").write_text(json.dumps([play("bare", "other"), play("all:!bare", "gpu")]))
    run(
        BIN / "ansible-playbook",
        "-i",
        folder / "hosts.json",
        folder / "play.yml",
        cwd=folder,
        **ENVIRONMENT,
        ANSIBLE_CACHE_PLUGIN="jsonfile",
        ANSIBLE_CACHE_PLUGIN_CONNECTION=str(cache),
    )
    return cache
