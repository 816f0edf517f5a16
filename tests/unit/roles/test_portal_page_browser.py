# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of who uses what in Chromium, with made-up answers of the hub: what it shows, axe, and names as markup."""

from __future__ import annotations

import html
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from baremetal_gpu_portal import pages
from tests.unit import browser

pytestmark = pytest.mark.slow

PAGE = pages.now()
MARKUP = '<img src=x onerror="document.title=1">'
READY = 'document.getElementById("age").textContent'
NO_POLICY = '<meta http-equiv="Content-Security-Policy" content=""><title>'


def site(**changed: Any) -> dict[str, Any]:
    now = time.time()

    def lease(user: str, what: str, gpus: int, ago: float) -> dict[str, Any]:
        return {"job": "7", "what": what, "user": user, "gpus": gpus, "since": now - ago, "until": now + 7200}

    def tiles(name: str, *leases: dict[str, Any]) -> list[dict[str, Any]]:
        if name == "gpu2":
            # What the scheduler alone knows.
            has = [{key: lease[key] for key in ("user", "since", "until")} for lease in leases]
            return [*has, {"held": True}, {}, {}]
        gib = 1 << 30
        does = {"model": "NVIDIA A100-SXM4-80GB", "use": 0.87, "used": 12 * gib, "total": 80 * gib, "celsius": 63.4}
        rows = [{"minor": number, "verdict": "ok", "reasons": [], **does} for number in range(4)]
        for row in rows[:2] if leases else []:
            row.update({key: leases[0][key] for key in ("user", "since", "until")})
        rows[3].update(verdict="fatal" if name == "gpu3" else "degraded", reasons=["xid_79", "pcie_width"])
        if name == "gpu1":
            rows[2].update(verdict="fatal", reasons=["xid_48"], unfenced=True)
        return rows

    def node(name: str, free: int, *leases: dict[str, Any], problem: str = "") -> dict[str, Any]:
        sizes = {"cpus": 64, "free_cpus": 32, "memory_gib": 512, "free_memory_gib": 256}
        return {
            "name": name,
            "models": ["a100"],
            "gpus": 4,
            "free": free,
            "problem": problem,
            "leases": [*leases],
            "tiles": tiles(name, *leases),
            **sizes,
        }

    waiting = {"job": "9", "what": "sweep", "user": "carol", "gpus": 2, "since": now - 60, "why": "no node has room"}
    return {
        "at": now,
        "now": now,
        "me": "alice",
        "failure": "",
        "models": [{"model": "a100", "free": 3, "total": 12, "largest": 2}],
        "nodes": [
            node("gpu2", 1, lease("bob", MARKUP, 3, 200_000)),
            node("gpu1", 2, lease("alice", "session", 2, 5_400)),
            node("gpu3", 0, problem="the reconciler drained it: GPU 3 has memory errors"),
        ],
        "waiting": [waiting],
        "waiting_total": 5,
        "warnings": ["A GPU of your session is out of order: GPU-1 (xid_79)."],
        **changed,
    }


