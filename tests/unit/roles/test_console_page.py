# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of GPUs that Prometheus serves: what is in its file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess

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


@pytest.mark.skipif(not shutil.which("node"), reason="there is no node to run the page's script")
def test_a_gpu_that_is_fatal_or_of_which_nobody_knows_is_neither_free_nor_idle() -> None:
    names = ("isUsable", "isIdle", "isFree")
    functions = "".join(
        one for name in names for one in re.findall(rf"^const {name} = .*?;$", part("script"), re.DOTALL | re.MULTILINE)
    )
    no_leases: list[dict[str, str]] = []
    cases: list[tuple[dict[str, object], dict[str, object]]] = [
        ({"verdict": verdict, "use": 0, "leases": leases}, {"closed": "", "trouble": "", "reasons": reasons})
        for verdict in ("ok", "degraded", "fatal", "unknown")
        for reasons in ([], [{"verdict": "fatal"}])
        for leases in (no_leases, [{}])
    ]
    script = (
        f"const some = value => value !== undefined;{functions}"
        f"console.log(JSON.stringify({json.dumps(cases)}.map(([gpu, node]) => "
        "{ gpu.node = node; return [isFree(gpu), isIdle(gpu)]; })))"
    )
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    for (gpu, node), found in zip(cases, told, strict=True):
        usable = gpu["verdict"] in ("ok", "degraded") and not node["reasons"]
        assert found == [usable and not gpu["leases"], usable and bool(gpu["leases"])], (gpu, node)
