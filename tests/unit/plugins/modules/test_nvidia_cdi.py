# SPDX-License-Identifier: GPL-3.0-or-later
"""The module that writes the CDI specification, with a host that is given to it."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.container import cdi, cdi_search
from ansible_collections.baremetal.gpu.plugins.modules import nvidia_cdi

UUID = "GPU-c18f9569-83a8-5313-9d05-77b2d6e79883"


def found(version="550.163.01"):
    return cdi.Found(
        version,
        [cdi.Gpu(0, 0, "0000:3b:00.0", UUID)],
        control_nodes=["/dev/nvidiactl"],
        libraries=[cdi.Library(f"/usr/lib/x/libcuda.so.{version}", ("libcuda.so.1", f"libcuda.so.{version}"))],
        library_directory="/usr/lib/x",
    )


@pytest.fixture
def host(monkeypatch):
    """What gather() finds; an exception is raised instead."""
    holder = {"found": found()}

    def gather(given=None):
        holder["given"] = given
        if isinstance(holder["found"], Exception):
            raise holder["found"]
        return holder["found"]

    monkeypatch.setattr(cdi, "gather", gather)
    monkeypatch.setattr(cdi, "find_hook", lambda: None)
    return holder


@pytest.fixture
def module(host, capsys, tmp_path):
    def run(check_mode=False, **arguments):
        arguments.setdefault("path", str(tmp_path / "cdi" / "nvidia.json"))
        with (
            patch_module_args({**arguments, "_ansible_check_mode": check_mode, "_ansible_diff": True}),
            pytest.raises(SystemExit),
        ):
            nvidia_cdi.main()
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cdi" / "nvidia.json"


def test_written_once(module, path):
    foretold = module(check_mode=True)
    assert foretold["changed"] is True
    assert not path.parent.exists()
    done = module()
    assert (done["changed"], done["diff"]) == (True, foretold["diff"])
    assert done["names"] == ["nvidia.com/gpu=0", f"nvidia.com/gpu={UUID}", "nvidia.com/gpu=all"]
    assert path.read_text() == done["diff"]["after"]
    assert path.stat().st_mode & 0o777 == 0o644
    assert json.loads(path.read_text())["kind"] == "nvidia.com/gpu"
    assert module()["changed"] is False
    assert [one.name for one in path.parent.iterdir()] == ["nvidia.json"]


def test_written_anew_for_another_driver_without_a_backup_of_our_own(module, host, path):
    module()
    host["found"] = found("570.1.2")
    done = module()
    assert (done["changed"], done["driver"]) == (True, "570.1.2")
    assert "550" in done["diff"]["before"]
    assert "550" not in path.read_text()
    assert "backup_file" not in done


def test_what_something_else_wrote_is_not_overwritten(module, path):
    path.parent.mkdir()
    path.write_text("kind: nvidia.com/gpu\n")
    answer = module()
    assert answer["failed"] is True
    assert "take_over" in answer["msg"]
    assert path.read_text() == "kind: nvidia.com/gpu\n"
    taken = module(take_over=True)
    assert taken["changed"] is True
    with open(taken["backup_file"]) as stream:
        assert stream.read() == "kind: nvidia.com/gpu\n"
    assert cdi.is_ours(path.read_text())


def test_removed(module, path):
    module()
    assert module(check_mode=True, state="absent")["changed"] is True
    assert path.exists()
    assert module(state="absent")["changed"] is True
    assert not path.exists()
    assert module(state="absent")["changed"] is False


def test_what_something_else_wrote_is_not_removed(module, path):
    path.parent.mkdir()
    path.write_text("kind: nvidia.com/gpu\n")
    answer = module(state="absent")
    assert answer["changed"] is False
    assert "stays" in answer["notes"][0]
    assert module(state="absent", take_over=True)["changed"] is True
    assert not path.exists()


@pytest.fixture
def former(path):
    """What an earlier version of the module has left."""
    path.parent.mkdir()
    one = path.with_suffix(".yaml")
    one.write_text(f"{cdi.FORMER_MARK} Changes made here are lost.\n---\nkind: nvidia.com/gpu\n")
    return one


def test_the_yaml_of_an_earlier_version_is_replaced_in_the_same_step(module, path, former):
    foretold = module(check_mode=True)
    assert (foretold["changed"], former.exists(), path.exists()) == (True, True, False)
    assert "kind: nvidia.com/gpu" in foretold["diff"]["before"]
    done = module()
    assert (done["changed"], done["diff"]) == (True, foretold["diff"])
    assert [one.name for one in path.parent.iterdir()] == ["nvidia.json"]
    assert module()["changed"] is False


def test_the_yaml_of_an_earlier_version_goes_where_both_files_are_there(module, path, former):
    """As a run leaves it that was cut, or an earlier version that ran once more."""
    text = former.read_text()
    module()
    former.write_text(text)
    assert module()["changed"] is True
    assert [one.name for one in path.parent.iterdir()] == ["nvidia.json"]


def test_the_yaml_of_an_earlier_version_is_removed(module, path, former):
    assert module(state="absent")["changed"] is True
    assert not former.exists()
    assert module(state="absent")["changed"] is False


def test_a_yaml_of_another_tool_stays(module, path):
    path.parent.mkdir()
    other = path.with_suffix(".yaml")
    other.write_text("kind: nvidia.com/gpu\n")
    answer = module(take_over=True)
    assert answer["failed"] is True
    assert str(other) in answer["msg"]
    assert module(state="absent")["changed"] is False
    assert other.read_text() == "kind: nvidia.com/gpu\n"


def test_a_second_file_of_the_same_kind_is_an_error(module, path):
    path.parent.mkdir()
    (path.parent / "other.json").write_text('{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu"}')
    answer = module()
    assert answer["failed"] is True
    assert "other.json" in answer["msg"]
    assert not path.exists()


def test_a_file_that_goes_first_and_is_out_of_date_is_an_error_that_names_it(module, path, monkeypatch, tmp_path):
    first = tmp_path / "run" / "nvidia.yaml"
    first.parent.mkdir()
    first.write_text(
        'kind: nvidia.com/gpu\ndevices:\n- name: "0"\n  mounts:\n  - hostPath: /usr/lib/libcuda.so.390.48\n'
    )
    monkeypatch.setattr(cdi_search, "DIRECTORIES", (str(path.parent), str(first.parent)))
    answer = module(engine="docker")
    assert answer["failed"] is True
    assert f"engines take nvidia.com/gpu from {first} and not from {path}" in answer["msg"]
    assert not path.exists()
    first.write_text('kind: nvidia.com/gpu\ndevices:\n- name: "0"\n')
    answer = module(engine="docker")
    assert answer["changed"] is True
    assert any(f"from {first} and not from {path}" in note for note in answer["notes"])


def test_before_the_driver_is_there(module, host, path):
    host["found"] = cdi.CannotTell("the nvidia module is not loaded")
    foretold = module(check_mode=True)
    assert foretold["changed"] is True
    assert "in a real run the driver comes first" in foretold["notes"][0]
    real = module()
    assert real["failed"] is True
    assert "the nvidia module is not loaded" in real["msg"]
    assert not path.exists()


def test_the_gpus_of_gpu_facts_are_passed_on(module, host):
    module(devices=[{"index": 0, "minor": 0, "uuid": UUID, "pci_address": "0000:3b:00.0"}])
    assert host["given"][0]["uuid"] == UUID


@pytest.mark.parametrize("path_", ["/etc/cdi/nvidia.yaml", "cdi.json"])
def test_a_path_that_engines_or_we_cannot_read(module, path_):
    answer = module(path=path_)
    assert answer["failed"] is True
    assert path_ in answer["msg"]
