# SPDX-License-Identifier: GPL-3.0-or-later
"""What is read of a host, on a hand-made file tree."""

from __future__ import annotations

import gzip
import http.server
import lzma
import socket
import struct
import threading

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.container import engines
from ansible_collections.baremetal.gpu.plugins.module_utils.drift import system as drift_system
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight import driver_origin, gather
from ansible_collections.baremetal.gpu.plugins.module_utils.system import (
    addresses,
    archives,
    clock,
    disk,
    kernels,
    packages,
    proxies,
    reach,
    release,
    repositories,
    secure_boot,
)

KERNEL = "6.12.48+deb13-amd64"
SECURE_BOOT = f"sys/firmware/efi/efivars/SecureBoot-{secure_boot.GLOBAL_VARIABLE}"
MOK_LIST = f"sys/firmware/efi/efivars/MokListRT-{secure_boot.SHIM_VARIABLE}"
INDEX = (
    "Package: linux-headers-6.1.0-40-amd64\nVersion: 6.1.153-1\n\n"
    f"Package: linux-headers-{KERNEL}\nVersion: 6.12.48-1\n\n"
    "Package: linux-image-6.1.0-40-amd64\nDepends: linux-headers-9.9.9-amd64\n\n"
)


@pytest.fixture
def host(fake_host):
    fake_host.os("debian13")
    return fake_host


def no_command(arguments):
    raise AssertionError(f"{arguments} was run")


@pytest.mark.parametrize(
    ("distribution", "key", "family", "level"),
    [
        ("debian12", "debian12", "debian", "ci"),
        ("debian13", "debian13", "debian", "ci"),
        ("ubuntu24.04", "ubuntu24.04", "debian", "documented"),
        ("rocky9", "el9", "redhat", "documented"),
        ("debian11", None, None, None),
    ],
)
def test_system(fake_host, distribution, key, family, level):
    fake_host.os(distribution)
    about = release.system(fake_host.path, "x86_64")
    assert (about["key"], about["family"], about["level"]) == (key, family, level)
    assert about["name"]


def test_system_without_a_release_file(fake_host):
    assert release.system(fake_host.path)["name"] == "unknown"


def test_kernels_that_dkms_left_behind_are_none(host):
    host.kernel("6.1.0-40-amd64")
    host.kernel("6.1.0-9-amd64")
    host.write("lib/modules/6.1.0-8-amd64/updates/dkms/nvidia.ko", "")
    host.write("boot/vmlinuz-0-rescue-5a", "")
    assert kernels.installed_kernels(host.path) == ["6.1.0-9-amd64", "6.1.0-40-amd64"]


@pytest.mark.parametrize(
    "leftover",
    [
        # Where NVIDIA's installer puts a module, and DKMS on a system that it does not know.
        "lib/modules/6.1.0-8-amd64/kernel/drivers/video/nvidia.ko",
        # dpkg was cut, and `make install` keeps what was there before.
        "boot/vmlinuz-6.1.0-9-amd64.dpkg-new",
        "boot/vmlinuz-6.1.0-9-amd64.old",
        "boot/vmlinuz-6.1.0-8-amd64",
    ],
)
def test_what_no_driver_can_be_built_for_is_no_kernel(host, leftover):
    host.kernel("6.1.0-9-amd64")
    host.write(leftover, "")
    assert kernels.installed_kernels(host.path) == ["6.1.0-9-amd64"]
    assert gather.gather(root=host.path, running="6.1.0-9-amd64", run=no_command, find_headers=False)["kernels"][
        "installed"
    ] == ["6.1.0-9-amd64"]
    assert drift_system.dkms_kernels({"kernels": "installed"}, host.path) == ["6.1.0-9-amd64"]


@pytest.mark.parametrize(
    ("choice", "expected"), [("running", ["b"]), ("installed", ["a", "b"]), (["c"], ["c"]), ([], [])]
)
def test_kernels_to_check(choice, expected):
    assert kernels.kernels_to_check(choice, "b", ["a", "b"]) == expected


def test_headers_that_are_there_need_no_index(host):
    host.kernel(KERNEL)
    assert kernels.headers([KERNEL], host.path, "debian", no_command) == {KERNEL: "installed"}


