# SPDX-License-Identifier: GPL-3.0-or-later
"""The manifest from the events of a check run. The events are hand-made."""

from __future__ import annotations

import json
import os
import random
import string
from pathlib import Path
from typing import Any

import pytest

from gpuops.commands.fetch import fetch
from gpuops.fetch import debian, manifest
from gpuops.run import events as run_events


def ok(host: str, action: str, result: dict[str, Any]) -> dict[str, Any]:
    return {"event": "runner_on_ok", "event_data": {"host": host, "resolved_action": action, "res": result}}


def from_documents(documents: list[dict[str, Any]]) -> manifest.Manifest:
    return manifest.from_events(map(run_events.typed, documents))


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
    found = from_documents(EVENTS)
    assert found.hosts == ["gpu1", "gpu2", "gpu3"]
    assert [(row.name, row.packages) for row in found.releases] == [
        ("debian12", ["nvidia-smi"]),
        ("debian13", ["docker.io=26.1.5", "nvidia-smi"]),
    ]
    assert found.releases[1].components == ["contrib", "main", "non-free"]
    assert found.downloads == [manifest.Download("http://files.example/x", "ab")]


def test_what_was_written_can_be_read(tmp_path: Path) -> None:
    found = from_documents(EVENTS)
    path = tmp_path / "manifest.json"
    path.write_text(found.dump(), encoding="utf-8")
    assert manifest.load(path) == found


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 99}', '{"schema": 1, "hosts": []}'])
def test_what_is_no_manifest_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(manifest.ManifestError, match=str(path)):
        manifest.load(path)


CALLED = "-oAptCli::Hooks::Install::=touch canary"
NAMES = [
    *(CALLED, "-y", "--x", "", "a", "a b", "A", "a/b", "../a", "a\n", "a;b", "a=1=2", "nvidia*", "a-", "a:amd64", "+a"),
    *("$(x)", "`x`", "a\x00", "\u00e4b", "a" * 300, ".ab", "~nvidia", "?installed", "a^"),
]


def with_package(**row: Any) -> list[dict[str, Any]]:
    return [system("evil", "13", "trixie"), drift("evil", packages=[{"actions": ["install"], **row}])]


@pytest.mark.parametrize("name", NAMES)
def test_a_package_has_a_name_as_debian_has_it(name: str) -> None:
    with pytest.raises(manifest.ManifestError, match=r"^evil: .* is refused: .* Look at the host") as refused:
        from_documents(with_package(name=name))
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("name", ["libstdc++6", "g++", "7zip", "linux-headers-6.1.0-9-amd64", "python3.11", "libc6"])
def test_a_name_that_debian_has_is_taken(name: str) -> None:
    found = from_documents(with_package(name=name, version="1:2.3~rc1-4+b1"))
    assert found.releases[0].packages == [f"{name}=1:2.3~rc1-4+b1"]


@pytest.mark.parametrize("version", ["-o x", "1 2", "1\n", "a1", "1/trixie", "1;x", ":1", "x:1", "1=2", "\x1b"])
def test_a_version_has_a_grammar_too(version: str) -> None:
    with pytest.raises(manifest.ManifestError, match=r"^evil: .* is refused"):
        from_documents(with_package(name="docker.io", version=version))


@pytest.mark.parametrize(
    "about",
    [
        {"key": "../../../x"},
        {"key": "debian99"},
        {"key": "debian13/.."},
        {"key": "/etc"},
        {"key": ["debian13"]},
        {"key": None},
        {"codename": "trixie main\ndeb [trusted=yes] http://evil.example/ x"},
        {"codename": "bookworm"},
        {"codename": "../x"},
        {"machine": "x86_64 -o x=y"},
        {"machine": ["amd64"]},
    ],
)
def test_a_release_is_one_that_there_is(about: dict[str, Any]) -> None:
    known = {"key": "debian13", "family": "debian", "codename": "trixie", "machine": "x86_64"}
    said = ok("evil", "baremetal.gpu.gpu_preflight_info", {"ansible_facts": {"gpu_plan": {"os": {**known, **about}}}})
    with pytest.raises(manifest.ManifestError, match=r"^evil: .* is refused"):
        from_documents([said, drift("evil", packages=[{"name": "libc6", "actions": ["install"]}])])


@pytest.mark.parametrize("component", ["[trusted=yes]", "../x", "Main", "$(x)", "-x"])
def test_a_component_is_a_word(component: str) -> None:
    events = [*with_package(name="libc6"), drift("evil", repositories=[{"content": f"Components: main {component}\n"}])]
    with pytest.raises(manifest.ManifestError, match=r"^evil: component of an archive .* is refused"):
        from_documents(events)


def test_hosts_that_differ_about_a_file_are_both_named() -> None:
    def wants(host: str, sha256: str) -> dict[str, Any]:
        return drift(host, files=[{"url": "http://files.example/x", "sha256": sha256}])

    with pytest.raises(manifest.ManifestError, match=r"^evil needs .* and good with "):
        from_documents([wants("good", "aa"), wants("evil", "bb")])


