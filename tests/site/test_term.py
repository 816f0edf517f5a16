# SPDX-License-Identifier: GPL-3.0-or-later
"""A term on a cluster that is made by the front door: three bare machines, addresses and a list of users, and from then
on what an operator and users do. Everything is real but the GPUs.

The tests run in order on machines of their own; each is a step, and how long it took is told at the end.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site.front_door import Site
from tests.site.plays import ROOT, lab, services, ssh, until
from tests.site.portal_lab import Pages, run_cells
from tests.site.test_slurm_images import MISSING
from tests.unit.roles.portal_browser import ADDRESSES, Answer, Browser

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(3 * 3600)]

HEAD, NODES = "head1", ("gpu1", "gpu2")
MACHINES = (HEAD, *NODES)
NEW = "gpu3"
PORTAL = "portal.cluster.internal"
PASSWORD = "four words in a row"
# A cell that computes on the GPU of the session, by the CUDA driver, and saves what came out.
CELL = """
import ctypes, pathlib
cuda, count, context, there = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
back = (ctypes.c_ubyte * 64)()
done = [
    cuda.cuInit(0),
    cuda.cuDeviceGetCount(ctypes.byref(count)),
    cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
    cuda.cuMemAlloc_v2(ctypes.byref(there), ctypes.c_size_t(64)),
    cuda.cuMemsetD8_v2(there, ctypes.c_ubyte(7), ctypes.c_size_t(64)),
    cuda.cuMemcpyDtoH_v2(back, there, ctypes.c_size_t(64)),
]
pathlib.Path.home().joinpath("result.txt").write_text(f"{sum(back)}\\n")
print("errors", set(done), "GPUs", count.value, "sum", sum(back))
"""
# Mail for an account of the host, by the mail server of the distribution.
MAIL = """
alertmanager_receivers:
  - {name: team, severities: [page, ticket], email: admin@localhost}
alertmanager_smtp: {smarthost: "localhost:25", from: alerts@localhost, require_tls: false}
"""
DASHBOARD = ROOT / "roles" / "grafana_dashboards" / "files" / "gpu.json"
AUDIT = "clustermax==0.2.1"
# docs/acceptance.md has the reason for each.
NOT_IN_DEBIAN = {
    *("containers.enroot", "containers.nvidiaContainerToolkit", "containers.singularity", "software.nvhpc.status"),
    *("gpus.gdrcopy.installed", "healthChecks.dcgmInstalled", "healthChecks.monitoringStack.dcgmExporter"),
    *("healthChecks.nhcInstalled", "securityVersions.docker.status"),
}
TRAINING = """#!/bin/bash
#SBATCH --array=0-2 --gres=gpu:1 --mem=100 --time=10 --output=run-%a.txt
module load openmpi
echo "epoch $SLURM_ARRAY_TASK_ID $(nvidia-smi -L | wc -l) $(which mpirun)"
"""


class Term(Site, Pages):
    """The site, as `gpuops init` made it, and its portal."""

    url = f"https://{PORTAL}"
    own_origins = True

    def __init__(self, base: Path) -> None:
        hosts = json.loads(lab("inventory"))["_meta"]["hostvars"]
        addresses = {name: str(row["ansible_host"]) for name, row in hosts.items()}
        super().__init__(base / "site", addresses, str(hosts[HEAD]["ansible_ssh_private_key_file"]))
        ADDRESSES[PORTAL] = self.addresses[HEAD]
        self.took: dict[str, float] = {}

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.gpuops("status", "--json", status=None))
        return found

    def nodes(self) -> dict[str, str]:
        return {row["name"]: row["state"] for row in self.status()["nodes"]}

    def verdicts(self, host: str) -> dict[str, str]:
        """What the dashboard of GPUs shows as the verdict of each."""
        (panel,) = (row for row in json.loads(DASHBOARD.read_text())["panels"] if row["title"] == "Verdict")
        query = panel["targets"][0]["expr"].replace("$host", host).replace("$gpu", ".*")
        asked = f"curl -sG http://127.0.0.1:9090/api/v1/query --data-urlencode {shlex.quote(f'query={query}')}"
        return {row["metric"]["gpu"]: row["value"][1] for row in json.loads(ssh(HEAD, asked))["data"]["result"]}

    def registry(self) -> str:
        """The part of an image's name that says where it is."""
        return f"{self.addresses[HEAD]}:5000"

    def does(self, user: str, command: str, machine: str = HEAD) -> str:
        return super().does(user, command, machine)

    def kept(self, user: str) -> int:
        """Bytes in a home that is not mounted."""
        told = ssh(HEAD, f"sudo ceph fs subvolume info cephfs {user} homes")
        return int(json.loads(told)["bytes_used"])

    def invite(self, user: str) -> Answer:
        """The page after a user who was invited has set a password."""
        told = self.gpuops("user", "invite", user)
        (code,) = re.findall(r"\b(?:[a-z0-9]{5}-){3}[a-z0-9]{5}\b", told)
        browser = Browser(self)
        fields = {"username": user, "code": code, "password": PASSWORD, "again": PASSWORD}
        return browser.post("/hub/invite", browser.get(f"/hub/invite?user={user}"), **fields)


