# SPDX-License-Identifier: GPL-3.0-or-later
"""The site's catalogue: the images that it has pushed, as the variable `image_catalogue` of its inventory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.host import errors, files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.plugin_utils import image_catalogue
from gpuops.site import Site

VARIABLE = "image_catalogue"
NAME = f"{VARIABLE}.yml"
HEAD = (
    "---\n# The images of the site's registry, for all hosts. `gpuops image push` writes this file; rows that you add "
    "stay.\n"
)


def path_of(site: Site) -> Path:
    """A file of the inventory's directory. Raises Refused for an inventory that is a single file."""
    if not site.inventory.is_dir():
        raise Refused(
            f"the inventory {site.inventory} is a file, so there is no place for {NAME}",
            "put it into a directory, and name that in ansible.cfg",
        )
    return site.inventory / NAME


def read(site: Site) -> list[dict[str, Any]]:
    """The rows; none where nothing was pushed. Raises Refused, which names all that is wrong."""
    path = path_of(site)
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise Refused(
            f"{path} cannot be read: {error}",
            "correct it; where that is of no use, move it away, and `gpuops image push` writes it anew, image by image",
        ) from error
    try:
        rows = document["all"]["vars"][VARIABLE]
    except (KeyError, TypeError):
        raise Refused(
            f"{path} has no all.vars.{VARIABLE}", "move it away; `gpuops image push` writes it anew, image by image"
        ) from None
    found = image_catalogue.problems(rows)
    if found:
        raise Refused(f"{path}: {errors.text(found)}", code="invalid_image_catalogue")
    return list(rows)


def with_row(rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows with this one in the place of the one of its name."""
    return sorted([*(dict(one) for one in rows if one["name"] != row["name"]), dict(row)], key=lambda one: one["name"])


def write(site: Site, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write the file, whole or not at all."""
    path = path_of(site)
    text = yaml.safe_dump({"all": {"vars": {VARIABLE: list(rows)}}}, sort_keys=False, width=110, allow_unicode=True)
    found = path.stat() if path.exists() else site.directory.stat()
    files.write(str(path), HEAD + text, 0o644, found.st_uid, found.st_gid)
    return path
