# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a run and how it is told. Events and texts are made up after those of Ansible and of the roles."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils import stages
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from tests.unit.project.tree import role_names


class Story:
    """A run that is told event by event, with a clock that only the test moves."""

    def __init__(self, expected=None):
        self.told = []
        self.now = 0.0
        self.run = progress.Run(0.0, expected, self.told.append)

    def play(self, name):
        self.run.play_started(name, self.now)
        return self

    def task(self, name, role, outcomes, seconds=1.0, action="command"):
        """One task on all hosts that have an outcome."""
        stage = self.run.task_started(name, role, action, self.now)
        for host in outcomes:
            self.run.host_started(host, name, stage, action, self.now)
        self.now += seconds
        for host, outcome in outcomes.items():
            if outcome in (progress.OK, progress.CHANGED, progress.SKIPPED):
                self.run.host_done(host, outcome, stage, self.now)
            elif outcome is not None:
                kind, rescued, message = outcome
                self.run.host_failed(host, kind, name, stage, {"msg": message}, self.now, rescued)
        return self

    def end(self):
        self.run.finished(self.now)
        return self

    def picture(self, width=160, height=30):
        return [progress_text.plain(line) for line in progress_text.live(self.run, self.now, width, height)]

    def summary(self, width=160):
        return [progress_text.plain(line) for line in progress_text.summary(self.run, width)]


def failed(message, rescued=False):
    return progress.FAILED, rescued, message


def unreachable(message):
    return progress.UNREACHABLE, False, message


OK, CHANGED, SKIPPED = progress.OK, progress.CHANGED, progress.SKIPPED


def test_a_finished_host_has_come_through_the_stages_of_which_it_has_no_task():
    story = Story().play("Preflight").task("Look", "gpu_preflight", {"a": OK, "b": OK})
    story.play("Driver, device nodes, CUDA and container engine").task(
        "Compare", "", {"a": OK, "b": OK}, action="baremetal.gpu.host_drift_info"
    )
    story.run.host_finished("a", ["nouveau", "nvidia_driver", "container_runtime"])
    story.task("Install", "nvidia_driver", {"b": CHANGED}).end()
    assert story.run.stages() == ["preflight", "driver", "containers"]
    cells = {name: [story.run.cell(name, stage) for stage in story.run.stages()] for name in "ab"}
    assert cells == {"a": [OK, OK, OK], "b": [OK, CHANGED, ""]}


def test_a_stage_that_no_host_needs_is_not_waited_for():
    story = Story({"driver": 600.0, "verify": 30.0}).play("Driver, device nodes, CUDA and container engine")
    story.task("Compare", "", {"a": OK}, action="baremetal.gpu.host_drift_info")
    assert story.run.remaining(story.now) == 630.0
    story.run.host_finished("a", ["nvidia_driver"])
    story.run.task_started("Verify", "gpu_verify", "gpu_query", story.now)
    assert story.run.remaining(story.now + 10) == 20.0


def test_a_stage_is_what_several_roles_do():
    story = Story().play("Preflight").task("Look", "baremetal.gpu.gpu_preflight", {"g1": OK})
    story.play("Driver").task("Keep nouveau off", "nouveau", {"g1": CHANGED})
    # The shared role works for the one that called it.
    story.task("Install", "baremetal.gpu.nvidia_driver", {"g1": OK}).task("Compare", "converge", {"g1": OK}, 7)
    story.task("Install", "container_runtime", {"g1": OK}).task("Mine", "example.site.monitoring", {"g1": OK}).end()
    assert story.run.stages() == ["preflight", "driver", "containers", "monitoring"]
    assert story.run.stage_seconds == {"preflight": 1, "driver": 9, "containers": 1, "monitoring": 1}
    assert story.run.hosts["g1"].seconds["driver"] == 9
    assert [story.run.cell("g1", stage) for stage in story.run.stages()] == [OK, CHANGED, OK, OK]


def test_every_role_has_a_place_among_the_stages():
    """A new role is a column of its own until somebody says where it belongs."""
    assert set(role_names()) - set(stages.SHARED_ROLES) <= set(stages.NAME_OF_ROLE)
    assert set(stages.NAME_OF_ROLE.values()) == set(stages.NAMES)


def test_a_play_without_roles_is_a_stage_and_one_that_only_sorts_is_none():
    story = (
        Story()
        .play("Any name")
        .task("Look", "", {"g1": OK}, action="baremetal.gpu.gpu_facts")
        .task("Sort", "", {"g1": OK}, action="ansible.builtin.group_by")
        .play("Backup")
        .task("Copy", "", {"g1": OK})
    )
    assert story.end().run.stages() == ["Backup"]


