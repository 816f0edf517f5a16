# SPDX-License-Identifier: GPL-3.0-or-later
"""An image of the site's catalogue in jobs of Slurm: built and pushed by `gpuops image`, started as a notebook,
changed, saved, and started with the changes on another node; and sessions of the portal in it.

The registry is on the controller. The machines share no home, so each node has a login of its own. The tests run in
order on one lab.
"""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site.catalogue import gpuops_image, notebook
from tests.site.plays import INVENTORY, Play, lab, run_playbook, services, ssh, until
from tests.site.portal_lab import PASSWORD, Portal, fetch_wheels
from tests.site.test_slurm import CONTROLLER, HEAD_GROUPS, NODE, secrets_path
from tests.site.test_slurm_parts import SPECIFY

MISSING = [name for name in ("buildah", "skopeo", "mmdebstrap") if not shutil.which(name)]
pytestmark = [
    pytest.mark.lab,
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"building images needs {', '.join(MISSING)}"),
]

OTHER = "gpu3"
NODES = (NODE, OTHER)
MACHINES = (*NODES, CONTROLLER)
# What the simulated nvidia-smi needs beside what the CDI specification has.
STAND_INS = "/usr/lib/baremetal-gpu-simulators"
WHERE = "/usr/local/lib/python3.13/dist-packages/mine.py"


class Site:
    """Two nodes, and a controller that is the registry, too."""

    def __init__(self, base: Path) -> None:
        self.user = ssh(NODE, "id -un").strip()
        self.address = f"{addresses()[CONTROLLER]}:5000"
        self.passwords = base / "passwords"
        self.inventory = base / "site"
        self.inventory.mkdir()
        for path in INVENTORY.iterdir():
            if not path.name.startswith("."):
                (self.inventory / path.name).symlink_to(path)
        groups: dict[str, Any] = {
            "slurm_nodes": {"hosts": {node: {} for node in NODES}},
            **{name: {"hosts": {CONTROLLER: {}}} for name in (*HEAD_GROUPS, "registries")},
            "registry_clients": {"hosts": {node: {} for node in NODES}},
            "all": {
                "vars": {
                    "slurm_common_secrets_path": secrets_path(base, NODE),
                    "slurm_common_containers": True,
                    "slurm_node_image_mounts": [STAND_INS],
                    "registry_name": self.address.partition(":")[0],
                    "registry_users": [{"name": self.user}],
                    "registry_public": ["catalogue"],
                    "registry_min_free": "100M",
                }
            },
        }
        (self.inventory / "slurm.yml").write_text(json.dumps(groups))

    def run(self, playbook: str, options: str = "", limit: str = "", **variables: Any) -> Play:
        return run_playbook(
            playbook,
            limit=limit or ",".join(MACHINES),
            extra_vars=variables,
            options=f"-i {self.inventory} {options}",
        )

    def converge(self) -> None:
        for playbook in ("registry.yml", "slurm.yml"):
            play = self.run(playbook)
            assert play.rc == 0, play.tail()

    def log_in(self) -> None:
        """The user of the tests at the registry, on each node."""
        login = f"skopeo login --authfile ~/.docker/config.json -u {self.user} --password-stdin {self.address}"
        for node in NODES:
            ssh(node, f"mkdir -p -m 700 ~/.docker; echo {shlex.quote(self.password())} | {login}")

    def password(self) -> str:
        return (self.inventory / ".secrets/registry" / self.user).read_text().strip()

    def catalogue(self) -> str:
        """The image by its digest, as the catalogue has it."""
        return notebook(self.inventory, self.address)


