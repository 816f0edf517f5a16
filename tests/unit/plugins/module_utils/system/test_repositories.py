# SPDX-License-Identifier: GPL-3.0-or-later
"""The sources of apt. Texts are made by hand in the form of the real ones."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.module_utils.system import repositories


def test_one_line_sources():
    text = (
        "# deb http://old.example/ trixie main\n"
        "deb [arch=amd64,arm64 signed-by=/k.gpg] http://m.example/debian trixie main contrib # ours\n"
        "deb-src http://m.example/debian trixie main\n"
        "deb http://flat.example/repo/ ./\n"
    )
    first, source, flat = repositories.parse_one_line(text)
    assert first == {
        "types": "deb",
        "uris": "http://m.example/debian",
        "suites": "trixie",
        "components": "main contrib",
        "architectures": "amd64 arm64",
        "signed-by": "/k.gpg",
    }
    assert source["types"] == "deb-src"
    assert (flat["suites"], flat["components"]) == ("./", "")


def test_deb822_sources():
    text = (
        "# a comment\nTypes: deb\nURIs: http://a.example/\n http://b.example/\nSuites: x\n# inside\n"
        "Signed-By:\n -----BEGIN\n .\n\n\nTypes: deb\nEnabled: no\n"
    )
    first, second = repositories.parse_deb822(text)
    assert first["uris"].split() == ["http://a.example/", "http://b.example/"]
    assert first["signed-by"] == "\n -----BEGIN\n ."
    assert second == {"types": "deb", "enabled": "no"}


def test_disabled_sources_and_ones_own_do_not_count(tmp_path):
    directory = tmp_path / "etc/apt/sources.list.d"
    directory.mkdir(parents=True)
    (directory / "a.sources").write_text("Types: deb\nURIs: u\nSuites: s\nEnabled: no\n")
    (directory / "own.sources").write_text("Types: deb\nURIs: own\nSuites: s\n")
    (directory / "b.list").write_text("deb b s main\n")
    assert [row["uris"] for _path, row in repositories.apt_sources(str(tmp_path), without="own.sources")] == ["b"]


def test_the_same_keys_are_the_same_in_either_form_of_a_source(tmp_path):
    """Otherwise preflight would tell of a conflict that apt does not see."""
    directory = tmp_path / "etc/apt/sources.list.d"
    directory.mkdir(parents=True)
    (directory / "a.list").write_text("deb [signed-by=/a.gpg,/b.gpg] http://m.example s main\n")
    (directory / "b.sources").write_text(
        "Types: deb\nURIs: http://m.example\nSuites: s\nComponents: main\nSigned-By: /a.gpg,/b.gpg\n"
    )
    first, second = repositories.repositories(str(tmp_path))
    assert first == {**second, "file": first["file"]}
    assert (first["file"], second["file"]) == ("/etc/apt/sources.list.d/a.list", "/etc/apt/sources.list.d/b.sources")
