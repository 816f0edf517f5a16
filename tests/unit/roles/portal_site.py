# SPDX-License-Identifier: GPL-3.0-or-later
"""A portal on this machine: the real JupyterHub and proxy with the role's configuration, and a stand-in for Slurm.

Everything runs in a mount namespace of its own, in which /usr/bin has the stand-in's commands, and /etc/passwd the
accounts of `PEOPLE`, or those that a test gives. Needs root, and what tests/needs.py brings: JupyterHub and JupyterLab,
for which GPUOPS_JUPYTERHUB may name another environment, and configurable-http-proxy, for which GPUOPS_PROXY may name
another one. Without them the tests say so and are skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import invite, marathon_backend, session
from ansible_collections.baremetal.gpu.plugins.plugin_utils import portal_package
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.portal import IN_LAB
from tests import portal_programs
from tests.unit.project.tree import ROOT
from tests.unit.roles.portal_browser import NAME, PASSWORD, Browser

FILES = ROOT / "roles" / "portal" / "files"
STAND_IN = ROOT / "tests" / "simulators" / "slurm" / "commands.py"
PEOPLE = {"alice": 42001, "bob": 42002, "closed": 42003, "stranger": 42004}
NODES = [
    {"name": name, "address": "127.0.0.1", "gpus": 2, "type": "a100", "cpus": 8, "memory": 16384, "up": True}
    for name in ("gpu1", "gpu2")
]
STARTS_S = 240
SCRIPT = """
set -e
mount --make-rprivate /
mount -t overlay overlay -o lowerdir={base}/bin:/usr/bin /usr/bin
for name in passwd group shadow; do mount --bind {base}/etc/$name /etc/$name; done
mkdir -p /etc/pam.d
mount -t overlay overlay -o lowerdir={base}/pam:/etc/pam.d /etc/pam.d
{mounts}
exec "$@"
"""
IMAGE = f"reg1:5000/catalogue/pytorch@sha256:{'a' * 64}"
SAVED = f"sha256:{'b' * 64}"
# What nodes have for images. Its containers are none, and have JupyterHub. It saves when `go` is in the home.
GPU_IMAGE = """#!/bin/sh
set -e
case "$1" in
bundle) mkdir -p "$HOME/bundle"; echo {image} >"$HOME/bundle/image"; echo "$HOME/bundle" ;;
run) echo "$2" >"$HOME/ran"; shift 2; PATH={environment}/bin:$PATH exec "$@" ;;
save)
  echo "gpu-image: pushing $3" >&2
  while ! test -e "$HOME/go"; do sleep 0.2; done
  case "$3" in *denied*) echo 'denied: alice has 50.3 GiB of 50.0 GiB'; exit 1 ;; esac
  test "$2" = {image}
  echo "${{3%:*}}@{saved}" ;;
*) exit 2 ;;
esac
"""


# What is written into the place of a hash, where no other file can take the place of the whole.
CHPASSWD = """#!/bin/sh
IFS=: read -r name password
hash=$(printf %s "$password" | openssl passwd -6 -stdin)
changed=$(sed "s|^$name:[^:]*:|$name:$hash:|" /etc/shadow)
printf '%s\\n' "$changed" >/etc/shadow
"""


def found_programs() -> tuple[Path, str]:
    """JupyterHub's environment and the proxy."""
    environment = portal_programs.environment()
    proxy = os.environ.get("GPUOPS_PROXY") or shutil.which("configurable-http-proxy")
    if os.geteuid() != 0:
        pytest.skip("a portal needs root for its mount namespace")
    if not (environment / "bin" / "jupyterhub").is_file():
        pytest.skip(f"{environment} has no jupyterhub: make test-full brings it")
    if proxy is None:
        pytest.skip("configurable-http-proxy is not here: make test-full installs it as root; GPUOPS_PROXY may name it")
    return environment, proxy


