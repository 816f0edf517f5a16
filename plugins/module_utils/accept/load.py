# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done to one GPU, or to a pair: copies, memory under patterns, and arithmetic with results that are known.

Runs in a child process (see children), which tells what it has found as it goes. CUDA's driver API only.
"""

from __future__ import annotations

import ctypes
import os
import random
import statistics
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import kernels
from ansible_collections.baremetal.gpu.plugins.module_utils.verify import cuda_driver
from ansible_collections.baremetal.gpu.plugins.module_utils.verify.cuda_driver import (
    Context,
    CudaError,
    DevicePointer,
    Driver,
    Handle,
)

Tell = Callable[[dict[str, Any]], None]

OUT_OF_MEMORY = 2
MIB = 1 << 20
# Left to the driver, so that a launch does not fail for want of memory.
SPARE_MIB = 512
CHUNK_MIB, CHUNK_LEAST_MIB = 1024, 2
THREADS = 256
# Blocks for each multiprocessor: enough to keep it busy.
BLOCKS = 8
# So many words a thread of the memory test has at least.
WORDS_EACH = 16
# One launch takes about this long, so that a GPU that hangs is noticed and a display is not frozen.
LAUNCH_S = 0.25
ROUNDS_MOST = 1 << 20

PROTOTYPES: dict[str, list[Any]] = {
    **cuda_driver.PROTOTYPES,
    "cuCtxSetCurrent": [Handle],
    "cuDeviceCanAccessPeer": [ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int],
    "cuCtxEnablePeerAccess": [Handle, ctypes.c_uint],
    "cuMemcpyPeerAsync": [DevicePointer, Handle, DevicePointer, Handle, ctypes.c_size_t, Handle],
}


@dataclass(frozen=True)
class Options:
    """What is asked of each GPU.

    :ivar seconds: how long memory and arithmetic take turns; at least one turn of each is taken.
    :ivar memory_mib: how much of the memory is tested, 0 for all that is free.
    :ivar copy_mib: the size of a timed copy.
    """

    seconds: float = 60.0
    memory_mib: int = 0
    copy_mib: int = 256
    repeats: int = 5
    timeout_s: float = 120.0
    library: str = "libcuda.so.1"
    devices: tuple[str, ...] = ()


@dataclass
class Tally:
    """What a kind of load has come to."""

    rates: list[float] = field(default_factory=list)
    # Of launches that did not fill the GPU.
    partial: list[float] = field(default_factory=list)
    launches: int = 0
    wrong: int = 0
    places: set[int] = field(default_factory=set)
    blocks: int = 1
    rounds: int = 1

    def result(self, rate: str) -> dict[str, Any]:
        rates = self.rates or self.partial or [0.0]
        return {
            rate: round(statistics.median(rates), 4),
            f"{rate}_least": round(min(rates), 4),
            "launches": self.launches,
            "wrong": self.wrong,
            "multiprocessors": sorted(self.places),
        }


def driver(options: Options) -> Driver:
    cuda = Driver(options.library, PROTOTYPES)
    cuda("cuInit", 0)
    return cuda


def found_devices(cuda: Driver) -> list[dict[str, Any]]:
    """The GPUs as CUDA numbers them; one that does not say who it is has its error instead."""
    return [_found(cuda, index) for index in range(cuda.integer("cuDeviceGetCount"))]


def _found(cuda: Driver, index: int) -> dict[str, Any]:
    try:
        return {"index": index, **cuda_driver.properties(cuda, index)[1], "error": None}
    except CudaError as error:
        return {"index": index, "error": error.as_dict()}


def _rate(size: int, milliseconds: float) -> float:
    """10^9 of something a second."""
    return round(size / max(milliseconds, 1e-6) / 1e6, 3)


# --- Copies -----------------------------------------------------------------------------------------------------------


def copies(options: Options, index: int, tell: Tell) -> None:
    """Copies both ways, from pinned memory and from what is not, each timed and what comes back compared."""
    tell({"step": "copies"})
    cuda = driver(options)
    with Context(cuda, cuda.integer("cuDeviceGet", index)) as context:
        size = _fitting(cuda, options.copy_mib)
        memory = context.device_memory(size)
        result: dict[str, Any] = {"mib": size // MIB, "wrong": 0}
        data = os.urandom(min(size, MIB)) * (size // min(size, MIB))
        for kind in ("pinned", "pageable"):
            if kind == "pinned":
                source, back = (context.pinned_memory(size).value for _which in range(2))
            else:
                buffers = [ctypes.create_string_buffer(size) for _which in range(2)]
                source, back = (ctypes.addressof(buffer) for buffer in buffers)
            ctypes.memmove(source, data, size)
            ctypes.memset(back, 0, size)
            for way, call, to, of in (
                ("host_to_device", "cuMemcpyHtoDAsync_v2", memory, source),
                ("device_to_host", "cuMemcpyDtoHAsync_v2", back, memory),
            ):
                tell({"step": f"copies, {kind}, {way}"})
                result[f"{way}_{kind}_gb_s"] = _copy_rate(cuda, context, options.repeats, call, to, of, size)
            cuda("cuCtxSynchronize")
            result["wrong"] += ctypes.string_at(back, size) != data
        tell({"result": {"copies": result}})


def _copy_rate(cuda: Driver, context: Context, repeats: int, call: str, to: Any, of: Any, size: int) -> float:
    """The median of single copies, so that one that was disturbed does not count."""
    cuda(call, to, of, size, None)
    times = [context.milliseconds(lambda: cuda(call, to, of, size, None)) for _repeat in range(repeats)]
    return _rate(size, statistics.median(times))


def _fitting(cuda: Driver, mib: int) -> int:
    """So many MiB, or a quarter of what is free if that is less."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return max(min(mib, free.value // 4 // MIB), 1) * MIB