def test_two_urls_are_never_one_file_of_the_mirror() -> None:
    rows = [{"url": f"http://{place}.example/x", "sha256": "aa"} for place in ("a", "b")]
    with pytest.raises(manifest.ManifestError, match="would be one file of the mirror"):
        from_documents([system("gpu1", "13", "trixie"), drift("gpu1", files=rows)])


def test_enterprise_linux_is_in_the_manifest_and_left_to_its_own_tools() -> None:
    about = {"key": "el9", "family": "redhat", "codename": "Plow", "machine": "x86_64"}
    said = ok("el", "baremetal.gpu.gpu_preflight_info", {"ansible_facts": {"gpu_plan": {"os": about}}})
    found = from_documents([said, drift("el", packages=[{"name": "NetworkManager", "actions": ["install"]}])])
    assert [(row.name, row.is_debian, row.packages) for row in found.releases] == [("el9", False, ["NetworkManager"])]


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of apt's programs: what they are called with is written down, a line for each word."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in debian.TOOLS:
        (programs / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "$0" "$@" >>{tmp_path}/called\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "called"


def written(tmp_path: Path, **changed: Any) -> Path:
    release = {"name": "debian13", "codename": "trixie", "architecture": "amd64", "components": [], "packages": []}
    path = tmp_path / "manifest.json"
    rows = [{**release, **changed}]
    path.write_text(json.dumps({"schema": 1, "hosts": [], "releases": rows, "downloads": []}))
    return path


@pytest.mark.parametrize(
    "changed",
    [
        {"packages": [CALLED]},
        {"name": "../../../x"},
        {"codename": "x"},
        {"components": ["[a=b]"]},
        {"packages": CALLED},
    ],
)
def test_a_manifest_that_somebody_has_written_is_refused_before_apt_is_called(
    changed: dict[str, Any], apt: Path, tmp_path: Path
) -> None:
    path = written(tmp_path, **changed)
    before = sorted([*tmp_path.iterdir(), *tmp_path.parent.iterdir()])
    with pytest.raises(SystemExit, match=rf"gpuops fetch: {tmp_path}/manifest\.json: .* is refused"):
        fetch(path, tmp_path / "mirror", archive="http://archive.example/")
    assert not apt.exists()
    assert sorted([*tmp_path.iterdir(), *tmp_path.parent.iterdir()]) == before


def test_what_apt_installs_stands_behind_the_options(apt: Path, tmp_path: Path) -> None:
    fetch(written(tmp_path, packages=["libc6", "g++"]), tmp_path / "mirror", archive="http://archive.example/")
    words = apt.read_text().splitlines()
    assert words[words.index("install") :][:4] == ["install", "--", "libc6", "g++"]


@pytest.mark.parametrize(
    "uri", ["file:///srv", "http://x y/", "http://x/\ndeb http://evil/", "[trusted=yes] http://x/"]
)
def test_an_archive_is_a_web_server(uri: str, apt: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"gpuops fetch: URL .* is refused"):
        fetch(written(tmp_path, packages=["libc6"]), tmp_path / "mirror", archive=uri)
    assert not apt.exists()


def try_answers(seed: int, tmp_path: Path) -> None:
    """Hosts that say whatever they like are refused by name, or are in a manifest of known words."""
    chance = random.Random(seed)
    pieces = [*string.ascii_lowercase, *NAMES, "debian13", "trixie", "libc6", "1.2-3", "http://x/", "\x1b", "install"]

    def some(depth: int = 3) -> Any:
        kind = chance.randrange(8 if depth else 5)
        if kind < 4:
            return "".join(chance.choice(pieces) for _ in range(chance.choice([0, 1, 1, 2, 5])))
        if kind == 4:
            return chance.choice([None, True, 0, -1, 10**30, 1.5])
        if kind < 7:
            return [some(depth - 1) for _ in range(chance.randrange(4))]
        return {str(some(0)): some(depth - 1) for _ in range(chance.randrange(4))}

    def spoiled(value: Any) -> Any:
        if chance.random() < 0.04:
            return some()
        if isinstance(value, dict):
            return {key: spoiled(part) for key, part in value.items()}
        return [spoiled(part) for part in value] if isinstance(value, list) else value

    events = [
        {**event, "event_data": {**event["event_data"], "res": spoiled(event["event_data"]["res"])}} for event in EVENTS
    ]
    said = ""
    try:
        found = from_documents(events)
    except manifest.ManifestError as refused:
        said = str(refused)
    if said:
        assert any(host in said for host in ("gpu1", "gpu2", "gpu3"))
        assert said.isprintable()
        return
    for release in found.releases:
        assert release.name in ("debian12", "debian13")
        assert all(name[0].isalnum() and name.isprintable() and " " not in name for name in release.packages)
    path = tmp_path / "manifest.json"
    path.write_text(found.dump(), encoding="utf-8")
    assert manifest.load(path) == found


@pytest.mark.parametrize("seed", range(10))
def test_whatever_hosts_say(seed: int, tmp_path: Path) -> None:
    for number in range(20):
        try_answers(100 * seed + number, tmp_path)


@pytest.mark.slow
def test_whatever_hosts_say_for_longer(tmp_path: Path) -> None:
    for seed in range(10000, 20000):
        try_answers(seed, tmp_path)
