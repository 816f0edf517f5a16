# SPDX-License-Identifier: GPL-3.0-or-later
"""The report in a browser: that it is drawn, fits its window, and that axe finds nothing in anybody's way."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import struct
import subprocess
import zlib
from importlib.resources import files
from pathlib import Path

import pytest

from gpuops.report import page
from tests.unit.gpuops.reported_site import made_up

pytestmark = pytest.mark.slow

SCHEMES = {"dark": (0, "#0d1117"), "light": (1, "#ffffff")}
# What axe is given to run; with the answers in the place of the page.
RUN = """
<script>%s</script>
<script>
axe.run().then(found => {
  const answer = {passed: found.passes.length, violations: found.violations.map(
    row => [row.id, row.impact, row.nodes.map(node => node.html + " " + node.failureSummary).slice(0, 5)])};
  document.body.textContent = "ANSWER" + JSON.stringify(answer) + "END";
});
</script>
"""


@pytest.fixture(scope="module")
def chromium() -> str:
    """A Chromium that can be called without a screen; GPUOPS_CHROMIUM names one that is not on the path."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

    def there() -> str | None:
        return os.environ.get("GPUOPS_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)

    if there() is None and os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "--yes", "--no-install-recommends", "chromium"]
        subprocess.run(
            install, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, capture_output=True, check=False
        )
    found = there()
    if found is None:
        pytest.skip("no Chromium is here to draw the page, and it cannot be installed by apt-get as this user")
    return found


def draw(chromium: str, source: Path, width: int, scheme: int, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [
            chromium,
            *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={source.parent}/profile", f"--window-size={width},2000"),
            f"--blink-settings=preferredColorScheme={scheme}",
            *words,
            f"file://{source}",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done


def corner(png: bytes) -> tuple[int, str]:
    """(width, colour of the pixel in the corner) of a screenshot."""
    width, _height, depth, kind = struct.unpack(">IIBB", png[16:26])
    assert (depth, kind) in ((8, 2), (8, 6))
    data, place = b"", 8
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        if png[place + 4 : place + 8] == b"IDAT":
            data += png[place + 8 : place + 8 + length]
        place += length + 12
    # Whatever its filter, the first pixel of the first line has no neighbours to be told from.
    return width, "#" + zlib.decompress(data)[1:4].hex()


def framed(report: str, width: int) -> str:
    """A page with the report in a frame of its own width: a window of Chromium's is never narrower than 500 px."""
    return f"""<!DOCTYPE html><body style="margin: 0">
<iframe srcdoc="{html.escape(report, quote=True)}" style="border: 0; width: {width}px; height: 2000px"></iframe>
<script>
window.onload = () => {{
  const root = document.querySelector("iframe").contentDocument.documentElement;
  document.body.dataset.widths = root.scrollWidth + " of " + root.clientWidth;
}};
</script></body>"""


@pytest.mark.parametrize("width", [420, 1280])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_browser_draws_it_and_it_fits(chromium, tmp_path, width, scheme):
    number, colour = SCHEMES[scheme]
    source = tmp_path / "framed.html"
    source.write_text(framed(page.html(made_up(tmp_path)), width))
    done = draw(chromium, source, width, number, f"--screenshot={tmp_path}/page.png", "--dump-dom")
    assert corner((tmp_path / "page.png").read_bytes()) == (width, colour)
    # Only tables and drawings are scrolled sideways, and never the page.
    assert f'data-widths="{width} of {width}"' in done.stdout
    # Nothing of the page was refused by its own policy, and no file was missing.
    assert "Refused" not in done.stderr
    assert "ERR_" not in done.stderr


@pytest.mark.parametrize(("width", "scheme"), [(420, "dark"), (1280, "light")])
def test_axe_finds_nothing_in_anybodys_way(chromium, tmp_path, width, scheme):
    axe = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    policy = re.compile(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>")
    text, count = policy.subn("", page.html(made_up(tmp_path)))
    assert count == 1
    source = tmp_path / "report.html"
    source.write_text(text.replace("</body>", RUN % axe + "</body>"))
    done = draw(chromium, source, width, SCHEMES[scheme][0], "--virtual-time-budget=60000", "--dump-dom")
    answer = re.search(r"ANSWER(.*)END", done.stdout, re.DOTALL)
    assert answer, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads(html.unescape(answer[1]))
    assert found["violations"] == []
    assert found["passed"] > 10