# --- Pairs ------------------------------------------------------------------------------------------------------------


def pair(options: Options, first: int, second: int, tell: Tell) -> None:
    """Copies between two GPUs, both ways, and what arrives compared; through the host where they are no peers."""
    tell({"step": "peers"})
    cuda = driver(options)
    with Context(cuda, first) as one, Context(cuda, second) as other:
        current = [one.handle, other.handle]
        peers = all(cuda.integer("cuDeviceCanAccessPeer", a, b) for a, b in ((first, second), (second, first)))
        memory = []
        size = 0
        for place, context in enumerate((one, other)):
            cuda("cuCtxSetCurrent", current[place])
            if peers:
                cuda("cuCtxEnablePeerAccess", current[1 - place], 0)
            size = _fitting(cuda, options.copy_mib) if not size else min(size, _fitting(cuda, options.copy_mib))
            memory.append(context.device_memory(size))
        result: dict[str, Any] = {"peers": peers, "mib": size // MIB, "wrong": 0}
        data = os.urandom(MIB)
        for way, (source, target) in {"there": (0, 1), "back": (1, 0)}.items():
            tell({"step": f"peers, {way}"})
            cuda("cuCtxSetCurrent", current[target])
            cuda("cuMemsetD8_v2", memory[target], 0, size)
            cuda("cuCtxSetCurrent", current[source])
            for offset in range(0, size, MIB):
                cuda("cuMemcpyHtoD_v2", memory[source].value + offset, data, MIB)
            context = (one, other)[source]

            def work(source: int = source, target: int = target) -> None:
                to, of = (memory[target], current[target]), (memory[source], current[source])
                cuda("cuMemcpyPeerAsync", *to, *of, size, None)

            work()
            times = [context.milliseconds(work) for _repeat in range(options.repeats)]
            cuda("cuCtxSynchronize")
            result[f"{way}_gb_s"] = _rate(size, statistics.median(times))
            cuda("cuCtxSetCurrent", current[target])
            arrived = ctypes.create_string_buffer(MIB)
            for offset in range(0, size, MIB):
                cuda("cuMemcpyDtoH_v2", arrived, memory[target].value + offset, MIB)
                result["wrong"] += arrived.raw != data
        tell({"result": result})
        # What a context owns is freed while it is current; then the other one is.
        cuda("cuCtxSetCurrent", current[1])


# --- Memory and arithmetic --------------------------------------------------------------------------------------------


class Load:
    """One GPU at work."""

    def __init__(self, cuda: Driver, context: Context, found: dict[str, Any], tell: Tell) -> None:
        self.cuda, self.context, self.tell = cuda, context, tell
        self.blocks: int = BLOCKS * found["multiprocessors"]
        self.report = context.device_memory(kernels.REPORT_BYTES)
        self.tallies: dict[str, Tally] = {}
        self.kinds: dict[str, tuple[Any, list[Any], Callable[[int, int], int]]] = {}
        capability = tuple(int(part) for part in found["compute_capability"].split("."))
        for real in (kernels.FP32, kernels.FP64):
            tell({"step": f"compile {real.entry}"})
            function = context.function(real.entry, kernels.real_kernel(real))
            self.kinds[real.entry] = (
                function,
                [self._put(part) for part in kernels.real_data(real)],
                kernels.real_flop,
            )
        if capability >= kernels.BF16_CAPABILITY:
            tell({"step": f"compile {kernels.BF16}"})
            function = context.function(kernels.BF16, kernels.bf16_kernel(), kernels.BF16_TARGETS)
            self.kinds[kernels.BF16] = (function, [self._put(part) for part in kernels.bf16_data()], kernels.bf16_flop)
        tell({"step": "compile memory"})
        self.fill = context.function(kernels.FILL, kernels.MEMORY)
        self.check = context.function(kernels.CHECK, kernels.MEMORY)
        self.chunks: list[tuple[Any, int]] = []

    def _put(self, data: bytes) -> Any:
        pointer = self.context.device_memory(len(data))
        self.cuda("cuMemcpyHtoD_v2", pointer, data, len(data))
        return pointer

    def _launch(self, function: Any, blocks: int, *arguments: Any) -> float:
        """Launches and waits; the milliseconds that the GPU took."""
        parameters = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))

        def work() -> None:
            geometry = (blocks, 1, 1, THREADS, 1, 1, 0)
            self.cuda("cuLaunchKernel", function, *geometry, None, parameters, None)

        milliseconds = self.context.milliseconds(work)
        self.cuda("cuCtxSynchronize")
        return milliseconds

    def _clear(self) -> None:
        self.cuda("cuMemsetD8_v2", self.report, 0, kernels.REPORT_BYTES)

    def _reported(self) -> bytes:
        data = ctypes.create_string_buffer(kernels.REPORT_BYTES)
        self.cuda("cuMemcpyDtoH_v2", data, self.report, kernels.REPORT_BYTES)
        return data.raw

    def compute(self, kind: str) -> None:
        """One launch of a kind of arithmetic, and what it got wrong."""
        function, data, flop = self.kinds[kind]
        tally = self.tallies.setdefault(kind, Tally())
        self.tell({"step": kind})
        self._clear()
        began = time.monotonic()
        milliseconds = self._launch(function, tally.blocks, *data, ctypes.c_uint32(tally.rounds), self.report)
        took = time.monotonic() - began
        wrong, places = kernels.compute_errors(self._reported())
        # 10^12 a second. The first launches are small, and warm up.
        rate = flop(tally.blocks * THREADS, tally.rounds) / max(milliseconds, 1e-6) / 1e9
        (tally.rates if tally.rounds > 1 else tally.partial).append(rate)
        tally.launches += 1
        tally.wrong += wrong
        tally.places.update(places)
        # First as many blocks as fill the GPU, then more rounds of them.
        work = int(tally.blocks * tally.rounds * min(LAUNCH_S / max(took, 1e-5), 1000.0))
        tally.blocks = max(1, min(self.blocks, work))
        tally.rounds = max(1, min(ROUNDS_MOST, work // tally.blocks))

    def take_memory(self, mib: int) -> int:
        """Allocates what is free, but for a spare part, or so many MiB. In MiB, how much that was."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.cuda("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        left = max(int(free.value) // MIB - SPARE_MIB, 0)
        left = taken_from = min(left, mib) if mib else left
        chunk = CHUNK_MIB
        while left >= CHUNK_LEAST_MIB and chunk >= CHUNK_LEAST_MIB:
            size = min(chunk, left)
            try:
                self.chunks.append((self.context.device_memory(size * MIB), size * MIB // 8))
            except CudaError as error:
                # Free memory is not in one piece.
                if error.code != OUT_OF_MEMORY:
                    raise
                chunk //= 2
                continue
            left -= size
        if not self.chunks:
            text = f"{taken_from} MiB of its memory are free, which is too little to test it"
            raise CudaError("cuMemAlloc_v2", None, "NO_FREE_MEMORY", text)
        return taken_from - left

    def _blocks_of(self, words: int) -> int:
        return max(1, min(self.blocks, words // (THREADS * WORDS_EACH)))

    def _each_chunk(self, function: Any, step: int, seed: int, *more: Any) -> float:
        milliseconds, before = 0.0, 0
        for pointer, words in self.chunks:
            start = kernels.word(before, step, seed)
            numbers = (ctypes.c_uint64(words), ctypes.c_uint64(step), ctypes.c_uint64(start))
            milliseconds += self._launch(function, self._blocks_of(words), pointer, *numbers, *more)
            before += words
        return milliseconds

    def _checked(self, step: int, seed: int, tally: Tally) -> tuple[int, list[tuple[int, int]]]:
        """Compares all words with a pattern and leaves its complement."""
        found, wrong, before = [], 0, 0
        milliseconds = 0.0
        for pointer, words in self.chunks:
            self._clear()
            start = kernels.word(before, step, seed)
            numbers = (ctypes.c_uint64(words), ctypes.c_uint64(step), ctypes.c_uint64(start))
            milliseconds += self._launch(self.check, self._blocks_of(words), pointer, *numbers, self.report)
            count, rows = kernels.memory_errors(self._reported())
            wrong += count
            found += [(8 * (before + index), bits) for index, bits in rows]
            before += words
        # Read once and written once.
        tally.rates.append(_rate(16 * before, milliseconds))
        tally.launches += 1
        return wrong, sorted(found)

    def find_own_flip(self) -> dict[str, Any]:
        """Turns one bit of the memory and looks whether it is found. A test that finds nothing would prove nothing."""
        self.tell({"step": "memory, own flipped bit"})
        step, seed = kernels.ADDRESS_STEP, 1
        self._each_chunk(self.fill, step, seed)
        place = random.randrange(len(self.chunks))
        pointer, words = self.chunks[place]
        index, bit = random.randrange(words), random.randrange(64)
        data = ctypes.create_string_buffer(8)
        self.cuda("cuMemcpyDtoH_v2", data, pointer.value + 8 * index, 8)
        turned = struct.pack("<Q", struct.unpack("<Q", data.raw)[0] ^ 1 << bit)
        self.cuda("cuMemcpyHtoD_v2", pointer.value + 8 * index, turned, 8)
        byte = 8 * (index + sum(count for _pointer, count in self.chunks[:place]))
        wrong, rows = self._checked(step, seed, Tally())
        # With more errors than are reported one by one it need not be among those.
        known = (byte, 1 << bit) in rows or wrong > kernels.REPORTED
        return {"byte": byte, "bit": bit, "found": known, "others": wrong - known}

    def memory(self, number: int) -> None:
        """One pattern over all of the memory, and its complement."""
        tally = self.tallies.setdefault("memory", Tally())
        name, step, seed = kernels.PATTERNS[number % len(kernels.PATTERNS)]
        self.tell({"step": f"memory, {name}"})
        self._each_chunk(self.fill, step, seed)
        for _turn in range(2):
            wrong, rows = self._checked(step, seed, tally)
            if wrong:
                first = [{"byte": byte, "bits": f"0x{bits:016x}", "pattern": name} for byte, bits in rows]
                self.tell({"memory_errors": first, "wrong": wrong})
            tally.wrong += wrong
            step, seed = kernels.complement(step, seed)

    def results(self) -> dict[str, Any]:
        names = {kernels.FP32.entry: "fp32", kernels.FP64.entry: "fp64", kernels.BF16: "bf16"}
        return {
            names.get(kind, kind): tally.result("gb_s" if kind == "memory" else "tflops")
            for kind, tally in self.tallies.items()
        }


def load(options: Options, found: dict[str, Any], tell: Tell) -> None:
    """Memory and arithmetic in turns, for so long. What was found is told after each turn, and again at the end."""
    cuda = driver(options)
    tell({"step": "context"})
    with Context(cuda, cuda.integer("cuDeviceGet", found["index"])) as context:
        at_work = Load(cuda, context, found, tell)
        tell({"step": "memory, allocate"})
        mib = at_work.take_memory(options.memory_mib)
        tell({"result": {"tested_mib": mib, "own_flip": at_work.find_own_flip()}})
        began, turn = time.monotonic(), 0
        while True:
            for kind in at_work.kinds:
                at_work.compute(kind)
            at_work.memory(turn)
            turn += 1
            seconds = time.monotonic() - began
            tell({"result": {**at_work.results(), "turns": turn, "seconds": round(seconds, 1)}})
            # Every pattern once, and every kind of arithmetic with launches of full length.
            if seconds >= options.seconds and turn >= len(kernels.PATTERNS):
                return