def test_a_dangling_link_to_headers_is_no_headers(host):
    host.kernel(KERNEL, headers=False)
    host.link(f"lib/modules/{KERNEL}/build", f"/usr/src/linux-headers-{KERNEL}")
    assert kernels.headers([KERNEL], host.path, "debian", no_command) == {KERNEL: "unknown"}


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".lz4"])
def test_headers_in_an_index_on_disk(host, suffix):
    pack = {
        "": bytes,
        ".gz": gzip.compress,
        ".xz": lzma.compress,
        ".lz4": lambda content: b"\x04\x22\x4d\x18" + content,
    }
    path = f"var/lib/apt/lists/mirror_dists_trixie_main_binary-amd64_Packages{suffix}"
    host.write(path, pack[suffix](INDEX.encode()))
    asked = []

    def helper(arguments):
        asked.append(arguments)
        return 0, INDEX

    answer = kernels.headers([KERNEL, "9.9.9-amd64"], host.path, "debian", helper)
    assert answer == {KERNEL: "available", "9.9.9-amd64": "missing"}
    assert asked == ([["/usr/lib/apt/apt-helper", "cat-file", f"{host.path}/{path}"]] if suffix == ".lz4" else [])


def test_without_an_index_nothing_is_claimed(host):
    assert kernels.headers([KERNEL], host.path, "debian", no_command) == {KERNEL: "unknown"}
    host.write("var/lib/apt/lists/mirror_dists_trixie_main_binary-amd64_Packages.lz4", b"x")
    assert kernels.headers([KERNEL], host.path, "debian", lambda arguments: (127, "")) == {KERNEL: "unknown"}


def test_headers_package():
    assert kernels.headers_package(KERNEL, "debian") == f"linux-headers-{KERNEL}"
    assert kernels.headers_package("5.14.0-1.el9.x86_64", "redhat") == "kernel-devel-5.14.0-1.el9.x86_64"


def test_secure_boot_without_uefi(host):
    assert secure_boot.secure_boot(host.path) == {"enabled": False, "key": None, "key_enrolled": None}


@pytest.mark.parametrize(("value", "enabled"), [(b"\x06\0\0\0\x01", True), (b"\x06\0\0\0\0", False), (b"", None)])
def test_secure_boot(host, value, enabled):
    host.write(SECURE_BOOT, value)
    assert secure_boot.secure_boot(host.path)["enabled"] is enabled


@pytest.mark.parametrize(("enrolled", "expected"), [(b"list" + b"CERTIFICATE" + b"end", True), (b"list", False)])
def test_whether_the_signing_key_is_enrolled(host, enrolled, expected):
    host.write(SECURE_BOOT, b"\x06\0\0\0\x01")
    host.write("var/lib/dkms/mok.pub", b"CERTIFICATE")
    assert secure_boot.secure_boot(host.path)["key_enrolled"] is None
    host.write(MOK_LIST, enrolled)
    assert secure_boot.secure_boot(host.path) == {
        "enabled": True,
        "key": "/var/lib/dkms/mok.pub",
        "key_enrolled": expected,
    }


def test_disk_of_a_path_that_is_not_there_yet_is_that_of_its_parent(host):
    (host.root / "var").mkdir()
    answer = disk.disk(["/var", "/var/lib/docker/x"], host.path)
    assert answer["/var"] == answer["/var/lib/docker/x"]
    assert answer["/var"]["free_mib"] > 0


def test_packages(host):
    host.packages(nvidia__kernel__dkms="550.163.01-2", docker_dot_io="26.1.5", bash="5.2")
    with (host.root / "var/lib/dpkg/status").open("a") as status:
        status.write("\nPackage: podman\nStatus: deinstall ok config-files\nVersion: 5\n")
    answer = packages.packages(host.path, no_command)
    assert {name: row["version"] for name, row in answer.items()} == {
        "nvidia-kernel-dkms": "550.163.01-2",
        "docker.io": "26.1.5",
    }


