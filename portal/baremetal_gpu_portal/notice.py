# SPDX-License-Identifier: GPL-3.0-or-later
"""What somebody is told of a session, that it is idle or that a GPU of it is out of order, and the ways to send it."""

from __future__ import annotations

import json
import smtplib
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from email.message import EmailMessage
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import idle
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.samples import Watched

MAIL_SERVER = ("127.0.0.1", 25)
PATIENCE_S = 20.0
# How long before its end a session is told of it.
OVER_S = 600.0


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


def broken(user: str, server: str, failed: Iterable[tuple[str, str]], url: str) -> dict[str, Any]:
    """What is said of GPUs of a session that are out of order.

    :param failed: (GPU, code) of each, as in `Watched`.
    :param url: the page on which the session can be stopped.
    """
    codes: dict[str, list[str]] = {}
    for gpu, code in sorted(failed):
        codes.setdefault(gpu, []).append(code)
    name = f"your session {server}" if server else "your session"
    gpus = ", ".join(f"{gpu} ({', '.join(why)})" for gpu, why in codes.items())
    what = "A GPU" if len(codes) == 1 else f"{len(codes)} GPUs"
    return {
        "user": user,
        "server": server,
        "failed": [{"gpu": gpu, "codes": why} for gpu, why in codes.items()],
        "text": f"{what} of {name} {'is' if len(codes) == 1 else 'are'} out of order: {gpus}. What runs there hangs, "
        "fails, or may compute wrong results. Save your work, stop the session and start it again: it gets other GPUs.",
        "url": url,
    }


def over(server: str, until: float) -> str:
    """What is said of a session whose time is nearly over."""
    name = f"Your session {server}" if server else "Your session"
    return f"{name} ends at {moment(until)}, when its hours are over. Save your work."


def now(gpus: Sequence[Mapping[str, Any]], until: float | None, at: float) -> str:
    """How long a session lasts, and what its GPUs do: a short line; empty where nothing is known.

    :param gpus: rows of {use, used_mib, total_mib}, None for what is not known.
    """
    parts = []
    if until is not None:
        minutes = max(0, int(until - at) // 60)
        parts.append(f"{f'{minutes // 60} h ' if minutes >= 60 else ''}{minutes % 60} min left")
    uses = sorted(round(100 * one["use"]) for one in gpus if one["use"] is not None)
    if uses:
        several = f"{len(gpus)} GPUs" if len(gpus) > 1 else "GPU"
        parts.append(f"{several} {uses[0]} %" if uses[0] == uses[-1] else f"{several} {uses[0]} to {uses[-1]} %")
    if gpus and all(one["used_mib"] is not None and one["total_mib"] for one in gpus):
        used, total = (sum(one[name] for one in gpus) / 1024 for name in ("used_mib", "total_mib"))
        parts.append(f"{used:.1f} of {total:.0f} GiB of GPU memory")
    return " \u00b7 ".join(parts)


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
    message["Subject"] = "A GPU of your session is out of order" if "failed" in row else "Your session is idle"
    message["Auto-Submitted"] = "auto-generated"
    what = "Stop it" if "failed" in row else "Keep it or stop it"
    message.set_content(f"{row['text']}\n\n{what}: {row['url']}\n")
    with smtplib.SMTP(*server, timeout=PATIENCE_S) as connection:
        connection.send_message(message)
