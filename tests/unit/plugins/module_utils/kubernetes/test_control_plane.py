# SPDX-License-Identifier: GPL-3.0-or-later
"""What timers do on a control plane, and the restore of etcd, with a real etcd and a real kubeadm."""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.backup import archive, etcd, make
from ansible_collections.baremetal.gpu.plugins.module_utils.backup.etcd import Member
from ansible_collections.baremetal.gpu.plugins.module_utils.backup.parts import SNAPSHOT, Part
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import control_plane, encryption, settings
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.containers import PROGRAMS
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.etcd_restore import Restore, unpack
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.membership import Membership
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.node import certificates
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.renewal import RENEWED, RESTART, Renewal
from ansible_collections.baremetal.gpu.plugins.module_utils.system.certificate import first_end
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.kubernetes_control_plane import audit_policy
from tests.local_kubernetes import LocalKubernetes
from tests.unit.plugins.module_utils.kubernetes.control_plane_host import NAME, Host, files

NOW, HOUR = 1_800_000_000.0, 3600.0
CLIENT = "/etc/baremetal-gpu/reconciler-kubernetes.pem"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pki") / "kubernetes"


@pytest.fixture
def host(tmp_path: Path, pki: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    made = Host(tmp_path / "root", pki, monkeypatch)
    yield made
    made.stop()


@pytest.fixture
def running(host: Host) -> Host:
    host.start()
    return host


def given(host: Host, **changed: Any) -> dict[str, Any]:
    found = {"host": NAME, "path": str(host.root / "snapshots"), "keep": 3, "days": 30, "clients": {CLIENT: "someone"}}
    return {**found, **changed}


def snapshot(host: Host, now: float = NOW, **changed: Any) -> Path:
    (line,) = control_plane.snapshot(given(host, **changed), host.run, now, str(host.root))
    return Path(line.partition(":")[0])


# Snapshots ---------------------------------------------------------------------------------------------------------


def test_snapshots_are_whole_for_root_alone_and_the_last_ones_stay(running: Host) -> None:
    made = [snapshot(running, NOW + hour * HOUR) for hour in range(5)]
    directory = made[0].parent
    assert files(directory) == [path.name for path in made[-3:]]
    assert (stat.S_IMODE(directory.stat().st_mode), stat.S_IMODE(made[-1].stat().st_mode)) == (0o700, 0o600)
    told = etcd.verify(str(made[-1]), "image", running.run)
    assert told["totalKey"] == 0


def test_a_snapshot_that_is_damaged_is_told(running: Host) -> None:
    path = snapshot(running)
    whole = path.read_bytes()
    for content in (whole[:-600], whole[:20_000] + bytes([whole[20_000] ^ 1]) + whole[20_001:], b""):
        path.write_bytes(content)
        with pytest.raises(Refused, match="is not a whole snapshot"):
            etcd.verify(str(path), "image", running.run)


def test_without_etcd_the_earlier_snapshots_stay_and_nothing_else(
    running: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = snapshot(running)
    monkeypatch.setattr(etcd, "ANSWER_S", 1.0)
    running.stop()
    with pytest.raises(Refused) as caught:
        snapshot(running, NOW + HOUR)
    assert caught.value.problem.code == "no_snapshot"
    assert "DEPRECATION" not in str(caught.value)
    assert files(path.parent) == [path.name]


def test_where_there_is_no_room_nothing_is_written(running: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: NamedTuple("Usage", [("free", int)])(1 << 20))
    with pytest.raises(Refused, match="has 1 MiB free"):
        snapshot(running)
    assert files(running.root / "snapshots") == []


def test_what_a_run_that_was_killed_left_goes(running: Host) -> None:
    directory = running.root / "snapshots"
    directory.mkdir(mode=0o700)
    (directory / ".baremetal-gpu-0123.part").touch()
    (directory / "notes").touch()
    path = snapshot(running)
    assert files(directory) == [path.name, "notes"]


# Restore -----------------------------------------------------------------------------------------------------------


def restored(host: Host, path: Path, replace: bool = True, restore: Restore | None = None) -> None:
    restore = restore or Restore(host.run, str(host.root), lambda _seconds: None)
    member = restore.look(replace)
    restore.stop()
    host.stop()
    restore.restore(str(path), [f"{member.name}={member.url}"])
    restore.start()


def test_a_restore_brings_back_what_was_and_keeps_what_is(running: Host) -> None:
    running.etcdctl("put", "kept", "1")
    path = snapshot(running)
    running.etcdctl("put", "later", "1")
    with pytest.raises(Refused, match="kubernetes_control_plane_replace=true") as caught:
        restored(running, path, replace=False)
    assert caught.value.problem.code == "occupied"
    assert len(files(running.manifests)) == 4
    revision = json.loads(running.etcdctl("get", "kept", "--write-out=json")[1])["header"]["revision"]
    restored(running, path)
    assert len(files(running.manifests)) == 4
    assert not (running.root / "etc/kubernetes/stopped").exists()
    running.start()
    assert running.keys() == ["kept"]
    # Who watches does not see a revision a second time.
    after = json.loads(running.etcdctl("get", "kept", "--write-out=json")[1])["header"]["revision"]
    assert after > revision + 1_000_000
    running.stop()
    # The data of before are whole.
    (before,) = running.data.glob("member.before-*")
    (running.data / "member").rename(running.data / "restored")
    before.rename(running.data / "member")
    running.start()
    assert running.keys() == ["kept", "later"]


def test_lost_data_need_no_leave(running: Host) -> None:
    running.etcdctl("put", "kept", "1")
    path = snapshot(running)
    running.stop()
    shutil.rmtree(running.data)
    restored(running, path, replace=False)
    running.start()
    assert running.keys() == ["kept"]


@pytest.mark.parametrize("step", ["stop", "unpack", "aside", "named", "start"])
def test_a_restore_that_was_cut_goes_on(running: Host, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    running.etcdctl("put", "kept", "1")
    path = snapshot(running)
    running.etcdctl("put", "later", "1")
    calls = {"stop": 2, "aside": 5, "named": 6, "start": 8}
    real, count = os.rename, 0

    def rename(source: str, target: str) -> None:
        nonlocal count
        count += 1
        if count == calls.get(step):
            raise KeyboardInterrupt
        real(source, target)

    def dies(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        if step == "unpack" and "restore" in argv:
            (running.data / "restored.part/member").mkdir(parents=True)
            raise KeyboardInterrupt
        return running.run(argv, stdin, timeout)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            restored(running, path, restore=Restore(dies, str(running.root), lambda _seconds: None))
    # Leave was given by the first one, where it had begun.
    restored(running, path, replace=step == "stop")
    assert sorted(files(running.manifests)) == sorted(f"{name}.yaml" for name in PROGRAMS)
    running.start()
    assert running.keys() == ["kept"]
    assert [(one / "snap/db").exists() for one in running.data.glob("member.before-*")] == [True]


def test_where_the_programs_go_on_nothing_is_touched(running: Host) -> None:
    path = snapshot(running)
    running.is_kubelet_up = False
    with pytest.raises(Refused, match="did not stop"):
        restored(running, path)
    assert files(running.data) == ["member"]


def test_a_damaged_snapshot_is_not_restored(running: Host) -> None:
    path = snapshot(running)
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"x" + content[101:])
    with pytest.raises(Refused, match="whole snapshot"):
        Restore(running.run, str(running.root)).named(str(path), "", NAME)
    with pytest.raises(Refused, match="whole snapshot"):
        restored(running, path)
    assert files(running.data) == ["member"]


def test_who_names_no_snapshot_is_told_which_there_are(running: Host) -> None:
    path = snapshot(running)
    with pytest.raises(Refused) as caught:
        Restore(running.run, str(running.root)).named("", str(path.parent), NAME)
    assert caught.value.problem.remedy == f"give -e kubernetes_control_plane_snapshot={path}"


# A bare machine ----------------------------------------------------------------------------------------------------

INIT = {
    "apiVersion": "kubeadm.k8s.io/v1beta4",
    "kind": "InitConfiguration",
    "localAPIEndpoint": {"advertiseAddress": "10.0.0.9"},
    "nodeRegistration": {"name": "head9"},
}


def config(**server: str) -> str:
    cluster = {
        "apiVersion": INIT["apiVersion"],
        "kind": "ClusterConfiguration",
        "kubernetesVersion": "v1.36.3",
        "apiServer": {"extraArgs": [{"name": name, "value": value} for name, value in server.items()]},
    }
    return "---\n".join(f"{json.dumps(one)}\n" for one in (INIT, cluster))


def test_an_archive_has_a_snapshot_and_not_one_that_waits(running: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, copy = running.root / "snapshot.db", running.root / "host.tar.gz"
    waiting.write_text("of another backup")
    ca = running.root / "etc/kubernetes/pki/ca.key"
    member = etcd.member(str(running.root))
    monkeypatch.setattr(make, "SNAPSHOT", str(waiting))
    monkeypatch.setattr(etcd, "member", lambda _root="": member)
    monkeypatch.setattr(etcd, "PKI", f"{running.root}{etcd.PKI}")
    part = Part("kubernetes", (str(ca), str(waiting)), saved_by="etcd")
    manifest = make.make(str(copy), NAME, [part], running.run, NOW)
    rows = {row.path: row for row in manifest.parts[0].rows}
    assert set(rows) == {str(ca), str(waiting)}
    members = running.root / "members"
    members.mkdir()
    archive.read(str(copy), str(members))
    assert etcd.verify(str(members / str(rows[str(waiting)].member)), "image", running.run)["totalKey"] == 0
    # One that does not answer is not left out silently.
    running.stop()
    monkeypatch.setattr(etcd, "ANSWER_S", 1.0)
    with pytest.raises(Refused, match="gives no snapshot"):
        make.make(str(copy), NAME, [part], running.run, NOW)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_bare_machine_becomes_the_control_plane_that_was_lost(running: Host, is_cut: bool) -> None:
    running.etcdctl("put", "kept", "1")
    path = snapshot(running)
    running.stop()
    shutil.rmtree(running.data)
    shutil.rmtree(running.manifests)
    (running.root / "etc/kubernetes/kubelet.conf").unlink()
    waits = running.root / SNAPSHOT[1:]
    waits.parent.mkdir(parents=True)
    path.rename(waits)
    inits: list[str] = []

    def run(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        if argv[:2] != ["kubeadm", "init"]:
            return running.run(argv, stdin, timeout)
        inits.append(" ".join(argv))
        if is_cut and len(inits) == 1:
            raise KeyboardInterrupt
        (running.root / "etc/kubernetes/kubelet.conf").touch()
        return 0, "", ""

    member = Membership(run, "init", "10.0.0.9:6443", root=running.root)
    assert member.is_due()
    if is_cut:
        with pytest.raises(KeyboardInterrupt):
            member.perform(config(), 9.0)
    member.perform(config(), 9.0)
    # kubeadm does not refuse the data.
    assert "DirAvailable--var-lib-etcd" in inits[-1]
    assert [argv[2] for argv in running.calls if argv[0] == "crictl" and "pull" in argv] == ["pull"]
    assert files(waits.parent) == ["snapshot.db.restored"]
    assert not member.is_due()
    running.start()
    assert running.keys() == ["kept"]


# Other settings ----------------------------------------------------------------------------------------------------


def test_other_settings_come_by_kubeadm_and_what_was_there_is_kept(host: Host) -> None:
    root, kept = str(host.root), host.root / "var/lib/baremetal-gpu/manifests"
    assert settings.change(config(), host.run, root, lambda _seconds: None) == list(PROGRAMS[1:])
    assert sorted(one.read_text() for one in kept.iterdir()) == sorted(f"{name}\n" for name in PROGRAMS[1:])
    etcd_before = (host.manifests / "etcd.yaml").read_text()
    # The second of the two gets an argument; the others are not started anew.
    assert settings.change(config(v="3"), host.run, root, lambda _seconds: None) == ["kube-apiserver"]
    assert "--v=3" in (host.manifests / "kube-apiserver.yaml").read_text()
    assert settings.change(config(v="3"), host.run, root, lambda _seconds: None) == []
    assert (host.manifests / "etcd.yaml").read_text() == etcd_before


def test_a_manifest_of_others_is_not_guessed_at(host: Host) -> None:
    (host.manifests / "etcd.yaml").write_text("kind: Pod\n")
    with pytest.raises(Refused) as caught:
        Restore(host.run, str(host.root)).look(True)
    assert caught.value.problem.code == "unknown_manifest"


# Certificates ------------------------------------------------------------------------------------------------------


def ends(host: Host) -> dict[str, float]:
    return {path: first_end(content) for path, content in certificates(str(host.root)) if path in RENEWED}


def test_certificates_are_renewed_before_they_end_and_the_programs_start_again(host: Host) -> None:
    before, now = ends(host), time.time()
    assert set(before) == set(RENEWED)
    assert control_plane.renew(given(host, days=10), host.run, now, str(host.root)) == []
    assert ends(host) == before
    done = control_plane.renew(given(host, days=30), host.run, now, str(host.root))
    assert {line.partition(":")[0] for line in done} == set(RENEWED)
    assert min(ends(host).values()) > now + 300 * 86400
    assert host.started == dict.fromkeys(PROGRAMS, 1)
    assert control_plane.renew(given(host), host.run, now, str(host.root)) == []


def test_a_renewal_that_was_cut_starts_the_programs_in_the_next_one(host: Host) -> None:
    def cut(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        if "stop" in argv:
            raise KeyboardInterrupt
        return host.run(argv, stdin, timeout)

    with pytest.raises(KeyboardInterrupt):
        Renewal(cut, 30, str(host.root)).perform(time.time())
    assert Renewal(host.run, 30, str(host.root)).perform(time.time()) == []
    assert host.started == dict.fromkeys(PROGRAMS, 1)
    assert not (host.root / RESTART[1:]).exists()


def test_a_program_that_does_not_start_again_is_told(host: Host) -> None:
    host.run(["crictl", "ps", "--name=^etcd$"], None, 1)
    renewal = Renewal(lambda argv, *rest: (0, "", "") if "ps" in argv else host.run(argv, *rest), 30, str(host.root))
    still = Renewal(renewal.run, 30, str(host.root), lambda _seconds: None)
    with pytest.raises(Refused, match="etcd does not start again"):
        still.perform(time.time())


def test_the_certificate_of_a_client_is_kept_for_root_alone(host: Host) -> None:
    renewal, now = Renewal(host.run, 30, str(host.root)), time.time()
    # One that is not there is made by its role.
    control_plane.renew(given(host), host.run, now, str(host.root))
    path = host.root / CLIENT[1:]
    assert not path.exists()
    assert renewal.client_is_due(CLIENT, now)
    renewal.renew_client(CLIENT, "someone")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "PRIVATE KEY" in path.read_text()
    assert not renewal.client_is_due(CLIENT, now)
    later = now + 340 * 86400
    assert f"{CLIENT}: renewed" in control_plane.renew(given(host), host.run, later, str(host.root))


# The key of Secrets ------------------------------------------------------------------------------------------------


def test_a_key_is_made_once_and_comes_to_the_others(tmp_path: Path) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    for root in (first, other):
        (root / encryption.PATH[1:]).parent.mkdir(parents=True)
    text = encryption.wanted("", str(first))
    assert text is not None
    assert text != encryption.new()
    (first / encryption.PATH[1:]).write_text(text)
    assert encryption.wanted("", str(first)) is None
    assert encryption.wanted(text, str(other)) == text
    (other / encryption.PATH[1:]).write_text(text)
    assert encryption.wanted(text, str(other)) is None
    # A further key comes along; none that is in use gets lost.
    more = text.replace(
        '"keys": [', '"keys": [{"name": "key2", "secret": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="},'
    )
    assert encryption.wanted(more, str(other)) == more
    manifests = other / "etc/kubernetes/manifests"
    manifests.mkdir()
    (manifests / "kube-apiserver.yaml").write_text(f"    - --encryption-provider-config={encryption.PATH}\n")
    with pytest.raises(Refused) as caught:
        encryption.wanted(encryption.new(), str(other))
    assert caught.value.problem.code == "other_key"


def test_a_key_that_no_api_server_reads_gives_way_and_is_kept(tmp_path: Path) -> None:
    """A host that was to create the cluster and joins another one."""
    path = tmp_path / encryption.PATH[1:]
    encryption.write(encryption.new(), str(tmp_path))
    before, text = path.read_text(), encryption.new()
    assert encryption.wanted(text, str(tmp_path)) == text
    encryption.write(text, str(tmp_path))
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (text, 0o600)
    (kept,) = path.parent.glob("encryption.json.before-*")
    assert kept.read_text() == before


def test_a_lost_key_is_not_replaced_by_another(tmp_path: Path) -> None:
    manifests = tmp_path / "etc/kubernetes/manifests"
    manifests.mkdir(parents=True)
    (manifests / "kube-apiserver.yaml").write_text(f"    - --encryption-provider-config={encryption.PATH}\n")
    with pytest.raises(Refused) as caught:
        encryption.wanted("", str(tmp_path))
    assert caught.value.problem.code == "key_lost"


@pytest.mark.slow
def test_what_a_secret_says_is_neither_in_etcd_nor_in_the_log_and_comes_back(host: Host, tmp_path: Path) -> None:
    """With a real API server."""
    value, shown = "c2VjcmV0LW9mLWFsaWNl", "shown-of-alice"
    key, policy, log = (tmp_path / name for name in ("encryption.json", "policy.json", "audit.log"))
    key.write_text(encryption.new())
    policy.write_text(json.dumps(audit_policy()))
    flags = {
        "encryption_provider_config": str(key),
        "encryption_provider_config_automatic_reload": "true",
        "audit_policy_file": str(policy),
        "audit_log_path": str(log),
    }
    secrets, path = "/api/v1/namespaces/default/secrets", tmp_path / "snapshots" / "1.db"
    path.parent.mkdir()
    server = LocalKubernetes(**flags)
    try:
        server.put(f"{secrets}/s", {"data": {"password": value}})
        server.put("/api/v1/namespaces/default/configmaps/c", {"data": {"text": shown}})
        words = [host.programs["etcdctl"], f"--endpoints={server.etcd}", "snapshot", "save", str(path)]
        subprocess.run(words, check=True, capture_output=True)
        server.admin.delete(f"{secrets}/s")
        log_text = log.read_text()
    finally:
        server.close()
    plain = base64.b64decode(value)
    content = path.read_bytes()
    assert (shown.encode() in content, plain in content, value.encode() in content) == (True, False, False)
    assert '"resource":"secrets"' in log_text
    assert not any(text in log_text for text in (value, plain.decode()))
    data = tmp_path / "data"
    unpack(
        host.run,
        Member("default", "http://localhost:2380", str(data), "image"),
        str(path),
        ["default=http://localhost:2380"],
        "t",
    )
    server = LocalKubernetes(data=data, **flags)
    try:
        assert server.admin.get(f"{secrets}/s")["data"] == {"password": value}
    finally:
        server.close()
