# SPDX-License-Identifier: GPL-3.0-or-later
"""host_drift_info says of files that other modules keep what those modules say: that they would change one, or not."""

from __future__ import annotations

import json
import os

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.container import cdi
from ansible_collections.baremetal.gpu.plugins.module_utils.drift import compare as drift
from ansible_collections.baremetal.gpu.plugins.module_utils.drift import device_nodes as drift_devices
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import device_nodes
from ansible_collections.baremetal.gpu.plugins.modules import config_merge, host_drift_info, nvidia_cdi


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    # The host of the tests may have records of its own.
    monkeypatch.setattr(drift, "read_pending", lambda root="/": {})

    def run(module, **arguments):
        arguments["_ansible_remote_tmp"] = str(tmp_path)
        with patch_module_args(arguments), pytest.raises(SystemExit) as ended:
            module.main()
        answer = json.loads(capsys.readouterr().out)
        assert ended.value.code == 0, answer
        return answer

    return run


@pytest.fixture
def settings(call, tmp_path):
    """Asks both modules of one file, in check mode."""
    path, state = tmp_path / "daemon.json", tmp_path / "state"

    class Both:
        file = path

        @staticmethod
        def merge(**arguments):
            return call(config_merge, path=str(path), state_dir=str(state), record=True, **arguments)

        def differs(self, **arguments):
            """Why, or None; the two modules agree on whether."""
            would = call(
                config_merge, path=str(path), state_dir=str(state), record=True, _ansible_check_mode=True, **arguments
            )
            others = [other["path"] for other in arguments.pop("withdraw_from", [])]
            found = call(
                host_drift_info,
                desired={
                    "settings": [{"path": str(path), "state_dir": str(state), "withdraw_from": others, **arguments}]
                },
            )
            assert found["drifted"] == found["required"] == would["changed"]
            assert found["plan"] == []
            return found["others"][0]["why"] if found["others"] else None

    return Both()


WANTED = {"values": {"features": {"cdi": True}, "dns": ["10.0.0.1"]}, "lists": "union", "mode": "0644"}


def test_a_file_that_is_not_there_differs(settings):
    assert settings.differs(**WANTED) == "dns, features.cdi differ"
    assert settings.differs(values={"empty": {}}) == "empty differ"


def test_what_was_merged_does_not_differ_until_somebody_changes_it(settings):
    settings.file.write_text('{"debug": true, "dns": ["10.0.0.9"]}\n')
    assert settings.differs(**WANTED) == "dns, features.cdi differ"
    settings.merge(**WANTED)
    assert settings.differs(**WANTED) is None

    text = settings.file.read_text()
    settings.file.write_text(text.replace("true", "false"))
    assert settings.differs(**WANTED) == "features.cdi differ"
    settings.file.write_text(text)
    settings.file.chmod(0o600)
    assert settings.differs(**WANTED) == "its mode is not 0644"


def test_a_setting_that_is_wanted_no_longer_differs(settings):
    settings.merge(**WANTED)
    less = {**WANTED, "values": {"features": {"cdi": True}}}
    assert settings.differs(**less) == "dns differ"
    settings.merge(**less)
    assert settings.differs(**less) is None
    assert settings.differs(state="absent") == "features.cdi differ"
    settings.merge(state="absent")
    assert settings.differs(state="absent") is None


def test_a_key_that_must_not_be_there_differs(settings):
    settings.merge(values={"a": 1})
    settings.file.write_text('{"a": 1, "b": {"c": 2}}\n')
    assert settings.differs(values={"a": 1}, remove=["b.c"]) == "b.c differ"


def test_settings_left_in_the_file_of_another_engine_differ(settings, call, tmp_path):
    other = tmp_path / "containers.conf"
    call(
        config_merge,
        path=str(other),
        state_dir=str(tmp_path / "state"),
        record=True,
        format="toml",
        values={"engine": {"x": 1}},
    )
    settings.merge(values={"a": 1})
    from_it = [{"path": str(other), "format": "toml"}]
    assert settings.differs(values={"a": 1}, withdraw_from=from_it) == (
        f"{other} still has settings that are wanted no longer"
    )
    settings.merge(values={"a": 1}, withdraw_from=from_it)
    assert settings.differs(values={"a": 1}, withdraw_from=from_it) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1', "Expecting ',' delimiter (line 1, column 8)"),
        ('{"features": 1}', "features is the single value 1 in the file and a table of settings in the wanted values"),
    ],
)
def test_what_the_module_would_refuse_differs(settings, call, tmp_path, text, why):
    settings.file.write_text(text)
    item = {"path": str(settings.file), "state_dir": str(tmp_path / "state"), "values": WANTED["values"]}
    found = call(host_drift_info, desired={"settings": [item]})
    assert found["drifted"]
    assert why in found["others"][0]["why"]
    assert settings.file.read_text() == text


