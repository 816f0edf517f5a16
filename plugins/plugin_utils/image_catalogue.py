# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalogue of images: what its rows must be, and what an image needs of a node."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.host.versions import version_key

Row = Mapping[str, Any]

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,60}[a-z0-9])?", re.ASCII)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
# HOST:PORT/catalogue/NAME; the host is a name or an address, of version 6 in brackets.
REFERENCE = re.compile(r"(\[[0-9a-f:]+\]|[a-z0-9.-]+)(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+", re.ASCII)
VERSION = re.compile(r"[0-9]+(\.[0-9]+){0,3}", re.ASCII)
VARIANTS = ("cpu", "cuda")
# What a row says that an image needs, with where the facts of a node's GPUs have it.
NEEDS = {"cuda": "CUDA", "driver": "driver"}
DESCRIPTION_AT_MOST = 300
ROWS_AT_MOST = 1000

FORMS = {
    "name": (NAME, "lower-case letters, digits and hyphens"),
    "digest": (DIGEST, "sha256: and 64 hexadecimal digits; `gpuops image push` writes it"),
    "reference": (REFERENCE, "HOST:PORT/catalogue/NAME, without a tag"),
}


def problems(catalogue: Any, required: Iterable[str] = ("name", "reference", "digest")) -> list[Problem]:
    """What is wrong with the rows of a catalogue.

    :param required: fields of FORMS that every row has. Those of the definitions have no digest yet.
    """
    if not isinstance(catalogue, list) or len(catalogue) > ROWS_AT_MOST:
        return [
            _problem(
                "the catalogue", f"it is not a list of at most {ROWS_AT_MOST} images", "", "write a list of images"
            )
        ]
    found: list[Problem] = []
    names: list[str] = []
    for number, row in enumerate(catalogue, 1):
        if not isinstance(row, Mapping):
            found.append(
                _problem(f"image {number}", "it is not a mapping", row, "write name, description and the rest")
            )
            continue
        label = f"image {untrusted_text.one_line(row.get('name') or number, 80)}"
        found += _row_problems(label, row, required)
        if row.get("name") in names:
            found.append(_problem(label, "it is there twice", "", "take one of the two out"))
        names.append(row.get("name", ""))
    return found


def _row_problems(label: str, row: Row, required: Iterable[str]) -> list[Problem]:
    found = []
    wanted = set(required)
    for key, (pattern, form) in FORMS.items():
        if key not in row and key not in wanted:
            continue
        value = row.get(key)
        if not isinstance(value, str) or not pattern.fullmatch(value):
            found.append(_problem(label, f"its {key} is not right", value, f"give {form}"))
    description = row.get("description", "")
    if not isinstance(description, str) or len(description) > DESCRIPTION_AT_MOST or not description.isprintable():
        cause = f"its description is not a line of at most {DESCRIPTION_AT_MOST} characters"
        found.append(_problem(label, cause, description, "say in a sentence what is in it"))
    needs = row.get("needs", {})
    if not isinstance(needs, Mapping) or set(needs) - set(NEEDS):
        return [*found, _problem(label, "its needs are not right", needs, f"give versions of {' and '.join(NEEDS)}")]
    for key, version in needs.items():
        if not isinstance(version, str) or not VERSION.fullmatch(version):
            cause = f"its need of {NEEDS[key]} is not a version"
            found.append(_problem(label, cause, version, 'give one in quotes, such as "13.0"'))
    return found


def _problem(label: str, cause: str, value: Any, remedy: str) -> Problem:
    evidence = "" if value in ("", None) else untrusted_text.one_line(repr(value), 120)
    return Problem("invalid_image_catalogue", label, cause, evidence, remedy)


def find(catalogue: Any, image: str) -> Row | None:
    """The row that an image's name means: that of the catalogue, or the reference with or without a tag or digest."""
    if not image:
        return None
    for row in catalogue or []:
        if not isinstance(row, Mapping):
            continue
        reference = str(row.get("reference", ""))
        if image == row.get("name") or (reference and re.fullmatch(rf"{re.escape(reference)}([:@][^/]*)?", image)):
            return row
    return None


def exact(row: Row) -> str:
    """The image as nodes are to fetch it: nothing but its digest decides what they get."""
    return f"{row['reference']}@{row['digest']}"


def unmet(row: Row, facts: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """Which nodes lack what an image needs.

    :param facts: what `gpu_facts` has returned of each node that the job may come to. A node whose driver is not known
        is none that lacks something: nobody has looked.
    """
    found = []
    for host in sorted(facts):
        driver = facts[host].get("driver")
        driver = driver if isinstance(driver, Mapping) else {}
        for key, version in row.get("needs", {}).items():
            has = driver.get("cuda" if key == "cuda" else "version")
            if has and version_key(has) < version_key(version):
                found.append(
                    Problem(
                        "image_needs_more",
                        host,
                        f"the image {row['name']} needs {NEEDS[key]} {version}, and {host} has {NEEDS[key]} {has}",
                        str(has),
                        "upgrade the driver of the node with the playbook baremetal.gpu.upgrade_driver, ask for a type "
                        "of GPU whose nodes have it, or take another image",
                    )
                )
    return found


def resolve(image: str, catalogue: Any, facts: Mapping[str, Mapping[str, Any]]) -> tuple[str, list[Problem]]:
    """The image as nodes are to fetch it, and what keeps nodes from running it. One of elsewhere stays as it is."""
    row = find(catalogue, image)
    if row is None:
        return image, []
    found = problems([row])
    return (image, found) if found else (exact(row), unmet(row, facts))


def facts_of(hosts: Iterable[str], hostvars: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """What is known of the GPUs of hosts."""
    found = {}
    for host in hosts:
        # The variables of all hosts know whether there is one, and raise for one that is not.
        facts = hostvars[host].get("ansible_facts") if host in hostvars else None
        gpu = facts.get("gpu") if isinstance(facts, Mapping) else None
        if isinstance(gpu, Mapping):
            found[host] = gpu
    return found


def to_look_at(
    image: str, catalogue: Any, hosts: Iterable[str], hostvars: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """The hosts of the inventory whose driver matters for an image and is not known yet."""
    row = find(catalogue, image)
    if row is None or not row.get("needs"):
        return []
    known = facts_of(hosts, hostvars)
    return [host for host in hosts if host in hostvars and host not in known]
