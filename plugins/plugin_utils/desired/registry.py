# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host that has the images of the site.

nginx speaks TLS, knows the users and says what each may do. Behind it are two registries on the same storage, which
know no users and are reached by sockets that nginx alone can open: one that reads, and one that writes, so that images
can be pulled while nothing is written.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils import certificate_files
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph.users import have_left
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import textfile
from ansible_collections.baremetal.gpu.plugins.plugin_utils.nginx import no_default_site
from ansible_collections.baremetal.gpu.plugins.plugin_utils.registry import site
from ansible_collections.baremetal.gpu.plugins.plugin_utils.registry.site import CATALOGUE, PART
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import (
    bracketed,
    size,
    unit_path,
    wrong,
    wrong_files,
)

ROLE = "registry"
# The certificate, the users and the configurations of the registries.
DIRECTORY = "/etc/baremetal-gpu/registry"
HTPASSWD = f"{DIRECTORY}/htpasswd"
# By which nginx knows its own requests to the port on loopback, which any local user can reach.
OWN_REQUESTS = f"{DIRECTORY}/own-requests.conf"
LIMITS = f"{DIRECTORY}/limits.json"
NGINX_CONF = "/etc/nginx/conf.d/baremetal-gpu-registry.conf"
REFUSED, GUESSES = (f"/run/baremetal-gpu-registry-store/{name}" for name in ("refused", "guesses.sock"))
UNIT = "baremetal-gpu-registry@.service"
READ, WRITE = "read", "write"
PROGRAM = "/usr/libexec/baremetal-gpu/registry-store"
STORE = "baremetal-gpu-registry-store.service"
COLLECT, BACKUP = "baremetal-gpu-registry-collect", "baremetal-gpu-registry-backup"
UPLOADS = "baremetal-gpu-registry-uploads"
# What nobody finishes holds the disk at the most for so long after registry_upload_hours.
UPLOADS_AT = "*:0/15"
TIMED = (COLLECT, UPLOADS, BACKUP)
WRITE_DROP_IN = "/etc/systemd/system/baremetal-gpu-registry@write.service.d/baremetal-gpu.conf"
# When unused space was freed last.
RECORD = "/var/lib/baremetal-gpu-registry/collected"
METRICS = "baremetal_gpu_registry.prom"
# The package starts a registry that everybody can reach, on the port that is nginx' here.
OWN_UNIT = doc.Link("/etc/systemd/system/docker-registry.service", "/dev/null", early=True)

_DIGEST = "sha(?:256:[0-9a-f]{64}|512:[0-9a-f]{128})"
# A higher cost would keep nginx from its other requests.
_HASH = re.compile(r"\$2[aby]\$(?:0[4-9]|10)\$[./A-Za-z0-9]{53}", re.ASCII)
# What is a word in a unit file and in nginx' configuration, without quotes.
_PATH = re.compile(r"(?:/[A-Za-z0-9._-]+)+", re.ASCII)
_CALENDAR = re.compile(r"[A-Za-z0-9*,./:~ -]{1,60}", re.ASCII)
_URL = re.compile(r"https?://[A-Za-z0-9.:-]{1,253}(?:/[A-Za-z0-9._/-]*)?", re.ASCII)
# Where nothing of a registry belongs, or where its unit does not see anything.
_NO_STORAGE = ("/etc", "/usr", "/boot", "/dev", "/proc", "/sys", "/run", "/bin", "/sbin", "/lib", "/home", "/root")


def instance(name: str) -> str:
    return UNIT.replace("@", f"@{name}")


