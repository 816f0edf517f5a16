# SPDX-License-Identifier: GPL-3.0-or-later
"""By what a session is told from another program."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import identity


def test_each_session_has_another_name() -> None:
    names = {identity.made() for _number in range(100)}
    assert len(names) == 100
    assert all(identity.NAME.fullmatch(name) for name in names)


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.5", "2001:db8::5", "::1", "255.255.255.255"])
def test_a_host_of_a_session_has_the_address_in_it(address: str) -> None:
    host = identity.host("a" * 32, address)
    assert host.endswith("." + identity.certified("a" * 32).removeprefix("*."))
    assert max(map(len, host.split("."))) <= 63
    assert identity.address(host) == address


@pytest.mark.parametrize(
    "host",
    [
        "portal.example.org",
        "7f000001.session.invalid",
        f"7f000001.{'a' * 31}.session.invalid",
        f"7f0000.{'a' * 32}.session.invalid",
        f"7f000001.{'a' * 32}.session.invalid.",
        f"7f000001.{'a' * 32}.session.invalid.example.org",
        f"7f000001.{'a' * 32}xsession.invalid",
        f"x.7f000001.{'a' * 32}.session.invalid",
    ],
)
def test_another_host_has_none(host: str) -> None:
    assert identity.address(host) == ""


def test_what_is_no_address_has_no_host() -> None:
    with pytest.raises(ValueError, match="gpu1"):
        identity.host("a" * 32, "gpu1")
