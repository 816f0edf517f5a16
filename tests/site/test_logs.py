# SPDX-License-Identifier: GPL-3.0-or-later
"""logs.yml on two machines of the lab: a host of Debian 12 sends its journal to one of Debian 13.

The tests of this file run in order.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site.plays import INVENTORY, ROOT, Play, lab, run_playbook, services, ssh, until

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LOG_HOST, SENDER = "log1", "src1"
SUITES = {LOG_HOST: "trixie", SENDER: "bookworm"}
PORT = 19532
TLS = "/etc/baremetal-gpu/log-sender"
SPOOL = "baremetal-gpu-log-spool"
SPOOL_METRICS = "/var/lib/prometheus/node-exporter/baremetal_gpu_log_spool.prom"
# Argument: URL, file of the certificate, file of the key, both empty for none, and the host that the entry claims.
SEND = """
import ssl, sys, urllib.error, urllib.request
url, certificate, key, claimed = sys.argv[1:]
context = ssl._create_unverified_context()
if certificate:
    context.load_cert_chain(certificate, key)
entry = ('__REALTIME_TIMESTAMP=1790000000000000\\n__MONOTONIC_TIMESTAMP=1\\n_BOOT_ID=%s\\nPRIORITY=6\\n'
         '_HOSTNAME=%s\\nMESSAGE=forged\\n\\n' % ('ab' * 16, claimed)).encode()
request = urllib.request.Request(url, entry, {'Content-Type': 'application/vnd.fdo.journal'})
try:
    print(urllib.request.urlopen(request, context=context, timeout=20).status)
except urllib.error.HTTPError as refused:
    print(refused.code)
except OSError as refused:
    print(type(refused).__name__, refused)
"""
# Arguments: how many messages, what they begin with, and the bytes of noise in each.
WRITE = """
import base64, os, subprocess, sys, time
count, word, noise, pause = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
cat = subprocess.Popen(['systemd-cat', '-t', 'sequence'], stdin=subprocess.PIPE)
for number in range(count):
    line = '%s %d %s' % (word, number, base64.b64encode(os.urandom(noise)).decode())
    cat.stdin.write(line.strip().encode() + b'\\n')
    if pause:
        cat.stdin.flush()
        time.sleep(pause)
