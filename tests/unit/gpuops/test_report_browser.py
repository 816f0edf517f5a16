# SPDX-License-Identifier: GPL-3.0-or-later
"""The report in a browser: that it is drawn, fits its window, and that axe finds nothing in anybody's way."""

from __future__ import annotations

import html
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from gpuops.report import page
from tests.unit import browser
from tests.unit.gpuops.reported_site import made_up

pytestmark = pytest.mark.slow

BACKGROUNDS = {"dark": "#0d1117", "light": "#ffffff"}


@pytest.fixture(scope="module")
def chromium() -> str:
    return browser.find_chromium()


def draw(chromium: str, source: Path, width: int, scheme: int, *words: str) -> subprocess.CompletedProcess[str]:
    return browser.draw(chromium, f"file://{source}", source.parent / "profile", width, scheme, *words)


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
@pytest.mark.parametrize("scheme", browser.SCHEMES)
def test_a_browser_draws_it_and_it_fits(chromium, tmp_path, width, scheme):
    source = tmp_path / "framed.html"
    source.write_text(framed(page.html(made_up(tmp_path)), width))
    done = draw(chromium, source, width, browser.SCHEMES[scheme], f"--screenshot={tmp_path}/page.png", "--dump-dom")
    assert corner((tmp_path / "page.png").read_bytes()) == (width, BACKGROUNDS[scheme])
    # Only tables and drawings are scrolled sideways, and never the page.
    assert f'data-widths="{width} of {width}"' in done.stdout
    # Nothing of the page was refused by its own policy, and no file was missing.
    assert "Refused" not in done.stderr
    assert "ERR_" not in done.stderr


@pytest.mark.parametrize(("width", "scheme"), [(420, "dark"), (1280, "light")])
def test_axe_finds_nothing_in_anybodys_way(chromium, tmp_path, width, scheme):
    source = tmp_path / "report.html"
    source.write_text(browser.with_axe(page.html(made_up(tmp_path))))
    done = draw(chromium, source, width, browser.SCHEMES[scheme], "--virtual-time-budget=60000", "--dump-dom")
    found = browser.answer_of_axe(done)
    assert found["violations"] == []
    assert found["passed"] > 10
