# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything of the collection that writes or reads as root where a service account may have planted something.

The account is a process of its own, with no rights but those to its directory. What it wants is a file of root's.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import daemon as ceph_daemon
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import noout as ceph_noout
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import probe as ceph_probe
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import purge as ceph_purge
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.mon import store as ceph_monitor
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import activate as ceph_osd
from ansible_collections.baremetal.gpu.plugins.module_utils.config import record as config_record
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host import secret_file
from ansible_collections.baremetal.gpu.plugins.module_utils.host import units as host_units
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import node as zookeeper_node
from ansible_collections.baremetal.gpu.plugins.modules import ceph_daemon_key, config_merge
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.document import Directory
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos import tls as mesos_tls
from tests.unit.plugins.service_account import NOBODY, SECRET, is_untouched, needs_root

pytestmark = [needs_root, pytest.mark.usefixtures("user_ceph")]
PLUGINS = Path(__file__).resolve().parents[3] / "plugins"
NAME = "file.json"


@pytest.fixture
def user_ceph(monkeypatch):
    """Ceph's account is the one that was taken over."""
    nobody = pwd.getpwuid(NOBODY)
    monkeypatch.setattr(pwd, "getpwnam", lambda _name: nobody)


def merged(path: str, capsys: pytest.CaptureFixture[str], state_dir: Path) -> dict:
    given = {"path": path, "values": {"a": 1}, "state_dir": str(state_dir)}
    with patch_module_args(given), pytest.raises(SystemExit):
        config_merge.main()
    return dict(json.loads(capsys.readouterr().out))


WRITERS: dict[str, Callable[[str], object]] = {
    "a file that outlives a power cut": lambda path: host_files.write(path, "x"),
    "a file that need not": lambda path: host_files.write(path, "x", durable=False),
    "secret": lambda path: secret_file.write(path, "x", 0, 0, 0o600),
    "key of a daemon": lambda path: ceph_daemon_key.write(path, "x"),
    "lease of noout": lambda path: ceph_noout._write(path, "x"),
    "record of an OSD": lambda path: ceph_osd._save(path, {"x": 1}),
    "key of an OSD": lambda path: ceph_osd._write(path, "x"),
    "key of a monitor": lambda path: ceph_monitor._write_for(path, "x", NOBODY, NOBODY),
    "proof of a home": lambda path: ceph_probe._keep(path, 1.0),
}


@pytest.mark.parametrize("name", list(WRITERS))
@pytest.mark.parametrize("planted", [NAME, f"{NAME}.new", f".{NAME}.new", f"{NAME}~", f"{NAME}.PID"])
def test_no_writer_writes_through_a_link(account, shadow, name, planted):
    planted = planted.replace("PID", str(os.getpid()))
    account.does(lambda: os.symlink(str(shadow), planted))
    path = account.directory / NAME
    WRITERS[name](str(path))
    assert is_untouched(shadow)
    assert stat.S_ISREG(path.lstat().st_mode)


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "proof of a home"])
def test_no_writer_goes_through_a_directory_that_was_turned_into_a_link(account, tmp_path, name):
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / NAME).write_text(SECRET)
    account.does(lambda: os.symlink("../etc", "data"))
    with pytest.raises(OSError, match=r"the way leads through the link data|is a link in a directory"):
        WRITERS[name](str(account.directory / "data" / NAME))
    assert [(one.name, one.read_text()) for one in etc.iterdir()] == [(NAME, SECRET)]
    assert etc.stat().st_uid == 0


def test_a_merge_into_a_planted_link_is_refused_and_shows_nothing(account, tmp_path, shadow, capsys):
    shadow.write_text('{"root": "$6$hash"}')
    account.does(lambda: (os.symlink(str(shadow), "daemon.json"), os.symlink("..", "etc")))
    for path in (account.directory / "daemon.json", account.directory / "etc/shadow"):
        said = merged(str(path), capsys, tmp_path / "records")
        assert said["failed"] is True
        assert said["msg"].startswith(f"{path} is left as it is: ")
        assert "To do: " in said["msg"]
        assert "$6$" not in json.dumps(said)
    assert shadow.read_text() == '{"root": "$6$hash"}'
    assert not (tmp_path / "records").exists()


