# SPDX-License-Identifier: GPL-3.0-or-later
"""host_drift_info as Ansible calls it, on files of the test's own."""

from __future__ import annotations

import json

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.drift import compare as drift
from ansible_collections.baremetal.gpu.plugins.modules import host_drift_info


@pytest.fixture
def call(capsys, monkeypatch):
    # The host of the tests may have records of its own.
    monkeypatch.setattr(drift, "read_pending", lambda root="/": {})

    def run(desired, **arguments):
        with patch_module_args({"desired": desired, **arguments}), pytest.raises(SystemExit) as ended:
            host_drift_info.main()
        return ended.value.code, json.loads(capsys.readouterr().out)

    return run


def test_nothing_differs(call, tmp_path):
    (tmp_path / "x").write_text("a\n")
    code, answer = call({"files": [{"path": str(tmp_path / "x"), "content": "a\n"}]})
    assert code == 0
    assert (answer["drifted"], answer["changed"], answer["drift"], answer["plan"]) == (False, False, {}, [])
    assert "diff" not in answer


@pytest.mark.parametrize("check", [True, False])
def test_what_differs_is_told_and_left_alone(call, tmp_path, check):
    path = tmp_path / "x"
    path.write_text("a\n")
    desired = {
        "files": [
            {"path": str(path), "content": "b\n"},
            {"path": str(tmp_path / "y"), "state": "directory"},
            {"path": str(tmp_path / "z"), "state": "link", "src": str(path)},
        ]
    }
    code, answer = call(desired, _ansible_check_mode=check, _ansible_diff=True)
    assert code == 0
    assert answer["plan"] == [
        f"write {path} (content differs)",
        f"make directory {tmp_path}/y (is missing)",
        f"make link {tmp_path}/z (is missing)",
    ]
    assert answer["diff"][0]["after"] == "b\n"
    # Comparing changes nothing; the role says `changed` in check mode.
    assert answer["changed"] is False
    assert path.read_text() == "a\n"
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize(
    ("desired", "said"),
    [
        ({"files": [{"state": "absent"}]}, "path found in desired -> files"),
        ({"files": [{"path": "/x", "state": "gone"}]}, "got: gone"),
        ({"packages": [{"name": "x", "vresion": "1"}]}, "vresion"),
        ({"package": []}, "package"),
        ({"units": [{"name": "x", "state": "restarted"}]}, "got: restarted"),
    ],
)
def test_a_document_with_a_mistake_is_refused(call, desired, said):
    code, answer = call(desired)
    assert code == 1
    assert said in answer["msg"]


def test_a_missing_program_is_no_crash():
    assert host_drift_info.run(["/no/such/program"]) == (127, "")


def test_programs_are_asked_in_english():
    assert host_drift_info.run(["sh", "-c", "printf %s $LC_ALL"]) == (0, "C")


def test_documentation_and_arguments_are_the_same():
    """Suboptions deeper than ansible-doc's own check looks."""
    documented = yaml.safe_load(host_drift_info.DOCUMENTATION)["options"]

    def compare(options, spec, where):
        assert set(options) == set(spec), where
        for name, option in options.items():
            for field in ("type", "default", "choices", "elements", "required"):
                assert option.get(field) == spec[name].get(field), f"{where}.{name}: {field}"
            if "options" in spec[name]:
                compare(option["suboptions"], spec[name]["options"], f"{where}.{name}")

    compare(documented["desired"]["suboptions"], host_drift_info.SPEC, "desired")
