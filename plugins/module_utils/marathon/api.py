# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Marathon's HTTP API: its apps, deployments, queue and leader.

The way to it is injected, so that everything here can be asked without a network. A Marathon that does not lead passes
what it is asked on to the leader, so any one that answers will do. Reading is tried at each of them; a change is sent
once, because nobody can tell whether one without an answer was taken.
"""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Failed, Reply, Transport

# Answers of a Marathon that has no leader, or cannot reach it.
_NO_LEADER = (502, 503, 504)


class Locked(Failed):
    """A deployment is running for the app; `deployments` are the ids."""

    def __init__(self, app_id: str, deployments: Iterable[str]) -> None:
        self.deployments = list(deployments)
        super().__init__(
            f"app {app_id} is locked by the deployment {', '.join(self.deployments)}",
            "wait until it is over, or set force to cancel it",
        )


class Unreachable(Failed):
    """None of them answers, or none knows a leader."""


class Marathon:
    """The Marathons of one cluster at `urls` (http://host:port, …), asked as `user`."""

    def __init__(
        self, urls: Iterable[str], transport: Transport, user: str | None = None, password: str | None = None
    ) -> None:
        self.urls = [url.rstrip("/") for url in urls]
        wrong = [url for url in self.urls if not url.startswith(("http://", "https://")) or "@" in url]
        if not self.urls or wrong:
            shown = [url.rpartition("@")[2] for url in wrong or self.urls]
            raise Failed(f"urls {shown} are not as in http://master1:8080", "correct them; a login goes elsewhere")
        self._send = transport
        self._headers = {"Accept": "application/json"}
        if user is not None:
            login = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {login}"

    def _read(self, path: str) -> Reply:
        tried = []
        for url in list(self.urls):
            try:
                answer = self._send("GET", url + path, self._headers, None)
            except OSError as error:
                tried.append(f"{url}: {getattr(error, 'reason', error)}")
                continue
            if answer.status not in _NO_LEADER:
                self._prefer(url)
                return answer
            tried.append(f"{url}: status {answer.status}, {_text(answer) or 'no leader'}")
        raise Unreachable(f"no Marathon answers: {'; '.join(tried)}", "check that one leads, and that ZooKeeper runs")

    def _prefer(self, url: str) -> None:
        """The one that answered is asked first from now on."""
        self.urls.remove(url)
        self.urls.insert(0, url)

    def get(self, path: str) -> Any:
        """JSON of what is read."""
        return self._checked(f"GET {path}", self._read(path))

    def change(self, method: str, path: str, document: Any = None, app_id: str = "") -> Any:
        """JSON of the answer to a change, of the app `app_id` if it is one's."""
        body = None if document is None else json.dumps(document).encode()
        headers = {**self._headers, **({"Content-Type": "application/json"} if body is not None else {})}
        url = self.urls[0]
        try:
            answer = self._send(method, url + path, headers, body)
        except OSError as error:
            why = getattr(error, "reason", error)
            raise Failed(
                f"{method} {path}: {url} does not answer: {why}",
                "run it again; if the change was taken, it is not made twice",
            ) from error
        return self._checked(f"{method} {path}", answer, app_id)

    def _checked(self, what: str, answer: Reply, app_id: str = "") -> Any:
        url = self.urls[0]
        if answer.status == 401:
            raise Failed(f"{what}: {url} wants a login, and this one is none", "check user and password")
        try:
            document = json.loads(answer.body) if answer.body.strip() else None
        except (ValueError, RecursionError) as error:
            if 200 <= answer.status < 300:
                raise Failed(f"{what}: {url} answers with what is not JSON", "check that this is Marathon") from error
            document = None
        if 200 <= answer.status < 300:
            return document
        told = document if isinstance(document, Mapping) else {}
        if answer.status == 409 and told.get("deployments"):
            raise Locked(app_id, [str(row["id"]) for row in told["deployments"]])
        raise Failed(f"{what}: {url} answers {answer.status}: {_message(told) or _text(answer) or 'nothing'}")

    # What there is.

    def leader(self) -> str:
        """host:port of the Marathon that leads."""
        return str(self.get("/v2/leader")["leader"])

    def features(self) -> list[str] | None:
        """What Marathon was started with by --enable_features; None if it does not say."""
        told = self.get("/v2/info").get("marathon_config", {}).get("features")
        return [str(name) for name in told] if isinstance(told, list) else None

    def app(self, app_id: str) -> dict[str, Any] | None:
        """The app with its tasks, deployments and last failure; None if there is none."""
        path = f"/v2/apps/{urllib.parse.quote(app_id.strip('/'))}"
        answer = self._read(path)
        if answer.status == 404 and "does not exist" in _text(answer):
            return None
        return dict(self._checked(f"GET {path}", answer)["app"])

    def apps(self, label: str | None = None) -> list[dict[str, Any]]:
        """The apps that a label selector (name, name==value, name!=value, with commas) fits, as `app` gives them."""
        query = {"embed": "apps.failures", **({"label": label} if label else {})}
        told = self.get(f"/v2/apps?{urllib.parse.urlencode(query)}")["apps"]
        return sorted((dict(app) for app in told), key=lambda app: str(app["id"]))

    def deployments(self) -> list[dict[str, Any]]:
        """The running ones."""
        return [dict(row) for row in self.get("/v2/deployments")]

    def queued(self, app_id: str) -> dict[str, Any] | None:
        """The app's entry in the queue of what waits for offers."""
        rows = self.get("/v2/queue").get("queue", [])
        return next((dict(row) for row in rows if row.get("app", {}).get("id") == app_id), None)

    # Changes. Each gives the id of the deployment.

    def create(self, app: Mapping[str, Any], force: bool) -> str:
        told = self.change("POST", f"/v2/apps?force={_flag(force)}", dict(app), app["id"])
        return str(told["deployments"][0]["id"])

    def replace(self, app: Mapping[str, Any], force: bool) -> str:
        """The whole app: what is not in it goes back to its default."""
        path = f"/v2/apps/{app['id'].strip('/')}?force={_flag(force)}&partialUpdate=false"
        return str(self.change("PUT", path, dict(app), app["id"])["deploymentId"])

    def revert(self, app_id: str, version: str) -> str:
        """The app as it was in that version."""
        path = f"/v2/apps/{app_id.strip('/')}?force=true&partialUpdate=true"
        return str(self.change("PUT", path, {"version": version}, app_id)["deploymentId"])

    def delete(self, app_id: str, force: bool) -> str:
        # Without the parameter Marathon forces.
        path = f"/v2/apps/{app_id.strip('/')}?force={_flag(force)}"
        return str(self.change("DELETE", path, None, app_id)["deploymentId"])

    def roll_back(self, deployment_id: str) -> str:
        """Undoes a deployment that runs: the app is as before it, or gone if it was new."""
        return str(self.change("DELETE", f"/v2/deployments/{deployment_id}?force=false")["deploymentId"])


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _text(answer: Reply) -> str:
    return answer.body.decode("utf-8", "replace").strip()[:500]


def _message(told: Mapping[str, Any]) -> str:
    """Marathon's message, and of each detail the path and its errors."""
    text, details = str(told.get("message", "")), told.get("details")
    if isinstance(details, list):
        rows = [f"{row.get('path') or '/'}: {', '.join(map(str, row.get('errors', [])))}" for row in details]
        return f"{text} ({'; '.join(rows)})"
    return f"{text} ({details})" if details else text
