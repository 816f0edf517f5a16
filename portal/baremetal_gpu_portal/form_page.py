# SPDX-License-Identifier: GPL-3.0-or-later
"""The form of a session, which JupyterHub puts into its own page."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import form
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.form import Limits, Request
from baremetal_gpu_portal import pages
from baremetal_gpu_portal.offers import Offer
from baremetal_gpu_portal.summary import Told

UNITS = {"memory_gib": "GiB"}
# With more environments than that, they can be searched.
SHOWN_AT_ONCE = 8
# Of more GPUs than that the number is typed.
CHOICES_AT_MOST = 16


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
    own = [one for one in dict.fromkeys((*yours, request.environment)) if one and one not in environments]
    fields = [
        {
            "name": name,
            "label": f"{label} in {UNITS[name]}" if name in UNITS else label,
            "least": least,
            "most": getattr(limits, name),
            "value": getattr(request, name),
        }
        for name, (label, least) in form.NUMBERS.items()
    ]
    return pages.render(
        "form.html",
        request=request,
        offers=offers,
        environments=environments,
        own=own,
        is_long=len(environments) + len(own) > SHOWN_AT_ONCE,
        shown_at_once=SHOWN_AT_ONCE,
        choices_at_most=CHOICES_AT_MOST,
        value_at_most=form.VALUE_AT_MOST,
        fields=fields,
        url=url,
        notice=notice,
        place=place,
        directories=directories,
        presets=[{"name": name, "what": form.what(one), "fields": one.as_dict()} for name, one in presets],
        chosen=next((number for number, (_name, one) in enumerate(presets) if one == request and not wrong), None),
        wrong=wrong,
    )


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
    return pages.render("form_home.html", told=told)
