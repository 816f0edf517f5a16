# SPDX-License-Identifier: GPL-3.0-or-later
"""A job that is submitted as holders are proves that Slurm starts them, or tells why it does not."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import fence_test


class Slurm:
    """A slurmctld whose word for why the job waits is the next of `words`; the last stays. None: it has started."""

    def __init__(self, *words: str | None) -> None:
        self.words, self.now, self.ended = list(words), 0.0, []
        self.refuses = ""

    def probe(self) -> int:
        if self.refuses:
            raise CallFailed(self.refuses)
        return 7

    def waits(self, job: int) -> str | None:
        assert job == 7
        return self.words.pop(0) if len(self.words) > 1 else self.words[0]

    def cancel(self, jobs: list[int]) -> None:
        self.ended += jobs

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def prove(slurm: Slurm) -> dict[str, Any]:
    return fence_test.prove(slurm, 30.0, lambda: slurm.now, slurm.sleep)  # type: ignore[arg-type]


@pytest.mark.parametrize("words", [(None,), ("None", "Priority", None), ("QOSMaxWallDurationPerJobLimit", None)])
def test_a_job_that_starts_is_the_proof_and_is_not_left(words: tuple[str | None, ...]) -> None:
    slurm = Slurm(*words)
    assert prove(slurm)["proven"] is True
    assert slurm.ended == [7]


@pytest.mark.parametrize("reason", ["QOSMaxWallDurationPerJobLimit", "AssocGrpGRES", "InvalidAccount", "PartitionDown"])
def test_a_job_that_waits_for_a_limit_stops_the_run_with_slurms_reason(reason: str) -> None:
    slurm = Slurm("None", reason)
    with pytest.raises(Refused) as refused:
        prove(slurm)
    assert (refused.value.problem.code, refused.value.problem.evidence) == ("no_fence", reason)
    assert "sacctmgr show qos gpuops" in refused.value.problem.remedy
    assert slurm.ended == [7]
    assert slurm.now < 10


def test_a_job_that_is_refused_stops_the_run_with_what_sbatch_said() -> None:
    slurm = Slurm(None)
    slurm.refuses = "sbatch: error: Batch job submission failed: Invalid qos specification"
    with pytest.raises(Refused) as refused:
        prove(slurm)
    assert "Invalid qos specification" in refused.value.problem.evidence


@pytest.mark.parametrize(("reason", "at_most_s"), [("Resources", 10), ("None", 31)])
def test_where_no_gpu_is_free_nothing_is_proven_and_nothing_is_wrong(reason: str, at_most_s: float) -> None:
    slurm = Slurm(reason)
    told = prove(slurm)
    assert told["proven"] is False
    assert reason in told["why"]
    assert slurm.now <= at_most_s
    assert slurm.ended == [7]