def test_packages_of_rpm(host):
    (host.root / "var/lib/rpm").mkdir(parents=True)
    lines = "nvidia-driver-cuda\t580.95.05-1.el9\tNVIDIA\nbash\t5.1-1\tRocky\ndocker-ce\t28.0-1\n"
    answer = packages.packages(host.path, lambda arguments: (0, lines) if arguments[0] == "rpm" else (127, ""))
    assert answer == {
        "nvidia-driver-cuda": {"version": "580.95.05-1.el9", "vendor": "NVIDIA"},
        "docker-ce": {"version": "28.0-1", "vendor": ""},
    }


def test_where_the_driver_came_from(host):
    host.packages(libnvidia__ml1="550.163.01-2")
    host.link("usr/bin/nvidia-uninstall", "nvidia-installer")
    assert driver_origin.installed_method(packages.packages(host.path), host.path) == {
        "distro": "package libnvidia-ml1 550.163.01-2",
        "runfile": "/usr/bin/nvidia-uninstall",
    }
    host.packages(libnvidia__ml1="580.95.05-1|cudatools <cudatools@nvidia.com>")
    assert "nvidia_repo" in driver_origin.installed_method(packages.packages(host.path), host.path)


def test_packages_of_rpm_do_not_tell_where_the_driver_came_from(host):
    """NVIDIA's repository and those that a site makes of it have the same packages."""
    installed = {"nvidia-driver-cuda": {"version": "580.95.05-1.el9", "vendor": ""}}
    assert driver_origin.installed_method(installed, host.path, "redhat") == {}
    host.link("usr/bin/nvidia-uninstall", "nvidia-installer")
    assert driver_origin.installed_method(installed, host.path, "redhat") == {"runfile": "/usr/bin/nvidia-uninstall"}


def test_repositories(host):
    host.write(
        "etc/apt/sources.list",
        "# comment\n"
        "deb [arch=amd64 signed-by=/usr/share/keyrings/a.gpg] http://mirror/debian trixie main contrib # why\n"
        "deb-src http://mirror/debian trixie main\n"
        "#deb http://mirror/old trixie main\n",
    )
    host.write(
        "etc/apt/sources.list.d/x.sources",
        "Types: deb deb-src\n# note\nURIs: http://mirror/security http://other/security\n"
        "Suites: trixie-security trixie-updates\nComponents: main\nSigned-By: /usr/share/keyrings/b.gpg\n\n"
        "Types: deb\nURIs: http://off/\nSuites: x\nComponents: main\nEnabled: no\n\n"
        "Types: deb\nURIs: file:///srv/repo\nSuites: ./\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n",
    )
    host.write(
        "etc/yum.repos.d/c.repo", "[cuda]\nbaseurl=https://mirror/cuda\nenabled=1\n[off]\nbaseurl=x\nenabled=0\n"
    )
    rows = repositories.repositories(host.path)
    assert [(row["file"], row["uri"], row["suite"], row["components"]) for row in rows] == [
        ("/etc/apt/sources.list", "http://mirror/debian", "trixie", ["main", "contrib"]),
        ("/etc/apt/sources.list.d/x.sources", "http://mirror/security", "trixie-security", ["main"]),
        ("/etc/apt/sources.list.d/x.sources", "http://mirror/security", "trixie-updates", ["main"]),
        ("/etc/apt/sources.list.d/x.sources", "http://other/security", "trixie-security", ["main"]),
        ("/etc/apt/sources.list.d/x.sources", "http://other/security", "trixie-updates", ["main"]),
        ("/etc/apt/sources.list.d/x.sources", "file:///srv/repo", "./", []),
        ("/etc/yum.repos.d/c.repo", "https://mirror/cuda", "cuda", []),
    ]
    assert rows[0]["signed_by"] == "/usr/share/keyrings/a.gpg"
    assert rows[5]["signed_by"].startswith("-----BEGIN")


@pytest.mark.parametrize(
    ("status", "stamp", "expected"),
    [(0x2001, False, True), (0x40, False, False), (0x40, True, True), (None, False, None), (None, True, True)],
)
def test_time(host, status, stamp, expected):
    if stamp:
        host.write("run/systemd/timesync/synchronized", "")
    assert clock.time_synchronised(host.path, lambda: status) is expected


def test_the_kernel_answers_for_its_clock():
    status = clock._clock_status()
    assert status is None or 0 <= status < 0x10000


