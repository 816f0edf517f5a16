# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host is like before anything is installed on it. Reads only; asks no network unless told to."""

from __future__ import annotations

import concurrent.futures
import configparser
import ctypes
import glob
import gzip
import lzma
import os
import re
import socket
import struct
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils import driver, merge, nvml, toml_document
from ansible_collections.baremetal.gpu.plugins.module_utils.data_engines import ENGINE_CONFIGS
from ansible_collections.baremetal.gpu.plugins.module_utils.data_os import IDS, SUPPORTED

Run = Callable[[list[str]], "tuple[int, str]"]

# What preflight needs to know of the package database; the rest is skipped over.
PACKAGES_OF_INTEREST = re.compile(
    r"^(nvidia|libnvidia|libcuda1|cuda|xserver-xorg-video-nvidia|kmod-nvidia|docker|podman|containerd|moby|cri-o|dkms|"
    r"linux-(modules|objects)-nvidia)"
)
GLOBAL_VARIABLE = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
SHIM_VARIABLE = "605dab50-e046-4300-abb6-3dd810dd8b23"
# Of an index that comes in pieces this much is kept of what a piece may have cut: the longest Provides are some 20 KB.
REST_MOST = 1 << 17
MOK_KEYS = ("var/lib/dkms/mok.pub", "var/lib/shim-signed/mok/MOK.der")


def run_command(arguments: list[str]) -> tuple[int, str]:
    """Exit status and standard output; status 127 where there is no such command."""
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=60,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return 127, ""
    return done.returncode, done.stdout.decode("utf-8", "replace")


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def _inside(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))


# The system ---------------------------------------------------------------------------------------------------------


def os_release(root: str = "/") -> dict[str, str]:
    text = _text(_inside(root, "etc/os-release")) or _text(_inside(root, "usr/lib/os-release"))
    values = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator and not key.startswith("#"):
            values[key.strip()] = value.strip().strip("\"'")
    return values


def system(root: str = "/", machine: str | None = None) -> dict[str, Any]:
    """The operating system, and its row in the table of those that are supported (None where it has none)."""
    release = os_release(root)
    name, version = release.get("ID", ""), release.get("VERSION_ID", "")
    key = None
    if name in IDS and version:
        prefix, parts = IDS[name]
        candidate = prefix + ".".join(version.split(".")[:parts])
        key = candidate if candidate in SUPPORTED else None
    row = SUPPORTED.get(key or "", {})
    return {
        "key": key,
        "name": release.get("PRETTY_NAME") or f"{name} {version}".strip() or "unknown",
        "id": name,
        "version": version,
        "codename": release.get("VERSION_CODENAME", ""),
        "family": row.get("family"),
        "level": row.get("level"),
        "repository": row.get("repository"),
        "machine": machine or os.uname().machine,
    }


def installed_kernels(root: str = "/") -> list[str]:
    """The kernels that could be booted, oldest first. What DKMS left behind for a removed one is none."""
    kernels = {
        os.path.basename(os.path.dirname(path))
        for pattern in ("kernel", "vmlinuz")
        for path in glob.glob(_inside(root, f"lib/modules/*/{pattern}"))
    }
    images = {os.path.basename(path)[len("vmlinuz-") :] for path in glob.glob(_inside(root, "boot/vmlinuz-*"))}
    kernels |= {name for name in images if "rescue" not in name}
    return sorted(kernels, key=driver.version_key)


def kernels_to_check(choice: Any, running: str, installed: list[str]) -> list[str]:
    """The kernels that gpu_preflight_kernels names: `running`, `installed`, or a list of them."""
    if choice == "running":
        return [running]
    if choice == "installed":
        return list(installed)
    return [str(kernel) for kernel in choice]


def _archive_lists(root: str) -> list[str]:
    paths = glob.glob(_inside(root, "var/lib/apt/lists/*_Packages*"))
    return sorted(path for path in paths if not path.endswith((".diff", ".IndexDiff")))


def _list_content(path: str, run: Run) -> bytes | None:
    """The content of an index as apt keeps it on disk, None where it cannot be read."""
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
    suffix = os.path.splitext(path)[1]
    try:
        if suffix in openers:
            with openers[suffix](path, "rb") as stream:
                content = stream.read()
                return bytes(content)
        if suffix in (".lz4", ".zst", ".bz2"):
            status, text = run(["/usr/lib/apt/apt-helper", "cat-file", path])
            return text.encode() if status == 0 else None
        with open(path, "rb") as stream:
            return stream.read()
    except (OSError, EOFError, lzma.LZMAError):
        return None


