# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The query of the GPUs, run in a container that is given some of them.

No registry is needed: the image is a handful of empty directories, and of the host it gets just the interpreter with
what that needs. What the container knows of the driver comes from the engine's way of giving it GPUs, which is what
is to be proven.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.container import cdi, cdi_search
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.verify import query as verify_query

# The number changes with the image's content.
IMAGE = "localhost/baremetal-gpu/empty:1"
DIRECTORIES = ("dev", "etc", "proc", "run", "sys", "tmp", "usr", "usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "var")
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}

Runner = Callable[[list[str], bytes, float], "tuple[int, bytes, bytes]"]


class EngineError(Exception):
    """The engine did not do what it was asked."""


@dataclass(frozen=True)
class Request:
    """One container: the names of its GPUs for a report, and their UUIDs and device files."""

    name: str
    indexes: tuple[int, ...]
    uuids: tuple[str, ...]
    files: tuple[str, ...]


def run_command(command: list[str], stdin: bytes, timeout_s: float) -> tuple[int, bytes, bytes]:
    try:
        return host_run.execute(command, timeout_s, stdin=stdin)
    except FileNotFoundError:
        raise EngineError(f"{command[0]} is not installed") from None
    except host_run.TimedOut:
        raise EngineError(f"'{' '.join(command[:3])}' did not end within {timeout_s:g} s") from None


def image_tar() -> bytes:
    """The image: always the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in DIRECTORIES:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name, target in LINKS.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
            tar.addfile(entry)
    return buffer.getvalue()


def parse_ldd(text: str) -> list[str]:
    """Paths of the libraries that ldd names, the loader among them."""
    found = re.findall(r"(?:=> )?(/\S+) \(0x[0-9a-f]+\)", text)
    return list(dict.fromkeys(found))


def interpreter_mounts(run: Runner) -> tuple[str, list[tuple[str, str]]]:
    """The interpreter's path, and (source, target) of what must be mounted for it to run."""
    python = os.path.realpath(sys.executable)
    standard_library = sysconfig.get_path("stdlib")
    extensions = sorted(
        {
            path
            for module in list(sys.modules.values())
            if (path := getattr(module, "__file__", None))
            and path.endswith(".so")
            and path.startswith(standard_library)
        }
    )
    code, out, err = run(["ldd", python, *extensions], b"", 60)
    if code:
        raise EngineError(f"ldd cannot find what {python} needs: {err.decode('utf-8', 'replace').strip()}")
    libraries = parse_ldd(out.decode("utf-8", "replace"))
    mounts = [(python, python), (standard_library, standard_library)]
    # The target keeps the name by which the library is asked for; its directory is reached by the image's own links.
    mounts += [(os.path.realpath(path), path) for path in libraries]
    return python, mounts


def cdi_directories(run: Runner, engine: str, timeout_s: float) -> list[str]:
    """Where the engine looks for specifications: Docker says it, whatever it has it from."""
    code, out, _err = run([engine, "info", "--format", "{{json .CDISpecDirs}}"], b"", timeout_s)
    try:
        found = json.loads(out) if code == 0 and engine == "docker" else None
    except (ValueError, RecursionError):
        found = None
    return [str(path) for path in found] if isinstance(found, list) and found else cdi_search.directories(engine)


def taken_from(name: str, where: list[str]) -> str:
    """What is said of the file from which the engine takes a device."""
    paths = cdi_search.taken_from(name, cdi_search.specifications(where, cdi.KIND))
    if len(paths) == 1:
        return f"{cdi.KIND}={name} is taken from {paths[0]}"
    if paths:
        return f"{cdi.KIND}={name} is in {' and '.join(paths)}, so it is taken from none of them"
    return f"{cdi.KIND}={name} is in no file of {' and '.join(where)}"


def docker_knows_cdi(run: Runner, engine: str, timeout_s: float) -> bool:
    """Whether `--device nvidia.com/gpu=0` is understood: podman always does, Docker where the feature is on."""
    if engine == "podman":
        return True
    code, out, _err = run([engine, "info", "--format", "{{json .CDISpecDirs}}"], b"", timeout_s)
    # Docker before 25 has no such field and refuses the template.
    return code == 0 and bool(json.loads(out or b"null"))


def has_nvidia_runtime(run: Runner, engine: str, timeout_s: float) -> bool:
    code, out, _err = run([engine, "info", "--format", "{{json .Runtimes}}"], b"", timeout_s)
    return engine == "docker" and code == 0 and "nvidia" in json.loads(out or b"{}")


def ensure_image(run: Runner, engine: str, timeout_s: float, check_mode: bool) -> bool:
    """Whether the image had to be made (or, in check mode, would have to be)."""
    code, _out, _err = run([engine, "image", "inspect", IMAGE], b"", timeout_s)
    if code == 0:
        return False
    if not check_mode:
        code, _out, err = run([engine, "import", "-", IMAGE], image_tar(), timeout_s)
        if code:
            raise EngineError(f"the empty image cannot be imported: {_last_line(err)}")
    return True


def _last_line(data: bytes) -> str:
    lines = data.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "no message"


