# SPDX-License-Identifier: GPL-3.0-or-later
"""The plans of ready-made jobs of Slurm, as the role's variables give them."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import submission
from ansible_collections.baremetal.gpu.plugins.module_utils.verify import cuda_driver
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.slurm_apps import END, PROGRAMS, desired, label
from tests.unit.project.tree import ROOT

NODES = [{"gres": "gpu:a100:8"}, {"gres": "gpu:a100:4(S:0-1),gpu:t4:2"}, {"gres": ""}]
HOSTVARS = {
    "new": {"ansible_facts": {"gpu": {"driver": {"version": "580.95.05", "cuda": "13.0"}}}},
    "old": {"ansible_facts": {"gpu": {"driver": {"version": "550.54.14", "cuda": "12.4"}}}},
    "unseen": {},
}
IMAGE = {
    "name": "pytorch-cuda",
    "reference": "registry1:5000/catalogue/pytorch-cuda",
    "digest": f"sha256:{'a' * 64}",
    "needs": {"cuda": "13.0"},
}
OF_IMAGE = [
    {"name": "new", "gres": "gpu:a100:8"},
    {"name": "old", "gres": "gpu:t4:2"},
    {"name": "unseen", "gres": "gpu:a100:8"},
    {"name": "elsewhere", "gres": "gpu:a100:8"},
    {"name": "plain", "gres": ""},
]
SWEEP = {"sweep_name": "rates", "sweep_command": "true", "sweep_parameters": {"LR": [0.1, 0.01], "BATCH": [32]}}


def plan(kind: str, nodes: list[dict[str, str]] | None = None, **changes: Any) -> dict[str, Any]:
    defaults = yaml.safe_load((ROOT / "roles/slurm_apps/defaults/main.yml").read_text())
    params = {name.removeprefix("slurm_apps_"): value for name, value in defaults.items()}
    given = {**params, "user": "alice", "kind": kind, "nodes": NODES if nodes is None else nodes, **changes}
    given.setdefault("image_catalogue", [])
    given.setdefault("containers", True)
    return desired(given, {}, {"host": "login1", "hostvars": HOSTVARS}).as_dict()


def jobs(kind: str, **changes: Any) -> list[dict[str, Any]]:
    told = plan(kind, **changes)
    assert told["problems"] == []
    return list(told["jobs"])


def test_one_smoke_job_for_each_type_brings_the_query_along() -> None:
    found = jobs("smoke", smoke_gpus="2")
    assert [(job["name"], job["gpu_type"], job["gpus"]) for job in found] == [
        ("smoke-a100", "a100", 2),
        ("smoke-t4", "t4", 2),
    ]
    with open(cuda_driver.__file__, encoding="utf-8") as file:
        assert file.read() in found[0]["command"]
    assert "--devices 0,1 >query.json <<" in found[0]["command"]
    assert found[0]["directory"] == "~/gpuops-jobs/smoke-a100"


def test_gpus_without_a_type_have_one_smoke_job() -> None:
    assert [(job["name"], job["gpu_type"]) for job in jobs("smoke", nodes=[{"gres": "gpu:4"}])] == [("smoke", "")]


def test_a_sweep_is_an_array_with_a_task_for_each_point() -> None:
    (job,) = jobs("sweep", **SWEEP, sweep_env={"SEED": "7"}, sweep_parallel=1)
    assert job["tasks"] == [
        {"name": "BATCH=32,LR=0.1", "environment": {"SEED": "7", "LR": "0.1", "BATCH": "32"}},
        {"name": "BATCH=32,LR=0.01", "environment": {"SEED": "7", "LR": "0.01", "BATCH": "32"}},
    ]
    assert (job["name"], job["parallel"], job["memory_mib"]) == ("sweep-rates", 1, 4096)


def test_points_have_names_of_their_own_that_a_directory_may_have() -> None:
    values = ["a/b", "a_b", "a b", "x" * 200, "../..", "$(id)"]
    names = [label({"P": value}) for value in values]
    assert len(set(names)) == len(values)
    assert all(submission.TASK.fullmatch(name) for name in names)
    assert names[1] == "P=a_b"


def test_a_notebook_has_a_socket_and_ends_with_its_job() -> None:
    (job,) = jobs("notebook")
    assert "umask 077" in job["command"]
    assert '--ServerApp.sock="$NOTEBOOK_SOCKET"' in job["command"]
    assert (job["wait"], job["minutes"]) == ("started", 480)


@pytest.mark.parametrize("kind", ["smoke", "sweep", "notebook", "training"])
def test_every_job_is_one_that_the_module_takes(kind: str) -> None:
    for job in jobs(kind, **SWEEP, training_name="digits"):
        keys = ("name", "command", "directory", "gpus", "cpus", "minutes", "nodes", "least_nodes", "processes")
        wanted = submission.Wanted(user="root", **{key: job[key] for key in keys})
        assert submission.problems(submission.with_tasks(submission.at_home(wanted), job["tasks"])) == []


@pytest.mark.parametrize(
    ("kind", "changes", "cause"),
    [
        ("smoke", {"user": ""}, "slurm_apps_user is ''"),
        ("smoke", {"directory": "jobs"}, "slurm_apps_directory is 'jobs'"),
        ("smoke", {"nodes": []}, "no node has GPUs"),
        ("smoke", {"smoke_types": ["h100"]}, "no node has GPUs of the type 'h100'"),
        ("smoke", {"smoke_types": ["t4"], "smoke_gpus": 3}, "smoke_gpus is 3, and no node has more than 2 GPUs"),
        ("smoke", {"smoke_mem": 1}, "slurm_apps_smoke_mem is 1"),
        ("notebook", {"user": "root"}, "slurm_apps_user is 'root'"),
        ("notebook", {"notebook_program": " "}, "slurm_apps_notebook_program is empty"),
        ("sweep", {**SWEEP, "sweep_name": "A"}, "slurm_apps_sweep_name is 'A'"),
        ("sweep", {**SWEEP, "sweep_command": ""}, "slurm_apps_sweep_command is empty"),
        ("sweep", {**SWEEP, "sweep_parameters": {}}, "slurm_apps_sweep_parameters is empty"),
        ("sweep", {**SWEEP, "sweep_env": {"LR": "1"}}, "slurm_apps_sweep_env has 'LR'"),
        ("sweep", {**SWEEP, "sweep_parameters": {"N": list(range(1001))}}, "has 1001 combinations"),
    ],
)
def test_settings_that_cannot_be_are_refused(kind: str, changes: dict[str, Any], cause: str) -> None:
    told = plan(kind, **changes)
    assert told["jobs"] == []
    assert any(cause in row["cause"] for row in told["problems"])
    assert all(row["subject"] == "login1" and row["remedy"] for row in told["problems"])


def test_an_image_of_the_catalogue_is_named_by_its_digest_and_nodes_of_other_types_do_not_matter() -> None:
    changes = {"image_catalogue": [IMAGE], "notebook_image": "pytorch-cuda", "notebook_type": "a100"}
    told = plan("notebook", nodes=OF_IMAGE, **changes)
    assert told["problems"] == []
    assert told["look"] == ["unseen"]
    (job,) = told["jobs"]
    assert f"export IMAGE=registry1:5000/catalogue/pytorch-cuda@sha256:{'a' * 64}\n" in job["command"]


@pytest.mark.parametrize("kind", ["notebook", "sweep"])
def test_a_node_that_lacks_what_an_image_needs_is_named(kind: str) -> None:
    changes = {**SWEEP, "image_catalogue": [IMAGE], f"{kind}_image": "registry1:5000/catalogue/pytorch-cuda:latest"}
    told = plan(kind, nodes=OF_IMAGE, **changes)
    (problem,) = told["problems"]
    assert problem["subject"] == "old"
    assert "needs CUDA 13.0, and old has CUDA 12.4" in problem["cause"]
    assert told["jobs"] == []


def test_an_image_that_the_catalogue_does_not_have_stays_as_it_is_named() -> None:
    (job,) = jobs("sweep", **SWEEP, sweep_image="registry.example.com/own:1")
    image = "registry.example.com/own:1"
    assert job["command"] == f"export IMAGE={image}\nexec gpu-image run {image} /bin/sh -c true\n"
    (job,) = jobs("notebook", notebook_image=image, notebook_program="serve --on 'it'")
    line, program = shlex.split(job["command"])[-2:]
    assert (line, program) == ("-c", "cd \"$HOME\" || exit 1\nserve --on 'it'\n")


def test_an_image_is_refused_where_jobs_have_no_containers() -> None:
    (problem,) = plan("sweep", **SWEEP, sweep_image="registry.example.com/own:1", containers=False)["problems"]
    assert "jobs have no containers" in problem["cause"]
    assert "slurm_common_containers" in problem["remedy"]


def test_an_image_that_the_shell_would_not_take_as_a_word_is_refused() -> None:
    (problem,) = plan("sweep", **SWEEP, sweep_image="own;reboot")["problems"]
    assert "slurm_apps_sweep_image is 'own;reboot'" in problem["cause"]


TRAINING = {"training_name": "digits"}


def test_a_training_is_a_job_that_can_continue_with_a_process_for_each_gpu() -> None:
    nodes = [{"gres": "gpu:a100:8"}, {"gres": "gpu:a100:4"}, {"gres": "gpu:t4:2"}]
    (job,) = jobs("training", nodes=nodes, **TRAINING, training_gpus=4, training_least_nodes="1", training_type="a100")
    told = [job[key] for key in ("name", "nodes", "least_nodes", "gpus", "processes")]
    assert told == ["training-digits", 2, 1, 4, 4]
    assert (job["resumable"], job["wait"], job["directory"]) == (True, "ended", "~/gpuops-jobs/training-digits")
    for path in PROGRAMS.glob("*.py"):
        text = path.read_text()
        assert text in job["command"]
        assert END not in text
    assert "python3 program/train.py --data=digits --epochs=20 --batch=64 --micro-batch=16 --rate=0.1" in job["command"]


def test_packages_of_a_training_are_those_of_its_nodes() -> None:
    assert plan("packages", training_packages=["python3-torch"])["desired"] == {"packages": [{"name": "python3-torch"}]}
    assert plan("packages")["desired"] == {"packages": []}
    (problem,) = plan("packages", training_packages=["a; b"])["problems"]
    assert "slurm_apps_training_packages has 'a; b'" in problem["cause"]


def test_a_resumable_sweep_brings_the_programs_and_is_queued_again() -> None:
    (job,) = jobs("sweep", **SWEEP, sweep_resumable="yes")
    assert job["resumable"] is True
    assert 'export TRAINING="$PWD/program"\n' in job["command"]
    assert "cat >program/checkpoints.py" in job["command"]
    (job,) = jobs("sweep", **SWEEP)
    assert (job["resumable"], job["command"]) == (False, "true")


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"training_name": ""}, "slurm_apps_training_name is ''"),
        ({"training_data": "imagenet"}, "slurm_apps_training_data is 'imagenet'"),
        ({"training_python": "python3; rm"}, "slurm_apps_training_python is 'python3; rm'"),
        ({"training_epochs": 0}, "slurm_apps_training_epochs is 0"),
        ({"training_micro_batch": 65}, "slurm_apps_training_micro_batch is 65, and slurm_apps_training_batch is 64"),
        ({"training_nodes": 0}, "slurm_apps_training_nodes is 0"),
        ({"training_least_nodes": 3}, "slurm_apps_training_least_nodes is 3"),
        ({"training_nodes": 3}, "it needs 3 nodes with 1 GPUs each, and 2 have them"),
        ({"training_type": "h100"}, "no node has GPUs of the type 'h100'"),
        ({"training_gpus": 9}, "slurm_apps_training_gpus is 9"),
    ],
)
def test_a_training_that_cannot_be_is_refused(changes: dict[str, Any], cause: str) -> None:
    told = plan("training", **{**TRAINING, **changes})
    assert told["jobs"] == []
    assert any(cause in row["cause"] for row in told["problems"])


def test_arguments_of_a_training_are_words_and_nothing_else() -> None:
    (job,) = jobs("training", **TRAINING, training_arguments=["--dropout=0", "$(touch x)"])
    assert "--dropout=0 '$(touch x)'\nended=$?" in job["command"]


class Continues:
    """What a resumable job does when its command ends: the real script, with a stand-in for srun."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "bin").mkdir()
        (directory / "bin/scontrol").write_text(
            '#!/bin/sh\ncase "$*" in "show hostnames n[1-2]") printf "n1\\nn2\\n" ;; '
            '"show node n1") echo "   NodeAddr=10.0.0.1 NodeHostName=n1 Version=24.11.5" ;; *) exit 1 ;; esac\n'
        )
        (directory / "bin/srun").write_text('#!/bin/sh\necho "$MASTER_ADDR $PEER_ADDR $*"\n. ./srun-does\n')
        for path in (directory / "bin").iterdir():
            path.chmod(0o755)
        (self.job,) = jobs("training", **TRAINING)

    def start(self, does: str, restarts: int = 1) -> tuple[int, str]:
        (self.directory / "srun-does").write_text(does)
        environment = {
            "PATH": f"{self.directory}/bin:{os.environ['PATH']}",
            "SLURM_JOB_ID": "12",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_RESTART_COUNT": str(restarts),
            "SLURM_CPUS_PER_TASK": "2",
        }
        done = subprocess.run(
            ["/bin/bash", "-c", f"(\n{self.job['command']}\n)"],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def continues(tmp_path: Path) -> Continues:
    return Continues(tmp_path)


def test_a_training_that_ends_well_has_ended(continues: Continues) -> None:
    status, said = continues.start("echo '{}' >training.json")
    assert status == 0
    assert said.startswith("10.0.0.1 n2 --kill-on-bad-exit=1 --cpus-per-task=2 python3 program/train.py ")
    assert (continues.directory / "program/train.py").is_file()


@pytest.mark.parametrize(("does", "status"), [("exit 119", 119), ("exit 2", 2)])
def test_what_the_program_says_of_going_on_counts(continues: Continues, does: str, status: int) -> None:
    for _number in range(4):
        assert continues.start(does)[0] == status


@pytest.mark.parametrize("status", [134, 138, 143])
def test_what_ends_after_the_outcome_has_ended_well(continues: Continues, status: int) -> None:
    assert continues.start(f"echo '{{}}' >training.json; exit {status}")[0] == 0


def test_an_end_without_an_outcome_is_none(continues: Continues) -> None:
    (continues.directory / "training.json").write_text("{}")
    assert continues.start("exit 0")[0] == 119


def test_what_fails_is_begun_again_until_it_has_failed_three_times_without_a_new_checkpoint(
    continues: Continues,
) -> None:
    checkpoints = continues.directory / "checkpoints"
    assert [continues.start("exit 1")[0] for _number in range(2)] == [119, 119]
    checkpoints.mkdir()
    (checkpoints / "000000000010.json").touch()
    assert [continues.start("exit 137")[0] for _number in range(2)] == [119, 119]
    (checkpoints / "000000000020.json").touch()
    (checkpoints / "000000000030-0.pt").touch()
    for _number in range(2):
        status, said = continues.start("exit 1")
        assert status == 119
        assert "is queued again. Last checkpoint: 000000000020.json." in said
    status, said = continues.start("exit 137")
    assert status == 137
    assert "It has ended with exit status 137 for the third time" in said
    # A new submission counts anew.
    assert continues.start("exit 1", restarts=0)[0] == 119
