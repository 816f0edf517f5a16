# SPDX-License-Identifier: GPL-3.0-or-later
"""The registry of a site as processes on loopback: Debian's nginx and docker-registry, unpacked and not installed, with
the configurations that the role registry writes."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from ansible_collections.baremetal.gpu.plugins.modules.registry_passwords import hashed
from ansible_collections.baremetal.gpu.plugins.plugin_utils import certificates
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import registry
from tests import debian_programs
from tests.local_zookeeper import free_port

HOST = "reg1"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
PASSWORDS = {
    "operator": "operator-secret-1",
    "alice": "alice-secret-123",
    "bob": "bob-secret-12345",
    "carol": "carol-secret-1234",
}
# Of carol's password; the others are generated ones.
CAROLS_HASH = "$2b$05$abcdefghijklmnopqrstuuodvcjQHn8FMmFVexiwb2U6Mf6Quv98q"
PARAMS: dict[str, Any] = {
    "state": "present",
    "listen": ["127.0.0.1"],
    "port": 5000,
    "loopback_port": 5001,
    "name": "",
    "names": [],
    "operator": "operator",
    "homes_users": [],
    "users": [{"name": "alice"}, {"name": "bob"}, {"name": "carol", "hash": CAROLS_HASH}],
    "public": ["open"],
    "quota": "",
    "min_free": "1M",
    "storage_path": "/var/lib/docker-registry",
    "storage_mount": "",
    "purge_storage": "",
    "collect_at": "*-*-* 03:30",
    "untagged_days": 30,
    "grace_hours": 24,
    "upload_hours": 2,
    "backup_path": "",
    "backup_mount": "",
    "backup_at": "*-*-* 02:00",
    "caches": [],
    "tls_files": {},
    "metrics_directory": "",
    "hashes": {user: hashed(user, password) for user, password in PASSWORDS.items() if user != "carol"},
}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["errors"][0]["code"])

    @property
    def message(self) -> str:
        return str(json.loads(self.body)["errors"][0]["message"])


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def missing_programs() -> str:
    """Why it cannot run on this machine; empty if it can."""
    gaps = [name for name in ("nginx", "docker-registry") if debian_programs.path_of(name) is None]
    return f"there is no {' and no '.join(gaps)}: python -m tests.needs fetches them" if gaps else ""


class LocalRegistry:
    """Both registries and nginx. Each can be stopped and started again; the storage stays."""

    def __init__(self, base: Path, **params: Any) -> None:
        self.base, self.port = base, free_port()
        # The path of a socket must not be long.
        self.sockets = tempfile.mkdtemp(prefix="registry-")
        self.storage = base / "storage"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        certificate = certificates.keep(
            {
                "path": str(base / "tls"),
                "certificates": [{"name": HOST, "names": [HOST, "127.0.0.1"]}],
                "authority": None,
                "days": 10,
                "renew": 1,
                "held": [],
            },
            False,
            lambda warning: None,
        )
        self.params = {
            **PARAMS,
            "port": self.port,
            "loopback_port": free_port(),
            "storage_path": str(self.storage),
            "certificates": certificate,
            **params,
        }
        self.refused = self.place(registry.REFUSED)
        for path in (self.storage, self.refused, self.place(registry.DIRECTORY), base / "log"):
            path.mkdir(parents=True, exist_ok=True)
        plan = registry.desired(self.params, {}, {"host": HOST, "hosts": [HOST]})
        assert plan.problems == (), plan.problems
        for row in plan.desired["files"]:
            if row["path"].startswith(registry.DIRECTORY + "/") or row["path"] == registry.NGINX_CONF:
                path = self.place(row["path"])
                path.parent.mkdir(parents=True, exist_ok=True)
                content = row["content"] if "content" in row else Path(row["source"]).read_text()
                path.write_text(self.moved(content))
        self.nginx_conf = base / "nginx.conf"
        self.nginx_conf.write_text(
            f"daemon off;\npid {base}/nginx.pid;\nerror_log {base}/log/error.log info;\n"
            + ("user root;\n" if os.geteuid() == 0 else "")
            + "events { worker_connections 256; }\nhttp {\n"
            + "".join(f"{kind}_temp_path {base}/{kind};\n" for kind in ("proxy", "fastcgi", "scgi", "uwsgi"))
            + f"client_body_temp_path {base}/body;\ninclude {self.place(registry.NGINX_CONF)};\n}}\n"
        )
        self.names = list(registry.configurations(self.params))
        self.tls = ssl.create_default_context(cafile=str(base / "tls" / "ca.pem"))
        self.tls.check_hostname = True

    def place(self, path: str) -> Path:
        """Where a file of the host is here."""
        return Path(self.moved(path))

    def moved(self, text: str) -> str:
        text = re.sub(r"/run/(?=baremetal-gpu-registry)", f"{self.sockets}/", text)
        text = re.sub(r"(?<![\w.])/etc/(baremetal-gpu|nginx)", rf"{self.base}/etc/\1", text)
        return re.sub(r"access_log syslog:server=unix:/dev/log[^ ]+ ", f"access_log {self.base}/log/access.log ", text)

    def start(self, *names: str) -> None:
        for name in names or (*self.names, "nginx"):
            if name == "nginx":
                command = [debian_programs.path_of("nginx"), "-c", self.nginx_conf, "-p", self.base]
            else:
                socket = self.place(registry.socket_of(name))
                socket.parent.mkdir(parents=True, exist_ok=True)
                socket.unlink(missing_ok=True)
                configuration = self.place(f"{registry.DIRECTORY}/{name}.yml")
                command = [debian_programs.path_of("docker-registry"), "serve", configuration]
            with (self.base / "log" / name).open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    [str(word) for word in command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "OTEL_TRACES_EXPORTER": "none"},
                )
        until = time.monotonic() + 60
        while not self.is_up():
            assert time.monotonic() < until, self.said()
            time.sleep(0.05)

    def is_up(self) -> bool:
        # A cache asks its upstream before it listens.
        if not all(self.place(registry.socket_of(name)).exists() for name in self.processes if name != "nginx"):
            return False
        try:
            ready = self.ask("GET", "/v2/", "operator").status == 200
            # The writing registry answers itself.
            return ready and self.ask("GET", f"/v2/none/blobs/uploads/{'0' * 36}", "operator").status == 404
        except OSError:
            return False

    def said(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in (self.base / "log").iterdir())

    def stop(self, *names: str, how: signal.Signals = signal.SIGTERM) -> None:
        for name in names or list(self.processes):
            process = self.processes.pop(name)
            process.send_signal(how)
            process.wait(timeout=90)
        if not names:
            shutil.rmtree(self.sockets)

    # --- requests ---

    def ask(
        self,
        method: str,
        path: str,
        user: str = "",
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        password: str | None = None,
    ) -> Answer:
        """One request, with its path as it is given."""
        words = dict(headers or {})
        if user:
            word = f"{user}:{PASSWORDS.get(user, '') if password is None else password}"
            words["Authorization"] = f"Basic {base64.b64encode(word.encode()).decode()}"
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.tls, timeout=60)
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in words.items():
                connection.putheader(name, value)
            if body is not None or method in ("POST", "PUT", "PATCH"):
                connection.putheader("Content-Length", str(len(body or b"")))
            connection.endheaders(body)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def push_blob(self, user: str, repository: str, content: bytes) -> Answer:
        begun = self.ask("POST", f"/v2/{repository}/blobs/uploads/", user)
        if begun.status != 202:
            return begun
        path = begun.headers["location"].partition(f":{self.port}")[2]
        sent = self.ask("PATCH", path, user, content, {"Content-Type": "application/octet-stream"})
        if sent.status != 202:
            return sent
        path = sent.headers["location"].partition(f":{self.port}")[2]
        return self.ask("PUT", f"{path}&digest={digest_of(content).replace(':', '%3A')}", user)

    def push(self, user: str, repository: str, tag: str, *layers: bytes) -> Answer:
        """An image of these layers; the value is the first answer that is none of success, or that to its manifest."""
        config = json.dumps({"tag": tag, "repository": repository}).encode()
        for content in (config, *layers):
            done = self.push_blob(user, repository, content)
            if done.status != 201:
                return done
        return self.put(user, repository, tag, manifest(config, *layers), MANIFEST)

    def put(self, user: str, repository: str, tag: str, content: bytes, media: str) -> Answer:
        return self.ask("PUT", f"/v2/{repository}/manifests/{tag}", user, content, {"Content-Type": media})

    def pull(self, user: str, repository: str, tag: str) -> list[bytes] | int:
        """The layers of an image, or the status of the first answer that is not 200."""
        headers = {"Accept": f"{MANIFEST}, {INDEX}"}
        found = self.ask("GET", f"/v2/{repository}/manifests/{tag}", user, headers=headers)
        if found.status != 200:
            return found.status
        document, layers = json.loads(found.body), []
        for row in (document["config"], *document["layers"]):
            blob = self.ask("GET", f"/v2/{repository}/blobs/{row['digest']}", user)
            if blob.status != 200:
                return blob.status
            assert digest_of(blob.body) == row["digest"]
            layers.append(blob.body)
        return layers[1:]


def manifest(config: bytes, *layers: bytes) -> bytes:
    def row(media: str, content: bytes) -> dict[str, Any]:
        return {"mediaType": media, "size": len(content), "digest": digest_of(content)}

    return json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": row("application/vnd.docker.container.image.v1+json", config),
            "layers": [row(LAYER, layer) for layer in layers],
        }
    ).encode()
