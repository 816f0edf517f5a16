# SPDX-License-Identifier: GPL-3.0-or-later
"""Which process computes on which samples in which step.

All of it follows from the seed and the number of the step. So a run continues at any step, with any number of
processes, and each sample still comes once in each epoch. A batch is divided into micro-batches, and those are dealt to
the processes in turn: fewer processes compute more of them each, and the sum of their gradients stays the same.
"""

from __future__ import annotations

import hashlib
import random


class Sampler:
    """The order of the samples.

    :param samples: how many there are.
    :param batch: how many make one step of the optimizer, on all processes together.
    :param micro_batch: how many a process computes at a time.
    """

    def __init__(self, samples: int, batch: int, micro_batch: int, seed: int) -> None:
        if samples < 1 or not 1 <= micro_batch <= batch:
            raise ValueError(f"{samples} samples, batches of {batch}, micro-batches of {micro_batch}")
        self.samples, self.batch_size, self.micro_batch, self.seed = samples, batch, micro_batch, seed
        self._epoch, self._order = -1, list[int]()

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.samples // self.batch_size)

    def epoch(self, step: int) -> int:
        return step // self.steps_per_epoch

    def batch(self, step: int) -> list[int]:
        """The samples of a step; the last one of an epoch may have fewer."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order = list(range(self.samples))
            random.Random(f"{self.seed} {epoch}").shuffle(self._order)
            self._epoch = epoch
        return self._order[place * self.batch_size : (place + 1) * self.batch_size]

    def share(self, step: int, rank: int, processes: int) -> list[tuple[int, list[int]]]:
        """The micro-batches of one process, each with its number in the step. It may have none."""
        batch = self.batch(step)
        micro = [batch[start : start + self.micro_batch] for start in range(0, len(batch), self.micro_batch)]
        return list(enumerate(micro))[rank::processes]


def seed_of(*parts: int) -> int:
    """A seed that follows from the numbers."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")