@pytest.fixture(scope="module")
def term(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Term]:
    kept = os.environ.get("GPUOPS_KEEP_LAB")
    # With the lab stays its site, for the next run of pytest.
    base = ROOT / ".cache" / f"term-{os.environ['GPUOPS_LAB_ID']}" if kept else tmp_path_factory.mktemp("term")
    base.mkdir(exist_ok=True)
    made = Term(base)
    yield made
    lines = [f"{seconds:7.0f} s  {name}" for name, seconds in made.took.items()]
    request.config.get_terminal_writer().line("\n" + "\n".join(lines))
    if not kept:
        shutil.rmtree(base)


@pytest.fixture(autouse=True)
def step(term: Term, request: pytest.FixtureRequest) -> Iterator[None]:
    begun = time.monotonic()
    yield
    term.took[request.node.name.removeprefix("test_")] = time.monotonic() - begun


def test_addresses_and_users_are_a_site(term: Term) -> None:
    if term.directory.exists():
        pytest.skip("the site is there from an earlier run")
    lab("disk", HEAD, "first", "second")
    answers = term.directory.with_suffix(".json")
    site = json.loads(lab("answers"))
    for host in site["hosts"].values():
        # Of a course, too, they fit on the disks.
        host["variables"]["cephfs_homes_size"] = "150M"
    answers.write_text(json.dumps(site))
    told = term.gpuops("init", str(term.directory), "--answers", str(answers))
    assert re.search(r"scheduler +Slurm: .* on head1, and a fence", told)
    assert f"https://{PORTAL} on head1" in told
    assert re.search(r"homes +on CephFS", told)
    assert "2 in the list" in told
    variables = term.directory / "inventory" / "group_vars" / "prometheus_servers.yml"
    variables.write_text(variables.read_text().replace("alertmanager_receivers: []\n", MAIL))
    # Wheels are fetched once for all tests.
    (ROOT / ".cache" / "wheels").mkdir(exist_ok=True)
    (term.directory / "inventory" / ".wheels").symlink_to(ROOT / ".cache" / "wheels")


def test_one_run_makes_the_whole_cluster(term: Term) -> None:
    told = term.gpuops("up")
    after = told.partition("what now")[2]
    assert f"https://{PORTAL}" in after
    assert "gpuops user invite alice" in after
    assert term.nodes() == {HEAD: "no_gpu", **dict.fromkeys(NODES, "ok")}


def test_a_second_run_changes_nothing_and_restarts_nothing(term: Term) -> None:
    before = {machine: services(machine) for machine in MACHINES}
    assert term.changed() == 0
    assert {machine: services(machine) for machine in MACHINES} == before


def test_alice_sets_a_password_and_computes_on_a_gpu_and_saves_the_result(term: Term) -> None:
    assert "Your password is set" in term.invite("alice").text
    alice = term.log_in("alice", PASSWORD)
    found = run_cells(term, {alice: {"gpus": "1"}}, code=CELL)["alice"]
    assert found.get("text") == "errors {0} GPUs 1 sum 448\n", found
    # The home is the same on all machines.
    assert term.does("alice", "cat result.txt") == "448"
    assert (
        term.does("alice", f"srun --quiet --nodes=2 --nodelist={','.join(NODES)} --mem=100 cat result.txt")
        == "448\n448"
    )
    # Or it would have a GPU until it is idle for long.
    term.does("alice", "scancel --me")


def test_bob_trains_with_modules_in_an_array(term: Term) -> None:
    term.does("bob", f"printf %s {shlex.quote(TRAINING)} >train.sh && sbatch --wait train.sh")
    told = term.does("bob", "cat run-0.txt run-1.txt run-2.txt").splitlines()
    assert [re.fullmatch(r"epoch (\d) 1 /\S+mpirun", line)[1] for line in told] == ["0", "1", "2"]  # type: ignore[index]


