# SPDX-License-Identifier: GPL-3.0-or-later
"""A headless Chromium for pages, and axe in it."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import struct
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

# Name -> what Chromium calls it.
SCHEMES = {"dark": 0, "light": 1}
POLICY = re.compile(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>")
# What axe is given to run, once `ready` is true; with the answers in the place of the page.
_RUN = """
<script>%s</script>
<script>
const wait = setInterval(() => {
  if (!(%s)) return;
  clearInterval(wait);
  axe.run().then(found => {
    const answer = {passed: found.passes.length, violations: found.violations.map(
      row => [row.id, row.impact, row.nodes.map(node => node.html + " " + node.failureSummary).slice(0, 5)])};
    document.body.textContent = "ANSWER" + JSON.stringify(answer) + "END";
  });
}, 100);
</script></body>"""


def find_chromium() -> str:
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


def draw(
    chromium: str, address: str, profile: Path, width: int, scheme: int, *words: str
) -> subprocess.CompletedProcess[str]:
    """A page as Chromium draws it in a window that is so wide; no window is narrower than 500 px."""
    done = subprocess.run(
        [
            chromium,
            *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={profile}", f"--window-size={width},2000"),
            f"--blink-settings=preferredColorScheme={scheme}",
            *words,
            address,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done


def with_axe(page: str, ready: str = "true") -> str:
    """The page without its policy, and with axe, which looks at it as soon as `ready` is true."""
    axe = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    text, count = POLICY.subn("", page)
    assert count == 1
    return text.replace("</body>", _RUN % (axe, ready))


def answer_of_axe(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    answer = re.search(r"ANSWER(.*)END", done.stdout, re.DOTALL)
    assert answer, done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, Any] = json.loads(html.unescape(answer[1]))
    return found


def size(picture: Path) -> tuple[int, int]:
    """Width and height of a PNG in pixels."""
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    return width, height
