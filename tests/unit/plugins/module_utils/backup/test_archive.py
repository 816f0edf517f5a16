# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives of a host as real tar files: what is put in comes out, and what somebody has made up does not."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import os
import shutil
import sqlite3
import tarfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.backup import (
    archive,
    make,
    passwords,
    restore,
    shelf,
    slurm_state,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.backup.parts import Part
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

NOW = 1_700_000_000.0


class Host:
    """A directory in the place of a host, and its programs."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.state = base / "state"
        self.state.mkdir()
        self.archive = base / "host.tar.gz"
        self.calls: list[list[str]] = []
        self.typed: list[str] = []
        self.installed: dict[str, str] = {}
        self.candidates: dict[str, str] = {}
        self.running: set[str] = set()
        self.on_stop: Callable[[], None] = lambda: None

    def run(self, argv: list[str], stdin: str | None, _timeout: float) -> tuple[int, str, str]:
        self.calls.append(argv)
        self.typed.append(stdin or "")
        if argv[0] == "dpkg-query":
            version = self.installed.get(argv[-1])
            return (0, f"installed {version}", "") if version else (1, "", "none")
        if argv[0] == "apt-cache":
            return 0, f"{argv[-1]}:\n  Candidate: {self.candidates.get(argv[-1], '(none)')}\n", ""
        if argv[:2] == ["systemctl", "is-active"]:
            return (0 if argv[-1] in self.running else 3), "", ""
        if argv[:2] == ["systemctl", "stop"]:
            self.running.discard(argv[-1])
            self.on_stop()
        if argv[:2] == ["systemctl", "start"]:
            self.running.add(argv[-1])
        return 0, "", ""

    def part(self, **fields: Any) -> Part:
        return Part(**{"name": "slurm", "paths": (str(self.state),), **fields})

    def make(self, *parts: Part) -> archive.Manifest:
        return make.make(str(self.archive), "head1", parts or [self.part()], self.run, NOW)

    def put_back(self, *parts: Part, replace: bool = False) -> list[str]:
        journal = str(self.base / "restore")
        with restore.opened(str(self.archive), parts or [self.part()], replace, self.run, journal) as opened:
            wrong = opened.problems()
            if wrong:
                raise Refused(str(wrong[0]), code=wrong[0].code)
            return opened.put_back()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def empty(directory: Path) -> None:
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def fill(host: Host) -> None:
    (host.state / "hash.1").mkdir(mode=0o700)
    (host.state / "hash.1" / "script").write_text("#!/bin/sh\n")
    (host.state / "job_state").write_bytes(os.urandom(100_000))
    (host.state / "job_state").chmod(0o640)


def content(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_mode & 0o7777, path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_what_is_put_in_comes_out_on_a_bare_host_once(host: Host) -> None:
    fill(host)
    before = content(host.state)
    host.make()
    assert host.archive.stat().st_mode & 0o777 == 0o600
    empty(host.state)
    assert host.put_back() == ["slurm"]
    assert content(host.state) == before
    # The program has gone on since.
    (host.state / "job_state").write_text("later")
    assert host.put_back() == []
    assert (host.state / "job_state").read_text() == "later"


def test_files_are_read_before_directories_and_nothing_but_files(host: Host) -> None:
    fill(host)
    (host.base / "elsewhere").write_text("kept elsewhere")
    (host.state / "own").symlink_to(host.base / "elsewhere")
    (host.state / "loop").symlink_to(host.state)
    os.mkfifo(host.state / "pipe")
    (host.state / "backups").mkdir()
    (host.state / "backups" / "old").touch()
    manifest = host.make(host.part(leave_out=(str(host.state / "backups"),)))
    rows = [Path(row.path).name for row in manifest.parts[0].rows]
    assert rows == ["state", "job_state", "own", "hash.1", "script"]
    assert sorted(manifest.parts[0].passed_over) == [str(host.state / "loop"), str(host.state / "pipe")]


def test_a_link_that_a_service_made_is_not_followed(host: Host) -> None:
    (host.state / "shadow").symlink_to("/etc/shadow")
    host.state.chmod(0o777)
    assert host.make().parts[0].passed_over == [str(host.state / "shadow")]


def test_files_are_whole_while_slurmctld_replaces_them(host: Host) -> None:
    """By its own steps: between two of them the file has no name, or two."""
    new, old, now = (str(host.state / f"job_state{end}") for end in (".new", ".old", ""))
    stopped = threading.Event()

    def save() -> None:
        for number in itertools.cycle(range(256)):
            Path(new).write_bytes(bytes([number]) * 50_000)
            with suppress(FileNotFoundError):
                os.unlink(old)
            with suppress(FileNotFoundError):
                os.link(now, old)
                os.unlink(now)
            os.link(new, now)
            os.unlink(new)
            if stopped.is_set():
                return

    # As the directory of an account, in which a second name would be another one's file.
    host.state.chmod(0o777)
    writer = threading.Thread(target=save)
    writer.start()
    try:
        for _archive in range(15):
            host.make()
            (host.base / "members").mkdir()
            rows = archive.read(str(host.archive), str(host.base / "members")).parts[0].rows
            saved = {row.path: (host.base / "members" / str(row.member)).read_bytes() for row in rows[1:]}
            assert {now, old} & set(saved)
            for path in {now, old} & set(saved):
                assert len(saved[path]) == 50_000
                assert len(set(saved[path])) == 1
            shutil.rmtree(host.base / "members")
    finally:
        stopped.set()
        writer.join()


def test_what_a_program_knows_when_the_backup_begins_is_in_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(host)

    def slurmctld(argv: list[str], _stdin: str | None, _timeout: float) -> tuple[int, str, str]:
        if argv[0] == "squeue":
            return 0, "7\n8\n", ""
        if argv[1:4] == ["--oneliner", "show", "job"]:
            # The first has ended meanwhile.
            return (0, "JobId=8 JobName=x Requeue=0 Restarts=0", "") if argv[4] == "8" else (1, "", "Invalid job id")
        assert argv == ["scontrol", "update", "jobid=8", "requeue=0"]
        waits.append(0.0)
        return 0, "", ""

    def passes(seconds: float) -> None:
        waits[-1] += seconds
        if waits[-1] > 5:
            (host.state / "job_state").write_text("with the job that has just started")

    waits: list[float] = []
    monkeypatch.setattr(host, "run", slurmctld)
    monkeypatch.setattr(slurm_state.save, "__defaults__", (passes,))
    host.make(host.part(saved_by="slurmctld"))
    empty(host.state)
    host.put_back()
    assert (host.state / "job_state").read_text() == "with the job that has just started"


@pytest.mark.parametrize("answer", [(0, "", ""), (1, "", "Unable to contact slurm controller")], ids=["no job", "away"])
def test_without_jobs_or_slurmctld_there_is_nothing_to_wait_for(answer: tuple[int, str, str]) -> None:
    assert not slurm_state.save(lambda *_words: answer, lambda _seconds: pytest.fail("it waits"))


def test_a_database_is_copied_whole_while_it_is_written(host: Host) -> None:
    path = host.state / "hub.sqlite"
    hub = sqlite3.connect(path)
    hub.execute("pragma journal_mode=wal")
    hub.execute("create table users (name text)")
    hub.execute("insert into users values ('alice')")
    hub.commit()
    part = host.part(sqlite=(str(path),))
    manifest = host.make(part)
    assert [Path(row.path).name for row in manifest.parts[0].rows] == ["state", "hub.sqlite"]
    hub.close()
    empty(host.state)
    host.put_back(part)
    assert sqlite3.connect(path).execute("select name from users").fetchall() == [("alice",)]


def test_a_host_with_state_of_its_own_is_refused_and_left_as_it_is(host: Host) -> None:
    fill(host)
    host.make()
    (host.state / "job_state").write_text("newer")
    before = content(host.state)
    with pytest.raises(Refused, match=r"has slurm of its own already: .*job_state"):
        host.put_back()
    assert content(host.state) == before


def test_with_replace_what_was_there_is_kept_and_units_run_again(host: Host) -> None:
    fill(host)
    before = content(host.state)
    host.make()
    (host.state / "job_state").write_text("newer")
    (host.state / "hash.1" / "another").write_text("newer")
    host.running = {"slurmctld.service"}
    part = host.part(units=("slurmctld.service", "other.service"))
    assert host.put_back(part, replace=True) == ["slurm"]
    assert content(host.state) == before
    assert host.running == {"slurmctld.service"}
    (aside,) = (host.base / "restore").glob("before-*.tar.gz")
    rows = archive.read(str(aside)).parts[0].rows
    assert {Path(row.path).name for row in rows} >= {"job_state", "another"}


def test_a_restore_that_was_cut_goes_on_where_it_was(host: Host) -> None:
    fill(host)
    before = content(host.state)
    (host.base / "key").write_text("munge")
    parts = (host.part(units=("slurmctld.service",)), host.part(name="munge", paths=(str(host.base / "key"),)))
    host.make(*parts)
    empty(host.state)
    (host.base / "key").unlink()
    host.running = {"slurmctld.service"}

    def cut() -> None:
        (host.state / "job_state").write_text("half")
        raise KeyboardInterrupt

    host.on_stop = cut
    with pytest.raises(KeyboardInterrupt):
        host.put_back(*parts)
    host.on_stop = lambda: None
    assert host.put_back(*parts) == ["slurm", "munge"]
    assert content(host.state) == before
    assert (host.base / "key").read_text() == "munge"
    # It ran before the first of the two.
    assert host.running == {"slurmctld.service"}


@pytest.mark.parametrize("where", ["installed", "candidates"])
def test_an_older_program_does_not_get_the_state_of_a_newer_one(host: Host, where: str) -> None:
    fill(host)
    part = host.part(packages=("slurmctld",))
    host.installed = {"slurmctld": "24.11.5-4"}
    host.make(part)
    empty(host.state)
    host.installed = {}
    getattr(host, where)["slurmctld"] = "22.05.8-4"
    with pytest.raises(Refused, match=r"slurmctld 22.05.8-4 is older than 24.11.5-4"):
        host.put_back(part)
    assert content(host.state) == {}
    getattr(host, where)["slurmctld"] = "24.11.6-1"
    assert host.put_back(part) == ["slurm"]


def test_what_the_inventory_gives_another_host_is_left_out(host: Host) -> None:
    fill(host)
    (host.base / "key").write_text("munge")
    host.make(host.part(), host.part(name="munge", paths=(str(host.base / "key"),)))
    empty(host.state)
    (host.base / "key").write_text("its own")
    with restore.opened(str(host.archive), [host.part()], False, host.run, str(host.base / "r")) as opened:
        assert opened.left_out == ["munge"]
    assert host.put_back() == ["slurm"]
    assert (host.base / "key").read_text() == "its own"
    with pytest.raises(Refused, match="nothing in the archive of head1"):
        host.put_back(host.part(name="portal"))


# --- what somebody has made up ----------------------------------------------------------------------------------------


def made_up(host: Host, rows: list[dict[str, Any]], contents: list[bytes], **manifest: Any) -> None:
    """An archive in which everything fits together."""
    document = {"format": 1, "host": "head1", "made": 1, "parts": [{"name": "slurm", "rows": rows}], **manifest}
    with tarfile.open(host.archive, "w:gz") as tar:
        for name, data in [*((str(n), data) for n, data in enumerate(contents)), ("manifest.json", encoded(document))]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


def row(path: str, data: bytes = b"x", **fields: Any) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    return {"kind": "file", "path": path, "member": 0, "size": len(data), "sha256": digest, **fields}


@pytest.mark.parametrize("path", ["/etc/passwd", "{state}/../escaped", "{state}x/file", "{state}/./file"])
def test_no_path_outside_of_the_parts_of_the_host_is_written(host: Host, path: str) -> None:
    made_up(host, [row(path.format(state=host.state))], [b"x"])
    with pytest.raises(Refused, match="do not belong to the part slurm"):
        host.put_back()
    assert not (host.base / "escaped").exists()


@pytest.mark.parametrize("path", ["relative", "//etc/passwd", "/a\0b", "/"])
def test_a_path_that_is_none_is_no_archive(host: Host, path: str) -> None:
    made_up(host, [row(path)], [b"x"])
    with pytest.raises(archive.Damaged):
        host.put_back()


def test_no_bits_for_the_rights_of_others_and_no_links_are_made(host: Host) -> None:
    made_up(host, [row(f"{host.state}/file", mode=0o6755)], [b"x"])
    host.put_back()
    assert (host.state / "file").stat().st_mode & 0o7777 == 0o755
    empty(host.state)
    # A directory of a service, which may have been taken over.
    host.state.chmod(0o777)
    (host.state / "linked").symlink_to(host.base)
    made_up(host, [row(f"{host.state}/linked/file")], [b"x"], made=2)
    with pytest.raises((Refused, OSError)):
        host.put_back()
    assert not (host.base / "file").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_a_member_that_is_no_file_is_none_of_ours(host: Host, kind: bytes) -> None:
    with tarfile.open(host.archive, "w:gz") as tar:
        info = tarfile.TarInfo("0")
        info.type, info.linkname = kind, "/etc/shadow"
        tar.addfile(info)
    with pytest.raises(archive.Damaged, match="none of ours"):
        archive.read(str(host.archive))


@pytest.mark.parametrize("name", ["../0", "/etc/0", "1", "x", "00"])
def test_a_member_with_another_name_is_none_of_ours(host: Host, name: str) -> None:
    with tarfile.open(host.archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(archive.Damaged, match="none of ours"):
        archive.read(str(host.archive), str(host.state))
    assert content(host.state) == {}


def test_damage_is_found_wherever_it_is(host: Host) -> None:
    fill(host)
    host.make()
    whole = host.archive.read_bytes()
    empty(host.state)
    # Before it is the name that gzip notes, which says nothing.
    for place in range(200, len(whole), len(whole) // 40):
        damaged = bytearray(whole)
        damaged[place] ^= 0x55
        host.archive.write_bytes(damaged)
        with pytest.raises(archive.Damaged):
            host.put_back()
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 20):
        host.archive.write_bytes(whole[:length])
        with pytest.raises(archive.Damaged):
            host.put_back()
    assert content(host.state) == {}


def test_another_content_under_the_hash_of_the_manifest_is_damage(host: Host) -> None:
    made_up(host, [row(f"{host.state}/file", sha256="0" * 64)], [b"x"])
    with pytest.raises(archive.Damaged, match="not that of its manifest"):
        host.put_back()
    made_up(host, [], [], format=2)
    with pytest.raises(Refused, match="newer version"):
        host.put_back()


# --- which of them stay -----------------------------------------------------------------------------------------------


def test_a_failed_archive_leaves_the_earlier_one_and_nothing_else(host: Host) -> None:
    fill(host)
    host.make()
    whole = host.archive.read_bytes()
    database = host.state / "hub.sqlite"
    database.write_bytes(b"no database, however long this text may be")
    with pytest.raises(Refused, match="was not copied"):
        host.make(host.part(sqlite=(str(database),)))
    assert host.archive.read_bytes() == whole
    assert [path.name for path in host.base.iterdir() if path.is_file()] == ["host.tar.gz"]


def test_the_last_ones_stay_with_the_newest_and_with_what_is_of_others(tmp_path: Path) -> None:
    days = [f"head1-2026112{day}-023000.tar.gz" for day in range(5)]
    for name in [*days, "head1-notes.tar.gz", "head10-20261101-023000.tar.gz", ".baremetal-gpu-0123"]:
        (tmp_path / name).touch()
    # The clock has jumped back.
    newest = str(tmp_path / days[0])
    shelf.prune(str(tmp_path), "head1", ".tar.gz", 2, newest)
    left = [days[0], *days[3:], "head1-notes.tar.gz", "head10-20261101-023000.tar.gz"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(left)


# --- passwords of people ---------------------------------------------------------------------------------------------

ALICE, BOB = "$y$j9T$abcdefgh$0123456789", "$6$salt$0123456789abcdef"
NAMES = ("alice-of-the-test", "bob-of-the-test")


def people(*names: str) -> Part:
    rows = tuple(
        {"name": name, "group": name, "uid": 54321 + place, "gid": 54321 + place} for place, name in enumerate(names)
    )
    return Part("passwords", people=rows)


@pytest.fixture
def shadow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "shadow"
    path.write_text(f"root:{BOB}:1::::::\n{NAMES[0]}:{ALICE}:1::::::\n{NAMES[1]}:!:1::::::\nadmin:{BOB}:1::::::\n")
    monkeypatch.setattr(passwords, "SHADOW", str(path))
    return path


def test_passwords_of_people_in_the_list_come_back_and_no_others(host: Host, shadow: Path) -> None:
    host.make(people(*NAMES))
    with gzip.open(host.archive) as stream:
        content = stream.read()
    assert ALICE.encode() in content
    assert BOB.encode() not in content
    shadow.write_text("root:*:1::::::\n")
    host.calls.clear()
    host.typed.clear()
    assert host.put_back(people(*NAMES)) == ["passwords"]
    assert host.calls == [
        ["groupadd", "--gid=54321", NAMES[0]],
        [
            "useradd",
            *["--no-create-home", "--no-user-group", "--shell=/usr/sbin/nologin", "--uid=54321", "--gid=54321"],
            NAMES[0],
        ],
        ["chpasswd", "--encrypted"],
    ]
    assert host.typed[-1] == f"{NAMES[0]}:{ALICE}\n"
    assert not any(ALICE in word for call in host.calls for word in call)
    assert host.put_back(people(*NAMES)) == []


def test_who_left_the_list_gets_no_password_back(host: Host, shadow: Path) -> None:
    host.make(people(*NAMES))
    shadow.write_text("")
    host.calls.clear()
    host.put_back(people("carol-of-the-test"))
    assert host.calls == []


def test_a_password_that_was_set_since_is_not_overwritten(host: Host, shadow: Path) -> None:
    host.make(people(*NAMES))
    shadow.write_text(f"{NAMES[0]}:{BOB}:1::::::\n")
    with pytest.raises(Refused) as caught:
        host.put_back(people(*NAMES))
    assert caught.value.problem.code == "occupied"


@pytest.mark.parametrize("hashed", ["x:0:0", "plain", "$6$a\nroot:$6$b", "!"])
def test_what_is_no_hash_is_never_set(hashed: str) -> None:
    with pytest.raises(Malformed):
        passwords.parsed(json.dumps({"alice": hashed}).encode())