def test_a_failure_is_told_at_once_and_the_host_is_left_out():
    story = Story().play("Driver").task("Install", "nvidia_driver", {"g1": OK, "g2": failed("no such package")})
    assert [(row.host, row.stage, row.task) for row in story.told] == [("g2", "driver", "Install")]
    story.task("Load", "nvidia_driver", {"g1": CHANGED}).end()
    assert story.run.counts() == {"hosts": 2, "ok": 1, "changed": 1, "failed": 1, "unreachable": 0, "unfinished": 0}
    assert [row.host for row in story.run.lasting_failures()] == ["g2"]


def test_a_failure_that_is_rescued_is_told_by_its_explanation_alone():
    story = Story().play("Driver").task("Install", "converge", {"g1": failed("raw", rescued=True), "g2": OK})
    assert story.told == []
    story.task("Explain", "converge", {"g1": failed("said well")}).task("Load", "nvidia_driver", {"g2": OK}).end()
    assert [(row.task, row.result["msg"]) for row in story.told] == [("Explain", "said well")]
    assert len(story.run.lasting_failures()) == 1


def test_a_failure_that_is_rescued_for_good_leaves_nothing():
    story = Story().play("Driver").task("Install", "cuda", {"g1": failed("raw", rescued=True)})
    story.task("Mend", "cuda", {"g1": OK}).end()
    assert story.told == []
    assert story.run.counts()["ok"] == 1
    assert story.run.cell("g1", "cuda") == OK


def test_what_is_always_done_after_a_failure_is_no_rescue():
    story = Story().play("Session").task("Write", "cuda", {"g1": failed("no such container"), "g2": OK})
    story.task("Remove", "cuda", {"g1": OK, "g2": OK})
    story.run.counted({"g1": 1}, {})
    assert story.end().run.counts() == {
        "hosts": 2,
        "ok": 1,
        "changed": 0,
        "failed": 1,
        "unreachable": 0,
        "unfinished": 0,
    }
    assert story.run.cell("g1", "cuda") == progress.FAILED
    assert [row.result["msg"] for row in story.told] == ["no such container"]


def test_a_rescue_that_never_comes_is_told_at_the_end():
    story = Story().play("Driver").task("Install", "cuda", {"g1": failed("raw", rescued=True)}).end()
    assert [row.result["msg"] for row in story.told] == ["raw"]


def test_what_remains_is_known_from_earlier_runs():
    story = Story({"preflight": 10.0, "driver": 100.0, "cuda": 20.0})
    assert story.run.remaining(0.0) == 130.0
    story.play("Preflight").task("Look", "gpu_preflight", {"g1": OK}, seconds=4)
    assert story.run.remaining(story.now) == 126.0
    # A stage that was quicker this time is over nevertheless.
    story.task("Install", "nvidia_driver", {"g1": OK}, seconds=30)
    assert story.run.remaining(story.now) == 90.0
    # One that takes longer does not make the rest shorter.
    story.task("Build", "nvidia_driver", {"g1": OK}, seconds=200)
    assert story.run.remaining(story.now) == 20.0
    assert Story().run.remaining(5.0) is None


def test_the_picture_says_what_each_host_is_doing():
    story = Story({"driver": 300.0}).play("Driver")
    story.task("Look", "gpu_preflight", {"g1": OK, "g2": OK, "g3": unreachable("no route")})
    story.task("Install", "nvidia_driver", {"g1": None, "g2": CHANGED}, seconds=65)
    story.run.host_started("g2", "Reboot and wait", "driver", "ansible.builtin.reboot", story.now)
    story.now += 5
    text = story.picture()
    assert text[0] == "Driver: Install"
    assert text[1] == "1m11s so far, about 3m50s to go; 3 hosts, 2 busy, 1 unreachable"
    assert text[3].split() == ["g1", "✓", "1s", "▸", "1m10s", "Install"]
    assert text[4].split() == ["g2", "✓", "1s", "▸", "1m05s", "5s", "rebooting"]
    assert text[5].split() == ["g3", "?", "1s", "·", "unreachable:", "Look"]


def test_many_hosts_fit_and_those_that_matter_are_shown():
    outcomes = {f"g{number:03}": OK for number in range(500)}
    outcomes["g400"] = failed("broken")
    story = Story().play("Driver").task("Install", "nvidia_driver", outcomes)
    story.run.host_started("g300", "Load", "driver", "command", story.now)
    text = story.picture(80, 10)
    assert len(text) <= 10
    assert max(map(len, text)) <= 80
    assert any(line.startswith("g400") for line in text)
    assert any(line.startswith("g300") and "Load" in line for line in text)
    assert text[-1] == "and 494 hosts more"
    # The summary names those alone that need somebody.
    names = [line.split()[0] for line in story.end().summary() if line.startswith("g")]
    assert names == ["g400"]


