# SPDX-License-Identifier: GPL-3.0-or-later
"""A report as JUnit XML, which every CI server shows: a suite for each host, a case for each stage and GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import OK
from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from gpuops.status.document import NO_GPU, PARTS


def _case(
    suite: ElementTree.Element, name: str, problem: str = "", kind: str = "failure", seconds: float = 0.0
) -> None:
    case = _part(suite, "testcase", classname=suite.get("name", ""), name=name, time=f"{seconds:.1f}")
    if kind == "skipped":
        ElementTree.SubElement(case, "skipped")
    elif problem.strip():
        row = _part(case, kind, message=problem.strip().splitlines()[0])
        row.text = untrusted_text.several_lines(problem)


def _part(parent: ElementTree.Element, kind: str, **attributes: Any) -> ElementTree.Element:
    """An element with attributes of one line each, of signs that XML can hold."""
    return ElementTree.SubElement(
        parent, kind, {key: untrusted_text.one_line(value, 2000) for key, value in attributes.items()}
    )


def _suite(root: ElementTree.Element, name: str) -> ElementTree.Element:
    return _part(root, "testsuite", name=name)


def _reasons(row: Mapping[str, Any]) -> str:
    return "\n".join(f"{reason['text'] or reason['code']}. Remedy: {reason['remedy']}" for reason in row["reasons"])


def _problem(row: Mapping[str, Any]) -> str:
    problem = row.get("problem")
    return _text(problem) if problem else ""


def _text(problem: Mapping[str, str]) -> str:
    return f"{problem['cause']}. Remedy: {problem['remedy']}" if problem["remedy"] else problem["cause"]


def junit(report: Mapping[str, Any]) -> str:
    """The text of the file."""
    root = ElementTree.Element("testsuites", name=untrusted_text.one_line(f"gpuops report of {report['site']}"))
    run = report["run"] or {}
    failures = {(row["host"], row["stage"]): row for row in run.get("failures") or []}
    for host in report["hosts"]:
        suite = _suite(root, host["name"])
        for stage, state in host["stages"].items():
            row = failures.get((host["name"], stage))
            why = "\n".join(f"{item['cause']}. Remedy: {item['remedy']}" for item in (row or {}).get("reasons") or [])
            bad = state in ("failed", "unreachable")
            span = (run.get("spans") or {}).get(host["name"], {}).get(stage, [0, 0])
            kind = "skipped" if state == "skipped" else "failure"
            _case(suite, f"stage {stage}", (why or state) if bad else "", kind, span[1] - span[0])
        bad = host["state"] not in (OK, NO_GPU)
        why = _problem(host) or _reasons(host) or ("" if any(gpu["reasons"] for gpu in host["gpus"]) else host["state"])
        _case(suite, "host", why if bad else "")
        for gpu in host["gpus"]:
            name = f"GPU {gpu['index'] if gpu['index'] is not None else gpu['address'] or gpu['uuid']}"
            _case(suite, f"{name} healthy", _reasons(gpu) or (gpu["verdict"] if gpu["verdict"] != OK else ""))
            proof = gpu["verification"]
            if proof:
                _case(suite, f"{name} computes", "" if proof["ok"] else "the GPU did not pass its verification")
    for name in PARTS:
        part = report[name]
        if part is not None:
            listed = [*part.get("checks", []), *map(_text, part.get("problems", []))]
            why = _problem(part) or "\n".join(listed) or part["state"]
            _case(_suite(root, name), name, "" if part["state"] == OK else why)
    for suite in root:
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(len(suite.findall("testcase/failure"))))
        suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
