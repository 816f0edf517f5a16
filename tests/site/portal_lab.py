# SPDX-License-Identifier: GPL-3.0-or-later
"""A portal on a cluster of Slurm of the lab: what its tests share. pip fetches the wheels once, into .cache."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import portal as portal_plan
from gpuops.fetch import wheels
from gpuops.fetch.manifest import ManifestError
from tests import portal_programs
from tests.site.plays import ROOT, Play, run_playbook, ssh, until
from tests.site.test_slurm import CONTROLLER, MACHINES, Cluster
from tests.unit.roles.portal_browser import ADDRESSES, PASSWORD, Browser

PEOPLE = {"alice": 2301, "bob": 2302}
WHEELS = ROOT / ".cache" / "wheels"
HUB, PROXY = "baremetal-gpu-portal.service", "baremetal-gpu-portal-proxy.service"
START_S = 240


class Pages:
    """A portal, as people see it.

    :ivar url: where it is reached.
    :ivar own_origins: the lab has no DNS, in which each user's sessions would have a name.
    """

    url: str
    own_origins = False

    def log_in(self, name: str, password: str = PASSWORD) -> Browser:
        browser = Browser(self)
        browser.log_in(name, password)
        return browser

    def server(self, browser: Browser, server: str = "") -> dict[str, Any]:
        page = browser.get("/hub/home")
        if page.status != 200:
            # The hub is not there.
            return {}
        path = f"/hub/api/users/{browser.name}?_xsrf={browser.token(page.text)}"
        answer = browser.get(path, Referer=page.url)
        return dict(answer.json()["servers"].get(server, {})) if answer.status == 200 else {}


class Portal(Pages):
    """The cluster with a portal on the host of slurmctld."""

    def __init__(self, cluster: Cluster, base: Path) -> None:
        self.cluster = cluster
        (base / "portal.yml").write_text(json.dumps({"portals": {"hosts": {CONTROLLER: {}}}}))
        self.options = f"-i {cluster.inventory} -i {base / 'portal.yml'}"
        address = ssh(CONTROLLER, "hostname -I").split()[0]
        self.variables: dict[str, Any] = {
            "portal_wheelhouse": str(WHEELS),
            "portal_secrets_path": str(base / ".secrets" / "portal.json"),
            "portal_tls_path": str(base / ".secrets" / "portal-tls"),
            "portal_names": [address],
            "portal_origins": "one_for_people_who_trust_each_other",
            "portal_limits": {"gpus": 2, "cpus": 2, "memory_gib": 4, "hours": 2},
        }
        self.url = f"https://{address}"

    def run(self, options: str = "--diff", **variables: Any) -> Play:
        return run_playbook(
            "portal.yml",
            limit=",".join(MACHINES),
            extra_vars={**self.variables, **variables},
            options=f"{self.options} {options}",
        )

    @contextmanager
    def there(self) -> Iterator[Portal]:
        """Until it is removed at the end."""
        play = self.run()
        assert play.rc == 0, play.tail()
        yield self
        ssh(CONTROLLER, "sudo scancel --name=portal-session")
        play = self.run(portal_state="absent")
        assert play.rc == 0, play.tail()

    def ready(self, browser: Browser) -> dict[str, Any]:
        found = until(
            lambda: (row := self.server(browser)).get("ready") and row,
            START_S,
            lambda: ssh(CONTROLLER, f"sudo journalctl -u {HUB} -n 60 --no-pager; squeue"),
        )
        assert browser.get(f"{found['url']}lab").status == 200
        return dict(found)

    def stop(self, browser: Browser) -> None:
        page = browser.get("/hub/home")
        path = f"/hub/api/users/{browser.name}/server?_xsrf={browser.token(page.text)}"
        assert browser.ask(path, method="DELETE", Referer=page.url).status in (202, 204)
        until(lambda: not self.server(browser), 90, lambda: self.server(browser))


# A cell that asks the CUDA driver's API how many GPUs there are.
CUDA = """
import ctypes
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
print("cuInit", cuda.cuInit(0), "GPUs", cuda.cuDeviceGetCount(ctypes.byref(count)) or count.value)
"""


def run_cells(
    portal: Pages, people: Mapping[Browser, Mapping[str, str]], within_s: float = 0, code: str = CUDA
) -> dict[str, dict[str, Any]]:
    """People start sessions and run a cell in them; what portal_people.py says of each.

    :param people: who is logged in, and what each writes into the form.
    :param within_s: the time in which all press the button.
    """
    problem = portal_programs.fetch()
    if problem:
        pytest.skip(f"JupyterLab's client is not here, and pip does not bring it: {problem}")
    rows = [
        {
            "name": browser.name,
            "cookies": [
                {name.removeprefix("_"): value for name, value in vars(one).items()} for one in browser.cookies
            ],
            "fields": {"cpus": "1", "memory_gib": "1", "hours": "1", "model": "", **fields},
        }
        for browser, fields in people.items()
    ]
    asked = {"url": portal.url, "own_origins": portal.own_origins, "addresses": ADDRESSES}
    done = subprocess.run(
        [portal_programs.environment() / "bin" / "python", Path(__file__).parent / "portal_people.py"],
        input=json.dumps({**asked, "people": rows, "within_s": within_s, "code": code}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert sorted(found) == sorted(row["name"] for row in rows), done.stderr
    return found


def sessions() -> list[list[str]]:
    """Number, user, state and GPUs of each session in the queue."""
    told = ssh(CONTROLLER, "squeue -h --name=portal-session -o '%A|%u|%T|%b'")
    return [line.split("|") for line in told.split()]


def fetch_wheels() -> None:
    """The portal's wheels, once."""
    try:
        wheels.fetch([row["file"] for row in portal_plan.lock()], WHEELS)
    except ManifestError as why:
        pytest.skip(f"the wheels of the portal are not here, and pip does not bring them: {why}")


def bare(base: Path) -> Portal:
    """The cluster, with people, as it is before it has a portal."""
    fetch_wheels()
    play = run_playbook("site.yml", limit=",".join(MACHINES), options="--tags driver")
    assert play.rc == 0, play.tail()
    cluster = Cluster(base)
    cluster.converge()
    add_people(PEOPLE)
    return Portal(cluster, base)


def add_people(people: Mapping[str, int]) -> None:
    """Accounts with their homes, by name and number, on all machines."""
    for machine in MACHINES:
        commands = [
            f"id {name} >/dev/null 2>&1 || sudo useradd --uid {number} --create-home -s /bin/bash {name}\n"
            f"sudo -u {name} mkdir -p /home/{name}/gpuops-jobs/portal-session\n"
            f"echo {shlex.quote(f'{name}:{PASSWORD}')} | sudo chpasswd"
            for name, number in people.items()
        ]
        ssh(machine, "\n".join(commands))