FIB_TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 127.0.0.1
        /32 host LOCAL
     |-- 192.0.2.31
        /32 host LOCAL
     |-- 192.0.2.255
        /32 link BROADCAST
"""


@pytest.mark.parametrize(
    ("hosts", "resolver", "resolves", "own"),
    [
        ("192.0.2.31 gpu1.site gpu1\n", None, True, True),
        ("127.0.1.1 gpu1 # Debian's own habit\n", None, True, True),
        ("192.0.2.99 gpu1\n", None, True, False),
        ("192.0.2.31 gpu10\n", None, None, None),
        ("", ["192.0.2.31"], True, True),
        ("", [], False, None),
    ],
)
def test_hostname(host, hosts, resolver, resolves, own):
    host.write("etc/hosts", hosts)
    host.write("proc/net/fib_trie", FIB_TRIE)
    ask = None if resolver is None else lambda name: resolver
    answer = addresses.hostname(host.path, "gpu1", ask)
    assert (answer["resolves"], answer["own"]) == (resolves, own)


def test_a_name_that_the_system_library_knows_by_itself_is_not_asked_for(host):
    host.write("etc/nsswitch.conf", "passwd: files\nhosts: files myhostname dns\n")

    def never(name):
        raise AssertionError("the resolver was asked")

    assert addresses.hostname(host.path, "gpu1", never)["resolves"] is True


@pytest.mark.parametrize(
    ("engine", "content", "error"),
    [
        ("docker", "{}", None),
        ("docker", "", None),
        ("docker", "[]", "line 1, column 1"),
        ("docker", '{"a": "secret",\n "a": "secret"}', "line 1, column 1"),
        ("docker", '{\n  "log-driver": secret\n}\n', "line 2, column 17: Expecting value"),
        ("podman", "# nothing\n", None),
        ("podman", "[engine]\ncgroup_manager = secret\n", "line 2, column 18"),
        ("containerd", "version = 2\n", None),
        ("containerd", 'version = 2\n[plugins."a"\npassword = "secret"\n', "line 2, column 13"),
    ],
)
def test_an_engines_configuration(host, engine, content, error):
    path = engines.ENGINE_CONFIGS[engine]
    assert engines.engine_config(engine, host.path) == {"path": path, "error": None}
    host.write(path.lstrip("/"), content)
    answer = engines.engine_config(engine, host.path)["error"]
    assert answer == error or str(answer).startswith(f"{error}: ")
    assert "secret" not in str(answer)


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("https://mirror.example/debian", None),
        ("http://[2001:db8::1]:3142/debian", None),
        ("file:///srv/mirror", None),
        ("file://srv/mirror", "a file URL has three slashes: file:///path"),
        ("htp://mirror", "it does not begin with http://, https://, ftp:// or file:///"),
        ("mirror.example/debian", "it does not begin with http://, https://, ftp:// or file:///"),
        ("https:///debian", "it names no host"),
        ("https://mirror:99999/", "Port out of range 0-65535"),
        ("https://mirror /debian", "it is empty or contains blanks"),
        ("", "it is empty or contains blanks"),
    ],
)
def test_form_of_a_url(url, wrong):
    assert reach.url_problem(url) == wrong


def test_proxies_of_apt():
    output = (
        "Acquire \nAcquire::http \nAcquire::http::Proxy http://cache:3142\n"
        "Acquire::http::Proxy::mirror.site DIRECT\nAcquire::https::Proxy DIRECT\n"
    )
    assert proxies.apt_proxies(lambda arguments: (0, output)) == {
        "http": "http://cache:3142",
        "http::mirror.site": "",
        "https": "",
    }
    assert proxies.apt_proxies(lambda arguments: (127, "")) == {}


@pytest.mark.parametrize(
    ("setting", "proxy"), [("proxy=http://cache:3128\n", "http://cache:3128"), ("proxy=_none_\n", ""), ("", "")]
)
def test_proxies_of_dnf(host, setting, proxy):
    host.write("etc/dnf/dnf.conf", f"[main]\ngpgcheck=1\n{setting}")
    expected = {"http": proxy, "https": proxy} if proxy else {}
    assert proxies.proxies("redhat", host.path, lambda arguments: (0, "Acquire::http::Proxy http://apt:1")) == expected


@pytest.fixture
def server():
    """A server that knows /here only and refuses /broken."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append(self.path)
            self.send_response({"here": 200, "broken": 503, "forbidden": 403}.get(self.path.rsplit("/", 1)[1], 404))
            self.end_headers()

        def log_message(self, *arguments):
            pass

    asked: list[str] = []
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as running:
        running.asked = asked
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def target(*urls, apt=True, strict=True):
    return {"name": urls[0], "urls": list(urls), "apt": apt, "strict": strict}


