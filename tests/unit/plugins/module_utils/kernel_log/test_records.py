# SPDX-License-Identifier: GPL-3.0-or-later
"""Events from the kernel's log. The lines in kernel_log_captured.json are captured, with their source; the others are
hand-made."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.health.codes import ACTIONS
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log import records as kernel_log
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log import xid
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log.xid_table import XIDS

CAPTURED = json.loads(Path(__file__).with_name("captured.json").read_text())
BOOT = "00000000-0000-4000-8000-000000000001"


def records(lines, first=700):
    return [f"4,{first + number},{5_000_000 + number},-;{line}" for number, line in enumerate(lines)]


def events(lines):
    return kernel_log.Parser(BOOT).events(records(lines))


@pytest.mark.parametrize("sample", CAPTURED["samples"], ids=lambda sample: sample["lines"][0][:60])
def test_captured_lines(sample):
    found = events(sample["lines"])
    expected = sample["event"]
    if expected is None:
        assert found == []
        return
    assert len(found) == 1
    assert {key: found[0][key] for key in ("kind", "pci_address", "xid")} == {
        key: expected[key] for key in ("kind", "pci_address", "xid")
    }
    for key, value in expected.get("detail", {}).items():
        assert found[0]["detail"][key] == value
    assert found[0]["boot_id"] == BOOT
    assert found[0]["sequence"] == 700 + len(sample["lines"]) - 1
    assert found[0]["uptime"] == pytest.approx(5.0, abs=1e-3)


def test_all_captured_lines_in_one_stream():
    lines = [line for sample in CAPTURED["samples"] for line in sample["lines"]]
    expected = [sample["event"]["pci_address"] for sample in CAPTURED["samples"] if sample["event"]]
    assert [event["pci_address"] for event in events(lines)] == expected


def test_a_process_may_be_called_anything():
    (event,) = events(
        ["NVRM: Xid (PCI:0019:01:00): 145, pid=876766, name=ray::Worker, x, RLW_RXPIPE Fatal XC0 i0 Link 12"]
    )
    assert event["detail"]["pid"] == 876766
    assert (event["detail"]["unit"], event["detail"]["fatal"], event["detail"]["link"]) == ("RLW_RXPIPE", True, 12)


def test_a_message_of_several_lines_in_one_record():
    (event,) = events(
        [
            r"NVRM: The NVIDIA GPU 0000:18:00.0\x0a(PCI ID: 10de:2901) installed in this system has\x0a"
            r"fallen off the bus and is not responding to commands."
        ]
    )
    assert (event["kind"], event["pci_address"]) == ("off_bus", "0000:18:00.0")


def test_the_second_half_of_a_message_names_no_gpu():
    assert events(["NVRM: fallen off the bus and is not responding to commands."]) == []


def test_the_uuid_that_the_driver_names_goes_with_the_event():
    (event,) = events(
        [
            "NVRM: GPU at PCI:0000:01:00: GPU-aeab3757-56a6-7e30-3f7c-1f322454bde2",
            "NVRM: Xid (PCI:0000:01:00): 43, pid=1814139, name=cuda_assert_64b, Ch 00000018",
        ]
    )
    assert event["uuid"] == "GPU-aeab3757-56a6-7e30-3f7c-1f322454bde2"


@pytest.mark.parametrize(
    "record",
    [
        "NVRM: Xid (PCI:0000:01:00): 79, without the prefix of a record",
        " SUBSYSTEM=pci",
        "",
        "6,1,2,-;usb 1-1: new device that calls itself NVRM: Xid (PCI:0000:01:00): 79",
        "garbage;NVRM: Xid (PCI:0000:01:00): 79, x",
    ],
)
def test_other_lines_are_no_events(record):
    assert kernel_log.Parser(BOOT).events([record]) == []


def test_reading_takes_what_is_there_and_does_not_wait(tmp_path):
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    keep = os.open(pipe, os.O_RDWR)
    try:
        lines = records(["NVRM: loading", "NVRM: Xid (PCI:0000:01:00): 31, x"])
        os.write(keep, ("\n".join(lines) + "\n").encode())
        assert kernel_log.read(str(pipe)) == lines
    finally:
        os.close(keep)


def test_reading_a_log_that_is_not_there_says_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        kernel_log.read(str(tmp_path / "kmsg"))


@pytest.fixture
def log(tmp_path):
    """A pipe in the place of /dev/kmsg, and a reader of it."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    reader = kernel_log.Log(str(path))
    writer = os.open(path, os.O_WRONLY)
    yield reader, lambda text: os.write(writer, text.encode())
    os.close(writer)
    reader.close()


