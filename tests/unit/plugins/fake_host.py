# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's file tree, hand-made in a temporary directory after what the kernel, dpkg and apt write."""

from __future__ import annotations

import struct
from pathlib import Path

# Hand-made after the form of the real file; the versions are those of Debian's packages.
PROC_VERSION = {
    "proprietary": (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Apr  8 12:41:17 UTC 2025\n"
        "GCC version:  gcc version 14.2.0 (Debian 14.2.0-19) \n"
    ),
    "open": (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (dvs-builder@U22)\n"
        "GCC version:  gcc version 14.2.0 (Debian 14.2.0-19) \n"
    ),
}

OS_RELEASE = {
    "debian12": ("debian", "12", "bookworm", "Debian GNU/Linux 12 (bookworm)"),
    "debian13": ("debian", "13", "trixie", "Debian GNU/Linux 13 (trixie)"),
    "debian11": ("debian", "11", "bullseye", "Debian GNU/Linux 11 (bullseye)"),
    "ubuntu24.04": ("ubuntu", "24.04", "noble", "Ubuntu 24.04.3 LTS"),
    "rocky9": ("rocky", "9.6", "", "Rocky Linux 9.6 (Blue Onyx)"),
}


def kernel_module(**fields: str) -> bytes:
    """The least ELF file that has a .modinfo section."""
    modinfo = b"\0".join(f"{key}={value}".encode() for key, value in fields.items()) + b"\0"
    names = b"\0.modinfo\0.shstrtab\0"
    header_size, entry_size = 64, 64
    modinfo_at = header_size
    names_at = modinfo_at + len(modinfo)
    table_at = names_at + len(names)

    def section(name: int, offset: int, size: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, offset, size, 0, 0, 1, 0)

    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, table_at, 0, 64, 0, 0, entry_size, 3, 2)
    table = section(0, 0, 0) + section(1, modinfo_at, len(modinfo)) + section(10, names_at, len(names))
    return header + modinfo + names + table


class FakeHost:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = str(root)
        (root / "sys/bus/pci/devices").mkdir(parents=True)

    def write(self, path: str, content: str | bytes) -> Path:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            target.write_bytes(content)
        else:
            target.write_text(content)
        return target

    def link(self, path: str, to: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.symlink_to(to)

    def os(self, key: str) -> None:
        name, version, codename, pretty = OS_RELEASE[key]
        self.write(
            "etc/os-release",
            f'PRETTY_NAME="{pretty}"\nID={name}\nVERSION_ID="{version}"\nVERSION_CODENAME={codename}\n',
        )

    def pci(
        self,
        address: str,
        device: str,
        vendor: str = "10de",
        pci_class: str = "030200",
        driver: str | None = None,
        numa: int = -1,
    ) -> None:
        base = f"sys/bus/pci/devices/{address}"
        self.write(f"{base}/vendor", f"0x{vendor}\n")
        self.write(f"{base}/device", f"0x{device}\n")
        self.write(f"{base}/class", f"0x{pci_class}\n")
        self.write(f"{base}/numa_node", f"{numa}\n")
        if driver:
            self.link(f"{base}/driver", f"../../../bus/pci/drivers/{driver}")

    def attribute(self, address: str, name: str, content: str | bytes) -> None:
        self.write(f"sys/bus/pci/devices/{address}/{name}", content)

    def virtual_function(self, address: str, of: str, device: str, **more: str) -> None:
        """A virtual function (SR-IOV) of a device, which has the class of a whole one."""
        self.pci(address, device, **more)
        self.link(f"sys/bus/pci/devices/{address}/physfn", f"../{of}")

    def switch_bridge(self, address: str, serves_switches: bool = True, driver: str = "mlx5_core") -> None:
        """A ConnectX-7 function; its vital product data are hand-made after the form of real ones."""
        self.pci(address, "1021", vendor="15b3", pci_class="020700", driver=driver)
        model = b"V3\x08SMDL=SW_MNG" if serves_switches else b"V3\x08MT2839T05"
        self.attribute(address, "vpd", b"\x82\x0e\x00ConnectX-7 NIC\x90\x40\x00PN\x09MCX75310A" + model + b"\x78")

    def loaded(self, version: str, flavour: str = "proprietary") -> None:
        self.write("proc/driver/nvidia/version", PROC_VERSION[flavour].format(version=version))

    def kernel(self, release: str, headers: bool = True) -> None:
        self.write(f"lib/modules/{release}/modules.builtin", "")
        self.write(f"boot/vmlinuz-{release}", "")
        if headers:
            self.write(f"usr/src/linux-headers-{release}/Makefile", "")
            self.link(f"lib/modules/{release}/build", f"/usr/src/linux-headers-{release}")

    def dkms(self, name: str, version: str, kernel: str, file: str = "nvidia-current.ko.xz") -> None:
        (self.root / f"var/lib/dkms/{name}/{version}/{kernel}/x86_64").mkdir(parents=True)
        self.link(f"var/lib/dkms/{name}/kernel-{kernel}-x86_64", f"{version}/{kernel}/x86_64")
        self.write(f"lib/modules/{kernel}/updates/dkms/{file}", b"not to be read")

    def packages(self, **versions: str) -> None:
        """name=version; double underscores stand for hyphens, and `version|maintainer` names another maintainer."""
        paragraphs = []
        for name, text in versions.items():
            version, _, maintainer = text.partition("|")
            paragraphs.append(
                f"Package: {name.replace('__', '-').replace('_dot_', '.')}\n"
                "Status: install ok installed\nPriority: optional\n"
                f"Maintainer: {maintainer or 'Debian NVIDIA Maintainers <pkg-nvidia-devel@lists.alioth.debian.org>'}\n"
                f"Architecture: amd64\nVersion: {version}\nDescription: x\n"
            )
        self.write("var/lib/dpkg/status", "\n".join(paragraphs))
