# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is told of Marathon's apps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.marathon import app_schema
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon.api import Marathon


def tell(marathon: Marathon, app_id: str | None, label: str | None, show_env: bool) -> dict[str, Any]:
    """leader, apps and deployments, in the shape that marathon_app_info returns. Raises Failed."""
    found = [marathon.app(app_id)] if app_id else marathon.apps(label)
    apps = [app for app in found if app is not None]
    ids = {app["id"] for app in apps}
    chosen = [row for row in marathon.deployments() if ids & set(row.get("affectedApps", []))]
    return {
        "leader": marathon.leader(),
        "apps": [_app(app, show_env) for app in apps],
        "deployments": [_deployment(row) for row in chosen],
    }


def _app(app: Mapping[str, Any], show_env: bool) -> dict[str, Any]:
    definition = {key: value for key, value in app.items() if key not in app_schema.OF_SERVER}
    if not show_env and definition.get("env"):
        definition["env"] = dict.fromkeys(definition["env"], "(hidden)")
    keys = ("id", "host", "state", "ports", "version")
    return {
        "id": app["id"],
        "version": app.get("version"),
        "definition": definition,
        "instances": app["instances"],
        "running": app.get("tasksRunning", 0),
        "healthy": app.get("tasksHealthy", 0),
        "unhealthy": app.get("tasksUnhealthy", 0),
        "staged": app.get("tasksStaged", 0),
        "tasks": [{key: task.get(key) for key in keys} for task in app.get("tasks", [])],
        "deployments": [row["id"] for row in app.get("deployments", [])],
        "last_failure": app.get("lastTaskFailure"),
    }


def _deployment(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": row["id"],
        "apps": list(row.get("affectedApps", [])),
        "step": row.get("currentStep"),
        "steps": row.get("totalSteps"),
        "actions": [f"{one['action']} {one.get('app') or one.get('pod')}" for one in row.get("currentActions", [])],
    }
