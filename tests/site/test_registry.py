# SPDX-License-Identifier: GPL-3.0-or-later
"""registry.yml on two machines of the lab: the registry on Debian 13, which has Podman, and a client on Debian 12 with
Docker 20.10.

The tests of this file run in order.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site.plays import INVENTORY, Play, lab, run_playbook, services, ssh, until

pytestmark = [pytest.mark.lab, pytest.mark.slow]

REGISTRY, CLIENT = "reg1", "reg2"
SUITES = {REGISTRY: "trixie", CLIENT: "bookworm"}
AT = f"{REGISTRY}:5000"
STORAGE = "/srv/images"
COLLECT = "baremetal-gpu-registry-collect"
UPLOADS = "baremetal-gpu-registry-uploads"
# An image of one layer with so much noise.
IMAGE = "mkdir -p /tmp/i && head -c {} /dev/urandom > /tmp/i/f && tar -C /tmp/i -c f | sudo docker import - {}"


class Site:
    """:ivar shown: what its runs have printed."""

    def __init__(self, base: Path) -> None:
        self.base, self.shown = base, ""
        self.groups = base / "groups.yml"
        groups = {"registries": [REGISTRY], "registry_clients": list(SUITES)}
        content = {group: {"hosts": {name: {} for name in hosts}} for group, hosts in groups.items()}
        self.groups.write_text(json.dumps(content))

    def run(self, options: str = "--diff", limit: str = "", **variables: Any) -> Play:
        play = run_playbook(
            "registry.yml",
            limit=limit or ",".join(SUITES),
            extra_vars={
                "registry_tls_path": str(self.base / "tls"),
                "registry_passwords_path": str(self.base / "passwords"),
                "registry_storage_path": f"{STORAGE}/registry",
                "registry_storage_mount": STORAGE,
                "registry_users": [{"name": "alice", "quota": "30M"}, {"name": "bob"}],
                "registry_public": ["open"],
                "registry_min_free": "20M",
                "registry_ready_timeout": 20,
                "registry_client_ready_timeout": 5,
                **variables,
            },
            options=f"-i {INVENTORY} -i {self.groups} {options}",
        )
        self.shown += play.stdout
        return play

    def converge(self, **variables: Any) -> Play:
        play = self.run(**variables)
        assert play.rc == 0, play.tail()
        return play

    def password(self, user: str) -> str:
        return (self.base / "passwords" / user).read_text().strip()


def mount() -> None:
    """A small disk for the images."""
    ssh(REGISTRY, f"sudo mkdir -p {STORAGE} && sudo mount -t tmpfs -o size=100M images {STORAGE}")


def docker(command: str, check: bool = True) -> str:
    return ssh(CLIENT, f"sudo docker {command} 2>&1", check=check)


def login(site: Site, user: str) -> None:
    ssh(CLIENT, f"echo {shlex.quote(site.password(user))} | sudo docker login {AT} -u {user} --password-stdin")


def pushes(name: str, size: int) -> str:
    """What Docker says to the push of an image."""
    ssh(CLIENT, IMAGE.format(size, f"{AT}/{name}"))
    return docker(f"push {AT}/{name}", check=False)


def pulls(name: str) -> str:
    docker(f"rmi {AT}/{name}", check=False)
    return docker(f"pull {AT}/{name}", check=False)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    lab("up", *(word for name, suite in SUITES.items() for word in ("--machine", f"{name}:{suite}:no-gpu")))
    yield Site(tmp_path_factory.mktemp("registry"))
    lab("down", *(word for name in SUITES for word in ("--machine", name)))


@pytest.fixture(scope="module")
def site(bare: Site) -> Site:
    bare.converge()
    install = "sudo apt-get update -q && sudo apt-get install -qy --no-install-recommends"
    ssh(CLIENT, f"{install} docker.io", check=True)
    ssh(REGISTRY, f"{install} podman skopeo", check=True)
    return bare


def test_without_the_mount_the_host_is_refused_and_untouched(bare: Site) -> None:
    before = lab("changes", REGISTRY)
    play = bare.run(limit=REGISTRY)
    assert play.rc != 0
    assert f"nothing mounted at {STORAGE}" in re.sub(r"\s+", " ", play.stdout)
    assert lab("changes", REGISTRY) == before
    assert not (bare.base / "passwords").exists()
    mount()


def test_check_mode_tells_what_comes_and_makes_nothing(bare: Site) -> None:
    before = {machine: lab("changes", machine) for machine in SUITES}
    play = bare.run("--check --diff")
    assert play.rc == 0, play.tail()
    assert "docker-registry" in " ".join(play.drifts[REGISTRY, "registry"])
    assert f"/etc/docker/certs.d/{AT}/ca.crt" in " ".join(play.drifts[CLIENT, "registry_client"])
    assert {machine: lab("changes", machine) for machine in SUITES} == before
    assert not (bare.base / "passwords").exists()
    assert not (bare.base / "tls").exists()


def test_docker_pushes_and_pulls_and_podman_pulls_it_too(site: Site) -> None:
    login(site, "alice")
    assert "digest: sha256:" in pushes("alice/train:v1", 1_000_000)
    assert "Downloaded newer image" in pulls("alice/train:v1")
    # sudo logs what it is called with.
    word = shlex.quote(site.password("alice"))
    ssh(REGISTRY, f"echo {word} | sudo podman login -u alice --password-stdin {AT}")
    pulled = ssh(REGISTRY, f"sudo podman pull {AT}/alice/train:v1 2>&1")
    ssh(REGISTRY, f"sudo podman logout {AT}")
    assert re.search(r"^[0-9a-f]{64}$", pulled, re.MULTILINE), pulled


def test_a_wrong_password_and_a_foreign_namespace_are_told(site: Site) -> None:
    said = ssh(CLIENT, f"echo wrong | sudo docker login {AT} -u bob --password-stdin 2>&1", check=False)
    assert "unauthorized: registry reg1: log in" in said
    for name in ("bob/x:v1", "catalogue/x:v1", "open/x:v1"):
        assert "denied: registry reg1: you can push and delete below your own name" in pushes(name, 100)


def test_a_public_image_is_pulled_without_a_login_and_no_other(site: Site) -> None:
    login(site, "operator")
    assert "digest: sha256:" in pushes("open/tools:v1", 1000)
    assert "digest: sha256:" in pushes("catalogue/base:v1", 1000)
    docker(f"logout {AT}")
    assert "Downloaded newer image" in pulls("open/tools:v1")
    assert "unauthorized" in pulls("catalogue/base:v1")
    assert "unauthorized" in pulls("alice/train:v1")
    login(site, "bob")
    assert "Downloaded newer image" in pulls("catalogue/base:v1")


def test_no_secret_is_shown_or_open_to_others(site: Site) -> None:
    secrets = [site.password(user) for user in ("operator", "alice", "bob")]
    secrets.append((site.base / "tls" / "ca-key.pem").read_text().splitlines()[1])
    assert not [secret for secret in secrets if secret in site.shown]
    assert {oct(path.stat().st_mode & 0o777) for path in (site.base / "passwords").iterdir()} == {"0o600"}
    for machine in SUITES:
        for secret in secrets:
            found = "sudo grep -rlF -f - /etc /var/lib/baremetal-gpu /var/log /run/log 2>/dev/null || true"
            assert ssh(machine, f"echo {shlex.quote(secret)} | {found}") == ""
    mode = "sudo stat -c '%a %U:%G' /etc/baremetal-gpu/registry/{}"
    assert ssh(REGISTRY, mode.format("htpasswd")).strip() == "640 root:www-data"
    assert ssh(REGISTRY, mode.format("key.pem")).strip() == "600 root:root"


def test_no_account_of_the_host_gets_around_nginx(site: Site) -> None:
    for name in ("read", "write"):
        path = f"/run/baremetal-gpu-registry-{name}/http.sock"
        connect = f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})"
        assert "PermissionError" in ssh(REGISTRY, f"sudo -u nobody python3 -c {shlex.quote(connect)} 2>&1", check=False)
    listening = ssh(REGISTRY, "sudo ss -Hltnp")
    assert "docker-registry" not in listening
    assert "masked" in ssh(REGISTRY, "systemctl is-enabled docker-registry || true")


def test_a_second_run_changes_nothing_and_restarts_nothing(site: Site) -> None:
    before = {machine: services(machine) for machine in SUITES}
    assert site.converge().changed_tasks == {}
    assert {machine: services(machine) for machine in SUITES} == before


def test_a_new_user_comes_without_a_restart(site: Site) -> None:
    before = services(REGISTRY)
    users = [{"name": "alice", "quota": "30M"}, {"name": "bob"}, {"name": "carol"}]
    site.converge(registry_users=users)
    assert services(REGISTRY) == before
    login(site, "carol")
    site.converge()
    said = docker(f"pull {AT}/catalogue/base:v1", check=False)
    assert "unauthorized" in said


def test_a_user_over_the_quota_is_told_how_much(site: Site) -> None:
    login(site, "alice")
    assert "digest: sha256:" in pushes("alice/large:v1", 31_500_000)
    refused = "/run/baremetal-gpu-registry-store/refused/space-alice.json"
    until(lambda: ssh(REGISTRY, f"sudo cat {refused} || true", check=False), 150, lambda: refused)
    said = pushes("alice/more:v1", 1000)
    assert re.search(r"denied: registry reg1: alice has 3\d\.\d MiB of 30\.0 MiB", said), said
    assert "Downloaded newer image" in pulls("alice/train:v1")


def test_a_disk_that_gets_full_in_a_push_loses_nothing(site: Site) -> None:
    login(site, "bob")
    said = pushes("bob/huge:v1", 90_000_000)
    assert "digest: sha256:" not in said
    refused = "/run/baremetal-gpu-registry-store/refused"
    login(site, "operator")
    assert "Downloaded newer image" in pulls("alice/train:v1")
    assert "Downloaded newer image" in pulls("open/tools:v1")
    # What fills it now is no image.
    ssh(REGISTRY, f"sudo head -c 99M /dev/zero | sudo tee {STORAGE}/other > /dev/null", check=False)
    until(lambda: "all.json" in ssh(REGISTRY, f"ls {refused}"), 60, lambda: ssh(REGISTRY, f"ls {refused}"))
    said = pushes("open/more:v1", 1000)
    assert re.search(r"denied: registry reg1: .* are free; the minimum is 20\.0 MiB", said), said
    assert "Downloaded newer image" in pulls("alice/train:v1")
    # What the push has left counts until a timer removes it, after hours in which nothing came.
    ssh(REGISTRY, f"sudo rm {STORAGE}/other")
    left = f"sudo find {STORAGE}/registry -path '*/_uploads/*' -name data"
    ssh(REGISTRY, f"sudo systemctl start {UPLOADS}")
    assert ssh(REGISTRY, left)
    ssh(REGISTRY, f"sudo find {STORAGE}/registry -path '*/_uploads/*' -exec touch -d '3 hours ago' {{}} +")
    ssh(REGISTRY, f"sudo systemctl start {UPLOADS}")
    assert not ssh(REGISTRY, left)
    assert "baremetal-gpu-registry-uploads" in ssh(REGISTRY, "systemctl list-timers --no-pager")
    until(lambda: "all.json" not in ssh(REGISTRY, f"ls {refused}"), 60, lambda: ssh(REGISTRY, f"ls {refused}"))
    assert "digest: sha256:" in pushes("open/more:v1", 1000)


def test_space_is_freed_and_a_cut_collection_leaves_it_writable(site: Site) -> None:
    # Older than the grace.
    ssh(REGISTRY, f"sudo find {STORAGE}/registry -exec touch -d '3 days ago' {{}} +")
    word = shlex.quote(site.password("operator"))
    delete = f"sudo skopeo delete --creds operator:{word} docker://{AT}/alice/large:v1"
    ssh(REGISTRY, delete)
    used = f"sudo du -sm {STORAGE}/registry | cut -f1"
    before = int(ssh(REGISTRY, used))
    freezes = f"sudo systemctl edit --runtime --stdin {COLLECT} <<< $'[Service]\\nExecStartPre=/bin/sleep 600'"
    ssh(REGISTRY, f"bash -c {shlex.quote(freezes)} && sudo systemctl daemon-reload")
    ssh(REGISTRY, f"sudo systemctl start --no-block {COLLECT}")
    stopped = "systemctl is-active baremetal-gpu-registry@write || true"
    until(lambda: ssh(REGISTRY, stopped).strip() == "inactive", 60, lambda: ssh(REGISTRY, stopped))
    assert "digest: sha256:" not in pushes("open/meanwhile:v1", 1000)
    assert "Downloaded newer image" in pulls("alice/train:v1")
    ssh(REGISTRY, f"sudo systemctl kill --signal=KILL {COLLECT}")
    until(lambda: ssh(REGISTRY, stopped).strip() == "active", 60, lambda: ssh(REGISTRY, stopped))
    login(site, "operator")
    assert "digest: sha256:" in docker(f"push {AT}/open/meanwhile:v1", check=False)
    ssh(REGISTRY, f"sudo rm -r /run/systemd/system/{COLLECT}.service.d && sudo systemctl daemon-reload")
    ssh(REGISTRY, f"sudo systemctl reset-failed {COLLECT}; sudo systemctl start {COLLECT}")
    assert int(ssh(REGISTRY, used)) <= before - 30
    assert "Downloaded newer image" in pulls("alice/train:v1")


def test_images_can_be_copied_and_brought_back(site: Site) -> None:
    site.converge(registry_backup_path="/var/backups/registry")
    ssh(REGISTRY, "sudo systemctl start baremetal-gpu-registry-backup")
    both = "baremetal-gpu-registry@read baremetal-gpu-registry@write"
    ssh(
        REGISTRY,
        f"sudo systemctl stop {both} && sudo rm -r {STORAGE}/registry/docker "
        f"&& sudo cp -a /var/backups/registry/docker {STORAGE}/registry/ "
        f"&& sudo chown -R docker-registry: {STORAGE}/registry && sudo systemctl start {both}",
    )
    until(lambda: "Downloaded newer image" in pulls("alice/train:v1"), 30, lambda: pulls("alice/train:v1"))
    site.converge()
    assert "registry-backup" not in ssh(REGISTRY, "systemctl list-timers --all --no-pager")


def test_an_expired_certificate_of_the_operator_is_refused_and_on_the_host_it_is_named(site: Site) -> None:
    own = site.base / "own"
    own.mkdir()
    for words in (
        "req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=own -keyout ca-key.pem -out ca.pem",
        "req -newkey rsa:2048 -nodes -subj /CN=reg1 -keyout key.pem -out r.csr -addext subjectAltName=DNS:reg1",
        "x509 -req -in r.csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days -1 -copy_extensions copy -out c.pem",
    ):
        subprocess.run(["openssl", *words.split()], cwd=own, check=True, capture_output=True)
    files = {name: str(own / file) for name, file in (("authority", "ca.pem"), ("certificate", "c.pem"))}
    play = site.run(registry_tls_files={**files, "key": str(own / "key.pem")}, limit=REGISTRY)
    assert play.rc != 0
    assert "c.pem" in play.stdout
    assert play.changed(REGISTRY) == 0
    assert "Downloaded newer image" in pulls("alice/train:v1")
    # One that ends on the host, because nobody has run the playbook.
    for name, at in (("c.pem", "certificate.pem"), ("key.pem", "key.pem")):
        content = shlex.quote((own / name).read_text())
        ssh(REGISTRY, f"echo {content} | sudo tee /etc/baremetal-gpu/registry/{at} > /dev/null")
    ssh(REGISTRY, "sudo systemctl restart nginx")
    ssh(CLIENT, "sudo rm /etc/baremetal-gpu/registry-client/ca.crt")
    play = site.run(limit=CLIENT)
    assert play.rc != 0
    text = re.sub(r"\s+", " ", play.stdout)
    assert "does not get the registry's answer from https://reg1:5000/v2/" in text
    assert "certificate" in text
    assert "run playbooks/registry.yml for reg1" in text
    site.converge()
    assert "Downloaded newer image" in pulls("alice/train:v1")


def test_absent_leaves_the_images_and_nothing_else(site: Site) -> None:
    ssh(CLIENT, "sudo mkdir -p /etc/docker/certs.d/other:5000 && sudo touch /etc/docker/certs.d/other:5000/ca.crt")
    gone = {"registry_state": "absent", "registry_client_state": "absent"}
    refused = site.run(**gone, registry_purge_storage="another")
    assert refused.rc != 0
    site.converge(**gone)
    assert not re.search(r":500[01]\b", ssh(REGISTRY, "sudo ss -Hltn"))
    left = "sudo find /etc /usr/libexec /run -path '*baremetal-gpu*registry*' -type f -o -path '*certs.d/reg1*' -type f"
    for machine in SUITES:
        assert ssh(machine, left) == ""
        assert ssh(machine, "systemctl is-system-running || true").strip() == "running"
    assert ssh(CLIENT, "ls /etc/docker/certs.d/other:5000").strip() == "ca.crt"
    assert "blobs" in ssh(REGISTRY, f"sudo ls {STORAGE}/registry/docker/registry/v2")
    assert site.converge(**gone).changed_tasks == {}
    site.converge(**gone, registry_purge_storage=REGISTRY)
    assert ssh(REGISTRY, f"sudo find {STORAGE}/registry -type f -name data") == ""