cat.stdin.close()
cat.wait()
"""
# 200 messages in a second, of which journald takes all.
LOAD = "n=0; while sleep 0.005; do echo load $n; n=$((n + 1)); done | systemd-cat -t sequence"
STORE = "/var/log/journal/remote"
# As systemd writes it.
MADE_A_DAY_AGO = """
import os, sys, time
os.setxattr(sys.argv[1], 'user.crtime_usec', int((time.time() - 100000) * 1e6).to_bytes(8, 'little'))
"""


class Site:
    """Both machines send, and one of them is the log host.

    :ivar shown: what its runs have printed.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.shown = ""
        self.inventory = base / "site"
        self.inventory.mkdir()
        for path in INVENTORY.iterdir():
            if not path.name.startswith("."):
                (self.inventory / path.name).symlink_to(path)
        self.senders(LOG_HOST, SENDER)

    def senders(self, *names: str) -> None:
        groups = {"log_hosts": [LOG_HOST], "log_senders": names}
        content = {group: {"hosts": {name: {} for name in hosts}} for group, hosts in groups.items()}
        (self.inventory / "logs.yml").write_text(json.dumps(content))

    def run(self, options: str = "--diff", limit: str = "", **variables: Any) -> Play:
        play = run_playbook(
            "logs.yml",
            limit=limit or ",".join(SUITES),
            extra_vars={
                "log_host_tls_path": str(self.base / "tls"),
                "log_host_space": "1G",
                "log_host_keep_free": "100M",
                **variables,
            },
            options=f"-i {INVENTORY} -i {self.inventory / 'logs.yml'} {options}",
        )
        self.shown += play.stdout
        return play

    def converge(self, **variables: Any) -> Play:
        play = self.run(**variables)
        assert play.rc == 0, play.tail()
        return play

    def logs(self, *words: str) -> list[dict[str, Any]]:
        """What `gpuops logs` finds."""
        done = subprocess.run(
            [sys.executable, "-m", "gpuops", "logs", "-i", str(self.inventory), "--json", *words],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


def on_log_host(*words: str) -> str:
    """Output of journalctl about the sender on the log host."""
    files = "/var/log/journal/remote/src1{.journal,@*.journal*}"
    quoted = " ".join(map(shlex.quote, words))
    return ssh(LOG_HOST, f"sudo journalctl --quiet --no-pager --output=cat --file={shlex.quote(files)} {quoted}")


def numbers(word: str) -> set[int]:
    """The numbers of the messages of a sequence that the log host has."""
    return {
        int(found) for found in re.findall(rf"^{word} (\d+)", on_log_host("SYSLOG_IDENTIFIER=sequence"), re.MULTILINE)
    }


def write(count: int, word: str, noise: int = 0, pause: float = 0) -> None:
    """Entries of a sequence with so many random bytes each, and so many seconds between them."""
    ssh(SENDER, f"sudo python3 -c {shlex.quote(WRITE)} {count} {word} {noise} {pause}")
    ssh(SENDER, "sudo journalctl --sync")


def address() -> str:
    return str(json.loads(lab("inventory"))["_meta"]["hostvars"][LOG_HOST]["ansible_host"])


def send(machine: str, certificate: str = "", key: str = "", claimed: str = SENDER) -> str:
    """The status of an entry that is sent from a machine, or why there is none."""
    words = " ".join(map(shlex.quote, (f"https://{address()}:{PORT}/upload", certificate, key, claimed)))
    return ssh(machine, f"sudo python3 -c {shlex.quote(SEND)} {words}").strip()


def metric(machine: str, name: str) -> float:
    text = ssh(machine, "cat /var/lib/prometheus/node-exporter/*.prom 2>/dev/null || true")
    found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else -1.0


def comes(wanted: Callable[[], Any], told: Callable[[], Any], seconds: float = 180) -> Any:
    return until(wanted, seconds, told)


def looks_again() -> None:
    """Wait until the program that counts has looked, which it does twice a minute."""
    written = ssh(SENDER, f"stat -c %Y.%i {SPOOL_METRICS}")
    comes(lambda: ssh(SENDER, f"stat -c %Y.%i {SPOOL_METRICS}") != written, lambda: written)


def upload_said() -> str:
    return ssh(SENDER, "sudo journalctl --no-pager -u systemd-journal-upload -n 20")


@pytest.fixture(scope="module")
def announced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Play]]:
    machines = [word for name, suite in SUITES.items() for word in ("--machine", f"{name}:{suite}:no-gpu")]
    lab("up", *machines)
    site = Site(tmp_path_factory.mktemp("logs"))
    before = {machine: lab("changes", machine) for machine in SUITES}
    play = site.run("--check --diff")
    assert {machine: lab("changes", machine) for machine in SUITES} == before, "check mode changed files"
    yield site, play
    lab("down", *(word for name in SUITES for word in ("--machine", name)))


@pytest.fixture(scope="module")
def site(announced: tuple[Site, Play]) -> Site:
    announced[0].converge()
    return announced[0]


def test_check_mode_tells_what_comes(announced: tuple[Site, Play]) -> None:
    play = announced[1]
    assert play.rc == 0, play.tail()
    assert "nginx" in " ".join(play.drifts[LOG_HOST, "log_host"])
    assert "journal-upload" in " ".join(play.drifts[SENDER, "log_sender"])


def test_a_message_arrives_and_gpuops_shows_it(site: Site) -> None:
    ssh(SENDER, "logger -p user.err -t marker 'hello $HOME (one)'")
    comes(lambda: on_log_host("SYSLOG_IDENTIFIER=marker"), upload_said)
    (row,) = site.logs("--host", SENDER, "--grep", r"hello \$HOME \(one\)")
    assert (row["host"], row["identifier"], row["priority"]) == (SENDER, "marker", 3)
    assert site.logs("--host", LOG_HOST, "--grep", r"hello \$HOME \(one\)") == []


