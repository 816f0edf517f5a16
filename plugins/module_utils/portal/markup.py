# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The form of a session as HTML. Every text is escaped here."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from html import escape

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import form
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.form import Limits, Request
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.offers import Offer
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.own import Told

UNITS = {"memory_gib": "GiB"}
# Asks what would become of the request as it stands, at most every two seconds, and says so when it changes.
SCRIPT = """
(() => {
const form = document.getElementById("spawn_form");
const answer = document.getElementById("portal-answer");
const url = answer.dataset.url;
let asked = "";
let busy = false;
async function ask(again) {
  const words = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (name !== "_xsrf") words.set(name, value);
  if (busy || document.hidden || (!again && words.toString() === asked)) return;
  busy = true;
  try {
    const told = await fetch(url + "?" + words, { credentials: "same-origin" });
    const row = await told.json();
    asked = words.toString();
    if (answer.textContent !== row.text) answer.textContent = row.text;
    answer.className = "alert alert-" + ({ now: "success", never: "danger" }[row.answer] || "warning");
  } catch (error) {
    answer.textContent = "What is free cannot be asked at present.";
  }
  busy = false;
}
form.addEventListener("input", () => ask(false));
setInterval(() => ask(true), 2000);
ask(true);
})();
"""


def options(
    request: Request,
    limits: Limits,
    offers: Sequence[Offer],
    environments: Sequence[str],
    url: str,
    notice: str = "",
    place: str = "",
    directories: bool = True,
) -> str:
    """The fields of the form.

    :param url: where it asks whether a session would start at once.
    :param notice: what became of the last session.
    :param place: where images of the user's own are; empty where there are none.
    :param directories: whether a directory of the user's own may be the environment.
    """
    rows = [f'<p class="alert alert-warning" role="alert">{escape(notice)}</p>'] if notice else []
    for name, (label, least) in form.NUMBERS.items():
        most, unit = getattr(limits, name), UNITS.get(name, "")
        told = f"{label}{f' in {unit}' if unit else ''}, {least} to {most}"
        rows.append(
            _field(
                name,
                told,
                f'<input class="form-control" type="number" id="portal-{name}" name="{name}" min="{least}" '
                f'max="{most}" step="1" required value="{getattr(request, name)}">',
            )
        )
        if name == "gpus":
            rows.append(_field("model", "Model", _models(request, offers)))
    rows.append(
        _field(
            "environment",
            "Environment: one of the site"
            + (", or a directory of your home such as ~/envs/torch" if directories else "")
            + (f", or an image of yours such as {place}lectures:v1" if place else ""),
            f'<input class="form-control" id="portal-environment" name="environment" list="portal-environments" '
            f'maxlength="{form.VALUE_AT_MOST}" required value="{escape(request.environment)}">'
            f'<datalist id="portal-environments">{"".join(map(_option, environments))}</datalist>',
        )
    )
    rows.append(
        f'<p class="alert alert-warning" id="portal-answer" role="status" aria-live="polite" data-url="{escape(url)}">'
        "Asking the scheduler.</p>"
    )
    return "\n".join([*rows, f"<script>{SCRIPT}</script>"])


def _field(name: str, label: str, control: str) -> str:
    return f'<div class="mb-3"><label class="form-label" for="portal-{name}">{escape(label)}</label>{control}</div>'


def _models(request: Request, offers: Sequence[Offer]) -> str:
    choices = ['<option value="">any</option>']
    for one in offers:
        chosen = " selected" if one.model == request.model else ""
        told = f"{one.model}: {one.free} of {one.total} free, {one.largest} on one node"
        choices.append(f'<option value="{escape(one.model)}"{chosen}>{escape(told)}</option>')
    return f'<select class="form-select" id="portal-model" name="model">{"".join(choices)}</select>'


def _option(name: str) -> str:
    return f'<option value="{escape(name)}"></option>'


def ended(row: Mapping[str, object]) -> str:
    """What became of the last session, in words; empty where there is nothing to say.

    :param row: {at, cause, remedy}, as the hub keeps it.
    """
    if not row:
        return ""
    at = row.get("at")
    moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) if isinstance(at, (int, float)) else "lately"
    return f"Your session ended on {moment}: {row.get('cause')}. To do: {row.get('remedy')}."


def home(told: Told) -> str:
    """How full the home is, before the form; empty where there is nothing to say."""
    kind = ' class="alert alert-warning"' if told.warns else ""
    return f'<p id="portal-home"{kind}>{escape(told.text)}</p>\n' if told.text else ""
