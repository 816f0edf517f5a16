# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of containers as directories of the OCI image layout, written without an engine. skopeo reads them as
`oci:DIRECTORY:TAG`."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.repositories.apt import EPOCH

KIND = "application/vnd.oci.image"


def layer(programs: Mapping[str, Path], links: Mapping[str, str] | None = None) -> bytes:
    """The tar of programs by absolute path, with a directory for temporary files.

    :param links: target by path.
    """
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        temporary = tarfile.TarInfo("tmp")
        temporary.type, temporary.mode, temporary.mtime = tarfile.DIRTYPE, 0o1777, EPOCH
        archive.addfile(temporary)
        for path, program in programs.items():
            row = tarfile.TarInfo(path.lstrip("/"))
            row.size, row.mode, row.mtime = program.stat().st_size, 0o755, EPOCH
            with program.open("rb") as content:
                archive.addfile(row, content)
        for path, goal in (links or {}).items():
            row = tarfile.TarInfo(path.lstrip("/"))
            row.type, row.linkname, row.mtime = tarfile.SYMTYPE, goal, EPOCH
            archive.addfile(row)
    return made.getvalue()


def write(directory: Path, tag: str, layers: Sequence[bytes], settings: Mapping[str, Any]) -> None:
    """An image under a tag.

    :param settings: what its configuration has as `config`, such as Entrypoint.
    """
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)

    def blob(kind: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": f"{KIND}.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    def document(kind: str, **values: Any) -> dict[str, Any]:
        return blob(kind, json.dumps(values, sort_keys=True).encode())

    config = document(
        "config.v1+json",
        architecture="amd64",
        os="linux",
        config=settings,
        rootfs={"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in layers]},
    )
    manifest = document(
        "manifest.v1+json",
        schemaVersion=2,
        mediaType=f"{KIND}.manifest.v1+json",
        config=config,
        layers=[blob("layer.v1.tar+gzip", gzip.compress(tar, 1, mtime=EPOCH)) for tar in layers],
    )
    row = {**manifest, "annotations": {"org.opencontainers.image.ref.name": tag}}
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [row]}))
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
