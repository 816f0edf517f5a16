# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of the lab that need no machine: mirrors, subnets, machine names, refusals, layers."""

from __future__ import annotations

import base64
import ipaddress
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpuops.init import answers
from tests.lab.machines import aptcache, changes, inventory, machine, mirrors, needs, network, state
from tests.lab.machines.system import LabError

ROOT = Path(__file__).resolve().parents[2]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make these files")


# Hand-made, after what Debian's installer and its cloud images write.
ONE_LINE = """\
# deb http://commented.example/debian trixie main
deb cdrom:[Debian GNU/Linux 12]/ bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/debian/ bookworm main #
deb-src http://mirror.example/debian bookworm main
deb https://security.example/debian-security bookworm-security main non-free-firmware
deb http://vendor.example/apt bookworm vendor
"""
DEB822 = """\
# Types: deb
Types: deb deb-src
URIs: mirror+file:{list}
Suites: trixie
 trixie-updates
Components: main

Types: deb
URIs: http://disabled.example/debian
Suites: trixie
Components: main
Enabled: no

Types: deb
URIs: http://security.example/debian-security
Suites: trixie-security
Components: main
"""


def test_mirrors_of_one_line_sources() -> None:
    entries = list(mirrors.parse_one_line(ONE_LINE))
    assert mirrors.choose(entries) == ("http://mirror.example/debian", "https://security.example/debian-security")


def test_mirrors_of_deb822_sources(tmp_path: Path) -> None:
    listed = tmp_path / "mirrors.list"
    listed.write_text("http://first.example/debian\thttp://second.example/debian\n")
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d/debian.sources").write_text(DEB822.format(list=listed))
    entries = mirrors.read_entries(tmp_path)
    assert mirrors.choose(entries) == ("http://first.example/debian", "http://security.example/debian-security")


def test_a_host_without_a_debian_mirror_is_told_which_variable_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUOPS_LAB_MIRROR", raising=False)
    (tmp_path / "sources.list").write_text("deb http://archive.example/ubuntu noble main universe\n")
    with pytest.raises(LabError, match=r"no Debian mirror in .*GPUOPS_LAB_MIRROR"):
        mirrors.find(tmp_path)


def test_sources_of_a_machine_name_its_own_suite() -> None:
    found = mirrors.Mirrors("http://m.example/debian", "http://s.example/debian-security")
    assert found.one_line("bookworm", signed=False).splitlines() == [
        "deb http://m.example/debian bookworm main",
        "deb http://m.example/debian bookworm-updates main",
        "deb http://s.example/debian-security bookworm-security main",
    ]
    again = mirrors.choose(list(mirrors.parse_deb822(found.deb822("trixie"))))
    assert again == (found.main, found.security)


def test_subnet_is_stable_and_moves_away_from_what_is_taken() -> None:
    first = network.pick_subnet("abc", [])
    assert network.pick_subnet("abc", []) == first
    second = network.pick_subnet("abc", [ipaddress.IPv4Network(first)])
    assert second != first
    # A route to a whole /16, as a virtual private network makes it.
    wide = ipaddress.IPv4Network(first).supernet(new_prefix=16)
    assert not ipaddress.IPv4Network(network.pick_subnet("abc", [wide])).overlaps(wide)
    with pytest.raises(LabError, match="no free /24"):
        network.pick_subnet("abc", [ipaddress.IPv4Network("10.0.0.0/8")])


def test_name_servers_on_the_loopback_are_of_no_use_behind_a_bridge(tmp_path: Path) -> None:
    resolv = tmp_path / "resolv.conf"
    resolv.write_text("# x\nnameserver 127.0.0.53\nnameserver 192.0.2.53\noptions edns0\n")
    assert network.name_servers(resolv) == ["192.0.2.53"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("gpu9", "'gpu9' is not one of gpu1, gpu2, cpu1"),
        ("x1:sid:no-gpu", "suite 'sid' is not one of trixie, bookworm"),
        ("X!:trixie:no-gpu", "machine name 'X!'"),
        ("x1:trixie:../etc", "scenario '../etc' is not a name"),
        ("x1:trixie:no-gpu:cgroup-v2", "'cgroup-v2' behind the scenario is not cgroup-v1"),
    ],
)
def test_machines_that_cannot_be_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(LabError) as refusal:
        state.parse_machine(text)
    assert complaint in str(refusal.value)