def requests_for(gpus: list[cdi.Gpu]) -> list[Request]:
    """One GPU by itself, and all of them: with one GPU these are the same."""
    chosen = [gpus[:1]] if len(gpus) == 1 else [gpus[:1], gpus]
    return [
        Request(
            "all" if len(group) == len(gpus) and len(gpus) > 1 else str(group[0].index),
            tuple(gpu.index for gpu in group),
            tuple(gpu.uuid for gpu in group if gpu.uuid),
            tuple(sorted(f"/dev/nvidia{gpu.minor}" for gpu in group)),
        )
        for group in chosen
    ]


def give_arguments(mode: str, request: Request, found: cdi.Found) -> list[str]:
    """The options that give a container its GPUs."""
    if mode == "cdi":
        return ["--device", f"{cdi.KIND}={request.name}"]
    if mode == "runtime":
        # Quoted, because docker reads the value as a line of comma-separated fields.
        return ["--gpus", "all" if request.name == "all" else f'"device={",".join(request.uuids)}"']
    return cdi.engine_arguments(found, request.indexes)


def command(
    engine: str, give: Iterable[str], python: str, mounts: list[tuple[str, str]], script: Iterable[str]
) -> list[str]:
    volumes = [part for source, target in mounts for part in ("--volume", f"{source}:{target}:ro")]
    secure = ["--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    return [
        *(engine, "run", "--rm", "--interactive", *secure),
        *give,
        *volumes,
        # Isolated and without site: nothing but the standard library is mounted.
        *(IMAGE, python, "-I", "-S", "-", *script),
    ]


def judge(request: Request, mode: str, result: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """What the container saw against what it was given."""
    where = f"container with {request.name}"
    judged = verify_query.judge(result, state)
    causes = verify_query.causes_of(judged, where)
    seen = sorted(device["uuid"] for device in result["devices"] if "uuid" in device)
    files = sorted(path for path in result["device_files"] if re.match(r"^/dev/nvidia\d+$", path))
    if files != sorted(request.files):
        text = f"it was given {', '.join(request.files)} and has {', '.join(files) or 'none'}"
        causes.append({"where": where, **verify_query.cause("container_isolation", text)})
    elif not result["error"] and request.uuids and seen != sorted(request.uuids):
        text = f"it was given {', '.join(request.uuids)} and sees {', '.join(seen) or 'none'}"
        causes.append({"where": where, **verify_query.cause("container_isolation", text)})
    return {"name": request.name, "mode": mode, "ok": not causes and judged["ok"], "causes": causes, "query": judged}


def run_all(
    source: str,
    engine: str,
    mode: str,
    found: cdi.Found,
    state: dict[str, Any],
    mounts: Iterable[str] = (),
    timeout_s: float = 60.0,
    check_mode: bool = False,
    run: Runner = run_command,
) -> dict[str, Any]:
    """Query in each container. `source` is the text of cuda_driver.py, which the container has no copy of."""
    answer: dict[str, Any] = {"changed": False, "mode": mode, "containers": [], "skipped": None, "causes": []}
    if check_mode and not shutil.which(engine):
        answer["skipped"] = f"{engine} would be installed first"
        return answer
    try:
        if mode == "auto":
            mode = _choose(run, engine, timeout_s)
        answer["mode"] = mode
        answer["changed"] = ensure_image(run, engine, timeout_s, check_mode)
        if check_mode and answer["changed"]:
            answer["skipped"] = "the image would be imported first"
            return answer
        where = cdi_directories(run, engine, timeout_s) if mode == "cdi" else []
        python, needed = interpreter_mounts(run)
        needed = needed + [(path, path) for path in mounts]
        for request in requests_for(found.gpus):
            # Where it fails, whoever mends it has to know which file counts.
            source_of = taken_from(request.name, where) if mode == "cdi" else ""
            script = ["--copy-mib", "16", "--timeout", f"{timeout_s:g}"]
            line = command(engine, give_arguments(mode, request, found), python, needed, script)
            # Beyond the script's own deadlines, for the engine itself.
            code, out, err = run(line, source.encode(), timeout_s * (2 + len(request.indexes)))
            try:
                result = json.loads(out)
            except (ValueError, RecursionError):
                text = f"{engine} run ended with status {code}: {_last_line(err)}"
                cause = {"where": f"container with {request.name}", **verify_query.cause("container", text)}
                cause["remedy"] = "; ".join(filter(None, [cause["remedy"], source_of]))
                answer["containers"].append(
                    {"name": request.name, "mode": mode, "ok": False, "causes": [cause], "query": None}
                )
                continue
            judged = judge(request, mode, result, state)
            for cause in judged["causes"]:
                cause["remedy"] = "; ".join(filter(None, [cause["remedy"], source_of]))
            answer["containers"].append(judged)
    except EngineError as error:
        answer["causes"].append({"where": engine, **verify_query.cause("container", str(error))})
    for container in answer["containers"]:
        answer["causes"] += container["causes"]
    return answer


def _choose(run: Runner, engine: str, timeout_s: float) -> str:
    if docker_knows_cdi(run, engine, timeout_s):
        return "cdi"
    return "runtime" if has_nvidia_runtime(run, engine, timeout_s) else "explicit"