def socket_of(name: str) -> str:
    return f"/run/baremetal-gpu-registry-{name}/http.sock"


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the host of the registry.

    :param params: the variables of the role; ``certificates`` and ``hashes``, what the modules cluster_certificates and
        registry_passwords have returned, may be empty until the tasks have read them.
    :param peers: ``host``, the name of this host; ``hosts``, those of the group registries.
    :return: With the parts `certificates` and `users`, what is asked of those modules, and `url`, by which the host
        itself asks.
    """
    nothing: dict[str, Any] = {"certificates": [], "users": [], "url": ""}
    if params["state"] == "absent":
        purge = str(params["purge_storage"])
        if purge in ("", peers["host"]):
            return Plan(_absent(params, bool(purge)), parts=nothing)
        cause, remedy = f"it is not the name of this host, {peers['host']}", "name this host, or leave it empty"
        return Plan(problems=(wrong("registry_purge_storage", cause, purge, remedy),), parts=nothing)
    problems = tuple(_problems(params, peers))
    if problems:
        return Plan(problems=problems, parts=nothing)
    # The images of whoever has left stay.
    gone = have_left(params["homes_users"])
    params = {**params, "users": [row for row in params["users"] if row["name"] not in gone]}
    parts = {
        "certificates": [_wanted(params, peers["host"])],
        "users": _generated(params),
        "url": f"https://{bracketed(_own_address(params))}:{params['port']}/v2/",
    }
    is_ready = params["certificates"].get("certificates") and params["hashes"]
    return Plan(_present(params, peers["host"]) if is_ready else doc.Document(), parts=parts)


def _problems(params: Mapping[str, Any], peers: Mapping[str, Any]) -> Iterator[Problem]:
    hosts = list(peers["hosts"])
    if peers["host"] not in hosts:
        cause = "the role registry is for the host of the group registries"
        yield Problem("no_registry", peers["host"], cause, "", f"add {peers['host']} to the group registries")
    if len(hosts) > 1:
        yield Problem(
            "one_registry",
            "registries",
            f"the group registries has {len(hosts)} hosts, and the images of a site are on one",
            ", ".join(hosts),
            "leave one host in registries",
        )
    yield from site.wrong_names("registry_names", site.names(peers["host"], params["name"], params["names"]))
    yield from _wrong_users(params)
    yield from _wrong_listening(params)
    yield from _wrong_storage(params)
    yield from _wrong_caches(params)
    yield from wrong_files("registry_tls_files", params["tls_files"])
    yield from textfile.directory_problems("registry_metrics_directory", str(params["metrics_directory"]))


def _wrong_users(params: Mapping[str, Any]) -> Iterator[Problem]:
    letters = "it is not made of lower-case letters and digits, with dots, hyphens and underscores between them"
    operator = str(params["operator"])
    if not site.is_space(operator):
        yield wrong("registry_operator", letters, operator, "give a name such as operator")
    seen = {CATALOGUE: "it is the namespace of the site's own images", operator: "it is registry_operator"}
    for row in params["users"]:
        name = str(row.get("name") or "")
        unknown = sorted(set(row) - {"name", "hash", "quota"})
        if unknown:
            yield wrong("registry_users", f"the user {name} has unknown keys", ", ".join(unknown), "remove them")
        if not site.is_space(name):
            yield wrong("registry_users", f"a user has this name, and {letters}", name, "give another name")
        elif name in seen:
            yield wrong("registry_users", f"no user can have this name: {seen[name]}", name, "give another name")
        seen[name] = "another user has it"
        # The hash itself is not shown.
        if row.get("hash") and not _HASH.fullmatch(str(row["hash"])):
            remedy = f"give what 'htpasswd -nB {name}' prints after the colon, or no hash"
            yield wrong("registry_users", f"the hash of {name} is none of bcrypt with a cost of 4 to 10", "", remedy)
        if row.get("quota") not in (None, "") and not size(str(row["quota"])):
            yield wrong(
                "registry_users", f"the quota of {name} is not a valid size", row["quota"], "give one such as 50G"
            )
    for space in params["public"]:
        if not site.is_space(str(space)):
            yield wrong("registry_public", letters, space, "give the first part of the names of images")


def _wrong_listening(params: Mapping[str, Any]) -> Iterator[Problem]:
    remedy = "give addresses such as 0.0.0.0 or ::"
    if not params["listen"]:
        yield wrong("registry_listen", "there is no address", "", remedy)
    for address in params["listen"]:
        if not site.is_address(str(address)):
            yield wrong("registry_listen", "it is not an IP address", address, remedy)
    ports = {"registry_port": params["port"], "registry_loopback_port": params["loopback_port"]}
    ports.update({f"registry_caches ({row.get('name')})": row.get("port") for row in _caches(params)})
    for variable, port in ports.items():
        if not site.is_port(port):
            yield wrong(variable, "it is not a valid port", port, f"give a port such as {site.PORT}")
    if len(set(ports.values())) < len(ports):
        yield wrong("registry_port", "two of the ports are the same", ", ".join(map(str, ports.values())), "change one")


def _wrong_storage(params: Mapping[str, Any]) -> Iterator[Problem]:
    path, mount = str(params["storage_path"]), str(params["storage_mount"])
    yield from _wrong_path("registry_storage_path", path)
    if mount and not _PATH.fullmatch(mount):
        yield wrong(
            "registry_storage_mount", "it is not an absolute path of plain characters", mount, "give a mount point"
        )
    elif mount and not f"{path}/".startswith(f"{mount}/"):
        cause = f"registry_storage_path ({path}) is not below it"
        yield wrong("registry_storage_mount", cause, mount, "give the mount point that the path is on")
    yield from _wrong_times(params)
    for name in ("min_free", "quota"):
        if (params[name] or name == "min_free") and not size(str(params[name])):
            yield wrong(
                f"registry_{name}", "it is not a valid size", params[name], "give a size such as 500M, 50G or 1T"
            )


def _wrong_times(params: Mapping[str, Any]) -> Iterator[Problem]:
    for name in ("collect_at", "backup_at"):
        if not _CALENDAR.fullmatch(str(params[name])):
            remedy = "give one of systemd.time, such as *-*-* 03:30"
            yield wrong(f"registry_{name}", "it is not a calendar event", params[name], remedy)
    for name, least in (("untagged_days", 0), ("grace_hours", 1), ("upload_hours", 1)):
        if params[name] < least:
            yield wrong(f"registry_{name}", f"it is less than {least}", params[name], f"give {least} or more")
    path, mount = str(params["backup_path"]), str(params["backup_mount"])
    if path:
        yield from _wrong_path("registry_backup_path", path)
        if any(f"{path}/".startswith(f"{one}/") or f"{one}/".startswith(f"{path}/") for one in _storage(params)):
            yield wrong("registry_backup_path", "it is in the storage, or the reverse", path, "give another directory")
    if mount and not f"{path}/".startswith(f"{mount}/"):
        cause = f"registry_backup_path ({path}) is not below it"
        yield wrong("registry_backup_mount", cause, mount, "give the mount point that the path is on")


def _wrong_path(variable: str, path: str) -> Iterator[Problem]:
    if not _PATH.fullmatch(path) or {".", ".."} & set(path.split("/")):
        yield wrong(variable, "it is not an absolute path of plain characters", path, "give one such as /srv/registry")
    elif any(f"{path}/".startswith(f"{place}/") for place in _NO_STORAGE) or path in ("/var", "/var/lib", "/srv"):
        yield wrong(variable, "images do not belong there", path, "give a directory such as /srv/registry")


def _wrong_caches(params: Mapping[str, Any]) -> Iterator[Problem]:
    names, paths = [], [str(params["storage_path"])]
    for row in _caches(params):
        name, path = str(row.get("name") or ""), str(row.get("path") or "")
        variable = f"registry_caches ({name})"
        if not re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", name) or len(name) > 32:
            yield wrong(variable, "its name is not made of lower-case letters, digits and hyphens", name, "rename it")
        if not _URL.fullmatch(str(row.get("upstream") or "")):
            yield wrong(variable, "it has no upstream", row.get("upstream"), "give the URL of a registry")
        yield from _wrong_path(variable, path)
        if any(f"{path}/".startswith(f"{one}/") or f"{one}/".startswith(f"{path}/") for one in paths):
            yield wrong(
                variable, "its path is that of another storage, or in it", path, "give it a directory of its own"
            )
        if bool(row.get("username")) != bool(row.get("password")):
            yield wrong(variable, "it has a username without a password, or the reverse", "", "give both, or none")
        names.append(name)
        paths.append(path)
    if len(set(names)) < len(names):
        yield wrong("registry_caches", "two have the same name", ", ".join(names), "rename one")


def _caches(params: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in params["caches"] if row.get("state") != "absent"]


def _gone(params: Mapping[str, Any]) -> list[str]:
    """Instances that are not wanted any more."""
    present = params["state"] == "present"
    caches = [f"cache-{row['name']}" for row in params["caches"] if row.get("state") == "absent" or not present]
    return caches if present else [READ, WRITE, *caches]


def _wanted(params: Mapping[str, Any], host: str) -> dict[str, Any]:
    given = params["tls_files"]
    row = {"name": host, "names": site.names(host, params["name"], params["names"])}
    return {**row, "certificate": given["certificate"], "key": given["key"]} if given else row


def _generated(params: Mapping[str, Any]) -> list[str]:
    """Whose passwords are made."""
    return [str(params["operator"]), *(row["name"] for row in params["users"] if not row.get("hash"))]


def _own_address(params: Mapping[str, Any]) -> str:
    address = str(params["listen"][0])
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)


def _storage(params: Mapping[str, Any]) -> list[str]:
    return [str(params["storage_path"]), *(row["path"] for row in _caches(params))]


def configurations(params: Mapping[str, Any]) -> dict[str, str]:
    """What each registry is to do, by the name of its instance."""
    found = {}
    for name in (READ, WRITE):
        own = {"storage": params["storage_path"], "socket": socket_of(name), "is_readonly": name == READ}
        found[name] = render(ROLE, "registry.yml.j2", **own, upstream="", username="", password="")
    for row in _caches(params):
        name = f"cache-{row['name']}"
        found[name] = render(
            ROLE,
            "registry.yml.j2",
            storage=row["path"],
            socket=socket_of(name),
            is_readonly=False,
            upstream=json.dumps(row["upstream"]),
            username=json.dumps(row.get("username") or "") if row.get("username") else "",
            password=json.dumps(row.get("password") or ""),
        )
    return found


def nginx(params: Mapping[str, Any], host: str) -> str:
    """The configuration of nginx."""
    where = f"registry {host}"
    texts = {
        "unauthorized": ("UNAUTHORIZED", f"{where}: log in with your name and password"),
        "denied": (
            "DENIED",
            f"{where}: you can push and delete below your own name, and pull from there, from {CATALOGUE} and from "
            "what is public",
        ),
        "unsupported": ("UNSUPPORTED", f"{where}: there is no such request, or the name of the image is wrong"),
        "guesses": (
            "TOOMANYREQUESTS",
            f"{where}: there were too many wrong passwords. Try again in a minute, with the right one",
        ),
        "closed": (
            "UNAVAILABLE",
            f"{where}: it starts, or makes space, which takes minutes; pulling goes on. Try again. If it lasts, ask "
            f"the operator to see systemctl status baremetal-gpu-registry@* on {host}",
        ),
    }
    return render(
        ROLE,
        "nginx.conf.j2",
        listen=[bracketed(str(address)) for address in params["listen"]],
        port=params["port"],
        loopback_port=params["loopback_port"],
        own_requests=OWN_REQUESTS,
        tls=DIRECTORY,
        htpasswd=HTPASSWD,
        refused=REFUSED,
        guesses=GUESSES,
        sockets={name: socket_of(name) for name in (READ, WRITE)},
        operator=re.escape(str(params["operator"])),
        catalogue=CATALOGUE,
        public=[re.escape(str(space)) for space in params["public"]],
        part=PART,
        image=f"{PART}(?:/{PART})*",
        reference=f"(?:[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}|{_DIGEST})",
        digest=_DIGEST,
        upload="[0-9a-f-]{36}",
        source_rest=f"(?:(?:/|%2[Ff]){PART})*",
        source_digest="sha256(?::|%3[Aa])[0-9a-f]{64}",
        errors={name: _error(code, message) for name, (code, message) in texts.items()},
        caches=[
            {
                "upstream": row["upstream"],
                "port": row["port"],
                "public": bool(row.get("public")),
                "socket": socket_of(f"cache-{row['name']}"),
            }
            for row in _caches(params)
        ],
    )


def _error(code: str, message: str) -> str:
    """An answer in the words of the registry's protocol, between single quotes of nginx."""
    return json.dumps({"errors": [{"code": code, "message": message, "detail": None}]}).replace("'", "\\'")