def free_ports(count: int) -> list[int]:
    """None that the kernel would give to a connection of another program while a hub is started again."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(range(12000, 20000), 200):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
        if len(ports) == count:
            return ports
    return pytest.fail("no port is free")


class Portal:
    """As a context manager it runs, with everything that it needs.

    :param nodes: what the stand-in has.
    :param people: the accounts of people, by name; those of the group `lab` may have sessions.
    :param hub: settings of the hub that differ, and `idle` those for when sessions end because nobody uses them.
    :param sweep_s: how often the hub looks for sessions that nobody knows, and for accounts that are closed.
    :param own_origins: whether the sessions of each user have an origin of their own.
    :param mounts: further commands of the shell in the mount namespace of each of its programs.
    """

    def __init__(
        self,
        base: Path,
        nodes: Sequence[Mapping[str, Any]] = NODES,
        people: Mapping[str, int] = PEOPLE,
        idle: Mapping[str, Any] | None = None,
        hub: Mapping[str, Any] | None = None,
        mounts: str = "",
        sweep_s: float = 60,
        own_origins: bool = True,
        **settings: Any,
    ) -> None:
        self.sweep_s = sweep_s
        self.environment, self.proxy_program = found_programs()
        self.base, self.slurm, self.people = base, base / "slurm", people
        base.chmod(0o755)
        for parent in base.parents:
            if parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o011)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port, self.api_port, self.hub_port = free_ports(3)
        self.url, self.own_origins = f"https://{NAME}:{self.port}", own_origins
        self._write_commands(nodes, mounts)
        self._write_accounts()
        self._write_settings(settings, hub or {}, idle or {})

    def __enter__(self) -> Portal:
        try:
            self.start_proxy()
            self.start_helper()
            self.start_login()
            self.start_invite()
            self.start_hub()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_commands(self, nodes: Sequence[Mapping[str, Any]], mounts: str) -> None:
        self.slurm.mkdir()
        self.slurm.chmod(0o1777)
        (self.slurm / "nodes.json").write_text(json.dumps([dict(node) for node in nodes]))
        (self.slurm / "lock").touch()
        (self.slurm / "lock").chmod(0o666)
        # Once: a shell that still reads it would go on in the middle of another.
        (self.base / "enter").write_text(SCRIPT.format(base=self.base, mounts=mounts))
        (self.base / "bin").mkdir()
        text = STAND_IN.read_text().replace('"/run/stand-in-slurm"', f'"{self.slurm}"')
        gpu_image = GPU_IMAGE.format(image=IMAGE, saved=SAVED, environment=self.environment)
        (self.base / "bin" / "gpu-image").write_text(gpu_image)
        (self.base / "bin" / "gpu-image").chmod(0o755)
        (self.base / "bin" / "gpu-environment").write_text(bundle("portal.environments"))
        (self.base / "bin" / "gpu-environment").chmod(0o755)
        for name in ("sbatch", "srun", "squeue", "scancel", "sacct", "scontrol"):
            (self.base / "bin" / name).write_text(text)
            (self.base / "bin" / name).chmod(0o755)

    def _write_accounts(self) -> None:
        etc, pam = self.base / "etc", self.base / "pam"
        etc.mkdir()
        pam.mkdir()
        (pam / "baremetal-gpu-portal").write_text("auth required pam_unix.so\naccount required pam_unix.so\n")
        hashed = subprocess.run(
            ["openssl", "passwd", "-6", PASSWORD], check=True, capture_output=True, text=True
        ).stdout.strip()
        rows: dict[str, list[str]] = {
            name: [Path("/etc", name).read_text().rstrip("\n")] for name in ("passwd", "group", "shadow")
        }
        for name, number in self.people.items():
            home = self.base / "home" / name
            home.mkdir(parents=True)
            home.chmod(0o700)
            os.chown(home, number, number)
            shell = "/usr/sbin/nologin" if name == "closed" else "/bin/bash"
            rows["passwd"].append(f"{name}:x:{number}:{number}::{home}:{shell}")
            rows["group"].append(f"{name}:x:{number}:")
            rows["shadow"].append(f"{name}:{hashed}:20000:0:99999:7:::")
        members = [name for name in self.people if name != "stranger"]
        rows["group"].append(f"lab:x:42100:{','.join(members)}")
        for name, lines in rows.items():
            (etc / name).write_text("\n".join(lines) + "\n")
            (etc / name).chmod(0o640 if name == "shadow" else 0o644)

    def _write_settings(self, changed: dict[str, Any], hub: Mapping[str, Any], idle: Mapping[str, Any]) -> None:
        settings: dict[str, Any] = {
            "limits": {"gpus": 2, "cpus": 4, "memory_gib": 8, "hours": 8},
            "limits_by_group": {},
            "environments": [{"name": "default", "path": str(self.environment)}, {"name": "torch", "image": IMAGE}],
            "registry": "reg1:5000",
            "partition": "",
            "account": "",
            "qos": "",
            "allowed_groups": ["lab"],
            "admin_groups": [],
            "domains": ["example.org"],
            "least_uid": 1000,
            "session_port_first": 21000,
            "session_port_last": 21999,
            "hub": {
                "login": {"kind": "pam", "pam_service": "baremetal-gpu-portal", "options": {}},
                "db_url": "",
                "proxy_api_url": f"https://127.0.0.1:{self.api_port}",
                "public_url": self.url,
                "own_origins": self.own_origins,
                "hub_bind_url": f"https://127.0.0.1:{self.hub_port}",
                "hub_connect_url": f"https://127.0.0.1:{self.hub_port}",
                "presets": [{"name": "One GPU", "gpus": 1, "cpus": 2, "memory_gib": 4, "hours": 8}],
                "named_servers": 2,
                "wait_minutes": 60,
                "idle": {"default": None, "by_group": {}, "sample_s": 40.0, "webhook": "", "mail_domain": "", **idle},
                **hub,
            },
            **changed,
        }
        self._settings = settings
        self.change_settings()
        for path, text in portal_package.files().items():
            (self.base / "python" / path).parent.mkdir(parents=True, exist_ok=True)
            (self.base / "python" / path).write_text(text)
        # The role's program with settings of another place.
        text = bundle("portal.helper").replace("entry.main()", f"entry.main([], {str(self.base / 'settings.json')!r})")
        text = text.replace(session.MEASURE, str(self.base / "measure")).replace(
            session.JUPYTER, str(self.base / "jupyter")
        )
        # No file system here has the attributes of CephFS, and any has those of users.
        text = text.replace('("ceph.dir.rbytes", "ceph.quota.max_bytes")', '("user.rbytes", "user.max_bytes")')
        text = text.replace(marathon_backend.PATH, str(self.base / "marathon.json"))
        self._write_lab()
        (self.base / "helper").write_text(text)
        (self.base / "helper").chmod(0o755)
        self._write_login()
        self._write_invite()
        self._write_group()
        (self.base / "state").mkdir()
        words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=portal", "-days", "2"]
        keys = ["-keyout", str(self.base / "key.pem"), "-out", str(self.base / "certificate.pem")]
        subprocess.run(["openssl", *words, *keys], check=True, capture_output=True)

    def _write_login(self) -> None:
        (self.base / "logins").mkdir()
        words = f"[], {str(self.base / 'settings.json')!r}, {str(self.base / 'logins')!r}"
        (self.base / "login").write_text(bundle("portal.login").replace("entry.main()", f"entry.main({words})"))
        (self.base / "login").chmod(0o755)

    def _write_invite(self) -> None:
        text = bundle("portal.invite").replace("entry.main()", f"entry.main([], {str(self.base / 'settings.json')!r})")
        for place, name in ((invite.DIRECTORY, "invitations"), (invite.PLACES, "invite-places")):
            (self.base / name).mkdir(mode=0o700)
            text = text.replace(place, str(self.base / name))
        # The real one replaces files that are mounts here.
        (self.base / "chpasswd").write_text(CHPASSWD)
        (self.base / "invite").write_text(text.replace(invite.CHPASSWD, str(self.base / "chpasswd")))
        for name in ("chpasswd", "invite"):
            (self.base / name).chmod(0o755)

    def change_settings(self, hub: Mapping[str, Any] | None = None, **changed: Any) -> None:
        """What the hub reads when it starts, and the helper at each order."""
        self._settings = {**self._settings, **changed, "hub": {**self._settings["hub"], **(hub or {})}}
        (self.base / "settings.json").write_text(json.dumps(self._settings))

    def _write_lab(self) -> None:
        """Where nodes have it."""
        for name, path in IN_LAB.items():
            there = self.base / "jupyter" / path.removeprefix(f"{session.JUPYTER}/")
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_text((FILES / "jupyterlab" / name).read_text())

    def _write_group(self) -> None:
        """What the measuring program sees of the control group of its job: a group in which nothing computes."""
        group = self.base / "machine" / "sys" / "fs" / "cgroup" / "job_1"
        group.mkdir(parents=True)
        (group / "cpu.stat").write_text("usage_usec 0\n")
        (self.base / "machine" / "proc" / "self").mkdir(parents=True)
        (self.base / "machine" / "proc" / "self" / "cgroup").write_text("0::/job_1\n")
        text = bundle("portal.measure").replace("entry.main()", f"entry.main([], {str(self.base / 'machine')!r})")
        (self.base / "measure").write_text(text)
        (self.base / "measure").chmod(0o755)

    def _start(self, name: str, *words: str, **environment: str) -> None:
        with (self.base / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                ["unshare", "--mount", "bash", str(self.base / "enter"), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.base / "state",
                start_new_session=True,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "CONFIGPROXY_AUTH_TOKEN": "no-secret", **environment},
            )

    def start_proxy(self) -> None:
        """As the role's unit does."""
        tls = self.base / "state" / "tls"
        words = [str(self.environment / "bin" / "python"), str(FILES / "hub_certificates.py"), str(tls)]
        environment = {**os.environ, "PYTHONPATH": str(self.base / "python")}
        subprocess.run([*words, "IP:127.0.0.1", f"DNS:{NAME}"], check=True, capture_output=True, env=environment)
        words = [
            f"--{kind}-ssl-{what}" for kind in ("api", "client") for what in ("request-cert", "reject-unauthorized")
        ]
        for kind in ("api", "client"):
            own = tls / f"proxy-{kind}"
            words += [f"--{kind}-ssl-key={own}/proxy-{kind}.key", f"--{kind}-ssl-cert={own}/proxy-{kind}.crt"]
            words.append(f"--{kind}-ssl-ca={tls}/proxy-{kind}-ca_trust.crt")
        self._start(
            "proxy",
            self.proxy_program,
            "--ip=127.0.0.1",
            f"--port={self.port}",
            "--api-ip=127.0.0.1",
            f"--api-port={self.api_port}",
            f"--default-target=https://127.0.0.1:{self.hub_port}",
            "--error-target=https://127.0.0.1:1/",
            f"--ssl-key={self.base / 'key.pem'}",
            f"--ssl-cert={self.base / 'certificate.pem'}",
            *(["--host-routing"] if self.own_origins else []),
            *words,
            # Where Debian has modules, whoever's Node.js it is.
            NODE_PATH="/usr/share/nodejs",
            NODE_OPTIONS=f"--require={FILES / 'proxy.js'}",
            PORTAL_HUB=self.url if self.own_origins else "",
        )

    def start_helper(self) -> None:
        """As systemd does by the role's units."""
        words = ["--accept", "--inetd", f"--listen={self.base / 'session.sock'}", str(self.base / "helper")]
        self._start("helper", "systemd-socket-activate", *words)

    def start_login(self) -> None:
        (self.base / "login.sock").unlink(missing_ok=True)
        words = ["--accept", "--inetd", f"--listen={self.base / 'login.sock'}", str(self.base / "login")]
        self._start("login", "systemd-socket-activate", *words)
        self.until(lambda: (self.base / "login.sock").exists(), 30, "nothing checks passwords")

    def start_invite(self) -> None:
        words = ["--accept", "--inetd", f"--listen={self.base / 'invite.sock'}", str(self.base / "invite")]
        self._start("invite", "systemd-socket-activate", *words)
        self.until(lambda: (self.base / "invite.sock").exists(), 30, "nothing sets passwords")

    def restart_hub(self) -> None:
        """It knows of no login before."""
        self.kill("hub")
        self.start_hub()

    def start_hub(self) -> None:
        self._start_hub()
        self.until(lambda: Browser(self).get("/hub/login").status == 200, STARTS_S, "the hub does not answer")

    def run_hub(self) -> int:
        """Start a hub that cannot run; its exit status."""
        self._start_hub()
        return self._processes.pop("hub").wait(90)

    def _start_hub(self) -> None:
        self._start(
            "hub",
            str(self.environment / "bin" / "jupyterhub"),
            f"--config={FILES / 'jupyterhub_config.py'}",
            PYTHONPATH=str(self.base / "python"),
            PORTAL_SETTINGS=str(self.base / "settings.json"),
            PORTAL_STATE=str(self.base / "state"),
            PORTAL_SOCKET=str(self.base / "session.sock"),
            PORTAL_LOGIN_SOCKET=str(self.base / "login.sock"),
            PORTAL_INVITE_SOCKET=str(self.base / "invite.sock"),
            PORTAL_SWEEP_S=str(self.sweep_s),
        )

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for name in list(self._processes):
            self.kill(name)
        for job in self.jobs():
            if job["state"] == "RUNNING":
                self.end(job["id"], "CANCELLED")

    def log(self, name: str = "hub") -> str:
        return (self.base / f"{name}.log").read_text(errors="replace")

    def until(self, is_true: Callable[[], object], seconds: float, what: str) -> Any:
        """What is true at last. An assertion on the way, such as of an answer that does not come, is only not yet."""
        end, last = time.monotonic() + seconds, ""
        while time.monotonic() < end:
            try:
                if found := is_true():
                    return found
                last = ""
            except AssertionError as why:
                last = f" ({str(why)[-1000:]})"
            time.sleep(1)
        return pytest.fail(f"{what}{last}:\n{self.log()[-4000:]}")

    def ask_hub(self, path: str, data: bytes | None, known_as: str, **headers: str) -> int:
        """Ask the hub itself, without the proxy, as sessions do; the status of the answer.

        :param known_as: whose certificate it is: user-alice for a session of alice.
        """
        tls = self.base / "state" / "tls"
        context = ssl.create_default_context(cafile=str(tls / "hub-ca" / "hub-ca.crt"))
        context.load_cert_chain(tls / known_as / f"{known_as}.crt", tls / known_as / f"{known_as}.key")
        request = urllib.request.Request(f"https://127.0.0.1:{self.hub_port}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=20, context=context) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as answer:
            return answer.code

    def run(self, name: str, *words: str, text: str = "") -> str:
        """What a command of the stand-in says to a person."""
        become = ["setpriv", f"--reuid={name}", f"--regid={name}", "--init-groups"]
        done = subprocess.run(
            ["unshare", "--mount", "bash", str(self.base / "enter"), *become, *words],
            input=text,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def change(self, name: str, is_it: Callable[[list[str]], bool], row: Callable[[list[str]], list[str]]) -> None:
        """Change rows of a file of /etc. An empty row goes."""
        path = self.base / "etc" / name
        rows = [line.split(":") for line in path.read_text().splitlines()]
        found = [row(one) if is_it(one) else one for one in rows]
        # Not another file: programs have this one mounted.
        path.write_text("".join(":".join(one) + "\n" for one in found if one))

    # What the scheduler is, and what happens to it.

    def jobs(self) -> list[dict[str, Any]]:
        return sorted((json.loads(path.read_text()) for path in self.slurm.glob("*/job")), key=lambda job: job["id"])

    def end(self, number: int, fate: str, note: str = "") -> None:
        """What becomes of a job."""
        if note:
            (self.slurm / str(number) / "note").write_text(note)
        (self.slurm / str(number) / "fate").write_text(fate)
        pid = next(job for job in self.jobs() if job["id"] == number).get("pid")
        if pid:
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                return


# What tests do with servers.


def server_of(browser: Browser, name: str, server: str = "") -> dict[str, Any]:
    """What the hub says of a server, through a page of its user for which it asks nobody else."""
    page = browser.get("/hub/token")
    answer = browser.get(f"/hub/api/users/{name}?_xsrf={browser.token(page.text)}", Referer=page.url)
    assert answer.status == 200, answer.text
    return answer.json()["servers"].get(server, {})


def ready(portal: Portal, browser: Browser, name: str, server: str = "") -> dict[str, Any]:
    row = portal.until(
        lambda: (row := server_of(browser, name, server)).get("ready") and row,
        STARTS_S,
        f"the session of {name} does not start",
    )
    # The page logs in to the session, by way of the hub.
    assert browser.get(f"{row['url']}lab").status == 200
    return row


def stop(portal: Portal, browser: Browser, name: str, server: str = "") -> None:
    page = browser.get("/hub/home")
    where = f"servers/{server}" if server else "server"
    answer = browser.ask(
        f"/hub/api/users/{name}/{where}?_xsrf={browser.token(page.text)}", method="DELETE", Referer=page.url
    )
    assert answer.status in (202, 204), answer.text
    portal.until(lambda: not server_of(browser, name, server).get("ready"), 60, "it does not stop")


def job_of(portal: Portal, name: str) -> dict[str, Any]:
    return [job for job in portal.jobs() if job["user"] == name][-1]


@pytest.fixture(scope="module")
def alice(portal: Portal) -> Browser:
    browser = Browser(portal)
    assert browser.log_in("alice").status == 200
    return browser


@pytest.fixture(scope="module")
def bob(portal: Portal) -> Browser:
    browser = Browser(portal)
    assert browser.log_in("bob").status == 200
    return browser
