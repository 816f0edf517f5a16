# SPDX-License-Identifier: GPL-3.0-or-later
"""An environment of Python becomes a lock file, and the same environment again."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import environments

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


def wheel(directory: Path, name: str, version: str) -> None:
    """A package with one module that tells its version."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What pip finds, and nothing else."""
    found = tmp_path / "wheels"
    found.mkdir()
    for name, version in (("solver", "1.5"), ("plotter", "0.2")):
        wheel(found, name, version)
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(found))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return found


def venv(path: Path, *packages: str, options: tuple[str, ...] = ()) -> Path:
    subprocess.run([sys.executable, "-m", "venv", *options, path], check=True)
    if packages:
        subprocess.run([path / "bin" / "python", "-m", "pip", "install", "--quiet", *packages], check=True)
    return path


def made(path: Path, *rows: dict[str, Any]) -> Path:
    """An environment that has been written by hand; a row has name, version, and what pip says of its origin."""
    place = path / "lib" / f"python{HERE}" / "site-packages"
    place.mkdir(parents=True)
    (path / "pyvenv.cfg").write_text("home = /usr/bin\n")
    for row in rows:
        info = place / f"{row['name']}-{row['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {row['name']}\nVersion: {row['version']}\n\nText: no field\n")
        (info / "INSTALLER").write_text(row.get("by", "pip") + "\n")
        if "origin" in row:
            (info / "direct_url.json").write_text(json.dumps(row["origin"]))
    return path


