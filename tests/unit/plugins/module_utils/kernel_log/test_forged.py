# SPDX-License-Identifier: GPL-3.0-or-later
"""What others than the driver can put into the kernel's log changes nothing. All lines are hand-made."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.baremetal.gpu.plugins.module_utils.health import evaluate as health
from ansible_collections.baremetal.gpu.plugins.module_utils.health import history as health_history
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log import records as kernel_log
from tests.unit.plugins.health_host import Host, address, uuid

BOOT = "00000000-0000-4000-8000-000000000001"
LOST = f"NVRM: Xid (PCI:{address(0)[:-2]}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
ELSEWHERE = "NVRM: Xid (PCI:0000:fe:00): 79, GPU has fallen off the bus."


def events(*records: str) -> list[dict]:
    return kernel_log.Parser(BOOT).events(records)


# What a user's text looks like once the kernel has quoted it: each line break that Python knows, as dev-kmsg writes it.
BREAKS = ["\\x0d", "\\x0a", "\\x0d\\x0a", "\\x0b", "\\x0c", "\\x1c", "\\x1d", "\\x1e", "\\xc2\\x85", "\\xe2\\x80\\xa8"]


@pytest.mark.parametrize("line_break", [*BREAKS, "\r", "\v", "\f", "\x1c", "\x85", "\u2028"])
def test_what_the_kernel_quotes_is_no_message_of_the_driver(line_break: str) -> None:
    quoted = f"6,10,100,-;tmpfs: Unknown parameter 'x{line_break}{LOST}{line_break}'"
    assert events(quoted) == []


@pytest.mark.parametrize("line_break", BREAKS)
def test_what_the_driver_quotes_is_no_message_of_its_own(line_break: str) -> None:
    """A process may be called anything; the driver tells its name."""
    name = f"a{line_break}{LOST}"
    (event,) = events(f"4,10,100,-;NVRM: Xid (PCI:0000:01:00): 43, pid=7, name={name}, Ch 00000018")
    assert (event["xid"], event["pci_address"]) == (43, "0000:01:00.0")
    assert event["text"].isprintable()
    assert event["detail"]["process"].isprintable()


@pytest.mark.parametrize("priority", [8, 12, 14, 28, 30, 1023, 4294967295])
def test_a_record_of_userspace_is_not_the_kernels(priority: int) -> None:
    """The kernel gives what is written to /dev/kmsg another facility than its own."""
    assert events(f"{priority},10,100,-;{LOST}") == []


@pytest.mark.parametrize("priority", range(8))
def test_the_kernel_may_use_each_of_its_levels(priority: int) -> None:
    assert [event["xid"] for event in events(f"{priority},10,100,-,caller=T7;{LOST}")] == [79]


@pytest.mark.parametrize("flag", ["c", "+"])
def test_a_piece_of_a_record_that_another_one_began_is_not_the_drivers(flag: str) -> None:
    assert events(f"4,10,100,{flag};{LOST}") == []


@pytest.mark.parametrize(
    "text",
    [
        f" {LOST}",
        f"x{LOST}",
        f"usb 1-1: Product: {LOST}",
        f"\\x0a{LOST}",
        f"NVRM:{LOST}",
        f"nvrm{LOST[4:]}",
        f"\\x4e{LOST[1:]}",
    ],
)
def test_only_what_begins_as_the_driver_begins_counts(text: str) -> None:
    assert events(f"4,10,100,-;{text}") == []


@pytest.mark.parametrize(
    "packet",
    [
        "IN=lo OUT= MAC=00:00 SRC=127.0.0.1 DST=127.0.0.1 LEN=84 TOS=0x00",
        "IN= OUT=eth0 SRC=10.0.0.1 DST=10.0.0.2 LEN=60",
        "IN=eth0 OUT= ARP HTYPE=1 PTYPE=0x0800",
        "IN=eth0 OUT=eth1 MACSRC=00:00 MACDST=00:01",
    ],
)
def test_what_the_packet_filter_was_told_to_log_is_not_the_drivers(packet: str) -> None:
    assert events(f"4,10,100,-;{LOST[:60]} {packet}") == []


def test_a_process_hides_no_xid_by_its_name() -> None:
    """A name has fifteen characters."""
    for name in ("IN= OUT= SRC=a ", "IN=a OUT=b DST=", "ARP HTYPE=1 IN="):
        assert events(f"4,1,1,-;NVRM: Xid (PCI:0000:01:00): 48, pid=7, name={name}, DBE")


@pytest.mark.parametrize("digits", [5, 400, 5000])
def test_no_number_is_too_long(digits: int) -> None:
    long = "9" * digits
    assert events(f"4,1,1,-;NVRM: Xid (PCI:0000:01:00): {long}, x") == []
    for header in (f"{long},1,1,-", f"4,{long},1,-", f"4,1,{long},-"):
        assert len(events(f"{header};{LOST}")) <= 1
    (event,) = events(f"4,1,1,-;NVRM: Xid (PCI:0000:01:00): 145, pid={long}, name=x, RLW Fatal XC0 i0 Link {long}")
    assert event["detail"].get("pid") is None or digits < 11


def test_digits_of_other_scripts_are_no_numbers() -> None:
    assert events("4,1,1,-;NVRM: Xid (PCI:0000:01:00): ٧٩, x") == []
    (event,) = events("4,1,1,-;NVRM: Xid (PCI:0000:01:00): 43, pid=²³, name=x")
    assert event["detail"]["pid"] is None


# --- a message of several lines ---------------------------------------------------------------------------------------

BEGIN = f"NVRM: The NVIDIA GPU {address(0)}"
MIDDLE = "NVRM: (PCI ID: 10de:2901) installed in this system has"
END = "NVRM: fallen off the bus and is not responding to commands."


def test_the_lines_of_a_message_follow_one_another() -> None:
    parser = kernel_log.Parser(BOOT)
    assert parser.events([f"4,1,1,-;{BEGIN}", f"4,2,2,-;{MIDDLE}"]) == []
    (event,) = parser.events([f"4,3,3,-;{END}"])
    assert (event["kind"], event["pci_address"]) == ("off_bus", address(0))


@pytest.mark.parametrize(
    "records",
    [
        [f"4,1,1,-;{BEGIN}", f"12,2,2,-;{END}"],
        [f"12,1,1,-;{BEGIN}", f"4,2,2,-;{END}"],
        [f"4,1,1,-;{BEGIN}", f"4,9,9,-;{END}"],
        [f"4,1,1,-;{BEGIN}", f"4,2,2,-;tmpfs: x\\x0a{END}"],
        [f"4,1,1,-;{BEGIN}", "4,2,2,-;NVRM: loading", f"4,3,3,-;{END}"],
        [f"4,1,1,-;{BEGIN}", f"4,2,2,-;{END[6:]}"],
        [f"4,1,1,-;{BEGIN}", *(f"4,{n},{n},-;{MIDDLE}" for n in (2, 3, 4)), f"4,5,5,-;{END}"],
        [f"4,1,1,-;NVRM: x {BEGIN}", f"4,2,2,-;{END}"],
    ],
)
def test_nobody_ends_the_drivers_message_for_it(records: list[str]) -> None:
    assert events(*records) == []


def test_another_gpus_message_is_not_taken_for_the_end_of_this_ones() -> None:
    other = BEGIN.replace(address(0), address(1))
    found = events(f"4,1,1,-;{BEGIN}", f"4,2,2,-;{other}", f"4,3,3,-;{MIDDLE}", f"4,4,4,-;{END}")
    assert [event["pci_address"] for event in found] == [address(1)]


# --- from the log to the verdict --------------------------------------------------------------------------------------


@pytest.mark.parametrize("looked", [True, False])
def test_an_address_that_is_not_on_the_bus_has_no_verdict(looked: bool) -> None:
    host = Host(gpus=2)
    if looked:
        host.look()
    bus = None if looked else host.pci
    found = kernel_log.Parser(host.boot_id).events(
        host.lines(*(f"NVRM: Xid (PCI:0000:{n % 256:02x}:{n // 256:02x}): 79, x" for n in range(0x1000, 0x1400)))
    )
    now = {"time": host.time, "uptime": host.uptime}
    report, host.history = health.judge(None, found, host.history, {}, now, bus=bus)
    assert all(row["verdict"] != "fatal" for row in report["devices"])
    assert len(host.history["devices"]) <= 2
    assert host.look()["verdict"] == "ok"


def test_made_up_addresses_are_few_where_the_bus_was_not_seen_yet_and_gone_when_it_is() -> None:
    host = Host(gpus=1)
    host.log(*(f"NVRM: Xid (PCI:{n:04x}:01:00): 79, x" for n in range(500)))
    assert len(host.history["devices"]) < 64
    host.look()
    assert [row["uuid"] for row in host.report["devices"]] == [uuid(0)]
    assert host.report["verdict"] == "ok"


def test_a_gpu_that_has_left_the_bus_still_has_its_xid() -> None:
    host = Host(gpus=2)
    host.look()
    host.pci, host.devices = host.pci[:1], host.devices[:1]
    host.log(LOST.replace(address(0)[:-2], address(1)[:-2]))
    assert host.codes(1) == ["xid_fatal"]
    host.look()
    assert set(host.codes(1)) == {"xid_fatal", "gpu_missing"}
    host.reboot()
    host.look()
    host.log(LOST.replace(address(0)[:-2], address(1)[:-2]))
    assert "xid_fatal" in host.codes(1)


@pytest.mark.parametrize("look_first", [True, False])
def test_a_gpu_that_left_the_bus_between_the_bus_and_the_look_counts(look_first: bool) -> None:
    """The agent has read the log before NVML's first answer, which may take long."""
    host = Host(gpus=2)
    if look_first:
        host.look()
    both, now = host.pci, {"time": host.time, "uptime": host.uptime}
    found = kernel_log.Parser(host.boot_id).events(host.lines(LOST))
    report, host.history = health.judge(None, found, host.history, {}, now, bus=both)
    assert report["verdict"] == "fatal"
    host.pci, host.devices = host.pci[1:], host.devices[1:]
    host.look()
    assert "xid_fatal" in [reason["code"] for row in host.report["devices"] for reason in row["reasons"]]


