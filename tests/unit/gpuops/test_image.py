# SPDX-License-Identifier: GPL-3.0-or-later
"""Images: their definitions and locks, where they come from, and where they go. skopeo is made up."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.plugin_utils import image_catalogue
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import portal
from gpuops.cli import app
from gpuops.image import locks, recipe, registry, saved, site_catalogue, sources
from gpuops.site import Site
from tests.unit.project.tree import ROOT

IMAGES = ROOT / "images"
DIGEST = f"sha256:{'d' * 64}"
INVENTORY = """---
all:
  children:
    registries:
      hosts:
        reg1: {registry_port: 5443}
"""
# Notes its arguments and what they lead to, as long as they are there.
SKOPEO = f"""#!/usr/bin/python3
import json, os, pathlib, stat, sys
place = pathlib.Path(__file__).parent
row = {{"argv": sys.argv[1:]}}
for word in sys.argv:
    name, _, value = word.partition("=")
    if name.endswith("authfile"):
        row["auth"] = json.loads(pathlib.Path(value).read_text())
        row["mode"] = stat.S_IMODE(os.stat(value).st_mode)
    if name.endswith("cert-dir"):
        row["authority"] = (pathlib.Path(value) / "ca.crt").read_text()
    if name == "--digestfile":
        pathlib.Path(value).write_text("{DIGEST}")
with open(place / "calls", "a") as stream:
    stream.write(json.dumps(row) + "\\n")
if sys.argv[1] == "inspect":
    print("{DIGEST}")
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    directory = tmp_path / "inventory"
    for name, text in {
        "hosts.yml": INVENTORY,
        ".secrets/registry/operator": "s3cret-of-operator\n",
        ".secrets/registry-tls/ca.pem": "the authority",
    }.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Site(directory)


@pytest.fixture
def skopeo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "skopeo").write_text(SKOPEO)
    (directory / "skopeo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    return directory / "calls"


def calls(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# The definitions that come with the collection.

NAMES = [row["name"] for row in yaml.safe_load((IMAGES / "catalogue.yml").read_text())["images"]]


@pytest.mark.parametrize("variant", image_catalogue.VARIANTS)
@pytest.mark.parametrize("name", NAMES)
def test_every_image_has_a_recipe_and_locks_that_can_be_read(name: str, variant: str) -> None:
    image = recipe.definition(IMAGES, name, variant, recipe.User())
    assert (image.own / "Containerfile").exists()
    if image.python_lock:
        assert locks.read_python(image.python_lock)
    if image.debian_wanted and image.debian_lock:
        wanted = locks.wanted(image.debian_wanted)
        assert set(wanted) <= set(locks.read_debian(image.debian_lock)) | {"ca-certificates"}


@pytest.mark.parametrize("variant", image_catalogue.VARIANTS)
@pytest.mark.parametrize("name", NAMES)
def test_the_wheels_of_an_image_are_in_no_lock_of_what_it_is_from(name: str, variant: str) -> None:
    image = recipe.definition(IMAGES, name, variant, recipe.User())
    own = locks.read_python(image.python_lock) if image.python_lock else {}
    assert not set(own) & set(locks.inherited_python(image))


def test_no_mirror_and_no_index_is_written_into_a_definition() -> None:
    texts = [path.read_text() for path in IMAGES.rglob("*") if path.is_file()]
    assert not [text for text in texts if "http://" in text or "https://" in text]


def test_the_key_of_an_image_is_of_all_that_goes_into_it(tmp_path: Path) -> None:
    copy = tmp_path / "images"
    shutil.copytree(IMAGES, copy)
    user = recipe.User()
    before = {name: recipe.definition(copy, name, "cuda", user).key for name in NAMES}
    assert before == {name: recipe.definition(IMAGES, name, "cuda", user).key for name in NAMES}
    (copy / "notebook" / "python.lock").write_text("")
    after = {name: recipe.definition(copy, name, "cuda", user).key for name in NAMES}
    assert [name for name in NAMES if after[name] != before[name]] == ["notebook", "pytorch", "deeplearning"]
    assert recipe.definition(IMAGES, "base", "cpu", recipe.User("alice", 2001, 2001)).key != before["base"]


def test_only_the_variant_with_cuda_needs_something_of_a_node() -> None:
    assert recipe.published(IMAGES, "pytorch-cuda").needs["cuda"]
    assert recipe.published(IMAGES, "pytorch-cpu").needs == {}
    assert recipe.published(IMAGES, "base").needs == {}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"schema": 2}, "it has not the schema 1"),
        ({"release": {"suite": "trixie"}}, "its release has no suite of Debian, or no epoch"),
        ({"images": [{"name": "a", "from": "b"}]}, "it is from no image before it"),
        ({"images": [{"name": "a", "variants": ["rocm"]}]}, "its variants are not right"),
        ({"images": [{"name": "A"}]}, "its name is not right"),
    ],
)
def test_a_catalogue_that_is_not_right_is_refused_with_its_path(tmp_path, change, told) -> None:
    document = yaml.safe_load((IMAGES / "catalogue.yml").read_text())
    (tmp_path / "catalogue.yml").write_text(yaml.safe_dump({**document, **change}))
    with pytest.raises(Refused) as refused:
        recipe.load(tmp_path)
    assert told in str(refused.value)
    assert str(tmp_path / "catalogue.yml") in str(refused.value)