@pytest.fixture(scope="module")
def look(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    chromium, profile = browser.find_chromium(), tmp_path_factory.mktemp("profile")
    answers: dict[str, tuple[int, str, str]] = {}

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, text = answers.get(self.path, (404, "text/plain", ""))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_given: object) -> None:
            """A test says what went wrong."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def drawn(
            found: dict[str, Any] | int, width: int = 1280, scheme: str = "light", axe: bool = False, *more: str
        ) -> Any:
            page = browser.with_axe(PAGE.replace("<title>", NO_POLICY, 1), READY) if axe else PAGE
            answers["/hub/now"] = (200, "text/html; charset=utf-8", page)
            text = json.dumps(found) if isinstance(found, dict) else ""
            answers["/hub/now/data"] = (200 if text else int(str(found)), "application/json", text)
            words = ("--virtual-time-budget=6000", "--dump-dom", "--enable-logging=stderr", *more)
            address = f"http://127.0.0.1:{server.server_port}/hub/now"
            return browser.draw(chromium, address, profile, width, browser.SCHEMES[scheme], *words)

        yield drawn
        server.shutdown()


def text_of(done: Any) -> str:
    body = re.sub(r"<(script|style)>.*?</\1>", "", done.stdout, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_it_shows_who_has_what_since_when_and_who_waits(look: Callable[..., Any]) -> None:
    text = text_of(look(site()))
    assert "3 GPUs free. You have 2." in text
    assert re.search(r"gpu1 a100 2 of 4 .* alice \(you\) ?: 2 GPUs, session \(7\) for 1 h 30 min, since", text)
    does = "NVIDIA A100-SXM4-80GB 87 % 12.0 of 80 GiB 63 \u00b0C"
    assert re.search(rf"GPU 0 ok {does} alice \(you\) since .* until .* GPU 2 fatal {does} xid_48 not fenced", text)
    assert f"GPU 3 fatal {does} xid_79, pcie_width not in use" in text
    assert "A GPU bob since" in text
    assert "A GPU out of service not in use A GPU free" in text
    assert "bob : 3 GPUs" in text
    assert "for 2 days" in text
    assert "Takes no jobs: the reconciler drained it: GPU 3 has memory errors" in text
    assert "carol sweep (9) 2 no node has room" in text
    assert "1 job of 5" in text
    assert "A GPU of your session is out of order: GPU-1 (xid_79)." in text


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (500, "dark")])
def test_it_is_drawn_for_a_desk_and_a_phone(look: Callable[..., Any], tmp_path: Path, width: int, scheme: str) -> None:
    """`GPUOPS_SCREENS=/tmp/screens` keeps the pictures, to look at."""
    file = Path(os.environ.get("GPUOPS_SCREENS") or tmp_path) / f"tiles-{width}-{scheme}.png"
    look(site(), width, scheme, False, f"--screenshot={file.resolve()}")
    assert browser.size(file) == (width, 2000)


def test_a_fatal_gpu_that_slurm_still_gives_to_jobs_is_told_first(look: Callable[..., Any]) -> None:
    done = look(site())
    text = text_of(done)
    first = "3 GPUs free. You have 2. Slurm still gives fatal GPUs to jobs on gpu1. An administrator can close"
    assert text.index(first) < text.index("Free now")
    assert "xid_48 not fenced: Slurm still gives it to jobs nobody has it" in text
    assert re.search(r'<p id="state"[^>]*class="error"', done.stdout)
    assert done.stdout.count('class="tile fatal unfenced"') == 1


def test_names_stay_text(look: Callable[..., Any]) -> None:
    done = look(site())
    assert "<title>Who uses what</title>" in done.stdout
    assert html.escape(MARKUP, quote=False) in done.stdout
    assert MARKUP not in done.stdout.replace(html.escape(MARKUP), "")


def marked(value: Any) -> Any:
    """All that is text in an answer, as markup."""
    if isinstance(value, dict):
        return {name: marked(one) for name, one in value.items()}
    if isinstance(value, list):
        return [marked(one) for one in value]
    return MARKUP if isinstance(value, str) else value


def test_whatever_is_text_in_the_answer_of_the_hub_stays_text(look: Callable[..., Any]) -> None:
    found = marked(site())
    for failure in ("", MARKUP):
        done = look({**found, "failure": failure})
        assert "<title>Who uses what</title>" in done.stdout
        assert MARKUP not in done.stdout
    # Node, model, person, what it is, its number and why there is trouble.
    assert done.stdout.count(html.escape(MARKUP, quote=False)) > 10


@pytest.mark.parametrize(("found", "told"), [(403, "you are logged out; log in again"), (502, "its answer is 502")])
def test_it_says_why_nothing_is_there(look: Callable[..., Any], found: int, told: str) -> None:
    assert f"The portal does not answer: {told}" in text_of(look(found))


def test_a_scheduler_that_does_not_answer_is_told_with_the_age_of_what_is_seen(look: Callable[..., Any]) -> None:
    text = text_of(look(site(failure="squeue: connect failure")))
    assert "The scheduler does not answer. What you see is from" in text
    assert "gpu1" in text


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (500, "light"), (500, "dark")])
def test_axe_finds_nothing_in_anybodys_way(look: Callable[..., Any], width: int, scheme: str) -> None:
    found = browser.answer_of_axe(look(site(), width, scheme, axe=True))
    assert found["violations"] == []
    assert found["passed"] > 10
