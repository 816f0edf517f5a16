# SPDX-License-Identifier: GPL-3.0-or-later
"""container_check against a stand-in for the command docker; the lab runs it against the real one."""

from __future__ import annotations

import io
import json
import os
import tarfile

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.modules import container_check

# Its behaviour comes from files of the test: the limits before and after daemon-reload, the status of the greedy
# program, the times of the busy one.
DOCKER = """#!/bin/sh
cd {root}
echo "$*" >> docker.log
case "$1" in
version) [ -e silent ] && {{ echo "Cannot connect to the Docker daemon" >&2; exit 1; }}; echo 26.1.5 ;;
import) cat > tree.tar ;;
exec) case "$*" in
  *memory.max*) cat limits ;;
  *"dd if="*) exit "$(cat greedy)" ;;
  *times*) sleep 0.2; cat times ;;
  esac ;;
esac
"""


class Host:
    def __init__(self, root, capsys):
        self.root = root
        self.capsys = capsys
        (root / "bin").mkdir()
        self.program("docker", DOCKER.format(root=root))
        self.program("systemctl", f"#!/bin/sh\n[ ! -e {root}/after ] || cp {root}/after {root}/limits\n")
        self.answer("limits", "67108864\n50000 100000\n")
        self.answer("greedy", "137")
        self.answer("times", "0m0.001s 0m0.000s\n0m0.100s 0m0.000s\n")

    def program(self, name, text):
        path = self.root / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def answer(self, name, text):
        (self.root / name).write_text(text)

    def run(self, **arguments):
        with patch_module_args(arguments), pytest.raises(SystemExit):
            container_check.main()
        return json.loads(self.capsys.readouterr().out.splitlines()[-1])

    @property
    def removed(self):
        lines = (self.root / "docker.log").read_text().splitlines()
        return [line.split()[0] for line in lines if line.startswith("rm")]


@pytest.fixture
def host(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return Host(tmp_path, capsys)


def test_a_good_engine(host):
    result = host.run()
    assert result.get("changed") is False, result
    assert (result["version"], result["memory_limit_bytes"], result["cpu_limit"]) == ("26.1.5", 64 << 20, 0.5)
    assert result["cpu_used"] < 0.7
    assert host.removed == ["rm", "rmi"]
    run = next(line for line in (host.root / "docker.log").read_text().splitlines() if line.startswith("run"))
    assert "--memory=64m --memory-swap=64m --cpus=0.5" in run
    assert "--network=none" in run
    assert "--volume=/usr:/usr:ro" in run


def test_the_image_has_the_hosts_links_and_no_file(host):
    host.run()
    with tarfile.open(fileobj=io.BytesIO((host.root / "tree.tar").read_bytes())) as archive:
        entries = {entry.name: entry for entry in archive.getmembers()}
    assert not any(entry.isfile() for entry in entries.values())
    assert entries["usr"].isdir()
    for name in ("bin", "lib", "lib64"):
        if os.path.islink("/" + name):
            assert entries[name].linkname == os.readlink("/" + name)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("limits", "9223372036854771712\n50000 100000\n", "memory limit of 9223372036854771712 bytes"),
        ("limits", "max\nmax 100000\n", "memory limit of 0 bytes"),
        ("limits", "67108864\n-1 100000\n", "CPU limit of 0 instead of 0.5"),
        ("after", "67108864\nmax 100000\n", "after systemctl daemon-reload"),
        ("greedy", "0", "could take 128 MiB; its limit is 64 MiB"),
        ("greedy", "1", "ended with 1 instead of being killed"),
        ("times", "0m0.0s 0m0.0s\n99m9.5s 0m0.1s\n", "processors; its limit is 0.5"),
    ],
)
def test_limits_that_do_not_hold(host, name, content, words):
    host.answer(name, content)
    result = host.run()
    assert result["failed"]
    assert words in result["msg"]
    assert "journalctl -u docker.service" in result["msg"]
    assert host.removed == ["rm", "rmi"], "something is left behind"


def test_an_engine_that_does_not_answer(host):
    host.answer("silent", "")
    result = host.run(timeout=1)
    assert "Cannot connect to the Docker daemon" in result["msg"]


def test_an_engine_that_is_not_there(host):
    assert "the command podman is not installed" in host.run(engine="podman", timeout=30)["msg"]


