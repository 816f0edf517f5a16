# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The form of a session as HTML. Every text is escaped here."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import form
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.form import Limits, Request
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.offers import Offer
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.own import Told

UNITS = {"memory_gib": "GiB"}
# With more environments than that, they can be searched.
SHOWN_AT_ONCE = 8
# Of more GPUs than that the number is typed.
CHOICES_AT_MOST = 16
# Fills the fields from a choice, asks what would become of the request as it stands, at most every two seconds, and
# says so when it changes.
SCRIPT = """
(() => {
const form = document.getElementById("spawn_form");
const answer = document.getElementById("portal-answer");
const details = document.getElementById("portal-details");
const own = document.getElementById("portal-environment");
const list = document.getElementById("portal-environments");
const search = document.getElementById("portal-search");
const other = document.getElementById("portal-preset-other");
const all = [...list.options];
let asked = "";
let busy = false;
let changed = false;
function listed() {
  const is_listed = all.slice(0, -1).some(one => one.value === own.value);
  if (document.activeElement !== own) list.value = is_listed ? own.value : "";
  document.getElementById("portal-own").hidden = list.value !== "";
}
function mark(name, text) {
  const field = form.elements.namedItem(name);
  const place = document.getElementById("portal-" + name + "-error");
  if (place.textContent !== text) place.textContent = text;
  field.classList.toggle("is-invalid", text !== "");
  if (text) field.setAttribute("aria-invalid", "true");
  else field.removeAttribute("aria-invalid");
  if (text) details.open = true;
}
async function ask(again) {
  const words = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (name !== "_xsrf") words.set(name, value);
  if (busy || document.hidden || (!again && words.toString() === asked)) return;
  busy = true;
  try {
    const told = await fetch(answer.dataset.url + "?" + words, { credentials: "same-origin" });
    const row = await told.json();
    asked = words.toString();
    if (answer.textContent !== row.text) answer.textContent = row.text;
    answer.className = "alert alert-" + ({ now: "success", never: "danger" }[row.answer] || "warning");
    for (const place of form.querySelectorAll("[data-error-of]")) {
      const text = (row.fields || {})[place.dataset.errorOf] || "";
      // What was refused stays beside its field until something is chosen.
      if (text || changed) mark(place.dataset.errorOf, text);
    }
  } catch (error) {
    answer.textContent = "What is free cannot be asked at present.";
  }
  busy = false;
}
for (const radio of form.querySelectorAll("[data-fields]")) radio.addEventListener("change", () => {
  const chosen = JSON.parse(radio.dataset.fields);
  for (const name of Object.keys(chosen)) form.elements.namedItem(name).value = chosen[name];
  listed();
  ask(false);
});
if (other) other.addEventListener("change", () => { details.open = true; });
details.addEventListener("input", event => {
  if (other && event.target !== search) other.checked = true;
});
list.addEventListener("change", () => {
  own.value = list.value;
  listed();
  if (!list.value) own.focus();
  ask(false);
});
if (search) search.addEventListener("input", () => {
  const words = search.value.toLowerCase().split(" ").filter(Boolean);
  list.replaceChildren(...all.filter(one => !one.value || words.every(word => one.value.toLowerCase().includes(word))));
  list.value = own.value;
});
form.addEventListener("invalid", () => { details.open = true; }, true);
form.addEventListener("input", () => {
  changed = true;
  ask(false);
});
setInterval(() => ask(true), 2000);
listed();
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
    presets: Sequence[tuple[str, Request]] = (),
    problems: Iterable[Problem] = (),
    yours: Collection[str] = (),
) -> str:
    """The fields of the form.

    :param url: where it asks whether a session would start at once.
    :param notice: what became of the last session.
    :param place: where images of the user's own are; empty where there are none.
    :param directories: whether a directory of the user's own may be the environment.
    :param presets: what may be chosen at once, by its name.
    :param problems: why what was asked for was refused.
    :param yours: environments of the user's own that sessions had before.
    """
    wrong = {one.subject: f"{one.cause}. To do: {one.remedy}." for one in problems}
    rows = [f'<p class="alert alert-warning" role="alert">{escape(notice)}</p>'] if notice else []
    is_open = bool(wrong) or request not in dict(presets).values()
    rows += _presets(request, presets, is_open) if presets else []
    rows.append(f'<details class="mb-3" id="portal-details"{" open" if is_open else ""}>')
    rows.append("<summary>GPUs, model, cores, memory, hours and environment</summary>")
    for name, (label, least) in form.NUMBERS.items():
        most, unit, value = getattr(limits, name), UNITS.get(name, ""), getattr(request, name)
        told = f"{label}{f' in {unit}' if unit else ''}"
        if name == "gpus" and most <= CHOICES_AT_MOST:
            choices = "".join(_choice(str(one), str(one), one == value) for one in range(least, most + 1))
            rows.append(_field(name, told, wrong, choices=choices))
        else:
            number = f'type="number" min="{least}" max="{most}" step="1" value="{value}"'
            rows.append(_field(name, told, wrong, number, f"{most} at most"))
        if name == "gpus":
            rows.append(_field("model", "Model", wrong, choices=_models(request, offers)))
    rows += _environments(request, environments, place, directories, yours, wrong)
    rows.append("</details>")
    rows.append(
        f'<p class="alert alert-warning" id="portal-answer" role="status" aria-live="polite" data-url="{escape(url)}">'
        "Asking the scheduler.</p>"
    )
    return "\n".join([*rows, f"<script>{SCRIPT}</script>"])


def _presets(request: Request, presets: Sequence[tuple[str, Request]], is_other: bool) -> list[str]:
    rows = ['<fieldset class="mb-3"><legend class="fs-5">What do you need?</legend>']
    for number, (name, one) in enumerate(presets):
        checked = " checked" if one == request and not is_other else ""
        rows.append(
            f'<div class="form-check"><input class="form-check-input" type="radio" name="preset" value="{number}" '
            f'id="portal-preset-{number}" data-fields="{escape(json.dumps(one.as_dict()))}"{checked}>'
            f'<label class="form-check-label" for="portal-preset-{number}"><strong>{escape(name)}</strong>: '
            f"{escape(form.what(one))}</label></div>"
        )
    checked = " checked" if is_other else ""
    rows.append(
        '<div class="form-check"><input class="form-check-input" type="radio" name="preset" value="" '
        f'id="portal-preset-other"{checked}><label class="form-check-label" for="portal-preset-other">'
        "<strong>Something else</strong>, as chosen below</label></div></fieldset>"
    )
    return rows


def _field(
    name: str, label: str, wrong: Mapping[str, str], attributes: str = "", hint: str = "", choices: str = ""
) -> str:
    """A field with what is wrong with it below it.

    :param attributes: of a field in which one writes.
    :param choices: of one in which one chooses.
    """
    why, kind = wrong.get(name, ""), "select" if choices else "control"
    about = f"portal-{name}-error" + (f" portal-{name}-hint" if hint else "")
    shared = f'id="portal-{name}" name="{name}" aria-describedby="{about}"' + (' aria-invalid="true"' if why else "")
    shared = f'class="form-{kind}{" is-invalid" if why else ""}" {shared}'
    control = f"<select {shared}>{choices}</select>" if choices else f"<input {shared} required {attributes}>"
    return (
        f'<div class="mb-3"><label class="form-label" for="portal-{name}">{escape(label)}</label>{control}'
        f'<div class="invalid-feedback" id="portal-{name}-error" data-error-of="{name}">{escape(why)}</div>'
        + (f'<div class="form-text" id="portal-{name}-hint">{escape(hint)}</div>' if hint else "")
        + "</div>"
    )


def _models(request: Request, offers: Sequence[Offer]) -> str:
    choices = [_choice("", "any", False)]
    for one in offers:
        told = f"{one.model}: {one.free} of {one.total} free, {one.largest} on one node"
        choices.append(_choice(one.model, told, one.model == request.model))
    return "".join(choices)


def _environments(
    request: Request,
    environments: Sequence[str],
    place: str,
    directories: bool,
    yours: Collection[str],
    wrong: Mapping[str, str],
) -> list[str]:
    """A list of those that are known, and a field for another one of the user's own, which has what is asked for."""
    more = [one for one in dict.fromkeys((*yours, request.environment)) if one and one not in environments]
    has_own = directories or bool(place)
    groups = [_group("Of the site", environments, request), _group("Yours", more, request)]
    groups.append(_choice("", "Another one of yours" if has_own else "Another one", False))
    is_long = len(environments) + len(more) > SHOWN_AT_ONCE
    rows = ['<div class="mb-3"><label class="form-label" for="portal-environments">Environment</label>']
    if is_long:
        rows.append(
            '<input class="form-control mb-1" type="search" id="portal-search" autocomplete="off" '
            'placeholder="Find" aria-label="Find an environment">'
        )
    size = f' size="{SHOWN_AT_ONCE}"' if is_long else ""
    rows.append(f'<select class="form-select" id="portal-environments"{size}>{"".join(groups)}</select></div>')
    hint = " or ".join(
        [
            *(["a directory of your home such as ~/envs/torch"] if directories else []),
            *([f"an image such as {place}lectures:v1"] if place else []),
        ]
    )
    attributes = f'maxlength="{form.VALUE_AT_MOST}" value="{escape(request.environment)}"'
    field = _field("environment", "Environment by its name", wrong, attributes, hint)
    rows.append(f'<div id="portal-own">{field}</div>')
    return rows


def _group(label: str, names: Iterable[str], request: Request) -> str:
    choices = "".join(_choice(one, one, one == request.environment) for one in names)
    return f'<optgroup label="{escape(label)}">{choices}</optgroup>' if choices else ""


def _choice(value: str, label: str, is_chosen: bool) -> str:
    return f'<option value="{escape(value)}"{" selected" if is_chosen else ""}>{escape(label)}</option>'


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
