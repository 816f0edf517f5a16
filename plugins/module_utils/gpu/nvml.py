# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What NVML says of the driver and the GPUs.

NVML is asked in a child process with a deadline: a sick GPU can hang a call for ever, and a broken library can crash
its process; neither may take the caller along. NVIDIA's binding pynvml is one file, so its source can be handed in by
a caller that has it; the host itself needs no Python package.
"""

from __future__ import annotations

import base64
import mmap
import sys
import types
import zlib
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.nvml_messages import (
    FATAL,
    NOT_APPLICABLE,
    error,
    error_from_code,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.host import child

ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
}
NVLINKS_AT_MOST = 36


class NoBinding(Exception):
    """There is no pynvml, neither handed in nor on the host."""


def unpack(packed: str | None) -> str | None:
    """The source of pynvml from the form in which the controller sends it."""
    return zlib.decompress(base64.b64decode(packed)).decode("utf-8") if packed else None


def load_binding(source: str | None) -> Any:
    """pynvml as a module: from the given source, else the host's own."""
    if source is None:
        try:
            import pynvml
        except ImportError as missing:
            raise NoBinding(str(missing)) from missing
        return pynvml
    module = types.ModuleType("pynvml")
    # pynvml looks itself up while it is being loaded.
    sys.modules["pynvml"] = module
    exec(compile(source, "pynvml.py", "exec"), module.__dict__)
    return module


def text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def reading(lib: Any, ask: Callable[[], Any]) -> dict[str, Any]:
    """One answer as {"value"}, or {"state", "code", "text"} with the state not_applicable, lost or unknown.

    `lib` is pynvml. The code is NVML's, null where the failure is not NVML's own. Raises nothing that a library or a
    GPU can cause.
    """
    try:
        return {"value": ask()}
    except (lib.NVMLLibraryMismatchError, AttributeError) as failure:
        # Not an NVMLError: the library, or the pynvml of the host, is older than the question.
        return {"state": "not_applicable", "code": None, "text": text(failure)}
    except lib.NVMLError as failure:
        code = int(failure.value)
        state = "not_applicable" if code in NOT_APPLICABLE else "lost" if code in FATAL else "unknown"
        return {"state": state, "code": code, "text": text(failure)}
    except Exception as failure:
        # A broken library answers what the binding cannot even read: no text, an array of any length, a bad number.
        what = f"{type(failure).__name__}: {failure}"
        return {"state": "unknown", "code": None, "text": f"no sense can be made of the answer: {what}"}


def failure_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The error that a reading without a value stands for."""
    if answer["code"] is None:
        return error(None, "garbage", answer["text"], "reinstall the driver's libraries; they answer nonsense")
    return error_from_code(answer["code"], answer["text"])


def start(lib: Any) -> dict[str, Any] | None:
    """Opens NVML; the error where it cannot be opened. Seconds per GPU without persistence mode."""
    try:
        lib.nvmlInit()
    except lib.NVMLError as failure:
        return error_from_code(int(failure.value), text(failure))
    except lib.NVMLLibraryMismatchError as failure:
        return error(None, "library_too_old", str(failure), "update the driver: its NVML lacks what pynvml asks for")
    return None


def no_binding() -> dict[str, Any]:
    return error(
        None,
        "no_pynvml",
        "there is no pynvml to ask NVML with, neither on the controller nor on the host",
        "install nvidia-ml-py in the controller's Python environment; it travels to the hosts by itself",
    )


class Trace:
    """What a process asks of which GPU, in memory that it shares with the one that forked it and waits for it.

    When the process hangs or crashes, this tells over what.
    """

    SIZE = 256

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, self.SIZE)

    def note(self, index: int, key: str) -> None:
        self._page[:] = f"{index} {key}".encode()[: self.SIZE].ljust(self.SIZE, b"\0")

    def read(self) -> tuple[int, str] | None:
        """NVML's index of the GPU and the name of the reading; None before the first question to a GPU."""
        index, _space, key = self._page[:].rstrip(b"\0").decode().partition(" ")
        return (int(index), key) if key else None

    def clear(self) -> None:
        """What is asked from here on is about no GPU in particular."""
        self._page[:] = bytes(self.SIZE)


def _hung_or_crashed(trace: Trace | None, name: str, what: str, remedy: str) -> dict[str, Any]:
    """The error; where the GPU is known, with its index as `device` and what it was asked for as `asked`."""
    last = trace.read() if trace else None
    if last is None:
        return error(None, name, what, remedy)
    text = f"{what}; asked for {last[1]} of GPU {last[0]}"
    return {**error(None, name, text, remedy), "device": last[0], "asked": last[1]}


def timed_out(deadline_s: float, trace: Trace | None = None) -> dict[str, Any]:
    what = f"NVML did not answer within {deadline_s:g} s"
    remedy = "a GPU hangs: look for an Xid in `sudo dmesg`, drain the host and reboot it"
    return _hung_or_crashed(trace, "timeout", what, remedy)


def crashed(how: str, trace: Trace | None = None) -> dict[str, Any]:
    what = f"the process that asked NVML ended {how}"
    remedy = "the NVML library is broken or of another machine type: reinstall the driver's libraries"
    return _hung_or_crashed(trace, "crashed", what, remedy)


def does_not_end(trace: Trace | None = None) -> dict[str, Any]:
    what = "the process that asked NVML has gone silent and does not come to its end"
    remedy = "a GPU hangs: look for an Xid in `sudo dmesg`, drain the host and reboot it"
    return _hung_or_crashed(trace, "timeout", what, remedy)


def in_child(work: Callable[[], dict[str, Any]], deadline_s: float, trace: Trace | None = None) -> dict[str, Any]:
    """Runs `work` in a forked child and returns its JSON-able answer, or {"error": ...} after the deadline.

    `trace` is one that `work` writes, so that the error names the GPU.
    """

    def guarded() -> dict[str, Any]:
        try:
            return work()
        except BaseException as failure:
            message = f"{type(failure).__name__}: {failure}"
            return {"error": error(None, "probe_failed", message, "report this")}

    try:
        return child.answer(guarded, deadline_s)
    except child.TimedOut:
        return {"error": timed_out(deadline_s, trace)}
    except child.DoesNotEnd:
        return {"error": does_not_end(trace)}
    except child.Crashed as failure:
        return {"error": crashed(str(failure), trace)}
