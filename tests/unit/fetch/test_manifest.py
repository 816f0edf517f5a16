# SPDX-License-Identifier: GPL-3.0-or-later
"""The manifest from the events of a check run. The events are hand-made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuops.fetch import manifest


def ok(host: str, action: str, result: dict[str, Any]) -> dict[str, Any]:
    return {"event": "runner_on_ok", "event_data": {"host": host, "resolved_action": action, "res": result}}


def system(host: str, version: str, codename: str) -> dict[str, Any]:
    about = {"key": f"debian{version}", "family": "debian", "codename": codename, "machine": "x86_64"}
    return ok(host, "baremetal.gpu.gpu_preflight_info", {"ansible_facts": {"gpu_plan": {"os": about}}})


def drift(host: str, **sections: Any) -> dict[str, Any]:
    return ok(host, manifest.DRIFT_MODULE, {"drift": sections})


EVENTS = [
    system("gpu1", "13", "trixie"),
    system("gpu2", "12", "bookworm"),
    system("gpu3", "13", "trixie"),
    drift(
        "gpu1",
        repositories=[{"name": "nonfree", "content": "Types: deb\nComponents: contrib non-free\n"}],
        packages=[
            {"name": "nvidia-smi", "actions": ["install", "hold"]},
            {"name": "old-driver", "actions": ["remove"]},
        ],
        files=[{"path": "/usr/local/x", "url": "http://files.example/x", "sha256": "ab"}],
    ),
    drift("gpu2", packages=[{"name": "nvidia-smi", "version": "470.*", "actions": ["install"]}]),
    drift("gpu3", packages=[{"name": "docker.io", "version": "26.1.5", "actions": ["install"]}]),
]


def test_packages_are_gathered_by_release() -> None:
    found = manifest.from_events(EVENTS)
    assert found.hosts == ["gpu1", "gpu2", "gpu3"]
    assert [(row.name, row.packages) for row in found.releases] == [
        ("debian12", ["nvidia-smi"]),
        ("debian13", ["docker.io=26.1.5", "nvidia-smi"]),
    ]
    assert found.releases[1].components == ["contrib", "main", "non-free"]
    assert found.downloads == [manifest.Download("http://files.example/x", "ab")]


def test_what_was_written_can_be_read(tmp_path: Path) -> None:
    found = manifest.from_events(EVENTS)
    path = tmp_path / "manifest.json"
    path.write_text(found.dump(), encoding="utf-8")
    assert manifest.load(path) == found


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 99}', '{"schema": 1, "hosts": []}'])
def test_what_is_no_manifest_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(manifest.ManifestError, match=str(path)):
        manifest.load(path)
