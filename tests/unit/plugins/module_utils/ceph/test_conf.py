# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys and keyrings, and the release that a distribution packages."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import conf as ceph_conf
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import distributions as ceph_distributions


def test_keys_are_well_formed_and_different():
    first, second = ceph_conf.new_key(), ceph_conf.new_key()
    assert first != second
    assert ceph_conf.is_key(first)
    assert ceph_conf.is_key("AQC0ZwFr7SmXORAAAAAAAAAAAAAAAAAAAAAAAA==")


@pytest.mark.parametrize("text", ["", "secret", "AQC0ZwFr7SmXORAA", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="])
def test_what_is_no_key_is_told(text):
    assert not ceph_conf.is_key(text)


def test_a_keyring_is_read_back():
    keys = {"client.admin": ceph_conf.new_key(), "mgr.a": ceph_conf.new_key()}
    text = ceph_conf.keyring(keys)
    assert {name: ceph_conf.key_in(text, name) for name in keys} == keys
    assert ceph_conf.key_in(text, "mgr.b") == ""
    assert '\tcaps mon = "allow *"' in text.splitlines()


@pytest.mark.parametrize(
    ("identity", "version"),
    [("debian-13", "18.2"), ("debian-12", "16.2"), ("ubuntu-24.04", "19.2"), ("gentoo-2", "")],
)
def test_what_a_distribution_has_is_known_before_its_lists_are(tmp_path, identity, version):
    name, number = identity.split("-")
    file = tmp_path / "os-release"
    file.write_text(f'PRETTY_NAME="x"\nID={name}\n\nVERSION_ID="{number}"\n')
    assert ceph_distributions.packaged_release(str(file)) == version
