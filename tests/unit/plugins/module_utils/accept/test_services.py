# SPDX-License-Identifier: GPL-3.0-or-later
"""Services are tried against a server that answers as they do; the answers are made up in their shape."""

from __future__ import annotations

import hashlib
import http.server
import json
import shutil
import subprocess
import threading

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import services
from ansible_collections.baremetal.gpu.plugins.module_utils.accept.services import Http, NoAnswer
from ansible_collections.baremetal.gpu.plugins.plugin_utils import certificates
from tests.unit.plugins.module_utils.portal.tls_site import serving


class Server(http.server.ThreadingHTTPServer):
    """`answers` has by method and path (status, bytes or a document), or what to call for that."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.asked = {}, []
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.listen = f"127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *words):
        pass

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        self.server.asked.append((self.command, self.path, self.headers.get("Authorization"), body))
        found = self.server.answers.get(f"{self.command} {self.path}", (404, b"no such page"))
        status, content = found() if callable(found) else found
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = answer


@pytest.fixture
def server():
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


TARGETS = "GET /api/v1/targets?state=active"
ALERTS = "GET /api/v2/alerts?active=true"


def target(host, health="up", error="", job="node"):
    return {"labels": {"host": host, "job": job}, "health": health, "lastError": error}


def test_targets_and_the_alert_that_always_fires(server):
    server.answers[TARGETS] = (200, {"data": {"activeTargets": [target("n1"), target("n2", "down", "refused")]}})
    server.answers[ALERTS] = (200, [{"labels": {"alertname": "Watchdog"}}])
    found = services.monitoring(server.listen, server.listen)
    assert (found["error"], found["watchdog"]) == (None, True)
    assert found["targets"][1] == {"host": "n2", "job": "node", "health": "down", "error": "refused"}
    server.answers[ALERTS] = (200, [{"labels": {"alertname": "Other"}}])
    assert services.monitoring(server.listen, server.listen)["watchdog"] is False


def test_of_very_many_targets_those_that_fail_are_told(server, monkeypatch):
    monkeypatch.setattr(services, "TARGETS_MOST", 3)
    many = [target("", job=f"job{number}") for number in range(8)]
    listed = [*many, target("n1"), target("n2", "down", "refused"), target("", "unknown", job="ceph")]
    server.answers[TARGETS] = (200, {"data": {"activeTargets": listed}})
    found = services.monitoring(server.listen, server.listen)["targets"]
    assert [(row["host"], row["job"]) for row in found] == [("n2", "node"), ("", "ceph"), ("n1", "node")]


@pytest.mark.parametrize("answer", [(500, b"broken"), (200, b"<html>"), (200, {"data": 7}), (200, [7])])
def test_answers_that_make_no_sense_are_told(server, answer):
    server.answers[TARGETS] = server.answers[ALERTS] = answer
    found = services.monitoring(server.listen, server.listen)
    assert found["error"]
    assert found["targets"] == []
    assert found["watchdog_error"]


def test_who_does_not_answer_is_told():
    found = services.monitoring("127.0.0.1:1", "127.0.0.1:1")
    assert "refused" in found["error"]
    assert "refused" in found["watchdog_error"]


def test_an_address_to_listen_on_becomes_that_of_the_host_itself():
    assert services.local(":9090") == services.local("0.0.0.0:9090") == "http://127.0.0.1:9090"
    assert services.local("10.0.0.1:9090") == "http://10.0.0.1:9090"


def digest(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture
def image(server):
    """Two blobs behind an index of platforms."""
    blobs = [b"config", b"layer" * 1000]
    for data in blobs:
        server.answers[f"GET /v2/catalogue/tool/blobs/{digest(data)}"] = (200, data)
    rows = [{"digest": digest(data), "size": len(data)} for data in blobs]
    manifest = {"config": rows[0], "layers": rows[1:]}
    server.answers["GET /v2/catalogue/tool/manifests/sha256:one"] = (200, manifest)
    server.answers["GET /v2/catalogue/tool/manifests/1.0"] = (200, {"manifests": [{"digest": "sha256:one"}]})
    return blobs


def test_an_image_is_pulled_and_its_digests_are_compared(server, image):
    assert services.pull(Http(server.url), "catalogue/tool:1.0") == sum(map(len, image))
    server.answers[f"GET /v2/catalogue/tool/blobs/{digest(image[1])}"] = (200, b"layer" * 999)
    with pytest.raises(NoAnswer, match="other bytes than its digest"):
        services.pull(Http(server.url), "catalogue/tool:1.0")


def test_an_image_that_is_not_there_or_wants_a_login_is_told(server, image):
    with pytest.raises(NoAnswer, match="404"):
        services.pull(Http(server.url), "catalogue/tool:2.0")
    server.answers["GET /v2/catalogue/tool/manifests/1.0"] = (401, b"who are you?")
    with pytest.raises(NoAnswer, match="401"):
        services.pull(Http(server.url), "catalogue/tool:1.0")
    with pytest.raises(NoAnswer, match="names no image"):
        services.pull(Http(server.url), "../etc/passwd:x y")


def test_a_manifest_that_makes_no_sense_is_told(server):
    for nonsense in ({}, [], {"manifests": []}, {"config": {}, "layers": 7}):
        server.answers["GET /v2/x/manifests/latest"] = (200, nonsense)
        with pytest.raises(NoAnswer, match="cannot be read"):
            services.pull(Http(server.url), "x")


def test_a_registry_that_the_host_does_not_trust_is_told(server, tmp_path):
    assert "cannot be read" in services.registry("r:5000", str(tmp_path / "ca.crt"), "x", "")["error"]
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        "/CN=r",
    ]
    subprocess.run([*words, "-keyout", "key", "-out", "ca.crt"], cwd=tmp_path, check=True, capture_output=True)
    # It answers without TLS.
    assert services.registry(server.listen, str(tmp_path / "ca.crt"), "x", "")["error"]


class Hub:
    """A hub whose session needs two looks until it is ready."""

    def __init__(self, server, ready_after=2):
        self.looks, self.running, self.ready_after = 0, False, ready_after
        self.server = server
        server.answers |= {
            "GET /hub/api/": (200, {"version": "5.2.1"}),
            "GET /hub/api/user": (200, {"name": "alice"}),
            "GET /hub/api/users/alice": self.user,
            "POST /hub/api/users/alice/server": self.start,
            "DELETE /hub/api/users/alice/server": self.stop,
            "GET /user/alice/api/status": (200, {"kernels": 0}),
        }

    def user(self):
        self.looks += 1
        return 200, {"servers": {"": {"ready": self.looks > self.ready_after}} if self.running else {}}

    def start(self):
        self.running = True
        return 202, b""

    def stop(self):
        self.running = False
        return 202, b""

    def tried(self, token="secret"):
        http = Http(self.server.url, None, {"Authorization": f"token {token}"} if token else {})
        ticks = iter(range(100000))
        return services.portal(443, token, http, lambda: float(next(ticks)), lambda seconds: None)


def test_a_session_begins_answers_and_ends(server):
    hub = Hub(server)
    found = hub.tried()
    assert (found["version"], found["session"], found["session_error"]) == ("5.2.1", True, None)
    assert not hub.running
    (started,) = [body for command, _path, _token, body in server.asked if command == "POST"]
    assert json.loads(started)["gpus"] == 0
    assert {token for _command, _path, token, _body in server.asked} == {"token secret"}


def test_a_session_that_does_not_answer_is_a_fault_and_is_ended(server):
    hub = Hub(server)
    server.answers["GET /user/alice/api/status"] = (503, b"no route")
    found = hub.tried()
    assert found["session"] is False
    assert "503" in found["session_error"]
    assert not hub.running
    hub = Hub(server, ready_after=10**6)
    assert "not ready after" in hub.tried()["session_error"]
    assert not hub.running


def test_a_session_that_the_user_has_is_left_alone(server):
    hub = Hub(server)
    hub.running = True
    found = hub.tried()
    assert found["session"] is None
    assert "left alone" in found["session_error"]
    assert hub.running


def test_without_a_token_only_the_hub_is_asked(server):
    Hub(server)
    assert Hub(server).tried("")["session"] is None
    assert {path for _command, path, _token, _body in server.asked} == {"/hub/api/"}


@pytest.fixture(scope="module")
def portal(tmp_path_factory):
    """A host of a portal: its root, and its authority with certificates of the portal and of one of its sessions."""
    base = tmp_path_factory.mktemp("portal")
    etc = base / "etc" / "baremetal-gpu" / "portal"
    (etc / "tls").mkdir(parents=True)
    (etc / "settings.json").write_text(json.dumps({"hub": {"public_url": "https://portal.example.org"}}))
    authority = certificates.Authority(str(base / "site"))
    authority.make()
    authority.sign("portal", ["portal.example.org", "*.portal.example.org"], 2)
    authority.sign("other", ["localhost", "127.0.0.1"], 2)
    shutil.copy(authority.certificate, etc / "tls" / "ca.pem")
    return str(base), authority


def test_a_hub_that_is_gone_is_told(portal, tmp_path):
    assert "refused" in services.portal(1, "x", root=portal[0])["error"]
    assert "cannot be read" in services.portal(1, "x", root=str(tmp_path))["error"]


def test_the_portal_proves_itself_before_the_token_is_shown_to_it(portal):
    root, authority = portal
    with serving(authority.pair("portal")) as server:
        server.says = json.dumps({"version": "6.1.1", "name": "alice", "servers": {"": {"ready": True}}}).encode()
        assert services.portal(server.server_port, "secret", root=root)["version"] == "6.1.1"
        assert {token for _path, token, _body in server.came} == {"token secret"}
    for pair in (authority.pair("other"), None):
        with serving(pair) as other:
            assert services.portal(other.server_port, "secret", root=root)["error"]
            assert other.came == []


def test_a_session_is_asked_at_its_own_origin(portal):
    root, authority = portal
    with serving(authority.pair("portal")) as server:
        base = f"https://portal.example.org:{server.server_port}"
        http = services._portal_of(server.server_port, "secret", root)
        http.below(base.replace("portal", "alice.portal")).document("/user/alice/api/status")
        assert [path for path, _token, _body in server.came] == ["/user/alice/api/status"]
        for url in (
            "https://evil.example",
            base,
            base.replace("portal", "evilportal"),
            "http://alice.portal.example.org",
        ):
            with pytest.raises(NoAnswer, match="is not below"):
                http.below(f"{url}/user/alice/")


def test_what_a_login_lacks_is_named(tmp_path):
    for name in ("vim", "tmux", "git", "rsync", "curl", "python3", "gcc", "make"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert services.login(str(tmp_path)) == {"missing": ["htop or top"]}
