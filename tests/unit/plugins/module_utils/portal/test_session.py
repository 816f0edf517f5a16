# SPDX-License-Identifier: GPL-3.0-or-later
"""A session as a job: its script, what becomes of it, and the program that does it as root. Answers are made up."""

from __future__ import annotations

import copy
import json
import os
import pwd
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import (
    accounts,
    backup,
    helper,
    home_script,
    session,
    slurm_backend,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.accounts import Account
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.form import Limits, Request
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.settings import Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import submission
from tests.unit.plugins.slurm_answers import JOBS

ALICE = Account("alice", 2000, 2000, "/home/alice", "/bin/bash", ("lab",))
SETTINGS = Settings(limits=Limits(2, 8, 64, 24), environments={"default": "/opt/notebook"}, partition="gpu")
REQUEST = Request(1, "a100", 4, 16, 8, "default")
ENVIRONMENT = {"JUPYTERHUB_API_TOKEN": "secret", "JUPYTERHUB_HOST": "a'b $(id) `id`"}


def job(request: Request = REQUEST, server: str = "", **more: Any) -> submission.Wanted:
    return session.job(ALICE, server, request, SETTINGS, more.get("environment", ENVIRONMENT), more.get("pem", {}))


def test_the_script_asks_for_what_the_form_says_and_passes_house_rules() -> None:
    wanted = job()
    assert submission.problems(wanted) == []
    text = submission.script(wanted)
    for line in ("--gres=gpu:a100:1", "--cpus-per-task=4", "--mem=16384M", "--time=480", "--partition=gpu"):
        assert f"#SBATCH {line}\n" in text
    assert "/opt/notebook/bin/jupyterhub-singleuser" in text


def test_whatever_a_value_has_in_it_it_is_one_word_of_the_shell(tmp_path: Path) -> None:
    text = submission.script(job())
    export = next(line for line in text.splitlines() if line.startswith("export JUPYTERHUB_HOST="))
    done = subprocess.run(
        ["bash", "-c", f'{export}\nprintf %s "$JUPYTERHUB_HOST"'], capture_output=True, text=True, check=True
    )
    assert done.stdout == ENVIRONMENT["JUPYTERHUB_HOST"]
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    "environment",
    [
        {"PATH": "/x"},
        {"LD_PRELOAD": "x"},
        {"JUPYTERHUB_X": "a\nb"},
        {"JUPYTERHUB_X=1; id": "a"},
        {"JUPYTERHUB_X": "a" * 9000},
    ],
)
def test_other_variables_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(Refused):
        job(environment=environment)


def test_certificates_are_in_files_that_go_with_the_session() -> None:
    pem = dict.fromkeys(session.CERTIFICATES, "-----BEGIN X-----\nAAAA\n-----END X-----\n")
    text = submission.script(job(pem=pem))
    assert 'trap \'rm -rf "$certificates" "$elsewhere"\' EXIT' in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    with pytest.raises(Refused):
        job(pem={**pem, "key": "'; id; '"})


@pytest.mark.parametrize("server", ["A", "a b", "../x", "-a", "a" * 31])
def test_a_server_has_a_plain_name(server: str) -> None:
    with pytest.raises(Refused):
        job(server=server)


def test_more_than_the_limits_is_refused_here_too() -> None:
    with pytest.raises(Refused, match="from 0 to 2"):
        job(Request(3, "a100", 4, 16, 8, "default"))


def test_an_own_environment_is_below_the_home() -> None:
    assert f"{ALICE.home}/envs/torch/bin/jupyterhub-singleuser" in job(Request(environment="~/envs/torch")).command


# --- a full home -----------------------------------------------------------------------------------------------------

NO_DD = "#!/bin/sh\necho 'dd: error writing: Disk quota exceeded' >&2\nexit 1\n"
SHOWS = "#!/bin/sh\nenv | sort\nls -A $HOME\n"


@pytest.fixture
def person(tmp_path: Path) -> Path:
    """A home with an environment."""
    program = tmp_path / "env" / "bin" / "jupyterhub-singleuser"
    program.parent.mkdir(parents=True)
    program.write_text(SHOWS)
    program.chmod(0o755)
    return tmp_path


def started(home: Path, program_of_writing: str = "") -> dict[str, str]:
    """The variables that JupyterLab of a session in a home has."""
    (home / "bin").mkdir()
    if program_of_writing:
        (home / "bin" / "dd").write_text(program_of_writing)
        (home / "bin" / "dd").chmod(0o755)
    account = ALICE._replace(home=str(home))
    wanted = session.job(account, "", Request(environment="~/env"), SETTINGS, ENVIRONMENT, {})
    there = {"HOME": str(home), "PATH": f"{home}/bin:/usr/bin:/bin", "TMPDIR": str(home / "node")}
    (home / "node").mkdir()
    done = subprocess.run(["bash"], input=wanted.command, env=there, capture_output=True, text=True, check=True)
    assert list((home / "node").iterdir()) == []
    assert not list(home.glob(".portal-*"))
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def test_in_a_full_home_jupyter_keeps_its_files_on_the_node_and_reads_those_of_the_home(person: Path) -> None:
    found = started(person, NO_DD)
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        assert found[name].startswith(f"{person}/node/")
    assert found["JUPYTER_PATH"] == f"{session.JUPYTER}:{person}/.local/share/jupyter"
    assert found["JUPYTER_CONFIG_PATH"] == f"{person}/.jupyter"