def test_the_whole_journal_is_there_by_unit(site: Site) -> None:
    assert site.logs("--host", SENDER, "--unit", "ssh", "--lines", "5")
    assert {row["host"] for row in site.logs("--unit", "systemd-journald", "--lines", "200")} == {LOG_HOST, SENDER}


def test_keys_are_secret_and_no_run_has_shown_one(site: Site) -> None:
    for machine in SUITES:
        assert ssh(machine, f"sudo stat -c '%a %U' {TLS}/key.pem").strip() == "600 root"
        assert ssh(machine, f"sudo cat {TLS}/key.pem").splitlines()[1] not in site.shown
    assert {oct(path.stat().st_mode & 0o777) for path in site.base.glob("tls/*-key.pem")} == {"0o600"}


def test_who_has_no_certificate_of_the_site_is_refused(site: Site) -> None:
    assert send(SENDER) == "400"
    openssl = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=src1 -keyout /root/k.pem -out /root/c.pem"
    ssh(SENDER, f"sudo {openssl} 2>/dev/null")
    assert send(SENDER, "/root/c.pem", "/root/k.pem") == "400"
    refused = "sudo journalctl --no-pager -t baremetal_gpu_log | grep 'refused with 400'"
    comes(lambda: "FAILED" in ssh(LOG_HOST, refused, check=False), lambda: ssh(LOG_HOST, refused, check=False))
    assert on_log_host("MESSAGE=forged") == ""


def test_a_host_cannot_write_into_the_journal_of_another(site: Site) -> None:
    assert send(LOG_HOST, f"{TLS}/certificate.pem", f"{TLS}/key.pem", claimed=SENDER) == "202"
    assert on_log_host("MESSAGE=forged") == ""
    assert site.logs("--host", LOG_HOST, "--grep", "^forged$")


def test_no_account_of_the_log_host_can_pass_nginx_by(site: Site) -> None:
    connect = "import socket; socket.socket(socket.AF_UNIX).connect('/run/baremetal-gpu-logs/src1.sock')"
    said = ssh(LOG_HOST, f"sudo -u nobody python3 -c {shlex.quote(connect)} 2>&1", check=False)
    assert "PermissionError" in said


def test_an_outage_of_ten_minutes_under_load_loses_nothing(site: Site) -> None:
    ssh(LOG_HOST, "sudo systemctl stop nginx baremetal-gpu-logs.target")
    write(10_000, "outage")
    for minute in range(10):
        write(2000, f"minute{minute}", pause=0.03)
    assert numbers("outage") == set()
    comes(
        lambda: metric(SENDER, "baremetal_gpu_log_sender_waiting_entries") >= 10_000,
        lambda: metric(SENDER, "baremetal_gpu_log_sender_waiting_entries"),
    )
    ssh(LOG_HOST, "sudo systemctl start baremetal-gpu-logs.target nginx")
    comes(lambda: len(numbers("minute9")) == 2000, upload_said)
    assert numbers("outage") == set(range(10_000))
    for minute in range(10):
        assert numbers(f"minute{minute}") == set(range(2000)), minute
    comes(
        lambda: 0 <= metric(SENDER, "baremetal_gpu_log_sender_waiting_entries") < 100,
        lambda: metric(SENDER, "baremetal_gpu_log_sender_waiting_entries"),
    )
    assert metric(SENDER, "baremetal_gpu_log_sender_dropped_entries_total") == 0


def test_a_receiver_that_is_killed_while_it_writes_loses_nothing(site: Site) -> None:
    ssh(LOG_HOST, "sudo systemctl stop nginx")
    write(10_000, "killed", 300)
    ssh(LOG_HOST, "sudo systemctl start nginx")
    comes(lambda: numbers("killed"), upload_said)
    ssh(LOG_HOST, "sudo systemctl kill --signal=KILL 'baremetal-gpu-log@src1.service'", check=False)
    comes(lambda: len(numbers("killed")) == 10_000, upload_said)
    # What came twice is shown once.
    shown = [row["message"] for row in site.logs("--host", SENDER, "--grep", "^killed ", "--lines", "5000")]
    assert len(shown) == len(set(shown)) > 0