def test_one_of_the_urls_must_be_there(server):
    base = f"http://127.0.0.1:{server.server_port}"
    assert reach.unreachable(target(f"{base}/other", f"{base}/here"), {}) is None
    assert reach.unreachable(target(f"{base}/other", f"{base}/others"), {}) == "HTTP 404 Not Found"
    assert reach.unreachable(target(f"{base}/broken"), {}) == "HTTP 503 Service Unavailable"


def test_of_an_unknown_layout_any_answer_will_do(server):
    base = f"http://127.0.0.1:{server.server_port}"
    assert reach.unreachable(target(f"{base}/other", strict=False), {}) is None
    assert reach.unreachable(target(f"{base}/broken", strict=False), {}) == "HTTP 503 Service Unavailable"
    assert reach.unreachable(target(f"{base}/forbidden", strict=False), {}) is None


def test_a_proxys_refusal_says_nothing_about_the_server(server):
    proxies = {"http": f"http://127.0.0.1:{server.server_port}"}
    assert reach.unreachable(target("http://mirror.invalid/here"), proxies) is None
    assert server.asked == ["http://mirror.invalid/here"]
    refused = target("http://mirror.invalid/forbidden", strict=False)
    assert reach.unreachable(refused, proxies) == "HTTP 403 Forbidden"
    direct = {**proxies, "http::mirror.invalid": ""}
    assert reach.unreachable(target("http://mirror.invalid/here"), direct) is not None
    assert reach.unreachable(target("http://mirror.invalid/here", apt=False), proxies) is not None


def test_the_archives_are_asked_where_there_is_no_index(host, tmp_path):
    """A directory stands in for the archive; the name that is looked for lies across two chunks."""
    padding = b"Description: " + b"x" * ((1 << 20) - 30) + b"\n\n"
    archive = tmp_path / "archive"
    for suite, content in (("trixie", padding + INDEX.encode()), ("trixie-security", b"Package: linux-headers-7-x\n")):
        path = archive / "dists" / suite / "main" / "binary-amd64" / "Packages.xz"
        path.parent.mkdir(parents=True)
        path.write_bytes(lzma.compress(content))
    rows = [
        {"uri": f"file://{archive}", "suite": suite, "components": components}
        for suite, components in (("x", ["contrib"]), ("none", ["main"]), ("trixie", ["main"]))
    ]
    wanted = ["linux-headers-6.1.0-40-amd64", "linux-headers-7-x"]
    assert archives.remote_packages(wanted, rows, "x86_64", {}) == {"linux-headers-6.1.0-40-amd64"}
    rows.append({"uri": f"file://{archive}/", "suite": "trixie-security", "components": ["main"]})
    assert archives.remote_packages(wanted, rows, "x86_64", {}) == set(wanted)
    assert archives.remote_packages(wanted, rows[:2], "x86_64", {}) is None
    assert archives.remote_packages(wanted, rows, "aarch64", {}) is None


def test_nobody_there():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        assert reach.reach([target(url, url)], {}) == {url: "[Errno 111] Connection refused"}


def test_a_directory_is_reached_if_it_exists(host):
    (host.root / "srv/mirror").mkdir(parents=True)
    assert reach.unreachable(target("file:///srv/mirror"), {}, root=host.path) is None
    for strict in (True, False):
        missing = target("file:///srv/none", strict=strict)
        assert reach.unreachable(missing, {}, root=host.path) == "no such file or directory"