def test_a_merge_into_a_file_of_its_own_keeps_mode_and_owner(account, tmp_path, capsys):
    path = account.directory / "daemon.json"
    account.does(lambda: Path("daemon.json").write_text('{"b": 2}'))
    path.chmod(0o604)
    assert merged(str(path), capsys, tmp_path / "records")["changed"] is True
    assert json.loads(path.read_text()) == {"b": 2, "a": 1}
    assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (NOBODY, 0o604)
    assert config_record.Record(str(tmp_path / "records"), str(path)).claims is None


@pytest.mark.parametrize("name", ["readers", "stamps"])
def test_a_pipe_in_the_place_of_a_stamp_stops_nobody(account, name):
    account.does(lambda: os.mkfifo("started"))
    path = str(account.directory / "started")
    found = host_files.read_text(path) if name == "readers" else str(host_units.is_due(["/etc/hostname"], path))
    assert found == ("" if name == "readers" else "True")


def test_what_a_service_keeps_is_not_told_of_another_file(account, shadow):
    """A look at the host, whose answers are printed."""
    account.does(lambda: os.symlink(str(shadow), "myid"))
    assert zookeeper_node.kept_id(str(account.directory)) is None
    account.does(lambda: (os.makedirs("osd/ceph-0"), os.symlink(str(shadow), "osd/ceph-0/ceph_fsid")))
    account.does(lambda: (os.makedirs("mon/ceph-a/store.db"), os.mkfifo("mon/ceph-a/baremetal-gpu-fsid")))
    found = ceph_daemon.traces(etc=str(account.directory / "etc"), lib=str(account.directory))
    assert [row["fsid"] for row in found] == ["", ""]
    assert SECRET.strip() not in json.dumps(found)


@pytest.mark.parametrize("text", ["9" * 5000, "²", "-1", "1 2"])
def test_an_id_that_is_none_is_none(account, text):
    (account.directory / "myid").write_text(text)
    assert zookeeper_node.kept_id(str(account.directory)) is None


def test_a_secret_behind_a_link_is_not_compared_and_not_taken_over(account, shadow):
    account.does(lambda: os.symlink(str(shadow), "key"))
    path = str(account.directory / "key")
    assert secret_file.differences(path, SECRET, 0, 0, 0o600) == [f"put a file in the place of {path}"]
    os.unlink(path)
    os.link(shadow, path)
    assert secret_file.differences(path, SECRET, 0, 0, 0o600) == [f"write {path} anew"]


