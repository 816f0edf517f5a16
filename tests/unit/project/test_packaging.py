# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection and the wheel that users install."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from tests.unit.project.tree import BIN, DEVELOPMENT, ROOT, clone, development_files, load_yaml, run, tracked_files

NEVER_SHIPPED = (".cache", ".venv", ".ci", ".github", *DEVELOPMENT)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A clone: a build must not depend on what else lies in the checkout."""
    return clone(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def collection(source: Path, tmp_path_factory) -> Path:
    """The collection, built and installed into an empty directory, to look at what is in it. As users install it, it is
    in test_installed.py."""
    out = tmp_path_factory.mktemp("collection")
    run(BIN / "ansible-galaxy", "collection", "build", "--output-path", out, source)
    (archive,) = out.glob("baremetal-gpu-*.tar.gz")
    run(BIN / "ansible-galaxy", "collection", "install", "--offline", "--force", "-p", out / "installed", archive)
    return out / "installed" / "ansible_collections" / "baremetal" / "gpu"


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=source)
    (built,) = out.glob("*.whl")
    return built


def shipped_parts() -> list[Path]:
    """What both packages must bring: the whole of the collection proper."""
    return [path for path in tracked_files() if path.parts[0] in ("meta", "playbooks", "plugins", "portal", "roles")]


def test_built_collection_installs_and_is_complete(collection):
    missing = [path for path in shipped_parts() if not (collection / path).is_file()]
    assert not missing
    assert (collection / "README.md").is_file()
    assert (collection / "LICENSE").is_file()


def test_collection_brings_nothing_that_only_develops_it(collection):
    assert not [name for name in NEVER_SHIPPED if (collection / name).exists()]
    top = {path.name for path in collection.iterdir()}
    assert top <= {
        "CHANGELOG.rst",
        "FILES.json",
        "LICENSE",
        "MANIFEST.json",
        "README.md",
        "changelogs",
        "docs",
        "images",
        "inventories",
        "meta",
        "playbooks",
        "plugins",
        "portal",
        "roles",
    }, "new at the top of the collection: ship it knowingly (name it here) or add it to build_ignore of galaxy.yml"
    assert {path.name for path in (collection / "inventories").iterdir()} == {"example"}
    assert {path.name for path in (collection / "changelogs").iterdir()} == {"changelog.yaml", "config.yaml"}
    assert development_files(path.read_bytes() for path in collection.rglob("*") if path.is_file()) == []


def test_the_tests_are_left_out_by_one_rule():
    """A folder of tests that is new is left out by itself."""
    rules = [rule for rule in load_yaml("galaxy.yml")["build_ignore"] if rule.split("/")[0] == "tests"]
    assert rules == ["tests"]
    assert not list((ROOT / "tests/sanity").glob("ignore-*.txt")), (
        "ansible-test and Galaxy read this file from the collection as it is built: let it through in galaxy.yml"
    )


def test_nothing_that_is_shipped_leads_to_the_lab(collection):
    """Pages may tell of it; what is run may not need it."""
    leads = re.compile(r"\b(tests[./]|tools/|inventories/)lab\b")
    run_on = [path for path in collection.rglob("*") if path.is_file() and path.suffix != ".md"]
    shipped = [*(path for path in run_on if path.name != "FILES.json"), *(ROOT / "gpuops").rglob("*.py")]
    found = {str(path): match.group() for path in shipped if (match := leads.search(path.read_text(errors="replace")))}
    assert not found


def test_installed_collection_answers_to_its_name(collection):
    path = str(collection.parents[2])
    listed = run(
        BIN / "ansible-galaxy",
        "collection",
        "list",
        "--format",
        "json",
        "-p",
        path,
        "baremetal.gpu",
        ANSIBLE_COLLECTIONS_PATH=path,
    )
    assert json.loads(listed)[str(Path(path) / "ansible_collections")]["baremetal.gpu"]["version"] == version()


def version() -> str:
    return re.search(r'^__version__ = "(.+)"$', (ROOT / "gpuops/__init__.py").read_text(), re.MULTILINE).group(1)


def test_one_version_number_everywhere():
    assert load_yaml("galaxy.yml")["version"] == version()
    assert version() in load_yaml("changelogs/changelog.yaml")["releases"]
    assert re.search(rf"^v{re.escape(version())}$", (ROOT / "CHANGELOG.rst").read_text(), re.MULTILINE)


def test_no_file_that_is_shipped_is_a_link(collection):
    """A link is installed as a link, if at all, and its goal may not be shipped."""
    assert not [path for path in collection.rglob("*") if path.is_symlink()]


def test_wheel_holds_the_command_and_the_collection(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        text = archive.read(f"baremetal_gpu-{version()}.dist-info/entry_points.txt").decode()
    assert "gpuops = gpuops.cli:app" in text
    missing = [path for path in shipped_parts() if f"ansible_collections/baremetal/gpu/{path}" not in names]
    assert not missing
    assert {str(path) for path in tracked_files() if path.parts[0] == "gpuops"} <= names
    assert "__pycache__" not in "".join(names)


def test_wheel_holds_nothing_else(wheel):
    """Every file is one of the command, of the collection or of the package's own description."""
    with zipfile.ZipFile(wheel) as archive:
        names = [Path(name) for name in archive.namelist()]
        assert development_files(archive.read(name) for name in archive.namelist()) == []
    prefix, tracked = Path("ansible_collections/baremetal/gpu"), set(tracked_files())
    collection = {path.relative_to(prefix) for path in names if path.is_relative_to(prefix)}
    assert collection <= tracked
    assert not [path for path in collection for folder in DEVELOPMENT if path.is_relative_to(folder)]
    others = {path for path in names if not path.is_relative_to(prefix) and not path.parts[0].endswith(".dist-info")}
    assert others == {path for path in tracked if path.parts[0] == "gpuops"}


