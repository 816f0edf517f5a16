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
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.gpu import with_models
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
LABELS = ("user", "account", "model")


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


@dataclass(frozen=True)
class Lease:
    """Seconds of GPUs of a pod on a day; `model` is empty where it is not known."""

    user: str
    account: str
    model: str
    job: str
    day: str
    seconds: float


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


def ask(url: str, periods: Iterable[Period], scheduler: str = "slurm") -> list[Sample]:
    """The samples of each day. Raises NoSamples."""
    found = []
    for day, begin, end in periods:
        unused = dict(_seconds(url, query(UNUSED, end - begin, scheduler), end))
        for labels, seconds in _seconds(url, query(MEASURED, end - begin, scheduler), end):
            user, account, model = labels
            found.append(Sample(user, account, model, day, seconds, min(unused.get(labels, 0.0), seconds)))
    return found


def leases(url: str, periods: Iterable[Period], scheduler: str) -> list[Lease]:
    """Who had GPUs on each day, for a scheduler without accounting. Raises NoSamples."""
    by = "user, account, job_id"
    held = with_models(f'max by (host, minor, {by}) (gpu_lease_info{{scheduler="{scheduler}"}})')
    found = []
    for day, begin, end in periods:
        over = f"sum by ({by}, model) (sum_over_time(({held})[{end - begin}s:{STEP_S}s])) * {STEP_S}"
        found += [
            Lease(user, account, model, job, day, seconds)
            for (user, account, model, job), seconds in _seconds(url, over, end, (*LABELS, "job_id"))
        ]
    return found


def query(record: str, seconds: int, scheduler: str) -> str:
    """PromQL for the GPU seconds of a record, by user, account and model."""
    over = f'sum_over_time({record}{{scheduler="{scheduler}"}}[{seconds}s:{STEP_S}s])'
    return f"sum by (user, account, model) ({over}) * {STEP_S}"


def _seconds(
    url: str, query: str, end: int, names: tuple[str, ...] = LABELS
) -> Iterator[tuple[tuple[str, ...], float]]:
    # A subquery has a point at each whole minute. That at the end belongs to the next day.
    words = urllib.parse.urlencode({"query": query, "time": f"{end - 0.001:.3f}"})
    for row in result(f"{url}/api/v1/query?{words}"):
        labels = mapping(row.get("metric"))
        values = tuple(text(labels.get(name), LABEL_AT_MOST) for name in names)
        value = row.get("value")
        try:
            seconds = float(value[1]) if isinstance(value, list) else -1.0
        except (IndexError, TypeError, ValueError):
            seconds = -1.0
        # No GPU counts more than once in a minute; NaN is no number of seconds either.
        if 0 < seconds < 1e12:
            yield values, seconds


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