def test_what_a_purge_removes_is_the_link_and_not_what_it_leads_to(account, tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(SECRET)
    account.does(lambda: (os.symlink("../etc", "ceph-a"), os.symlink("../etc", "mon")))
    ceph_purge._remove(str(account.directory / "ceph-a"))
    with pytest.raises(Refused, match="leads through the link mon"):
        ceph_purge._remove(str(account.directory / "mon/passwd"))
    assert (tmp_path / "etc/passwd").read_text() == SECRET


def test_the_store_of_a_monitor_is_not_made_elsewhere(account, tmp_path, shadow, monkeypatch):
    place = account.directory / "ceph-a"
    monkeypatch.setattr(ceph_monitor, "store_of", lambda _cluster, _name: str(place))
    ran: list[list[str]] = []

    def run(argv: list[str], _stdin: object, _seconds: object) -> tuple[int, str, str]:
        ran.append(argv)
        if argv[0] == "monmaptool":
            Path(argv[-1]).write_text("a map")
        return 0, "", ""

    def plant() -> None:
        for name in ("ceph-a.keyring", "ceph-a.monmap", "ceph-a.new.x"):
            os.symlink(str(shadow), name)
        os.symlink("..", "ceph-a.new")

    account.does(plant)
    ceph_monitor.make_store(run, "ceph", "a", "f", [], "[mon.]\n")
    assert is_untouched(shadow)
    assert tmp_path.stat().st_uid == 0
    assert place.is_dir()
    assert not place.is_symlink()
    # What root's programs write by themselves is nowhere where the account could lead it elsewhere.
    monmap = ran[0][-1]
    assert not monmap.startswith(str(account.directory))
    assert not os.path.exists(monmap)


def test_the_directory_for_tls_is_roots_since_keys_are_copied_there():
    told = {
        "authority": {"path": "/x", "sha256": "0"},
        "certificates": {"h": dict.fromkeys(("certificate", "certificate_sha256", "key", "key_sha256"), "x")},
    }
    rows = mesos_tls.files("master", {"directory": "/etc/tls", "group": ""}, told, "mesos", "h")
    assert rows[0] == Directory("/etc/tls", "0750", owner="root", group="mesos")


# --- that it stays so -------------------------------------------------------------------------------------------------

# Where a file is opened to be written, or renamed over another one. Each of these is on the controller, in /dev, in a
# directory of its own that root has just made, or appends.
KNOWN = {
    "module_utils/host/files.py",
    "module_utils/host/untrusted_text.py",
    # On the controller.
    "action/gpu_preflight_info.py",
    "action/gpu_verify_report.py",
    "plugin_utils/certificates.py",
    "plugin_utils/fleet/file.py",
    "module_utils/mesos/agent_state.py",
    "modules/ceph_secrets.py",
    # In memory; a device; a directory; a scratch directory, a lock, a journal or a link of root's.
    "module_utils/verify/container.py",
    "modules/host_files.py",
    "module_utils/ceph/mon/store.py",
    "module_utils/ceph/osd/activate.py",
    "module_utils/ceph/probe.py",
    "module_utils/ceph/scratch_mount.py",
    "module_utils/gpu/device_nodes.py",
    "module_utils/images/prefetch.py",
    # A new file in a directory of everybody's, where nobody else has one of its name.
    "module_utils/images/session.py",
    "module_utils/mesos/libraries.py",
    "module_utils/agent/node_orders.py",
    "module_utils/monitoring/exporter.py",
    "module_utils/verify/runtime.py",
    "module_utils/reconciler/core/journal.py",
    # By the account whose directory it is.
    "module_utils/portal/backup.py",
    # Files in a scratch directory of root's, and a draft beside the archive in a directory that was checked.
    "module_utils/backup/archive.py",
    "module_utils/backup/make.py",
    # A home is moved within the directory of the homes, which is root's.
    "module_utils/homes/directories.py",
    # A lock of root's in /run, and one in a directory of root's.
    "module_utils/portal/docker_backend.py",
    "module_utils/reconciler/slurm/store.py",
    # A new file in a directory of everybody's, where nobody else has one of its name, for root's program alone.
    "module_utils/kubernetes/membership.py",
    # A lock, and names within /etc/kubernetes and etcd's directory, which are root's.
    "module_utils/backup/etcd.py",
    "module_utils/kubernetes/control_plane.py",
    "module_utils/kubernetes/encryption.py",
    "module_utils/kubernetes/etcd_restore.py",
    # A link of root's.
    "module_utils/system/wheel_environment.py",
    # Its standard output.
    "module_utils/portal/ssh_jump.py",
    # Locks of a user, with the user's rights.
    "module_utils/slurm/images.py",
    # Run by the account whose directory it is, with no more rights than that.
    "module_utils/registry/backup.py",
    "module_utils/registry/layout.py",
    "module_utils/registry/store.py",
    # Renames a file within its directory, whatever it is.
    "module_utils/logs/store.py",
    "modules/config_merge.py",
    "modules/container_check.py",
    "modules/nvcc_check.py",
}
WRITES = re.compile(
    r"""\bopen\([^)\n]*["'][wax]b?\+?["']|O_CREAT|os\.(replace|rename)\(|atomic_move|mkstemp|write_(text|bytes)\("""
)


def test_no_other_place_writes_files_by_hand():
    found = {str(path.relative_to(PLUGINS)) for path in PLUGINS.rglob("*.py") if WRITES.search(path.read_text("utf-8"))}
    assert found <= KNOWN, f"these write files without host_files: {sorted(found - KNOWN)}"
