# SPDX-License-Identifier: GPL-3.0-or-later
"""What is advised when the command ceph fails. Its words are hand-made, after those of Ceph 18.2."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import Ceph, CephError

NO_FILE = "Error initializing cluster client: ObjectNotFound('RADOS object not found (error calling conf_read_file)')"


@pytest.mark.parametrize(
    ("rc", "said", "advice"),
    [
        (1, NO_FILE, "see that /etc/ceph/ceph.conf is there and can be read"),
        (13, "[errno 13] RADOS permission denied (error connecting to the cluster)", "see that the keyring"),
        (110, "[errno 110] RADOS timed out (error connecting to the cluster)", "ports 3300 and 6789"),
        (22, "Error EINVAL: bad command", "read what it said"),
    ],
)
def test_each_way_to_fail_has_its_remedy(rc, said, advice):
    with pytest.raises(CephError) as failed:
        Ceph(lambda _argv, _stdin, _seconds: (rc, "", f"a warning\n{said}\n")).json("status")
    assert f"'ceph status' ended with {rc}: {said}. To do: " in str(failed.value)
    assert advice in str(failed.value).partition("To do: ")[2]
