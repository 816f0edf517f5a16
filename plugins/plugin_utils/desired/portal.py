# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The portal: JupyterHub and its proxy, each a unit of its own, so that a restart of the hub breaks no session.

The hub runs under an account of its own without rights. What has to be done as a user, and whether a password is right,
goes to programs that systemd starts as root for each order, at sockets that this account alone can open: they check
every order themselves. The hub needs no sudo, and so keeps NoNewPrivileges, and reads no hash of a password. slurmrestd
with tokens would need the key of the tokens on this host, with which one can be anybody in Slurm.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.host.versions import version_key
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import (
    accounts,
    form,
    idle,
    invite,
    marathon_backend,
    samples,
    session,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.settings import DOCKER, MARATHON, SCHEDULERS
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import images
from ansible_collections.baremetal.gpu.plugins.plugin_utils import (
    certificate_files,
    certificates,
    image_catalogue,
    portal_package,
    portal_ssh,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph.users import have_left
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import ROLES, render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.user_software import PACKAGE, available
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.draft import HTTP
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import (
    unit_path,
    wrong,
    wrong_files,
)

ROLE = "portal"
USER = "baremetal-gpu-portal"
ETC = "/etc/baremetal-gpu/portal"
TLS = f"{ETC}/tls"
SETTINGS, CONFIG, TOKEN, MADE_OF = (f"{ETC}/{name}" for name in ("settings.json", "config.py", "proxy.env", "made-of"))
# Makes the certificates of hub and proxy.
CERTIFICATES_PROGRAM = f"{ETC}/hub_certificates.py"
# Whether the sessions of each user have an origin of their own. To refuse it is to say who the users are.
OWN_ORIGINS, ONE_ORIGIN = ORIGINS = ("own", "one_for_people_who_trust_each_other")
INSTEAD = f"or set portal_origins to {ONE_ORIGIN}, where users trust each other: docs/portal.md, 'Origins'"
# A host below the portal's that nobody has.
BELOW = "gpuops-checks-the-wildcard"
SHARE = "/usr/share/baremetal-gpu/portal"
# Where the hub's Python finds the portal's package and what that needs of the collection.
LIBRARY = f"{SHARE}/python"
# What the proxy does beside what it has options for.
PROXY_FILE = f"{SHARE}/proxy.js"
# A file of the role -> where hub and proxy have it.
IN_HUB = {
    "jupyterhub_config.py": CONFIG,
    "hub_certificates.py": CERTIFICATES_PROGRAM,
    "proxy.js": PROXY_FILE,
}
# Marathon's login, which is root's, and the authority of masters that speak nothing but TLS.
MARATHON_FILE, MASTERS_AUTHORITY = marathon_backend.PATH, f"{ETC}/masters-ca.pem"
LIBEXEC = "/usr/libexec/baremetal-gpu"
ENVIRONMENT, ENVIRONMENT_COMMAND = f"{LIBEXEC}/gpu-environment", "/usr/local/bin/gpu-environment"
HELPER, LOGIN, INVITE, BACKUP = (f"{LIBEXEC}/portal-{name}" for name in ("session", "login", "invite", "backup"))
# What hosts have of collections before the portal was a package.
BEFORE = (
    *(f"{ETC}/hub_{name}.py" for name in ("environments", "invite", "own", "people", "places", "tls", "watch")),
    f"{LIBEXEC}/portal-library",
    f"{SHARE}/now.html",
    f"{SHARE}/templates",
)
PAM_SERVICE = "baremetal-gpu-portal"
OPT = "/opt/baremetal-gpu"
# The environment that nodes get from the wheels, and where those of the distribution's packages are.
OWN = {"name": "notebook", "path": f"{OPT}/notebook"}
ENVIRONMENTS = f"{OPT}/environments"
# Programs that such an environment has of the one from the wheels, with what they run.
BORROWED = {"jupyterhub-singleuser": "jupyterhub.singleuser", "pip": "pip._internal.cli.main"}
STATE = "/var/lib/baremetal-gpu-portal"
# The certificates with which the hub, the proxy and sessions prove themselves to each other.
HUB_TLS = f"{STATE}/tls"
HUB, PROXY = "baremetal-gpu-portal.service", "baremetal-gpu-portal-proxy.service"
SESSION_SOCKET, SESSION = "baremetal-gpu-portal-session.socket", "baremetal-gpu-portal-session@.service"
LOGIN_SOCKET, LOGIN_UNIT = "baremetal-gpu-portal-login.socket", "baremetal-gpu-portal-login@.service"
INVITE_SOCKET, INVITE_UNIT = "baremetal-gpu-portal-invite.socket", "baremetal-gpu-portal-invite@.service"
BACKUP_TIMER, BACKUP_UNIT = "baremetal-gpu-portal-backup.timer", "baremetal-gpu-portal-backup.service"
BACKUP_UNITS = (BACKUP_TIMER, BACKUP_UNIT)
UNITS = (HUB, PROXY, SESSION_SOCKET, SESSION, LOGIN_SOCKET, LOGIN_UNIT, INVITE_SOCKET, INVITE_UNIT, *BACKUP_UNITS)
PROXY_API_PORT = 8001
# What wheels are for: the hub, and sessions.
HUB_WHEELS, SESSION_WHEELS = "hub", "session"
LOGINS = ("pam", "ldap", "oidc")
# The least and the most that a session may be idle. Two warnings need a while.
IDLE_MINUTES = (10, 7 * 24 * 60)
# The least Docker that gives GPUs by CDI.
DOCKER_AT_LEAST = "25"
_URL = re.compile(r"https?://[!-~]{1,500}", re.ASCII)
# The hub's log shows it without the password only where that is in this place.
_DATABASE = re.compile(
    r"postgresql://(?:[A-Za-z0-9._~%-]{1,63}(?::[A-Za-z0-9._~%!$&'()*+,;=-]{0,500})?@)?[A-Za-z0-9.:\[\]-]{0,253}"
    r"/[A-Za-z0-9_-]{1,63}(?:\?(?!(?:[^&]*&)*password=)[A-Za-z0-9._~%/:&=-]{1,500})?",
    re.ASCII,
)
# psycopg's wheel uses it, so that it gets the distribution's updates.
LIBPQ = "libpq5"
# Cookies and wildcards of certificates want a dot in the name below which they are.
_HOST_NAME = re.compile(r"(?=.{4,200}\Z)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z][a-z0-9-]*[a-z0-9]", re.ASCII)
_PREFIX = re.compile(r"/[A-Za-z0-9._/@+=-]{1,200}", re.ASCII)


@cache
def lock() -> tuple[Mapping[str, Any], ...]:
    """The wheels, each with its file, name, version, SHA-256, and for which Python and what it is."""
    return tuple(json.loads((ROLES / ROLE / "files" / "wheels.json").read_text(encoding="utf-8")))


def wheels(python: str, what: str) -> list[Mapping[str, Any]]:
    return [row for row in lock() if python in row["python"] and what in row["for"]]


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the portal's host, or of a node with ``kind`` session.

    :param params: the variables of the role; ``kind``, hub or session; ``certificates``, what the module
        cluster_certificates has returned, and ``proxy_token`` may be empty until the tasks have read them; ``check``,
        whether nothing is to be changed; ``image_catalogue``; ``cluster_secrets``, those of Mesos by principal.
    :param facts: ``python``, major and minor version of the host's Python; ``docker``, the version of its Docker where
        sessions are containers, empty where none answers; ``addresses``, what the host finds under the portal's name
        and under one below it (`looked_up`), by these names; ``policy``, the lines of `apt-cache policy` for the
        packages of environments, where the host has lists of packages; ``library``, the paths of the files in LIBRARY.
    :param peers: ``host``, its name; ``address``; ``hosts``, those of the group portals; ``logins``, those that have
        the commands of Slurm; ``nodes``, those on which sessions run; ``hostvars``; ``mesos``, where sessions are apps
        of Marathon: ``marathons`` and ``masters`` by their URLs, ``http_user`` of the former, ``operator``, the login
        of the latter, and ``authority``, which signs theirs.
    :return: With the parts `environment`, what the module wheel_environment is given; `install` and `service`, two
        documents, between which that is made; `certificates`, what is asked of the module cluster_certificates; `url`;
        `look`, the nodes whose driver an image depends on and nobody knows yet; `names`, those whose addresses
        the plan needs; `asked`, the packages of environments, of a node.
    """
    what = params["kind"]
    where = f"{OPT}/{'portal' if what == HUB_WHEELS else 'notebook'}"
    parts: dict[str, Any] = {"environment": {"path": where, "state": "absent"}, "install": {}, "service": {}}
    parts |= {"certificates": [], "url": _url(params, peers), "look": [], "names": looked_up(params, peers)}
    parts["asked"] = _packages(params) if what == SESSION_WHEELS else []
    if params["state"] == "absent":
        in_session = what == SESSION_WHEELS or params["scheduler"] == DOCKER
        parts |= {
            "install": _absent_files(params, where, what, in_session).plain,
            "service": _absent_units().plain if what == HUB_WHEELS else {},
        }
        return Plan(parts=parts)
    rows = wheels(str(facts.get("python")), what)
    if what == HUB_WHEELS:
        parts["look"] = _to_look_at(params, peers)
    problems = tuple(_problems(params, facts, peers, rows))
    if problems:
        return Plan(problems=problems, parts=parts)
    names = {row["name"]: row["version"] for row in rows}
    parts["environment"] = {
        "path": where,
        "packages": names,
        "lock": f"{where}-wheels/requirements.txt",
        "wheels": f"{where}-wheels",
        "paths": [LIBRARY] if what == HUB_WHEELS else [],
        "state": "present",
    }
    parts["install"] = _install(params, where, what, rows, str(facts["python"])).plain
    if what == HUB_WHEELS:
        parts["certificates"] = [_wanted(params, peers)]
        ready = params["certificates"].get("certificates") and params["proxy_token"]
        parts["service"] = _service(params, facts, peers, where, _requirements(rows)).plain if ready else {}
    return Plan(parts=parts)


# --- what is wrong ---------------------------------------------------------------------------------------------------


def _problems(
    params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any], rows: list[Mapping[str, Any]]
) -> Iterator[Problem]:
    host = peers["host"]
    python = str(facts.get("python"))
    if not rows:
        known = ", ".join(sorted({one for row in lock() for one in row["python"]}))
        cause = f"{host} has Python {python}, for which there are no wheels"
        yield Problem("unknown_python", host, cause, python, f"use a host with Python {known}")
    yield from _missing_wheels(params, rows)
    if params["kind"] != HUB_WHEELS:
        yield from _wrong_environments(params)
        yield from _missing_packages(params, facts, host)
        return
    if list(peers["hosts"]) != [host]:
        cause = f"the group portals has {len(peers['hosts'])} hosts, and the portal of a site is on one"
        yield Problem("one_portal", host, cause, ", ".join(peers["hosts"]), f"leave {host} alone in portals")
    if params["scheduler"] == MARATHON:
        yield from _wrong_marathon(params, peers)
    elif params["scheduler"] == DOCKER:
        yield from _wrong_docker(params, str(facts.get("docker") or ""), peers)
    elif host not in peers["logins"]:
        cause = f"{host} has no commands of Slurm"
        yield Problem("no_slurm", host, cause, "", f"add {host} to the group slurm_logins")
    wrong_tls_files = wrong_files("portal_tls_files", params["tls_files"])
    yield from wrong_tls_files
    yield from _wrong_origins(params, facts.get("addresses", {}), peers, bool(wrong_tls_files))
    yield from _wrong_settings(params)
    yield from _wrong_images(params, peers)


def looked_up(params: Mapping[str, Any], peers: Mapping[str, Any]) -> list[str]:
    """The names whose addresses the plan needs: the portal's, and one below it."""
    is_asked = params["kind"] == HUB_WHEELS and params["state"] != "absent" and params["origins"] == OWN_ORIGINS
    is_asked = is_asked and params["check_names"]
    name = _name(params, peers)
    return [name, f"{BELOW}.{name}"] if is_asked and _HOST_NAME.fullmatch(name) else []


def _wrong_origins(
    params: Mapping[str, Any], addresses: Mapping[str, Any], peers: Mapping[str, Any], has_wrong_files: bool
) -> Iterator[Problem]:
    """What sessions with origins of their own need: a name, and all below it in DNS and in the certificate."""
    if params["origins"] not in ORIGINS:
        remedy = f"choose {OWN_ORIGINS}, {INSTEAD}"
        yield wrong("portal_origins", "there is no such choice", params["origins"], remedy)
        return
    if params["origins"] != OWN_ORIGINS:
        return
    name, instead = _name(params, peers), INSTEAD
    if not _HOST_NAME.fullmatch(name):
        cause = "sessions get names below the portal's, and no browser takes them below this one"
        remedy = f"set portal_name to a whole name such as portal.example.org, {instead}"
        yield wrong("portal_name", cause, name, remedy)
        return
    there, below = ([str(one) for one in addresses.get(f"{prefix}{name}", [])] for prefix in ("", f"{BELOW}."))
    if not params["check_names"]:
        # The computers of people find them in another way.
        pass
    elif not below:
        cause = f"{peers['host']} finds no address of the names below {name}, such as alice.{name}"
        remedy = f"add *.{name} to the DNS with the address of {name}, {instead}"
        yield Problem("no_wildcard_name", "portal_name", cause, f"{BELOW}.{name}", remedy)
    elif there and not set(there) & set(below) and not all(map(_is_this_host, there)):
        cause = f"the names below {name} have another address than it"
        remedy = f"give *.{name} the address of {name} in the DNS, {instead}"
        yield Problem("no_wildcard_name", "portal_name", cause, f"{', '.join(below)}, not {', '.join(there)}", remedy)
    if params["tls_files"] and not has_wrong_files:
        yield from _wrong_certificate(str(params["tls_files"]["certificate"]), name, instead)


def _wrong_certificate(path: str, name: str, instead: str) -> Iterator[Problem]:
    try:
        names = certificates.names_of(certificates.read_certificates(path)[0])
    except (OSError, certificates.Unreadable):
        # Who puts it on the host tells why.
        return
    # A browser takes the name of a server without regard to case.
    if f"dns:*.{name}".lower() not in map(str.lower, names):
        remedy = f"get one that is for {name} and *.{name}, {instead}"
        cause = f"the certificate is not for *.{name}, where sessions are"
        yield Problem(
            "no_wildcard_certificate", "portal_tls_files", cause, f"{path}: {', '.join(sorted(names))}", remedy
        )


def _wrong_marathon(params: Mapping[str, Any], peers: Mapping[str, Any]) -> Iterator[Problem]:
    for group, urls in (("marathon", "marathons"), ("mesos_masters", "masters")):
        if not peers["mesos"][urls]:
            cause = f"portal_scheduler is marathon, and the inventory has no host in {group}"
            yield Problem("no_marathon", peers["host"], cause, "", f"add the hosts of {group}, or choose slurm")
    yield from _of_slurm_alone(params, "Marathon")
    for image in _images(params):
        yield wrong("portal_environments", "sessions of Marathon run in no image", image, "give the path instead")


def _wrong_docker(params: Mapping[str, Any], version: str, peers: Mapping[str, Any]) -> Iterator[Problem]:
    host = peers["host"]
    known = peers["hostvars"]
    # The variables of all hosts raise for one that is not there.
    engine = str(known[host].get("container_runtime_engine", "docker") if host in known else "docker")
    if engine != "docker":
        remedy = "set it to docker for this host, or choose another portal_scheduler"
        yield Problem("no_docker", host, f"{host} has container_runtime_engine {engine}, and no Docker", engine, remedy)
    elif version and version_key(version) < version_key(DOCKER_AT_LEAST):
        cause = f"{host} has Docker {version}, which does not give GPUs by CDI"
        remedy = (
            f"use Docker {DOCKER_AT_LEAST} or later: that of Debian 13, or of container_runtime_docker_repo_url; or "
            "choose another portal_scheduler"
        )
        yield Problem("old_docker", host, cause, version, remedy)
    elif not version and not params["check"]:
        cause = f"Docker does not answer on {host}"
        remedy = "run `gpuops up --tags containers`, which installs it, and see `systemctl status docker` on the host"
        yield Problem("no_docker", host, cause, "", remedy)
    if _is_this_host(peers["address"] or host):
        cause = f"containers cannot reach the hub on {host} at {peers['address'] or host}"
        remedy = "set ansible_host to an address that it has in its network, beside ansible_connection: local"
        yield Problem("no_address", host, cause, "", remedy)
    yield from _of_slurm_alone(params, "Docker")
    for row in params["environments"]:
        if not row.get("image"):
            cause = "sessions of Docker run in images, and not in a directory"
            yield wrong("portal_environments", cause, row.get("name"), "give an image, or leave it out")
    if not _images(params):
        cause = "sessions of Docker run in images, and there is none"
        yield wrong("portal_environments", cause, "", "give at least one, such as {name: notebook, image: notebook}")


def _of_slurm_alone(params: Mapping[str, Any], scheduler: str) -> Iterator[Problem]:
    if params["ssh"]:
        yield wrong("portal_ssh", f"sessions of {scheduler} have no SSH", "true", "set it to false")
    for name in ("partition", "account", "qos"):
        if params[name]:
            yield wrong(f"portal_{name}", f"{scheduler} has no such thing", params[name], "leave it empty")


def _missing_wheels(params: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> Iterator[Problem]:
    directory = str(params["wheelhouse"])
    if params["check"] and not directory:
        # The manifest is made before the wheels are fetched.
        return
    missing = [row["file"] for row in rows if not (directory and os.path.isfile(os.path.join(directory, row["file"])))]
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        cause = f"{directory or 'the empty path'} on the controller lacks {len(missing)} of {len(rows)} wheels"
        remedy = (
            "run `gpuops up`, which fetches them if this machine reaches the index of pip; without internet access run "
            "`gpuops manifest`, elsewhere `gpuops fetch manifest.json mirror --archive URI` (URI: an archive of "
            "Debian), and copy the files of mirror/wheels into that directory"
        )
        yield Problem("no_wheels", "portal_wheelhouse", cause, shown, remedy)


def _names(params: Mapping[str, Any]) -> list[str]:
    return [*(row["name"] for row in _own(params)), *(str(row.get("name")) for row in params["environments"])]


def _wrong_environments(params: Mapping[str, Any]) -> Iterator[Problem]:
    names = _names(params)
    for row in params["environments"]:
        if not form.ENVIRONMENT.fullmatch(str(row.get("name"))) or names.count(str(row.get("name"))) > 1:
            cause = "an environment has a name of its own of lower case letters, digits and . _ -"
            yield wrong("portal_environments", cause, row.get("name"), "rename it")
        if sum(bool(row.get(kind)) for kind in ("path", "image", "packages")) != 1:
            cause = "it is not one of a path, an image and packages"
            yield wrong("portal_environments", cause, row.get("name"), "give one of them")
        for name in row.get("packages") or ():
            if not PACKAGE.fullmatch(str(name)):
                yield wrong("portal_environments", f"{name!r} is not the name of a package", name, "correct it")
        if row.get("path") and not _PREFIX.fullmatch(str(row["path"])):
            yield wrong("portal_environments", "it has no path", row["path"], "give the directory of the environment")


def _packages(params: Mapping[str, Any]) -> list[str]:
    """The packages of environments, but for what is refused."""
    named = (str(name) for row in params["environments"] for name in row.get("packages") or ())
    return [name for name in dict.fromkeys(named) if PACKAGE.fullmatch(name)]


def _missing_packages(params: Mapping[str, Any], facts: Mapping[str, Any], host: str) -> Iterator[Problem]:
    policy = facts.get("policy") or []
    missing = sorted(set(_packages(params)) - available(policy)) if policy else []
    if missing:
        cause = f"no repository of {host} has {', '.join(missing)}"
        remedy = "take it out of portal_environments, or name an image or a directory there"
        yield Problem("no_package", "portal_environments", cause, ", ".join(missing), remedy)


def _wrong_settings(params: Mapping[str, Any]) -> Iterator[Problem]:
    for name in ("port", "hub_port", "session_port_first", "session_port_last"):
        if not 1 <= params[name] <= 65535:
            yield wrong(f"portal_{name}", "it is not a valid port", params[name], "give a port such as 443")
    if params["session_port_last"] - params["session_port_first"] < 99:
        given = f"{params['session_port_first']}-{params['session_port_last']}"
        yield wrong("portal_session_port_last", "there are less than 100 ports", given, "give more")
    if params["ssh"] and params["ssh_port"] in (params["port"], params["hub_port"], PROXY_API_PORT):
        yield wrong("portal_ssh_port", "the portal has it already", params["ssh_port"], "give another port")
    if params["ssh"] and not 1024 <= params["ssh_port"] <= 65535:
        cause = "the sshd has no rights, and takes no port below 1024"
        yield wrong("portal_ssh_port", cause, params["ssh_port"], "give a port such as 2222")
    if params["scheduler"] not in SCHEDULERS:
        remedy = f"choose one of {', '.join(SCHEDULERS)}"
        yield wrong("portal_scheduler", "there is no such scheduler", params["scheduler"], remedy)
    if params["login"] not in LOGINS:
        yield wrong("portal_login", "there is no such login", params["login"], f"choose one of {', '.join(LOGINS)}")
    if params["login"] != "pam" and not params["login_options"]:
        yield wrong(
            "portal_login_options",
            f"{params['login']} needs options",
            "",
            "give those that `ansible-doc -t role baremetal.gpu.portal` names",
        )
    yield from _in_the_clear(params["login"], params["login_options"])
    for domain in params["domains"]:
        if not accounts.DOMAIN.fullmatch(domain):
            yield wrong("portal_domains", "it is not a valid domain", domain, "give domains such as example.org")
    yield from _wrong_environments(params)
    for name, row in {"portal_limits": params["limits"], **params["limits_by_group"]}.items():
        for key, value in row.items():
            if key not in form.NUMBERS or not isinstance(value, int) or value < form.NUMBERS[key][1]:
                cause = f"{key} is not a limit, or is less than a session needs"
                yield wrong(
                    f"portal_limits of {name}", cause, value, f"give {', '.join(form.NUMBERS)} as whole numbers"
                )
    if params["database"] and not _DATABASE.fullmatch(params["database"]):
        cause = "it is not the URL of a PostgreSQL database"
        remedy = "give one such as postgresql://USER:PASSWORD@HOST/NAME, with %XX for special characters"
        yield wrong("portal_database", cause, "", remedy)
    yield from _wrong_presets(params, _names(params))
    if params["prometheus"] and not (
        _URL.fullmatch(params["prometheus"])
        and (params["prometheus"].startswith("https://") or _is_this_host(params["prometheus"]))
    ):
        remedy = "give one that begins with https://, or one of this host such as http://127.0.0.1:9090"
        yield wrong("portal_prometheus", "it is neither an https:// URL nor on this host", params["prometheus"], remedy)
    yield from _wrong_idle(params)
    if set(params["limits"]) != set(form.NUMBERS):
        yield wrong("portal_limits", "some are missing", ", ".join(params["limits"]), f"give {', '.join(form.NUMBERS)}")


def _in_the_clear(login: str, options: Mapping[str, Any]) -> Iterator[Problem]:
    """Passwords and tokens that somebody on the network could read, or ask for in the place of a server."""
    if login == "ldap":
        server = str(options.get("server_address", ""))
        given = options.get("tls_kwargs")
        validate = given.get("validate", True) if isinstance(given, Mapping) else True
        if (options.get("tls_strategy") == "insecure" or not validate) and not _is_this_host(server):
            cause = "passwords would go to a server without TLS, or to one that proves nothing"
            remedy = "leave out tls_strategy for StartTLS, or make it on_connect, and leave out validate"
            yield wrong("portal_login_options", cause, server, remedy)
    for name in ("authorize_url", "token_url", "userdata_url") if login == "oidc" else ():
        url = str(options.get(name, ""))
        if not url.startswith("https://") and not _is_this_host(url):
            yield wrong(
                "portal_login_options", f"{name} is not an https:// URL", url, "give one that begins with https://"
            )


def _is_this_host(place: str) -> bool:
    """Whether the name of a host, or a URL, leads nowhere else."""
    if place.startswith("ldapi://"):
        return True
    try:
        host = (urlsplit(place).hostname or "") if "://" in place else place
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _wrong_presets(params: Mapping[str, Any], environments: list[str]) -> Iterator[Problem]:
    names = [row.get("name") for row in params["presets"]]
    for row in params["presets"]:
        name = row.get("name")
        if not isinstance(name, str) or not 0 < len(name) <= 60 or not name.isprintable() or names.count(name) > 1:
            yield wrong("portal_presets", "a preset has a name of its own, of one line", name, "rename it")
        for key, value in row.items():
            least = form.NUMBERS[key][1] if key in form.NUMBERS else 0
            if key in form.NUMBERS and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                cause = f"{key} of {name} is not a whole number of {least} or more"
                yield wrong("portal_presets", cause, value, f"give one, or leave {key} out")
        if set(row) - {"name", "model", "environment", *form.NUMBERS}:
            shown = ", ".join(sorted(map(str, row)))
            remedy = f"give name, {', '.join(form.NUMBERS)}, model and environment alone"
            yield wrong("portal_presets", f"{name} has what no session has", shown, remedy)
        if row.get("model") and not form.MODEL.fullmatch(str(row["model"])):
            yield wrong("portal_presets", f"{name} has no model of GPUs", row["model"], "give a type such as a100")
        if row.get("environment") and row["environment"] not in environments:
            remedy = f"choose one of {', '.join(environments)}, or add it to portal_environments"
            yield wrong("portal_presets", f"{name} has an environment that there is not", row["environment"], remedy)


def _wrong_idle(params: Mapping[str, Any]) -> Iterator[Problem]:
    spared = params["idle_spared_minutes"]
    if not 0 <= spared <= IDLE_MINUTES[1]:
        yield wrong("portal_idle_spared_minutes", "it is not a number of minutes", spared, "give minutes such as 30")
    for name, minutes in {"portal_idle_minutes": params["idle_minutes"], **params["idle_minutes_by_group"]}.items():
        # bool is an int, and yes says nothing about how long.
        if isinstance(minutes, bool) or not isinstance(minutes, int) or (minutes and not _is_window(minutes)):
            least, most = IDLE_MINUTES
            remedy = f"give minutes from {least} to {most}, or 0 for never"
            yield wrong(f"portal_idle_minutes of {name}", "a session is not ended after such a time", minutes, remedy)
    webhook, domain = params["idle_webhook"], params["idle_mail_domain"]
    if webhook and not _URL.fullmatch(webhook):
        yield wrong("portal_idle_webhook", "it is not a URL", "", "give one that begins with https:// or http://")
    if domain and not accounts.DOMAIN.fullmatch(domain):
        yield wrong("portal_idle_mail_domain", "it is not a valid domain", domain, "give one such as example.org")


# --- environments that are images ------------------------------------------------------------------------------------


def _images(params: Mapping[str, Any]) -> list[str]:
    """The images as their environments name them."""
    return [str(row["image"]) for row in params["environments"] if row.get("image")]


def _exact(params: Mapping[str, Any], image: str) -> str:
    return image_catalogue.resolve(image, params["image_catalogue"], {})[0]


def _to_look_at(params: Mapping[str, Any], peers: Mapping[str, Any]) -> list[str]:
    """The nodes whose driver an image depends on and nobody knows yet."""
    found = [
        host
        for image in _images(params)
        for host in image_catalogue.to_look_at(image, params["image_catalogue"], peers["nodes"], peers["hostvars"])
    ]
    return list(dict.fromkeys(found))


def _wrong_images(params: Mapping[str, Any], peers: Mapping[str, Any]) -> Iterator[Problem]:
    """Images that nobody knows, and nodes that cannot run one: a session may come to any node."""
    named = _images(params)
    for image in named:
        facts = image_catalogue.facts_of(peers["nodes"], peers["hostvars"])
        exact, found = image_catalogue.resolve(image, params["image_catalogue"], facts)
        yield from found
        if not found and not images.IMAGE.fullmatch(exact):
            remedy = "push it with `gpuops image push`, or give HOST:PORT/NAME:TAG"
            yield wrong("portal_environments", "image_catalogue has no such image", image, remedy)
    asked = peers["nodes"] if named and params["scheduler"] != DOCKER else []
    without = [host for host in asked if not _runs_images(peers["hostvars"], host)]
    if without:
        shown = ", ".join(without[:3]) + (f" and {len(without) - 3} more" if len(without) > 3 else "")
        cause = f"the image {named[0]} is an environment, and not all nodes run images: {shown}"
        remedy = "set slurm_common_containers for all hosts of Slurm and run `gpuops up --tags slurm`, or name no image"
        yield Problem("no_containers", "portal_environments", cause, shown, remedy)


def _runs_images(hostvars: Mapping[str, Any], host: str) -> bool:
    # The variables of all hosts raise for one that is not there.
    given = hostvars[host].get("slurm_common_containers", False) if host in hostvars else False
    return bool(boolean(given, strict=False))


def _registry(params: Mapping[str, Any]) -> str:
    """Where users have images of their own: the registry of the catalogue, where an environment is from it."""
    for image in _images(params) if params["scheduler"] != DOCKER else ():
        row = image_catalogue.find(params["image_catalogue"], image)
        if row:
            return str(row["reference"]).partition("/")[0]
    return ""


def _is_window(minutes: int) -> bool:
    return IDLE_MINUTES[0] <= minutes <= IDLE_MINUTES[1]


# --- the documents ---------------------------------------------------------------------------------------------------


def _name(params: Mapping[str, Any], peers: Mapping[str, Any]) -> str:
    return str(params["name"] or peers["host"])


def _hub_host(peers: Mapping[str, Any]) -> str:
    """Where sessions reach the hub."""
    return str(peers["address"] or peers["host"])


def _url(params: Mapping[str, Any], peers: Mapping[str, Any]) -> str:
    name = _name(params, peers)
    return f"https://{name}{'' if params['port'] == 443 else ':' + str(params['port'])}"


def _wanted(params: Mapping[str, Any], peers: Mapping[str, Any]) -> dict[str, Any]:
    given = params["tls_files"]
    below = [f"*.{_name(params, peers)}"] if params["origins"] == OWN_ORIGINS else []
    names = (peers["host"], params["name"], *below, peers["address"], *params["names"])
    row = {"name": peers["host"], "names": list(dict.fromkeys(filter(None, names)))}
    return {**row, "certificate": given["certificate"], "key": given["key"]} if given else row


def _requirements(rows: list[Mapping[str, Any]]) -> str:
    return "".join(f"{row['name']}=={row['version']} --hash=sha256:{row['sha256']}\n" for row in rows)


def _marathon(params: Mapping[str, Any], peers: Mapping[str, Any]) -> list[doc.Entry]:
    """What the program that works as root asks Marathon and the masters with."""
    if params["scheduler"] != MARATHON:
        return [doc.Absent(MARATHON_FILE), doc.Absent(MASTERS_AUTHORITY)]
    mesos = peers["mesos"]
    authority = mesos["authority"]
    row = {
        "urls": mesos["marathons"],
        "user": mesos["http_user"],
        "password": params["cluster_secrets"].get(HTTP + mesos["http_user"], ""),
        "masters": mesos["masters"],
        "principal": mesos["operator"].get("user", ""),
        "secret": mesos["operator"].get("password", ""),
        "ca_file": MASTERS_AUTHORITY if authority else "",
    }
    content = json.dumps(row, indent=1, sort_keys=True) + "\n"
    return [
        doc.File(MARATHON_FILE, content, "0600", sensitive=True),
        doc.File(MASTERS_AUTHORITY, authority) if authority else doc.Absent(MASTERS_AUTHORITY),
    ]


def _install(
    params: Mapping[str, Any], where: str, what: str, rows: list[Mapping[str, Any]], python: str
) -> doc.Document:
    """Packages, the wheels, and the list of them."""
    environments = [row for row in params["environments"] if row.get("packages") and what == SESSION_WHEELS]
    packages = ["python3-venv", *(["nodejs", "node-configurable-http-proxy"] if what == HUB_WHEELS else [])]
    packages += [portal_ssh.PACKAGE] if params["ssh"] else []
    packages += [LIBPQ] if params["database"] and what == HUB_WHEELS else []
    packages += _packages(params) if what == SESSION_WHEELS else []
    wheelhouse = str(params["wheelhouse"])
    return doc.Document(
        packages=[*map(doc.Package, packages)],
        files=[
            doc.Directory(OPT),
            doc.Directory(f"{where}-wheels"),
            *(
                doc.File(f"{where}-wheels/{name}", source=os.path.join(wheelhouse, name), sha256=row["sha256"])
                for row in rows
                for name in [row["file"]]
            ),
            doc.File(f"{where}-wheels/requirements.txt", _requirements(rows)),
            *(_in_session() if what == SESSION_WHEELS or params["scheduler"] == DOCKER else []),
            *([doc.Directory(ENVIRONMENTS)] if environments else []),
            *(one for row in environments for one in _layer(row["name"], python)),
        ],
    )


def _layer(name: str, python: str) -> list[doc.Entry]:
    """A virtual environment of the distribution's Python and packages, with the JupyterLab of the one of the wheels."""
    path, library = f"{ENVIRONMENTS}/{name}", f"lib/python{python}/site-packages"
    start = f"#!{path}/bin/python3\nimport sys\n\nfrom {{}} import main\n\nsys.exit(main())\n"
    texts = {
        "pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = true\n",
        f"{library}/notebook.pth": f"{OWN['path']}/{library}\n",
    }
    links = {f"bin/{one}": "/usr/bin/python3" for one in ("python", "python3")}
    links |= {one: f"{OWN['path']}/{one}" for one in ("etc", "share")}
    return [
        *(doc.Directory(path + one) for one in ("", "/bin", "/lib", f"/lib/python{python}", f"/{library}")),
        *(doc.File(f"{path}/{one}", text) for one, text in texts.items()),
        *(doc.File(f"{path}/bin/{one}", start.format(module), "0755") for one, module in BORROWED.items()),
        *(doc.Link(f"{path}/{one}", target) for one, target in links.items()),
    ]


# What shows the portal's warnings in JupyterLab: the name of a file -> where it is.
LAB = f"{session.JUPYTER}/labextensions/baremetal-gpu-portal"
IN_LAB = {"package.json": f"{LAB}/package.json", "remoteEntry.js": f"{LAB}/static/remoteEntry.js"}


def _in_session() -> list[doc.Entry]:
    """What sessions have of the portal: the program that tells the hub whether they are used, and its warnings."""
    files = ROLES / ROLE / "files" / "jupyterlab"
    directories = (LIBEXEC, "/usr/share/baremetal-gpu", session.JUPYTER, LAB.rpartition("/")[0], LAB, f"{LAB}/static")
    return [
        *map(doc.Directory, directories),
        *(doc.File(path, (files / name).read_text(encoding="utf-8")) for name, path in IN_LAB.items()),
        doc.File(session.MEASURE, bundle("portal.measure"), "0755"),
        doc.File(ENVIRONMENT, bundle("portal.environments"), "0755"),
        doc.Link(ENVIRONMENT_COMMAND, ENVIRONMENT),
    ]


def _own(params: Mapping[str, Any]) -> list[dict[str, str]]:
    """The environment that nodes get from the wheels, where a session can have it."""
    return [OWN] if params["notebook"] and params["scheduler"] != DOCKER else []


def settings(params: Mapping[str, Any], peers: Mapping[str, Any]) -> dict[str, Any]:
    """What the hub and the program that submits read."""
    environments = [
        {
            "name": row["name"],
            **(
                {"image": _exact(params, row["image"])}
                if row.get("image")
                else {"path": row.get("path") or f"{ENVIRONMENTS}/{row['name']}"}
            ),
        }
        for row in params["environments"]
    ]
    hub = f"https://{_hub_host(peers)}:{params['hub_port']}"
    return {
        "limits": dict(params["limits"]),
        "limits_by_group": {name: dict(row) for name, row in params["limits_by_group"].items()},
        "environments": [*_own(params), *environments],
        "registry": _registry(params),
        **{name: params[name] for name in ("scheduler", "partition", "account", "qos")},
        **{name: list(params[name]) for name in ("allowed_groups", "admin_groups", "domains")},
        "closed": have_left(params["homes_users"]),
        **{name: params[name] for name in ("least_uid", "session_port_first", "session_port_last", "ssh")},
        "hub": {
            "login": {"kind": params["login"], "pam_service": PAM_SERVICE, "options": dict(params["login_options"])},
            "db_url": params["database"],
            "proxy_api_url": f"https://127.0.0.1:{PROXY_API_PORT}",
            "public_url": _url(params, peers),
            "own_origins": params["origins"] == OWN_ORIGINS,
            "hub_bind_url": f"https://0.0.0.0:{params['hub_port']}",
            "hub_connect_url": hub,
            "presets": [dict(row) for row in params["presets"]],
            "prometheus": params["prometheus"],
            "named_servers": params["named_servers"],
            "wait_minutes": params["wait_minutes"],
            "idle": _idle(params),
            "ssh": {"host": params["name"] or peers["host"], "port": params["ssh_port"]} if params["ssh"] else None,
        },
    }


def _idle(params: Mapping[str, Any]) -> dict[str, Any]:
    """When sessions are ended for being idle, and how their users are warned."""

    def policy(minutes: int) -> dict[str, Any] | None:
        found = idle.policy_for(minutes, params["idle_spared_minutes"])
        return asdict(found) if found else None

    return {
        "default": policy(params["idle_minutes"]),
        "by_group": {name: policy(minutes) for name, minutes in params["idle_minutes_by_group"].items()},
        "sample_s": samples.INTERVAL_S,
        "webhook": params["idle_webhook"],
        "mail_domain": params["idle_mail_domain"],
    }


def _service(
    params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any], where: str, made_of: str
) -> doc.Document:
    former = portal_package.former(str(path).removeprefix(f"{LIBRARY}/") for path in facts.get("library", ()))
    files = ROLES / ROLE / "files"
    pam = "".join(f"@include common-{part}\n" for part in ("auth", "account"))
    values = {
        "user": USER,
        "environment": where,
        "config": CONFIG,
        "token": TOKEN,
        "tls": TLS,
        "port": params["port"],
        "api_port": PROXY_API_PORT,
        "hub_port": params["hub_port"],
        "helper": HELPER,
        "login": LOGIN,
        "invite": INVITE,
        "backup": BACKUP,
        "backups": params["backups"],
        "state": STATE,
        "hub_tls": HUB_TLS,
        "hub_names": [certificates.alternative(one) for one in (_hub_host(peers), _name(params, peers))],
        "certificates_program": CERTIFICATES_PROGRAM,
        "proxy_part": PROXY_FILE,
        "origin": _url(params, peers) if params["origins"] == OWN_ORIGINS else "",
    }
    # A copy of a file is no copy of a database elsewhere.
    gone = BACKUP_UNITS if params["database"] else ()
    units = {name: render(ROLE, f"{name}.j2", **values) for name in UNITS if name not in gone}
    text_of_settings = json.dumps(settings(params, peers), indent=1, sort_keys=True)
    own = [
        *map(doc.Directory, ("/etc/baremetal-gpu", ETC)),
        *certificate_files.present(TLS, params["certificates"], peers["host"], USER),
        # It may have the secret of a provider of logins, and that of the database.
        doc.File(SETTINGS, f"{text_of_settings}\n", "0640", group=USER, sensitive=True),
        *(doc.File(path, (files / name).read_text(encoding="utf-8")) for name, path in IN_HUB.items()),
        doc.File(TOKEN, f"CONFIGPROXY_AUTH_TOKEN={params['proxy_token']}\n", "0600", sensitive=True),
        doc.File(MADE_OF, made_of),
        *_marathon(params, peers),
        doc.File(f"/etc/pam.d/{PAM_SERVICE}", pam),
        *map(doc.Directory, (SHARE.rpartition("/")[0], SHARE, LIBRARY)),
        *(doc.Directory(f"{LIBRARY}/{path}") for path in portal_package.directories()),
        *(doc.File(f"{LIBRARY}/{path}", text) for path, text in portal_package.files().items()),
        *map(doc.Absent, (*BEFORE, *(f"{LIBRARY}/{path}" for path in former))),
        doc.Directory(LIBEXEC),
        doc.File(HELPER, bundle("portal.helper"), "0755"),
        doc.File(LOGIN, bundle("portal.login"), "0755"),
        doc.File(INVITE, bundle("portal.invite"), "0755"),
        doc.Directory(invite.DIRECTORY, "0700"),
        doc.File(BACKUP, bundle("portal.backup"), "0755"),
        *(doc.File(unit_path(name), text) for name, text in units.items()),
        *(doc.Absent(unit_path(name)) for name in gone),
    ]
    jump_files, jump_units = portal_ssh.present(params["ssh_port"]) if params["ssh"] else portal_ssh.absent()
    # What makes certificates is of use at the next start, and not before.
    of_proxy = [TOKEN, f"{TLS}/*", PROXY_FILE]
    of_hub = [SETTINGS, CONFIG, TOKEN, MADE_OF, f"{LIBRARY}/*", unit_path(HUB)]
    timer = doc.Unit.running(BACKUP_TIMER, [unit_path(BACKUP_TIMER)])
    return doc.Document(
        files=[*own, *jump_files],
        units=[
            *jump_units,
            *(doc.Unit.running(name, [unit_path(name)]) for name in (SESSION_SOCKET, LOGIN_SOCKET, INVITE_SOCKET)),
            doc.Unit.running(PROXY, [*of_proxy, unit_path(PROXY), "node-configurable-http-proxy"]),
            doc.Unit.running(HUB, of_hub),
            doc.Unit.stopped(BACKUP_TIMER) if gone else timer,
        ],
    )


def _absent_units() -> doc.Document:
    """Sessions that run go on until their time is over. The database and its copies stay."""
    paths = (
        SETTINGS,
        *BEFORE,
        *IN_HUB.values(),
        LIBRARY,
        TOKEN,
        MADE_OF,
        MARATHON_FILE,
        MASTERS_AUTHORITY,
        f"/etc/pam.d/{PAM_SERVICE}",
        HELPER,
        LOGIN,
        INVITE,
        BACKUP,
    )
    files, units = portal_ssh.absent()
    own = (BACKUP_TIMER, HUB, PROXY, SESSION_SOCKET, LOGIN_SOCKET, INVITE_SOCKET)
    return doc.Document(
        units=[*units, *map(doc.Unit.stopped, own)],
        files=[*files, *map(doc.Absent, (*paths, *map(unit_path, UNITS))), *certificate_files.absent(TLS)],
    )


def _absent_files(params: Mapping[str, Any], where: str, what: str, in_session: bool) -> doc.Document:
    names = sorted({row["file"] for row in lock() if what in row["for"]})
    listed = [f"{where}-wheels/{name}" for name in ("requirements.txt", *names)]
    more = [session.MEASURE, ENVIRONMENT_COMMAND, ENVIRONMENT, *IN_LAB.values()] if in_session else []
    if what == SESSION_WHEELS:
        named = (str(row.get("name")) for row in params["environments"] if row.get("packages"))
        more += [f"{ENVIRONMENTS}/{name}" for name in named if form.ENVIRONMENT.fullmatch(name)]
    return doc.Document(files=[*map(doc.Absent, [*listed, *more])])
