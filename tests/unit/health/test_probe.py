# SPDX-License-Identifier: GPL-3.0-or-later
"""The command gpuops probe, as a user sees it. The looks are hand-made."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from ansible_collections.baremetal.gpu.plugins.module_utils.health import probe as health_probe
from gpuops.cli import app
from tests.unit.plugins.health_host import Host, error, uuid

run = CliRunner()


@pytest.fixture
def host(monkeypatch):
    host = Host(gpus=2)
    monkeypatch.setattr(health_probe, "look", lambda *_arguments: host.snapshot())
    monkeypatch.setattr(health_probe.kernel_log, "read", lambda _path: [])
    return host


def fail_for_want_of_rights(host):
    host.fail(error(4))


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        (lambda host: None, 0, "ok"),
        (lambda host: host.change("pcie", width=4), 1, "degraded"),
        (lambda host: host.lose(1), 2, "fatal"),
        (fail_for_want_of_rights, 3, "unknown"),
    ],
)
def test_the_exit_code_is_the_verdict(host, change, code, word):
    change(host)
    done = run.invoke(app, ["probe"])
    assert done.exit_code == code
    assert done.output.startswith(f"The host is {word} since ")
    done = run.invoke(app, ["probe", "--json"])
    assert done.exit_code == code
    assert json.loads(done.output)["verdict"] == word


def test_the_table_shows_evidence_and_remedy(host):
    host.change("ecc_volatile", device=1, uncorrected=7)
    lines = run.invoke(app, ["probe"]).output.splitlines()
    assert [line.split()[3] for line in lines[2:4]] == ["ok", "fatal"]
    text = "\n".join(lines)
    assert f"fatal: GPU {uuid(1)}: ecc_uncorrected" in text
    assert "7 uncorrected memory errors since the driver was loaded" in text
    assert "value 7, threshold 0, since " in text
    assert f"nvidia-smi --gpu-reset -i {uuid(1)}" in " ".join(text.split())
    assert "(action: reset_gpu)" in " ".join(text.split())


def test_what_is_only_suspected_is_shown_and_changes_nothing(host):
    host.read("clocks_event_reasons", 0x40)
    done = run.invoke(app, ["probe"])
    assert done.exit_code == 0
    assert f"suspected: GPU {uuid(0)}: thermal_slowdown" in done.output


def test_a_host_without_gpus(monkeypatch):
    monkeypatch.setattr(health_probe, "look", lambda *_arguments: Host(gpus=0).snapshot())
    done = run.invoke(app, ["probe", "--no-kernel-log"])
    assert done.exit_code == 0
    assert "It has no GPUs to judge." in done.output


def test_xids_in_the_log_count_unless_left_out(host, monkeypatch):
    line = "4,1,2000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus."
    monkeypatch.setattr(health_probe.kernel_log, "read", lambda _path: [line])
    done = run.invoke(app, ["probe"])
    assert done.exit_code == 2
    assert "Xid 79" in done.output
    assert run.invoke(app, ["probe", "--no-kernel-log"]).exit_code == 0


def test_a_policy_from_a_file(host, tmp_path):
    policy = tmp_path / "policy.yml"
    policy.write_text("expected:\n  gpus: 8\n")
    done = run.invoke(app, ["probe", "--policy", str(policy)])
    assert done.exit_code == 2
    assert "2 GPUs on the PCI bus, and 8 are expected" in done.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("expected: {gpus: many}\n", "expected.gpus is 'many': give a whole number of 0 or more"),
        ("expected: [\n", "cannot be read"),
        ("- 8\n", "the health policy is [8]: give a mapping"),
    ],
)
def test_a_wrong_policy_is_an_error_and_no_verdict(host, tmp_path, text, said):
    policy = tmp_path / "policy.yml"
    policy.write_text(text)
    done = run.invoke(app, ["probe", "--policy", str(policy)])
    assert done.exit_code == 64
    assert said in done.stderr
    assert str(policy) in done.stderr


def test_a_log_that_cannot_be_read_is_told(host, monkeypatch):
    def refuse(_path):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(health_probe.kernel_log, "read", refuse)
    done = run.invoke(app, ["probe"])
    assert done.exit_code == 0
    assert "Xids are not judged; ask as root" in done.stderr