@pytest.mark.parametrize("user", [("root", 1000, 1000), ("a b", 1000, 1000), ("alice", 0, 1000), ("alice", 1000, 0)])
def test_no_image_has_root_or_nobody_as_its_user(user: tuple[str, int, int]) -> None:
    with pytest.raises(Refused):
        recipe.User(*user)


def test_an_image_with_variants_is_published_as_one_of_them() -> None:
    with pytest.raises(Refused, match="take one of pytorch-cpu, pytorch-cuda"):
        recipe.published(IMAGES, "pytorch")


# Locks.


def test_what_differs_from_a_lock_is_named() -> None:
    found = locks.differences({"bash": "5.2-1", "dash": "0.5"}, {"bash": "5.2-2", "zsh": "5"})
    assert found == [
        "bash is 5.2-2, locked is 5.2-1",
        "dash is not there, locked is 0.5",
        "zsh is 5, locked is none",
    ]


def row(name: str, digest: str) -> dict[str, Any]:
    info = {"archive_info": {"hashes": {"sha256": digest} if digest else {}}}
    return {"metadata": {"name": name, "version": "1.0"}, "download_info": info}


def test_a_lock_has_the_digest_of_each_wheel_and_nothing_of_the_parents(tmp_path: Path) -> None:
    report = {"install": [row("Zope.Interface", "a" * 64), row("numpy", "b" * 64)]}
    text = locks.python_lock(report, {"numpy": "1.0"})
    assert text.splitlines()[1:] == [f"zope-interface==1.0 --hash=sha256:{'a' * 64}"]
    (tmp_path / "lock").write_text(text)
    assert locks.read_python(tmp_path / "lock") == {"zope-interface": "1.0"}


def test_a_wheel_without_a_digest_is_refused() -> None:
    with pytest.raises(Refused, match="without a SHA-256"):
        locks.python_lock({"install": [row("numpy", "")]}, {})


@pytest.mark.parametrize("line", ["--yes", "bash=1", "a;b", "Bash"])
def test_what_is_no_package_of_debian_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "debian.in").write_text(f"bash\n{line}\n")
    with pytest.raises(Refused):
        locks.wanted(tmp_path / "debian.in")


# Where packages come from.


def test_the_mirror_is_the_one_of_apt_whatever_its_release(tmp_path: Path) -> None:
    place = tmp_path / "etc/apt/sources.list.d"
    place.mkdir(parents=True)
    (place / "debian.sources").write_text(
        "Types: deb\nURIs: http://mirror.example.com/debian\nSuites: bookworm bookworm-updates\nComponents: main\n\n"
        "Types: deb\nURIs: http://mirror.example.com/security\nSuites: bookworm-security\nComponents: main\n\n"
        "Types: deb\nURIs: http://elsewhere.example.com\nSuites: nodistro\nComponents: main\n"
    )
    found = sources.debian(root=str(tmp_path))
    assert found.lines("trixie", signed=False).splitlines() == [
        "deb http://mirror.example.com/debian trixie main",
        "deb http://mirror.example.com/debian trixie-updates main",
        "deb http://mirror.example.com/security trixie-security main",
    ]


