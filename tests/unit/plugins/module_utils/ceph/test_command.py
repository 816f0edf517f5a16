# SPDX-License-Identifier: GPL-3.0-or-later
"""Which way a command of Ceph takes, and what is advised when it fails. What Ceph says is hand-made, after 18.2."""

from __future__ import annotations

import importlib
import sys

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import library as ceph_library
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph, CephError

NO_FILE = "Error initializing cluster client: ObjectNotFound('RADOS object not found (error calling conf_read_file)')"


@pytest.mark.parametrize(
    ("rc", "said", "advice"),
    [
        (1, NO_FILE, "see that /etc/ceph/ceph.conf is there and can be read"),
        (13, "[errno 13] RADOS permission denied (error connecting to the cluster)", "see that the keyring"),
        (110, "[errno 110] RADOS timed out (error connecting to the cluster)", "ports 3300 and 6789"),
        (1, "timed out", "ports 3300 and 6789"),
        (22, "Error EINVAL: bad command", "correct what it names"),
    ],
)
def test_each_way_to_fail_has_its_remedy(rc, said, advice):
    with pytest.raises(CephError) as failed:
        Ceph(lambda _argv, _stdin, _seconds: (rc, "", f"a warning\n{said}\n")).json("status")
    assert f"'ceph status' ended with {rc}: {said}. To do: " in str(failed.value)
    assert advice in str(failed.value).partition("To do: ")[2]


class Library:
    """Hand-made, in the place of Ceph's own: it answers what it is told to."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def ask(self, words, stdin):
        self.asked.append((words, stdin))
        return self.answer


def program(asked):
    def run(argv, stdin, _seconds):
        asked.append((argv, stdin))
        return 0, '"the program"', ""

    return run


def test_the_library_is_asked_before_the_program():
    library, programs, made = Library((0, '"the library"', "")), [], []

    def connect(*place):
        made.append(place)
        return library

    ceph = Ceph(program(programs), name="client.a", keyring="/k", conf="/c", timeout=7, library=connect)
    assert ceph.json("auth", "import", stdin="a key") == "the library"
    assert ceph.json("osd", "dump") == "the library"
    assert made == [("ceph", "/c", "client.a", "/k", 7)]
    assert library.asked == [(("auth", "import"), "a key"), (("osd", "dump"), None)]
    assert programs == []


@pytest.mark.parametrize("connect", [None, lambda *_place: None, lambda *_place: Library(None)])
def test_what_the_library_cannot_be_asked_the_program_is(connect):
    programs = []
    ceph = Ceph(program(programs), library=connect)
    assert ceph.json("auth", "import", stdin="a key") == "the program"
    assert ceph.json("osd", "dump") == "the program"
    (given, stdin), (plain, nothing) = programs
    # A secret is nowhere among the arguments, which others see.
    assert given[-6:] == ["auth", "import", "-i", "-", "--format", "json"]
    assert stdin == "a key"
    assert plain[-4:] == ["osd", "dump", "--format", "json"]
    assert nothing is None


def test_an_error_of_the_library_is_an_error():
    with pytest.raises(CephError, match="ended with 2: Error ENOENT: no such pool") as failed:
        Ceph(program([]), library=lambda *_place: Library((2, "", "Error ENOENT: no such pool"))).json("osd", "pool")
    assert failed.value.rc == 2


@pytest.mark.parametrize("missing", ["rados", "ceph_argparse"])
def test_a_python_without_the_libraries_does_without(missing, monkeypatch):
    with monkeypatch.context() as without:
        # What is None there cannot be imported.
        without.setitem(sys.modules, missing, None)
        found = importlib.reload(ceph_library).connect("ceph", "/etc/ceph/ceph.conf", "client.admin", None, 30)
    importlib.reload(ceph_library)
    assert found is None