def test_a_change_that_the_service_has_not_read_yet_differs(settings, call, tmp_path):
    settings.merge(values={"a": 1})
    (record,) = (tmp_path / "state").iterdir()
    data = json.loads(record.read_text())
    record.write_text(json.dumps({**data, "pending": {"action": "restart", "boot_id": "x", "monotonic": 1.0}}))
    item = {"path": str(settings.file), "state_dir": str(tmp_path / "state"), "values": {"a": 1}}
    assert call(host_drift_info, desired={"settings": [item]})["others"] == [
        {"path": str(settings.file), "why": "its service has not read it yet"}
    ]
    record.write_text("{")
    assert call(host_drift_info, desired={"settings": [item]})["drifted"]


@pytest.fixture
def specification(call, monkeypatch, tmp_path):
    """Asks both modules of the specification of the GPUs of a made-up host."""
    host = cdi.Found(
        "550.163.01",
        [cdi.Gpu(0, 0, "0000:3b:00.0", "GPU-c18f9569-83a8-5313-9d05-77b2d6e79883")],
        control_nodes=["/dev/nvidiactl"],
        libraries=[cdi.Library("/usr/lib/x/libcuda.so.550.163.01", ("libcuda.so.1",))],
        library_directory="/usr/lib/x",
        notes=["what is to be known"],
    )
    holder = {"host": host}

    def gather(given=None):
        if isinstance(holder["host"], Exception):
            raise holder["host"]
        return holder["host"]

    monkeypatch.setattr(cdi, "gather", gather)
    monkeypatch.setattr(cdi, "find_hook", lambda: None)
    path = str(tmp_path / "cdi" / "nvidia.json")

    class Both:
        file = path
        at = holder

        @staticmethod
        def write(**arguments):
            return call(nvidia_cdi, path=path, **arguments)

        @staticmethod
        def found(**arguments):
            """Why it differs, or None, and the notes."""
            found = call(host_drift_info, desired={"cdi": {"path": path, **arguments}})
            assert found["drifted"] == bool(found["others"])
            return (found["others"][0]["why"] if found["others"] else None), found["notes"]

    return Both()


def test_the_specification_differs_until_it_is_written_and_again_with_another_driver(specification):
    assert specification.found() == ("is not there", [])
    assert specification.found(state="absent") == (None, [])
    notes = specification.write()["notes"]
    assert specification.found() == (None, notes)
    assert specification.found(state="absent")[0] == "is there"

    specification.at["host"].version = "560.1"
    specification.at["host"].libraries = [cdi.Library("/usr/lib/x/libcuda.so.560.1", ("libcuda.so.1",))]
    assert specification.found()[0] == "does not match the current GPUs and driver"
    specification.at["host"] = cdi.CannotTell("the nvidia module is not loaded")
    assert specification.found() == ("the nvidia module is not loaded", [])


def test_a_file_of_another_tool_differs_where_ours_is_wanted_and_stays_where_none_is(specification):
    os.makedirs(os.path.dirname(specification.file))
    with open(specification.file, "w") as file:
        file.write("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    assert specification.found()[0] == "was written by something else"
    assert specification.found(state="absent") == (None, specification.write(state="absent")["notes"])


def test_the_yaml_of_an_earlier_version_differs_until_it_is_replaced(specification):
    specification.write()
    former = os.path.join(os.path.dirname(specification.file), "nvidia.yaml")
    with open(former, "w") as file:
        file.write(cdi.FORMER_MARK)
    assert specification.found()[0] == specification.found(state="absent")[0] == f"replaces {former}"
    specification.write()
    assert specification.found()[0] is None


def test_two_files_that_name_the_gpus_differ(specification):
    specification.write()
    other = os.path.join(os.path.dirname(specification.file), "mine.yaml")
    with open(other, "w") as file:
        file.write("kind: nvidia.com/gpu\n")
    assert specification.found()[0].startswith(f"{other} specify nvidia.com/gpu too")


def test_device_nodes_differ_as_long_as_their_module_would_make_one(call, monkeypatch, tmp_path):
    host = tmp_path / "root"
    (host / "proc").mkdir(parents=True)
    (host / "dev/char").mkdir(parents=True)
    monkeypatch.setattr(drift_devices.nodes, "__defaults__", (str(host),))

    def differing():
        found = call(host_drift_info, desired={"device_nodes": True})
        assert found["drifted"] == bool(found["others"])
        return {row["path"]: row["why"] for row in found["others"]}

    assert "the nvidia module is not loaded" in differing()["/dev/nvidiactl"]
    (host / "proc/devices").write_text("Character devices:\n195 nvidia\n510 nvidia-uvm\n")
    assert differing()["/dev/nvidiactl"] == "is nothing, must be character device 195:255"
    device_nodes.create(device_nodes.expected_nodes(str(host)), str(host))
    assert differing() == {}
    (host / "dev/nvidia-uvm").chmod(0o600)
    assert differing() == {"/dev/nvidia-uvm": "is 0600, must be 0666"}
    assert call(host_drift_info, desired={})["others"] == []
