# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables that an order gives a session: JupyterHub's, each with the only values that it may have.

A session believes whomever it asks who somebody is. So an order cannot name another hub than that of the settings, nor
say what else Jupyter reads, which may be the name of a program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.settings import Settings

_PREFIX = "/user/[a-z0-9_.-]{1,32}/(?:[a-z0-9-]{1,30}/)?"
_TOKEN = "[A-Za-z0-9_-]{1,200}"


def _forms(user: str, server: str, settings: Settings) -> dict[str, str]:
    """The expression that the value of each has to match."""
    prefix = f"/user/{user}/{f'{server}/' if server else ''}"
    # The hub and its sessions may have names of their own below that of the portal.
    origin = _origin(settings, "public_url", "https", r"(?:[a-z0-9_-]{1,63}\.){0,3}")
    api = f"{_origin(settings, 'hub_connect_url', 'https?')}/hub/api"
    scopes = re.escape(json.dumps([f"access:servers!server={user}/{server}", f"access:servers!user={user}"]))
    return {
        "JUPYTERHUB_API_TOKEN": _TOKEN,
        "JPY_API_TOKEN": _TOKEN,
        "JUPYTERHUB_CLIENT_ID": re.escape(f"jupyterhub-user-{user}{f'-{server}' if server else ''}"),
        "JUPYTERHUB_COOKIE_OPTIONS": r'\{[A-Za-z0-9_": ,-]{0,200}\}',
        "JUPYTERHUB_COOKIE_HOST_PREFIX_ENABLED": "[01]",
        "JUPYTERHUB_HOST": f"(?:{origin})?",
        "JUPYTERHUB_OAUTH_CALLBACK_URL": f"(?:{origin})?{re.escape(prefix)}oauth_callback",
        "JUPYTERHUB_OAUTH_SCOPES": scopes,
        "JUPYTERHUB_OAUTH_ACCESS_SCOPES": scopes,
        "JUPYTERHUB_OAUTH_CLIENT_ALLOWED_SCOPES": r"\[\]",
        "JUPYTERHUB_USER": re.escape(user),
        "JUPYTERHUB_SERVER_NAME": re.escape(server),
        "JUPYTERHUB_API_URL": api,
        "JUPYTERHUB_ACTIVITY_URL": f"{api}/users/{re.escape(user)}/activity",
        "JUPYTERHUB_BASE_URL": "/",
        # Where it answers, and no more: what leads there is the proxy's.
        "JUPYTERHUB_SERVICE_PREFIX": _PREFIX,
        "JUPYTERHUB_SERVICE_URL": rf"https?://(?:0\.0\.0\.0|\[::\]):[0-9]{{1,5}}{_PREFIX}",
        "JUPYTERHUB_PUBLIC_URL": f"(?:{origin}{re.escape(prefix)})?",
        "JUPYTERHUB_PUBLIC_HUB_URL": f"(?:{origin}/hub/)?",
        "JUPYTERHUB_DEFAULT_URL": "/[a-z]{0,20}",
    }


def _origin(settings: Settings, name: str, scheme: str, below: str = "") -> str:
    """What begins the URLs of a place of the settings; nothing does where they do not tell it."""
    place = urlsplit(str(settings.hub.get(name, ""))).netloc
    return f"{scheme}://{below}{re.escape(place)}" if place else "(?!)"


NAMES = frozenset(_forms("", "", Settings()))


def checked(given: Mapping[str, str], user: str, server: str, settings: Settings) -> Mapping[str, str]:
    """The variables, as they were given. Raises Refused."""
    forms = _forms(user, server, settings)
    for name, value in given.items():
        if name not in forms or not re.fullmatch(forms[name], value, re.ASCII):
            shown = "" if forms.get(name) == _TOKEN else f" {one_line(repr(value), 120)}"
            raise Refused(
                f"a session gets no {one_line(name, 80)}{shown}",
                "the operators run `gpuops up --tags portal`: hub and program differ",
                code="invalid_session",
                subject=name,
            )
    return given
