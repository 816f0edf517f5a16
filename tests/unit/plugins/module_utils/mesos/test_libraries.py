# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of Mesos find their libraries by the loader alone, as tasks do. Compiled here, and asked by the real ldd."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import libraries as mesos_libraries
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.libraries import Needs
from tests.unit.simulators.mesos_daemons import packed

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


class Archive:
    """Programs that are linked with libmesos, which is linked with a library that the host lacks and with libz."""

    def __init__(self, base: Path, bin_directory: str = "bin", rpath: bool = False) -> None:
        self.home, self.shown, self.config = base / "home", base / "opt/lib", base / "zz.conf"
        self.lib = self.home / "lib"
        for directory in (self.lib, self.home / bin_directory, self.home / "libexec/mesos", base / "opt"):
            directory.mkdir(parents=True)
        self.rpath = ["-Wl,-rpath,$ORIGIN/../lib:$ORIGIN/../../lib:$ORIGIN"] if rpath else []
        self.library("libbundled.so.7", "int bundled(void) { return 7; }")
        self.library("libmesos.so.0", "int bundled(void); int mesos(void) { return bundled(); }", "libbundled.so.7")
        self.program(f"{bin_directory}/mesos-agent")
        self.program("libexec/mesos/mesos-executor")
        self.calls: list[list[str]] = []

    def cc(self, *words: str, source: str) -> None:
        subprocess.run(["cc", "-x", "c", "-", *words], input=source, text=True, check=True, capture_output=True)

    def library(self, name: str, source: str, *needed: str) -> None:
        links = [f"-L{self.lib}", *(f"-l:{one}" for one in needed)]
        words = ["-shared", "-fPIC", f"-Wl,-soname,{name}", *self.rpath, "-o", str(self.lib / name)]
        # The order in which the linker reads them.
        self.cc(*words, *links, source=source)

    def program(self, path: str) -> None:
        words = ["-o", str(self.home / path), f"-L{self.lib}", "-l:libmesos.so.0", "-Wl,--allow-shlib-undefined"]
        self.cc(*words, *self.rpath, source="int mesos(void); int main(void) { return mesos() != 7; }")

    def run(self, argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        self.calls.append(argv)
        if argv[0] == "ldconfig":
            return (0, "", "")
        if self.config.exists() and "ldd" in argv:
            # As with the loader's cache, which names the directory of its configuration and not what it leads to.
            place = argv.index("ldd")
            given = [word for word in argv[:place] if word.startswith("LD_LIBRARY_PATH=")]
            known = ":".join([*given, self.config.read_text().strip()]).removeprefix("LD_LIBRARY_PATH=")
            argv = [*argv[:place], f"LD_LIBRARY_PATH={known}", *argv[place:]]
        return host_run.run(argv, stdin, timeout)

    def to_show(self) -> tuple[dict[str, str], Needs]:
        return mesos_libraries.to_show(str(self.home), self.run, str(self.shown))

    def show(self) -> None:
        chosen = self.to_show()[0]
        mesos_libraries.show(str(self.home), chosen, self.run, str(self.shown), str(self.config))

    def is_shown(self) -> bool:
        chosen = self.to_show()[0]
        return mesos_libraries.is_shown(str(self.home), chosen, str(self.shown), str(self.config))

    def runs(self, path: str, shown: Path | None = None) -> bool:
        """Whether a program runs to its end, with a directory in the place of what the loader is shown."""
        env = {"LD_LIBRARY_PATH": str(shown)} if shown else {}
        return subprocess.run([self.home / path], env=env, check=False, capture_output=True).returncode == 0


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path)


def test_programs_without_an_rpath_are_shown_libmesos_and_what_the_host_lacks(archive: Archive) -> None:
    assert not archive.runs("bin/mesos-agent")
    assert not archive.is_shown()
    archive.show()
    assert archive.is_shown()
    assert mesos_libraries.links(str(archive.home)) == {
        "libbundled.so.7": "../lib/libbundled.so.7",
        "libmesos.so.0": "../lib/libmesos.so.0",
    }
    assert archive.config.read_text() == f"{archive.shown}\n"
    assert ["ldconfig"] in archive.calls
    for program in ("bin/mesos-agent", "libexec/mesos/mesos-executor"):
        assert archive.runs(program, archive.shown)


def test_what_is_shown_stays_shown_at_every_later_call(archive: Archive) -> None:
    """The role of the agent comes after that of the master on one host, and each run comes again."""
    for _turn in range(3):
        archive.show()
        assert archive.is_shown()
        assert sorted(mesos_libraries.links(str(archive.home))) == ["libbundled.so.7", "libmesos.so.0"]
        assert archive.runs("libexec/mesos/mesos-executor", archive.shown)