def _wanted(names: Iterable[str]) -> dict[str, re.Pattern[bytes]]:
    """Per package what shows in an index that apt can install it: by its own name, or provided by another package.

    A kernel that another name was given has headers of another name, too, which provide the usual one (`*-pve`).
    """
    patterns = {}
    for name in names:
        literal = re.escape(name.encode())
        # A field goes on in lines that begin with a blank. A version and an architecture may follow the name.
        entries = rb"\nProvides:(?:[^\n]|\n(?=[ \t]))*?[\s,]" + literal + rb"(?=[\s,(:])"
        patterns[name] = re.compile(rb"\nPackage: " + literal + rb"[ \t]*\n|" + entries)
    return patterns


def _known(content: bytes, wanted: dict[str, re.Pattern[bytes]]) -> set[str]:
    # Most indices do not have the name at all, which is faster to see without a pattern.
    return {name for name, pattern in wanted.items() if name.encode() in content and pattern.search(content)}


def archive_packages(names: Iterable[str], root: str = "/", run: Run = run_command) -> set[str] | None:
    """Which of these packages the apt indices on disk know; None where there is no readable index.

    The files are searched instead of asking apt-cache, which would write its cache.
    """
    wanted = _wanted(names)
    found: set[str] = set()
    readable = False
    for path in _archive_lists(root):
        if found == set(wanted):
            break
        content = _list_content(path, run)
        if content is None:
            continue
        readable = True
        found |= _known(b"\n" + content + b"\n", wanted)
    return found if readable else None


def headers(
    kernels: Iterable[str], root: str = "/", family: str | None = "debian", run: Run = run_command
) -> dict[str, str]:
    """Per kernel whether its headers are `installed`, `available`, `missing`, or it is `unknown`."""
    answer = {}
    for kernel in kernels:
        places = (
            f"lib/modules/{kernel}/build/Makefile",
            f"usr/src/linux-headers-{kernel}/Makefile",
            f"usr/src/kernels/{kernel}/Makefile",
        )
        build = _inside(root, f"lib/modules/{kernel}/build")
        # The link is absolute, so below another root it has to be followed by hand.
        target = (
            os.path.join(os.path.dirname(f"lib/modules/{kernel}/build"), os.readlink(build))
            if os.path.islink(build)
            else ""
        )
        linked = bool(target) and os.path.isdir(_inside(root, target))
        there = linked or any(os.path.exists(_inside(root, place)) for place in places)
        answer[kernel] = "installed" if there else "unknown"
    missing = [kernel for kernel, state in answer.items() if state == "unknown"]
    if missing and family == "debian":
        names = {headers_package(kernel, family): kernel for kernel in missing}
        known = archive_packages(names, root, run)
        if known is not None:
            for name, kernel in names.items():
                answer[kernel] = "available" if name in known else "missing"
    return answer


def headers_package(kernel: str, family: str | None) -> str:
    return f"kernel-devel-{kernel}" if family == "redhat" else f"linux-headers-{kernel}"


# Secure Boot --------------------------------------------------------------------------------------------------------


def secure_boot(root: str = "/") -> dict[str, Any]:
    """Whether the firmware enforces signatures, and whether the key that DKMS signs with is enrolled."""
    firmware = _inside(root, "sys/firmware/efi")
    if not os.path.isdir(firmware):
        return {"enabled": False, "key": None, "key_enrolled": None}
    variables = os.path.join(firmware, "efivars")
    # Four bytes of attributes come before the value.
    value = _bytes(os.path.join(variables, f"SecureBoot-{GLOBAL_VARIABLE}"))
    enabled = value[4] == 1 if len(value) >= 5 else None
    key = next((path for path in MOK_KEYS if os.path.exists(_inside(root, path))), None)
    enrolled = None
    if key:
        certificate = _bytes(_inside(root, key))
        lists = [_bytes(path) for path in glob.glob(os.path.join(variables, f"MokListRT*-{SHIM_VARIABLE}"))]
        if lists and certificate:
            enrolled = any(certificate in content for content in lists)
    return {"enabled": enabled, "key": f"/{key}" if key else None, "key_enrolled": enrolled}


