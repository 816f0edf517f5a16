# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role lays down of the hub's package can be imported as it is there, and is all that is in the tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils import bundle, portal_package
from tests.unit.project.tree import tracked_files


def test_every_file_of_the_package_is_laid_down() -> None:
    tracked = {path.relative_to("portal").as_posix() for path in tracked_files() if path.parts[0] == "portal"}
    assert tracked - portal_package.files().keys() == {"pyproject.toml"}


def test_what_needs_no_jupyterhub_is_imported_from_there_and_nothing_else(tmp_path: Path) -> None:
    for name in portal_package.directories():
        (tmp_path / name).mkdir()
    for name, text in portal_package.files().items():
        (tmp_path / name).write_text(text)
    code = "import sys; sys.path.insert(0, sys.argv[1]); from baremetal_gpu_portal import home_page, orders, shared"
    subprocess.run([sys.executable, "-I", "-S", "-c", code, str(tmp_path)], check=True)


def test_an_import_that_is_not_followed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / portal_package.NAME
    package.mkdir()
    (package / "hub.py").write_text(f"from {bundle.PACKAGE}.portal import nowhere\n")
    monkeypatch.setattr(portal_package, "SOURCE", tmp_path)
    with pytest.raises(LookupError, match=r"portal\.nowhere"):
        portal_package.files.__wrapped__()
