# SPDX-License-Identifier: GPL-3.0-or-later
"""The plans of the log host and of the hosts that send to it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils import service_settings
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import log_host, log_sender
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan

SENDERS = ("log1", "gpu-1.example.com", "gpu_2")
PAIRS = {
    name: {
        "certificate": f"/site/{name}.pem",
        "certificate_sha256": "c" * 64,
        "key": f"/site/{name}-key.pem",
        "key_sha256": "d" * 64,
    }
    for name in SENDERS
}
CERTIFICATES = {"authority": {"path": "/site/ca.pem", "sha256": "a" * 64}, "certificates": PAIRS}
HOST_PARAMS: dict[str, Any] = {
    "state": "present",
    "listen": ["0.0.0.0"],
    "port": 19532,
    "names": ["10.0.0.1"],
    "space": "50G",
    "keep_free": "5G",
    "days": 30,
    "tls_files": {},
    "metrics_directory": "",
    "certificates": CERTIFICATES,
}
SENDER_PARAMS: dict[str, Any] = {
    "state": "present",
    "server": "10.0.0.1",
    "spool": "4G",
    "tls_files": {},
    "metrics_directory": "",
    "certificates": CERTIFICATES,
}


def host(**params: Any) -> Plan:
    peers = {"host": "log1", "hosts": ["log1"], "senders": SENDERS, "subjects": {}}
    given = {name: params.pop(name) for name in tuple(peers) if name in params}
    return log_host.desired({**HOST_PARAMS, **params}, {}, {**peers, **given})


def sender(**params: Any) -> Plan:
    peers = {"host": "gpu_2", "hosts": ["log1"], "senders": SENDERS, "port": 19532}
    given = {name: params.pop(name) for name in tuple(peers) if name in params}
    return log_sender.desired({**SENDER_PARAMS, **params}, {}, {**peers, **given})


def files(plan: Plan) -> dict[str, dict[str, Any]]:
    return {row["path"]: row for row in plan.desired["files"]}


def units(plan: Plan) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in plan.desired["units"]}


def nginx(plan: Plan) -> str:
    return str(files(plan)[log_host.NGINX_CONF]["content"])


def chosen(plan: Plan, subject: str) -> str:
    """The host whose socket a certificate with this subject opens; empty for none."""
    table = nginx(plan).split("$baremetal_gpu_log_sender {")[1].split("}")[0]
    rows = re.findall(r'^ +"~(.+)" ([^ ]+);$', table, re.MULTILINE)
    assert len(rows) == len(SENDERS)
    return next((name for pattern, name in rows if re.search(pattern, subject)), "")


def lines(plan: Plan, path: str) -> list[str]:
    return str(files(plan)[path]["content"]).splitlines()


def only_problem(plan: Plan) -> Any:
    (problem,) = plan.problems
    assert plan.desired == {}
    assert problem.remedy
    return problem


def test_nobody_without_a_certificate_of_the_authority_comes_in() -> None:
    text = nginx(host())
    assert "ssl_verify_client on;" in text
    assert f"ssl_client_certificate {log_host.TLS}/ca.pem;" in text
    # What listens by itself would take entries from everybody.
    assert units(host())["systemd-journal-remote.socket"] == {
        "name": "systemd-journal-remote.socket",
        "enabled": False,
        "state": "stopped",
    }


@pytest.mark.parametrize("name", SENDERS)
def test_a_certificate_opens_the_journal_of_its_host(name: str) -> None:
    assert chosen(host(), f"CN={name}") == name


@pytest.mark.parametrize(
    "subject",
    ["", "CN=gpu_3", "CN=gpu_2x", "xCN=gpu_2", "CN=gpu_2,O=other", "O=a\\,CN=gpu_2", "CN=gpu-1xexample.com"],
)
def test_another_certificate_of_the_authority_opens_none(subject: str) -> None:
    assert chosen(host(), subject) == ""


def test_an_operator_s_certificate_is_known_by_its_whole_subject() -> None:
    plan = host(subjects={"gpu_2": "CN=gpu_2,OU=GPU (2),O=Example Inc."})
    assert chosen(plan, "CN=gpu_2,OU=GPU (2),O=Example Inc.") == "gpu_2"
    assert chosen(plan, "CN=gpu_2") == ""


@pytest.mark.parametrize("subject", ['CN=a";}', "CN=a\nb", "CN=a$b", "x" * 201, "CN=\\2c"])
def test_a_subject_cannot_leave_its_line(subject: str) -> None:
    assert only_problem(host(subjects={"gpu_2": subject})).subject == "log_sender_subject"


def test_two_hosts_have_two_certificates() -> None:
    problem = only_problem(host(subjects={"gpu_2": "CN=log1"}))
    assert (problem.subject, problem.evidence) == ("log_sender_subject", "CN=log1")


def test_only_nginx_opens_the_receivers_sockets() -> None:
    socket = lines(host(), service_settings.unit_path(log_host.RECEIVER_SOCKET))
    assert {"SocketMode=0660", "SocketUser=root", "SocketGroup=www-data"} <= set(socket)
    receiver = lines(host(), service_settings.unit_path(log_host.RECEIVER))
    assert {"User=systemd-journal-remote", "NoNewPrivileges=yes", "ProtectSystem=strict"} <= set(receiver)


def test_every_sender_has_a_receiver_and_a_new_one_restarts_them() -> None:
    target = lines(host(), service_settings.unit_path(log_host.TARGET))
    assert [line for line in target if line.startswith("Wants=")] == [
        f"Wants=baremetal-gpu-log@{name}.socket" for name in SENDERS
    ]
    assert service_settings.unit_path(log_host.TARGET) in units(host())[log_host.TARGET]["restart_on"]


def test_limits_go_to_the_program_in_bytes() -> None:
    store = "\n".join(lines(host(space="1T", keep_free="500M", days=7), service_settings.unit_path(log_host.STORE)))
    assert f"--space {1 << 40} --free {500 << 20} --days 7 --senders /etc/baremetal-gpu/log-senders\n" in store
    assert "--textfile" not in store
    directory = "/var/lib/prometheus/node-exporter"
    store = "\n".join(lines(host(metrics_directory=directory), service_settings.unit_path(log_host.STORE)))
    assert f"--textfile {directory}/baremetal_gpu_log_store.prom\n" in store
    assert f"ReadWritePaths={directory}\n" in store


def test_the_certificate_is_for_the_names_by_which_hosts_come() -> None:
    assert host(names=["10.0.0.1", "", "log1"]).parts["certificates"] == [
        {"name": "log1", "names": ["log1", "10.0.0.1"]}
    ]
    own = {"authority": "/ca.pem", "certificate": "/c.pem", "key": "/k.pem"}
    (row,) = host(tls_files=own).parts["certificates"]
    assert (row["certificate"], row["key"]) == ("/c.pem", "/k.pem")


@pytest.mark.parametrize("plan", [host(), sender()])
def test_keys_are_root_s_and_in_no_diff(plan: Plan) -> None:
    (key,) = [row for path, row in files(plan).items() if path.endswith("key.pem")]
    assert (key["mode"], key["owner"], key["sensitive"]) == ("0600", "root", True)


@pytest.mark.parametrize(
    ("listen", "line", "url"),
    [
        (["0.0.0.0"], "listen 0.0.0.0:19532 ssl;", "https://127.0.0.1:19532/upload"),
        (["10.0.0.1"], "listen 10.0.0.1:19532 ssl;", "https://10.0.0.1:19532/upload"),
        (["::"], "listen [::]:19532 ssl;", "https://[::1]:19532/upload"),
    ],
)
def test_it_listens_where_it_is_told(listen: list[str], line: str, url: str) -> None:
    assert line in nginx(host(listen=listen))
    assert host(listen=listen).parts["url"] == url


@pytest.mark.parametrize(
    ("params", "subject"),
    [
        ({"listen": []}, "log_host_listen"),
        ({"listen": ["10.0.0.1; }"]}, "log_host_listen"),
        ({"port": 0}, "log_host_port"),
        ({"port": 70000}, "log_host_port"),
        ({"space": "50"}, "log_host_space"),
        ({"space": "300M"}, "log_host_space"),
        ({"keep_free": "0G"}, "log_host_keep_free"),
        ({"days": 0}, "log_host_days"),
        ({"metrics_directory": "a b"}, "log_host_metrics_directory"),
        ({"tls_files": {"certificate": "/c.pem", "key": "/k.pem"}}, "log_host_tls_files"),
        ({"hosts": ["log1", "log2"]}, "log_hosts"),
        ({"hosts": ["log2"]}, "log1"),
        ({"senders": ("log1", "a/b")}, "log_senders"),
    ],
)
def test_mistakes_of_the_log_host_are_refused(params: dict[str, Any], subject: str) -> None:
    assert only_problem(host(**params)).subject == subject


@pytest.mark.parametrize(
    ("params", "subject"),
    [
        ({"server": "10.0.0.1/x"}, "log_sender_server"),
        ({"server": "a\nb"}, "log_sender_server"),
        ({"server": ""}, "log_sender_server"),
        ({"spool": "32M"}, "log_sender_spool"),
        ({"spool": "much"}, "log_sender_spool"),
        ({"metrics_directory": "relative"}, "log_sender_metrics_directory"),
        ({"tls_files": {"authority": "/ca.pem"}}, "log_sender_tls_files"),
        ({"hosts": []}, "log_hosts"),
        ({"senders": ("log1",)}, "gpu_2"),
    ],
)
def test_mistakes_of_a_sender_are_refused(params: dict[str, Any], subject: str) -> None:
    assert only_problem(sender(**params)).subject == subject


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("10.0.0.1", "https://10.0.0.1:19532"),
        ("log1.example.com", "https://log1.example.com:19532"),
        ("2001:db8::1", "https://[2001:db8::1]:19532"),
    ],
)
def test_a_sender_goes_to_the_log_host(server: str, url: str) -> None:
    conf = lines(sender(server=server), log_sender.UPLOAD_CONF)
    assert f"URL={url}" in conf
    # Without it systemd-journal-upload would take any server for the log host.
    assert f"TrustedCertificateFile={log_sender.TLS}/ca.pem" in conf


def test_a_sender_keeps_what_it_could_not_send_on_its_disk() -> None:
    assert {"Storage=persistent", "SystemMaxUse=800M"} <= set(lines(sender(spool="800M"), log_sender.JOURNALD_CONF))


def test_a_sender_never_gives_up() -> None:
    drop_in = lines(sender(), log_sender.DROP_IN)
    assert {"Restart=always", "StartLimitIntervalSec=0"} <= set(drop_in)


def test_a_change_has_to_prove_that_a_message_arrives() -> None:
    (proof,) = sender().desired["proofs"]
    assert proof["name"] == sender().parts["proof"]
    assert sender().parts["files"] == "/var/log/journal/remote/gpu_2{.journal,@*.journal*}"


def test_before_its_certificates_a_host_has_no_document() -> None:
    assert host(certificates={}).desired == {}
    assert sender(certificates={}).desired == {}
    assert sender(certificates={}).parts["certificates"] == [{"name": "gpu_2", "names": ["gpu_2"]}]


@pytest.mark.parametrize(("of", "present"), [(host, host()), (sender, sender())])
def test_absent_takes_away_what_present_has_written(of: Any, present: Plan) -> None:
    absent = of(state="absent", hosts=[], certificates={})
    assert absent.problems == ()
    gone = {row["path"] for row in absent.desired["files"] if row.get("state") == "absent"}
    # Not the empty site, without which nginx would get one of Debian's.
    written = {
        path for path, row in files(present).items() if row.get("state", "file") == "file" and "force" not in row
    }
    assert written <= gone
    # Journals, packages and the cursor stay.
    assert not [path for path in gone if path.startswith(("/var/log", "/var/lib/systemd"))]
    assert "packages" not in absent.desired
    stopped = {name for name, row in units(absent).items() if row.get("state") == "stopped"}
    ours = {name for name, row in units(present).items() if row.get("enabled")} - {"nginx.service"}
    assert ours <= stopped


def test_nginx_restarts_for_another_authority_alone() -> None:
    row = units(host())["nginx.service"]
    assert log_host.NGINX_CONF in row["reload_on"]
    assert row["restart_on"] == [f"{log_host.TLS}/ca.pem", "nginx"]


def test_without_a_log_host_nginx_no_longer_listens_for_it() -> None:
    row = units(host(state="absent"))["nginx.service"]
    # Other sites of it stay, and where it was never installed there is nothing to start.
    assert row == {"name": "nginx.service", "reload_on": [log_host.NGINX_CONF]}


@pytest.mark.parametrize(("text", "bytes_"), [("1M", 1 << 20), ("50G", 50 << 30), ("2T", 2 << 40)])
def test_sizes_are_read(text: str, bytes_: int) -> None:
    assert service_settings.size(text) == bytes_


@pytest.mark.parametrize("text", ["", "0", "0G", "G", "1.5G", "1K", "-1G", "1G ", "9" * 12 + "G"])
def test_what_is_no_size_is_none(text: str) -> None:
    assert service_settings.size(text) == 0
