# SPDX-License-Identifier: GPL-3.0-or-later
"""An image is unpacked once for a user, what is the user's alone stays so, and what is unused is removed."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pwd
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import images as program
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.images import Images

DIGEST = f"sha256:{'a' * 64}"
REPOSITORY = "reg1:5000/catalogue/base"
ME = pwd.getpwuid(os.getuid())
# What umoci writes, as far as it matters.
CONFIG = {
    "process": {
        "terminal": True,
        "user": {"uid": 0, "gid": 0},
        "capabilities": {},
        "rlimits": [],
        "cwd": "/",
        "env": ["PATH=/opt/conda/bin:/usr/bin", "HOME=/root"],
    },
    "root": {"path": "rootfs"},
    "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
    "linux": {"uidMappings": [{"containerID": 0, "hostID": 5, "size": 1}], "namespaces": [{"type": "user"}]},
}


class Programs:
    """skopeo and umoci, as far as the program calls them."""

    def __init__(self, size: int = 1000) -> None:
        self.called: list[list[str]] = []
        self.size = size

    def __call__(self, argv: Sequence[str]) -> str:
        words = list(argv)
        self.called.append(words)
        if words[:2] == ["skopeo", "inspect"]:
            return json.dumps({"layers": [{"size": self.size}]}) if "--raw" in words else f"{DIGEST}\n"
        if "unpack" in words:
            made = Path(words[-1])
            (made / "rootfs" / "etc").mkdir(parents=True)
            (made / "rootfs/etc/passwd").write_text(f"root:x:0:0::/:/bin/sh\nother:x:{ME.pw_uid}:1::/:/bin/sh\n")
            (made / "config.json").write_text(json.dumps(CONFIG))
        for word in words:
            if word.startswith("--digestfile="):
                Path(word.partition("=")[2]).write_text(f"sha256:{'b' * 64}")
        return ""

    def count(self, word: str) -> int:
        return sum(word in words for words in self.called)


@pytest.fixture
def programs() -> Programs:
    return Programs()


@pytest.fixture
def images(tmp_path: Path, programs: Programs) -> Images:
    data = tmp_path / "datasets"
    data.mkdir()
    return Images(str(tmp_path), [str(data), str(tmp_path / "missing")], programs)


def test_an_image_is_unpacked_once_and_its_tag_is_asked_for_each_time(images: Images, programs: Programs) -> None:
    first = images.bundle(f"{REPOSITORY}:v1")
    assert images.bundle(f"{REPOSITORY}@{DIGEST}") == first == images.bundle(f"{REPOSITORY}:v1")
    assert (programs.count("unpack"), programs.count("--format={{.Digest}}")) == (1, 2)
    assert sorted(os.listdir(images.place)) == [os.path.basename(first), f"{os.path.basename(first)}.lock"]


def test_in_the_container_the_user_is_who_they_are_and_has_the_home_and_the_data(
    images: Images, tmp_path: Path
) -> None:
    made = Path(images.bundle(f"{REPOSITORY}@{DIGEST}"))
    config = json.loads((made / "config.json").read_text())
    assert config["process"]["user"] == {"uid": ME.pw_uid, "gid": ME.pw_gid}
    assert config["linux"]["uidMappings"] == [{"containerID": ME.pw_uid, "hostID": ME.pw_uid, "size": 1}]
    assert not {"capabilities", "rlimits"} & set(config["process"])
    bound = {row["destination"] for row in config["mounts"]}
    assert bound == {"/proc", "/etc/hosts", ME.pw_dir, str(tmp_path / "datasets")}
    # What is there goes before the environment of the job, whose HOME is the user's.
    assert config["process"]["env"] == ["PATH=/opt/conda/bin:/usr/bin"]
    rows = (made / "rootfs/etc/passwd").read_text().splitlines()
    # A name of the image with the same number would hide the user's.
    assert [row.split(":")[0] for row in rows if row.split(":")[2] == str(ME.pw_uid)] == [ME.pw_name]


def test_what_was_cut_is_begun_again(images: Images, programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(argv: Sequence[str]) -> str:
        if "unpack" in argv:
            Path(argv[-1], "rootfs").mkdir(parents=True)
            raise Refused("umoci ended with 1")
        return programs(argv)

    monkeypatch.setattr(images, "run", cut)
    with pytest.raises(Refused):
        images.bundle(f"{REPOSITORY}@{DIGEST}")
    monkeypatch.setattr(images, "run", programs)
    made = Path(images.bundle(f"{REPOSITORY}@{DIGEST}"))
    assert (made / "config.json").exists()
    assert not [name for name in os.listdir(images.place) if name.startswith(".part-")]


def test_what_killed_jobs_have_left_makes_room_and_what_others_make_stays(images: Images) -> None:
    made = Path(images.bundle(f"{REPOSITORY}@{DIGEST}"))
    shutil.rmtree(made)
    other = made.with_name("f" * 32)
    left = [
        f".part-{made.name}-abcd1234",
        ".part-abcd1234",
        f".part-{other.name}-abcd1234",
        f".part-{'e' * 32}-abcd1234",
    ]
    for name in left:
        (made.parent / name / "layout").mkdir(parents=True)
    with other.with_name(f"{other.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        images.bundle(f"{REPOSITORY}@{DIGEST}")
        assert [name for name in os.listdir(images.place) if name.startswith(".part-")] == [left[2]]


def test_mounts_of_the_node_that_come_and_go_reach_what_is_unpacked_already(
    images: Images, programs: Programs, tmp_path: Path
) -> None:
    made = Path(images.bundle(f"{REPOSITORY}@{DIGEST}"))
    (tmp_path / "models").mkdir()
    later = Images(str(tmp_path), [str(tmp_path / "models")], programs)
    assert later.bundle(f"{REPOSITORY}@{DIGEST}") == str(made)
    config = json.loads((made / "config.json").read_text())
    assert [row["destination"] for row in config["mounts"]] == [
        "/proc",
        "/etc/hosts",
        ME.pw_dir,
        str(tmp_path / "models"),
    ]
    # It was not there when the image was unpacked.
    (tmp_path / "missing").mkdir()
    images.bundle(f"{REPOSITORY}@{DIGEST}")
    bound = {row["destination"] for row in json.loads((made / "config.json").read_text())["mounts"]}
    assert bound == {"/proc", "/etc/hosts", ME.pw_dir, str(tmp_path / "datasets"), str(tmp_path / "missing")}
    assert programs.count("unpack") == 1


@pytest.mark.parametrize("there", [True, False])
def test_programs_get_no_runtime_directory_that_is_not_there(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """skopeo warns of it at each call."""
    directory = tmp_path if there else tmp_path / "user-1001"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    (tmp_path / "settings").write_text(json.dumps({"directory": str(tmp_path)}))
    assert program.main(["remove"], settings=str(tmp_path / "settings")) == 0
    assert os.environ.get("XDG_RUNTIME_DIR") == (str(directory) if there else None)
    capsys.readouterr()


@pytest.mark.parametrize(
    "image",
    ["base", "reg1:5000", "reg1:5000/Base", "--help", "reg1/a;reboot", f"reg1/a@{DIGEST[:-1]}", "reg1/../a", ""],
)
def test_what_is_no_image_of_a_registry_is_refused(images: Images, programs: Programs, image: str) -> None:
    with pytest.raises(Refused, match="not an image of a registry"):
        images.bundle(image)
    assert programs.called == []


def test_a_digest_of_the_registry_that_is_none_is_refused(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "run", lambda argv: "sha256:../../../etc\n")
    with pytest.raises(Refused, match="not an image of a registry"):
        images.bundle(f"{REPOSITORY}:v1")


@pytest.mark.parametrize("taken", ["open to all", "a link", "a file"])
def test_a_name_that_somebody_else_has_taken_is_not_used_and_keeps_nobody_out(
    images: Images, tmp_path: Path, taken: str
) -> None:
    theirs, name = tmp_path / "theirs", images.place
    theirs.mkdir()
    for path in (name, f"{name}.before"):
        if taken == "open to all":
            os.mkdir(path)
            os.chmod(path, 0o777)
        elif taken == "a link":
            os.symlink(theirs, path)
        else:
            Path(path).touch()
    made = Path(images.bundle(f"{REPOSITORY}@{DIGEST}"))
    assert made.is_dir()
    assert made.parent.name.startswith(f"{Path(name).name}.")
    assert made.parent.lstat().st_mode & 0o777 == 0o700
    assert list(theirs.iterdir()) == []
    # The next job finds it again, and what is unused is removed from it, too.
    images.place = name
    assert images.bundle(f"{REPOSITORY}@{DIGEST}") == str(made)
    assert images.remove() == 1


def test_an_image_that_has_no_room_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    programs = Programs(size=1 << 50)
    with pytest.raises(Refused, match="MiB free, and") as refused:
        Images(str(tmp_path), [], programs).bundle(f"{REPOSITORY}@{DIGEST}")
    assert "gpu-image remove" in refused.value.problem.remedy
    assert programs.count("unpack") == 0


def test_what_is_saved_has_neither_home_nor_secrets_nor_what_is_the_node_s(images: Images, programs: Programs) -> None:
    made = Path(images.bundle(f"{REPOSITORY}@{DIGEST}"))
    (made / "rootfs/srv/.ssh").mkdir(parents=True)
    (made / "rootfs/srv/.ssh/id").write_text("secret")
    assert images.save(f"{REPOSITORY}:v1", "reg1:5000/me/mine:v2") == f"reg1:5000/me/mine@sha256:{'b' * 64}"
    (repacked,) = [words for words in programs.called if "repack" in words]
    masked = {after for word, after in itertools.pairwise(repacked) if word == "--mask-path"}
    assert {ME.pw_dir, "/srv/.ssh", "/etc/passwd", "/tmp", "/root", "/proc"} <= masked
    (labelled,) = [words for words in programs.called if "config" in words]
    assert f"baremetal.gpu.session.from={REPOSITORY}@{DIGEST}" in labelled


def test_who_saves_is_told_what_is_done_and_hears_nothing_of_it_from_other_programs(
    images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(images, "say", told.append)
    images.bundle(f"{REPOSITORY}@{DIGEST}")
    assert told == []
    images.save(f"{REPOSITORY}@{DIGEST}", "reg1:5000/me/mine:v2")
    assert told == [f"fetching {REPOSITORY}@{DIGEST}", "packing what was changed", "pushing reg1:5000/me/mine:v2"]


def test_only_what_is_on_this_node_can_be_saved(images: Images) -> None:
    with pytest.raises(Refused, match="nothing of"):
        images.save(f"{REPOSITORY}@{DIGEST}", "reg1:5000/me/mine:v2")


def test_what_nobody_has_used_for_long_is_removed_and_what_runs_is_not(images: Images) -> None:
    made = images.bundle(f"{REPOSITORY}@{DIGEST}")
    used = os.stat(made).st_mtime
    assert program.expire(images.place, 14, used + 13 * 86400) == []
    with open(f"{made}.used", "w") as running:
        fcntl.flock(running, fcntl.LOCK_SH)
        # A further job does not wait for the one that runs.
        assert images.bundle(f"{REPOSITORY}@{DIGEST}") == made
        used = os.stat(made).st_mtime
        assert program.expire(images.place, 14, used + 15 * 86400) == []
    assert program.expire(images.place, 14, used + 15 * 86400) == [made]
    assert not os.path.exists(made)


def test_removal_follows_no_link_out_of_the_directory(images: Images, tmp_path: Path) -> None:
    other = tmp_path / "datasets" / "kept"
    other.mkdir()
    os.mkdir(images.place, 0o700)
    os.symlink(other.parent, os.path.join(images.place, "link"))
    assert program.expire(images.place, 0, 1e12) == []
    assert other.exists()


def test_a_program_is_run_only_in_a_job(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert program.main(["run", f"{REPOSITORY}:v1", "true"], settings="/nonexistent") == 1
    assert "not a job of Slurm" in capsys.readouterr().err
