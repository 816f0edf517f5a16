# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module as Ansible runs any, with the documents of the roles that a task names."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.common.validation import check_type_list
from ansible.plugins.action.normal import ActionModule as AsAnyModule

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import roles as plans
from ansible_collections.baremetal.gpu.plugins.plugin_utils.drift_remedy import as_sent, joined
from ansible_collections.baremetal.gpu.plugins.plugin_utils.role_variables import ROLES
from ansible_collections.baremetal.gpu.plugins.plugin_utils.stages import ROLES_OF_A_NODE

# In a document, what an operator should know of a host that is like it. Not the host's affair.
NOTES = "notes"

# The filter `desired` needs them in the process that Ansible forks for each host, which would import them again.
for role in set(ROLES_OF_A_NODE) & set(plans.names()):
    plans.planner(role)


class ActionModule(AsAnyModule):
    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        if "roles" not in self._task.args:
            return dict(super().run(tmp, task_vars))
        roles = check_type_list(self._task.args["roles"])
        whole = self.document(roles, task_vars or {})
        if whole is None:
            return {"changed": False, "drifted": True, "finished_roles": []}
        notes = whole.pop(NOTES, [])
        arguments = {name: value for name, value in self._task.args.items() if name != "roles"}
        self._task.args = {**arguments, "desired": whole}
        answer = super().run(tmp, task_vars)
        if "drifted" not in answer:
            return dict(answer)
        finished = not answer["drifted"]
        result = {"changed": False, "drifted": answer["drifted"], "finished_roles": roles if finished else []}
        # Otherwise the roles print them.
        if finished and (texts := [*notes, *answer[NOTES]]):
            result["warnings"] = [f"{(task_vars or {})['inventory_hostname']}: {note}" for note in texts]
        return result

    def document(self, roles: list[str], variables: dict[str, Any]) -> dict[str, Any] | None:
        """What a host is like on which the roles have nothing to do; None where not all of them have it."""
        documents = []
        for role in roles:
            document = self.finished(role, variables)
            if document is None:
                return None
            documents.append(document)
        try:
            return as_sent(joined(documents), brief=True)
        except (AttributeError, TypeError, ValueError):
            # They contradict each other, or one is no document: the roles will complain about what it is made of.
            return None

    def finished(self, role: str, variables: dict[str, Any]) -> dict[str, Any] | None:
        name = f"__{role}_finished"
        if name not in variables:
            raise AnsibleActionFail(f"{role} has no description of a finished host, or the play does not import it")
        # As the role's own tasks have it.
        path = str(ROLES / role)
        search = [path, *variables.get("ansible_search_path", [])]
        scope = {**variables, "role_path": path, "ansible_search_path": search}
        try:
            found = self._templar.copy_with_new_env(available_variables=scope).template(variables[name])
        except AnsibleError:
            # It is made of what is known later only, or of what the role will complain about.
            return None
        return dict(found) if isinstance(found, dict) else None