def addresses() -> dict[str, str]:
    hosts = json.loads(lab("inventory"))["_meta"]["hostvars"]
    return {name: row["ansible_host"] for name, row in hosts.items()}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    lab("up", "--machine", f"{OTHER}:trixie:a100-sxm4-40gb-x2")
    play = run_playbook("site.yml", limit=",".join(MACHINES), options="--tags driver")
    assert play.rc == 0, play.tail()
    base = tmp_path_factory.mktemp("images")
    found = Site(base)
    # A registry of an earlier run has an authority that is gone, and other passwords.
    ssh(CONTROLLER, "sudo rm -rf /etc/baremetal-gpu/registry")
    for node in NODES:
        ssh(node, "rm -rf ~/.docker/config.json")
    specify = base / "specify.yml"
    specify.write_text(SPECIFY)
    play = run_playbook(specify, limit=",".join(NODES))
    assert play.rc == 0, play.tail()
    found.converge()
    gpuops_image("build", "notebook")
    gpuops_image("push", "notebook", "-i", str(found.inventory))
    yield found
    ssh(CONTROLLER, "scancel --user=$(id -un)")


@pytest.fixture
def portal(site: Site, tmp_path: Path) -> Iterator[Portal]:
    """It has the image in its form."""
    fetch_wheels()
    ssh(CONTROLLER, f"echo {shlex.quote(f'{site.user}:{PASSWORD}')} | sudo chpasswd")
    for node in NODES:
        ssh(node, "mkdir -p ~/gpuops-jobs/portal-session")
    made = Portal(site, tmp_path)  # type: ignore[arg-type]
    made.variables["portal_environments"] = [{"name": "lectures", "image": "notebook"}]
    with made.there():
        yield made


def job(node: str, command: str, *options: str) -> str:
    """What a job on a node prints."""
    words = shlex.join(["srun", "--quiet", f"--nodelist={node}", "--mem=1000", *options])
    return ssh(node, f"{words} {command} 2>&1 </dev/null", check=False)


def test_a_notebook_of_the_catalogue_runs_in_its_image(site: Site) -> None:
    play = site.run(
        "apps/notebook.yml",
        limit=NODE,
        target_hosts=NODE,
        slurm_apps_notebook_image="notebook",
        slurm_apps_notebook_mem=2000,
        slurm_apps_timeout=600,
    )
    assert play.rc == 0, play.tail()
    ssh(NODE, "command -v curl || { sudo apt-get update -qq; sudo apt-get install -y -qq curl; }")
    asks = f"curl -s --unix-socket /home/{site.user}/gpuops-jobs/notebook/notebook.sock http://localhost/api"
    until(lambda: "version" in ssh(NODE, asks, check=False), 600, lambda: ssh(NODE, "tail ~/gpuops-jobs/*/output.log"))
    # The node itself has no JupyterLab.
    assert ssh(NODE, "command -v jupyter", check=False) == ""
    ssh(CONTROLLER, "scancel --user=$(id -un)")


def test_the_image_has_the_gpus_of_its_job_and_no_others(site: Site) -> None:
    image = site.catalogue()
    assert job(NODE, f"gpu-image run {image} nvidia-smi -L", "--gres=gpu:1").count("GPU ") == 1
    assert job(NODE, f"gpu-image run {image} nvidia-smi -L", "--gres=gpu:2").count("GPU ") == 2
    assert "nvidia0" not in job(NODE, f"gpu-image run {image} ls /dev")
    assert job(NODE, f"gpu-image run {image} id -un").strip() == site.user


def test_what_was_changed_is_saved_and_is_there_on_another_node(site: Site) -> None:
    image, target = site.catalogue(), f"{site.address}/{site.user}/mine:v1"
    line = f"open({WHERE!r}, 'w').write('VERSION = 7')"
    job(NODE, f"gpu-image run {image} python3 -c {shlex.quote(line)}")
    site.log_in()
    saved = ssh(NODE, f"gpu-image save {image} {target}").strip().splitlines()[-1]
    assert re.fullmatch(rf"{re.escape(site.address)}/{site.user}/mine@sha256:[0-9a-f]{{64}}", saved)
    versions = "import mine, importlib.metadata as m; print(mine.VERSION, len(list(m.distributions())))"
    there = [job(node, f"gpu-image run {saved} python3 -c {shlex.quote(versions)}") for node in NODES]
    assert there[0] == there[1]
    assert there[0].split()[0] == "7"
    # The registry says the same of it.
    assert ssh(OTHER, f"skopeo inspect --format '{{{{.Digest}}}}' docker://{target}").strip() == saved.partition("@")[2]


