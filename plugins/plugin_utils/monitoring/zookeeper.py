# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules on the ensemble of ZooKeeper.

ZooKeeper's own PrometheusMetricsProvider is not in the package of Debian 12, so these are names of this project.
"""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import Alert, looked_up

_SERVING = "sum(zookeeper_serving)"
_SERVERS = "max(zookeeper_ensemble_servers)"
_EVIDENCE = "{{ $value }} servers of " + looked_up(_SERVERS, (), "%.0f") + " serve."

ALERTS = (
    Alert(
        "ZookeeperServerMissing",
        f"{_SERVING} < {_SERVERS}",
        "ticket",
        "A server of the ensemble does not serve. The others go on as long as they are more than half.",
        "zookeeper: only {{ $value }} servers serve",
        _EVIDENCE + "{{ range query `zookeeper_serving == 0` | sortByLabel `host` }} Not {{ .Labels.host }}.{{ end }}",
        "Run `sudo systemctl start zookeeper` on the hosts that do not serve; `sudo journalctl -u zookeeper` says why "
        "it ended.",
        "5m",
    ),
    Alert(
        "ZookeeperQuorumLost",
        f"{_SERVING} <= floor({_SERVERS} / 2)",
        "page",
        "The ensemble has no quorum: Mesos has no leader, and the reconciler does nothing.",
        "zookeeper: the quorum is lost",
        _EVIDENCE,
        "Run `sudo systemctl start zookeeper` on more than half of its hosts, and check that they reach each other on "
        "ports 2888 and 3888.",
        "1m",
    ),
)
