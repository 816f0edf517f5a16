# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of GPUs in a browser, served by a real Prometheus that has scraped a made-up site."""

from __future__ import annotations

import functools
import html
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import rules
from tests.unit import browser
from tests.unit.project.tree import ROOT
from tests.unit.prometheus import Quiet, fetch, programs, query, running, served
from tests.unit.roles import console_site
from tests.unit.roles.console_site import HEAD, MARKUP, NODES, SILENT, target

pytestmark = pytest.mark.slow

PAGE = ROOT / "roles" / "prometheus" / "files" / "gpu.html"
VIEWS = ("", "#node=gpu3", "#user=alice", "#user=nobody")
LOOKED = re.compile(r"^(gpu_probe_last_success_timestamp_seconds) .*", re.MULTILINE)
# Path, width and colour scheme -> what Chromium has drawn.
Look = Callable[..., subprocess.CompletedProcess[str]]
READY = 'document.getElementById("age").textContent'


@pytest.fixture(scope="module")
def hosts() -> Iterator[str]:
    """What node_exporter of each host gives, below the host's name."""
    now = time.time()
    pages = console_site.pages(now, now)

    class Hosts(Quiet):
        def do_GET(self) -> None:
            text = pages.get(self.path.strip("/"))
            if text is None:
                self.answer(503, "")
            else:
                self.answer(200, LOOKED.sub(rf"\1 {time.time()}", text))

    with served(Hosts) as address:
        yield address