def test_the_summary_tells_where_the_time_went_the_longest_first():
    story = Story().play("All")
    roles = {"gpu_preflight": 11, "nvidia_driver": 144, "cuda": 0.2, "user_software": 100, "ceph_mon": 3725}
    for role, seconds in {**roles, "zookeeper": 34, "slurm_node": 60, "portal": 29}.items():
        story.task("Install", role, {"a": CHANGED}, seconds)
    lines = story.end().summary(40)
    assert lines[-7:-1] == [
        "time: storage    1h02m",
        "      driver     2m24s",
        "      software   1m40s",
        "      slurm      1m00s",
        "      scheduler    34s",
        "      2 more       40s",
    ]


@pytest.mark.parametrize("width", [40, 80, 160])
def test_no_line_is_wider_than_asked(width):
    story = Story().play("A play with a name that goes on and on and on")
    for role in ("gpu_preflight", "nvidia_driver", "cuda", "container_runtime", "gpu_verify", "gpu_agent", "ceph_osd"):
        story.task("A task whose name goes on and on and on and on", role, {"host.with.a.long.name.example.org": None})
    for lines in (story.picture(width), story.summary(width)):
        assert max(map(len, lines)) <= width, lines


AGAIN = "run it again for this host alone, with --limit g1 -vvv"
BRANCH = {
    "code": "branch",
    "subject": "g1",
    "cause": "the branch 580 does not know the GPU",
    "evidence": "GeForce GTX 480",
    "remedy": "set nvidia_driver_branch: 390",
}
ROOM = {"code": "disk_full", "subject": "/usr", "cause": "there is no room on /usr", "remedy": "free 3000 MiB"}


@pytest.mark.parametrize(
    ("result", "cause", "remedy"),
    [
        (
            {"msg": "g1: in any words", "problems": [{"cause": "clock is wrong.", "remedy": "start chrony"}]},
            "clock is wrong.",
            "start chrony",
        ),
        (
            {
                "msg": "g1: in any words",
                "problems": [{"cause": "two hosts have one address.", "remedy": "keep one", "code": "address"}],
            },
            "two hosts have one address.",
            "keep one",
        ),
        (
            {
                "problems": [
                    {
                        "cause": "a reboot is due, and it is refused.",
                        "remedy": "Set converge_reboot: allowed, then run again.",
                    }
                ]
            },
            "a reboot is due, and it is refused.",
            "Set converge_reboot: allowed, then run again.",
        ),
        # Nobody looks for a remedy in a text.
        ({"msg": "clock is wrong. To do: start chrony"}, "clock is wrong. To do: start chrony", AGAIN),
        ({"msg": "1. a\n   Remedy: b"}, "1. a Remedy: b", AGAIN),
        ({"problems": ["a plain text. To do: read it"]}, "a plain text. To do: read it", ""),
        ({"problems": [{"cause": ["odd"]}, 7], "msg": "odd"}, "7", ""),
        ({"problems": {"cause": "odd"}, "msg": "the message"}, "the message", AGAIN),
        (
            {
                "msg": "One or more items failed",
                "results": [{"failed": True, "problems": [ROOM]}, {"problems": [BRANCH]}],
            },
            "there is no room on /usr",
            "free 3000 MiB",
        ),
        (
            {"msg": "non-zero return code", "stderr": "dpkg was interrupted", "rc": 1},
            "non-zero return code: dpkg was interrupted",
            "run it again for this host alone, with --limit g1 -vvv",
        ),
        (
            {"msg": "One or more items failed", "results": [{"failed": True, "msg": "no b"}, {"msg": "fine"}]},
            "no b",
            "run it again for this host alone, with --limit g1 -vvv",
        ),
        ({"censored": "hidden"}, "what failed is hidden by no_log", "take no_log off"),
        ({}, "the task failed without a message", "run it again"),
    ],
)
def test_a_failure_has_a_cause_and_a_remedy(result, cause, remedy):
    ((shown_cause, shown_remedy),) = progress_text.explain("g1", progress.FAILED, result)
    assert shown_cause == cause
    assert shown_remedy.startswith(remedy)
    assert bool(shown_remedy) == bool(remedy)


def test_every_problem_of_a_preflight_has_its_remedy():
    assert progress_text.explain("g1", progress.FAILED, {"msg": "2 problems", "problems": [BRANCH, ROOM]}) == [
        ("the branch 580 does not know the GPU [GeForce GTX 480]", "set nvidia_driver_branch: 390"),
        ("there is no room on /usr", "free 3000 MiB"),
    ]


def test_ascii_stays_ascii():
    story = Story().play("Driver").task("Install", "nvidia_driver", {"g1": OK, "g2": failed("kaputt: äöü")})
    lines = [*progress_text.summary(story.end().run, 80), *progress_text.failure_lines(story.told[0], 80)]
    assert all(progress_text.plain(line, ascii_only=True).isascii() for line in lines)
    assert progress_text.plain(progress_text.failure_lines(story.told[0], 80)[0], ascii_only=True).startswith("X g2")


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (59.6, "1m00s"), (185, "3m05s"), (3720, "1h02m")])
def test_clock(seconds, text):
    assert progress_text.clock(seconds) == text