def test_installed_wheel_works(wheel, tmp_path):
    """Beside the dependencies of this virtual environment, but without the checkout on its path."""
    target = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", target, wheel)
    found = subprocess.run(
        [sys.executable, "-c", "import gpuops.__main__"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Usage: gpuops" in found.stdout + found.stderr
    lab = subprocess.run(
        [sys.executable, "-m", "gpuops", "lab", "up"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert lab.returncode == 2
    assert "No such command 'lab'" in lab.stderr
    listed = run(
        BIN / "ansible-doc",
        "--json",
        "-t",
        "module",
        "-l",
        "baremetal.gpu",
        cwd=tmp_path,
        ANSIBLE_COLLECTIONS_PATH=str(target),
    )
    modules = {path.stem for path in tracked_files() if path.is_relative_to("plugins/modules")}
    assert {name.removeprefix("baremetal.gpu.") for name in json.loads(listed)} == modules


def test_editable_install_leaves_the_checkout_alone(source, tmp_path):
    """hatchling copies forced files into editable wheels too, which would write the checkout over itself."""
    run(
        sys.executable,
        "-c",
        f"from hatchling.build import build_editable; build_editable({str(tmp_path)!r})",
        cwd=source,
    )
    (built,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        assert not [name for name in archive.namelist() if name.startswith("ansible_collections")]


def test_constraints_pin_everything_that_is_installed():
    pinned = {
        Requirement(line).name.lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    assert all("==" in line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#")
    needed, queue = set(), [("baremetal-gpu", frozenset({"dev"}))]
    while queue:
        name, extras = queue.pop()
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker and not any(requirement.marker.evaluate({"extra": e}) for e in extras | {""}):
                continue
            key = requirement.name.lower().replace("_", "-").replace(".", "-")
            if key not in needed:
                needed.add(key)
                queue.append((requirement.name, frozenset(requirement.extras)))
    unpinned = needed - {name.replace(".", "-") for name in pinned}
    assert not unpinned, f"add to constraints.txt: {sorted(unpinned)}"


def test_every_dependency_says_why():
    section = re.search(
        r"^dependencies = \[\n(.*?)^\]\n.*?^dev = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S
    )
    lines = [line for part in section.groups() for line in part.splitlines()]
    assert len(lines) > 5
    assert not [line for line in lines if not re.search(r"# \w.+$", line)]


def test_execution_environment_is_valid(collection):
    definition = load_yaml("meta/execution-environment.yml")
    assert definition["version"] == 3
    found = yaml.safe_load(run(BIN / "ansible-builder", "introspect", collection.parents[2]))
    python = {Requirement(line.split(" #")[0]).name for line in found["python"]}
    assert python == {"nvidia-ml-py"}
    assert any(line.startswith("openssh-client ") for line in found["system"])


def test_an_execution_environment_can_be_described_from_the_collection(collection, tmp_path):
    """What docs/quickstart.md shows, as far as it goes without a container engine."""
    (tmp_path / "execution-environment.yml").write_text(
        "version: 3\n"
        "images: {base_image: {name: 'localhost/base:latest'}}\n"
        "dependencies: {galaxy: {collections: [{name: baremetal.gpu}]}}\n"
    )
    run(
        BIN / "ansible-builder",
        "create",
        "--file",
        tmp_path / "execution-environment.yml",
        "--context",
        tmp_path / "context",
        "--output-filename",
        "Containerfile",
        cwd=tmp_path,
    )
    assert "ansible-galaxy collection install" in (tmp_path / "context" / "Containerfile").read_text()