def test_a_single_look_takes_no_address_that_is_not_on_its_bus() -> None:
    host = Host(gpus=1)
    look = host.snapshot()
    found = kernel_log.Parser(host.boot_id).events(host.lines(ELSEWHERE))
    assert health.judge_once(look, found)["verdict"] == "ok"
    assert health.judge_once(look, kernel_log.Parser(host.boot_id).events(host.lines(LOST)))["verdict"] == "fatal"


def test_the_line_of_a_uuid_does_not_move_a_fault_to_another_gpu() -> None:
    host = Host(gpus=2)
    host.look()
    host.log(f"NVRM: GPU at PCI:{address(0)[:-2]}: {uuid(1)}", LOST)
    assert host.codes(0) == ["xid_fatal"]
    assert host.codes(1) == []


def test_made_up_uuids_are_not_remembered_without_end() -> None:
    parser = kernel_log.Parser(BOOT)
    parser.events(f"4,{n},{n},-;NVRM: GPU at PCI:{n:04x}:01:00: {uuid(n)}" for n in range(2000))
    assert len(parser.uuids) <= kernel_log.UUIDS_MOST


def test_a_library_that_makes_up_uuids_does_not_fill_the_disk(monkeypatch) -> None:
    monkeypatch.setattr(health_history, "DEVICES_MOST", 8)
    host = Host(gpus=1)
    for number in range(30):
        host.devices[0]["uuid"] = uuid(number)
        host.look()
    assert len(host.history["devices"]) == 8


