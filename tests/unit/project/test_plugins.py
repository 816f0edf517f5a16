# SPDX-License-Identifier: GPL-3.0-or-later
"""What every plugin has to bring."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest

from tests.unit.project.tree import BIN, ROOT, run, tracked, try_run

DOCUMENTED = ("modules", "filter", "test", "inventory", "callback", "lookup")
MODULES = [path.stem for path in tracked("plugins/modules", ".py")]


def plugins(kind: str) -> list[str]:
    files = [path for path in tracked(f"plugins/{kind}") if path.suffix in (".py", ".yml")]
    return sorted({path.stem for path in files} - {"__init__"})


def rendered(kind: str) -> dict[str, dict]:
    """What ansible-doc makes of every plugin of a kind."""
    names = plugins(kind)
    if not names:
        return {}
    kind_of_doc = "module" if kind == "modules" else kind
    return json.loads(run(BIN / "ansible-doc", "--json", "-t", kind_of_doc, *(f"baremetal.gpu.{n}" for n in names)))


def test_there_are_modules():
    assert MODULES


@pytest.mark.parametrize("kind", DOCUMENTED)
def test_ansible_doc_renders_every_plugin(kind):
    docs = rendered(kind)
    assert sorted(docs) == [f"baremetal.gpu.{name}" for name in plugins(kind)]
    for name, parts in docs.items():
        doc = parts["doc"]
        assert doc["short_description"], name
        assert doc["version_added"], name
        assert parts["examples"], f"{name} has no EXAMPLES"
        if kind == "modules":
            assert doc["author"] == ["baremetal.gpu contributors (@baremetal-gpu)"], name
            assert parts["return"], f"{name} has no RETURN"
            for attribute in ("check_mode", "diff_mode", "platform"):
                assert doc["attributes"][attribute]["support"], f"{name} does not tell its {attribute}"


@pytest.mark.parametrize("kind", [kind for kind in DOCUMENTED if plugins(kind)])
def test_ansible_doc_shows_every_plugin_to_a_reader(kind):
    """The text that `ansible-doc -t KIND baremetal.gpu.NAME` prints, in full and without a complaint."""
    kind_of_doc = "module" if kind == "modules" else kind
    documented = rendered(kind)
    done = try_run([BIN / "ansible-doc", "-t", kind_of_doc, *documented], COLUMNS="200")
    assert (done.returncode, done.stderr) == (0, "")
    _nothing, *texts = re.split(rf"^> {kind_of_doc.upper()} ", done.stdout, flags=re.MULTILINE)
    shown = {text.split(" ", 1)[0]: text for text in texts}
    assert set(shown) == set(documented)
    for name, parts in documented.items():
        options = [option for option in parts["doc"].get("options", {}) if not option.startswith("_")]
        assert [option for option in options if not re.search(rf"^[-=] {option} ", shown[name], re.MULTILINE)] == [], (
            name
        )


@pytest.mark.parametrize("path", [*tracked("plugins", ".py"), *tracked("gpuops", ".py")], ids=str)
def test_licence_header(path: Path):
    head = (ROOT / path).read_text().splitlines()[:6]
    if not head:
        return
    assert "# SPDX-License-Identifier: GPL-3.0-or-later" in head, path
    if path.is_relative_to("plugins"):
        assert any(line.startswith("# GNU General Public License v3.0+ (see LICENSE") for line in head), path


def imported(path: Path) -> set[str]:
    """Dotted names of the modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", tracked("plugins/module_utils", ".py"), ids=str)
def test_the_domain_does_not_import_ansible(path: Path):
    assert not {name for name in imported(path) if name.split(".")[0] == "ansible"}


@pytest.mark.parametrize("path", tracked("plugins", ".py"), ids=str)
def test_plugins_need_nothing_but_ansible_and_the_standard_library(path: Path):
    """The target needs Python and nothing else; pynvml travels with the module that needs it. The reconciler's masters
    have kazoo, nodes of Kubernetes have grpcio and protobuf. Hosts with the program `ceph` may have its libraries for
    this Python, and do without. The controller has what ansible-core itself needs."""
    roots = {name.split(".")[0] for name in imported(path)} - {"__future__", "ansible", "ansible_collections", "pynvml"}
    had = {
        "zookeeper/store.py": {"kazoo"},
        "kubernetes/protobuf.py": {"google"},
        "kubernetes/grpc_server.py": {"grpc"},
        "kubernetes/device_plugin.py": {"grpc"},
        "kubernetes/pod_resources.py": {"grpc"},
        "ceph/library.py": {"ceph_argparse", "rados"},
        "desired/templates.py": {"jinja2"},
        "plugin_utils/certificates.py": {"cryptography"},
    }
    assert not roots - sys.stdlib_module_names - had.get(f"{path.parent.name}/{path.name}", set()), path


@pytest.mark.parametrize("path", tracked("plugins", ".py"), ids=str)
def test_imports_point_one_way(path: Path):
    assert not {name for name in imported(path) if name.split(".")[0] in ("gpuops", "tests", "molecule")}


@pytest.mark.parametrize("path", tracked("tests/simulators", ".py"), ids=str)
def test_simulators_import_nothing_from_the_product(path: Path):
    assert not {name for name in imported(path) if name.split(".")[0] in ("gpuops", "ansible_collections")}


@pytest.mark.parametrize("path", [*tracked("plugins/module_utils", ".py"), *tracked("plugins/modules", ".py")], ids=str)
def test_target_side_parses_as_python_3_9(path: Path):
    ast.parse((ROOT / path).read_text(), feature_version=(3, 9))