def test_without_a_mirror_of_debian_one_has_to_be_given(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="give --mirror"):
        sources.debian(root=str(tmp_path))


def test_settings_of_pip_say_where_packages_come_from_and_nothing_else() -> None:
    told = "\n".join(
        [
            ":env:.index-url='https://user:word@index.example.com/simple'",
            "global.index-url='https://other.example.com/simple'",
            "global.extra-index-url='https://one.example.com https://two.example.com'",
            "global.constraint='/etc/constraints.txt'",
            "install.user='true'",
        ]
    )
    assert sources.parse_pip_settings(told) == {
        "index-url": ["https://user:word@index.example.com/simple"],
        "extra-index-url": ["https://one.example.com", "https://two.example.com"],
    }


def test_the_settings_of_a_build_are_for_root_alone(tmp_path: Path) -> None:
    sources.write_settings(tmp_path / "settings", sources.Debian("http://a:b@mirror.example.com", ""), "trixie")
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "settings").iterdir()} == {0o600}


# The registry.


def test_the_registry_is_the_one_of_the_inventory(site: Site) -> None:
    content = {"registries": {"hosts": ["reg1"]}, "_meta": {"hostvars": {"reg1": {"registry_port": 5443}}}}
    found = registry.of_inventory(site, content)
    assert (found.address, found.user, found.password) == ("reg1:5443", "operator", "s3cret-of-operator")
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"registry_name": "{{ x }}"}, "write the value itself"),
        ({"registry_name": "a b"}, "give it as HOST:PORT"),
        ({"registry_operator": "../x"}, "is not a user"),
    ],
)
def test_a_registry_that_cannot_be_used_is_refused(site: Site, variables: dict[str, Any], told: str) -> None:
    content = {"registries": {"hosts": ["reg1"]}, "_meta": {"hostvars": {"reg1": variables}}}
    with pytest.raises(Refused, match=told):
        registry.of_inventory(site, content)


def test_a_site_without_a_registry_is_told_so(site: Site) -> None:
    with pytest.raises(Refused, match="no host in the group registries"):
        registry.of_inventory(site, {})


def test_a_push_notes_the_digest_and_no_command_line_has_the_password(site: Site, skopeo: Path, tmp_path: Path) -> None:
    (tmp_path / "notebook.tar").touch()
    words = ["image", "push", "notebook", "--from", str(tmp_path / "notebook.tar"), "-i", str(site.inventory)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    for call in calls(skopeo):
        assert "s3cret" not in " ".join(call["argv"])
        assert call["mode"] == 0o600
        assert call["authority"] == "the authority"
        assert list(call["auth"]["auths"]) == ["reg1:5443"]
    tags = [call["argv"][-1] for call in calls(skopeo)]
    assert tags[-1] == "docker://reg1:5443/catalogue/notebook:latest"
    (found,) = site_catalogue.read(site)
    assert image_catalogue.exact(found) == f"reg1:5443/catalogue/notebook@{DIGEST}"
    listed = CliRunner().invoke(app, ["image", "list", "--check", "-i", str(site.inventory)])
    assert listed.exit_code == 0, listed.output
    assert f"reg1:5443/catalogue/notebook@{DIGEST}" in listed.output
    assert "pytorch-cuda: not pushed" in listed.output


def test_an_image_that_the_registry_has_lost_is_told(site: Site, skopeo: Path) -> None:
    lost = {"name": "old", "reference": "reg1:5443/catalogue/old", "digest": f"sha256:{'0' * 64}"}
    site_catalogue.write(site, [lost])
    done = CliRunner().invoke(app, ["image", "list", "--check", "-i", str(site.inventory)])
    assert done.exit_code == 1
    assert "the registry does not have it" in done.output


def test_a_push_keeps_the_rows_that_somebody_else_has_added(site: Site) -> None:
    own = {"name": "ours", "reference": "reg1:5443/catalogue/ours", "digest": DIGEST}
    site_catalogue.write(site, [own])
    rows = site_catalogue.with_row(site_catalogue.read(site), {**own, "name": "base"})
    assert [one["name"] for one in rows] == ["base", "ours"]


@pytest.mark.parametrize("text", ["all: {vars: {}}", "[", "all: {vars: {image_catalogue: [{name: 1}]}}"])
def test_a_broken_catalogue_of_a_site_is_refused_and_stays(site: Site, skopeo: Path, text: str, tmp_path: Path) -> None:
    path = site.inventory / "image_catalogue.yml"
    path.write_text(text)
    with pytest.raises(Refused, match=r"image_catalogue\.yml"):
        site_catalogue.read(site)
    assert path.read_text() == text


def test_an_inventory_that_is_a_file_has_no_place_for_a_catalogue(site: Site) -> None:
    with pytest.raises(Refused, match="is a file"):
        site_catalogue.read(Site(site.inventory / "hosts.yml"))


# Sessions.

MANIFEST = {
    "schemaVersion": 2,
    "mediaType": saved.MANIFESTS[0],
    "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": "sha256:c", "size": 2},
    "layers": [{"mediaType": saved.LAYERS[saved.MANIFESTS[0]], "digest": "sha256:1", "size": 1}],
}
CONFIG = {
    "config": {"Env": ["PATH=/bin"], "Entrypoint": ["tini"], "Labels": {"title": "base"}},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:x"]},
    "history": [{"created_by": "ADD"}],
}


