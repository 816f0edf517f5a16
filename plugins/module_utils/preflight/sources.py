# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where packages and files would come from, and whether the host reaches it."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.compatibility import problem
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight.report import Judgement
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight.variables import DEFAULTS
from ansible_collections.baremetal.gpu.plugins.module_utils.system.reach import url_problem

NVIDIA_REPOSITORIES = "https://developer.download.nvidia.com/compute/cuda/repos"
CUDA_REPOSITORY = re.compile(r"/compute/cuda/repos/(?P<os>[a-z]+[0-9]+)(?:/|$)")


def judge_repositories(host: dict[str, Any], wanted: dict[str, Any], judgement: Judgement) -> None:
    by_place: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in host["repositories"]:
        by_place.setdefault((row["uri"].rstrip("/"), row["suite"].rstrip("/")), []).append(row)
    for (uri, suite), rows in sorted(by_place.items()):
        files = sorted({row["file"] for row in rows})
        if len({row["signed_by"] for row in rows}) > 1:
            judgement.problem(
                "repository_conflict",
                f"{' and '.join(files)} name the same repository with different keys, which apt refuses",
                f"{uri} {suite}",
                f"keep it in one file, or give Signed-By the same value in {' and '.join(files)}",
            )
        elif len(rows) > 1:
            seen: set[str] = set()
            for row in rows:
                again = seen & set(row["components"] or ["/"])
                seen |= set(row["components"] or ["/"])
                if again:
                    judgement.caution(
                        "repository_duplicate",
                        f"the repository is named more than once in {' and '.join(files)}",
                        f"{uri} {suite}",
                        "keep it in one place",
                    )
                    break
    for row in host["repositories"]:
        match = CUDA_REPOSITORY.search(row["uri"])
        if not match:
            continue
        if host["os"]["repository"] and match["os"] != host["os"]["repository"]:
            judgement.problem(
                "repository_wrong_os",
                f"{row['file']} names NVIDIA's repository for {match['os']}, and this host is {host['os']['name']}",
                row["uri"],
                f"remove it or take the repository for {host['os']['repository']}",
            )
        elif wanted["nvidia_driver_method"] == "distro" and wanted["cuda_method"] == "distro":
            judgement.problem(
                "repository_mixed",
                f"{row['file']} names NVIDIA's repository, whose driver would take the place of the distribution's",
                row["uri"],
                f"remove {row['file']}, or set nvidia_driver_method to nvidia_repo",
            )


def judge_urls(options: dict[str, Any], judgement: Judgement) -> None:
    for name, value in sorted((options.get("urls") or {}).items()):
        wrong = url_problem(str(value)) if value else None
        if wrong:
            judgement.problem("url", f"{name} is not a URL: {wrong}", value, f"correct {name}")


def judge_runfile(options: dict[str, Any], wanted: dict[str, Any], judgement: Judgement) -> None:
    if wanted["nvidia_driver_method"] != "runfile":
        return
    source = options.get("runfile") or {}
    if not source.get("url") and not source.get("path"):
        judgement.problem(
            "runfile_missing",
            "nvidia_driver_method is runfile and no installer is named",
            "",
            "set nvidia_driver_runfile_url or nvidia_driver_runfile_path",
        )
    checksum = str(source.get("sha256") or "")
    if not re.match(r"^[0-9a-fA-F]{64}\Z", checksum):
        judgement.problem(
            "runfile_checksum",
            "the installer has no SHA-256 to be checked against",
            checksum,
            "set nvidia_driver_runfile_sha256 to the 64 digits that `sha256sum` prints for the file",
        )
    elif source.get("found_sha256") and source["found_sha256"].lower() != checksum.lower():
        judgement.problem(
            "runfile_mismatch",
            f"{source['path']} on the controller has the SHA-256 {source['found_sha256']}, not the one that is set",
            checksum,
            "fetch the file again, or correct nvidia_driver_runfile_sha256 if the file is the right one",
        )
    if source.get("error"):
        judgement.problem(
            "runfile_missing",
            f"the installer cannot be read on the controller: {source['error']}",
            source["path"],
            "correct nvidia_driver_runfile_path, which is a path on the controller",
        )