def test_numbers_that_no_xid_has_change_no_verdict_and_are_few() -> None:
    host = Host(gpus=1)
    host.look()
    host.log(*(f"NVRM: Xid (PCI:{address(0)[:-2]}): {number}, x" for number in range(200, 100000, 3)))
    assert host.report["verdict"] == "ok"
    assert len(health.xid_counts(host.history)) < 64
    host.xid(79)
    assert host.report["verdict"] == "fatal"


@pytest.mark.parametrize(
    "forged",
    [
        "6,900,{at},-;tmpfs: Bad value for 'x\\x0d{line}'",
        "14,900,{at},-;{line}",
        "6,900,{at},c;{line}",
        "4,900,{at},-;NVRM: Xid (PCI:{other}): 43, pid=1, name=x\\x0a{line}, Ch 00000018",
    ],
)
def test_an_all_clear_that_is_forged_lifts_nothing(forged: str) -> None:
    host = Host(gpus=2)
    host.look()
    host.xid(154, rest="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    clear = f"NVRM: Xid (PCI:{address(0)[:-2]}): 154, GPU recovery action changed from 0x2 (Node Reboot) to 0x0 (None)"
    host.replay([forged.format(at=int(host.uptime * 1e6), line=clear, other=address(1)[:-2])])
    assert host.reason("xid_fatal")["action"] == "reboot"
    host.sequence = 1000
    host.log(clear)
    assert host.codes() == []


def test_the_name_of_a_process_does_not_say_how_bad_it_is() -> None:
    (event,) = events(
        "4,1,1,-;NVRM: Xid (PCI:0000:01:00): 149, pid=7, name=X, A Nonfatal XC0 i0 Link 1 , "
        "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6)"
    )
    assert (event["detail"]["fatal"], event["detail"]["link"]) == (True, 8)


# --- reading the log --------------------------------------------------------------------------------------------------


def test_a_line_longer_than_a_record_is_passed_over_whole(tmp_path) -> None:
    path = tmp_path / "kmsg"
    long = "x" * 3 * kernel_log.RECORD_AT_MOST
    path.write_text(f"4,1,1,-;NVRM: {long}{LOST}\n4,2,2,-;{LOST}\n{long}")
    log = kernel_log.Log(str(path))
    assert log.read() == [f"4,2,2,-;{LOST}"]
    assert log.ended
    assert not log.pollable
    log.close()


def test_a_line_without_an_end_takes_no_memory(tmp_path) -> None:
    log = kernel_log.Log("/dev/zero")
    assert log.read(at_most=200) == []
    assert len(log._rest) <= kernel_log.RECORD_AT_MOST
    log.close()


def test_a_record_that_is_too_long_for_the_kernel_does_not_end_the_reading(tmp_path, monkeypatch) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    log, writer = kernel_log.Log(str(path)), os.open(path, os.O_WRONLY)
    os.write(writer, f"4,9,900,-;{LOST}\n".encode())
    real, failures = os.read, [OSError(22, "Invalid argument")]
    monkeypatch.setattr(kernel_log.os, "read", lambda *asked: _raise(failures.pop()) if failures else real(*asked))
    assert log.read() == [f"4,9,900,-;{LOST}"]
    os.close(writer)
    log.close()


def _raise(failure: OSError) -> bytes:
    raise failure


# --- anything at all --------------------------------------------------------------------------------------------------

TEXTS = st.text(max_size=200) | st.sampled_from([LOST, BEGIN, MIDDLE, END, "nvidia-nvswitch0: SXid (PCI:"])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(8, 1 << 33), st.lists(TEXTS, min_size=1, max_size=4).map("".join))
def test_no_text_of_userspace_is_an_event(priority: int, text: str) -> None:
    assert events(f"{priority},1,1,-;{text}") == []


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS.filter(lambda text: not text.startswith(kernel_log.DRIVERS)), st.lists(TEXTS, max_size=3))
def test_no_message_that_begins_otherwise_is_an_event(first: str, rest: list[str]) -> None:
    body = f"x{first}" + "\\x0a".join(["", *rest])
    assert events(f"4,1,1,-;{body}") == []


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([*kernel_log.DRIVERS, LOST, LOST[:40], BEGIN]), st.lists(TEXTS, max_size=4).map("".join))
def test_whatever_the_driver_says_is_taken_in_and_bounded(begin: str, rest: str) -> None:
    host = Host(gpus=1)
    host.look()
    found = kernel_log.Parser(host.boot_id).events([f"4,500,{int(host.uptime * 1e6)},-;{begin}{rest}"])
    host.tell(found)
    assert len(found) <= 1
    assert all(event["text"].isprintable() and len(event["text"]) <= kernel_log.TEXT_MOST for event in found)
    assert json.loads(json.dumps(host.history)) == host.history
    assert len(host.history["devices"]) == 1


