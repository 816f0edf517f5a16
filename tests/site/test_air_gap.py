# SPDX-License-Identifier: GPL-3.0-or-later
"""A site without a way out: the hosts reach a mirror on the controller, filled from the manifest, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.lab.machines import mirrors
from tests.lab.machines.state import Lab
from tests.site.plays import INVENTORY, ROOT, lab, run_playbook, ssh

pytestmark = [pytest.mark.lab, pytest.mark.slow]

MACHINES = {"gpu1": "debian13", "gpu2": "debian12", "cpu1": "debian13"}


def gpuops(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gpuops", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def mirror(bare_lab: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a mirror that holds what the manifest of the bare lab lists, served on the lab's bridge."""
    directory = tmp_path_factory.mktemp("mirror")
    manifest = directory / "manifest.json"
    gpuops("manifest", "-i", INVENTORY, "-o", manifest)
    found = mirrors.find()
    options = ["--security", found.security] if found.security else []
    if found.proxy:
        options += ["--proxy", found.proxy]
    gpuops("fetch", manifest, directory, "--archive", found.main, *options)
    with ThreadingHTTPServer((Lab().gateway, 0), partial(Quiet, directory=str(directory))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{server.server_address[0]}:{server.server_address[1]}"
        server.shutdown()


def test_site_is_green_from_the_mirror_alone(mirror: str) -> None:
    for machine, release in MACHINES.items():
        # What the operator of such a site does by hand: the hosts' sources are the mirror and nothing else.
        source = f"Types: deb\\nURIs: {mirror}/{release}\\nSuites: ./\\nTrusted: yes\\n"
        ssh(machine, "sudo rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /etc/apt/apt.conf.d/80lab")
        ssh(machine, f"printf '{source}' | sudo tee /etc/apt/sources.list.d/mirror.sources")
        lab("egress", machine, "isolated")
        lab("traffic", machine, "--reset")
    try:
        play = run_playbook("site.yml")
        sent = {machine: json.loads(lab("traffic", machine)) for machine in MACHINES}
    finally:
        for machine in MACHINES:
            lab("egress", machine, "open")
    assert play.rc == 0, play.tail()
    assert {
        machine: (row["apt"]["packets"], row["forwarded"]["packets"]) for machine, row in sent.items()
    } == dict.fromkeys(MACHINES, (0, 0))
    assert all(row["host"]["packets"] > 0 for row in sent.values()), "nothing came from the mirror"
