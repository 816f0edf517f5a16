# SPDX-License-Identifier: GPL-3.0-or-later
"""`make test` brings the programs without which tests would be skipped. apt-get is made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import debian_programs, needs, portal_programs
from tests.unit.project.tree import ROOT


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all of the search path, for root; apt-get there brings what it is asked for."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    # What is unpacked and not installed may be missing in a checkout that has run no test yet.
    monkeypatch.setattr(debian_programs, "fetch", lambda: "")
    apt = tmp_path / "apt-get"
    apt.write_text(f"""#!/bin/sh
echo "$@" >>{tmp_path}/asked
case "$*" in
*update) ;;
*default-jre-headless*) >{tmp_path}/java; /bin/chmod +x {tmp_path}/java ;;
esac
""")
    apt.chmod(0o755)
    for name in needs.PROGRAMS.keys() - {"java", "apt-get"}:
        (tmp_path / name).touch(mode=0o755)
    return tmp_path


def test_what_is_missing_is_installed_and_nothing_else(programs, capfd):
    assert needs.main([]) == 0
    asked = (programs / "asked").read_text().splitlines()
    assert len(asked) == 1
    assert asked[0].endswith("install --yes --no-install-recommends default-jre-headless")
    assert needs.main([]) == 0
    assert (programs / "asked").read_text().splitlines() == asked


def test_a_package_that_cannot_be_had_stops_the_run_and_says_why(programs, capfd):
    (programs / "apt-get").write_text("#!/bin/sh\necho 'Unable to locate package' >&2; exit 100\n")
    assert needs.main([]) == 1
    told = capfd.readouterr().err
    assert "make test needs java (package default-jre-headless), and installing them failed" in told
    assert "Unable to locate package" in told


def test_who_is_not_root_is_told_what_to_install(programs, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert needs.main([]) == 0
    assert "apt-get install default-jre-headless" in capsys.readouterr().err
    assert not (programs / "asked").exists()


def test_the_slow_tests_need_more(programs, monkeypatch, capfd):
    asked = []
    monkeypatch.setattr(portal_programs, "fetch", lambda: asked.append("wheels") or "pip says no")
    monkeypatch.delenv("GPUOPS_PROXY", raising=False)
    needs.main([])
    assert asked == []
    needs.main(["--full"])
    assert asked == ["wheels"]
    assert "without them some are skipped: pip says no" in capfd.readouterr().err
    assert (programs / "asked").read_text().splitlines()[-1].endswith("node-configurable-http-proxy")


def test_make_test_asks_for_them_before_it_begins():
    lines = (ROOT / "tests/run").read_text().splitlines()
    places = [place for place, line in enumerate(lines) if "tests.needs" in line or "-m pytest" in line]
    assert ["tests.needs" in lines[place] for place in places] == [True, False]
