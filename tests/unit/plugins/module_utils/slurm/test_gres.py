# SPDX-License-Identifier: GPL-3.0-or-later
"""gres.conf as Slurm reads it: by the role, and by an operator."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.gres import Gres, Unclear, names

ONE_EACH = "".join(f"NodeName=n1 Name=gpu Type=a100 File=/dev/nvidia{minor} Cores=0-3\n" for minor in range(4))


@pytest.mark.parametrize(
    "text",
    [
        ONE_EACH,
        "NodeName=n1 Name=gpu File=/dev/nvidia[0-3]\n",
        "nodename=n1 NAME=gpu file=/dev/nvidia[0-1],/dev/nvidia[2,3]  # four\n",
        "Name=gpu File=/dev/nvidia[0-3]\n",
        "Name=gpu NodeName=n[1-8] Type=a100 File=/dev/nvidia[0-3]\n",
        "NodeName=m1,n[01-02],n[0-1] Name=gpu File=/dev/nvidia[0-3]\nNodeName=n2 Name=gpu File=/dev/nvidia0\n",
        "Name=gpu File=/dev/nvidia0\nNodeName=n1 Name=gpu File=/dev/nvidia1\nName=gpu File=/dev/nvidia[2-3]\n",
        "AutoDetect=off\nNodeName=n1 Name=nic File=/dev/nic0\n" + ONE_EACH,
    ],
)
def test_the_node_and_the_controller_see_the_same_gpus(text: str) -> None:
    assert Gres(text).minors("n1") == Gres(text, "n1").minors("n1") == [0, 1, 2, 3]


def test_the_order_is_that_of_the_lines_and_a_node_without_one_has_no_gpu() -> None:
    gres = Gres("NodeName=n1 Name=gpu File=/dev/nvidia[2-3,6]\nNodeName=n1 Name=gpu File=/dev/nvidia0\n")
    assert gres.minors("n1") == [2, 3, 6, 0]
    assert gres.minors("n2") == []


@pytest.mark.parametrize(
    "line",
    [
        "NodeName=n1 Name=gpu Count=4",
        "NodeName=n1 Name=gpu File=/dev/nvidia-caps/nvidia-cap1",
        "NodeName=n1 Name=gpu File=/dev/nvidia[0-9999999]",
        "NodeName=n1 Name=gpu File=/dev/nvidia[0-x]",
    ],
)
def test_a_line_that_is_not_understood_makes_its_node_unclear_and_no_other(line: str) -> None:
    text = f"NodeName=n1 Name=gpu File=/dev/nvidia0\n{line}\nNodeName=n2 Name=gpu File=/dev/nvidia5\n"
    for gres in (Gres(text), Gres(text, "n1")):
        with pytest.raises(Unclear):
            gres.minors("n1")
        assert gres.known("n1") == []
    assert Gres(text).minors("n2") == [5]


@pytest.mark.parametrize("nodes", ["n[[1]]", "n[1-99999999]", "n[1", "n]1["])
def test_where_it_is_not_clear_whose_a_line_is_every_node_is_unclear(nodes: str) -> None:
    text = f"NodeName=n1 Name=gpu File=/dev/nvidia0\nNodeName={nodes} Name=gpu File=/dev/nvidia1\n"
    for node in ("n1", "n2"):
        with pytest.raises(Unclear):
            Gres(text).minors(node)


def test_a_list_of_names_keeps_its_zeros() -> None:
    assert names("n[08-11,1]-ib,login") == ["n08-ib", "n09-ib", "n10-ib", "n11-ib", "n1-ib", "login"]
