# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks that Galaxy runs when a collection is uploaded."""

from __future__ import annotations

import json
import sys

import pytest

from tests.unit.project.tree import role_names, tracked, try_run


# It runs the linter once more, over the unpacked archive.
@pytest.mark.slow
def test_galaxy_would_import_the_collection(archive, tmp_path):
    done = try_run(
        [sys.executable, "-m", "galaxy_importer.main", archive],
        cwd=tmp_path,
        # What the importer unpacks goes where the test's files go.
        TMPDIR=str(tmp_path),
        GALAXY_IMPORTER_RUN_FLAKE8="false",  # ruff has looked already, with this project's settings
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    complaints = [line for line in output.splitlines() if line.startswith(("ERROR", "WARNING"))]
    assert not complaints, output
    result = json.loads((tmp_path / "importer_result.json").read_text())
    found = {(content["content_type"], content["name"]) for content in result["contents"]}
    assert {("role", name) for name in role_names()} <= found
    assert {("module", path.stem) for path in tracked("plugins/modules", ".py")} <= found
    assert result["metadata"]["license"] == ["GPL-3.0-or-later"]
