# SPDX-License-Identifier: GPL-3.0-or-later
"""The training itself: processes that compute on shares of each batch, with checkpoints between steps."""

from __future__ import annotations

import contextlib
import copy
import datetime
import fcntl
import hashlib
import io
import json
import os
import random
import socket
import stat
import struct
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable

import data
import torch
import torch.distributed as dist
from checkpoints import Checkpoint, Store, Torn
from sampler import Sampler, seed_of
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Refused(Exception):
    """What no further attempt makes better."""


# What must be the same when a checkpoint is taken up again. Epochs may be added.
SETTINGS = ("data", "batch", "micro_batch", "rate", "momentum", "dropout", "seed")
# Of a step that a broken process has left, where the library does not notice by itself.
PATIENCE = datetime.timedelta(minutes=5)
SIOCGIFADDR = 0x8915
# Numbers that seeds are made of, beside those of the user, so that no two uses have the same.
OF_MODEL, OF_STEP, OF_SAMPLE = 1, 2, 3
# What has threads of PyTorch's stays until the process ends: to take it down is to wait for them, and they may wait for
# the interpreter meanwhile.
KEPT: list[Any] = []
# What the first process tells in the place of a step.
NO_CHECKPOINT, IS_REFUSED = -1, -2


class Sample(Dataset[Any]):
    """Samples by (epoch, index). What is random in one follows from both, whichever process reads it."""

    def __init__(self, samples: Any, seed: int) -> None:
        self.samples, self.seed = samples, seed

    def __getitem__(self, key: tuple[int, int]) -> Any:
        seed(self.seed, OF_SAMPLE, *key)
        return self.samples[key[1]]

    def __len__(self) -> int:
        return len(self.samples)


class Order:
    """The keys of the samples of this process, micro-batch by micro-batch."""

    def __init__(self, sampler: Sampler, steps: range, rank: int, processes: int) -> None:
        self.sampler, self.steps, self.rank, self.processes = sampler, steps, rank, processes

    def work(self, step: int) -> list[tuple[int, list[int], float]]:
        """Micro-batches with their weights. Who has none computes one without weight, because all processes add up
        their gradients together."""
        share = self.sampler.share(step, self.rank, self.processes)
        if not share:
            return [(0, self.sampler.batch(step)[:1], 0.0)]
        return [(number, indices, 1.0) for number, indices in share]

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for step in self.steps:
            for _number, indices, _weight in self.work(step):
                yield [(self.sampler.epoch(step), index) for index in indices]


def seed(*parts: int) -> None:
    told = seed_of(*parts)
    random.seed(told)
    torch.manual_seed(told)


def connect() -> tuple[int, int, torch.device]:
    """Meet the other processes: rank, number of processes, and the device of this one."""
    # Debian's PyTorch has no libuv.
    os.environ.setdefault("USE_LIBUV", "0")
    # Without it, products of matrices on a GPU are not the same each time.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    has_gpu = torch.cuda.is_available() and dist.is_nccl_available()
    device = torch.device("cuda", int(os.environ.get("SLURM_LOCALID", "0"))) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(int(os.environ.get("SLURM_CPUS_PER_TASK", "1")))
        other = os.environ.get("PEER_ADDR" if os.environ.get("SLURM_NODEID", "0") == "0" else "MASTER_ADDR")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface(other) if other else "lo")
    rank, processes = int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_NTASKS", "1"))
    # Whoever listened at a port could be taken for the first process, and whoever knows it could speak with that.
    store = dist.HashStore() if processes == 1 else dist.FileStore(str(meeting(os.environ)), processes)
    backend = "nccl" if has_gpu else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=processes, timeout=PATIENCE, store=store)
    return rank, processes, device