def _users(params: Mapping[str, Any]) -> str:
    given = {row["name"]: row["hash"] for row in params["users"] if row.get("hash")}
    return "".join(f"{name}:{hashed}\n" for name, hashed in sorted({**params["hashes"], **given}.items()))


def _own_requests(params: Mapping[str, Any], host: str) -> str:
    """A word that root and nginx alone know. It follows from the private key, which nobody else knows, and changes with
    it."""
    key = params["certificates"]["certificates"][host]["key_sha256"]
    word = hashlib.sha256(f"own requests of the registry {key}".encode()).hexdigest()
    return f'map "" $registry_own {{\n    default {word};\n}}\n'


def _limits(params: Mapping[str, Any], host: str) -> str:
    """What the program knows of the site; it reads the file in every look."""
    given = {row["name"]: size(str(row.get("quota") or params["quota"])) for row in params["users"]}
    quotas = {name: size for name, size in sorted(given.items()) if size}
    document = {
        "host": host,
        "min_free": size(str(params["min_free"])),
        "quotas": quotas,
    }
    return json.dumps(document, indent=2) + "\n"


def _texts(params: Mapping[str, Any]) -> dict[str, str]:
    """The files of systemd, by their paths."""
    directory = str(params["metrics_directory"])
    common = {
        "program": PROGRAM,
        "storage": params["storage_path"],
        "mount": params["storage_mount"],
        "socket": socket_of(WRITE),
        "record": RECORD,
    }
    found = {
        unit_path(UNIT): render(
            ROLE, f"{UNIT}.j2", directory=DIRECTORY, storage=_storage(params), mount=params["storage_mount"]
        ),
        WRITE_DROP_IN: render(ROLE, "write.conf.j2", **common),
        unit_path(STORE): render(
            ROLE,
            f"{STORE}.j2",
            limits=LIMITS,
            refused=REFUSED,
            guesses=GUESSES,
            directory=directory,
            textfile=f"{directory}/{METRICS}" if directory else "",
            **common,
        ),
        unit_path(f"{COLLECT}.service"): render(
            ROLE,
            f"{COLLECT}.service.j2",
            write=instance(WRITE),
            untagged_days=params["untagged_days"],
            grace_hours=params["grace_hours"],
            **common,
        ),
        unit_path(f"{COLLECT}.timer"): render(
            ROLE,
            "timer.j2",
            description="Free the space that no image of the registry needs",
            calendar=params["collect_at"],
        ),
    }
    found[unit_path(f"{UPLOADS}.service")] = render(
        ROLE, f"{UPLOADS}.service.j2", upload_hours=params["upload_hours"], **common
    )
    found[unit_path(f"{UPLOADS}.timer")] = render(
        ROLE, "timer.j2", description="Remove unfinished pushes to the registry", calendar=UPLOADS_AT
    )
    if params["backup_path"]:
        backup = {**common, "target": params["backup_path"], "mount": params["backup_mount"]}
        found[unit_path(f"{BACKUP}.service")] = render(ROLE, f"{BACKUP}.service.j2", **backup)
        found[unit_path(f"{BACKUP}.timer")] = render(
            ROLE, "timer.j2", description="Copy the images of the registry", calendar=params["backup_at"]
        )
    return found