def test_only_lines_of_the_driver_are_read(log):
    reader, write = log
    write("6,1,100,-;usb 1-1: new device\n4,2,200,-;NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.\n")
    assert reader.read() == ["4,2,200,-;NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus."]
    assert reader.read() == []


def test_a_record_in_two_parts_is_put_together(log):
    reader, write = log
    write("4,2,200,-;NVRM: Xid (PCI:0000:05")
    assert reader.read() == []
    write(":00): 79, pid=1\n")
    assert reader.read() == ["4,2,200,-;NVRM: Xid (PCI:0000:05:00): 79, pid=1"]


def test_records_that_the_kernel_overwrote_are_passed_over(log, monkeypatch):
    reader, write = log
    write("4,9,900,-;NVRM: Xid (PCI:0000:05:00): 31\n")
    real, failures = os.read, [BrokenPipeError(32, "Broken pipe")]

    def read(descriptor, length):
        if failures:
            raise failures.pop()
        return real(descriptor, length)

    monkeypatch.setattr(kernel_log.os, "read", read)
    assert reader.read() == ["4,9,900,-;NVRM: Xid (PCI:0000:05:00): 31"]


def test_a_pipe_has_ended_when_its_writer_is_gone(tmp_path):
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    reader = kernel_log.Log(str(path))
    writer = os.open(path, os.O_WRONLY)
    os.write(writer, b"4,2,200,-;NVRM: loading\n")
    assert reader.read() == ["4,2,200,-;NVRM: loading"]
    assert not reader.ended
    os.close(writer)
    assert reader.read() == []
    assert reader.ended
    reader.close()


# --- what an Xid means ------------------------------------------------------------------------------------------------

FATAL = [46, 48, 54, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 150, 155, 158, 167, 171, 172, 173]
APPLICATION = [13, 31, 43, 45, 68, 109]


@pytest.mark.parametrize("number", FATAL)
def test_fatal_xids(number):
    verdict, action = xid.judge(number, {}, {})
    assert verdict == "fatal"
    assert action in ("inspect", "reset_gpu", "reboot")


@pytest.mark.parametrize("number", APPLICATION)
def test_xids_of_applications(number):
    assert xid.judge(number, {}, {})[0] == "application"


def test_every_row_can_be_acted_on():
    for number, row in XIDS.items():
        assert row.verdict in ("fatal", "degraded", "application", "none"), number
        assert row.action in ACTIONS, number
        assert row.verdict not in ("fatal", "degraded") or row.action != "restart_app", number


def test_an_xid_that_is_not_documented_is_only_counted():
    assert xid.judge(9999, {}, {}) == ("none", "none")


@pytest.mark.parametrize(
    ("number", "detail", "verdict"),
    [
        (149, {"fatal": True}, ("fatal", "reset_gpu")),
        (145, {"fatal": False}, ("none", "none")),
        (154, {"recovery_to": 0}, ("none", "none")),
        (154, {"recovery_to": 1}, ("fatal", "reset_gpu")),
        (154, {"recovery_to": 2}, ("fatal", "reboot")),
        (154, {"recovery_to": 4}, ("fatal", "reset_gpu")),
    ],
)
def test_the_line_itself_can_say_how_bad_it_is(number, detail, verdict):
    assert xid.judge(number, detail, {}) == verdict


def test_the_site_has_the_last_word():
    assert xid.judge(31, {}, {"31": {"verdict": "fatal", "action": "reboot"}}) == ("fatal", "reboot")
    assert xid.judge(79, {}, {"79": {"verdict": "none"}}) == ("none", "reboot")
