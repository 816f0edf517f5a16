# SPDX-License-Identifier: GPL-3.0-or-later
"""What a session measures of itself: on made-up files of the kernel, answers of nvidia-smi and of the server."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
from collections.abc import Mapping
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.health import agent_result
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import idle, measure, samples, session
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.accounts import Account
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.form import Request
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.settings import Settings
from tests.unit.plugins.module_utils.portal.tls_site import Site, serving

JOB = "system.slice/slurmstepd.scope/job_12"
TEN = "2026-11-28T10:00:00.000000Z"
ENVIRONMENT = {
    "JUPYTERHUB_SERVICE_URL": "https://0.0.0.0:21001/user/alice/",
    "JUPYTERHUB_API_TOKEN": "word",
    "JUPYTERHUB_API_URL": "https://127.0.0.1:8081/hub/api",
    "JUPYTERHUB_SERVER_NAME": "second",
    "CUDA_VISIBLE_DEVICES": "0",
}


class Machine:
    """Files as the kernel has them."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.path = root
        self.put("proc/self/cgroup", f"0::/{JOB}/step_batch/user/task_0\n")
        self.cpu(0)

    def put(self, name: str, text: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def cpu(self, seconds: float) -> None:
        self.put(f"sys/fs/cgroup/{JOB}/cpu.stat", f"usage_usec {int(seconds * 1e6)}\nuser_usec 1\n")

    def process(self, pid: int, name: str, parent: int, moved: int | None = 0) -> None:
        self.put(f"proc/{pid}/stat", f"{pid} ({name}) S {parent} {pid} {pid} 0 -1\n")
        if moved is not None:
            self.put(f"proc/{pid}/io", f"rchar: {moved}\nwchar: 0\nsyscr: 1\n")

    def processes(self, *pids: int) -> None:
        self.put(f"sys/fs/cgroup/{JOB}/step_batch/user/task_0/cgroup.procs", "".join(f"{pid}\n" for pid in pids))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def smi(use: str = "0\n", apps: str = "", status: int = 0) -> Any:
    def run(argv: list[str], _stdin: str | None, _seconds: float) -> tuple[int, str, str]:
        assert argv[0] == measure.NVIDIA_SMI
        return status, apps if any("compute-apps" in word for word in argv) else use, ""

    return run


def answers(kernels: Any = (), terminals: Any = ()) -> Any:
    def fetch(path: str) -> Any:
        found = {"kernels": kernels, "terminals": terminals}[path.removeprefix("api/")]
        if isinstance(found, Exception):
            raise found
        return found

    return fetch


class Session:
    """The measuring program with a clock of its own."""

    def __init__(self, machine: Machine, fetch: Any = None, run: Any = None, **environment: str) -> None:
        self.now = 100.0
        self.own = 0.0
        self._session = measure.Session(
            {**ENVIRONMENT, **environment},
            fetch or answers(),
            run or smi(),
            machine.root,
            clock=lambda: self.now,
            own=lambda: self.own,
        )

    def has_news(self) -> bool:
        return self._session.has_news()

    def sample(self, looks: int = 1, passed: float = 40.0) -> dict[str, Any]:
        for _number in range(looks):
            self._session.look()
        self.now += passed
        return self._session.sample()


def test_a_session_in_which_nothing_happens_says_so_and_the_hub_takes_it(machine: Machine) -> None:
    row = Session(machine).sample()
    assert row == {
        "server": "second",
        "gpu_ratio": 0.0,
        "cores": 0.0,
        "kernel_busy": False,
        "kernel_at": 0.0,
        "terminal_at": 0.0,
        "traffic": 0.0,
        "gpus": [{"use": 0.0, "used_mib": None, "total_mib": None}],
    }
    assert samples.read(json.dumps(row).encode()) == row


# --- GPUs that are out of order ---


def agent_says(machine: Machine, *codes: str, minor: int = 1, age_s: float = 0.0) -> None:
    """The result of the host's agent, as everybody may read it, of two GPUs; `codes` are the second one's."""
    rows = [
        {"uuid": f"GPU-{number}", "pci_address": f"0000:0{number}:00.0", "verdict": "ok", "reasons": []}
        for number in range(2)
    ]
    reasons = [{"code": code, "verdict": "fatal", "text": "it is", "remedy": "ask"} for code in codes]
    rows[minor].update(verdict="fatal" if codes else "ok", reasons=reasons)
    result = {
        "time": time.time() - age_s,
        "uptime": agent_result.uptime() - age_s,
        "boot_id": "b",
        "interval_s": 10,
        "health": {"verdict": "ok", "reasons": [], "devices": rows},
        "facts": {"devices": [{"uuid": f"GPU-{number}", "minor": number} for number in range(2)]},
    }
    machine.put("proc/sys/kernel/random/boot_id", "b\n")
    machine.put("run/baremetal-gpu/gpu.json", json.dumps(result))
    machine.put("run/slurm/conf/gres.conf", "Name=gpu File=/dev/nvidia[0-1]\n")


ON_NODE = {"SLURMD_NODENAME": "gpu1", "SLURM_JOB_GPUS": "1"}


def test_a_fatal_verdict_on_a_gpu_of_the_session_is_news_and_so_is_its_end(machine: Machine) -> None:
    agent_says(machine)
    watched = Session(machine, **ON_NODE)
    assert not watched.has_news()
    agent_says(machine, "xid_79", "gpu_lost")
    assert watched.has_news()
    assert not watched.has_news()
    row = watched.sample()
    assert row["failed"] == [{"gpu": "GPU-1", "code": "xid_79"}, {"gpu": "GPU-1", "code": "gpu_lost"}]
    assert samples.read(json.dumps(row).encode()) == row
    agent_says(machine)
    assert watched.has_news()
    assert "failed" not in watched.sample()


def test_a_container_or_a_task_of_mesos_has_the_gpus_whose_devices_it_may_use(machine: Machine) -> None:
    agent_says(machine, "xid_79")
    machine.put("dev/nvidia0", "")
    machine.put("dev/nvidiactl", "")
    watched = Session(machine)
    assert not watched.has_news()
    machine.put("dev/nvidia1", "")
    assert watched.has_news()
    assert watched.sample()["failed"] == [{"gpu": "GPU-1", "code": "xid_79"}]


def test_a_gpu_that_is_out_of_order_is_not_asked_for_its_use(machine: Machine) -> None:
    """It may never answer, and what is to be told of it must not wait for that."""
    asked: list[Any] = []

    def run(argv: list[str], _stdin: str | None, _seconds: float) -> tuple[int, str, str]:
        asked.append(argv)
        return 0, "0\n", ""

    agent_says(machine, "xid_79")
    watched = Session(machine, run=run, **ON_NODE)
    watched.has_news()
    # Nobody is ended for the silence of a broken GPU.
    assert watched.sample()["gpu_ratio"] is None
    assert asked == []


@pytest.mark.parametrize(
    ("environment", "age_s"),
    [
        ({**ON_NODE, "SLURM_JOB_GPUS": "0"}, 0.0),
        ({}, 0.0),
        (ON_NODE, 1000.0),
        ({**ON_NODE, "SLURM_JOB_GPUS": "x"}, 0.0),
    ],
    ids=["another GPU", "no GPU", "an old verdict", "no list of GPUs"],
)
def test_what_is_not_known_to_be_its_own_is_not_told(
    machine: Machine, environment: dict[str, str], age_s: float
) -> None:
    agent_says(machine, "xid_79", age_s=age_s)
    watched = Session(machine, **environment)
    assert not watched.has_news()
    assert "failed" not in watched.sample()


def test_the_hub_hears_of_it_at_once_and_not_with_the_next_sample(
    machine: Machine, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent_says(machine)
    sent: list[tuple[float, Any]] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] > 15:
            agent_says(machine, "xid_79")
        if now[0] > 30:
            parents[0] = 1

    def send(_web: Any, sample: Mapping[str, Any]) -> float:
        sent.append((now[0], sample.get("failed")))
        return 600.0

    parents = [7]
    for name, value in {**ENVIRONMENT, **site.environment(), **ON_NODE}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(measure.time, "sleep", sleep)
    monkeypatch.setattr(measure.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(measure.os, "getppid", lambda: parents[0])
    monkeypatch.setattr(measure, "gpus", lambda *_words: (0.0, []))
    monkeypatch.setattr(measure.Web, "get", lambda *_words: [])
    monkeypatch.setattr(measure.Web, "send", send)
    assert measure.main([], machine.root) == 0
    (begun, none), (at, failed) = sent
    assert (begun, none) == (measure.LOOK_S, None)
    assert failed == [{"gpu": "GPU-1", "code": "xid_79"}]
    assert at - 15 <= 2 * measure.VERDICT_S


def test_a_sample_that_is_wanted_soon_says_what_the_gpus_do(
    machine: Machine, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratios: list[float | None] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def send(_web: Any, sample: Mapping[str, Any]) -> float:
        ratios.append(sample["gpu_ratio"])
        return 1.0

    for name, value in {**ENVIRONMENT, **site.environment()}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(measure.time, "sleep", sleep)
    monkeypatch.setattr(measure.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(measure.os, "getppid", lambda: 7 if now[0] < 30 else 1)
    monkeypatch.setattr(measure, "gpus", lambda *_words: (0.5, []))
    monkeypatch.setattr(measure.Web, "get", lambda *_words: [])
    monkeypatch.setattr(measure.Web, "send", send)
    assert measure.main([], machine.root) == 0
    assert len(ratios) > 10
    assert set(ratios) == {0.5}


# --- processors ------------------------------------------------------------------------------------------------------


def test_the_jobs_own_group_tells_how_many_cores_were_busy_without_this_program(machine: Machine) -> None:
    watched = Session(machine)
    machine.cpu(22.0)
    watched.own = 2.0
    assert watched.sample(passed=40.0)["cores"] == pytest.approx(0.5)
    assert watched.sample(passed=40.0)["cores"] == 0.0


def test_where_each_kind_of_group_has_a_tree_that_of_processors_tells(machine: Machine) -> None:
    lines = [
        "9:name=systemd:/",
        "5:devices:/slurm/uid_7/job_12/step_batch",
        "2:cpu,cpuacct:/box/slurm/uid_7/job_12/step_batch",
    ]
    machine.put("proc/self/cgroup", "\n".join([*lines, "0::/", ""]))
    # It is in a container, which has its part of the tree.
    machine.put("sys/fs/cgroup/cpuacct/slurm/uid_7/job_12/cpuacct.usage", "0\n")
    machine.put("sys/fs/cgroup/cpuacct/slurm/uid_7/job_12/step_batch/cgroup.procs", "20\n21\n")
    machine.process(20, "sshd", 1, moved=0)
    machine.process(21, "bash", 20)
    watched = Session(machine)
    machine.put("sys/fs/cgroup/cpuacct/slurm/uid_7/job_12/cpuacct.usage", "60000000000\n")
    machine.process(20, "sshd", 1, moved=4000)
    row = watched.sample(passed=40.0)
    assert (row["cores"], row["traffic"]) == (pytest.approx(1.5), pytest.approx(100.0))


def test_the_group_of_a_task_of_mesos_is_found(machine: Machine) -> None:
    group = "mesos/0b1c2d3e-0123-4567-89ab-0123456789ab"
    machine.put("proc/self/cgroup", f"4:cpu,cpuacct:/{group}\n2:devices:/{group}\n")
    machine.put(f"sys/fs/cgroup/cpuacct/{group}/cpuacct.usage", "2000000000\n")
    assert measure.cpu_s(measure.group_of_job(machine.root)) == 2.0


@pytest.mark.parametrize(
    ("path", "text"), [("cpu.stat", "usage_usec 2000000\n"), ("cpuacct/cpuacct.usage", "2000000000\n")]
)
def test_a_container_of_docker_sees_its_own_group_alone(machine: Machine, path: str, text: str) -> None:
    machine.put("proc/self/cgroup", "0::/\n")
    machine.put(f"sys/fs/cgroup/{path}", text)
    assert measure.group_of_job(machine.root) == ""
    machine.put(".dockerenv", "")
    assert measure.cpu_s(measure.group_of_job(machine.root)) == 2.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/user.slice\n",
        "0::/\n",
        "1:cpu:/slurm/job_12\n",
        "0::/job_x/step\n",
        "2:cpuacct:/slurm/job_12\n",
        "0::/slurm/job_99/step_batch\n",
    ],
)
def test_without_a_group_of_the_job_nothing_is_known_of_processors(machine: Machine, text: str) -> None:
    machine.put("proc/self/cgroup", text)
    row = Session(machine).sample()
    assert (row["cores"], row["traffic"]) == (None, None)


def test_a_group_that_cannot_be_read_is_not_idle(machine: Machine) -> None:
    watched = Session(machine)
    machine.put(f"sys/fs/cgroup/{JOB}/cpu.stat", "nonsense\n")
    assert watched.sample()["cores"] is None


# --- SSH -------------------------------------------------------------------------------------------------------------


def test_what_goes_through_connections_of_ssh_is_traffic(machine: Machine) -> None:
    machine.processes(20, 21, 22)
    machine.process(20, "sshd", 1, moved=999_999)
    machine.process(21, "sshd-session", 20, moved=1000)
    machine.process(22, "rsync", 21)
    watched = Session(machine)
    machine.process(21, "sshd-session", 20, moved=9000)
    assert watched.sample(passed=40.0)["traffic"] == pytest.approx(200.0)


def test_a_new_connection_counts_with_all_that_went_through_it(machine: Machine) -> None:
    watched = Session(machine)
    machine.processes(20, 21)
    machine.process(20, "sshd", 1, moved=4000)
    machine.process(21, "bash", 20)
    assert watched.sample(passed=40.0)["traffic"] == pytest.approx(100.0)


def test_a_connection_that_only_forwards_ports_is_traffic_too(machine: Machine) -> None:
    """As Debian's sshd has it under the account of a user: one that waits, and two for a connection."""
    machine.processes(20, 21, 22)
    machine.process(20, "sshd", 1, moved=67_657)
    machine.process(21, "sshd", 20, moved=62_249)
    machine.process(22, "sshd", 21, moved=260)
    watched = Session(machine)
    machine.process(22, "sshd", 21, moved=80_260)
    assert watched.sample(passed=40.0)["traffic"] == pytest.approx(2000.0)
    assert watched.sample(passed=40.0)["traffic"] == 0.0


def test_a_server_of_ssh_to_which_nobody_has_come_is_no_traffic(machine: Machine) -> None:
    machine.processes(20)
    machine.process(20, "sshd", 1, moved=None)
    assert Session(machine).sample()["traffic"] == 0.0


def test_a_connection_that_may_not_be_looked_at_is_not_known(machine: Machine) -> None:
    machine.processes(20, 21)
    machine.process(20, "sshd", 1, moved=None)
    machine.process(21, "bash", 20)
    assert Session(machine).sample()["traffic"] is None


def test_the_name_of_a_process_is_no_way_to_look_like_another(machine: Machine) -> None:
    machine.processes(20, 21)
    machine.process(20, "x) S 1 (sshd", 1, moved=4000)
    machine.process(21, "bash", 20)
    assert Session(machine).sample()["traffic"] == 0.0


# --- GPUs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "apps", "status", "ratio"),
    [
        ("0\n0\n", "", 0, 0.0),
        ("0\n37\n", "", 0, 0.37),
        ("250\n", "", 0, 1.0),
        ("[N/A]\n", "", 0, 0.0),
        ("[N/A]\n", "4711\n", 0, None),
        ("0\n[N/A]\n", "4711\n", 0, None),
        ("[N/A]\n12\n", "4711\n", 0, 0.12),
        ("", "", 0, None),
        ("0\n", "", 9, None),
    ],
)
def test_the_busiest_gpu_counts(use: str, apps: str, status: int, ratio: float | None) -> None:
    assert measure.gpus({"CUDA_VISIBLE_DEVICES": "0,1"}, smi(use, apps, status))[0] == ratio


def test_each_gpu_is_told_with_its_memory_and_what_is_not_known_is_left_open(machine: Machine) -> None:
    told = smi("37, 1024, 81920\n[N/A], [N/A], 81920\n")
    row = Session(machine, run=told, CUDA_VISIBLE_DEVICES="0,1").sample()
    assert row["gpus"] == [
        {"use": 0.37, "used_mib": 1024, "total_mib": 81920},
        {"use": None, "used_mib": None, "total_mib": 81920},
    ]
    assert samples.read(json.dumps(row).encode()) == row


def test_gpus_of_a_session_of_mesos_are_looked_at() -> None:
    assert measure.gpus({measure.GPUS: "2"}, smi("40\n"))[0] == 0.4
    assert measure.gpus({measure.GPUS: "2"}, smi(status=9))[0] is None


@pytest.mark.parametrize("environment", [{}, {"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}])
def test_without_gpus_nobody_is_asked(environment: Mapping[str, str]) -> None:
    assert measure.gpus(environment, smi(status=9))[0] == 0.0


def test_of_all_looks_since_the_last_sample_the_busiest_counts(machine: Machine) -> None:
    told = iter(["0\n", "80\n", "0\n", "0\n"])
    watched = Session(machine, run=lambda *_words: (0, next(told), ""))
    assert watched.sample(looks=3)["gpu_ratio"] == 0.8
    assert watched.sample()["gpu_ratio"] == 0.0


def test_a_look_that_failed_may_have_missed_something_unless_another_has_seen_it(machine: Machine) -> None:
    told = iter([(9, ""), (0, "0\n"), (9, ""), (0, "50\n")])
    watched = Session(machine, run=lambda *_words: (*next(told), ""))
    assert watched.sample(looks=2)["gpu_ratio"] is None
    assert watched.sample(looks=2)["gpu_ratio"] == 0.5
    assert watched.sample(looks=0)["gpu_ratio"] is None


# --- kernels and terminals -------------------------------------------------------------------------------------------


def kernel(state: str = "idle", at: str = TEN) -> dict[str, str]:
    return {"id": "1", "execution_state": state, "last_activity": at}


def test_a_kernel_that_computes_is_busy_and_the_last_thing_that_went_through_one_is_told(machine: Machine) -> None:
    later = "2026-11-28T10:00:30+00:00"
    row = Session(machine, answers([kernel("busy"), kernel(at=later)], [{"name": "1", "last_activity": TEN}])).sample()
    assert row["kernel_busy"] is True
    assert row["kernel_at"] - row["terminal_at"] == 30.0


def test_a_kernel_that_waits_is_not_busy(machine: Machine) -> None:
    row = Session(machine, answers([kernel("idle"), kernel("starting")])).sample()
    assert row["kernel_busy"] is False


@pytest.mark.parametrize(
    "nonsense",
    [OSError("no answer"), {"message": "Forbidden"}, [1], [{"execution_state": "busy"}], [kernel(at="now")], None],
)
def test_an_answer_that_is_none_is_not_known(machine: Machine, nonsense: Any) -> None:
    row = Session(machine, answers(nonsense, nonsense)).sample()
    assert (row["kernel_busy"], row["kernel_at"], row["terminal_at"]) == (None, None, None)
    assert (
        idle.is_used(
            idle.begin(0.0, 0.0),
            idle.Reading(1.0, **{k: row[k] for k in row if k not in ("server", "gpus")}),
            idle.Policy(),
        )
        is None
    )


def test_an_environment_without_terminals_has_no_use_of_them(machine: Machine) -> None:
    missing = urllib.error.HTTPError("http://x", 404, "Not Found", Message(), None)
    assert Session(machine, answers((), missing)).sample()["terminal_at"] == 0.0
    refused = urllib.error.HTTPError("http://x", 403, "Forbidden", Message(), None)
    assert Session(machine, answers((), refused)).sample()["terminal_at"] is None


# --- the hub and the server ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


def web(site: Site, hub: int = 1, server: int = 1) -> measure.Web:
    return measure.Web(
        {
            **ENVIRONMENT,
            **site.environment(),
            "JUPYTERHUB_API_URL": f"https://127.0.0.1:{hub}/hub/api",
            "JUPYTERHUB_SERVICE_URL": f"https://0.0.0.0:{server}/user/alice/",
        }
    )


def test_an_answer_that_is_cut_is_no_end_of_the_program(site: Site) -> None:
    with serving(site.pair("hub")) as hub:
        hub.says = b"{"
        assert web(site, hub.server_port).send({}) == samples.INTERVAL_S


def test_a_sample_goes_to_the_hub_with_the_sessions_token_and_certificate(site: Site) -> None:
    with serving(site.pair("hub"), clients_of=site.authority) as hub:
        hub.says = b'{"next_s": 5}'
        assert web(site, hub.server_port).send({"server": ""}) == 5.0
        assert hub.came == [("/hub/portal/sample", "token word", {"server": ""})]


@pytest.mark.parametrize("who", ["alice", "bob", ""])
def test_the_token_is_shown_to_nobody_in_the_place_of_the_hub(site: Site, who: str) -> None:
    """Sessions have certificates of the same authority; without one there is no TLS."""
    with serving(site.pair(who) if who else None) as other:
        assert web(site, other.server_port).send({"server": ""}) == samples.INTERVAL_S
        assert other.came == []


def test_a_hub_without_tls_is_shown_no_token(site: Site) -> None:
    with serving(None) as other:
        plain = {
            **ENVIRONMENT,
            **site.environment(),
            "JUPYTERHUB_API_URL": f"http://127.0.0.1:{other.server_port}/hub/api",
        }
        assert measure.Web(plain).send({}) == samples.INTERVAL_S
        assert other.came == []


@pytest.mark.parametrize("who", ["bob", "hub", ""])
def test_the_token_is_shown_to_nobody_in_the_place_of_the_sessions_server(site: Site, who: str) -> None:
    with serving(site.pair(who) if who else None) as other:
        with pytest.raises(OSError, match=r"\S"):
            web(site, server=other.server_port).get("api/kernels")
        assert other.came == []


def test_a_server_that_had_to_take_the_next_port_is_found(site: Site) -> None:
    with serving(site.pair("bob")) as other, serving(site.pair("alice"), port=other.server_port + 1) as own:
        asked = web(site, server=other.server_port)
        assert [asked.get("api/kernels"), asked.get("api/terminals")] == [[], []]
        assert other.came == []
        assert [path for path, _token, _sent in own.came] == ["/user/alice/api/kernels", "/user/alice/api/terminals"]


@pytest.mark.parametrize("status", [301, 302, 307])
def test_the_token_is_led_nowhere_else(site: Site, status: int) -> None:
    with serving(site.pair("alice")) as own:
        own.status = status
        with pytest.raises(urllib.error.HTTPError):
            web(site, server=own.server_port).get("api/kernels")


def test_without_certificates_the_program_ends_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.environ", dict(ENVIRONMENT))
    assert measure.main([]) == 1
    assert "has no JUPYTERHUB_SSL_CERTFILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "next_s"),
    [
        (b'{"next_s": 0}', 1.0),
        (b'{"next_s": 1e9}', 600.0),
        (b'{"next_s": "soon"}', samples.INTERVAL_S),
        (b"{}", samples.INTERVAL_S),
        (b"<html>", samples.INTERVAL_S),
    ],
)
def test_whatever_the_hub_says_the_next_sample_comes_in_time(site: Site, said: bytes, next_s: float) -> None:
    with serving(site.pair("hub")) as hub:
        hub.says = said
        assert web(site, hub.server_port).send({}) == next_s


def test_a_hub_that_is_down_is_asked_again(site: Site) -> None:
    assert web(site).send({}) == samples.INTERVAL_S


@pytest.mark.parametrize("is_there", [True, False])
def test_a_session_starts_it_where_the_node_has_it_and_says_nothing_of_it(tmp_path: Path, is_there: bool) -> None:
    program, started = tmp_path / "env" / "bin" / session.PROGRAM, tmp_path / "started"
    program.parent.mkdir(parents=True)
    # The server of the session ends when the other program has begun.
    wait = f"until test -e {started}; do sleep 0.1; done" if is_there else ":"
    program.write_text(f'#!/bin/sh\necho "$JUPYTER_PATH"\n{wait}\n')
    program.chmod(0o755)
    if is_there:
        (tmp_path / "measure").write_text(f"#!/bin/sh\necho noise\necho noise >&2\ntouch {started}\n")
        (tmp_path / "measure").chmod(0o755)
    account = Account("alice", 2000, 2000, str(tmp_path), "/bin/bash", ())
    known = Settings(environments={"default": str(tmp_path / "env")})
    command = session.job(account, "", Request(environment="default"), known, {}, {}).command
    done = subprocess.run(
        ["bash", "-c", command.replace(session.MEASURE, str(tmp_path / "measure"))],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "JUPYTER_PATH": "/mine"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == (f"{session.JUPYTER}:/mine\n", "")


def test_it_takes_no_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure.main(["--help"]) == 2
    assert "tells the hub" in capsys.readouterr().err