# Disk ---------------------------------------------------------------------------------------------------------------


def disk(paths: Iterable[str], root: str = "/") -> dict[str, dict[str, Any]]:
    """Free space by path, with the file system's number, since several paths often share one."""
    answer = {}
    for path in paths:
        place = _inside(root, path)
        while not os.path.exists(place) and len(place) > len(root):
            place = os.path.dirname(place)
        try:
            space = os.statvfs(place)
            device = os.stat(place).st_dev
        except OSError:
            continue
        answer[path] = {"free_mib": space.f_bavail * space.f_frsize >> 20, "device": device}
    return answer


# Packages and repositories ------------------------------------------------------------------------------------------


def packages(root: str = "/", run: Run = run_command) -> dict[str, dict[str, str]]:
    """The installed packages that matter here: name -> version and vendor."""
    found = {}
    status = _text(_inside(root, "var/lib/dpkg/status"))
    if status:
        for paragraph in status.split("\n\n"):
            name = paragraph[len("Package: ") :].split("\n", 1)[0]
            if not PACKAGES_OF_INTEREST.match(name) or "\nStatus: " not in paragraph:
                continue
            fields = dict(re.findall(r"^(Status|Version|Maintainer): (.*)$", paragraph, re.M))
            if fields.get("Status", "").endswith(" installed"):
                found[name] = {"version": fields.get("Version", ""), "vendor": fields.get("Maintainer", "")}
    elif os.path.isdir(_inside(root, "var/lib/rpm")) or os.path.isdir(_inside(root, "usr/lib/sysimage/rpm")):
        command = ["rpm", "--root", root, "-qa", "--qf", "%{NAME}\\t%{VERSION}-%{RELEASE}\\t%{VENDOR}\\n"]
        for line in run(command)[1].splitlines():
            name, version, vendor = [*line.split("\t"), "", ""][:3]
            if PACKAGES_OF_INTEREST.match(name):
                found[name] = {"version": version, "vendor": vendor}
    return found


def installed_method(
    installed: dict[str, dict[str, str]], root: str = "/", family: str | None = "debian"
) -> dict[str, Any]:
    """How the driver that is on the host came there: by which methods, and what shows it.

    On Enterprise Linux all repositories have the same packages, so one takes over from the other.
    """
    evidence: dict[str, str] = {}
    libraries = ("libnvidia-ml1", "libcuda1", "nvidia-driver-cuda", "nvidia-driver-cuda-libs")
    for name, package in sorted(installed.items()) if family != "redhat" else ():
        # Debian's nvidia-kernel-common and the like stay behind when a driver goes, and have no version of one.
        if not driver.VERSION.search(package["version"]):
            continue
        if name in libraries or re.match(r"^(libnvidia-(compute|tesla)|nvidia-(kernel|open-kernel|dkms|tesla))", name):
            vendor = package["vendor"].lower()
            method = "nvidia_repo" if "@nvidia.com" in vendor or vendor == "nvidia" else "distro"
            evidence.setdefault(method, f"package {name} {package['version']}")
    uninstaller = _inside(root, "usr/bin/nvidia-uninstall")
    if os.path.lexists(uninstaller):
        evidence["runfile"] = "/usr/bin/nvidia-uninstall"
    return evidence


def _deb822(path: str, text: str) -> list[dict[str, Any]]:
    entries = []
    for paragraph in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        key = ""
        for line in paragraph.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t"):
                fields[key] = f"{fields.get(key, '')}\n{line.strip()}"
            elif ":" in line:
                key, value = line.split(":", 1)
                key = key.strip().lower()
                fields[key] = value.strip()
        if "uris" not in fields or fields.get("enabled", "yes").lower() in ("no", "false", "0"):
            continue
        if "deb" not in fields.get("types", "").split():
            continue
        entries += [
            {
                "file": path,
                "uri": uri,
                "suite": suite,
                "components": fields.get("components", "").split(),
                # A key in the file itself starts with an empty line; its lines do not matter here.
                "signed_by": fields.get("signed-by", "").strip(),
            }
            for uri in fields["uris"].split()
            for suite in fields.get("suites", "").split()
        ]
    return entries