@pytest.mark.skipif(bool(MISSING), reason=f"building images needs {', '.join(MISSING)}")
def test_bob_runs_an_image_of_the_registry_on_a_gpu(term: Term) -> None:
    term.gpuops("image", "build", "base")
    term.gpuops("image", "push", "base")
    image = f"{term.registry()}/catalogue/base:latest"
    told = term.does("bob", f"srun --quiet --gres=gpu:1 --mem=1000 gpu-image run {image} sh -c 'id -un; nvidia-smi -L'")
    assert re.search(r"^bob\nGPU 0: .*\Z", told), told


def test_an_outside_audit_fails_only_what_the_documentation_names(term: Term, tmp_path: Path) -> None:
    wanted = ["--python-version=3.13", "--only-binary=:all:", f"--dest={tmp_path}", AUDIT]
    done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", *wanted], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip does not bring {AUDIT}: {done.stderr.strip()[-300:]}")
    for wheel in tmp_path.glob("*.whl"):
        ssh(HEAD, f"base64 -d >/tmp/{wheel.name}", given=base64.b64encode(wheel.read_bytes()).decode())
    ssh(HEAD, "sudo python3 -m venv /opt/clustermax; sudo /opt/clustermax/bin/pip install -q --no-index /tmp/*.whl")
    ssh(HEAD, "sudo ln -sf /opt/clustermax/bin/cmax /usr/local/bin/cmax")
    told = term.gpuops("accept", "--stages", "audit", "--output", str(tmp_path / "audit"), status=None)
    failed = set(re.findall(rf"^{HEAD} (\S+) audit.check: ", told, re.MULTILINE))
    assert failed <= NOT_IN_DEBIAN, told
    assert re.search(r"1\d pass", told), told


def test_a_gpu_that_breaks_under_bob_is_told_everywhere_and_no_job_gets_it(term: Term) -> None:
    ssh(HEAD, "sudo DEBIAN_FRONTEND=noninteractive apt-get install -qy exim4-daemon-light 2>&1")
    job = term.does("bob", "sbatch --parsable --gres=gpu:a100:1 --mem=100 --wrap 'sleep 3600'")
    until(lambda: term.does("bob", f"squeue -h -j {job} -o %T") == "RUNNING", 60, lambda: ssh(HEAD, "squeue; sinfo"))
    uuid = term.does("bob", f"srun --overlap --jobid={job} nvidia-smi -L").partition("UUID: ")[2].rstrip(")")
    listed = ssh("gpu1", "nvidia-smi -L").splitlines()
    position = next(number for number, line in enumerate(listed) if uuid in line)
    lab("xid", "gpu1", "--gpu", str(position))
    until(lambda: "gpu1" in ssh(HEAD, "sudo gpuops-reconciler status"), 60, lambda: ssh(HEAD, "sinfo -R"))
    node = next(row for row in term.status()["nodes"] if row["name"] == "gpu1")
    assert node["state"] == "fatal"
    assert "79" in json.dumps(node)
    bob_s = term.does("bob", f"squeue -h -j {job} -o %T")
    assert bob_s == "RUNNING"
    alice = term.log_in("alice", PASSWORD)
    until(lambda: '"fatal"' in alice.get("/hub/now/data").text, 60, lambda: alice.get("/hub/now/data").text)
    wanted = {str(number): "2" if number == position else "0" for number in range(2)}
    until(lambda: term.verdicts("gpu1") == wanted, 60, lambda: term.verdicts("gpu1"))
    said = f"gpu1: GPU {position} is fatal: xid_fatal"
    until(lambda: said in ssh(HEAD, "sudo cat /var/mail/admin", check=False), 120, lambda: ssh(HEAD, "sudo mailq"))
    # The other GPU of the node takes jobs, and the broken one does not.
    assert uuid not in term.does("bob", "srun --nodelist=gpu1 --gres=gpu:1 --mem=100 nvidia-smi -L")
    term.does("bob", f"scancel {job}")
    ssh(HEAD, "sudo gpuops-reconciler clear gpu1")
    until(lambda: term.status()["state"] == "ok", 120, term.status)


