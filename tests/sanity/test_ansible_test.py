# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-test sanity, all of it that runs without containers, in virtual environments that it makes itself.

Its requirements come from the package index that pip is set up for on this machine. The one thing that it would fetch
from elsewhere is pip's bootstrap script; a stand-in made from pip's own wheel takes its place.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.unit.project.tree import BIN, ROOT, try_run

HOME = ROOT / ".cache" / "ansible-test"

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


@pytest.fixture(scope="module")
def home() -> Path:
    """A home directory that keeps ansible-test's virtual environments from one run to the next."""
    version = bootstrap_version()
    wheels = HOME / "wheels"
    (wheel,) = list(wheels.glob(f"pip-{version}-*.whl")) or [None]
    if wheel is None:
        wheels.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "-d", wheels, f"pip=={version}"]
        done = try_run(command)
        assert done.returncode == 0, done.stderr
        (wheel,) = wheels.glob(f"pip-{version}-*.whl")
    script = HOME / ".ansible" / "test" / "cache" / f"get_pip_{version.replace('.', '_')}.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(GET_PIP.format(wheel=str(wheel), folder=str(wheels)))
    config = HOME / ".config" / "pip" / "pip.conf"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(pip_settings())
    return HOME


def test_sanity(collection_tree, home):
    done = try_run(
        [BIN / "ansible-test", "sanity", "--color", "no", "--python", "default"],
        cwd=collection_tree,
        HOME=str(home),
        PATH=SYSTEM_PATH,
    )
    output = done.stdout + done.stderr
    ran = set(re.findall(r'Running sanity test "([\w-]+)"', output))
    findings = [line for line in output.splitlines() if line.startswith(("ERROR:", "FATAL:"))]
    assert done.returncode == 0, "\n".join(findings or output.splitlines()[-60:])
    assert {"ansible-doc", "compile", "import", "pep8", "pylint", "shebang", "validate-modules", "yamllint"} <= ran


def test_every_ignore_has_a_reason():
    for path in (ROOT / "tests" / "sanity").glob("ignore-*.txt"):
        for line in path.read_text().splitlines():
            assert re.search(r" # \w.{10,}", line), f"{path.name}: say why: {line}"
