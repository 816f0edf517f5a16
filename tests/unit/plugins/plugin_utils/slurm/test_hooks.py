# SPDX-License-Identifier: GPL-3.0-or-later
"""The scripts that slurm.conf names, as slurmd starts them, and the settings that name them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import PACKAGE
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import slurm_node
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import conf
from tests.unit.plugins.plugin_utils.slurm.test_cluster import host, plan

PARAMS = {
    "options": [],
    "kill_left": True,
    "image_directory": "/var/lib/baremetal-gpu/bundles",
    "image_mounts": ["/datasets"],
    "image_days": 14,
    "drain_unclean": False,
    "adopt": False,
    "node": "n1",
    "health_grace": 300,
    "containers": False,
}
PEERS = {"controllers": ["ctl"], "hostvars": {"ctl": {}}, "wanted": "", "has": ""}
GPUS = {"SLURM_JOB_GPUS": "0", "SLURM_JOB_ID": "17"}


def files(**params: Any) -> dict[str, Any]:
    document = slurm_node.desired({**PARAMS, **params}, {}, PEERS).parts["programs"]
    return {row["path"]: row for row in document["files"]}


class Scripts:
    """The scripts, with a program behind them that says how it was called, and ends as the test wants."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.program = directory / "program"
        self.called = directory / "called"

    def run(self, path: str, ends: str = "exit 0", environment: dict[str, str] | None = None, **params: Any) -> Any:
        self.program.write_text(f'#!/bin/sh\necho "$@" >>{self.called}\n{ends}\n')
        self.program.chmod(0o755)
        script = self.directory / "script"
        text = files(**params)[path]["content"].replace(conf.PROGRAM, str(self.program))
        text = text.replace("/run/slurm/conf", str(self.directory))
        script.write_text(text.replace("/run/baremetal-gpu-slurm", str(self.directory)))
        script.chmod(0o755)
        # slurmd gives no PATH.
        return subprocess.run(
            [script], env=GPUS if environment is None else environment, capture_output=True, text=True, check=False
        )

    @property
    def words(self) -> str:
        return self.called.read_text().strip() if self.called.exists() else ""


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


@pytest.mark.parametrize("ends", ["exit 0", "exit 1", "exit 10", "kill -9 $$", "sleep 60"])
def test_a_prolog_never_fails_however_the_program_ends(scripts: Scripts, ends: str) -> None:
    assert scripts.run(conf.PROLOG, ends).returncode == 0
    assert scripts.words == "prolog"


