# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of pynvml that travels to hosts answers as the whole one does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml
from ansible_collections.baremetal.gpu.plugins.plugin_utils import nvml_binding

LOOK = """
import json, os, pathlib, sys
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import facts as gpu_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import pci
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import snapshot
root = os.environ["SIMULATED_ROOT"]
lib = nvml.load_binding(pathlib.Path(sys.argv[1]).read_text())
look = snapshot.Reader(lib, root).read(slow=True)
facts = gpu_facts.probe(None, 20.0, root, pci.scan(root), (*gpu_facts.HARDWARE, "details"))
print(json.dumps([look["devices"], look["driver"], facts]))
"""


@pytest.mark.parametrize("name", ["k20c-x1", "gtx1080-x2", "a100-sxm4-40gb-x8-mig", "h100-sxm-x8", "lost-one-of-eight"])
def test_a_part_of_the_binding_answers_as_the_whole(simulated_host, name):
    simulated_host.take(name)
    part = simulated_host.write("part.py", nvml.unpack(nvml_binding.packed_source()))
    whole = importlib.util.find_spec("pynvml").origin
    assert simulated_host.python(LOOK, str(part)) == simulated_host.python(LOOK, whole)


def test_what_is_not_used_stays_behind():
    source = Path(importlib.util.find_spec("pynvml").origin).read_text()
    part = nvml.unpack(nvml_binding.packed_source())
    assert len(part) < len(source) / 5
    assert "def nvmlDeviceGetUUID(" in part
    assert "def nvmlDeviceSetPowerManagementLimit(" not in part


SOURCE = """
import os
A = B = 1
UNUSED = 2
NVML_ERROR_X = 3

def helper():
    return B

@decorate
def wanted():
    # a comment
    return helper() + TABLE["x"]

TABLE = {"x": 1}

def decorate(function):
    return function

def other():
    return UNUSED

for name in os.environ:
    pass
"""


def test_what_is_needed_comes_along():
    part = nvml_binding.pruned(SOURCE, {"wanted"})
    for kept in (
        "import os",
        "A = B = 1",
        "NVML_ERROR_X",
        "def helper",
        "@decorate",
        "def decorate",
        "TABLE",
        "for name",
    ):
        assert kept in part
    for left in ("UNUSED", "def other"):
        assert left not in part


def test_a_source_that_lines_do_not_tell_is_left_whole():
    """A text whose lines begin in the first column is taken for statements."""
    source = SOURCE.replace('"x"]', '"x"], """\ndef not_one(\n"""')
    assert nvml_binding.pruned(source, {"wanted"}) == source