def test_machine_of_ones_own() -> None:
    spec = state.parse_machine("extra1:bookworm:a100-sxm4-40gb-x2")
    assert (spec.name, spec.suite, spec.scenario, spec.groups) == (
        "extra1",
        "bookworm",
        "a100-sxm4-40gb-x2",
        ["gpu_nodes"],
    )
    assert state.parse_machine("c1:trixie:no-gpu").groups == ["cpu_nodes"]


def test_lab_id_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUOPS_LAB_ID", "../x")
    with pytest.raises(LabError, match=r"GPUOPS_LAB_ID='\.\./x'"):
        state.lab_id()


def test_a_suffix_names_a_further_lab_of_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUOPS_LAB_ID", raising=False)
    monkeypatch.delenv("GPUOPS_LAB_SUFFIX", raising=False)
    own = state.lab_id()
    monkeypatch.setenv("GPUOPS_LAB_SUFFIX", "node")
    assert state.lab_id() == f"{own}-node"
    monkeypatch.setenv("GPUOPS_LAB_SUFFIX", "../x")
    with pytest.raises(LabError, match=r"GPUOPS_LAB_SUFFIX='\.\./x'"):
        state.lab_id()
    monkeypatch.setenv("GPUOPS_LAB_ID", "chosen")
    assert state.lab_id() == "chosen"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> state.Lab:
    monkeypatch.setattr(state, "STATE_ROOT", tmp_path)
    lab = state.Lab("parts")
    lab.subnet = "10.200.1.0/24"
    return lab


def test_addresses_are_given_once_and_kept(lab: state.Lab) -> None:
    for spec in state.STANDARD_MACHINES:
        lab.add(state.parse_machine(spec.name))
    assert [spec.address for spec in lab.machines.values()] == ["10.200.1.10", "10.200.1.11", "10.200.1.12"]
    lab.save()
    again = state.Lab("parts")
    assert again.machines == lab.machines
    del again.machines["gpu2"]
    assert again.add(state.parse_machine("x1:trixie:no-gpu")).address == "10.200.1.11"
    with pytest.raises(LabError, match="gpu1 exists as trixie"):
        again.add(state.parse_machine("gpu1:bookworm:no-gpu"))


@pytest.mark.parametrize(("more", "hierarchy"), [("", None), (":cgroup-v1", "0")])
def test_a_machine_has_cgroups_of_version_1_alone_where_that_is_asked_for(
    lab: state.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, hierarchy: str | None
) -> None:
    """A real Mesos agent ends where it finds both versions."""
    monkeypatch.setattr(machine.images, "compiler_cache", lambda: tmp_path)
    spec = lab.add(state.parse_machine(f"x1:trixie:no-gpu{more}"))
    one = machine.Machine(lab, spec)
    one.directory.mkdir(parents=True)
    one._write_command()
    told = json.loads((one.directory / "run.json").read_text())
    assert told["env"].get("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY") == hierarchy
    # It stays so when the lab is read again.
    lab.save()
    assert state.Lab("parts").machines["x1"].cgroup_v1 is bool(more)


def test_inventory(lab: state.Lab) -> None:
    assert inventory.inventory(lab) == {"_meta": {"hostvars": {}}}
    for name in ("gpu1", "cpu1"):
        lab.add(state.parse_machine(name))
    found = inventory.inventory(lab)
    assert found["gpu_cluster"] == {"children": ["controllers", "gpu_nodes", "storage_nodes", "cpu_nodes"]}
    assert found["gpu_nodes"] == {"hosts": ["gpu1"]}
    assert found["cpu_nodes"] == {"hosts": ["cpu1"]}
    variables = found["_meta"]["hostvars"]["gpu1"]
    assert variables["ansible_host"] == "10.200.1.10"
    assert "StrictHostKeyChecking=yes" in variables["ansible_ssh_common_args"]
    assert str(lab.known_hosts) in variables["ansible_ssh_common_args"]


def test_the_lab_is_answers_for_a_site_of_one_s_own(lab: state.Lab) -> None:
    for text in ("head1:trixie:no-gpu", "gpu1:trixie:a100-sxm4-40gb-x2"):
        lab.add(state.parse_machine(text))
    lab.machines["head1"].disks = ["first"]
    lab.private_key.parent.mkdir(parents=True)
    blob = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0 " + bytes(32)).decode()
    key = f"ssh-ed25519 {blob} lab"
    lab.private_key.with_suffix(".pub").write_text(f"{key}\n")
    site = answers.read(inventory.answers(lab))
    assert [(host.name, host.roles, host.disks) for host in site.hosts] == [
        ("head1", ("controller", "storage"), ["/dev/disk/by-id/lab-first"]),
        ("gpu1", (), None),
    ]
    variables = site.hosts[1].variables
    assert variables["gpu_agent_kernel_log"] == machine.KERNEL_LOG
    assert str(lab.known_hosts) in variables["ansible_ssh_common_args"]
    assert [(user["name"], user["ssh_keys"]) for user in site.users] == [(name, [key]) for name in ("alice", "bob")]


