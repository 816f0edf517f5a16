# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of a role as Ansible evaluates them for the hosts of a made-up site, without a run.

Ansible's loader of plugins does not find the collection in a process that has imported it already, as tests have. So
`evaluate` asks a child process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar, trust_as_template
from ansible.utils.collection_loader import AnsibleCollectionConfig

from tests.unit.project.tree import ROOT

DOCUMENTS = Path(__file__).with_name("documents")


def documents(role: str) -> dict[str, Any]:
    """The recorded cases of a role, by name."""
    return dict(json.loads((DOCUMENTS / f"{role}.json").read_text()))


def canonical(value: Any) -> str:
    """Two documents are the same where these texts are."""
    return json.dumps(value, sort_keys=True, indent=1)


def evaluate(roles: Sequence[str], sites: Sequence[Mapping[str, Any]]) -> list[dict[str, dict[str, Any]]]:
    """The values of expressions, by host and name, for each site.

    :param roles: the role, and the roles whose variables it sees.
    :param sites: ``hosts`` and ``groups``; ``facts``, expressions by the name of the fact that each host keeps first;
        ``values``, expressions by host and name; ``task``, variables of the task.
    """
    request = json.dumps({"roles": list(roles), "sites": list(sites)})
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", __name__], input=request, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return list(json.loads(done.stdout))


class RoleSite:
    """Hosts with the variables of one role and of those that it includes.

    :param roles: the role, and the roles whose variables it sees.
    :param hosts: what the inventory and the tasks have set, by host; `ansible_facts` among it.
    """

    def __init__(
        self, roles: Sequence[str], hosts: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]]
    ) -> None:
        if AnsibleCollectionConfig.collection_finder is None:
            init_plugin_loader()
        self.loader = DataLoader()
        self.paths = [str(ROOT / "roles" / role) for role in roles]
        self.groups = {name: list(members) for name, members in groups.items()}
        self.hosts = {
            name: {"inventory_hostname": name, "inventory_dir": "/srv/site", "ansible_facts": {}, **hosts.get(name, {})}
            for name in dict.fromkeys([*hosts, *(name for members in groups.values() for name in members)])
        }
        self.role: dict[str, Any] = {}
        for kind in ("defaults", "vars"):
            for role in roles:
                file = ROOT / "roles" / role / kind / "main.yml"
                if file.exists():
                    self.role.update(self.loader.load_from_file(str(file), trusted_as_template=True) or {})

    def value(self, host: str, expression: str, **task: Any) -> Any:
        """What an expression is for a host, as plain data; `task` are variables of the task."""
        variables = {
            **self.role,
            **self.hosts[host],
            **task,
            "groups": self.groups,
            "hostvars": self.hosts,
            "ansible_play_hosts": list(self.hosts),
            "ansible_play_hosts_all": list(self.hosts),
            "role_path": self.paths[0],
            "ansible_search_path": self.paths,
        }
        templar = Templar(self.loader, variables)
        return json.loads(json.dumps(templar.template(trust_as_template("{{ " + expression + " }}"))))


def main() -> None:
    request = json.load(sys.stdin)
    answers = []
    for row in request["sites"]:
        site = RoleSite(request["roles"], row["hosts"], row["groups"])
        task = row.get("task", {})
        for name, expression in row.get("facts", {}).items():
            for host in row["hosts"]:
                site.hosts[host][name] = site.value(host, expression, **task)
        answers.append(
            {
                host: {name: site.value(host, text, **task) for name, text in expressions.items()}
                for host, expressions in row["values"].items()
            }
        )
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
