# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-test sanity, all of it that runs without containers, in virtual environments that it makes itself.

Its requirements come from the package index that pip is set up for on this machine. The one thing that it would fetch
from elsewhere is pip's bootstrap script; a stand-in made from pip's own wheel takes its place.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.machines.state import CACHE_ROOT
from tests.lab.machines.system import locked
from tests.unit.project.tree import BIN, ROOT, try_run

# Any other Python that the search path offers may be a version manager's stub that does not start.
SYSTEM_PATH = os.pathsep.join([str(BIN), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"])

GET_PIP = """\
# Stands in for get-pip.py: runs the pip in the wheel to install pip.
import sys

sys.path.insert(0, {wheel!r})
from pip._internal.cli.main import main

if __name__ == "__main__":
    packages = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
    sys.exit(main(["install", "--find-links", {folder!r}, *packages]))
"""


def bootstrap_version() -> str:
    """The version of pip that this ansible-test wants."""
    import ansible_test._internal.python_requirements as requirements

    return re.search(r"\bpip='([\d.]+)'", Path(requirements.__file__).read_text()).group(1)


def pip_settings() -> str:
    """The settings that pip has here, wherever they come from, as one file: ansible-test hides the environment's."""
    listed = try_run([sys.executable, "-m", "pip", "config", "list"]).stdout
    settings = {}
    for line in listed.splitlines():
        name, value = line.split("=", 1)
        section, key = name.rsplit(".", 1)
        if section in ("global", "install", ":env:") and key != "version":
            settings[key] = value.strip().strip("'\"").replace("\\n", "\n    ")
    return "[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items())


def home_directory() -> Path:
    """Where this interpreter's virtual environments are kept: beside the lab's images, for every checkout there is or
    will be. They do not refer to the checkout that makes them."""
    interpreter = f"{Path(sys.executable).resolve()} {sys.version}"
    cache = CACHE_ROOT if os.geteuid() == 0 else ROOT / ".cache"
    return cache / "ansible-test" / hashlib.sha256(interpreter.encode()).hexdigest()[:8]


def provide(home: Path) -> None:
    """What ansible-test would fetch or cannot see otherwise."""
    version = bootstrap_version()
    wheels = home / "wheels"
    wheels.mkdir(exist_ok=True)
    (wheel,) = list(wheels.glob(f"pip-{version}-*.whl")) or [None]
    if wheel is None:
        command = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "-d", wheels, f"pip=={version}"]
        done = try_run(command)
        assert done.returncode == 0, done.stderr
        (wheel,) = wheels.glob(f"pip-{version}-*.whl")
    script = home / ".ansible" / "test" / "cache" / f"get_pip_{version.replace('.', '_')}.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(GET_PIP.format(wheel=str(wheel), folder=str(wheels)))
    config = home / ".config" / "pip" / "pip.conf"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(pip_settings())


def ansible_test_sanity(tree: Path, home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return try_run(
        [BIN / "ansible-test", "sanity", "--color", "no", "--python", "default", *options],
        cwd=tree,
        HOME=str(home),
        PATH=SYSTEM_PATH,
    )


@pytest.fixture(scope="module")
def home(collection_tree) -> Path:
    """A home directory with all that ansible-test needs, made where it is not there yet."""
    home = home_directory()
    with locked(home / "lock", "the tests of another checkout, which make ansible-test's environments"):
        provide(home)
        done = ansible_test_sanity(collection_tree, home, "--prime-venvs")
    assert done.returncode == 0, done.stdout + done.stderr
    return home


def ran_without_findings(done: subprocess.CompletedProcess[str]) -> set[str]:
    """The names of the tests that ran."""
    output = done.stdout + done.stderr
    findings = [line for line in output.splitlines() if line.startswith(("ERROR:", "FATAL:"))]
    assert done.returncode == 0, "\n".join(findings or output.splitlines()[-60:])
    return set(re.findall(r'Running sanity test "([\w-]+)"', output))


def test_sanity(collection_tree, home):
    ran = ran_without_findings(ansible_test_sanity(collection_tree, home, "--skip-test", "pylint"))
    assert {"ansible-doc", "compile", "import", "pep8", "shebang", "validate-modules", "yamllint"} <= ran


# It takes as long as all others together, and ruff finds most of it on every run.
@pytest.mark.slow
def test_pylint(collection_tree, home):
    assert ran_without_findings(ansible_test_sanity(collection_tree, home, "--test", "pylint")) == {"pylint"}


def test_every_ignore_has_a_reason():
    for path in (ROOT / "tests" / "sanity").glob("ignore-*.txt"):
        for line in path.read_text().splitlines():
            assert re.search(r" # \w.{10,}", line), f"{path.name}: say why: {line}"