def meeting(environment: Mapping[str, str]) -> Path:
    """The file in which the processes tell each other their addresses. Raises Refused where others may write it."""
    path = Path(environment.get("MEETING", ""))
    if not path.is_absolute():
        raise Refused(f"MEETING is {str(path)!r}: give the path of a file in a directory of yours that all hosts share")
    try:
        found = path.parent.lstat()
    except OSError as why:
        raise Refused(f"{socket.gethostname()} has no {path.parent}, which all hosts must share: {why}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise Refused(f"{path.parent} is not a directory that you alone may open: remove it, and `mkdir -m 700` it")
    return path


def leave() -> None:
    """Part from the other processes. The group is not taken down, see KEPT."""
    dist.barrier()


def interface(host: str) -> str:
    """The network interface by which this host reaches another one; its own name may be that of the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        # Sends nothing.
        one.connect((host, 9))
        address = one.getsockname()[0]
        for _index, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                told = fcntl.ioctl(one.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(told[20:24]) == address:
                    return name
    raise OSError(f"{host} is reached from {address}, and no interface has that address")


def agree(value: float) -> float:
    """The sum over all processes."""
    told = torch.tensor(value, dtype=torch.float64, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(told)
    return float(told)


def first_tells(number: int) -> int:
    """A number of the first process, at all of them. Nothing but numbers goes over the network."""
    told = torch.tensor(number, dtype=torch.int64, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.broadcast(told, src=0)
    return int(told)


def resume(store: Store, settings: dict[str, Any], rank: int) -> Checkpoint | None:
    """The checkpoint at which all processes go on. The first process chooses it, and each reads it from the directory.

    :raises Refused: at all processes.
    """
    checkpoint, refusal, step = None, "", 0
    if rank == 0:
        store.claim()
        checkpoint, torn = store.newest()
        for why in torn:
            print(f"torn checkpoint, not used: {why}", flush=True)
        refusal = _refusal(store, settings, checkpoint, torn)
        step = IS_REFUSED if refusal else checkpoint.step if checkpoint else NO_CHECKPOINT
    step = first_tells(step)
    if step == IS_REFUSED:
        raise Refused(refusal or "the first process has refused")
    if rank and step != NO_CHECKPOINT:
        try:
            checkpoint = store.named(step)
        except (OSError, Torn) as why:
            raise Refused(
                f"{socket.gethostname()}: {store.directory.resolve()} has no checkpoint of step {step}, and must be "
                f"the same on all hosts: {why}"
            ) from None
    return checkpoint


def _refusal(store: Store, settings: dict[str, Any], checkpoint: Checkpoint | None, torn: list[str]) -> str:
    if not checkpoint:
        return f"no checkpoint in {store.directory} is whole: remove it to begin anew" if torn else ""
    before = checkpoint.settings
    changed = [f"{key} was {before.get(key)!r}, is {now!r}" for key, now in settings.items() if before.get(key) != now]
    if not changed:
        return ""
    return f"{checkpoint.path} has other settings: {', '.join(changed)}. Take another directory, or remove this one"


def train(given: Namespace, is_stopped: Callable[[], bool]) -> bool:
    """Whether it came to its end; False if it was stopped, and is to go on later."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    rank, processes, device = connect()
    seed(given.seed, OF_MODEL)
    train_set, test_set, plain = data.load(given.data, given.dropout)
    sampler = Sampler(len(train_set), given.batch, given.micro_batch, given.seed)
    settings = {**{key: getattr(given, key) for key in SETTINGS}, "samples": sampler.samples}
    store = Store(given.checkpoints, given.keep, given.run)
    checkpoint = resume(store, settings, rank)
    optimizer_state, start = None, 0
    if checkpoint:
        state = torch.load(checkpoint.path, map_location="cpu", weights_only=True)
        plain.load_state_dict(state["model"])
        optimizer_state, start = state["optimizer"], checkpoint.step
    # Before its parameters are the optimizer's.
    plain.to(device)
    optimizer = torch.optim.SGD(plain.parameters(), lr=given.rate, momentum=given.momentum)
    if optimizer_state:
        # Checkpoints of before had its settings, too.
        tensors = optimizer_state.get("state", optimizer_state)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": tensors})
    model = DistributedDataParallel(plain, device_ids=[device.index] if device.type == "cuda" else None)
    KEPT.append(model)
    steps = range(start, max(start, sampler.steps_per_epoch * given.epochs))
    say = print if rank == 0 else (lambda *_words, **_options: None)
    source = checkpoint.path if checkpoint else "no checkpoint"
    say(f"step {start} of {steps.stop}: begins on {processes} processes, from {source}", flush=True)

    def save(step: int) -> None:
        begun, state = time.monotonic(), io.BytesIO()
        # Into memory first: PyTorch does not tell of a full disk as others do.
        # PyTorch 1.13 of Debian 12 reads no other numbers than those of tensors; the settings come as arguments.
        torch.save({"model": plain.state_dict(), "optimizer": optimizer.state_dict()["state"]}, state)
        try:
            path = store.save(step, settings, lambda file: file.write(state.getbuffer()))
            say(f"step {step}: saved {path} in {time.monotonic() - begun:.2f} s", flush=True)
        except OSError as why:
            say(f"step {step}: not saved, {why}. To do: make room in {store.directory.resolve()}", flush=True)
            # The next one may find room, and until then the last one is there. The weights at the end are the outcome.
            if step == steps.stop:
                raise

    # Two, because what reads ahead is in another epoch at times.
    order, ahead = (Order(copy.copy(sampler), steps, rank, processes) for _number in range(2))
    samples: Any = Sample(train_set, given.seed)
    is_pinned = device.type == "cuda"
    batches = iter(DataLoader(samples, batch_sampler=ahead, num_workers=given.workers, pin_memory=is_pinned))
    model.train()
    for step in steps:
        size, work, loss = len(sampler.batch(step)), order.work(step), torch.zeros((), device=device)
        for place, (number, _indices, weight) in enumerate(work):
            inputs, labels = (one.to(device, non_blocking=True) for one in next(batches))
            seed(given.seed, OF_STEP, step, number)
            # Gradients of the processes are added up with the last one.
            with contextlib.nullcontext() if place + 1 == len(work) else model.no_sync():
                of_micro_batch = cross_entropy(model(inputs), labels, reduction="sum") * (weight / size)
                # DistributedDataParallel divides by the number of processes.
                (of_micro_batch * processes).backward()
            loss += of_micro_batch.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done = step + 1
        # All stop after the same step.
        stops = agree(float(is_stopped())) > 0
        if given.report and done % given.report == 0:
            told = agree(float(loss))
            say(f"step {done} of {steps.stop}: loss {told:.6f}", flush=True)
        if rank == 0 and (stops or done % given.every == 0 or done == steps.stop):
            save(done)
        if stops and done < steps.stop:
            leave()
            say(f"step {done}: stopped, to go on later", flush=True)
            return False
    outcome = {"steps": steps.stop, "processes": processes, **evaluate(plain, test_set, device, rank, processes)}
    if rank == 0:
        write_outcome(given.outcome, {**outcome, "weights": fingerprint(plain)})
        say(json.dumps(outcome), flush=True)
    leave()
    return True


def evaluate(
    model: torch.nn.Module, test_set: Any, device: torch.device, rank: int, processes: int
) -> dict[str, float]:
    """Loss and accuracy on the test set, of which each process computes a part."""
    model.eval()
    right, loss = 0.0, 0.0
    part = torch.utils.data.Subset(test_set, range(rank, len(test_set), processes))
    with torch.no_grad():
        for inputs, labels in DataLoader(part, batch_size=256):
            told = model(inputs.to(device))
            loss += float(cross_entropy(told, labels.to(device), reduction="sum"))
            right += float((told.argmax(1) == labels.to(device)).sum())
    return {"loss": agree(loss) / len(test_set), "accuracy": agree(right) / len(test_set)}


def fingerprint(model: torch.nn.Module) -> str:
    """The same for the same weights."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.detach().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def write_outcome(path: Path, outcome: dict[str, Any]) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(outcome) + "\n", encoding="utf-8")
    os.replace(new, path)
