# SPDX-License-Identifier: GPL-3.0-or-later
"""The module on any machine, and on the simulated driver library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.verify import cuda_driver
from ansible_collections.baremetal.gpu.plugins.module_utils.verify import query as verify_query
from ansible_collections.baremetal.gpu.plugins.modules import gpu_query
from tests.simulators import generate

ROOT = Path(__file__).resolve().parents[4]


def run(capsys, check_mode=False, **arguments):
    with patch_module_args({**arguments, "_ansible_check_mode": check_mode}), pytest.raises(SystemExit):
        gpu_query.main()
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_host_without_the_library(capsys, check_mode):
    answer = run(capsys, check_mode, library="libnothing.so.1")
    assert (answer["changed"], answer["ok"], answer.get("failed")) == (False, False, None)
    assert answer["causes"][0]["remedy"]
    assert answer["query"]["error"]["name"] == "LIBRARY_NOT_LOADED"
    assert (answer["containers"], answer["runtime"]) == (None, None)


def test_containers_are_left_out_where_no_gpu_answers(capsys):
    answer = run(capsys, library="libnothing.so.1", container_engine="docker")
    assert answer["containers"]["skipped"] == "no GPU answers on the host itself"
    assert answer["containers"]["containers"] == []


@pytest.mark.parametrize("option", ["copy_mib", "repeats", "elements", "timeout"])
def test_sizes_are_positive(capsys, option):
    answer = run(capsys, **{option: 0})
    assert answer["failed"] is True
    assert answer["msg"] == f"{option} is 0; set it to 1 or more"


def test_the_runtime_needs_its_source(capsys):
    assert "cuda_runtime_source" in run(capsys, cuda_runtime="auto")["msg"]


def test_a_missing_toolkit_is_an_error_only_where_it_is_required(capsys, monkeypatch):
    monkeypatch.setattr(gpu_query.verify_runtime, "find_nvcc", lambda root="/": None)
    arguments = {"library": "libnothing.so.1", "cuda_runtime_source": "x"}
    codes = {
        wanted: [cause["code"] for cause in run(capsys, cuda_runtime=wanted, **arguments)["causes"]]
        for wanted in ("auto", "compile", "run")
    }
    assert "toolkit_missing" in codes["run"]
    assert "toolkit_missing" not in codes["auto"] + codes["compile"]


def test_two_simulated_gpus_as_ansible_runs_the_module(tmp_path, cuda_library):
    """Packed as for a host, so that the source for the containers is found in the archive too."""
    scenario = generate.scenario("a100-sxm4-40gb-x2")
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps({**scenario, "kernel": "assume-loaded"}))
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("ansible")),
            *("localhost", "-m", "baremetal.gpu.gpu_query", "-a"),
            f"library={cuda_library} copy_mib=1 elements=1000",
        ],
        env={
            **os.environ,
            "NVML_SIMULATOR_SCENARIO": str(path),
            "ANSIBLE_STDOUT_CALLBACK": "minimal",
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
            "ANSIBLE_LOCALHOST_WARNING": "false",
            "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "SUCCESS" in done.stdout, done.stdout + done.stderr
    answer = json.loads(done.stdout.split("=>", 1)[1])
    assert [gpu["ok"] for gpu in answer["query"]["devices"]] == [True, True]
    assert answer["query"]["devices"][1]["pci_address"] == "0000:af:00.0"


def test_the_state_is_read_before_the_library_can_mend_it(capsys, monkeypatch):
    order = []
    monkeypatch.setattr(verify_query, "host_state", lambda: order.append("state") or EMPTY)
    monkeypatch.setattr(cuda_driver, "run", lambda options: order.append("query") or RESULT)
    run(capsys)
    assert order == ["state", "query"]


EMPTY = {
    "gpus": [],
    "nvswitches": 0,
    "loaded": None,
    "installed": None,
    "module_ready": False,
    "module_anywhere": False,
    "secure_boot": None,
    "minors": {},
    "nodes": [],
    "node_differences": [],
}
RESULT = {"ok": False, "count": 0, "cuda": None, "error": None, "devices": [], "device_files": []}
