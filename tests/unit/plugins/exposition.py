# SPDX-License-Identifier: GPL-3.0-or-later
"""A strict reader of Prometheus' text format, as https://prometheus.io/docs/instrumenting/exposition_formats has it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

METRIC = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"'
SAMPLE = re.compile(rf"({METRIC})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)")
ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass
class Family:
    """A metric with its series: {labels as sorted pairs: value}."""

    kind: str
    help: str
    series: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)

    def labels(self) -> set[str]:
        """The names of the labels of any of its series."""
        return {name for labels in self.series for name, _value in labels}


def _labels(text: str) -> tuple[tuple[str, str], ...]:
    pairs = re.findall(LABEL, text)
    assert len({name for name, _value in pairs}) == len(pairs), f"a label comes twice: {text}"
    return tuple(sorted((name, re.sub(r"\\.", lambda found: ESCAPED[found[0]], value)) for name, value in pairs))


def parse(text: str) -> dict[str, Family]:
    """The metrics of a text. A text that breaks a rule fails an assertion, which shows the line."""
    assert text.endswith("\n"), "the last line does not end"
    families: dict[str, Family] = {}
    current, told = "", ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _hash, _word, current, told = line.split(" ", 3)
            assert current not in families, f"comes twice, or in two places: {line}"
        elif line.startswith("# TYPE "):
            _hash, _word, name, kind = line.split(" ")
            assert name == current, f"no HELP before it: {line}"
            assert kind in ("gauge", "counter"), line
            families[name] = Family(kind, told)
        else:
            found = SAMPLE.fullmatch(line)
            assert found, f"no series: {line}"
            assert found[1] == current, f"not under its own HELP: {line}"
            assert current in families, f"no TYPE before it: {line}"
            labels = _labels(found[2] or "")
            assert labels not in families[current].series, f"comes twice: {line}"
            families[current].series[labels] = float(found[len(found.groups())])
    return families


def style_faults(families: dict[str, Family]) -> list[str]:
    """What Prometheus' conventions for names do not want, as `promtool check metrics` says."""
    faults = []
    for name, family in families.items():
        if (family.kind == "counter") != name.endswith("_total"):
            faults.append(f"{name}: a counter ends in _total, and nothing else does")
        if re.search(r"_(count|sum|bucket)$", name):
            faults.append(f"{name}: the suffix of a histogram or summary")
        faults += [f"{word}: camelCase" for word in (name, *family.labels()) if re.search("[a-z][A-Z]", word)]
    return faults