def layer(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    path = tmp_path / "layer"
    path.write_bytes(gzip.compress(b"changes"))
    digest = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    return path, {"digest": digest, "diff_id": f"sha256:{hashlib.sha256(b'changes').hexdigest()}"}


def test_an_image_of_a_session_has_one_layer_more_and_the_settings_of_the_one_below(tmp_path: Path) -> None:
    path, told = layer(tmp_path)
    moment = "2026-11-28T07:00:00Z"
    manifest, config = saved.on_top(MANIFEST, CONFIG, saved.layer(path, told), {"who": "alice"}, moment)
    made = json.loads(config)
    assert [one["digest"] for one in manifest["layers"]] == ["sha256:1", told["digest"]]
    assert made["rootfs"]["diff_ids"] == ["sha256:x", told["diff_id"]]
    assert made["config"]["Env"] == ["PATH=/bin"]
    assert made["config"]["Labels"] == {"title": "base", "who": "alice"}
    assert manifest["config"]["digest"] == f"sha256:{hashlib.sha256(config).hexdigest()}"
    assert len(CONFIG["rootfs"]["diff_ids"]) == 1


@pytest.mark.parametrize("change", [{"digest": DIGEST}, {"diff_id": DIGEST}])
def test_a_layer_that_is_not_what_its_host_says_is_refused(tmp_path: Path, change: dict[str, str]) -> None:
    path, told = layer(tmp_path)
    with pytest.raises(Refused, match="does not match its own checksums"):
        saved.layer(path, {**told, **change})


def test_what_is_no_layer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "layer").write_bytes(b"no gzip")
    with pytest.raises(Refused, match="is not a layer"):
        saved.layer(tmp_path / "layer", {})


@pytest.mark.parametrize("image", ["lectures", "alice/", "/x", "alice/x:../y", "Alice/x", "-a/b"])
def test_what_is_no_image_of_a_user_is_refused(site: Site, image: str) -> None:
    done = CliRunner().invoke(app, ["image", "restore", "-i", str(site.inventory), "--", image, "reg1"])
    assert done.exit_code != 0
    assert "is not the name of a user's image" in str(done.exception) + done.output


def test_a_user_without_a_password_beside_the_inventory_is_refused(site: Site) -> None:
    done = CliRunner().invoke(app, ["image", "save", "reg1", "c1", "carol/x", "-i", str(site.inventory)])
    assert "there is no password of carol" in str(done.exception) + done.output


def test_sessions_of_the_portal_in_an_image_have_the_version_of_its_hub() -> None:
    hub = {row["version"] for row in portal.lock() if row["name"] == "jupyterhub"}
    assert {locks.read_python(IMAGES / "notebook" / "python.lock")["jupyterhub"]} == hub