class StandIn(Archive):
    """The stand-ins as the roles unpack them."""

    def __init__(self, base: Path) -> None:
        self.home, self.shown, self.config = base / "mesos", base / "opt/lib", base / "zz.conf"
        self.shown.parent.mkdir()
        self.calls = []
        subprocess.run(["tar", "-xzf", packed(base, "--bin")["mesos"]["path"], "-C", base], check=True)


def test_the_programs_of_an_archive_start_after_the_roles_of_master_and_agent_and_after_a_second_run(
    tmp_path: Path,
) -> None:
    one = StandIn(tmp_path)
    assert not one.runs("libexec/mesos/mesos-executor")
    for turn in ("the master", "the agent", "the second run"):
        changes = not one.is_shown()
        assert changes is (turn == "the master")
        one.show()
        assert one.runs("libexec/mesos/mesos-executor", one.shown), turn


def test_a_link_to_an_archive_that_is_gone_is_mended(archive: Archive, tmp_path: Path) -> None:
    archive.show()
    archive.shown.unlink()
    archive.shown.symlink_to(tmp_path / "gone")
    assert not archive.is_shown()
    archive.show()
    assert archive.is_shown()
    assert archive.runs("bin/mesos-agent", archive.shown)


def test_what_is_shown_of_another_archive_is_shown_of_this_one_too(archive: Archive, tmp_path: Path) -> None:
    """What the old archive gives is gone as soon as the new program starts."""
    archive.show()
    other = Archive(tmp_path / "other")
    other.shown, other.config = archive.shown, archive.config
    other.show()
    assert sorted(mesos_libraries.links(str(other.home))) == ["libbundled.so.7", "libmesos.so.0"]


def test_a_library_that_the_host_has_is_not_taken_from_the_archive(archive: Archive) -> None:
    """A libcrypto beside libmesos would be everybody's, and systemd's programs fail at it."""
    (archive.lib / "libc.so.6").write_bytes((archive.lib / "libbundled.so.7").read_bytes())
    archive.show()
    assert "libc.so.6" not in mesos_libraries.links(str(archive.home))


def test_programs_with_an_rpath_need_no_help_and_nothing_is_written(tmp_path: Path) -> None:
    archive = Archive(tmp_path, rpath=True)
    assert archive.runs("bin/mesos-agent")
    assert archive.is_shown()
    assert archive.to_show()[0] == {}
    assert not archive.config.exists()


def test_a_run_that_was_cut_is_done_again(archive: Archive) -> None:
    archive.show()
    links = archive.home / mesos_libraries.LINKS
    (links / "libmesos.so.0").unlink()
    (links / "libold.so.1").symlink_to("../lib/libold.so.1")
    assert not archive.is_shown()
    archive.show()
    assert archive.is_shown()
    assert sorted(os.listdir(links)) == ["libbundled.so.7", "libmesos.so.0"]


def test_another_archive_is_shown_when_its_program_starts_and_not_before(archive: Archive, tmp_path: Path) -> None:
    archive.show()
    before = archive.shown.resolve()
    other = Archive(tmp_path / "other")
    other.shown, other.config = archive.shown, archive.config
    other.show()
    assert other.is_shown()
    assert archive.shown.resolve() == before
    assert before.parent == archive.home


@pytest.mark.parametrize("directory", ["bin", "sbin"])
def test_programs_are_found_in_sbin_and_in_bin(tmp_path: Path, directory: str) -> None:
    archive = Archive(tmp_path, directory)
    assert mesos_libraries.programs(str(archive.home)) == {"mesos-agent": f"{archive.home}/{directory}/mesos-agent"}


def test_sbin_goes_before_bin(archive: Archive) -> None:
    shutil.copytree(archive.home / "bin", archive.home / "sbin")
    assert mesos_libraries.programs(str(archive.home)) == {"mesos-agent": f"{archive.home}/sbin/mesos-agent"}


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("Debian", "libbundled.so.7 (install the package that `apt-file search libbundled.so.7` names)"),
        ("RedHat", "libbundled.so.7 (install 'libbundled.so.7()(64bit)')"),
    ],
)
def test_a_library_that_nobody_has_is_named_with_where_it_comes_from(archive: Archive, family: str, words: str) -> None:
    (archive.lib / "libbundled.so.7").unlink()
    told = archive.to_show()[1]
    assert told.missing == ["libbundled.so.7"]
    said = mesos_libraries.problem("/opt/x", told, family)
    assert said.startswith(f"the programs in /opt/x do not start without {words}")
    assert "To do: " in said


def test_libraries_of_the_archive_itself_come_from_no_package(archive: Archive) -> None:
    home = str(archive.home)
    told = mesos_libraries.needs(mesos_libraries.started(home), archive.run)
    said = mesos_libraries.problem(home, told, "Debian")
    assert f"libmesos.so.0 (it is {home}/lib/libmesos.so.0, which the loader does not know of" in said
    assert said.endswith("To do: run `gpuops up --tags mesos_agent` for this host")
    assert "apt-file" not in said
    (archive.lib / "libmesos.so.0").unlink()
    said = mesos_libraries.problem(home, archive.to_show()[1], "Debian")
    assert f"libmesos.so.0 (it is a part of Mesos itself, and {home} lacks it" in said
    assert "apt-file" not in said


