# SPDX-License-Identifier: GPL-3.0-or-later
"""Images that are really built, with this machine's mirrors of Debian and of PyPI.

They stay in the storage of buildah and in .cache, so that the next run of the tests finds them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuops.image import build, programs, recipe
from tests.unit.project.tree import ROOT

CACHE = ROOT / ".cache" / "images"
MISSING = [name for name in (*programs.BUILDERS, *programs.MOVERS) if shutil.which(name) is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root builds images"),
    pytest.mark.skipif(bool(MISSING), reason=f"without {', '.join(MISSING)} no image is built; apt-get installs them"),
]


def call(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpuops", "image", "build", *words, "--cache", str(CACHE)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def built(name: str) -> recipe.Definition:
    """An image by the locks of the collection, or, where the mirrors have gone on, by new ones in a copy."""
    if call(name).returncode == 0:
        return recipe.published(recipe.DIRECTORY, name)
    copy = CACHE / "definitions"
    if not copy.exists():
        shutil.copytree(recipe.DIRECTORY, copy)
    for path in recipe.DIRECTORY.rglob("*"):
        if path.is_file() and path.suffix != ".lock":
            shutil.copy(path, copy / path.relative_to(recipe.DIRECTORY))
    done = call(name, "--images", str(copy))
    if done.returncode:
        done = call(name, "--images", str(copy), "--relock")
    assert done.returncode == 0, done.stderr
    return recipe.published(copy, name)


@pytest.fixture(scope="module")
def base() -> recipe.Definition:
    return built("base")


@pytest.fixture(scope="module")
def notebook(base: recipe.Definition) -> recipe.Definition:
    return built("notebook")


Inside = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def inside() -> Iterator[Callable[[recipe.Definition], Inside]]:
    """Runs programs in a container, as an engine starts it: as root, by the image's own start."""
    containers: list[str] = []

    def begin(image: recipe.Definition) -> Inside:
        words = ["buildah", "from", "--pull-never", image.local]
        containers.append(subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip())

        def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
            options = [f"--env={name}={value}" for name, value in environment.items()]
            start = ["buildah", "run", build.ISOLATION, "--user=root", *options, containers[-1], "--"]
            return subprocess.run(
                [*start, "/usr/local/bin/session", *command], check=False, capture_output=True, text=True
            )

        return run

    yield begin
    for name in containers:
        subprocess.run(["buildah", "rm", name], check=True, capture_output=True)


def test_a_container_runs_as_its_user_who_cannot_become_root(base, inside) -> None:
    run = inside(base)
    assert run("id", "-un").stdout.strip() == "user"
    assert run("sudo", "-n", "id").returncode != 0
    assert run("sh", "-c", "touch /usr/bin/x").returncode != 0


def test_a_container_has_the_account_that_it_is_given_and_root_by_sudo_only_where_that_is_asked(base, inside) -> None:
    account = {"SESSION_USER": "alice", "SESSION_UID": "2001", "SESSION_GID": "2000"}
    told = inside(base)("sh", "-c", "id; pwd; env", **account).stdout
    assert "uid=2001(alice) gid=2000(alice)" in told
    assert "/home/alice" in told
    assert inside(base)("sudo", "-n", "id", "-u", **account).returncode != 0
    assert inside(base)("sudo", "-n", "id", "-u", **account, SESSION_SUDO="1").stdout.strip() == "0"


@pytest.mark.parametrize(
    "account", [{"SESSION_USER": "root"}, {"SESSION_USER": "x;y"}, {"SESSION_USER": "bob", "SESSION_UID": "0"}]
)
def test_no_session_is_roots(base, inside, account) -> None:
    done = inside(base)("id", **account)
    assert done.returncode != 0
    assert "session: " in done.stderr
    assert done.stdout == ""


def test_nobody_has_a_password_and_no_host_key_is_in_the_image(base, inside) -> None:
    name = subprocess.run(
        ["buildah", "from", "--pull-never", base.local], check=True, capture_output=True, text=True
    ).stdout.strip()
    try:
        command = ["buildah", "mount", name]
        root = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
        hashes = [line.split(":")[1] for line in (root / "etc/shadow").read_text().splitlines()]
        assert hashes
        assert not [one for one in hashes if one not in ("*", "!", "!*")]
        assert list((root / "etc/ssh").glob("ssh_host_*")) == []
        # Neither mirrors nor settings of the machine that built it.
        assert list((root / "run/gpuops").glob("*/*")) == []
        assert not (root / "etc/apt/sources.list").exists()
        assert not (root / "etc/apt/apt.conf.d/99mmdebstrap").exists()
    finally:
        subprocess.run(["buildah", "rm", name], check=True, capture_output=True)


def test_an_ssh_server_of_the_user_takes_keys_only(base, inside) -> None:
    # A container of buildah sees the processes of the machine, so the server is known by its port, and ended.
    look = 'server=$(pgrep -o -f "[-]p 22022 "); ps -o user=,args= -p "$server"; kill "$server"'
    told = inside(base)("sh", "-c", look, SESSION_SSH_PORT="22022").stdout
    assert "PasswordAuthentication=no" in told
    assert "root" not in told.split("/usr/sbin/sshd")[0]


def test_what_is_in_an_image_is_listed_in_it(notebook) -> None:
    document = json.loads(build.sbom(notebook.local, "notebook"))
    assert document["bomFormat"] == "CycloneDX"
    found = {row["purl"].split("@")[0] for row in document["components"]}
    assert {"pkg:deb/debian/openssh-server", "pkg:deb/debian/git", "pkg:pypi/jupyterlab"} <= found


def test_a_notebook_has_its_kernels_and_starts(notebook, inside) -> None:
    told = inside(notebook)("sh", "-c", "jupyter lab --version; jupyter kernelspec list; python3 -c 'import pandas'")
    assert told.returncode == 0, told.stderr
    assert "python3" in told.stdout
    assert "bash" in told.stdout


def test_an_image_that_is_there_is_not_built_again(base) -> None:
    done = call("base", "--images", str(base.directory))
    assert "base: is there" in done.stdout
    assert "building" not in done.stdout
