# SPDX-License-Identifier: GPL-3.0-or-later
"""A role gets its settings by the names and the types of its argument specification."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.unit.plugins.plugin_utils.desired.role_site import evaluate
from tests.unit.project.tree import BIN, ROOT, load_yaml, try_run


def settings(role: str, **variables: Any) -> dict[str, Any]:
    site = {
        "hosts": {"host1": variables},
        "groups": {},
        "values": {"host1": {"settings": f"lookup('baremetal.gpu.settings', '{role}')"}},
    }
    (answer,) = evaluate([role], [site])
    return dict(answer["host1"]["settings"])


def test_a_role_has_all_of_its_settings_by_their_names_without_its_own() -> None:
    defaults = load_yaml("roles/alertmanager/defaults/main.yml")
    expected = {name.removeprefix("alertmanager_"): value for name, value in defaults.items()}
    assert settings("alertmanager", alertmanager_group_wait="1m") == {**expected, "group_wait": "1m"}


def test_the_value_of_a_template_is_of_this_host() -> None:
    assert settings("zookeeper", ansible_host="192.0.2.11")["address"] == "192.0.2.11"


def test_text_of_the_command_line_is_the_number_or_the_truth_value_that_it_means() -> None:
    found = settings("firewall", firewall_ssh_port="2222", firewall_confirm_seconds="soon", firewall_state="0")
    # What means no number is refused by the role, which has to see it.
    assert (found["ssh_port"], found["confirm_seconds"], found["state"]) == (2222, "soon", "0")
    assert settings("grafana_dashboards", grafana_dashboards_install="false")["install"] is False


def test_what_only_other_entry_points_have_is_left_out_since_the_plan_may_be_in_it() -> None:
    assert "held" not in settings("mesos_common", mesos_common_held="{{ __mesos_common_plan['problems'] }}")
    # Without an entry point main it is that of all.
    assert {"sweep_name", "smoke_gpus"} <= set(settings("slurm_apps"))


def test_a_variable_that_is_not_defined_is_left_out() -> None:
    assert set(settings("nouveau")) == {"state"}
    assert "homes" not in settings("nfs_homes", cluster_homes="nfs")


def test_a_role_that_does_not_exist_is_an_error_that_names_it(tmp_path: Path) -> None:
    text = "{{ lookup('baremetal.gpu.settings', 'zoo') }}"
    done = try_run(
        [BIN / "ansible", "-i", "here,", "-c", "local", "here", "-m", "ansible.builtin.debug", "-a", f"msg={text}"],
        cwd=tmp_path,
        ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"),
        ANSIBLE_PYTHON_INTERPRETER=sys.executable,
    )
    assert done.returncode != 0
    assert "zoo is not a role of this collection" in done.stdout + done.stderr