def test_in_another_home_they_are_where_they_always_are(person: Path) -> None:
    found = started(person)
    assert not found.keys() & {"JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"}


# --- in an image -----------------------------------------------------------------------------------------------------

PYTORCH = f"reg1:5000/catalogue/pytorch@sha256:{'a' * 64}"
WITH_IMAGES = replace(SETTINGS, images={"torch": PYTORCH}, registry="reg1:5000")
# What nodes have, as far as a session calls it. Its containers are none.
GPU_IMAGE = f"""#!/bin/sh
case "$1" in
bundle) echo "$2" >>"$HOME/asked"; mkdir -p "$HOME/bundle"; echo {PYTORCH} >"$HOME/bundle/image"; echo "$HOME/bundle" ;;
run) env >"$HOME/outside"; echo "$2" >"$HOME/ran"; shift 2; PATH="$HOME/inside:$PATH" exec "$@" ;;
esac
"""
SINGLEUSER = """#!/bin/sh
echo "token $JUPYTERHUB_API_TOKEN, in $(pwd), with $*"
cat "$JUPYTERHUB_SSL_KEYFILE"
ls "$JUPYTER_PATH/.." "$JUPYTER_PATH"
"""


class Node:
    """A home with a session in an image. `run` is the job."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.directory = home, home / "gpuops-jobs" / "portal-session"
        self.directory.mkdir(parents=True)
        (home / "lab" / "labextensions").mkdir(parents=True)
        monkeypatch.setattr(session, "JUPYTER", str(home / "lab"))
        self.program("bin/gpu-image", GPU_IMAGE)
        self.program("inside/jupyterhub-singleuser", SINGLEUSER)

    def program(self, name: str, text: str) -> None:
        (self.home / name).parent.mkdir(exist_ok=True)
        (self.home / name).write_text(text)
        (self.home / name).chmod(0o755)

    def run(self, environment: str = "torch", pem: Any = None) -> subprocess.CompletedProcess[str]:
        account = ALICE._replace(home=str(self.home))
        request = Request(1, "", 1, 1, 1, environment)
        wanted = session.job(account, "", request, WITH_IMAGES, ENVIRONMENT, pem or {})
        assert submission.problems(wanted) == []
        there = {"HOME": str(self.home), "PATH": f"{self.home}/bin:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
        return subprocess.run(
            ["bash"], input=submission.script(wanted), cwd=self.directory, env=there, capture_output=True, text=True
        )


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_an_image_in_a_full_home_says_that_it_needs_room(node: Node) -> None:
    node.program("bin/dd", NO_DD)
    done = node.run()
    assert done.returncode == session.FULL_HOME
    assert not (node.home / "ran").exists()
    ended = session.ended(row(job_state=["FAILED"], exit_code={"return_code": session.FULL_HOME}))
    assert "yours has no room" in ended.cause
    assert "environment that is not an image" in ended.remedy


def test_a_session_in_an_image_has_its_token_its_home_and_the_warnings_of_the_portal(node: Node) -> None:
    pem = dict.fromkeys(session.CERTIFICATES, "-----BEGIN X-----\nAAAA\n-----END X-----\n")
    done = node.run(pem=pem)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"token secret, in {node.home}, with {' '.join(session.QUIET)}" in done.stdout
    assert "-----BEGIN X-----" in done.stdout
    assert "labextensions" in done.stdout.split()
    assert (node.home / "ran").read_text() == f"{PYTORCH}\n"


def test_what_is_secret_is_in_no_environment_of_a_container_and_goes_with_the_session(node: Node) -> None:
    """slurmstepd writes the environment into a file that the user's group can read."""
    done = node.run()
    assert "token secret" in done.stdout
    assert "JUPYTERHUB" not in (node.home / "outside").read_text()
    assert sorted(path.name for path in node.directory.iterdir()) == ["result"]


def test_an_own_image_by_its_tag_is_run_by_the_digest_that_it_has_at_the_start(node: Node) -> None:
    assert node.run("reg1:5000/alice/lectures:v1").returncode == 0
    assert (node.home / "asked").read_text() == "reg1:5000/alice/lectures:v1\n"
    assert (node.home / "ran").read_text() == f"{PYTORCH}\n"


def test_a_node_that_runs_no_images_and_an_image_without_jupyterhub_are_told_apart(node: Node) -> None:
    (node.home / "inside" / "jupyterhub-singleuser").unlink()
    done = node.run()
    assert (done.returncode, "the image has no jupyterhub-singleuser" in done.stdout) == (127, True)
    (node.home / "bin" / "gpu-image").unlink()
    done = node.run()
    assert (done.returncode, "runs no images" in done.stdout) == (session.NO_IMAGES, True)