def _one_line(path: str, text: str) -> list[dict[str, Any]]:
    entries = []
    for line in text.splitlines():
        match = re.match(
            r"^deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<rest>.*)$", line.strip()
        )
        if match:
            options = dict(part.split("=", 1) for part in (match["options"] or "").split() if "=" in part)
            entries.append(
                {
                    "file": path,
                    "uri": match["uri"],
                    "suite": match["suite"],
                    "components": match["rest"].split("#")[0].split(),
                    "signed_by": options.get("signed-by", ""),
                }
            )
    return entries


def _yum(path: str, text: str) -> list[dict[str, Any]]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return []
    entries = []
    for name in parser.sections():
        if parser.get(name, "enabled", fallback="1") in ("0", "no", "false"):
            continue
        uri = parser.get(name, "baseurl", fallback="") or parser.get(name, "mirrorlist", fallback="")
        uri = uri or parser.get(name, "metalink", fallback="")
        entries.append({"file": path, "uri": uri.split("\n")[0], "suite": name, "components": [], "signed_by": ""})
    return entries


def repositories(root: str = "/") -> list[dict[str, Any]]:
    """Every enabled package source, one row per URI and suite."""
    readers: tuple[tuple[str, Callable[[str, str], list[dict[str, Any]]]], ...] = (
        ("etc/apt/sources.list", _one_line),
        ("etc/apt/sources.list.d/*.list", _one_line),
        ("etc/apt/sources.list.d/*.sources", _deb822),
        ("etc/yum.repos.d/*.repo", _yum),
    )
    rows = []
    for pattern, reader in readers:
        for path in sorted(glob.glob(_inside(root, pattern))):
            rows += reader("/" + os.path.relpath(path, root), _text(path))
    return rows


# Time and names -----------------------------------------------------------------------------------------------------


def time_synchronised(root: str = "/", clock: Callable[[], int | None] | None = None) -> bool | None:
    """Whether something keeps the kernel's clock in step; None where that cannot be told.

    Every time daemon tells the kernel, so the kernel's own status is asked first.
    """
    status = (clock or _clock_status)()
    if status is not None and not status & 0x40:
        return True
    if os.path.exists(_inside(root, "run/systemd/timesync/synchronized")):
        return True
    return None if status is None else False