def test_a_file_that_cannot_be_read_names_the_way_out(lab: state.Lab) -> None:
    lab.save()
    lab.file.write_text("{")
    with pytest.raises(LabError, match="tools/lab clean"):
        state.Lab("parts")


def run_lab(*words: str, env: dict[str, str], through: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    argv = [*through, sys.executable, "-m", "tests.lab.machines", *words]
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A directory with a package of its own that is called tests."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/__init__.py").touch()
    return tmp_path


@pytest.mark.parametrize("command", ["tools/lab inventory", "inventories/lab/hosts.py"])
def test_another_package_of_the_name_tests_is_not_taken_for_ours(command: str, elsewhere: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(elsewhere), "GPUOPS_LAB_ID": "never-made"}
    words = shlex.split(f"{ROOT}/{command}")
    done = subprocess.run(words, cwd=elsewhere, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"_meta": {"hostvars": {}}}
    assert "'tools/lab up' makes them" in done.stderr


def test_the_command_says_how_it_is_called_and_what_it_does_not_know() -> None:
    told = run_tool("--help")
    assert told.returncode == 0
    assert "Usage: tools/lab" in told.stdout
    assert {"up", "down", "status", "ssh", "reset", "vm"} <= set(told.stdout.split())
    unknown = run_tool("frobnicate")
    assert unknown.returncode == 2
    assert "frobnicate" in unknown.stderr


