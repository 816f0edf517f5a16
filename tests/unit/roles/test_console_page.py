# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of GPUs that Prometheus serves: what is in its file."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.metrics import METRICS as SLURM_METRICS
from tests.unit.plugins.plugin_utils.monitoring.test_rules import KNOWN
from tests.unit.project.tree import ROOT

PAGE = (ROOT / "roles" / "prometheus" / "files" / "gpu.html").read_text(encoding="utf-8")


def part(tag: str) -> str:
    (found,) = re.findall(rf"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
    return str(found)


@pytest.mark.parametrize("tag", ["script", "style"])
def test_its_policy_lets_in_its_own_script_and_style_alone(tag: str) -> None:
    digest = base64.b64encode(hashlib.sha256(part(tag).encode()).digest()).decode()
    assert f"{tag}-src 'sha256-{digest}'" in PAGE, f"write this hash into the policy: sha256-{digest}"
    assert "unsafe" not in PAGE


def test_prometheus_reads_no_template_in_it_and_takes_nothing_out() -> None:
    assert "{{" not in PAGE
    for tag in ("script", "style"):
        assert not re.findall(r"/\*|<!--|^\s*//|\s// |`", part(tag), re.MULTILINE), f"a comment or backquotes: {tag}"


def test_it_loads_nothing_from_elsewhere() -> None:
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:,)[^"']*""", PAGE)
    assert set(re.findall(r"https?://[^\s\"]*", PAGE)) == {"http://www.w3.org/2000/svg"}


def test_no_value_becomes_markup() -> None:
    ways = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "DOMParser")
    assert not [way for way in ways if way in PAGE]


def test_it_asks_for_metrics_that_somebody_gives() -> None:
    asked = set(re.findall(r"\b(?:gpu|slurm|cephfs)_[a-z_]*[a-z]\b", part("script")))
    assert {"gpu_health_status", "gpu_lease_info", "slurm_node_available"} <= asked
    assert not asked - KNOWN - set(SLURM_METRICS)
