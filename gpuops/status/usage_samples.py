# SPDX-License-Identifier: GPL-3.0-or-later
"""How long users' GPUs were used and unused, from the recording rules in a site's Prometheus.

Prometheus is asked for each day, with the records of each minute of it. So it does not matter how often it evaluates
the rules, and a long time makes no large query.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import (
    BYTES_AT_MOST,
    mapping,
    parse,
    rows,
    text,
)
from gpuops import web

STEP_S = 60
TIMEOUT_S = 60.0
# As the exporter cuts names.
LABEL_AT_MOST = 100
MEASURED, UNUSED = "user:gpu_lease_info:measured", "user:gpu_lease_info:unused"

# Beginning and end in Unix seconds, behind the name of the day.
Period = tuple[str, int, int]
Labels = tuple[str, str, str]


class NoSamples(Exception):
    """Prometheus was not asked, or has not answered; the text says why and what to do."""


@dataclass(frozen=True)
class Sample:
    """Seconds of GPUs of a user in an account, on a day.

    :ivar model: as NVML names it.
    :ivar measured_s: in which it is known whether they were used.
    :ivar unused_s: in which they were not.
    """

    user: str
    account: str
    model: str
    day: str
    measured_s: float
    unused_s: float


def check(url: str) -> str:
    """The URL without a slash at its end. Raises NoSamples."""
    try:
        parts = urllib.parse.urlsplit(url)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
    if not is_right or parts.query or parts.fragment:
        raise NoSamples("the URL of Prometheus must be like http://mon1:9090")
    if parts.username or parts.password:
        raise NoSamples("the URL of Prometheus must have no password in it; use a proxy or an SSH tunnel that logs in")
    return url.rstrip("/")


def ask(url: str, periods: Iterable[Period]) -> list[Sample]:
    """The samples of each day. Raises NoSamples."""
    found = []
    for day, begin, end in periods:
        unused = dict(_seconds(url, UNUSED, begin, end))
        found += [
            Sample(*labels, day, seconds, min(unused.get(labels, 0.0), seconds))
            for labels, seconds in _seconds(url, MEASURED, begin, end)
        ]
    return found


def query(record: str, seconds: int) -> str:
    """PromQL for the GPU seconds of a record, by user, account and model."""
    over = f'sum_over_time({record}{{scheduler="slurm"}}[{seconds}s:{STEP_S}s])'
    return f"sum by (user, account, model) ({over}) * {STEP_S}"


def _seconds(url: str, record: str, begin: int, end: int) -> Iterator[tuple[Labels, float]]:
    # A subquery has a point at each whole minute. That at the end belongs to the next day.
    words = urllib.parse.urlencode({"query": query(record, end - begin), "time": f"{end - 0.001:.3f}"})
    for row in result(f"{url}/api/v1/query?{words}"):
        labels = mapping(row.get("metric"))
        user, account, model = (text(labels.get(name), LABEL_AT_MOST) for name in ("user", "account", "model"))
        value = row.get("value")
        try:
            seconds = float(value[1]) if isinstance(value, list) else -1.0
        except (IndexError, TypeError, ValueError):
            seconds = -1.0
        # No GPU counts more than once in a minute; NaN is no number of seconds either.
        if 0 < seconds < 1e12:
            yield (user, account, model), seconds


def result(url: str) -> list[dict[str, object]]:
    """The rows of a query. Raises NoSamples."""
    try:
        with web.opener().open(url, timeout=TIMEOUT_S) as answer:
            content = answer.read(BYTES_AT_MOST + 1)
    except urllib.error.HTTPError as error:
        raise NoSamples(f"Prometheus refuses the query: {_why(error)}") from error
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        raise NoSamples(f"Prometheus does not answer: {untrusted_text.one_line(error, 200)}") from error
    try:
        document = mapping(parse(content))
    except ValueError as error:
        raise NoSamples(f"what answers is not Prometheus: {untrusted_text.one_line(error, 200)}") from error
    data = mapping(document.get("data"))
    if document.get("status") != "success" or data.get("resultType") != "vector":
        raise NoSamples("what answers is not Prometheus")
    return rows(data.get("result"))


def _why(error: urllib.error.HTTPError) -> str:
    with error:
        try:
            told = text(mapping(parse(error.read(100_000))).get("error"), 300)
        except (OSError, ValueError):
            told = ""
    return f"{error.code}{f' {told}' if told else ''}"