def test_a_host_that_no_longer_sends_is_refused_with_a_valid_certificate(site: Site) -> None:
    assert send(SENDER, f"{TLS}/certificate.pem", f"{TLS}/key.pem") == "202"
    site.senders(LOG_HOST)
    play = site.run(limit=LOG_HOST)
    assert play.rc == 0, play.tail()
    assert send(SENDER, f"{TLS}/certificate.pem", f"{TLS}/key.pem") == "403"
    assert ssh(LOG_HOST, "ls /run/baremetal-gpu-logs").split() == [f"{LOG_HOST}.sock"]
    # Its past stays.
    assert on_log_host("SYSLOG_IDENTIFIER=marker")
    site.senders(LOG_HOST, SENDER)
    site.converge()


def test_a_second_run_changes_nothing_and_restarts_nothing(site: Site) -> None:
    before = {machine: services(machine) for machine in SUITES}
    assert site.converge().changed_tasks == {}
    after = {machine: services(machine) for machine in SUITES}
    kept = [
        {unit: value for unit, value in found.items() if "log@" not in unit}
        for found in (*before.values(), *after.values())
    ]
    assert kept[:2] == kept[2:]


def test_a_day_makes_an_archived_file_and_both_are_read(site: Site) -> None:
    older = (
        "import os, time; os.setxattr('{}', 'user.crtime_usec', int((time.time() - 1e5) * 1e6).to_bytes(8, 'little'))"
    )
    ssh(LOG_HOST, f"sudo python3 -c {shlex.quote(older.format('/var/log/journal/remote/src1.journal'))}")
    names = "sudo ls /var/log/journal/remote"
    comes(
        lambda: re.search(r"^src1@[0-9a-f-]+\.journal$", ssh(LOG_HOST, names), re.MULTILINE),
        lambda: ssh(LOG_HOST, names),
    )
    ssh(SENDER, "logger -t marker 'after the day'")
    comes(lambda: site.logs("--host", SENDER, "--grep", "after the day"), upload_said)
    assert site.logs("--host", SENDER, "--grep", r"hello \$HOME")
    assert metric(LOG_HOST, "baremetal_gpu_log_store_bytes") > 0


def test_what_does_not_fit_into_the_spool_is_counted_and_said(site: Site) -> None:
    site.converge(log_sender_spool="64M")
    comes(
        lambda: 0 <= metric(SENDER, "baremetal_gpu_log_sender_waiting_entries") < 100,
        lambda: metric(SENDER, "baremetal_gpu_log_sender_waiting_entries"),
    )
    ssh(LOG_HOST, "sudo systemctl stop nginx")
    for part in range(4):
        write(1000, f"flood{part}", 30_000)
        looks_again()
    dropped = metric(SENDER, "baremetal_gpu_log_sender_dropped_entries_total")
    assert dropped > 0
    ssh(LOG_HOST, "sudo systemctl start nginx")
    said = comes(lambda: site.logs("--host", SENDER, "--unit", SPOOL, "--grep", "were dropped"), upload_said)
    assert "log_sender_spool" in said[0]["message"]
    write(1, "end")
    comes(lambda: numbers("end"), upload_said)
    missing = 4000 - sum(len(numbers(f"flood{part}")) for part in range(4))
    assert missing > 0
    assert missing <= metric(SENDER, "baremetal_gpu_log_sender_dropped_entries_total") <= missing + 500


def removed_for_space() -> float:
    """Bytes of journals that the log host has removed."""
    text = ssh(LOG_HOST, "cat /var/lib/prometheus/node-exporter/*.prom")
    found = re.search(r'^baremetal_gpu_log_store_removed_bytes_total{reason="space"} (\S+)$', text, re.MULTILINE)
    assert found, text
    return float(found[1])


def receivers(action: str) -> None:
    units = ["baremetal-gpu-logs.target", "baremetal-gpu-log-store", "nginx"]
    ssh(LOG_HOST, f"sudo systemctl {action} {' '.join(units if action == 'start' else reversed(units))}")


