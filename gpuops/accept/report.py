# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of an acceptance: JSON with a schema, JUnit, one HTML file, and a signature by which it is known."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils import untrusted_document
from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept import item
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress.text import Line
from gpuops import pages
from gpuops.accept.record import Acceptance
from gpuops.run.table import table as columns

VERSION = 1
SCHEMA_FILE = Path(__file__).with_name("accept.schema.json")
# What ssh-keygen signs it as, so that the signature is of no use for anything else.
NAMESPACE = "gpuops-accept"
SIGNS = {item.PASS: "✓", item.FAIL: "✗", item.NOT_APPLICABLE: "-", item.NOT_TESTABLE: "?"}
WORDS = {
    item.PASS: "pass",
    item.FAIL: "fail",
    item.NOT_APPLICABLE: "not applicable",
    item.NOT_TESTABLE: "not testable here",
}


class SigningFailed(Exception):
    """The report could not be signed; the text says why."""


def document(acceptance: Acceptance, items: Sequence[item.Item], site: str) -> dict[str, Any]:
    """What the report says. Accepted is what has no item that fails, and at least one that passes."""
    counted = item.counts(list(items))
    found: dict[str, Any] = untrusted_document.cleaned(
        {
            "version": VERSION,
            "site": site,
            "started": acceptance.started,
            "ended": acceptance.ended,
            "limit": acceptance.limit,
            "stages": acceptance.stages,
            "minutes": acceptance.minutes,
            "hosts": sorted({*acceptance.hosts, *(one.host for one in items)}),
            "accepted": counted[item.PASS] > 0 and counted[item.FAIL] == 0,
            "counts": counted,
            "items": [one.as_dict() for one in items],
        }
    )
    return found


def moment(seconds: float | None) -> str:
    return pages.moment(seconds) if seconds else "not ended"


def html(report: Mapping[str, Any]) -> str:
    environment = pages.templates(Path(__file__).parent)
    environment.filters.update(moment=moment)
    bad = [one for one in report["items"] if one["outcome"] == item.FAIL]
    hosts = {
        host: [one for one in report["items"] if one["host"] == host and one["outcome"] != item.FAIL]
        for host in report["hosts"]
    }
    return environment.get_template("accept.html.j2").render(
        report=report, bad=bad, hosts=hosts, signs=SIGNS, words=WORDS
    )


def junit(report: Mapping[str, Any]) -> str:
    """A suite for each host, a case for each item."""
    name = untrusted_text.one_line(f"gpuops accept of {report['site']}", 2000)
    root = ElementTree.Element("testsuites", name=name)
    for host in report["hosts"]:
        suite = ElementTree.SubElement(root, "testsuite", name=untrusted_text.one_line(host, 2000))
        for one in report["items"]:
            if one["host"] != host:
                continue
            title = untrusted_text.one_line(f"{one['id']} {one['subject']}".strip(), 2000)
            case = ElementTree.SubElement(suite, "testcase", classname=suite.get("name", ""), name=title)
            text = f"{one['evidence']}. Remedy: {one['remedy']}" if one["remedy"] else one["evidence"]
            if one["outcome"] == item.FAIL:
                row = ElementTree.SubElement(case, "failure", message=untrusted_text.one_line(one["evidence"], 2000))
                row.text = untrusted_text.several_lines(text)
            elif one["outcome"] != item.PASS:
                why = untrusted_text.one_line(f"{WORDS[one['outcome']]}: {one['evidence']}", 2000)
                ElementTree.SubElement(case, "skipped", message=why)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def table(report: Mapping[str, Any], width: int, most: int = 40) -> list[Line]:
    """Hosts and stages, and what came of each host at each stage; of many hosts those where something fails."""
    cells: dict[tuple[str, str], Counter[str]] = {}
    for one in report["items"]:
        cells.setdefault((one["host"], one["stage"]), Counter())[one["outcome"]] += 1
    bad = {host for (host, _stage), counted in cells.items() if counted[item.FAIL]}
    hosts = report["hosts"] if len(report["hosts"]) <= most else [host for host in report["hosts"] if host in bad]
    head = ("HOST", *report["stages"])
    rows = [(host, *(_cell(cells.get((host, stage), Counter())) for stage in report["stages"])) for host in hosts]
    return columns(head, rows[:most], width, indent="", last=0) if rows else []


def _cell(counted: Counter[str]) -> str:
    """What a host came to at a stage: what fails, else what passes, else why neither."""
    if counted[item.FAIL]:
        return f"{counted[item.FAIL]} fail"
    if counted[item.PASS]:
        return "pass"
    return "not tested" if counted[item.NOT_TESTABLE] else "-"


def lines(report: Mapping[str, Any], most: int = 50) -> list[str]:
    """What a person reads on the screen: what fails, and how many items there are of each outcome."""
    bad = [one for one in report["items"] if one["outcome"] == item.FAIL]
    told = [
        untrusted_text.one_line(
            " ".join(part for part in (one["host"], one["subject"], f"{one['id']}: {one['evidence']}") if part)
            + (f". Remedy: {one['remedy']}" if one["remedy"] else ""),
            2000,
        )
        for one in bad[:most]
    ]
    if len(bad) > most:
        told.append(f"and {len(bad) - most} more")
    counts = ", ".join(f"{number} {WORDS[outcome]}" for outcome, number in report["counts"].items())
    return [*told, f"{'Accepted' if report['accepted'] else 'Not accepted'}: {counts}"]


def write(report: Mapping[str, Any], output: Path) -> list[Path]:
    """The three files beside each other. Raises OSError."""
    output.parent.mkdir(parents=True, exist_ok=True)
    files = {
        output: html(report),
        output.with_suffix(".json"): json.dumps(report, indent=1) + "\n",
        output.with_suffix(".xml"): junit(report),
    }
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return list(files)


def sign(path: Path, key: Path) -> Path:
    """Signs a file with an SSH key; the file of the signature. Raises SigningFailed."""
    signature = path.with_name(f"{path.name}.sig")
    # ssh-keygen asks before it replaces one, and there may be nobody to answer.
    signature.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as failure:
        raise SigningFailed(f"ssh-keygen cannot be run: {failure.strerror}") from failure
    if done.returncode or not signature.exists():
        said = untrusted_text.one_line(" ".join(done.stderr.split()), 500)
        raise SigningFailed(f"{path} could not be signed with {key}: {said}")
    return signature