def test_carol_comes_and_a_course(term: Term, tmp_path: Path) -> None:
    key = tmp_path / "key.pub"
    key.write_text(subprocess.run(["ssh-keygen", "-y", "-f", term.key], capture_output=True, text=True).stdout)
    term.gpuops("user", "add", "carol", "--key", str(key), "--groups", "physics", "--yes")
    assert "GPU 0" in term.does("carol", "srun --gres=gpu:1 --mem=100 nvidia-smi -L")
    course = tmp_path / "course.csv"
    rows = [f"u{number:03},,,,{key.read_text().strip()}" for number in range(1, 31)]
    course.write_text("\n".join(["name,full_name,mail,groups,key", *rows, ""]))
    term.gpuops("user", "import", str(course), "--groups", "ml2027", "--until", "2100-01-01", "--yes")
    assert term.does("u005", "touch homework; srun --quiet --mem=100 ls").split() == ["homework"]


def test_alice_who_is_closed_has_no_way_in(term: Term) -> None:
    alice = term.log_in("alice", PASSWORD)
    assert alice.get("/hub/now/data").status == 200
    job = term.does("alice", "sbatch --parsable --mem=100 --wrap 'sleep 3600'")
    term.gpuops("user", "close", "alice", "--yes")
    until(lambda: "/hub/login" in alice.get("/hub/home").url, 60, lambda: alice.get("/hub/home").url)
    assert all(term.login("alice", "true", machine)[0] == 255 for machine in MACHINES)
    assert "/hub/login" in term.log_in("alice", PASSWORD).get("/hub/home").url
    assert not ssh(HEAD, "squeue -h -u alice").strip()
    assert "invalid" in ssh(HEAD, f"sudo -u alice sbatch --wrap hostname 2>&1; : {job}", check=False).lower()
    assert ssh(HEAD, "pgrep -u alice || echo none").strip() == "none"
    assert term.kept("alice")


def test_a_node_comes_and_one_goes_while_a_job_runs(term: Term) -> None:
    job = term.does("bob", "sbatch --parsable --nodelist=gpu2 --gres=gpu:1 --mem=100 --wrap 'sleep 36000'")
    until(lambda: term.does("bob", f"squeue -h -j {job} -o %T") == "RUNNING", 60, lambda: ssh(HEAD, "squeue; sinfo"))
    lab("up", "--machine", f"{NEW}:trixie:t4-x1")
    given = json.loads(lab("answers"))["hosts"][NEW]
    path = term.directory / "inventory" / "host_vars" / f"{NEW}.yml"
    path.write_text(json.dumps(given["variables"]))
    term.addresses[NEW] = given["address"]
    term.gpuops("node", "add", NEW, given["address"], "--like", "gpu2", "--yes")
    term.gpuops("node", "remove", "gpu1", "--yes")
    term.gpuops("up")
    assert term.nodes() == {HEAD: "no_gpu", "gpu2": "ok", NEW: "ok"}
    assert "GPU 0" in term.does("carol", f"srun --nodelist={NEW} --gres=gpu:1 --mem=100 nvidia-smi -L")
    assert "gpu1" not in ssh(HEAD, "sinfo -N")
    assert term.does("bob", f"squeue -h -j {job} -o %T") == "RUNNING"


def test_a_head_that_dies_is_put_back_and_jobs_go_on(term: Term, tmp_path: Path) -> None:
    (job,) = ssh(HEAD, "squeue -h -u bob -o %A").split()
    began = ssh("gpu2", "pgrep -x -f 'sleep 36000'").strip()
    term.gpuops("backup", "--to", str(tmp_path))
    (archive,) = tmp_path.glob("site-*.tar")
    lab("reset", "--keep-disks", HEAD)
    term.gpuops("restore-head", str(archive), "--host", HEAD)
    term.gpuops("up")
    until(lambda: term.does("bob", f"squeue -h -j {job} -o %T") == "RUNNING", 120, lambda: ssh(HEAD, "squeue; sinfo"))
    assert ssh("gpu2", "pgrep -x -f 'sleep 36000'").strip() == began
    assert "epoch 0" in term.does("bob", "cat run-0.txt")
    assert "GPU 0" in term.does("carol", f"srun --nodelist={NEW} --gres=gpu:1 --mem=100 nvidia-smi -L")
    # Who was closed stays closed, and what was his is there.
    assert {term.login("alice", "true", machine)[0] for machine in (HEAD, "gpu2", NEW)} == {255}
    assert term.kept("alice")
    term.does("bob", f"scancel {job}")


def test_a_last_run_changes_nothing(term: Term) -> None:
    assert term.changed() == 0