# --- a storm ----------------------------------------------------------------------------------------------------------


def test_a_storm_is_not_remembered_line_by_line() -> None:
    """What is kept of earlier lines is gone through for every new one, and written to the disk."""
    host = Host(gpus=1)
    host.look()
    sizes = []
    for _batch in range(8):
        host.log(*[f"NVRM: Xid (PCI:{address(0)[:-2]}): {number}, pid=1, name=x" for number in (31, 13, 79)] * 700)
        sizes.append(len(json.dumps(host.history)))
    assert {row["xid"]: row["count"] for row in health.xid_counts(host.history)} == {13: 5600, 31: 5600, 79: 5600}
    assert max(sizes) - min(sizes) < 200


def test_nvmls_word_and_the_kernels_are_one_xid_in_a_storm_too() -> None:
    host = Host(gpus=1)
    host.look()
    told = {"kind": "nvml_xid", "uuid": None, "pci_address": address(0), "xid": 31, "text": "", "sequence": None}
    for _event in range(50):
        host.xid(31)
        host.tell([{**told, "uptime": host.uptime, "boot_id": host.boot_id, "detail": {}}])
    assert health.xid_counts(host.history)[0]["count"] == 50


def test_what_the_kernel_adds_to_nvmls_word_is_not_lost() -> None:
    """NVML tells an Xid's number only, and may be first; how bad it is stands in the kernel's line."""
    host = Host(gpus=1)
    host.look()
    told = {"kind": "nvml_xid", "uuid": None, "pci_address": address(0), "xid": 149, "text": "", "sequence": None}
    host.tell([{**told, "uptime": host.uptime, "boot_id": host.boot_id, "detail": {}}])
    host.xid(149, rest="NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6)")
    assert host.reason("xid_fatal")["action"] == "reset_gpu"
    assert health.xid_counts(host.history)[0]["count"] == 1


def test_a_history_of_an_earlier_version_goes_on() -> None:
    host = Host(gpus=1)
    host.look()
    host.xid(79)
    host.history["devices"][uuid(0)]["recent"] = [{"xid": 79, "uptime": host.uptime, "tellers": ["kernel"]}]
    del host.history["bus"]
    host.xid(31)
    assert host.codes() == ["xid_fatal"]
    assert host.clear()
