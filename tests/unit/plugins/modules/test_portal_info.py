# SPDX-License-Identifier: GPL-3.0-or-later
"""What portal_info returns of a portal that is there and of one that is not."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring import portal
from ansible_collections.baremetal.gpu.plugins.modules import portal_info
from tests.unit.plugins.module_utils.monitoring.test_portal import TOLD, of_hub
from tests.unit.plugins.module_utils.portal.tls_site import serving


def returned(capsys: pytest.CaptureFixture[str], **options: Any) -> dict[str, Any]:
    with patch_module_args(options), pytest.raises(SystemExit):
        portal_info.main()
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_hub_that_answers_and_a_proxy_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "told.json").write_text(json.dumps({**TOLD, "at": time.time()}))
    monkeypatch.setattr(portal, "TOLD", str(tmp_path / "told.json"))
    (tmp_path / "tls").mkdir()
    site = of_hub(tmp_path / "tls")
    with serving(site.pair("hub"), clients_of=site.authority) as hub:
        found = returned(capsys, hub_port=hub.server_port, port=1)
    assert (found["changed"], found["hub"], found["proxy"]) == (False, True, False)
    assert found["sessions"] == {"run": 3, "wait": 1}
    assert [row["code"] for row in found["problems"]] == ["proxy_down"]


def test_where_nothing_of_it_is_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(portal, "TOLD", str(tmp_path / "told.json"))
    found = returned(capsys, hub_port=1, port=1)
    assert (found["hub"], found["proxy"], found["sessions"]) == (False, False, None)
    assert "failed" not in found