def urls_in_use(host: dict[str, Any], present: bool, variables: dict[str, Any], urls: dict[str, Any]) -> dict[str, str]:
    """Those of the URLs that the variables lead to on this host, with NVIDIA's own repository where none is named."""
    wanted = {**DEFAULTS, **{name: value for name, value in variables.items() if value is not None}}

    def uses(role: str, method: str) -> bool:
        return present and wanted[f"{role}_state"] == "present" and wanted[f"{role}_method"] == method

    runtime = wanted["container_runtime_state"] == "present"
    in_use = {
        "nvidia_driver_runfile_": uses("nvidia_driver", "runfile"),
        "nvidia_driver_repo_": uses("nvidia_driver", "nvidia_repo") or uses("cuda", "nvidia_repo"),
        "cuda_": uses("cuda", "nvidia_repo"),
        "container_runtime_docker_": runtime and wanted["container_runtime_engine"] in ("docker", "containerd"),
        "container_runtime_toolkit_": runtime and present and wanted["container_runtime_nvidia"] in ("auto", "toolkit"),
    }
    chosen = {
        name: str(url)
        for name, url in urls.items()
        if url and next((used for prefix, used in in_use.items() if name.startswith(prefix)), True)
    }
    machine = {"x86_64": "x86_64", "aarch64": "sbsa"}.get(host["os"]["machine"])
    own = [role for role in ("nvidia_driver", "cuda") if uses(role, "nvidia_repo")]
    if own and host["os"]["repository"] and machine and "nvidia_driver_repo_url" not in chosen:
        for role in own:
            chosen.setdefault(f"{role}_repo_url", f"{NVIDIA_REPOSITORIES}/{host['os']['repository']}/{machine}/")
    return chosen


def targets(host: dict[str, Any], urls: dict[str, str]) -> list[dict[str, Any]]:
    """What an installation would fetch from: {name, urls of which one must be there, apt: by its proxy, strict}."""
    rows: list[dict[str, Any]] = []
    places: tuple[str, ...]
    for name, url in sorted(urls.items()):
        if url_problem(url):
            continue
        base = url.rstrip("/")
        if name.endswith(("_key_url", "_runfile_url")):
            # Files are fetched without apt.
            rows.append({"name": url, "urls": [url], "apt": False, "strict": True})
        else:
            places = (f"dists/{host['os']['codename']}/InRelease", "InRelease", "Release", "repodata/repomd.xml", "")
            rows.append({"name": url, "urls": [f"{base}/{place}" for place in places], "apt": True, "strict": False})
    for row in host["repositories"]:
        # What yum puts in place of its variables is not known here.
        if url_problem(row["uri"]) or "$" in row["uri"]:
            continue
        base = directory = row["uri"].rstrip("/")
        suite = row["suite"]
        if row["file"].endswith(".repo"):
            name, places = base, ("repodata/repomd.xml", "")
        else:
            # A suite that ends in a slash is the directory itself.
            directory = f"{base}/{suite}".rstrip("/") if suite.endswith("/") else f"{base}/dists/{suite}"
            name, places = f"{base} {suite}", ("InRelease", "Release")
        if name not in [known["name"] for known in rows]:
            rows.append(
                {"name": name, "urls": [f"{directory}/{place}" for place in places], "apt": True, "strict": True}
            )
    return rows


def judge_reach(answers: dict[str, str | None]) -> list[dict[str, Any]]:
    """`answers`: URL -> why it cannot be reached, None where it can."""
    return [
        problem(
            "unreachable",
            f"the host cannot reach what it is to install from: {why}",
            url,
            "check the network, the name service and the proxy of the host, correct the URL, or name a mirror",
        )
        for url, why in answers.items()
        if why
    ]