def _clock_status() -> int | None:
    """The STA_ flags of adjtimex(2); with modes = 0 it only reads."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        buffer = ctypes.create_string_buffer(256)
        if library.adjtimex(buffer) < 0:
            return None
    except (OSError, AttributeError):
        return None
    # struct timex: modes, then offset, freq, maxerror and esterror as longs, then status.
    return int(struct.unpack_from("@I4li", buffer.raw)[5])


def own_addresses(root: str = "/") -> set[str]:
    addresses = set(
        re.findall(r"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL", _text(_inside(root, "proc/net/fib_trie")))
    )
    for line in _text(_inside(root, "proc/net/if_inet6")).splitlines():
        digits = line.split(" ", 1)[0]
        if len(digits) == 32:
            addresses.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return addresses


def hostname(
    root: str = "/",
    name: str | None = None,
    resolver: Callable[[str], list[str]] | None = None,
) -> dict[str, Any]:
    """Whether the host's name has an address and whether that is the host's own.

    /etc/hosts is read first; a resolver, which may ask the network, only where one is given.
    """
    name = name or socket.gethostname()
    addresses = []
    for line in _text(_inside(root, "etc/hosts")).splitlines():
        fields = line.split("#")[0].split()
        if name in fields[1:]:
            addresses.append(fields[0])
    switch = re.search(r"^hosts:(.*)$", _text(_inside(root, "etc/nsswitch.conf")), re.M)
    built_in = bool(switch and "myhostname" in switch.group(1).split())
    if not addresses and not built_in and resolver is not None:
        addresses = resolver(name)
        resolves: bool | None = bool(addresses)
    else:
        resolves = True if addresses or built_in else None
    own = own_addresses(root)
    loopback = [address for address in addresses if address.startswith("127.") or address == "::1"]
    return {
        "name": name,
        "addresses": addresses,
        "resolves": resolves,
        "own": bool(set(addresses) & own or loopback) if addresses and own else None,
    }


def resolve(name: str, deadline_s: float = 5.0) -> list[str]:
    def ask() -> dict[str, Any]:
        try:
            return {"addresses": sorted({str(row[4][0]) for row in socket.getaddrinfo(name, None)})}
        except OSError:
            return {"addresses": []}

    answer: list[str] = nvml.in_child(ask, deadline_s).get("addresses", [])
    return answer


# Container engines --------------------------------------------------------------------------------------------------


def engine_config(engine: str, root: str = "/") -> dict[str, Any]:
    """{path, error}: an engine's configuration file, and what is wrong with it, None if nothing is.

    The words of the file are not repeated: they may be a registry's password.
    """
    path, error = ENGINE_CONFIGS[engine], None
    parse = merge.parse_json if path.endswith(".json") else toml_document.parse
    try:
        parse(_text(_inside(root, path.lstrip("/"))))
    except merge.Malformed as failure:
        error = f"line {failure.line}, column {failure.column}: {failure.reason}"
    return {"path": path, "error": error}


# Network ------------------------------------------------------------------------------------------------------------


def url_problem(value: str) -> str | None:
    """What is wrong with the form of a URL, None if nothing is."""
    if not value or re.search(r"\s", value):
        return "it is empty or contains blanks"
    try:
        parts = urllib.parse.urlsplit(value)
        _port = parts.port
    except ValueError as failure:
        return str(failure)
    if parts.scheme not in ("http", "https", "file", "ftp"):
        return "it does not begin with http://, https://, ftp:// or file:///"
    if parts.scheme == "file":
        return None if parts.path.startswith("/") and not parts.netloc else "a file URL has three slashes: file:///path"
    return None if parts.hostname else "it names no host"


def apt_proxies(run: Run = run_command) -> dict[str, str]:
    """The proxies that apt goes through: scheme, or scheme::host, -> proxy; empty for a direct connection.

    A direct connection may be impossible where the proxy works, so a check has to go the same way.
    """
    proxies = {}
    for line in run(["apt-config", "dump", "--format", "%f %v%n", "Acquire"])[1].splitlines():
        match = re.match(r"^Acquire::(https?)::proxy(::\S+)? (\S+)$", line.strip(), re.I)
        if match:
            proxy = match.group(3)
            proxies[match.group(1).lower() + (match.group(2) or "")] = "" if proxy.upper() == "DIRECT" else proxy
    return proxies


def dnf_proxies(root: str = "/") -> dict[str, str]:
    """The proxy that dnf goes through, in the form of apt_proxies(); for every scheme the same."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(_text(_inside(root, "etc/dnf/dnf.conf")))
    except configparser.Error:
        return {}
    proxy = parser.get("main", "proxy", fallback="").strip()
    return {} if proxy in ("", "_none_") else {"http": proxy, "https": proxy}


def proxies(family: str | None, root: str = "/", run: Run = run_command) -> dict[str, str]:
    """The proxies of the package manager of a family of systems."""
    return dnf_proxies(root) if family == "redhat" else apt_proxies(run)


def _opener(url: str, proxies: dict[str, str]) -> urllib.request.OpenerDirector:
    parts = urllib.parse.urlsplit(url)
    proxy = proxies.get(f"{parts.scheme}::{parts.hostname}", proxies.get(parts.scheme, ""))
    return urllib.request.build_opener(urllib.request.ProxyHandler({parts.scheme: proxy} if proxy else {}))


def remote_packages(
    names: Iterable[str], rows: Iterable[dict[str, Any]], machine: str, proxies: dict[str, str], timeout_s: float = 10.0
) -> set[str] | None:
    """Which of these packages the archives know, by their own indices; None where none could be read.

    For a host that has no indices yet. They are searched while they come in, and nothing is written.
    """
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    wanted = _wanted(names)
    found: set[str] = set()
    readable = False
    for url in _index_urls(rows, architecture):
        if found == set(wanted):
            break
        rest = b"\n"
        try:
            for chunk in _index_chunks(url, proxies, timeout_s):
                readable = True
                text = rest + chunk
                found |= _known(text, wanted)
                # A field may be cut by the end of a chunk.
                rest = text[-REST_MOST:]
            found |= _known(rest + b"\n", wanted)
        except (OSError, EOFError, ValueError, lzma.LZMAError):
            continue
    return found if readable else None


