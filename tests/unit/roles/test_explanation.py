# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role converge says of a stage that failed. The failures are hand-made; the words are the role's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.project.tree import BIN, ROOT, try_run

BUILD = (
    "build DKMS module nvidia for kernel 6.1.0-amd64 (version 570.1 is not installed; its build ends with: "
    "nvidia.c:7: error: too few arguments | make: *** Error 2)"
)
LEFT = ["finish what was interrupted in dpkg", *(f"hold package {name}" for name in "abcd")]


@pytest.fixture
def failure(tmp_path: Path) -> Any:
    """What a task of the role returns when it fails, the last one of its file, with these variables."""

    def fail(file: str, variables: dict[str, Any], *, name: str = "") -> dict[str, Any]:
        tasks = yaml.safe_load((ROOT / "roles/converge/tasks" / file).read_text())
        task = next(task for task in tasks if task["name"] == name) if name else tasks[-1]
        play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "vars": variables, "tasks": [task]}
        (tmp_path / "play.yml").write_text(json.dumps([play]))
        environment = {
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
        }
        done = try_run([BIN / "ansible-playbook", tmp_path / "play.yml"], **environment)
        assert done.returncode == 2, done.stdout + done.stderr
        failed: dict[str, Any] = json.loads(done.stdout[done.stdout.index("=> {") + 3 :].partition("\n\n")[0])
        return failed

    return fail


@pytest.fixture
def said(failure: Any) -> Any:
    """What the role returns for what another task returned and what the host still differs in."""

    def tell(result: dict[str, Any], plan: list[str] | None) -> dict[str, Any]:
        failed: dict[str, Any] = failure(
            "report_failure.yml",
            {
                "converge_stage": "nvidia_driver",
                "ansible_failed_result": result,
                "ansible_failed_task": {"name": "Install packages"},
                "__converge_journal": {"results": []},
                "__converge_left": {} if plan is None else {"plan": plan},
            },
        )
        return failed

    return tell


def test_the_end_of_a_build_is_a_cause_wherever_it_stands_in_what_is_left(said: Any) -> None:
    failed = said({"failed": True, "msg": "E: Sub-process /usr/bin/dpkg returned an error code (1)\n"}, [*LEFT, BUILD])
    cause, _to_do, left = failed["msg"].partition(
        " To do: correct the cause and run again; what is done stays. Still to be done: "
    )
    assert cause.startswith("localhost: nvidia_driver failed at 'Install packages': E: Sub-process /usr/bin/dpkg ")
    assert "nvidia.c:7: error: too few arguments" in cause
    assert left == "finish what was interrupted in dpkg; hold package a; hold package b and 2 more"
    (problem,) = failed["problems"]
    assert (problem["code"], problem["subject"]) == ("converge_failed", "nvidia_driver")
    assert problem["evidence"] == "; ".join(LEFT)


def test_a_problem_that_a_task_returned_is_told_without_the_name_of_the_host_once_more(said: Any) -> None:
    failed = said({"failed": True, "msg": "localhost: dnf did not install a"}, ["install package a"])
    assert failed["msg"].startswith(
        "localhost: nvidia_driver failed at 'Install packages': dnf did not install a. To do: "
    )


def test_of_a_host_that_cannot_be_reached_nothing_is_claimed(said: Any) -> None:
    assert said({"msg": "Connection timed out"}, None)["msg"].endswith("unknown, the host cannot be reached")


def test_a_host_that_still_differs_after_remediation_fails_with_what_differs(failure: Any) -> None:
    left = {"required": True, "plan": ["write /etc/x (content differs)", "start unit a"]}
    failed = failure("compare_again.yml", {"converge_stage": "agent", "__converge_left": left})
    assert failed["msg"] == (
        "localhost: after agent the host still differs: write /etc/x (content differs); start unit a. Something on the "
        "host undoes or refuses the change. To do: look for what else manages it, then run again"
    )
    assert [(row["code"], row["subject"]) for row in failed["problems"]] == [("still_differs", "agent")]


def test_a_refused_reboot_fails_with_its_reason_and_the_variable_that_allows_it(failure: Any) -> None:
    variables = {"converge_reboot": "refused", "converge_reboot_reason": "nouveau: it is in use"}
    failed = failure("reboot.yml", variables, name="Stop if reboots are not allowed")
    assert failed["msg"] == (
        "localhost: a reboot is needed because of nouveau: it is in use, and converge_reboot is refused. To do: set "
        "converge_reboot: allowed for this host, or reboot it yourself, then run again; what was done so far stays"
    )
    (problem,) = failed["problems"]
    assert (problem["code"], problem["evidence"]) == ("reboot_refused", "nouveau: it is in use")


def test_a_module_that_only_a_reboot_exchanges_stops_the_host_before_anything_is_changed(failure: Any) -> None:
    module = {"name": "nvidia", "why": "python3 (pid 7) holds it", "actions": ["reboot"]}
    variables = {"converge_reboot": "refused", "converge_result": {"drift": {"kernel_modules": [module]}}}
    failed = failure("remediate.yml", variables, name="Stop before any change if a reboot is needed and not allowed")
    assert failed["msg"] == (
        "localhost: nvidia cannot be exchanged: python3 (pid 7) holds it. Nothing was changed. To do: end what holds "
        "it, or set converge_reboot: allowed for this host, then run again"
    )
    assert [row["subject"] for row in failed["problems"]] == ["nvidia"]


def test_a_transaction_of_dnf_that_did_not_happen_fails_with_its_output(failure: Any) -> None:
    variables = {
        "__converge_remedy": {"install": ["new"], "remove": ["old"]},
        "__converge_transaction": {"stdout_lines": ["one", "two"], "stderr": "no more space"},
    }
    failed = failure("transaction_dnf.yml", variables)
    assert failed["msg"] == "localhost: dnf did not install new in exchange for old: one two no more space"
