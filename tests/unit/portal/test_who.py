# SPDX-License-Identifier: GPL-3.0-or-later
"""Who uses what: one question for all, and what the page is given."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import slurm_backend
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.form import Limits, Request
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import cluster
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Slurm
from baremetal_gpu_portal import form_page, gpus, who
from baremetal_gpu_portal.offers import Offer
from tests.unit.plugins.slurm_answers import GUARD, JOBS, STUCK, Answers

MARKUP = '"><img src=x onerror=alert(1)>'


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_all_who_ask_within_a_second_share_one_question() -> None:
    asked, clock = [], Clock()
    watch = who.Watch(lambda: (asked.append(1) or {"nodes": [], "jobs": []}, {}), clock)
    threads = [threading.Thread(target=watch.look) for _number in range(20)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(asked) == 1
    clock.now += 1.1
    watch.look()
    assert len(asked) == 2
    # A clock that was set back keeps nothing.
    clock.now -= 500
    watch.look()
    assert len(asked) == 3


def test_a_scheduler_that_does_not_answer_leaves_what_was_known() -> None:
    clock, answers = Clock(), [{"nodes": [{"name": "n"}], "jobs": []}]

    def read() -> tuple[dict[str, Any], dict[Any, Any]]:
        if answers:
            return answers.pop(), {}
        raise CallFailed("squeue: connect failure", "see scontrol ping")

    watch = who.Watch(read, clock)
    watch.look()
    clock.now += 5
    last = watch.look()
    assert (last.at, last.found["nodes"]) == (1000.0, [{"name": "n"}])
    assert "connect failure" in last.failure


def test_the_page_has_each_lease_with_its_user_and_since_when() -> None:
    found = cluster.read(Slurm(Answers(JOBS)))
    page = who.page(who.Look(1000.0, slurm_backend.document(found), {}, ""))
    running = [
        job
        for job in found["jobs"]
        if not job["waits"] and not job["holder"] and any(n["minors"] for n in job["nodes"])
    ]
    leases = [
        (node["name"], one["user"], one["since"], one["gpus"]) for node in page["nodes"] for one in node["leases"]
    ]
    assert sorted(leases) == sorted(
        (node["name"], job["user"], job["started"], len(node["minors"])) for job in running for node in job["nodes"]
    )
    assert leases
    assert [one["model"] for one in page["models"]] == ["a100"]
    assert next(node for node in page["nodes"] if node["name"] == "gpu2")["problem"]


def test_a_holder_is_a_gpu_out_of_service_and_no_job_of_anybodys() -> None:
    answers = Answers([*JOBS, STUCK])
    found = slurm_backend.document(cluster.read(Slurm(answers)))
    page = who.page(who.Look(1000.0, found, {}, ""))
    assert "slurm" not in [row["user"] for row in page["waiting"]]
    gpu1 = page["nodes"][0]
    assert (gpu1["free"], gpu1["held"], gpu1["gpus"]) == (1, 1, 2)
    assert "slurm" not in [one["user"] for one in gpu1["leases"]]
    assert [one for one in gpu1["tiles"] if one.get("held")] == [{"held": True}]
    # It stands before no session either.
    assert [job["in_line"] for job in found["jobs"] if job["holder"]] == [False, False]


def test_a_node_that_the_reconciler_has_closed_has_no_free_gpu_and_says_why() -> None:
    answers = Answers(JOBS)
    answers.reservations = GUARD
    page = who.page(who.Look(1000.0, slurm_backend.document(cluster.read(Slurm(answers))), {}, ""))
    assert page["nodes"][0]["free"] == 0
    assert "bad GPU" in page["nodes"][0]["problem"]
    assert page["models"][0]["free"] == 0


def metric(name: str, value: float, **labels: str) -> dict[str, Any]:
    gpu = {"host": "gpu1", "uuid": "GPU-1", "pci_address": "0000:01:00.0"}
    return {"metric": {"__name__": name, **gpu, **labels}, "value": [1000.0, str(value)]}


def prometheus(*rows: dict[str, Any]) -> gpus.Gpus:
    return gpus.read(json.dumps({"status": "success", "data": {"result": rows}}).encode())


def test_each_gpu_is_a_tile_with_what_it_does_and_who_has_it() -> None:
    known = prometheus(
        metric("gpu_info", 1, minor="0", model="NVIDIA A100"),
        metric("gpu_utilization_ratio", 0.87),
        metric("gpu_memory_bytes", 1 << 30, state="used"),
        metric("gpu_memory_bytes", 3 << 30, state="free"),
        metric("gpu_temperature_celsius", 63),
        metric("gpu_health_status", 2),
        metric("gpu_health_reason", 2, code="xid_79"),
        metric("gpu_health_status", 0, pci_address="0000:02:00.0", uuid="GPU-2"),
        metric("gpu_info", 1, pci_address="0000:02:00.0", uuid="GPU-2", minor="1", model="NVIDIA A100"),
    )
    job = {
        "id": "7",
        "user": "alice",
        "started": 10.0,
        "ends": 20.0,
        "waits": False,
        "holder": False,
        "nodes": [{"name": "gpu1", "minors": [0]}],
    }
    first, second = who._tiles({"name": "gpu1", "gpus": 2}, [job], known["gpu1"])
    assert first == {
        "minor": 0,
        "uuid": "GPU-1",
        "model": "NVIDIA A100",
        "use": 0.87,
        "celsius": 63.0,
        "verdict": "fatal",
        "used": float(1 << 30),
        "total": float(4 << 30),
        "reasons": ["xid_79"],
        "user": "alice",
        "job": "7",
        "since": 10.0,
        "until": 20.0,
    }
    assert (second["verdict"], second.get("user")) == ("ok", None)


FATAL = (metric("gpu_info", 1, minor="0"), metric("gpu_health_status", 2))
WELL = (metric("gpu_info", 1, minor="0"), metric("gpu_health_status", 0))
ABOUT_HOST = {"metric": {"__name__": "gpu_health_reason", "host": "gpu1", "code": "nvml_failed"}, "value": [1, "2"]}


@pytest.mark.parametrize(
    ("measured", "node", "told"),
    [
        (FATAL, {}, True),
        ((*WELL, ABOUT_HOST), {}, True),
        (WELL, {}, False),
        (FATAL, {"fenced": [0]}, False),
        (FATAL, {"drained": True}, False),
        (FATAL, {"takes_jobs": False}, False),
    ],
)
def test_a_fatal_gpu_that_slurm_still_gives_to_jobs_is_told(
    measured: tuple[dict[str, Any], ...], node: dict[str, Any], told: bool
) -> None:
    found = cluster.read(Slurm(Answers(JOBS)))
    gpu1 = next(row for row in found["nodes"] if row["name"] == "gpu1")
    gpu1.update({"fenced": []}, **node)
    page = who.page(who.Look(1000.0, slurm_backend.document(found), {}, ""), "", prometheus(*measured))
    assert [one.get("minor") for row in page["nodes"] for one in row["tiles"] if one.get("unfenced")] == [0] * told


def test_a_fatal_verdict_on_a_host_is_one_on_each_of_its_gpus() -> None:
    of_other = {**ABOUT_HOST, "metric": {**ABOUT_HOST["metric"], "host": "gpu2"}}
    slight = {**ABOUT_HOST, "value": [1, "1"]}
    gpu = prometheus(*WELL, metric("gpu_health_reason", 1, code="pcie_width"), ABOUT_HOST)["gpu1"][0]
    assert (gpu["verdict"], gpu["reasons"]) == ("fatal", ["pcie_width", "nvml_failed"])
    assert prometheus(*WELL, of_other, slight)["gpu1"][0]["verdict"] == "ok"


def test_without_prometheus_each_gpu_is_a_tile_all_the_same() -> None:
    page = who.page(who.Look(1000.0, slurm_backend.document(cluster.read(Slurm(Answers(JOBS)))), {}, ""))
    for node in page["nodes"]:
        assert len(node["tiles"]) >= node["gpus"]
    users = {one["user"] for node in page["nodes"] for one in node["tiles"] if one.get("user")}
    assert users == {one["user"] for node in page["nodes"] for one in node["leases"]}


def test_what_is_no_answer_of_prometheus_tells_nothing() -> None:
    assert gpus.read(b"<html>") == {}
    assert gpus.read(b'{"data": {"result": [{"metric": {}, "value": 1}]}}') == {}
    assert prometheus(metric("gpu_info", float("nan"))) == {}
    assert gpus.ask("http://127.0.0.1:1") == {}


def test_the_form_escapes_whatever_it_is_given() -> None:
    request = Request(1, MARKUP, 1, 1, 1, MARKUP)
    page = form_page.options(
        *(request, Limits(), [Offer(MARKUP, 1, 2, 1, 2)], [MARKUP], MARKUP, MARKUP, MARKUP),
        presets=[(MARKUP, request)],
        problems=[Problem("x", "cpus", MARKUP, "", MARKUP)],
        yours=[f"{MARKUP}2"],
    )
    assert MARKUP not in page
    assert "<img" not in page


def test_what_is_wrong_stands_beside_its_field_and_details_are_open() -> None:
    wrong = [Problem("out_of_bounds", "cpus", "Cores is '99'", "", "give a whole number from 1 to 8")]
    one = ("One GPU", Request(1))
    page = form_page.options(Request(1), Limits(), [], ["default"], "/url", presets=[one], problems=wrong)
    assert 'aria-invalid="true"' in page
    assert re.search(r'id="portal-cpus-error"[^>]*>Cores is &#39;99&#39;. To do: give a whole number', page)
    assert '<details class="mb-3" id="portal-details" open>' in page
    assert "open>" not in form_page.options(Request(1), Limits(), [], ["default"], "/url", presets=[one])


def test_many_environments_can_be_searched_and_own_ones_are_in_the_list() -> None:
    def page(count: int) -> str:
        names = [f"e{number}" for number in range(count)]
        return form_page.options(Request(), Limits(), [], names, "/url", yours=["~/envs/torch"])

    assert 'id="portal-search"' in page(9)
    assert 'id="portal-search"' not in page(2)
    assert '<optgroup label="Yours"><option value="~/envs/torch">' in page(2)


def test_the_form_offers_no_directory_where_sessions_have_none() -> None:
    def label(directories: bool) -> str:
        return form_page.options(Request(), Limits(), [], ["torch"], "/url", directories=directories)

    assert "~/envs/torch" in label(True)
    assert "~/envs/torch" not in label(False)


def test_how_a_session_ended_is_a_sentence_with_what_to_do() -> None:
    assert form_page.ended({}) == ""
    told = form_page.ended({"at": 0.0, "cause": "its time was over", "remedy": "start it again"})
    assert told.endswith(": its time was over. To do: start it again.")
