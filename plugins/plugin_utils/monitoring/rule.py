# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shapes of a rule: an alert, a recording rule, and which alert hides which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# From the most to the least urgent; docs/alerts.md explains them.
SEVERITIES = ("page", "ticket", "info")
# The documentation that galaxy.yml names, as a page of which people follow a link.
PUBLISHED = "https://github.com/baremetal-gpu/baremetal.gpu/blob/main/docs"


@dataclass(frozen=True)
class Alert:
    """`expr` is PromQL. `summary`, `evidence` and `remedy` are templates of Prometheus; `meaning` is for the docs."""

    name: str
    expr: str
    severity: str
    meaning: str
    summary: str
    evidence: str
    remedy: str
    # How long `expr` must hold, as Prometheus writes durations; empty for at once.
    for_: str = ""

    @property
    def page(self) -> str:
        """Where docs/alerts.md explains it."""
        return f"alerts.html#{self.name.lower()}"

    def link(self, docs_url: str = "") -> str:
        """Where people read it: in the site's own docs, or in those of the collection."""
        own = f"{docs_url.rstrip('/')}/{self.page}"
        return own if docs_url else f"{PUBLISHED}/{self.page.replace('.html', '.md')}"

    def rule(self, docs_url: str = "") -> dict[str, Any]:
        """An entry of a rule group. `docs_url` is where the site has these docs; empty for those of the collection."""
        return {
            "alert": self.name,
            "expr": self.expr,
            **({"for": self.for_} if self.for_ else {}),
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "evidence": self.evidence,
                "remedy": self.remedy,
                "runbook_url": self.link(docs_url),
            },
        }


@dataclass(frozen=True)
class Record:
    """A recording rule, named LEVEL:METRIC:OPERATION."""

    name: str
    expr: str
    meaning: str

    def rule(self, docs_url: str = "") -> dict[str, Any]:
        """An entry of a rule group; recording rules link to nothing."""
        return {"record": self.name, "expr": self.expr}


@dataclass(frozen=True)
class Inhibition:
    """While `source` fires, Alertmanager tells nobody of `targets` with the same values of the labels `equal`."""

    source: str
    targets: tuple[str, ...]
    equal: tuple[str, ...]
    why: str

    def rule(self) -> dict[str, Any]:
        """An entry of Alertmanager's inhibit_rules."""
        return {
            "source_matchers": [f'alertname="{self.source}"'],
            "target_matchers": [f'alertname=~"{"|".join(self.targets)}"'],
            "equal": list(self.equal),
        }


def newest(selector: str, by: str) -> str:
    """For each value of the labels `by`, the series of `selector` that was told last, with the value 1.

    What labels are taken from in a join: Prometheus refuses the whole rule, for all hosts, if one value has two series,
    such as a GPU that a boot has given another number.
    """
    return f"(topk by ({by}) (1, timestamp({selector})) >= bool 0)"


def looked_up(query: str, labels: tuple[str, ...], show: str) -> str:
    """A template for the value of another query, printed with the verb `show` of Go; nothing where it has no value.

    `query` has a %q for each of the `labels` of the alert.
    """
    values = " ".join(f"$labels.{label}" for label in labels)
    return f"{{{{ with printf `{query}` {values} | query }}}}{{{{ . | first | value | printf `{show}` }}}}{{{{ end }}}}"