def test_everything_of_a_host_at_once(host):
    host.kernel(KERNEL)
    host.packages(docker_dot_io="26.1.5")
    answer = gather.gather(
        root=host.path, running=KERNEL, machine="x86_64", disk_paths=["/"], clock=lambda: 0, host="gpu1", run=no_command
    )
    assert answer["kernels"] == {"running": KERNEL, "installed": [KERNEL], "checked": [KERNEL]}
    assert answer["headers"] == {KERNEL: "installed"}
    assert answer["time_synchronised"] is True
    assert set(answer["packages"]) == {"docker.io"}


def test_reading_a_host_leaves_no_trace(host):
    host.kernel(KERNEL, headers=False)
    host.write("var/lib/apt/lists/mirror_dists_trixie_main_binary-amd64_Packages", INDEX)
    before = sorted(path for path in host.root.rglob("*"))
    gather.gather(root=host.path, running=KERNEL, clock=lambda: 0)
    assert sorted(path for path in host.root.rglob("*")) == before


def test_struct_timex_is_laid_out_as_the_kernel_has_it():
    # modes is an int, padded to a long; status follows four longs.
    assert struct.calcsize("@I4l") == 8 + 4 * struct.calcsize("l")


PVE = "6.8.12-1-pve"
PROVIDED = f"linux-headers-{PVE}"


@pytest.mark.parametrize(
    ("provides", "state"),
    [
        (PROVIDED, "available"),
        (f"pve-headers-{PVE}, {PROVIDED}", "available"),
        (f"{PROVIDED} (= 6.8.12-1), pve-headers", "available"),
        (f"pve-headers,{PROVIDED}:amd64", "available"),
        (f"pve-headers,\n {PROVIDED}", "available"),
        (f"{PROVIDED}-dbg", "missing"),
        (f"not-{PROVIDED}", "missing"),
    ],
)
def test_headers_that_another_package_provides(host, provides, state):
    index = (
        f"Package: proxmox-headers-{PVE}\nProvides: {provides}\nVersion: 6.8.12-1\n\nPackage: z\nDepends: {PROVIDED}\n"
    )
    host.write("var/lib/apt/lists/mirror_dists_x_pve_binary-amd64_Packages", index)
    assert kernels.headers([PVE], host.path, "debian", no_command) == {PVE: state}


def test_the_last_line_of_an_index_counts_too(host):
    host.write("var/lib/apt/lists/mirror_dists_x_main_binary-amd64_Packages", f"Package: x\nProvides: {PROVIDED}")
    assert kernels.headers([PVE], host.path, "debian", no_command) == {PVE: "available"}


def test_the_archives_are_asked_for_what_is_provided_in_whichever_component(tmp_path):
    """Proxmox has its kernels in a component of its own, a flat repository none. The name lies across two chunks."""
    archive = tmp_path / "archive"
    padding = b"Description: " + b"x" * ((1 << 20) - 50) + b"\n\n"
    content = padding + f"Package: proxmox-headers\nProvides: {PROVIDED}".encode()
    for directory in ("dists/bookworm/pve-no-subscription/binary-amd64", "flat"):
        (archive / directory).mkdir(parents=True)
        (archive / directory / "Packages.xz").write_bytes(lzma.compress(content))
    row = {"uri": f"file://{archive}", "suite": "bookworm", "components": ["pve-no-subscription"]}
    assert archives.remote_packages([PROVIDED], [row], "x86_64", {}) == {PROVIDED}
    flat = {"uri": f"file://{archive}", "suite": "flat/", "components": []}
    assert archives.remote_packages([PROVIDED], [flat], "x86_64", {}) == {PROVIDED}
    assert archives.remote_packages(["linux-headers-6.8.12-1"], [row], "x86_64", {}) == set()


def test_what_a_driver_leaves_behind_is_no_driver(host):
    host.packages(nvidia__kernel__common="20220217+3~deb12u1", nvidia__installer__cleanup="20220217+3~deb12u1")
    assert driver_origin.installed_method(packages.packages(host.path, no_command), host.path) == {}
    host.packages(nvidia__kernel__common="20220217+3~deb12u1", nvidia__kernel__dkms="550.163.01-2")
    assert driver_origin.installed_method(packages.packages(host.path, no_command), host.path) == {
        "distro": "package nvidia-kernel-dkms 550.163.01-2"
    }