def test_the_command_without_a_virtual_environment_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/lab", tmp_path / "tools")
    done = subprocess.run([tmp_path / "tools/lab", "up"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "'make setup' makes it" in done.stderr


def test_make_boots_the_machines_and_takes_them_to_the_end() -> None:
    def recipe(target: str) -> list[str]:
        # The tests may be run by make themselves, which tells its children so.
        command = ["make", "--no-print-directory", "--dry-run", target]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    run_site = [f".venv/bin/gpuops {command} -i inventories/lab" for command in ("up", "status")]
    assert recipe("lab-node") == ["tools/setup", "tools/lab up", *run_site]
    assert recipe("lab-kubernetes")[:2] == ["tools/setup", ".venv/bin/python -m tests.site.kubernetes_lab"]
    sites = "rm -rf .cache/lab .cache/lab.json .cache/lab-kubernetes"
    assert recipe("lab-down") == ["tools/setup", "tools/lab down", sites]
    lab = recipe("lab")
    assert [line for line in lab if "gpuops" in line and not line.startswith("echo")] == [
        "test -d .cache/lab || .venv/bin/gpuops init .cache/lab --answers .cache/lab.json",
        "cd .cache/lab && ../../.venv/bin/gpuops up",
        "cd .cache/lab && ../../.venv/bin/gpuops status",
    ]


def run_tool(*words: str) -> subprocess.CompletedProcess[str]:
    """The command as people call it."""
    env = {**os.environ, "NO_COLOR": "1"}
    return subprocess.run([ROOT / "tools/lab", *words], env=env, capture_output=True, text=True, check=False)


@as_root
def test_refuses_who_is_not_root() -> None:
    # May read everything, because the interpreter may lie in root's home directory, but is not root.
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    reader = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    done = run_lab("up", env=dict(os.environ), through=(*nobody, *reader))
    assert done.returncode == 1
    assert "needs root" in done.stderr
    assert "user id 65534" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A PATH on which every need is met but one, and there is no apt-get."""
    for program in needs.PROGRAMS:
        if program != "systemd-nspawn":
            (tmp_path / program).symlink_to("/bin/true")
    return tmp_path


@as_root
def test_refuses_where_a_need_is_missing_and_cannot_be_installed(bare_path: Path) -> None:
    done = run_lab("up", env={**os.environ, "PATH": str(bare_path), "GPUOPS_LAB_ID": "refused"})
    assert done.returncode == 1
    assert "systemd-nspawn (package systemd-container)" in done.stderr
    assert "no apt-get" in done.stderr
    assert "mmdebstrap" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not (state.STATE_ROOT / "refused").exists()


@as_root
def test_says_why_installing_failed(bare_path: Path) -> None:
    apt = bare_path / "apt-get"
    apt.write_text("#!/bin/sh\necho 'E: Unable to locate package systemd-container' >&2\nexit 100\n")
    apt.chmod(0o755)
    done = run_lab("up", env={**os.environ, "PATH": str(bare_path), "GPUOPS_LAB_ID": "refused"})
    assert done.returncode == 1
    assert "systemd-nspawn (package systemd-container)" in done.stderr
    assert "Unable to locate package" in done.stderr


@as_root
def test_installs_what_is_missing(bare_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt = bare_path / "apt-get"
    apt.write_text(
        f'#!/bin/sh\necho "$DEBIAN_FRONTEND $*" >> {bare_path}/said\n'
        # Fails until the package lists are there, like on a fresh host.
        f'case "$*" in *update) exec /bin/touch {bare_path}/updated ;; esac\n'
        f"[ -e {bare_path}/updated ] || exit 100\n/bin/ln -s /bin/true {bare_path}/systemd-nspawn\n"
    )
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", str(bare_path))
    needs.ensure()
    said = [line.replace("-o DPkg::Lock::Timeout=300 ", "") for line in (bare_path / "said").read_text().splitlines()]
    install = "noninteractive install --yes --no-install-recommends systemd-container"
    assert said == [install, "noninteractive update", install]


@as_root
def test_changes_are_what_the_upper_layer_says(tmp_path: Path) -> None:
    image, seed, upper = (tmp_path / name for name in ("image", "seed", "upper"))
    for layer in (image, seed, upper):
        (layer / "etc").mkdir(parents=True)
    for name in ("same", "changed", "removed", "mode", "booted"):
        (image / "etc" / name).write_text(name)
    (image / "etc/old").mkdir()
    (image / "etc/old/a").write_text("a")
    (image / "etc/old/b").write_text("b")
    (seed / "etc/hostname").write_text("seeded\n")
    (upper / "etc/booted").write_text("by booting")
    baseline = changes.snapshot(upper)

    (upper / "etc/same").write_text("same")
    shutil.copystat(image / "etc/same", upper / "etc/same")
    (upper / "etc/changed").write_text("Changed")
    shutil.copy2(image / "etc/mode", upper / "etc/mode")
    (upper / "etc/mode").chmod(0o600)
    (upper / "etc/new").write_text("new")
    (upper / "etc/hostname").write_text("renamed\n")
    # What overlayfs leaves for a removed file, and for a directory that was removed and made again.
    os.mknod(upper / "etc/removed", stat.S_IFCHR, os.makedev(0, 0))
    os.mknod(upper / "etc/never-there", stat.S_IFCHR, os.makedev(0, 0))
    (upper / "etc/old").mkdir()
    (upper / "etc/old/b").write_text("B")
    os.setxattr(upper / "etc/old", "trusted.overlay.opaque", b"y")
    (upper / "var/log").mkdir(parents=True)
    (upper / "var/log/syslog").write_text("volatile")
    (upper / "var").chmod((image / "etc").stat().st_mode)

    found = sorted(str(change) for change in changes.changes(upper, [seed, image], baseline))
    assert found == [
        "A /etc/new",
        "A /var",
        "A /var/log",
        "D /etc/old/a",
        "D /etc/removed",
        "M /etc/changed",
        "M /etc/hostname",
        "M /etc/mode",
        "M /etc/old/b",
    ]


class CacheWithoutProcess(aptcache.AptCache):
    """Counts starts and stops instead of running anything."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.runs = False
        self.started = self.stopped = 0

    def pid(self) -> int | None:
        return 1 if self.runs else None

    def _start(self, mirrors: mirrors.Mirrors) -> None:
        self.runs = True
        self.started += 1

    def _stop(self) -> None:
        self.runs = False
        self.stopped += 1

    def _firewall(self) -> None:
        pass


def test_apt_cache_stops_with_its_last_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "STATE_ROOT", tmp_path / "labs")
    for name in ("one", "two"):
        (tmp_path / "labs" / name).mkdir(parents=True)
    found = mirrors.Mirrors("http://m.example/debian")
    cache = CacheWithoutProcess(tmp_path)
    cache.acquire("lab-one", found)
    cache.acquire("lab-two", found)
    cache.acquire(f"build-{os.getpid()}", found)
    cache.release(f"build-{os.getpid()}")
    cache.release("lab-one")
    assert (cache.started, cache.stopped) == (1, 0)
    # It was killed; whoever needs it next starts it again.
    cache.runs = False
    cache.acquire("lab-two", found)
    assert cache.started == 2
    # A lab whose files are gone, and a build whose process is, hold it no longer.
    cache.acquire("lab-lost", found)
    cache.acquire("build-4194305", found)
    cache.release("lab-two")
    assert cache.stopped == 1