def test_an_image_that_cannot_be_had_ends_the_session_with_what_gpu_image_said(node: Node) -> None:
    node.program("bin/gpu-image", "#!/bin/sh\necho 'gpu-image: skopeo copy ended with 1' >&2; exit 1\n")
    done = node.run()
    assert (done.returncode, done.stderr) == (1, "gpu-image: skopeo copy ended with 1\n")
    assert not (node.home / "ran").exists()


def test_images_of_others_are_refused_here_too() -> None:
    request = Request(1, "", 1, 1, 1, "reg1:5000/bob/lectures:v1")
    with pytest.raises(Refused, match="there is no environment"):
        session.job(ALICE, "", request, WITH_IMAGES, ENVIRONMENT, {})


# --- what becomes of it ----------------------------------------------------------------------------------------------


def row(**changed: Any) -> dict[str, Any]:
    found = copy.deepcopy(next(one for one in JOBS if "RUNNING" in one["job_state"]))
    return {**found, "name": session.JOB, **changed}


@pytest.mark.parametrize(
    ("state", "more", "code"),
    [
        ("OUT_OF_MEMORY", {}, "out_of_memory"),
        ("TIMEOUT", {}, "time_over"),
        ("NODE_FAIL", {}, "node_failed"),
        ("PREEMPTED", {}, "preempted"),
        ("CANCELLED", {}, "cancelled"),
        ("CANCELLED", {"admin_comment": "gpuops: SIGTERM: GPU 0 fell off the bus"}, "gpu_lost"),
        ("FAILED", {"exit_code": {"return_code": {"set": True, "number": 1}}}, "failed"),
        ("COMPLETED", {}, "ended"),
    ],
)
def test_an_end_has_a_reason_and_a_remedy(state: str, more: dict[str, Any], code: str) -> None:
    found = session.session(row(job_state=[state], **more))
    assert found.state == session.ENDED
    assert found.ended is not None
    assert found.ended.code == code
    assert found.ended.remedy


def test_a_node_that_runs_no_images_is_told_with_the_remedy() -> None:
    code = {"exit_code": {"return_code": {"set": True, "number": session.NO_IMAGES}}}
    found = session.session(row(job_state=["FAILED"], **code))
    assert "its node runs none" in str(found.ended)
    assert "To do: choose another environment, or ask the operators to set slurm_common_containers" in str(found.ended)


def test_what_the_reconciler_noted_is_told() -> None:
    found = session.session(row(job_state=["CANCELLED"], admin_comment="gpuops: SIGTERM: <b>Xid 79</b>\x1b[2J"))
    assert found.ended is not None
    assert "Xid 79" in found.ended.cause
    assert found.ended.cause.isprintable()


def test_a_session_that_waits_says_why_and_when() -> None:
    found = session.session(
        row(
            job_state=["PENDING"],
            state_reason="Resources",
            state_description="",
            start_time={"set": True, "number": 5000},
            current_working_directory="/homes/alice/gpuops-jobs/portal-session-train",
        )
    )
    assert (found.state, found.why, found.expected) == (session.WAITS, "no node has enough free resources", 5000.0)
    assert found.server == "train"


