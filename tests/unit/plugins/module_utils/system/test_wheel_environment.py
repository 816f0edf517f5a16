# SPDX-License-Identifier: GPL-3.0-or-later
"""An environment of wheels. Python and pip are stand-ins that leave what the real ones leave."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.system import wheel_environment as wheels

WANTED = {"jupyterhub": "6.1.1", "jupyter-core": "5.0"}


class Pip:
    """Makes environments of a Python, and installs what a list names. `fails` is a word of a call that fails."""

    def __init__(self, python: str = "3.13") -> None:
        self.python, self.fails = python, ""
        self.calls: list[list[str]] = []

    def __call__(self, argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        self.calls.append(argv)
        if self.fails and self.fails in argv:
            return 1, "", "THESE PACKAGES DO NOT MATCH THE HASHES"
        if "venv" in argv:
            packages = Path(argv[-1], "lib", f"python{self.python}", "site-packages")
            packages.mkdir(parents=True)
            (packages / "pip-25.1.dist-info").mkdir()
            Path(argv[-1], "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {self.python}.5\n")
        else:
            lock = next(word for word in argv if word.startswith("--requirement=")).partition("=")[2]
            packages = next(Path(argv[0]).parents[1].glob("lib/*/site-packages"))
            for name, version in re.findall(r"^(\S+)==(\S+)", Path(lock).read_text(), re.MULTILINE):
                (packages / f"{name.replace('-', '_')}-{version}.dist-info").mkdir()
        return 0, "", ""


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., str]:
    def made(packages: dict[str, str], pip: Pip, paths: Sequence[str] = ()) -> str:
        lock = tmp_path / "requirements.txt"
        lock.write_text("".join(f"{name}=={version}\n" for name, version in packages.items()))
        wheels.make(str(tmp_path / "portal"), str(lock), str(tmp_path), pip.python, pip, paths)
        return str(tmp_path / "portal")

    return made


def test_what_is_made_is_what_was_wanted(make: Callable[..., str]) -> None:
    pip = Pip()
    link = make(WANTED, pip)
    assert wheels.differences(wheels.current(link), WANTED, "3.13") == []
    assert all("--no-index" in call and "--require-hashes" in call for call in pip.calls if "pip" in call)


def test_each_difference_is_named(make: Callable[..., str]) -> None:
    found = wheels.current(make(WANTED, Pip()))
    assert wheels.differences(found, {"jupyterhub": "6.2", "tornado": "6.5"}, "3.13") == [
        "jupyter-core 5.0 is not on the list",
        "jupyterhub is 6.1.1, not 6.2",
        "tornado 6.5 is not installed",
    ]
    assert wheels.differences(found, WANTED, "3.14") == ["it is of Python 3.13, and the host has 3.14"]


def test_directories_that_its_python_looks_into_are_part_of_it(make: Callable[..., str]) -> None:
    assert wheels.differences(wheels.current(make(WANTED, Pip())), WANTED, "3.13", ["/usr/share/x"]) == [
        "it does not look into /usr/share/x"
    ]
    link = make(WANTED, Pip(), ["/usr/share/x"])
    # Beside what ran without them.
    assert Path(link).resolve().name.endswith("-again")
    assert wheels.differences(wheels.current(link), WANTED, "3.13", ["/usr/share/x"]) == []
    assert wheels.differences(wheels.current(link), WANTED, "3.13") == ["it looks into /usr/share/x"]


def test_a_real_python_finds_what_is_in_such_a_directory(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "found_there.py").write_text("print('found')")
    (tmp_path / "empty.txt").touch()

    def run(argv: Sequence[str], *_more: Any) -> tuple[int, str, str]:
        words = [*argv, "--without-pip"] if "venv" in argv else ["true"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    link, python = str(tmp_path / "environment"), wheels.system_python()
    wheels.make(link, str(tmp_path / "empty.txt"), str(tmp_path), python, run, [str(tmp_path / "more")])
    done = subprocess.run(
        [f"{link}/bin/python", "-c", "import found_there"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "found\n"


def test_nothing_is_there_before_the_first_run_or_where_the_link_leads_nowhere(tmp_path: Path) -> None:
    assert wheels.differences(wheels.current(str(tmp_path / "portal")), WANTED, "3.13") == ["it is not there"]
    (tmp_path / "portal").symlink_to(tmp_path / "gone")
    assert wheels.differences(wheels.current(str(tmp_path / "portal")), WANTED, "3.13") == ["it is not there"]


def test_an_upgrade_leaves_the_one_before_for_what_runs_and_no_older_one(make: Callable[..., str]) -> None:
    directories = []
    for version in ("1.0", "2.0", "3.0"):
        link = make({"jupyterhub": version}, Pip())
        directories.append(wheels.current(link).directory)
    assert [Path(one).is_dir() for one in directories] == [False, True, True]


@pytest.mark.parametrize("fails", ["venv", "pip"])
def test_one_that_cannot_be_made_leaves_the_link_where_it_was(make: Callable[..., str], fails: str) -> None:
    link = make({"jupyterhub": "1.0"}, Pip())
    before = wheels.current(link)
    pip = Pip()
    pip.fails = fails
    with pytest.raises(CallFailed, match="HASHES"):
        make({"jupyterhub": "2.0"}, pip)
    assert wheels.current(link) == before
    assert before.packages == {"jupyterhub": "1.0"}


def test_one_that_somebody_has_changed_is_made_anew_beside_what_runs(make: Callable[..., str]) -> None:
    link = make(WANTED, Pip())
    for _time in range(3):
        changed = wheels.current(link).directory
        next(Path(changed).glob("lib/*/site-packages/jupyterhub*")).rmdir()
        make(WANTED, Pip())
        assert wheels.differences(wheels.current(link), WANTED, "3.13") == []
        assert Path(changed).is_dir()
        assert wheels.current(link).directory != changed


def test_what_a_run_that_was_cut_has_left_is_made_anew(make: Callable[..., str], tmp_path: Path) -> None:
    pip = Pip()
    link = make(WANTED, pip)
    left = Path(wheels.current(link).directory)
    Path(link).unlink()
    (left / "half").touch()
    (tmp_path / "portal.new").symlink_to("nowhere")
    assert wheels.current(make(WANTED, pip)).directory == str(left)
    assert not (left / "half").exists()


def test_absent_leaves_nothing(make: Callable[..., str], tmp_path: Path) -> None:
    wheels.remove(make(WANTED, Pip()))
    assert [path.name for path in tmp_path.iterdir()] == ["requirements.txt"]
    wheels.remove(str(tmp_path / "portal"))
