# SPDX-License-Identifier: GPL-3.0-or-later
"""Wheels of the portal for a site without a way out. pip is a stand-in that is told what it brings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import portal
from gpuops.fetch import manifest, wheels
from gpuops.fetch.manifest import Manifest, ManifestError
from gpuops.run import events as run_events

ANY = {"file": "any-1.0-py3-none-any.whl", "name": "any", "version": "1.0"}
OLD = {"file": "c-2.0-cp311-cp311-manylinux2014_x86_64.whl", "name": "c", "version": "2.0"}
NEW = {"file": "c-2.0-cp313-cp313-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", "name": "c", "version": "2.0"}


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    rows = []
    for row in (ANY, OLD, NEW):
        (tmp_path / row["file"]).write_text(row["file"])
        found = {**row, "sha256": wheels.digest(tmp_path / row["file"]), "python": ["3.13"], "for": ["hub"]}
        rows.append(found)
    monkeypatch.setattr(portal, "lock", lambda: tuple(rows))
    return rows


class Pip:
    """Brings what the list of each call has and the platform allows."""

    def __init__(self, lock: list[dict[str, Any]], content: str = "") -> None:
        self.lock, self.content = lock, content
        self.calls: list[list[str]] = []

    def __call__(self, words: list[str]) -> tuple[int, str]:
        self.calls.append(words)
        given = dict(word.split("=", 1) for word in words if "=" in word)
        wanted = Path(given["--requirement"]).read_text()
        for row in self.lock:
            if row["sha256"] in wanted:
                Path(given["--dest"], row["file"]).write_text(self.content or row["file"])
        return 0, ""


def test_each_kind_of_wheel_is_asked_for_with_its_own_python(lock: list[dict[str, Any]], tmp_path: Path) -> None:
    pip = Pip(lock)
    assert wheels.fetch([row["file"] for row in lock], tmp_path / "wheels", pip) == 3
    assert {path.name for path in (tmp_path / "wheels").iterdir()} == {row["file"] for row in lock}
    versions = [word for call in pip.calls for word in call if word.startswith("--python-version")]
    assert versions == ["--python-version=311", "--python-version=313"]
    assert all("--require-hashes" in call for call in pip.calls)


def test_wheels_come_by_parts_and_after_each_it_is_told_how_many_there_are(
    lock: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [{**lock[0], "file": f"p{number}-1.0-py3-none-any.whl", "name": f"p{number}"} for number in range(4)]
    monkeypatch.setattr(portal, "lock", lambda: tuple(more))
    monkeypatch.setattr(wheels, "AT_ONCE", 2)
    told: list[tuple[int, int]] = []
    pip = Pip(more, ANY["file"])
    wheels.fetch([row["file"] for row in more], tmp_path / "wheels", pip, lambda done, of: told.append((done, of)))
    assert (told, len(pip.calls)) == ([(0, 4), (2, 4)], 2)


def test_what_is_there_is_not_fetched_again(lock: list[dict[str, Any]], tmp_path: Path) -> None:
    wheels.fetch([ANY["file"]], tmp_path / "wheels", Pip(lock))
    pip = Pip(lock)
    assert wheels.fetch([ANY["file"]], tmp_path / "wheels", pip) == 1
    assert pip.calls == []


def test_another_content_than_the_lists_is_refused(lock: list[dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"did not bring any-1\.0"):
        wheels.fetch([ANY["file"]], tmp_path / "wheels", Pip(lock, "something else"))


def test_a_manifest_has_the_wheels_that_hosts_lack_and_no_others(lock: list[dict[str, Any]]) -> None:
    rows = [
        {"path": f"/opt/{name}", "source": f"/site/wheels/{name}", "sha256": "ab"}
        for name in (ANY["file"], "evil-1.0-py3-none-any.whl", "certificate.pem")
    ]
    about = {"key": "debian13", "family": "debian", "codename": "trixie", "machine": "x86_64"}
    events = [
        {
            "host": "p",
            "resolved_action": "baremetal.gpu.gpu_preflight_info",
            "res": {"ansible_facts": {"gpu_plan": {"os": about}}},
        },
        {"host": "p", "resolved_action": manifest.DRIFT_MODULE, "res": {"drift": {"files": rows}}},
    ]
    found = manifest.from_events(run_events.typed({"event": "runner_on_ok", "event_data": one}) for one in events)
    assert found.wheels == [ANY["file"]]


def test_a_manifest_that_names_another_wheel_is_refused(lock: list[dict[str, Any]]) -> None:
    with pytest.raises(ManifestError, match="not on the list"):
        Manifest(wheels=["evil-1.0-py3-none-any.whl"]).check()
