# SPDX-License-Identifier: GPL-3.0-or-later
"""ceph_secrets: made once, kept, or the operator's own."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import conf as ceph_conf
from ansible_collections.baremetal.gpu.plugins.modules import ceph_secrets

FSID = "5c3a1f2e-8f6b-4c1d-9e2a-000000000001"


@pytest.fixture
def call(capsys):
    def run(**arguments):
        with patch_module_args(arguments), pytest.raises(SystemExit):
            ceph_secrets.main()
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_what_is_made_once_is_read_from_then_on(call, tmp_path):
    path = tmp_path / "secrets" / "ceph.json"
    made, read = call(path=str(path)), call(path=str(path))
    assert (made["changed"], read["changed"]) == (True, False)
    assert path.stat().st_mode & 0o777 == 0o600
    assert (read["fsid"], read["keys"]) == (made["fsid"], made["keys"]) == tuple(json.loads(path.read_text()).values())


def test_what_the_operator_keeps_is_used_and_comes_back_neither_plain_nor_mangled(call, tmp_path):
    keys = {name: ceph_conf.new_key() for name in ceph_conf.CAPS}
    told = call(path=str(tmp_path / "ceph.json"), fsid=FSID, keys=keys)
    assert (told["changed"], told["fsid"], told["keys"]) == (False, FSID, {})
    assert not (tmp_path / "ceph.json").exists()


def test_a_key_that_is_missing_is_named(call, tmp_path):
    told = call(path=str(tmp_path / "ceph.json"), fsid=FSID, keys={"mon.": ceph_conf.new_key()})
    assert told["failed"]
    assert "ceph_common_fsid and ceph_common_keys cannot be used: it has no keys of" in told["msg"]
    assert "client.admin" in told["msg"]
    assert """'sudo ceph auth get-or-create-key client.crash mon "allow profile crash" mgr "allow""" in told["msg"]
