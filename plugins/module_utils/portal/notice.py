# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The warning of somebody whose session is idle: what it says, and the ways by which it is sent."""

from __future__ import annotations

import json
import smtplib
import time
import urllib.request
from collections.abc import Mapping
from email.message import EmailMessage
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import idle
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.samples import Watched

MAIL_SERVER = ("127.0.0.1", 25)
PATIENCE_S = 20.0


def moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def notice(user: str, server: str, watched: Watched, url: str) -> dict[str, Any]:
    """What a warning says.

    :param url: the page on which the session can be kept.
    """
    name = f"Your session {server}" if server else "Your session"
    since, ends = moment(watched.since), moment(watched.ends)
    return {
        "user": user,
        "server": server,
        "level": idle.LEVELS.index(watched.level),
        "idle_since": watched.since,
        "ends": watched.ends,
        "text": f"{name} is idle since {since}. It ends at {ends} unless you use it or keep it.",
        "url": url,
    }


def post(url: str, row: Mapping[str, Any]) -> None:
    """Send it to a webhook. Raises OSError."""
    request = urllib.request.Request(url, json.dumps(row).encode(), {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=PATIENCE_S):
        return


def mail(domain: str, row: Mapping[str, Any], server: tuple[str, int] = MAIL_SERVER) -> None:
    """Send it to the user's address at a domain. Raises OSError, those of smtplib among them."""
    message = EmailMessage()
    message["From"], message["To"] = f"portal@{domain}", f"{row['user']}@{domain}"
    message["Subject"] = "Your session is idle"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(f"{row['text']}\n\nKeep it or stop it: {row['url']}\n")
    with smtplib.SMTP(*server, timeout=PATIENCE_S) as connection:
        connection.send_message(message)