def test_an_environment_is_saved_and_is_the_same_on_another_node(
    tmp_path: Path, wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, lock = venv(tmp_path / "first", "solver", "plotter"), tmp_path / "environments" / "first.lock"
    assert environments.main(["save", str(first), str(lock)]) == 0
    assert "packages of" in capsys.readouterr().out
    # A newer one has come out meanwhile.
    wheel(wheels, "solver", "2.0")
    assert environments.main(["restore", str(lock), str(tmp_path / "second")]) == 0
    told = subprocess.run(
        [
            tmp_path / "second" / "bin" / "python",
            "-c",
            "import solver, plotter; print(solver.VERSION, plotter.VERSION)",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    assert told.stdout.split() == ["1.5", "0.2"]
    lines = [lock_of(tmp_path / name) for name in ("first", "second")]
    assert lines[0] == lines[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["environments", "first", "second", "wheels"]


def lock_of(path: Path) -> list[str]:
    return environments.lock(str(path), "").text.splitlines()[2:]


def test_the_packages_of_the_system_are_seen_again(tmp_path: Path, wheels: Path) -> None:
    first = venv(tmp_path / "first", options=("--system-site-packages",))
    environments.save(str(first), str(tmp_path / "lock"))
    environments.restore(str(tmp_path / "lock"), str(tmp_path / "second"))
    assert "include-system-site-packages = true" in (tmp_path / "second" / "pyvenv.cfg").read_text()


def test_what_came_from_a_repository_is_its_commit_and_what_is_local_is_named(tmp_path: Path) -> None:
    git = {"url": "https://example.org/a.git", "vcs_info": {"vcs": "git", "commit_id": "0123abc"}}
    path = made(
        tmp_path / "env",
        {"name": "ours", "version": "1", "origin": git},
        {"name": "mine", "version": "2", "origin": {"url": "file:///srv/mine", "dir_info": {"editable": True}}},
        {"name": "plain", "version": "3"},
    )
    found = environments.lock(str(path), "")
    assert found.text.splitlines()[3:] == ["ours @ git+https://example.org/a.git@0123abc", "plain==3"]
    assert found.left_out == ["mine: it was installed from file:///srv/mine"]


def test_conda_s_packages_are_exact_and_those_of_pip_come_after_them(tmp_path: Path) -> None:
    path = made(tmp_path / "env", {"name": "pipped", "version": "1"}, {"name": "a", "version": "1", "by": "conda"})
    meta = path / "conda-meta"
    meta.mkdir()
    md5 = "0" * 32
    (meta / "a-1.json").write_text(json.dumps({"url": "https://example.org/a-1.conda", "md5": md5}))
    (meta / "b-1.json").write_text("{")
    lock = tmp_path / "lock"
    found = environments.save(str(path), str(lock))
    assert found.left_out == ["b-1: conda does not say where it is from"]
    wanted = environments.read(str(lock))
    assert (wanted.conda, wanted.pip) == ([f"https://example.org/a-1.conda#{md5}"], ["pipped==1"])
    conda, pip = environments.commands(wanted, "/env", "3.0", "/work")
    assert conda[:5] == ["conda", "create", "--yes", "--prefix", "/env"]
    assert pip[0] == "/env/bin/python"


@pytest.mark.parametrize("name", ["a b", "x\n--index-url=https://evil.example", "-r", ""])
def test_a_package_with_a_name_that_is_none_is_left_out(tmp_path: Path, name: str) -> None:
    path = made(tmp_path / "env", {"name": "fine", "version": "1"})
    metadata = next(path.rglob("METADATA"))
    metadata.write_text(f"Name: {name}\nVersion: 1\n")
    found = environments.lock(str(path), "")
    assert "evil" not in found.text
    assert (found.packages, len(found.left_out)) in ((0, 1), (1, 0))
    assert all(not line.startswith("-") for line in found.text.splitlines())


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("solver==1\n", "not the lock"),
        *(
            (f"{environments.HEAD}\n# of x\n# python {HERE}\n{conda}{before}{line}\n", "it: a lock has packages alone")
            for conda, before in (("", ""), ("@EXPLICIT\n", ""), ("@EXPLICIT\n", "# pip: "))
            for line in (
                "--index-url https://evil.example",
                " --index-url https://evil.example",
                "\t--index-url=https://evil.example",
                "\u00a0--index-url https://evil.example",
                "solver==1 --config-settings=x=y",
                "solver==1 --hash=sha256:0",
                "solver==1\\",
                "solver==1 ; --index-url",
                "solver",
                "solver>=1",
                "./solver",
                "/srv/solver.whl",
                "file:///srv/solver.whl",
                "solver @ file:///srv/solver.whl",
                "solver @ http://evil.example/solver.whl",
                "solver @ https://evil.example/${HOME}/solver.whl",
                "solver @ https://evil.example/solver.whl\\",
                "solver @ https://evil.example/solver.whl --config-settings=x=y",
                " # pip: solver==1",
            )
        ),
        (f"{environments.HEAD}\n# of x\n# python {HERE}\nsol\x1bver==1\n", "sol"),
        (f"{environments.HEAD}\n# of x\n# python 3.1\nsolver==1\n", "Python 3.1"),
        ("\x00\xff", "not the lock"),
    ],
)
def test_a_file_that_is_no_lock_of_this_host_is_refused_before_anything_is_made(
    tmp_path: Path, text: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lock").write_text(text)
    assert environments.main(["restore", str(tmp_path / "lock"), str(tmp_path / "env")]) == 1
    assert word in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_lock_may_have_notes_of_its_owner(tmp_path: Path) -> None:
    text = f"{environments.HEAD}\n# of x\n# python {HERE}\n# the one that works\nsolver==1+cu12\n"
    (tmp_path / "lock").write_text(text)
    assert environments.read(str(tmp_path / "lock")).pip == ["solver==1+cu12"]


def test_nothing_that_is_there_is_replaced_but_a_lock(tmp_path: Path) -> None:
    path, thesis = made(tmp_path / "env", {"name": "a", "version": "1"}), tmp_path / "thesis.txt"
    thesis.write_text("years of work")
    with pytest.raises(Refused, match="not the lock"):
        environments.save(str(path), str(thesis))
    assert thesis.read_text() == "years of work"
    lock = tmp_path / "lock"
    environments.save(str(path), str(lock))
    environments.save(str(path), str(lock))
    with pytest.raises(Refused, match="is there already"):
        environments.restore(str(lock), str(path))
    assert environments.read(str(lock)).pip == ["a==1"]


def test_a_directory_that_is_no_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"neither pyvenv\.cfg nor conda-meta"):
        environments.lock(str(tmp_path), "")
