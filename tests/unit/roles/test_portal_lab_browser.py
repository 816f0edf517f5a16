# SPDX-License-Identifier: GPL-3.0-or-later
"""The portal's warning inside the real JupyterLab, in Chromium, with a hub that is made up."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import session
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.portal import IN_LAB
from tests import portal_programs
from tests.unit import browser
from tests.unit.project.tree import ROOT
from tests.unit.roles.portal_site import free_ports

pytestmark = pytest.mark.slow

STARTS_S = 120


class Hub:
    """What it says of the sessions of whoever asks."""

    def __init__(self) -> None:
        self.told: dict[str, Any] | None = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_there = hub.told is not None and self.path == "/hub/portal/idle"
                self.send_response(200 if is_there else 404)
                # JupyterLab is on another origin, as where sessions have their own.
                self.send_header("Access-Control-Allow-Origin", self.headers.get("Origin", ""))
                self.send_header("Access-Control-Allow-Credentials", "true")
                self.end_headers()
                self.wfile.write(json.dumps(hub.told).encode() if is_there else b"<html>")

            def log_message(self, *words: object) -> None:
                """Nothing on the screen."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.prefix = f"http://127.0.0.1:{self.server.server_port}/hub/"


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    made = Hub()
    yield made
    made.server.shutdown()


@pytest.fixture(scope="module")
def look(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """JupyterLab as Chromium has drawn it."""
    program = portal_programs.environment() / "bin" / "jupyter-lab"
    if not program.is_file():
        pytest.skip(f"there is no {program}: make test-full brings it")
    chromium, base = browser.find_chromium(), tmp_path_factory.mktemp("lab")
    for name, path in IN_LAB.items():
        there = base / "data" / path.removeprefix(f"{session.JUPYTER}/")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text((ROOT / "roles" / "portal" / "files" / "jupyterlab" / name).read_text())
    (base / "config" / "labconfig").mkdir(parents=True)
    page = {"hubPrefix": hub.prefix, "hubServerName": "second"}
    (base / "config" / "labconfig" / "page_config.json").write_text(json.dumps(page))
    (base / "home").mkdir()
    (port,) = free_ports(1)
    words = ["--allow-root", "--no-browser", f"--port={port}", "--ip=127.0.0.1", "--IdentityProvider.token="]
    with Path(base, "log").open("wb") as log:
        process = subprocess.Popen(
            [program, *words, *session.QUIET],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=base / "home",
            env={
                "PATH": f"{program.parent}:/usr/bin:/bin",
                "HOME": str(base / "home"),
                "JUPYTER_PATH": str(base / "data"),
                "JUPYTER_CONFIG_DIR": str(base / "config"),
            },
        )
    address = f"http://127.0.0.1:{port}/lab"
    try:
        end = time.monotonic() + STARTS_S
        while not _answers(address):
            assert time.monotonic() < end, (base / "log").read_text()
            time.sleep(1)

        def drawn(*more: str) -> str:
            options = ("--virtual-time-budget=30000", "--dump-dom", *more)
            return browser.draw(chromium, address, base / "profile", 1280, browser.SCHEMES["light"], *options).stdout

        yield drawn
    finally:
        process.terminate()
        process.wait()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


TEXT = 'Your session second is idle since 10:00 <img src=x onerror="document.title=1">.'


def test_the_warning_of_this_session_stands_in_it_as_text_with_the_way_to_keep_it(
    hub: Hub, look: Callable[[], str]
) -> None:
    hub.told = {"": {"level": "warn1", "text": "of another"}, "second": {"level": "warn1", "text": TEXT}}
    page = look()
    assert 'id="baremetal-gpu-portal" role="alert"' in page
    assert "Your session second is idle since 10:00 &lt;img src=x" in page
    assert "of another" not in page
    assert f'href="{hub.prefix}home"' in page


def test_a_gpu_that_is_out_of_order_is_told_without_an_offer_to_keep_it(hub: Hub, look: Callable[[], str]) -> None:
    hub.told = {"second": {"level": "keep", "text": "A GPU of your session second is out of order", "keep": False}}
    page = look()
    assert "A GPU of your session second is out of order" in page
    assert ">My sessions</a>" in page
    assert "Keep it" not in page


def test_the_time_that_is_left_and_what_the_gpus_do_stand_at_the_top(
    hub: Hub, look: Callable[..., str], tmp_path: Path
) -> None:
    """`GPUOPS_SCREENS=/tmp/screens` keeps the picture, to look at."""
    file = Path(os.environ.get("GPUOPS_SCREENS") or tmp_path) / "lab.png"
    line = "3 h 12 min left \u00b7 GPU 87 % \u00b7 <b>12.3</b> of 80 GiB of GPU memory"
    hub.told = {"": {"level": "keep", "now": "of another"}, "second": {"level": "keep", "now": line}}
    page = look(f"--screenshot={file.resolve()}")
    assert 'id="baremetal-gpu-portal-now"' in page
    assert "3 h 12 min left \u00b7 GPU 87 % \u00b7 &lt;b&gt;12.3&lt;/b&gt; of 80 GiB of GPU memory</a>" in page
    assert "of another" not in page
    assert 'id="baremetal-gpu-portal"' not in page


@pytest.mark.parametrize("told", [{"second": {"level": "keep"}}, {}, None])
def test_without_a_warning_there_is_none(hub: Hub, look: Callable[[], str], told: dict[str, Any] | None) -> None:
    hub.told = told
    page = look()
    # JupyterLab itself is there.
    assert "jp-LabShell" in page
    assert 'id="baremetal-gpu-portal"' not in page