def _index_urls(rows: Iterable[dict[str, Any]], architecture: str) -> list[str]:
    """The indices of apt's sources, `main` before the other components, in which kernels are seldom."""
    urls: dict[str, bool] = {}
    for row in rows:
        base, suite = row["uri"].rstrip("/"), row["suite"]
        if suite.endswith("/"):
            urls.setdefault(f"{base}/{suite.strip('/')}".rstrip("/") + "/Packages.xz", False)
        for component in row["components"]:
            # Source packages have no architecture, and nothing of a family of yum has a component.
            urls.setdefault(f"{base}/dists/{suite}/{component}/binary-{architecture}/Packages.xz", component == "main")
    return sorted(urls, key=lambda url: not urls[url])


def _index_chunks(url: str, proxies: dict[str, str], timeout_s: float) -> Iterator[bytes]:
    with _opener(url, proxies).open(url, timeout=timeout_s) as answer, lzma.open(answer) as stream:
        while True:
            chunk = stream.read(1 << 20)
            if not chunk:
                return
            yield chunk


def _try(url: str, opener: urllib.request.OpenerDirector, timeout_s: float, root: str) -> tuple[int, str]:
    """HTTP status and reason; 0 where no server answered, 200 for a file that is there."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        there = os.path.exists(_inside(root, parts.path))
        return (200, "") if there else (404, "no such file or directory")
    request = urllib.request.Request(url, method="HEAD", headers={"User-Agent": "baremetal.gpu"})
    try:
        with opener.open(request, timeout=timeout_s):
            return 200, ""
    except urllib.error.HTTPError as failure:
        return failure.code, f"HTTP {failure.code} {failure.reason}"
    except (OSError, ValueError) as failure:
        return 0, str(getattr(failure, "reason", failure)) or type(failure).__name__


def unreachable(target: dict[str, Any], proxies: dict[str, str], timeout_s: float = 5.0, root: str = "/") -> str | None:
    """Why a target of preflight_sources.targets() cannot be reached, None if it can.

    One of its URLs must be there. Of a target that is not `strict`, whose layout is not known, it is enough that its
    server answers; but a proxy's refusal says nothing about the server behind it.
    """
    answers = []
    for url in target["urls"]:
        opener = _opener(url, proxies) if target["apt"] else urllib.request.build_opener()
        status, reason = _try(url, opener, timeout_s, root)
        if status and status < 400:
            return None
        answers.append((status, reason))
        if not status:
            # Nobody there: the other names would only wait as long again.
            break
    refusals = (401, 403, 407) if target["apt"] and proxies else (407,)
    # A directory that is not there is no server that answers.
    lenient = not target["strict"] and not target["urls"][0].startswith("file:")
    if lenient and any(400 <= status < 500 and status not in refusals for status, _text in answers):
        return None
    return answers[0][1] if answers else None


def reach(targets: Iterable[dict[str, Any]], proxies: dict[str, str]) -> dict[str, str | None]:
    """Name of the target -> why it cannot be reached. All are tried at once: the slowest decides how long it takes."""
    rows = list(targets)
    with concurrent.futures.ThreadPoolExecutor(max_workers=8) as pool:
        answers = list(pool.map(lambda target: unreachable(target, proxies), rows))
    return {row["name"]: answer for row, answer in zip(rows, answers)}


def gather(
    kernels: Any = "running",
    disk_paths: Iterable[str] = (),
    find_headers: bool = True,
    root: str = "/",
    running: str | None = None,
    machine: str | None = None,
    run: Run = run_command,
    resolver: Callable[[str], list[str]] | None = None,
    clock: Callable[[], int | None] | None = None,
    host: str | None = None,
) -> dict[str, Any]:
    """Everything above about one host."""
    about = system(root, machine)
    running = running or os.uname().release
    installed = installed_kernels(root)
    checked = kernels_to_check(kernels, running, installed)
    here = packages(root, run)
    return {
        "os": about,
        "kernels": {"running": running, "installed": installed, "checked": checked},
        # Searching the package indices takes a moment, and a host without cards builds nothing.
        "headers": headers(checked, root, about["family"], run) if find_headers else {},
        "modules": driver.modules(root),
        "secure_boot": secure_boot(root),
        "disk": disk(disk_paths, root),
        "packages": here,
        "driver_from": installed_method(here, root, about["family"]),
        "repositories": repositories(root),
        "time_synchronised": time_synchronised(root, clock),
        "hostname": hostname(root, host, resolver),
        "engine_configs": {engine: engine_config(engine, root) for engine in ENGINE_CONFIGS},
    }