def _present(params: Mapping[str, Any], host: str) -> doc.Document:
    registries = configurations(params)
    gone = _gone(params)
    backup = str(params["backup_path"])
    account = "docker-registry"
    return doc.Document(
        packages=[doc.Package("nginx"), doc.Package("docker-registry")],
        files=[
            OWN_UNIT,
            doc.Directory("/etc/baremetal-gpu"),
            *certificate_files.present(DIRECTORY, params["certificates"], host),
            doc.File(HTPASSWD, _users(params), "0640", group="www-data", sensitive=True),
            doc.File(OWN_REQUESTS, _own_requests(params, host), "0600", sensitive=True),
            *(
                doc.File(f"{DIRECTORY}/{name}.yml", text, "0640", group=account, sensitive="password:" in text)
                for name, text in registries.items()
            ),
            *(doc.Directory(path, "0700", account, account) for path in (*_storage(params), backup) if path),
            *(doc.Absent(f"{DIRECTORY}/{name}.yml") for name in gone),
            doc.File(LIMITS, _limits(params, host)),
            doc.Directory(PROGRAM.rpartition("/")[0]),
            doc.File(PROGRAM, bundle("registry.store"), "0755"),
            *textfile.directory(str(params["metrics_directory"])),
            doc.Directory(WRITE_DROP_IN.rpartition("/")[0]),
            *(doc.File(path, text) for path, text in _texts(params).items()),
            *(doc.Absent(unit_path(f"{BACKUP}.{kind}")) for kind in ("service", "timer") if not backup),
            doc.Directory("/etc/nginx", early=True),
            doc.Directory("/etc/nginx/sites-enabled", early=True),
            no_default_site(ROLE),
            doc.File(NGINX_CONF, nginx(params, host)),
        ],
        units=[
            doc.Unit("docker-registry.service", state="stopped"),
            *(doc.Unit.stopped(instance(name)) for name in gone),
            *(doc.Unit.running(instance(name), _restart_on(name)) for name in registries),
            doc.Unit.running(STORE, [PROGRAM, unit_path(STORE)]),
            _timer(COLLECT, True),
            _timer(UPLOADS, True),
            _timer(BACKUP, bool(backup)),
            doc.Unit.running(
                "nginx.service",
                restart_on=["nginx"],
                # It reads the file of users at every request. After a reload, pushes under way come to their end.
                reload_on=[NGINX_CONF, OWN_REQUESTS, f"{DIRECTORY}/*.pem"],
            ),
        ],
    )


