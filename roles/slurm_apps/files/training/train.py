# SPDX-License-Identifier: GPL-3.0-or-later
"""Train a model on one process or many, and go on where the last checkpoint is.

Started by srun, once for each GPU; without Slurm it is one process. SIGTERM or SIGUSR1 makes it write a checkpoint and
end with 119, which tells Slurm to queue the job again.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

# RequeueExit in slurm.conf.
AGAIN = 119
# What the next attempt would meet again, as argparse has it.
REFUSED = 2
STOPS = (signal.SIGTERM, signal.SIGUSR1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits", help="digits, or a directory with train/CLASS and val/CLASS")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="samples of a step, on all processes together")
    parser.add_argument("--micro-batch", type=int, default=16, help="samples that a process computes at a time")
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--dropout", type=float, default=0.1, help="of the model for digits")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=100, help="steps between two checkpoints")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints that stay")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--outcome", type=Path, default=Path("training.json"), help="written at the end")
    parser.add_argument("--workers", type=int, default=0, help="processes that read data")
    parser.add_argument("--report", type=int, default=50, help="steps between two lines of output; 0 for none")
    given = parser.parse_args()
    if given.batch < 1 or not 1 <= given.micro_batch <= given.batch:
        parser.error(f"--micro-batch is {given.micro_batch}: give 1 to --batch, {given.batch}")
    for name in ("epochs", "every", "keep"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} is {getattr(given, name)}: give at least 1")
    job, again = os.environ.get("SLURM_JOB_ID", str(os.getpid())), os.environ.get("SLURM_RESTART_COUNT", "0")
    given.run = f"job {job}, start {again}"
    return given


def main() -> int:
    given = arguments()
    stopped = []
    # Before PyTorch is imported, which takes seconds.
    for number in STOPS:
        signal.signal(number, lambda *_words: stopped.append(True))
    import engine

    # One process says it for all: srun ends the others at once, whatever they still do. In pods each says it.
    tells = "ALL_TELL" in os.environ or os.environ.get("SLURM_PROCID", "0") == "0"
    again = AGAIN if tells else 0
    try:
        ended = engine.train(given, lambda: bool(stopped))
    except engine.Refused as why:
        print(why, file=sys.stderr)
        return REFUSED
    # A handler of Python's is gone before the process is.
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    return 0 if ended else again


if __name__ == "__main__":
    status = main()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Threads of PyTorch's can keep one that ends in order from its end, or abort it.
    os._exit(status)