def test_a_program_that_is_not_there_fails_no_job(scripts: Scripts, tmp_path: Path) -> None:
    for path in (conf.PROLOG, conf.EPILOG):
        text = files()[path]["content"].replace(conf.PROGRAM, str(tmp_path / "nothing"))
        assert subprocess.run(["sh", "-c", text], env=GPUS, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("path", [conf.PROLOG, conf.EPILOG])
def test_a_job_without_gpus_starts_no_program(scripts: Scripts, path: str) -> None:
    assert scripts.run(path, environment={"SLURM_JOB_ID": "17"}).returncode == 0
    assert scripts.words == ""


@pytest.mark.parametrize(
    ("params", "words", "ends", "code"),
    [
        ({}, "epilog", "exit 0", 0),
        ({}, "epilog", "exit 1", 0),
        ({"kill_left": False}, "epilog --keep-left", "exit 0", 0),
        ({"drain_unclean": True}, "epilog --fail-if-unclean", "exit 10", 1),
        ({"drain_unclean": True}, "epilog --fail-if-unclean", "exit 1", 0),
    ],
)
def test_an_epilog_fails_only_where_it_was_asked_to(scripts: Scripts, params, words, ends, code) -> None:
    assert scripts.run(conf.EPILOG, ends, **params).returncode == code
    assert scripts.words == words


@pytest.mark.parametrize(
    ("refused", "named", "words"),
    [
        ("refused-17", f"HealthCheckProgram={conf.HEALTH_CHECK}\n", ["health-check n 1 0", "epilog"]),
        # Another job's; one without the health check, or with the operator's own.
        ("refused-18", f"HealthCheckProgram={conf.HEALTH_CHECK}\n", ["epilog"]),
        ("refused-17", "", ["epilog"]),
        ("refused-17", "HealthCheckProgram=/opt/mine\n", ["epilog"]),
        ("refused-17", None, ["epilog"]),
    ],
)
def test_the_node_of_a_refused_job_is_checked_at_once(scripts: Scripts, refused, named, words) -> None:
    (scripts.directory / refused).write_text("print no\n")
    if named is not None:
        (scripts.directory / "slurm.conf").write_text(f"ClusterName=x\n{named}RequeueExit=119\n")
    assert scripts.run(conf.EPILOG, "exit 1", node="n 1").returncode == 0
    assert scripts.words.splitlines() == words


def test_a_task_of_a_refused_job_reads_why_and_ends_with_the_code_to_requeue(scripts: Scripts) -> None:
    (scripts.directory / "refused-17").write_text("print no\n")
    done = scripts.run(conf.TASK_PROLOG, environment={"SLURM_JOB_ID": "17", "SLURM_LOCALID": "0"})
    assert (done.stdout, done.returncode) == ("print no\n", conf.REFUSED)
    # One of a node's tasks tells it.
    done = scripts.run(conf.TASK_PROLOG, environment={"SLURM_JOB_ID": "17", "SLURM_LOCALID": "1"})
    assert (done.stdout, done.returncode) == ("", conf.REFUSED)


@pytest.mark.parametrize("number", ["18", "", "../17", "1 7", "$(reboot)"])
def test_a_task_of_any_other_job_starts(scripts: Scripts, number: str) -> None:
    (scripts.directory / "refused-17").write_text("print no\n")
    done = scripts.run(conf.TASK_PROLOG, environment={"SLURM_JOB_ID": number})
    assert (done.stdout, done.returncode) == ("", 0)


def test_everybody_may_run_them_and_only_root_may_change_them() -> None:
    rows = files()
    for path in (conf.PROGRAM, conf.PROLOG, conf.TASK_PROLOG, conf.EPILOG):
        assert {key: rows[path][key] for key in ("mode", "owner", "group")} == {
            "mode": "0755",
            "owner": "root",
            "group": "root",
        }


def test_the_program_runs_with_nothing_installed(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(files()[conf.PROGRAM]["content"])
    environment = {"SLURM_JOB_ID": "17", "SLURM_JOB_UID": "0", "SLURMD_NODENAME": "n1", "SLURM_JOB_GPUS": "x"}
    done = subprocess.run(
        ["/usr/bin/python3", "-I", program, "prolog"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # Without a log it is said here.
    assert not done.stderr or "SLURM_JOB_GPUS" in json.loads(done.stderr.split(": ", 2)[2])["why"]


# What every job waits for. A module more is some milliseconds for each; srun asks whether the node is ready after a
# tenth of a second, and then only after another second.
OWN_MODULES = {
    "health.agent_result",
    "health.verdict",
    "host.boot",
    "host.bounded_json",
    "host.child",
    "host.files",
    "host.paths",
    "host.pci_address",
    "host.untrusted_text",
    "slurm.command",
    "slurm.gpus",
    "slurm.gres",
    "slurm.job",
    "slurm.notes",
    "slurm.settings",
}
SLOW_MODULES = {
    "argparse",
    "ast",
    "dataclasses",
    "glob",
    "hashlib",
    "inspect",
    "logging",
    "pathlib",
    "shutil",
    "site",
    "socket",
    "subprocess",
    "tempfile",
    "urllib.parse",
}


@pytest.mark.parametrize(("word", "more"), [("prolog", {"slurm.prolog"}), ("epilog", {"slurm.epilog", "slurm.left"})])
def test_a_job_waits_for_no_module_that_it_does_not_need(tmp_path: Path, word: str, more: set[str]) -> None:
    program = tmp_path / "program"
    program.write_text(files()[conf.PROGRAM]["content"])
    first_line = program.read_text().partition("\n")[0]
    environment = {**GPUS, "SLURM_JOB_UID": "0", "SLURMD_NODENAME": "n1"}
    done = subprocess.run(
        [*first_line.removeprefix("#!").split(), "-X", "importtime", program, word],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    packages = {"health", "host", "slurm"}
    assert {
        name.removeprefix(f"{PACKAGE}.") for name in loaded if f"{PACKAGE}." in name
    } - packages == OWN_MODULES | more
    assert "json" in loaded
    assert not loaded & SLOW_MODULES


@pytest.mark.parametrize(
    ("wanted", "has", "is_behind"), [("a", "b", True), ("a", "a", False), ("", "b", False), ("a", "", False)]
)
def test_a_slurmd_with_an_older_configuration_is_seen(wanted: str, has: str, is_behind: bool) -> None:
    peers = {**PEERS, "wanted": wanted, "has": has}
    assert slurm_node.desired(PARAMS, {}, peers).parts["is_behind"] is is_behind


def test_slurm_conf_names_them_where_nodes_have_gpus() -> None:
    wanted = {f"Prolog={conf.PROLOG}", f"TaskProlog={conf.TASK_PROLOG}", f"Epilog={conf.EPILOG}", "RequeueExit=119"}
    assert wanted <= set(plan().parts["slurm_conf"].splitlines())


def test_slurm_conf_names_none_where_the_operator_wants_none_and_theirs_where_they_have_their_own() -> None:
    assert "Prolog=" not in plan({"prolog": False}).parts["slurm_conf"].replace("PrologFlags=", "")
    text = plan({"options": {"Prolog": "/opt/mine"}}).parts["slurm_conf"]
    assert "Prolog=/opt/mine" in text.splitlines()
    assert text.count("\nProlog=") == 1


@pytest.mark.parametrize("ends", ["exit 0", "exit 1", "kill -9 $$"])
def test_a_health_check_never_fails_and_knows_its_node(scripts: Scripts, ends: str) -> None:
    done = scripts.run(conf.HEALTH_CHECK, ends, environment={}, node="n 1", health_grace=60)
    assert done.returncode == 0
    assert scripts.words == "health-check n 1 60"


def health_check(**params: Any) -> dict[str, str]:
    """The settings of slurm.conf that name the HealthCheckProgram."""
    rows = (line.partition("=") for line in plan(params).parts["slurm_conf"].splitlines())
    return {key: value for key, _equals, value in rows if key.startswith("HealthCheck")}


def test_slurm_conf_names_the_health_check_where_it_is_wanted() -> None:
    assert health_check() == {}
    assert health_check(health_check=True) == {
        "HealthCheckProgram": conf.HEALTH_CHECK,
        "HealthCheckInterval": "60",
        "HealthCheckNodeState": "ANY",
    }
    assert health_check(health_check=True, options={"HealthCheckInterval": 300})["HealthCheckInterval"] == "300"


def test_a_health_check_of_the_operators_own_wins_with_its_own_interval() -> None:
    own = {"HealthCheckProgram": "/opt/mine", "HealthCheckInterval": "10"}
    assert health_check(health_check=True, options=own) == own


def start(scripts: Scripts, *words: str, crun: str = "") -> Any:
    """The container of a task, as slurmstepd starts it; crun says how it was called."""
    runtime = scripts.directory / "crun"
    runtime.write_text(
        f'#!/bin/sh\ncase $* in *list*) {crun or ":"} ;; *) echo "$@" >>{scripts.directory}/crun.log ;; esac\n'
    )
    runtime.chmod(0o755)
    scripts.program.write_text(f'#!/bin/sh\necho "$@" >{scripts.called}\ncat\n[ "$2" != /bad ]\n')
    scripts.program.chmod(0o755)
    text = files()[conf.CONTAINER]["content"].replace(conf.PROGRAM, str(scripts.program))
    text = text.replace("/usr/bin/crun", str(runtime)).replace(slurm_node.CONTAINERS, str(scripts.directory))
    script = scripts.directory / "script"
    script.write_text(text)
    script.chmod(0o755)
    return subprocess.run([script, *words], env={}, input="the job's", capture_output=True, text=True, check=False)


def crun_calls(scripts: Scripts) -> list[str]:
    log = scripts.directory / "crun.log"
    return log.read_text().splitlines() if log.exists() else []


def test_a_container_is_started_after_its_gpus_were_added_and_has_the_jobs_input(scripts: Scripts) -> None:
    assert start(scripts, "run", "n1.alice.7.0.0", "/spool/task-0/").returncode == 0
    assert scripts.words == "container /spool/task-0/"
    state = scripts.directory / str(os.getuid())
    assert crun_calls(scripts) == [
        f"--rootless=true --cgroup-manager=disabled --root={state} run --bundle /spool/task-0/ n1.alice.7.0.0"
    ]
    assert state.stat().st_mode & 0o777 == 0o700


def test_without_its_gpus_a_container_is_not_started(scripts: Scripts) -> None:
    assert start(scripts, "run", "n1.alice.7.0.0", "/bad").returncode == 1
    assert crun_calls(scripts) == []


def test_what_a_container_that_was_killed_has_left_is_removed(scripts: Scripts) -> None:
    listed = "printf 'NAME PID STATUS\\nold 7 stopped /b\\nother 8 running /b\\n'"
    start(scripts, "run", "new", "/spool", crun=listed)
    assert [line.split()[3:] for line in crun_calls(scripts)] == [
        ["delete", "old"],
        ["run", "--bundle", "/spool", "new"],
    ]


def test_a_name_that_somebody_else_has_taken_is_not_used_and_keeps_nobody_out(
    scripts: Scripts, tmp_path_factory: Any
) -> None:
    theirs = tmp_path_factory.mktemp("theirs")
    for name in (str(os.getuid()), f"{os.getuid()}.before"):
        (scripts.directory / name).symlink_to(theirs)
    for _start in range(2):
        assert start(scripts, "run", "new", "/spool").returncode == 0
    assert list(theirs.iterdir()) == []
    # The second start finds what the first one has made.
    (root,) = {word for line in crun_calls(scripts) for word in line.split() if word.startswith("--root=")}
    state = scripts.directory / Path(root.removeprefix("--root=")).name
    assert state.name.startswith(f"{os.getuid()}.")
    assert state.lstat().st_mode & 0o177777 == 0o040700


def test_slurmstepd_is_told_that_a_step_has_no_container_of_its_own(scripts: Scripts) -> None:
    assert json.loads(start(scripts, "state", "n1.alice.7.0.-1").stdout)["status"] == "stopped"
    assert crun_calls(scripts) == []


def test_containers_have_a_runtime_a_place_and_a_configuration_only_where_they_are_wanted() -> None:
    def packages_and_drop_in(containers: bool) -> tuple[set[str], dict[str, Any]]:
        desired = slurm_node.desired({**PARAMS, "containers": containers}, {}, PEERS).desired
        drop_in = next(row for row in desired["files"] if row["path"] == slurm_node.CONTAINERS_PATH)
        return {row["name"] for row in desired["packages"]}, drop_in

    without, drop_in = packages_and_drop_in(False)
    assert "crun" not in without
    assert drop_in["state"] == "absent"
    wanted, drop_in = packages_and_drop_in(True)
    assert wanted - without == {"crun", "skopeo", "umoci"}
    assert f"ExecStartPre=/usr/bin/install --directory --mode=1777 {slurm_node.CONTAINERS}\n" in drop_in["content"]
    assert plan().parts["oci_conf"] == ""
    made = plan({"containers": True}).parts
    assert f'RunTimeRun="{conf.CONTAINER} run %n.%u.%j.%s.%t %b"' in made["oci_conf"].splitlines()
    # A slurmd without it is seen to be behind.
    assert "# With the oci.conf of SHA-256 " in made["slurm_conf"]


def test_images_come_and_go_with_containers() -> None:
    def state(containers: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        desired = slurm_node.desired({**PARAMS, "containers": containers}, {}, PEERS).desired
        files = {row["path"]: row for row in desired["files"]}
        timer = next(row for row in desired["units"] if row["name"] == f"{slurm_node.IMAGES_EXPIRE}.timer")
        return files[slurm_node.IMAGES_COMMAND], timer

    command, timer = state(True)
    assert (command["src"], timer["enabled"]) == (slurm_node.IMAGES, True)
    command, timer = state(False)
    assert (command["state"], timer["enabled"], timer["state"]) == ("absent", False, "stopped")


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"image_directory": "/tmp"}, "slurm_node_image_directory"),
        ({"image_directory": "bundles"}, "slurm_node_image_directory"),
        ({"image_mounts": ["/"]}, "slurm_node_image_mounts"),
        ({"image_days": 0}, "slurm_node_image_days"),
    ],
)
def test_settings_of_images_that_cannot_be_are_refused(wrong: dict[str, Any], word: str) -> None:
    plan_of_node = slurm_node.desired({**PARAMS, **wrong}, {}, PEERS)
    assert plan_of_node.desired == {}
    assert [(problem.subject, bool(problem.remedy)) for problem in plan_of_node.problems] == [(word, True)]
    # What is shown names the setting.
    assert str(plan_of_node.problems[0]).startswith(f"{word}: ")


def test_containers_are_refused_where_slurm_is_too_old_for_them() -> None:
    old = {"candidate": "22.05.8-4+deb12u3"}
    hosts = {name: host(name, f"10.0.0.{number}", **old) for number, name in enumerate(("ctl", "n1", "n2"), 1)}
    (problem,) = plan({"containers": True}, **hosts).problems
    assert (problem.code, problem.evidence) == ("no_containers", "n1, n2")
    assert not plan({"containers": False}, **hosts).problems


def test_a_node_registers_again_after_a_boot() -> None:
    """So that slurmctld misses the jobs that ended with the boot, and queues them again."""
    document = slurm_node.desired(PARAMS, {}, PEERS).desired
    contents = {row["path"]: row.get("content", "") for row in document["files"]}
    assert "OnBootSec=2min\n" in contents["/etc/systemd/system/baremetal-gpu-slurm-register.timer"]
    assert (
        "ExecStart=/usr/bin/systemctl reload slurmd.service\n"
        in contents["/etc/systemd/system/baremetal-gpu-slurm-register.service"]
    )
    timer = next(row for row in document["units"] if row["name"] == f"{slurm_node.REGISTER}.timer")
    assert (timer["enabled"], timer["state"]) == (True, "started")