@pytest.fixture
def small_store(site: Site) -> Iterator[None]:
    """The journals are on a file system of their own, which is small and empty."""
    site.converge(log_sender_spool="64M")
    receivers("stop")
    owner = ssh(LOG_HOST, f"stat -c 'uid=%u,gid=%g,mode=%a' {STORE}").strip()
    ssh(LOG_HOST, f"sudo mount -t tmpfs -o size=250M,{owner} journals {STORE}")
    receivers("start")
    yield
    receivers("stop")
    ssh(LOG_HOST, f"sudo umount {STORE}")
    receivers("start")


def test_a_full_disk_of_the_log_host_loses_nothing_that_is_not_counted(site: Site, small_store: None) -> None:
    write(100, "before")
    comes(lambda: len(numbers("before")) == 100, upload_said)
    dropped = metric(SENDER, "baremetal_gpu_log_sender_dropped_entries_total")
    ssh(LOG_HOST, f"sudo dd if=/dev/zero of={STORE}/stranger bs=1M 2>/dev/null; true")
    # More than the spool holds.
    for part in range(4):
        write(1000, f"full{part}", 30_000)
        looks_again()
    assert metric(SENDER, "baremetal_gpu_log_sender_waiting_entries") > 0
    ssh(LOG_HOST, f"sudo rm {STORE}/stranger")
    write(1, "room")
    comes(lambda: numbers("room"), upload_said, 600)
    looks_again()
    counted = metric(SENDER, "baremetal_gpu_log_sender_dropped_entries_total") - dropped
    missing = 4000 - sum(len(numbers(f"full{part}")) for part in range(4))
    if removed := removed_for_space():
        # Archived journals go when the file system is full, as is promised, and it is said.
        assert "removed entries of src1" in ssh(LOG_HOST, "sudo journalctl --no-pager -u baremetal-gpu-log-store")
    else:
        assert len(numbers("before")) == 100
        assert missing > 0
        assert missing <= counted
    assert counted > 0 or removed
    assert site.logs("--host", SENDER, "--unit", SPOOL, "--grep", "were dropped")


def test_a_sender_that_loses_its_power_under_load_sends_what_its_journal_has(site: Site) -> None:
    ssh(LOG_HOST, "sudo systemctl stop nginx")
    write(5000, "power", 300)
    ssh(SENDER, f"sudo sh -c {shlex.quote(LOAD)} >/dev/null 2>&1 </dev/null &")
    ssh(LOG_HOST, "sudo systemctl start nginx")
    comes(lambda: numbers("power"), upload_said)
    lab("power-cut", SENDER)
    lab("up", "--machine", f"{SENDER}:{SUITES[SENDER]}:no-gpu")
    comes(lambda: len(numbers("power")) == 5000, upload_said, 600)
    ssh(SENDER, "logger -t marker 'after the power cut'")
    comes(lambda: "after the power cut" in on_log_host("SYSLOG_IDENTIFIER=marker"), upload_said, 600)
    # What is missing of the load is at its end: it was not in the journal yet.
    load = numbers("load")
    assert load == set(range(len(load)))
    comes(
        lambda: 0 <= metric(SENDER, "baremetal_gpu_log_sender_waiting_entries") < 100,
        lambda: metric(SENDER, "baremetal_gpu_log_sender_waiting_entries"),
    )


def test_absent_leaves_the_journals_and_nothing_else(site: Site) -> None:
    site.converge(log_host_state="absent", log_sender_state="absent")
    assert not re.search(rf":{PORT}\b", ssh(LOG_HOST, "sudo ss -Hltn"))
    left = "sudo find /etc /usr/libexec -name 'baremetal-gpu-log*' -o -path '*baremetal-gpu/log*' -type f"
    for machine in SUITES:
        assert ssh(machine, left) == ""
        assert "journal-upload" not in ssh(machine, "systemctl list-units --state=running")
        assert ssh(machine, "systemctl is-system-running || true").strip() == "running"
    assert on_log_host("SYSLOG_IDENTIFIER=marker")
    assert site.converge(log_host_state="absent", log_sender_state="absent").changed_tasks == {}
