# SPDX-License-Identifier: GPL-3.0-or-later
"""What no file of the project may hold."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils import stages
from tests.unit.project.tree import ROOT, tracked_files

TEXT = [
    path for path in tracked_files() if path.suffix not in (".png", ".gz", ".ko", ".bin") and path.name != "LICENSE"
]
HERE = Path(__file__).relative_to(ROOT)

# Put together here so that this file does not find itself.
DEVELOPER_PATHS = re.compile("|".join(["/ho" + r"me/[a-z]+/", "/wo" + "rk/", "/Use" + "rs/", "/root/" + r"\.pyenv"]))
LEFTOVERS = re.compile(r"\b(" + "|".join(["FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b|^(<{7}|>{7}) ", re.MULTILINE)

FOLDERS = "docs gpuops images molecule module_utils playbooks plugin_utils plugins roles tests tools"
# A path in a folder of the project, or the name of a Python file.
FILE = re.compile(rf"(?<![\w/.<-])((?:{FOLDERS.replace(' ', '|')})/[\w./-]*\w|(?:[\w.-]+/)*[\w-]+\.py)(?![\w/*{{<…-])")
FILES_OF_OTHERS = {
    "dcgm_fields.py",
    "docs/docs/rest-api/public/api/v2/types",
    "playbooks/roles/grafana/files/nvidia-gpu-metrics-single.jsonnet",
    "src/pybind/ceph_argparse.py",
    # A user's own.
    "train.py",
}


def text_of(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", TEXT, ids=str)
def test_text_is_clean(path: Path):
    text = text_of(path)
    assert not DEVELOPER_PATHS.search(text), f"a path of somebody's own machine: {DEVELOPER_PATHS.search(text).group()}"
    assert not LEFTOVERS.search(text), f"a note to self: {LEFTOVERS.search(text).group()}"
    assert "\r" not in text, "a carriage return"
    if text:
        assert text.endswith("\n"), "no newline at the end"
        assert not text.endswith("\n\n"), "blank lines at the end"


def prose_of(path: Path) -> Iterator[str]:
    """Comments, docstrings and pages."""
    text = text_of(path)
    if path.suffix == ".md":
        yield text
    elif path.suffix == ".yml":
        yield from re.findall(r"(?m)(?:^|\s)#.*", text)
    elif path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        yield from (token.string for token in tokens if token.type == tokenize.COMMENT)
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        yield from (ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, documented))


@functools.cache
def endings() -> frozenset[str]:
    """The files and folders of the project, each by all ends of its path that have two names or more, or the only."""
    found = {path for file in tracked_files() for path in (file, *file.parents)}
    return frozenset("/".join(path.parts[start:]) for path in found for start in range(max(len(path.parts) - 1, 1)))


@pytest.mark.parametrize("path", [path for path in TEXT if path.suffix in (".md", ".py", ".yml")], ids=str)
def test_files_that_text_names_are_there(path: Path):
    """A name without a folder is that of a file beside or above, and on a page that of any file."""
    named = {re.sub(r"^(\.\./)+", "", name) for text in prose_of(path) for name in FILE.findall(text)}
    # NAME stands for others.
    named = {name for name in named if not re.search(r"[A-Z]{3,}", name)} - FILES_OF_OTHERS - endings()
    anywhere = {file.name for file in tracked_files()} if path.suffix == ".md" else set()
    beside = {name for name in named if any((ROOT / folder / name).exists() for folder in path.parents)}
    missing = named - anywhere - beside
    assert not missing, f"{path} names files that are not there: {sorted(missing)}"


@pytest.mark.parametrize("path", [path for path in TEXT if path.suffix in (".py", ".yml")], ids=str)
def test_every_silenced_check_is_named(path: Path):
    """`# type: ignore` names what is ignored, and `# noqa` gives the reason too, on the line or on the one above."""
    if path == HERE:
        return
    lines = text_of(path).splitlines()
    for number, line in enumerate(lines, 1):
        assert not re.search(r"#\s*type:\s*ignore(?!\[)", line), f"line {number} names no error"
        silenced = re.search(r"#\s*noqa(?P<rest>.*)", line)
        if not silenced:
            continue
        assert re.match(r":?\s*[\w-]", silenced["rest"]), f"line {number} names no rule"
        above = lines[number - 2].strip() if number > 1 else ""
        assert "#" in silenced["rest"] or above.startswith("#"), f"line {number} gives no reason"


@pytest.mark.parametrize(
    "path", [path for path in TEXT if path.parts[0] == "plugins" and path.suffix == ".py"], ids=str
)
def test_names_of_the_collection_are_those_that_ansible_test_allows(path: Path):
    """Its pylint takes minutes and is part of `make sanity` alone."""
    names = [node for node in ast.walk(ast.parse(text_of(path))) if isinstance(node, ast.Name)]
    assert not [f"line {name.lineno}" for name in names if name.id == "_"], "pylint disallows the name _"


def test_no_file_is_large():
    """Captured data belongs here, binaries do not."""
    large = {str(path): (ROOT / path).stat().st_size for path in tracked_files()}
    assert not {path: size for path, size in large.items() if size > 500_000}


def test_scripts_are_executable_and_say_what_runs_them():
    for path in tracked_files():
        if path.is_relative_to("plugins/modules"):
            continue  # Ansible replaces a module's first line and runs it itself
        head = (ROOT / path).read_bytes()[:2]
        executable = bool((ROOT / path).stat().st_mode & 0o111)
        assert executable == (head == b"#!"), f"{path}: a first line with #! and the executable bit go together"


def texts_of(path: Path) -> list[str]:
    """The texts of a file that people may read: strings but for docstrings, or what tasks of a role say."""
    if path.suffix != ".py":
        return [line for line in text_of(path).splitlines() if not line.lstrip().startswith("#")]
    tree = ast.parse(text_of(path))
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [node.value for node in strings if id(node) not in docs]


# Commands that need the rights of root: the key of Ceph, the journal, the kernel's log, states that others set.
AS_ROOT = re.compile(
    r"(?<=[`'])(?<!-c ')(?:journalctl -|dmesg\b|systemctl (?:start|stop|restart) |"
    r"scontrol (?:update|release|cancel_reboot) |"
    r"ceph (?:-s|auth|config|df|fs|fsid|health|mgr|osd|pg|quorum_status|status)\b|modprobe |nvidia-modprobe |"
    r"mokutil --import|nvidia-smi --(?:gpu-reset|reset)|nginx -T)"
)
NO_COMMAND = re.compile(
    r"\bplaybooks/[a-z_]+\.yml|\brun (?:the )?(?:playbook |role )?(?:agent|mesos|node|portal|registry|scheduler|slurm|"
    r"storage)(?:\.yml| again)\b|\brun the (?:role|playbook) (?!baremetal\.)[a-z]"
)
GPUOPS_UP = re.compile(r"gpuops up --tags ([a-z_]+)")
PLAYBOOK = re.compile(r"\bplaybook baremetal\.gpu\.([a-z_]+)")


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in TEXT
        if (path.parts[0] in ("plugins", "gpuops") and path.suffix == ".py")
        or (path.parts[0] == "roles" and path.parts[2] in ("tasks", "files"))
    ],
    ids=str,
)
def test_a_remedy_is_a_command_that_there_is_wherever_it_was_installed(path: Path):
    """Who has installed gpuops or the collection has no directory `playbooks`, and an administrator is not root."""
    tags = {tag for stage in stages.STAGES for tag in stage.tags}
    for text in texts_of(path):
        if text.lstrip().startswith(("---\n", "module:", "options:", "- name:")):
            continue  # the documentation of a module, and its examples
        assert not NO_COMMAND.search(text), f"name `gpuops up --tags TAG`: {text}"
        assert not AS_ROOT.search(text), f"this needs `sudo`: {text}"
        assert not re.search(r"(?<!sudo )'?ceph health detail", text), f"give a command that works as it is: {text}"
        assert not re.search(r"--gpu-reset(?! -i)(?=[`'])", text), f"all GPUs would be reset, with their jobs: {text}"
        assert set(GPUOPS_UP.findall(text)) <= tags, f"no stage has this tag: {text}"
        for name in PLAYBOOK.findall(text):
            assert (ROOT / "playbooks" / f"{name}.yml").is_file(), f"there is no playbook {name}: {text}"
