# SPDX-License-Identifier: GPL-3.0-or-later
"""Warnings: what they say, and how they leave."""

from __future__ import annotations

import socketserver
import threading
import time
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import idle
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.samples import Watched
from baremetal_gpu_portal import notice
from tests.unit.plugins.module_utils.portal.test_samples import POLICY, levels

URL = "https://portal.example.org/hub/home"


def warned(server: str = "") -> dict:
    watched = Watched(POLICY, 0.0)
    levels(watched, 30, 340)
    return notice.notice("alice", server, watched, URL)


def test_a_warning_says_since_when_until_when_and_where_the_session_is_kept() -> None:
    row = warned("second")
    since, ends = (time.strftime("%Y-%m-%d %H:%M", time.localtime(moment)) for moment in (30, 630))
    assert row["text"] == f"Your session second is idle since {since}. It ends at {ends} unless you use it or keep it."
    assert (row["user"], row["server"], row["level"], row["url"]) == ("alice", "second", 1, URL)
    assert (row["idle_since"], row["ends"]) == (30.0, 630.0)


def test_of_gpus_that_are_out_of_order_their_names_and_codes_are_told_and_what_to_do() -> None:
    row = notice.broken("alice", "", {("GPU-1", "xid_79"), ("GPU-1", "gpu_lost")}, URL)
    assert row["text"].startswith("A GPU of your session is out of order: GPU-1 (gpu_lost, xid_79). ")
    assert "stop the session and start it again" in row["text"]
    assert row["failed"] == [{"gpu": "GPU-1", "codes": ["gpu_lost", "xid_79"]}]
    both = notice.broken("alice", "second", {("GPU-1", "xid_79"), ("GPU-2", "xid_48")}, URL)
    assert both["text"].startswith("2 GPUs of your session second are out of order: GPU-1 (xid_79), GPU-2 (xid_48). ")


def test_the_levels_of_a_warning_are_those_of_the_decision() -> None:
    assert [idle.LEVELS.index(level) for level in (idle.WARN1, idle.WARN2)] == [1, 2]


class Mailbox(socketserver.ThreadingTCPServer):
    """As much of a mail server as a message needs; `refuses` is an answer to its recipient."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, refuses: bool = False) -> None:
        self.lines: list[str] = []
        box = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(b"220 here\r\n")
                body = False
                for raw in self.rfile:
                    line = raw.decode().rstrip()
                    box.lines.append(line)
                    if body and line != ".":
                        continue
                    word = line[:4].upper()
                    body = word == "DATA"
                    refused = refuses and word == "RCPT"
                    answer = "550 nobody of that name" if refused else "354 go on" if body else "250 ok"
                    answer = "221 bye" if word == "QUIT" else answer
                    self.wfile.write(f"{answer}\r\n".encode())

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.server_address[1])


def test_mail_goes_to_the_user_at_the_sites_domain() -> None:
    with Mailbox() as box:
        notice.mail("example.org", warned(), box.address)
        told = "\n".join(box.lines)
        box.shutdown()
    assert "To: alice@example.org" in told
    assert "Subject: Your session is idle" in told
    assert "Auto-Submitted: auto-generated" in told
    assert URL in told


def test_mail_that_is_refused_and_a_server_that_is_not_there_are_errors_that_the_hub_counts() -> None:
    with Mailbox(refuses=True) as box:
        with pytest.raises(OSError, match="nobody of that name"):
            notice.mail("example.org", warned(), box.address)
        box.shutdown()
    with pytest.raises(OSError, match="refused"):
        notice.mail("example.org", warned(), ("127.0.0.1", 1))


def test_a_webhook_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="refused"):
        notice.post("http://127.0.0.1:1/", warned())


@pytest.mark.parametrize(
    ("gpus", "until", "text"),
    [
        ([], None, ""),
        ([], 11_520.0, "3 h 12 min left"),
        ([], 59.0, "0 min left"),
        ([{"use": 0.874, "used_mib": 12595, "total_mib": 81920}], None, "GPU 87 % \u00b7 12.3 of 80 GiB of GPU memory"),
        (
            [{"use": use, "used_mib": 1024, "total_mib": 81920} for use in (0.98, 0.12)],
            60.0,
            "1 min left \u00b7 2 GPUs 12 to 98 % \u00b7 2.0 of 160 GiB of GPU memory",
        ),
        ([{"use": None, "used_mib": None, "total_mib": 81920}], None, ""),
    ],
)
def test_a_line_says_how_long_a_session_lasts_and_what_its_gpus_do(
    gpus: list[dict[str, Any]], until: float | None, text: str
) -> None:
    assert notice.now(gpus, until, 0.0) == text


def test_a_session_whose_time_is_nearly_over_is_told_when_and_what_to_do() -> None:
    told = notice.over("train", 1.8e9)
    assert told == f"Your session train ends at {notice.moment(1.8e9)}, when its hours are over. Save your work."