class Slurmctld:
    """Answers squeue: a line of each job first, and JSON of those that it is then asked for.

    :param everything: whether JSON has all jobs whatever it is asked for, as that of 22.05.
    """

    def __init__(self, rows: list[Any], owners: dict[int, int] | None = None, everything: bool = False) -> None:
        self.rows, self.owners, self.everything = rows, owners or {}, everything
        self.asked: list[int] = []

    def __call__(self, argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        options = dict(word.partition("=")[::2] for word in argv)
        known = {one["job_id"]: one for one in self.rows if isinstance(one, dict) and one.get("name") == session.JOB}
        if "--json" in argv:
            self.asked = [int(word) for word in options["--jobs"].split(",")]
            wanted = self.rows if self.everything else [known[one] for one in self.asked]
            return 0, json.dumps({"jobs": wanted}), ""
        mark, _fields = options["--format"].split(" ", 1)
        return 0, "".join(f"{mark} {one} {self.owners.get(one, 2000)}\n" for one in known), ""


@pytest.mark.parametrize("everything", [False, True])
def test_two_questions_tell_of_all_sessions_and_leave_other_jobs_out(everything: bool) -> None:
    unreadable = {"name": session.JOB, "job_id": 3, "job_resources": 7}
    slurmctld = Slurmctld([row(job_id=1), row(job_id=2, name="train"), unreadable, 7], everything=everything)
    assert list(session.read(slurmctld)) == [1]
    assert slurmctld.asked == [3, 1]
    assert session.read(Slurmctld([])) == {}


def test_a_scheduler_that_does_not_answer_is_told() -> None:
    with pytest.raises(CallFailed, match="squeue"):
        session.read(lambda argv, stdin, timeout: (1, "", "Unable to contact slurm controller"))

    def run(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        return (0, "no JSON", "") if "--json" in argv else Slurmctld([row(job_id=1)])(argv, stdin, timeout)

    with pytest.raises(CallFailed, match="cannot be read"):
        session.read(run)


def test_sessions_that_are_gone_between_the_questions_are_no_fault() -> None:
    def run(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        if "--json" in argv:
            return 1, "", "slurm_load_jobs error: Invalid job id specified"
        return Slurmctld([row(job_id=1)])(argv, stdin, timeout)

    assert session.read(run) == {}


def test_a_user_s_jobs_with_the_name_of_sessions_hide_nobody_s() -> None:
    rows = [row(job_id=number, user_name="mallory") for number in range(10, 400)]
    slurmctld = Slurmctld([row(job_id=1), *rows], dict.fromkeys(range(10, 400), 3000))
    found = session.read(slurmctld)
    assert (len(found), 1 in found, 399 in found) == (51, True, True)


# --- a job that is queued again --------------------------------------------------------------------------------------


def test_a_session_s_job_is_not_queued_again() -> None:
    assert "#SBATCH --no-requeue\n" in submission.script(job())
    assert "requeue" not in submission.script(replace(job(), once=False))


@pytest.mark.parametrize(
    ("changed", "lives"),
    [
        ({"job_state": ["RUNNING"], "restart_cnt": 1}, True),
        ({"job_state": ["PENDING"], "restart_cnt": 1}, True),
        ({"job_state": ["PENDING", "REQUEUED"]}, True),
        ({"job_state": ["PENDING", "REQUEUE_HOLD"]}, True),
        ({"job_state": ["NODE_FAIL", "REQUEUED"]}, True),
        ({"job_state": "RUNNING", "restart_cnt": 2}, True),
        ({"job_state": ["CANCELLED"], "restart_cnt": 1}, False),
    ],
)
def test_a_job_that_was_queued_again_is_no_session_any_more(changed: dict[str, Any], lives: bool) -> None:
    found = session.session(row(**changed))
    assert (found.state, found.lives) == (session.ENDED, lives)
    assert found.ended
    if lives:
        assert "was queued again, which ends a session" in found.ended.cause


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETED"])
def test_a_job_in_its_first_life_is_the_session(state: str) -> None:
    assert not session.session(row(job_state=[state], restart_cnt=0)).lives


def test_an_address_is_what_slurmctld_has() -> None:
    assert (
        session.address("n1", lambda *given: (0, "NodeName=n1 NodeAddr=192.0.2.7 NodeHostName=n1 ", "")) == "192.0.2.7"
    )
    with pytest.raises(CallFailed):
        session.address("n1", lambda *given: (0, "NodeName=n1 NodeAddr=$(id) NodeHostName=n1 ", ""))


# --- the program -----------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], str | None]]:
    monkeypatch.setattr(accounts, "find", lambda name, groups, least: ALICE._replace(name=name))
    person = pwd.struct_passwd(("alice", "x", 2000, 2000, "", "/home/alice", "/bin/bash"))
    monkeypatch.setattr(submission.pwd, "getpwnam", lambda name: person)
    return []


def do(calls: list[tuple[list[str], str | None]], **order: Any) -> dict[str, Any]:
    def run(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        calls.append((argv, stdin))
        return 0, "12\n", ""

    return helper.do(json.dumps(order).encode(), SETTINGS, run)


def test_an_order_to_submit_is_a_job_of_the_user_and_no_secret_is_on_a_command_line(calls: Any) -> None:
    request = {"gpus": 1, "model": "a100", "cpus": 1, "memory_gib": 1, "hours": 1, "environment": "default"}
    answer = do(calls, do="submit", user="alice", request=request, variables={"JUPYTERHUB_API_TOKEN": "s3cret"})
    assert answer == {"job": 12}
    argv, script = calls[-1]
    assert argv[:4] == ["/usr/sbin/runuser", "-u", "alice", "--"]
    assert argv[-2:] == ["/usr/bin/sbatch", "--parsable"]
    assert "s3cret" in str(script)
    assert "s3cret" not in str([words for words, _stdin in calls])


@pytest.fixture
def visitor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home that is alice's by name alone; who looks at it is nobody."""
    with tempfile.TemporaryDirectory() as base:
        os.chmod(base, 0o755)
        person = pwd.struct_passwd(("alice", "x", 2000, 2000, "", f"{base}/alice", "/bin/bash"))
        monkeypatch.setattr(submission.pwd, "getpwnam", lambda name: person)
        yield Path(base, "alice")


def as_nobody(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
    rights: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    words = argv[argv.index("--") + 1 :]
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=60, check=False, **rights)
    return done.returncode, done.stdout, done.stderr


WRITERS = {
    "slurm": lambda wanted: submission.Submitter(as_nobody).submit(wanted, "#!/bin/sh\n"),
    "script": lambda wanted: home_script.keep(wanted, "script-1", "true\n", as_nobody),
    "keys": lambda wanted: helper._keys("alice", home_script.home(wanted), submission.Submitter(as_nobody), as_nobody),
}


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize(
    ("is_there", "cause", "remedy"),
    [
        (False, "alice has no home on this host: {home} is not there", "`sudo mkhomedir_helper alice` on this host"),
        (True, "alice may not write to their home, {home}", "sees with `ls -ld {home}` on this host who owns it"),
    ],
)
def test_a_home_that_is_missing_or_closed_is_told_in_words(
    visitor: Path, writer: Callable[[Any], object], is_there: bool, cause: str, remedy: str
) -> None:
    if is_there:
        visitor.mkdir(mode=0o555)
    with pytest.raises(CallFailed) as caught:
        writer(replace(job(), directory=f"{visitor}/gpuops-jobs/portal"))
    assert caught.value.problem.cause == cause.format(home=visitor)
    assert remedy.format(home=visitor) in caught.value.problem.remedy


def test_a_directory_that_is_not_in_the_home_is_named_itself(visitor: Path) -> None:
    with pytest.raises(CallFailed) as caught:
        WRITERS["slurm"](replace(job(), directory="/proc/jobs"))
    assert "`ls -ld /proc/jobs`" in caught.value.problem.remedy


HUB = {"public_url": "https://portal.example.org", "hub_connect_url": "http://10.0.0.1:8081"}
# As JupyterHub gives them.
OF_HUB = {
    "JUPYTERHUB_API_TOKEN": "s3cret",
    "JUPYTERHUB_API_URL": "http://10.0.0.1:8081/hub/api",
    "JUPYTERHUB_ACTIVITY_URL": "http://10.0.0.1:8081/hub/api/users/alice/activity",
    "JUPYTERHUB_HOST": "https://portal.example.org",
    "JUPYTERHUB_USER": "alice",
    "JUPYTERHUB_SERVICE_PREFIX": "/user/alice/train/",
    "JUPYTERHUB_SERVICE_URL": "http://0.0.0.0:21007/user/alice/train/",
    "JUPYTERHUB_PUBLIC_URL": "https://alice.portal.example.org/user/alice/train/",
    "JUPYTERHUB_OAUTH_ACCESS_SCOPES": '["access:servers!server=alice/train", "access:servers!user=alice"]',
}


def submitted(calls: Any, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> dict[str, Any]:
    monkeypatch.setitem(globals(), "SETTINGS", replace(SETTINGS, hub=HUB))
    return do(calls, do="submit", user="alice", server="train", variables=variables)


def test_an_order_gives_what_the_hub_gives(calls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert submitted(calls, monkeypatch, OF_HUB) == {"job": 12}
    assert "export JUPYTERHUB_API_URL=http://10.0.0.1:8081/hub/api\n" in str(calls[-1][1])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        # A session of it would believe anybody to be its user.
        ("JUPYTERHUB_API_URL", "http://evil.example/hub/api"),
        ("JUPYTERHUB_API_URL", "http://10.0.0.1:8082/hub/api"),
        ("JUPYTERHUB_API_URL", "http://10.0.0.1:8081@evil.example/hub/api"),
        ("JUPYTERHUB_API_URL", "http://10.0.0.1:8081.evil.example/hub/api"),
        ("JUPYTERHUB_API_URL", "http://10.0.0.1:8081/hub/api\n"),
        ("JUPYTERHUB_API_URL", ""),
        ("JUPYTERHUB_ACTIVITY_URL", "http://evil.example/hub/api/users/alice/activity"),
        ("JUPYTERHUB_ACTIVITY_URL", "http://10.0.0.1:8081/hub/api/users/bob/activity"),
        ("JUPYTERHUB_HOST", "https://evil.example"),
        ("JUPYTERHUB_HOST", "https://evilportal.example.org"),
        ("JUPYTERHUB_HOST", "https://portal.example.org.evil.example"),
        ("JUPYTERHUB_HOST", "http://portal.example.org"),
        ("JUPYTERHUB_PUBLIC_URL", "https://evil.example/user/alice/train/"),
        ("JUPYTERHUB_PUBLIC_HUB_URL", "https://evil.example/hub/"),
        ("JUPYTERHUB_OAUTH_CALLBACK_URL", "https://evil.example/oauth_callback"),
        ("JUPYTERHUB_OAUTH_ACCESS_SCOPES", '["self"]'),
        ("JUPYTERHUB_OAUTH_CLIENT_ALLOWED_SCOPES", '["admin:users"]'),
        ("JUPYTERHUB_USER", "bob"),
        ("JUPYTERHUB_SERVICE_PREFIX", "/hub/"),
        ("JUPYTERHUB_SERVICE_URL", "unix+http://%2Ftmp%2Fsocket/user/alice/"),
        ("JUPYTERHUB_API_TOKEN", "a b"),
        # What Jupyter reads, too.
        ("JUPYTERHUB_SINGLEUSER_APP", "evil.App"),
        ("JUPYTERHUB_SINGLEUSER_EXTENSION", "0"),
        ("JUPYTERHUB_ROOT_DIR", "/"),
        ("JUPYTERHUB_ALLOW_TOKEN_IN_URL", "1"),
        ("JUPYTERHUB_SSL_CLIENT_CA", "/tmp/ca.pem"),
        ("JPY_COOKIE_NAME", "x"),
    ],
)
def test_an_order_says_neither_where_the_hub_is_nor_what_else_jupyter_reads(
    calls: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    with pytest.raises((Malformed, Refused), match=name):
        submitted(calls, monkeypatch, {**OF_HUB, name: value})
    assert calls == []


def test_a_token_that_is_none_is_not_shown(calls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused) as refused:
        submitted(calls, monkeypatch, {**OF_HUB, "JUPYTERHUB_API_TOKEN": "s3cret word"})
    assert "s3cret" not in str(refused.value)


def cancel(
    monkeypatch: pytest.MonkeyPatch, told: str, people: dict[int, str], user: str = "alice", error: str = ""
) -> list[list[str]]:
    """The calls of scancel that come of an order, with what squeue tells of the job and with these accounts."""

    def closed(name: str, groups: Any, least: int) -> Account:
        raise Refused(f"{name} is closed, or gone")

    def getpwuid(uid: int) -> pwd.struct_passwd:
        return pwd.struct_passwd((people[uid], "x", uid, uid, "", "/home/x", "/usr/sbin/nologin"))

    calls = []

    def run(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        if argv[0] == "/usr/bin/squeue":
            assert "--jobs=7" in argv
            assert "--format=%U %j" in argv
            return (1 if error else 0), told, error
        calls.append(argv)
        return 0, "", ""

    monkeypatch.setattr(accounts, "find", closed)
    monkeypatch.setattr(slurm_backend.pwd, "getpwuid", getpwuid)
    order = {"do": "cancel", "user": user, "job": 7}
    assert helper.do(json.dumps(order).encode(), SETTINGS, run) == {"cancelled": 7}
    return calls


@pytest.mark.parametrize(
    ("people", "user"),
    [({2000: "alice"}, "alice"), ({}, "alice"), ({}, ""), ({}, "2000"), ({2000: "JDoe"}, "JDoe")],
)
def test_a_session_ends_also_where_its_account_is_closed_or_gone(
    monkeypatch: pytest.MonkeyPatch, people: dict[int, str], user: str
) -> None:
    assert cancel(monkeypatch, "2000 portal-session\n", people, user) == [["/usr/bin/scancel", "7"]]


@pytest.mark.parametrize(
    "told",
    [
        "2001 portal-session\n",
        "2000 train\n",
        "2000 portal-session2\n",
        "2000 x\n2000 portal-session\n",
        "2000 portal-session\n2001 portal-session\n",
        "2000 portal-session x\n",
    ],
)
def test_nothing_else_is_ended(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    with pytest.raises(Refused, match="7 is not a session of alice"):
        cancel(monkeypatch, told, {2000: "alice", 2001: "bob"})


def test_a_session_that_is_gone_is_no_fault_and_one_that_cannot_be_asked_about_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for told, error in (("", ""), ("", "slurm_load_jobs error: Invalid job id specified")):
        assert cancel(monkeypatch, told, {}, error=error) == []
    with pytest.raises(CallFailed, match="Unable to contact"):
        cancel(monkeypatch, "", {}, error="Unable to contact slurm controller")


ROW = "2000|8:00:00|gpu|physics|normal|portal-session\n"
LIMITS = "UserName=alice(2000)\n  MaxJobs= MaxWallPJ={}\nQOS=normal(1)\n  MaxWallPJ=\n"


def extend(
    monkeypatch: pytest.MonkeyPatch, row: str = ROW, wall: str = "", max_time: str = "UNLIMITED", error: str = ""
) -> list[list[str]]:
    """What is changed in Slurm where alice wants four hours more, and the portal allows 24 in all."""
    monkeypatch.setattr(accounts, "find", lambda name, groups, least: ALICE)
    monkeypatch.setattr(slurm_backend, "_owner", lambda uid: {2000: "alice", 2001: "bob"}[uid])
    partition = f"PartitionName=gpu MaxTime={max_time} State=UP TotalNodes=2"
    only = ["users=alice", "accounts=physics", "qos=normal", "flags=assoc,qos"]
    answers = {"squeue": row, "partition": partition, "assoc_mgr": LIMITS.format(wall)}
    changed = []

    def run(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        if argv[1] == "update":
            changed.append(argv)
            return (1 if error else 0), "", error
        what = "squeue" if argv[0] == "/usr/bin/squeue" else argv[3]
        assert argv[4:] == {"partition": ["gpu"], "assoc_mgr": only}.get(what, argv[4:])
        return 0, answers[what], ""

    order = {"do": "extend", "user": "alice", "job": 7, "more_hours": 4}
    told = helper.do(json.dumps(order).encode(), SETTINGS, run)
    assert changed == [["/usr/bin/scontrol", "update", "JobId=7", f"TimeLimit={told['minutes']}"]]
    return changed


@pytest.mark.parametrize(
    ("given", "minutes"),
    [
        ({}, 720),
        ({"row": ROW.replace("8:00:00", "22:30:00")}, 1440),
        ({"wall": "600"}, 600),
        ({"max_time": "10:00:00"}, 600),
        ({"max_time": "1-00:00:00"}, 720),
    ],
)
def test_a_session_gets_more_time_up_to_the_least_limit_of_portal_partition_and_account(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], minutes: int
) -> None:
    assert extend(monkeypatch, **given)[0][-1] == f"TimeLimit={minutes}"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"row": ""}, "7 is not a running session of alice"),
        ({"row": ROW.replace("2000", "2001")}, "not a running session of alice"),
        ({"row": ROW.replace("portal-session", "train")}, "not a running session of alice"),
        ({"row": ROW.replace("portal-session", "x|portal-session")}, "not a running session of alice"),
        ({"row": ROW + ROW}, "not a running session of alice"),
        ({"row": ROW.replace("8:00:00", "1-00:00:00")}, "it has 24 hours, and the portal allows no more than 24"),
        ({"row": ROW.replace("8:00:00", "UNLIMITED")}, "allows no more"),
        ({"wall": "480"}, "it has 8 hours, and your account or QOS in Slurm allows no more than 8"),
        ({"max_time": "8:00:00"}, "the partition gpu allows no more than 8"),
        ({"error": "Requested time limit is invalid"}, "scontrol: Requested time limit is invalid"),
    ],
)
def test_other_jobs_and_more_than_a_limit_are_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], why: str
) -> None:
    with pytest.raises(Refused, match=why):
        extend(monkeypatch, **given)


@pytest.mark.parametrize(
    "order",
    [
        {"do": "shell", "user": "alice"},
        {"do": "extend", "user": "alice", "job": 7},
        {"do": "extend", "user": "alice", "job": 7, "more_hours": 25},
        {"do": "extend", "user": "alice", "job": "7 TimeLimit=9", "more_hours": 1},
        {"do": "submit"},
        {"do": "submit", "user": "root;id"},
        {"do": "submit", "user": "alice", "server": "../x"},
        {"do": "submit", "user": "alice", "request": {"gpus": "1; id"}},
        {"do": "submit", "user": "alice", "variables": {"PATH": "/x"}},
        {"do": "submit", "user": "alice", "certificates": {"key": "'; id"}},
        {"do": "cancel", "user": "alice"},
        {"do": "cancel", "user": "alice", "job": -1},
        {"do": "cancel", "user": "alice", "job": "7 8"},
    ],
)
def test_other_orders_do_nothing(calls: Any, order: dict[str, Any]) -> None:
    with pytest.raises((Malformed, Refused)):
        do(calls, **order)
    assert calls == []


def runs(job_id: int = 7, user_name: str = "alice", job_state: str = "RUNNING") -> Run:
    """What squeue tells of a session that runs."""

    def run(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        mark = next(word for word in argv if word.startswith("--format=")).partition("=")[2].split()[0]
        return 0, f"{mark} {job_id} {user_name} {job_state} gpu1 {ALICE.home}/gpuops-jobs/portal-session-train\n", ""

    return run


def save(target: str, output: str, status: int = 0, **found: Any) -> tuple[dict[str, Any], list[str]]:
    """What comes of an order to save, and the command that does it."""
    argv: list[str] = []

    def listening(words: Sequence[str], hear: Callable[[str], None]) -> int:
        argv.extend(words)
        for line in output.splitlines():
            hear(f"{line}\n")
        return status

    order = {"do": "save", "user": "alice", "server": "train", "job": 7, "target": target}
    done = helper.do(json.dumps(order).encode(), WITH_IMAGES, runs(**found), listening)
    return done, argv


SAVED = f"reg1:5000/alice/lectures@sha256:{'b' * 64}"


def test_an_environment_is_saved_in_the_job_with_the_rights_of_its_user_and_its_progress_is_told(
    calls: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    output = f"gpu-image: fetching x\ngpu-image: pushing y\n{SAVED}\nslurmstepd: error: something else\n"
    done, argv = save("reg1:5000/alice/lectures:v1", output)
    assert done == {"saved": SAVED}
    assert argv[:4] == ["/usr/sbin/runuser", "-u", "alice", "--"]
    assert "--jobid=7" in argv
    assert argv[-2:] == [f"{ALICE.home}/gpuops-jobs/portal-session-train", "reg1:5000/alice/lectures:v1"]
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told == [{"progress": "fetching x"}, {"progress": "pushing y"}]


@pytest.mark.parametrize(
    "target",
    [
        "reg1:5000/bob/lectures:v1",
        "reg1:5000/catalogue/notebook:latest",
        "evil.example/alice/lectures",
        SAVED,
        "reg1:5000/alice/",
        "reg1:5000/alice/x; id",
        "reg1:5000/alice/é",
        "--help",
    ],
)
def test_an_image_of_another_name_is_not_saved(calls: Any, target: str) -> None:
    with pytest.raises(Refused, match=r"such as reg1:5000/alice/lectures:v1"):
        save(target, "")


@pytest.mark.parametrize("found", [{"user_name": "bob"}, {"job_state": "CONFIGURING"}, {"job_id": 8}])
def test_only_a_session_of_the_user_that_runs_is_saved(calls: Any, found: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="job 7 is not a running session of alice"):
        save("reg1:5000/alice/lectures:v1", "", **found)


def lock(output: str, status: int = 0, target: str = "~/environments/torch.lock") -> tuple[dict[str, Any], list[str]]:
    """What comes of an order to save an environment of the home, and the command that does it."""
    argv: list[str] = []

    def listening(words: Sequence[str], hear: Callable[[str], None]) -> int:
        argv.extend(words)
        for line in output.splitlines():
            hear(f"{line}\n")
        return status

    order = {"do": "save", "user": "alice", "job": 7, "target": target, "environment": "~/envs/torch"}
    return helper.do(json.dumps(order).encode(), SETTINGS, runs(), listening), argv


def test_an_environment_of_the_home_becomes_a_lock_in_the_job_with_the_rights_of_its_user(calls: Any) -> None:
    output = f"left out: mine: it was installed from file://{ALICE.home}/mine\n"
    output += f"{ALICE.home}/environments/torch.lock has 61 packages of {ALICE.home}/envs/torch\n"
    done, argv = lock(output)
    assert done == {
        "saved": "~/environments/torch.lock has 61 packages of ~/envs/torch",
        "left_out": [f"left out: mine: it was installed from file://{ALICE.home}/mine"],
    }
    assert argv[:4] == ["/usr/sbin/runuser", "-u", "alice", "--"]
    assert "--jobid=7" in argv
    assert argv[-2:] == [f"{ALICE.home}/envs/torch", f"{ALICE.home}/environments/torch.lock"]


@pytest.mark.parametrize(
    "target",
    [
        "~/.bashrc",
        "~/environments/../x.lock",
        "~/environments/.lock",
        "~/environments/a b.lock",
        "/etc/x.lock",
        "x.lock",
    ],
)
def test_a_lock_is_in_no_other_place(calls: Any, target: str) -> None:
    with pytest.raises(Refused, match=r"the lock file is .* To do: give a name of letters and digits"):
        lock("", target=target)


@pytest.mark.parametrize(
    ("output", "status", "said"),
    [
        (
            "~/environments/torch.lock is not the lock of an environment. To do: move it away",
            1,
            "environment. To do: move",
        ),
        ("sh: 1: exec: gpu-environment: not found", 127, "not found. To do: save it again"),
        ("", 1, "srun ended with 1. To do: save it again"),
        ("something else", 0, "something else. To do"),
    ],
)
def test_why_there_is_no_lock_is_told(calls: Any, output: str, status: int, said: str) -> None:
    with pytest.raises(Refused, match=r"torch\.lock was not saved: ") as refused:
        lock(output, status)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("output", "status", "said"),
    [
        (
            "unauthorized\ngpu-image: skopeo copy ended with 1\nsrun: error: n1: task 0: Exited",
            1,
            "unauthorized / gpu-",
        ),
        ("the session runs in no image\n", 1, "the session runs in no image"),
        ("", 1, "srun ended with 1"),
        (SAVED, 137, "was not saved"),
        ("all is well\n", 0, "all is well"),
    ],
)
def test_what_was_not_saved_is_told_with_the_reason(calls: Any, output: str, status: int, said: str) -> None:
    with pytest.raises(Refused, match="was not saved") as refused:
        save("reg1:5000/alice/lectures:v1", output, status)
    assert said in refused.value.problem.cause
    assert "skopeo login" in refused.value.problem.remedy


def test_a_program_that_takes_long_is_heard_line_by_line() -> None:
    heard: list[str] = []
    assert helper.listen(["/bin/sh", "-c", "echo a; echo b >&2; exit 3"], heard.append) == 3
    signal.alarm(0)
    assert heard == ["a\n", "b\n"]


def test_an_order_that_is_no_json_or_too_large_is_refused() -> None:
    for data in (b"", b"[]", b"\xff", b'{"do": "submit", "user": "' + b"a" * (1 << 20) + b'"}'):
        with pytest.raises(Malformed):
            helper.do(data, SETTINGS)


# --- copies ----------------------------------------------------------------------------------------------------------


def test_the_last_copies_of_the_database_are_kept_and_whole(tmp_path: Path) -> None:
    import sqlite3

    database, copies = tmp_path / "hub.sqlite", tmp_path / "copies"
    copies.mkdir()
    (copies / "jupyterhub-1.sqlite.part").touch()
    with sqlite3.connect(database) as made:
        made.execute("create table t (x)")
        made.execute("insert into t values (7)")
    paths = [Path(backup.copy(str(database), str(copies), 2, now)) for now in (1e9, 1e9 + 86400, 1e9 + 2 * 86400)]
    assert sorted(copies.iterdir()) == paths[1:]
    assert sqlite3.connect(paths[2]).execute("select x from t").fetchall() == [(7,)]
    assert paths[2].stat().st_mode & 0o777 == 0o600


def test_a_database_that_is_not_there_is_told_and_costs_no_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert backup.main([str(tmp_path / "none"), str(tmp_path), "2"]) == 1
    assert "was not copied" in capsys.readouterr().err