def test_nobody_saves_below_another_name(site: Site) -> None:
    image = site.catalogue()
    said = ssh(NODE, f"gpu-image save {image} {site.address}/somebody/mine:v1 2>&1", check=False)
    assert "gpu-image: skopeo copy ended with" in said
    assert "403" in said


def test_a_session_of_the_portal_runs_in_the_image_and_is_saved_by_a_button(site: Site, portal: Portal) -> None:
    assert portal.run().changed_tasks == {}
    browser = portal.log_in(site.user)
    browser.start(gpus="1", memory_gib="2", environment="lectures")
    portal.ready(browser)
    number, node = ssh(CONTROLLER, "squeue -h --name=portal-session -o '%A %N'").split()
    # The shell that asks has the words on its own command line.
    pid = ssh(node, f"pgrep -u {site.user} -f '[b]in/jupyterhub-singleuser' | tail -1").strip()
    # What only the image has.
    ssh(node, f"sudo test -f /proc/{pid}/root/usr/share/sbom/notebook.cdx.json")
    seen = ssh(node, f"sudo cat /proc/{pid}/environ | tr '\\0' '\\n'")
    assert f"HOME=/home/{site.user}" in seen.splitlines()
    assert re.search(r"^CUDA_VISIBLE_DEVICES=[01]$", seen, re.MULTILINE)
    # The environment of a container is in a file that others of the group of its user can read.
    configurations = ssh(node, "sudo find /var/lib/slurm/slurmd -name config.json").split()
    assert configurations
    assert ssh(node, f"sudo grep -l JUPYTERHUB_API_TOKEN {' '.join(configurations)} || true") == ""
    # The program that measures is on the node, outside.
    assert ssh(node, f"pgrep -u {site.user} -f '[p]ortal-measure'").strip()

    inside = f"~/gpuops-jobs/portal-session/container-{number}/image"
    line = f"open({WHERE!r}, 'w').write('VERSION = 8')"
    change = f"gpu-image run $(cat {inside}) python3 -c {shlex.quote(line)}"
    ssh(node, f"srun --quiet --overlap --jobid={number} --mem=0 /bin/sh -c {shlex.quote(change)}")
    site.log_in()
    browser.post("/hub/environments/save", browser.get("/hub/environments"), server="", name="portal:v1")
    image = rf"{re.escape(site.address)}/{site.user}/portal@sha256:[0-9a-f]{{64}}"
    saved = until(
        lambda: re.search(image, html.unescape(browser.get("/hub/environments").text)),
        300,
        lambda: browser.get("/hub/environments").text,
    )[0]
    portal.stop(browser)
    other = next(one for one in NODES if one != node)
    assert job(other, f"gpu-image run {saved} python3 -c 'import mine; print(mine.VERSION)'").split()[-1] == "8"


def test_an_image_that_nobody_uses_is_removed_after_days(site: Site) -> None:
    bundles = f"/var/lib/baremetal-gpu/bundles/gpu-images-{site.user}"
    before = ssh(NODE, f"ls {bundles}").split()
    ssh(NODE, "sudo systemctl start baremetal-gpu-images")
    assert ssh(NODE, f"ls {bundles}").split() == before
    ssh(NODE, f"touch -d '20 days ago' {bundles}/*")
    ssh(NODE, "sudo systemctl start baremetal-gpu-images")
    assert all(name.endswith((".lock", ".used")) for name in ssh(NODE, f"ls {bundles}").split())


def test_a_second_run_changes_nothing(site: Site) -> None:
    before = {machine: services(machine) for machine in MACHINES}
    for playbook in ("registry.yml", "slurm.yml"):
        assert site.run(playbook).changed_tasks == {}
    assert {machine: services(machine) for machine in MACHINES} == before