def test_known_libraries_are_named_by_their_packages() -> None:
    told = Needs({"libsvn_subr-1.so.0": None, "libsasl2.so.2": None, "libc.so.6": "/lib/libc.so.6"})
    debian, redhat = (mesos_libraries.problem("/opt/x", told, family) for family in ("Debian", "RedHat"))
    assert "libsasl2.so.2 (install libsasl2-2), libsvn_subr-1.so.0 (install libsvn1)" in debian
    assert "libsasl2.so.2 (install cyrus-sasl-lib), libsvn_subr-1.so.0 (install subversion-libs)" in redhat


def test_programs_that_were_built_for_a_newer_system_are_said_to_be() -> None:
    out = "\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f0)\n\t/lib64/ld-linux-x86-64.so.2 (0x1)\n"
    error = "mesos-agent: /lib/libc.so.6: version `GLIBC_2.99' not found (required by mesos-agent)\x1b[31m\n"
    told = mesos_libraries.parse(out, error)
    assert told.missing == []
    said = mesos_libraries.problem("/opt/x", told, "Debian")
    assert "GLIBC_2.99" in said
    assert "built for this release" in said
    assert "\x1b" not in said


def test_libraries_of_another_program_are_no_proof(archive: Archive, tmp_path: Path) -> None:
    home = str(archive.home)
    mine, other = f"{home}/lib/libmesos.so.0", f"{tmp_path}/other/libmesos.so.0"
    assert mesos_libraries.strangers(home, Needs({"libmesos.so.0": mine, "libc.so.6": "/lib/libc.so.6"})) == ""
    assert other in mesos_libraries.strangers(home, Needs({"libmesos.so.0": other}))
    # Programs of a package have libraries of the host, and none of an archive that was there before.
    shown = f"{home}/lib"
    assert mesos_libraries.strangers("", Needs({"libmesos.so.0": "/usr/lib/libmesos.so.0"}), shown) == ""
    assert mine in mesos_libraries.strangers("", Needs({"libmesos.so.0": mine}), shown)
    told = Needs(
        {"libmesos.so.0": mine, "libbundled.so.7": f"{home}/lib/libbundled.so.7", "libc.so.6": "/lib/libc.so.6"}
    )
    assert mesos_libraries.without(told, shown).missing == ["libbundled.so.7"]


def test_the_unit_shows_the_loader_the_libraries_of_the_program_that_it_starts(tmp_path: Path) -> None:
    shown, fake = tmp_path / "opt/lib", tmp_path / "bin/ldconfig"
    for name in ("opt", "bin", "one/baremetal-gpu-lib", "two/baremetal-gpu-lib", "rpath"):
        (tmp_path / name).mkdir(parents=True)
    fake.write_text(f"#!/bin/sh\necho looked >>{tmp_path}/log\n")
    fake.chmod(0o755)
    script = Path(__file__).parents[5] / "roles/mesos_common/files/mesos_show.sh"

    def start(home: str) -> int:
        words = ["sh", str(script), str(tmp_path / home), str(shown)]
        env = {"PATH": f"{fake.parent}:{os.environ['PATH']}"}
        return subprocess.run(words, env=env, check=False).returncode

    for home in ("one", "two", "two"):
        assert start(home) == 0
        assert os.readlink(shown) == f"{tmp_path}/{home}/baremetal-gpu-lib"
    # A program of a package, or with an rpath, has no use for another's.
    for _turn in range(2):
        assert start("rpath") == 0
        assert not shown.is_symlink()
    assert (tmp_path / "log").read_text() == "looked\n" * 4


def test_what_an_agent_becomes_is_in_sbin_or_bin(tmp_path: Path) -> None:
    start = Path(__file__).parents[5] / "roles/mesos_common/files/mesos_program.sh"
    program = tmp_path / "bin/mesos-agent"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$0" "$@" "$$"\n')
    program.chmod(0o755)
    words = ["sh", str(start), str(tmp_path), "mesos-agent", "--a=b c", "$d"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    # The unit's main process is the program itself.
    assert process.communicate()[0] == f"{program} --a=b c $d {process.pid}\n"
    (tmp_path / "sbin").mkdir()
    shutil.copy(program, tmp_path / "sbin")
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.startswith(f"{tmp_path}/sbin/")
    lost = subprocess.run([*words[:2], "/nowhere", "mesos-agent"], capture_output=True, text=True, check=False)
    assert (lost.returncode, "neither in /nowhere/sbin nor in /nowhere/bin" in lost.stderr) == (127, True)