def _restart_on(name: str) -> list[str]:
    drop_in = [WRITE_DROP_IN] if name == WRITE else []
    return [f"{DIRECTORY}/{name}.yml", unit_path(UNIT), *drop_in, "docker-registry"]


def _timer(name: str, is_wanted: bool) -> doc.Unit:
    timer = f"{name}.timer"
    return doc.Unit.running(timer, [unit_path(timer)]) if is_wanted else doc.Unit.stopped(timer)


def _absent(params: Mapping[str, Any], is_purged: bool) -> doc.Document:
    """The unit of the package stays masked: it would let everybody in."""
    names = _gone(params)
    services = [*map(instance, names), STORE, *(f"{name}.service" for name in TIMED)]
    written = [UNIT, STORE, *(f"{name}.{kind}" for name in TIMED for kind in ("service", "timer"))]
    paths = [
        NGINX_CONF,
        *map(unit_path, written),
        WRITE_DROP_IN,
        PROGRAM,
        HTPASSWD,
        OWN_REQUESTS,
        LIMITS,
        *(f"{DIRECTORY}/{name}.yml" for name in names),
        *(f"{path}/docker" for path in _storage(params) if is_purged),
    ]
    return doc.Document(
        units=[
            *(_timer(name, False) for name in TIMED),
            *map(doc.Unit.stopped, services),
            # It goes on for other sites that it may have.
            doc.Unit("nginx.service", reload_on=[NGINX_CONF]),
        ],
        files=[*map(doc.Absent, paths), *certificate_files.absent(DIRECTORY)],
    )