@pytest.fixture(scope="module")
def prometheus(hosts: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address, once it has scraped all hosts and an alert is firing."""
    place = tmp_path_factory.mktemp("site")
    (place / "consoles").mkdir()
    shutil.copy(PAGE, place / "consoles" / "gpu.html")
    (place / "history").write_text(console_site.history(time.time(), 2, 150))
    subprocess.run(
        [
            programs("prometheus", "promtool")["promtool"],
            *("tsdb", "create-blocks-from", "openmetrics", place / "history", place / "data"),
        ],
        check=True,
        capture_output=True,
    )
    (place / "gpu.yml").write_text(rules.rule_files("https://docs.example.org/")["gpu.yml"])
    jobs = [
        {
            "job_name": f"node {host}",
            "metrics_path": f"/{host}",
            "honor_labels": True,
            "static_configs": [{"targets": [hosts], "labels": target(host)}],
        }
        for host in (*NODES, SILENT, HEAD)
    ]
    settings = {"scrape_interval": "2s", "evaluation_interval": "2s"}
    config = {"global": settings, "rule_files": [str(place / "gpu.yml")], "scrape_configs": jobs}

    def ready(address: str) -> bool:
        return len(query(address, "gpu_info")) == 32 and bool(query(address, 'ALERTS{alertstate="firing"}'))

    consoles = (f"--web.console.templates={place}/consoles", f"--web.console.libraries={place}/none")
    with running(config, place, ready, *consoles) as address:
        yield address


@pytest.fixture(scope="module")
def door(prometheus: str) -> Iterator[str]:
    """Passes requests on to Prometheus. Below /down its API does not answer; below /axe the page has axe in it."""

    class Door(Quiet):
        def do_GET(self) -> None:
            kind = re.match(r"/(down|axe|open)(/.*)", self.path)
            if not kind:
                self.answer(404, "")
            elif kind[1] == "down" and "/api/" in kind[2]:
                self.answer(503, '{"status":"error","error":"the database is full"}', "application/json")
            elif kind[2].startswith("/consoles/frame/"):
                width, view = kind[2].split("/")[3:]
                script = USED if width == "1280" else WIDTHS
                self.answer(200, framed(int(width), urllib.parse.unquote(view), script), "text/html; charset=utf-8")
            elif "/api/" in kind[2]:
                self.answer(200, fetch(prometheus, kind[2]), "application/json")
            else:
                page = fetch(prometheus, kind[2])
                self.answer(
                    200, browser.with_axe(page, READY) if kind[1] == "axe" else page, "text/html; charset=utf-8"
                )

    with served(Door) as address:
        yield address


# Measured once the page is drawn: how wide it is.
WIDTHS = """
document.body.dataset.widths = page.documentElement.scrollWidth + " of " + page.documentElement.clientWidth;
"""
# Somebody opens an alert and goes to a node; the page is drawn again; somebody looks for a user.
USED = """
const age = page.getElementById("age");
const before = age.textContent;
const alert = page.querySelector("details");
alert.open = true;
page.querySelector('a[href="#node=gpu2"]').focus();
const again = setInterval(() => {
  if (age.textContent === before) return;
  clearInterval(again);
  document.body.dataset.kept = page.querySelector("details").open + " " + page.activeElement.textContent;
  page.getElementById("find").value = "carol note";
  page.getElementById("find").dispatchEvent(new Event("input"));
  document.body.dataset.found = [...page.querySelectorAll(".nodes tbody th a")].map(node => node.textContent).join(" ");
}, 100);
"""


def framed(width: int, view: str, script: str) -> str:
    """A page with the page in a frame: a window of Chromium's is never narrower than 500 px."""
    return f"""<!DOCTYPE html><body style="margin: 0">
<iframe src="../../gpu.html{html.escape(view)}" style="border: 0; width: {width}px; height: 2000px"></iframe>
<script>
const wait = setInterval(() => {{
  const page = document.querySelector("iframe").contentDocument;
  if (!page.getElementById("age") || !page.getElementById("age").textContent) return;
  clearInterval(wait);
  {script}
}}, 100);
</script></body>"""


class Drawn:
    """A view as it is after some seconds."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.markup, self.errors = done.stdout, done.stderr
        body = re.sub(r"<(script|style)>.*?</\1>", "", self.markup, flags=re.DOTALL)
        self.text = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())

    @functools.cached_property
    def state(self) -> str:
        (found,) = re.findall(r'<p id="state"[^>]*>(.*?)</p>', self.markup)
        return html.unescape(found)


@pytest.fixture(scope="module")
def look(door: str, tmp_path_factory: pytest.TempPathFactory) -> Look:
    chromium = browser.find_chromium()
    profile = tmp_path_factory.mktemp("profile")

    def drawn(path: str, width: int = 1280, scheme: str = "light") -> subprocess.CompletedProcess[str]:
        words = ("--virtual-time-budget=30000", "--dump-dom", "--enable-logging=stderr")
        return browser.draw(chromium, f"http://{door}{path}", profile, width, browser.SCHEMES[scheme], *words)

    return drawn


def test_prometheus_serves_what_the_file_has(prometheus: str) -> None:
    with urllib.request.urlopen(f"http://{prometheus}/consoles/gpu.html") as answer:
        assert answer.headers["Content-Type"].startswith("text/html")
        there = answer.read().decode()
    for tag in ("script", "style"):
        part = re.compile(rf"<{tag}>(.*?)</{tag}>", re.DOTALL)
        assert part.findall(there) == part.findall(PAGE.read_text())


def test_the_fleet_is_there_at_a_glance(look: Look) -> None:
    view = Drawn(look("/open/consoles/gpu.html"))
    assert view.state.startswith(
        "32 GPUs on 5 nodes: 29 ok, 2 degraded, 1 fatal. 1 node without current metrics. 1 alert firing."
    )
    assert "ticket: gpu2: GPU 3 is fatal: ecc_uncorrected" in view.text
    assert re.search(r"gpu5 \S+ does not answer Slurm: down, not_responding", view.text)
    assert re.search(r"gpu2 \S+ fatal NVIDIA A100-SXM4-40GB Slurm: mixed, drain \(GPU 3 has memory errors\)", view.text)
    assert re.search(r"GPU 4 \S+ ok 0 % 38 °C 0/40 GiB carol idle", view.text)
    # Of the 15 that no job has, one is fatal, and the other four of its node are drained with it.
    assert "In jobs 17 of 32 Idle in jobs 1 Free 10" in view.text
    assert 'href="#user=alice"' in view.markup


def test_a_node_has_its_reasons_and_what_its_gpus_did(look: Look) -> None:
    view = Drawn(look("/open/consoles/gpu.html#node=gpu3"))
    assert view.state == "The node is degraded, 8 GPUs (6 ok, 2 degraded)."
    assert "degraded thermal_slowdown" in view.text
    assert "91 °C" in view.text
    assert "driver 550.163.01" in view.text
    assert len(re.findall(r'aria-label="from [^"]* on average"', view.markup)) == 8 * 4


def test_a_user_sees_the_own_jobs(look: Look) -> None:
    view = Drawn(look("/open/consoles/gpu.html#user=alice"))
    assert view.state == "2 jobs with 10 GPUs, 0 of them idle now."
    assert "Job 101: pretrain-7b" in view.text
    assert "for 2 d 7 h" in view.text
    assert "bob" not in view.text
    assert Drawn(look("/open/consoles/gpu.html#user=nobody")).state == "This user has no GPU now."


def test_names_that_users_give_are_text(look: Look) -> None:
    user = urllib.parse.quote('dave"\\', safe="")
    view = Drawn(look(f"/open/consoles/gpu.html#user={user}"))
    assert view.state == "1 job with 4 GPUs, 0 of them idle now."
    assert f"Job 104: {MARKUP}" in view.text
    assert "<img" not in view.markup


@pytest.mark.parametrize("view", VIEWS)
def test_the_policy_refuses_nothing_of_the_page(look: Look, view: str) -> None:
    done = look(f"/open/consoles/gpu.html{view}")
    assert "CONSOLE" not in done.stderr, done.stderr
    assert Drawn(done).state != "Asking Prometheus."


def test_without_prometheus_it_says_so(look: Look) -> None:
    view = Drawn(look("/down/consoles/gpu.html"))
    assert view.state == "Prometheus does not answer: the database is full."


@pytest.mark.parametrize("view", VIEWS)
def test_a_phone_scrolls_no_view_sideways(look: Look, view: str) -> None:
    done = look(f"/open/consoles/frame/390/{urllib.parse.quote(view)}")
    assert 'data-widths="390 of 390"' in done.stdout


def test_a_refresh_leaves_what_was_opened_and_where_one_is(look: Look) -> None:
    done = look("/open/consoles/frame/1280/", 1400)
    assert 'data-kept="true gpu2"' in done.stdout
    assert 'data-found="gpu2"' in done.stdout


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (500, "light")])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_in_anybodys_way(look: Look, view: str, width: int, scheme: str) -> None:
    found = browser.answer_of_axe(look(f"/axe/consoles/gpu.html{view}", width, scheme))
    assert found["violations"] == []
    assert found["passed"] > 10