@pytest.mark.parametrize("works", [True, False])
def test_a_runtime_that_is_not_the_default_one_is_tried_too(host, works):
    missing = "" if works else "*--runtime=nvidia*) echo 'exec: nvidia-container-runtime: not found' >&2; exit 127 ;;"
    host.program(
        "docker", DOCKER.format(root=host.root).replace('case "$1" in', f'case "$*" in {missing} esac\ncase "$1" in')
    )
    result = host.run(runtimes=["nvidia"])
    assert result.get("failed", False) is not works
    assert works or "the runtime nvidia runs no container" in result["msg"]
    assert works or "nvidia-container-runtime: not found" in result["msg"]
    assert host.removed[-2:] == ["rm", "rmi"]


# A containerd in which the containers of its own ctr always work.
CTR = """#!/bin/sh
cd {root}
echo "$*" >> ctr.log
case "$1 $2" in
"version ") echo "Client: x"; echo "Server:"; echo "  Version:  1.7.24" ;;
"plugins ls") case "$3" in --detailed) echo "Error: no network config" ;; *) cat plugins ;; esac ;;
"run "*) case "$*" in *--runc-binary=/missing*) echo "no such file" >&2; exit 1 ;; esac ;;
"tasks list") echo "TASK PID STATUS"; sed -n 's/.*--detach.* \\(baremetal[^ ]*\\) .*/\\1 {pid} RUNNING/p' ctr.log ;;
"tasks exec") case "$*" in
  *"dd if="*) exit 137 ;;
  *times*) echo "0m0.0s 0m0.0s"; echo "0m0.0s 0m0.0s" ;;
  esac ;;
esac
"""
HEADER = "TYPE                            ID       PLATFORMS      STATUS\n"
LEASES = "io.containerd.grpc.v1           leases   -              ok\n"
SERVED = "io.containerd.grpc.v1           cri      linux/amd64    ok\n"
SERVED_BY_2 = (
    SERVED + "io.containerd.cri.v1            images   -    ok\nio.containerd.cri.v1  runtime  linux/amd64  ok\n"
)


@pytest.fixture
def containerd(host, monkeypatch):
    host.program("ctr", CTR.format(root=host.root, pid=os.getpid()))
    host.program("crictl", f"#!/bin/sh\ncat {host.root}/info\n")
    host.answer("info", '{"status": {"conditions": [{"type": "RuntimeReady", "status": true}]}}')
    host.answer("plugins", HEADER + LEASES + SERVED)
    monkeypatch.setattr(container_check.Containerd, "limits", lambda self: (64 << 20, 0.5))
    return host


@pytest.mark.parametrize("plugins", [SERVED, SERVED_BY_2])
def test_a_containerd_that_serves_a_kubelet(containerd, plugins):
    containerd.answer("plugins", HEADER + LEASES + plugins)
    result = containerd.run(engine="containerd")
    assert (result.get("failed"), result.get("version")) == (None, "1.7.24"), result


@pytest.mark.parametrize(
    ("plugins", "words"),
    [
        (LEASES, "its plugin cri is not loaded; remove it from disabled_plugins"),
        (LEASES + SERVED.replace("ok", "skip"), "its plugin cri is not loaded"),
        (LEASES + SERVED.replace("ok", "error"), "its plugin cri has the status error: Error: no network config"),
        (
            LEASES + SERVED_BY_2.replace("linux/amd64  ok", "linux/amd64  error"),
            "its plugin runtime has the status error",
        ),
    ],
)
def test_a_containerd_that_serves_no_kubelet_fails_though_its_own_command_works(containerd, plugins, words):
    containerd.answer("plugins", HEADER + plugins)
    result = containerd.run(engine="containerd")
    assert result["failed"]
    assert words in result["msg"]
    assert not containerd.run(engine="containerd", cri=False).get("failed")


@pytest.mark.parametrize(
    "info", ['{"status": {"conditions": [{"type": "RuntimeReady", "status": false}]}}', "{}", "no"]
)
def test_a_containerd_that_a_kubelet_would_not_use_fails(containerd, info):
    containerd.answer("info", info)
    assert "RuntimeReady" in containerd.run(engine="containerd")["msg"]


def test_a_program_in_the_place_of_runc_that_is_gone_fails(containerd):
    result = containerd.run(engine="containerd", runtimes=["/missing"])
    assert "the runtime /missing runs no container" in result["msg"]
    assert not containerd.run(engine="containerd", runtimes=["/usr/bin/crun"]).get("failed")
