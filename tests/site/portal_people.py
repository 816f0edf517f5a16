# SPDX-License-Identifier: GPL-3.0-or-later
"""People who start a session of a portal and run a cell, as a program: it needs the `websocket-client` of JupyterLab.

Standard input has `url`, `own_origins`, `addresses` (of hosts that no DNS knows), `people` (name, `cookies` of somebody
who is logged in, `fields` of the form), `within_s` (in which all press the button) and `code`, the cell. For each
person a line of JSON on standard output: `name`, `text` (what the cell printed), `ready_s` and `cell_s` (seconds from
the click to the session, and to what the cell printed), or `error`.
"""

from __future__ import annotations

import json
import random
import socket
import ssl
import sys
import threading
import time
import urllib.parse
import uuid
from http.cookiejar import Cookie
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.unit.roles.portal_browser import ADDRESSES, Browser, address_of, origin_of

PATIENCE_S = 300.0


def request(session: str, code: str) -> dict[str, Any]:
    """A message that asks a kernel for a cell (https://jupyter-client.readthedocs.io/en/latest/messaging.html)."""
    header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "session": session, "version": "5.3"}
    content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
    return {
        "header": {**header, "username": "", "date": ""},
        "parent_header": {},
        "metadata": {},
        "content": content,
        "channel": "shell",
        "buffers": [],
    }


def run_cell(browser: Browser, code: str) -> str:
    """What a cell prints in a new kernel of the session of somebody who is logged in."""
    import websocket

    base = f"/user/{browser.name}"
    page = browser.get(f"{base}/lab")
    assert page.status == 200, f"{page.status} {page.url}"
    mine = [cookie for cookie in browser.cookies if cookie.path in (f"{base}/", "/")]
    (token,) = [cookie.value for cookie in mine if cookie.name == "_xsrf"]
    answer = browser.ask(f"{base}/api/kernels", b"{}", X_XSRFToken=str(token), Referer=page.url)
    assert answer.status == 201, f"{answer.status} {answer.text[:300]}"
    session, origin = uuid.uuid4().hex, origin_of(browser.portal, f"{base}/")
    host = urllib.parse.urlsplit(origin).hostname or ""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection((address_of(host), urllib.parse.urlsplit(origin).port or 443), PATIENCE_S)
    channels = websocket.create_connection(
        f"{origin.replace('https', 'wss', 1)}{base}/api/kernels/{answer.json()['id']}/channels"
        f"?session_id={session}&_xsrf={token}",
        cookie="; ".join(f"{cookie.name}={cookie.value}" for cookie in mine),
        origin=origin,
        socket=context.wrap_socket(plain, server_hostname=host),
        timeout=PATIENCE_S,
        suppress_origin=False,
        http_no_proxy=["*"],
    )
    try:
        channels.send(json.dumps(request(session, code)))
        while True:
            told = json.loads(channels.recv())
            content = told["content"]
            if told["msg_type"] == "stream" and content["name"] == "stdout":
                return str(content["text"])
            if told["msg_type"] == "error":
                return f"{content['ename']}: {content['evalue']}"
    finally:
        channels.close()


def work(browser: Browser, fields: dict[str, str], code: str, wait_s: float) -> dict[str, Any]:
    time.sleep(wait_s)
    try:
        page = browser.get("/hub/spawn")
        clicked = time.monotonic()
        answer = browser.post("/hub/spawn", page, **fields)
        assert answer.status == 200, f"{answer.status} {answer.text[:300]}"
        token = browser.token(answer.text)
        told = browser.first_event(f"/hub/api/users/{browser.name}/server/progress?_xsrf={token}", '"ready": true')
        assert told, "the session has not become ready"
        ready = time.monotonic()
        text = run_cell(browser, code)
        ran = time.monotonic()
    except Exception as why:
        return {"name": browser.name, "error": f"{type(why).__name__}: {why}"}
    return {"name": browser.name, "text": text, "ready_s": ready - clicked, "cell_s": ran - clicked}


def main() -> None:
    asked = json.load(sys.stdin)
    place = SimpleNamespace(url=asked["url"], own_origins=asked["own_origins"])
    ADDRESSES.update(asked["addresses"])
    # The same moments in each run.
    moments = random.Random(1)

    def one(row: dict[str, Any], wait_s: float) -> None:
        browser = Browser(place)
        browser.name, browser.patience_s = row["name"], PATIENCE_S
        for cookie in row["cookies"]:
            browser.cookies.set_cookie(Cookie(**cookie))
        print(json.dumps(work(browser, row["fields"], asked["code"], wait_s)), flush=True)

    threads = [
        threading.Thread(target=one, args=(row, moments.uniform(0, asked["within_s"]))) for row in asked["people"]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
