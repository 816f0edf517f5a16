# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of the portal."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import idle, marathon_backend, session, settings
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import portal
from tests import portal_programs
from tests.unit.project.tree import BIN, ROOT, try_run

NAMES = ["login1", "portal.example.org", "*.portal.example.org", "192.0.2.5"]
CERTIFICATES = {
    "authority": {"path": "/site/ca.pem", "sha256": "a" * 64},
    "certificates": {
        "login1": {
            "certificate": "/site/c.pem",
            "certificate_sha256": "b" * 64,
            "key": "/site/k.pem",
            "key_sha256": "c" * 64,
        }
    },
}


def params(tmp_path: Path, **changed: Any) -> dict[str, Any]:
    given = yaml.safe_load((ROOT / "roles" / "portal" / "defaults" / "main.yml").read_text())
    own = {name.removeprefix("portal_"): value for name, value in given.items()}
    return {
        **own,
        "wheelhouse": "",
        "homes_users": [],
        "prometheus": "",
        "name": "portal.example.org",
        "kind": "hub",
        "check": True,
        "certificates": CERTIFICATES,
        "proxy_token": "token-of-the-proxy",
        "image_catalogue": [],
        "cluster_secrets": {},
        **changed,
    }


def plan(
    tmp_path: Path,
    python: str = "3.13",
    peers: dict[str, Any] | None = None,
    docker: str = "",
    found: dict[str, list[str]] | None = None,
    library: list[str] | None = None,
    **changed: Any,
) -> dict[str, Any]:
    others = {"host": "login1", "address": "192.0.2.5", "hosts": ["login1"], "logins": ["login1"], "mesos": {}}
    others |= {"nodes": [], "hostvars": {}, **(peers or {})}
    given = params(tmp_path, **changed)
    addresses = {name: ["192.0.2.5"] for name in portal.looked_up(given, others)} if found is None else found
    facts = {"python": python, "docker": docker, "addresses": addresses, "library": library or []}
    return portal.desired(given, facts, others).as_dict()


def ldap(**options: Any) -> dict[str, Any]:
    return {"login": "ldap", "login_options": {"server_address": "ldap.example.org", **options}}


def oidc(**options: Any) -> dict[str, Any]:
    urls = {name: f"https://id.example.org/{name}" for name in ("authorize_url", "token_url", "userdata_url")}
    return {"login": "oidc", "login_options": {**urls, **options}}


def causes(found: dict[str, Any]) -> str:
    return " ".join(row["cause"] for row in found["problems"])


def files(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["path"]: row for row in document["files"]}


@pytest.mark.parametrize("python", ["3.11", "3.13"])
@pytest.mark.parametrize("kind", ["hub", "session"])
def test_each_python_has_wheels_with_their_checksums_and_one_version_of_each(
    tmp_path: Path, python: str, kind: str
) -> None:
    rows = portal.wheels(python, kind)
    names = [row["name"] for row in rows]
    assert "jupyterhub" in names
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[0-9a-f]{64}", row["sha256"]) for row in rows)
    assert ("jupyterlab" in names) == (kind == "session")
    # jsonschema brings it since 4.25: each start compiled a grammar, which was half of the start.
    assert "rfc3987-syntax" not in names
    found = plan(tmp_path, python, kind=kind)
    assert found["environment"]["packages"] == {row["name"]: row["version"] for row in rows}
    lock = files(found["install"])[found["environment"]["lock"]]["content"]
    assert lock.count("--hash=sha256:") == len(rows)


def test_another_python_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    found = plan(tmp_path, "3.9")
    assert "has Python 3.9" in causes(found)
    assert "3.11, 3.13" in found["problems"][0]["remedy"]
    assert found["install"] == {}


SCIENCE = {"name": "science", "packages": ["python3-numpy", "python3-pandas"]}


def test_packages_of_an_environment_are_installed_on_nodes_alone_and_the_form_offers_it(tmp_path: Path) -> None:
    node = plan(tmp_path, kind="session", environments=[SCIENCE])
    assert node["asked"] == SCIENCE["packages"]
    assert {"name": "python3-pandas"} in node["install"]["packages"]
    hub = plan(tmp_path, environments=[SCIENCE])
    assert hub["asked"] == []
    assert {"name": "python3-pandas"} not in hub["install"]["packages"]
    text = files(hub["service"])[portal.SETTINGS]["content"]
    assert settings.parse(text).environments["science"] == "/opt/baremetal-gpu/environments/science"
    absent = files(plan(tmp_path, kind="session", environments=[SCIENCE], state="absent")["install"])
    assert absent["/opt/baremetal-gpu/environments/science"]["state"] == "absent"
    bad = [{**SCIENCE, "name": "../.."}]
    assert not any(
        ".." in path for path in files(plan(tmp_path, kind="session", environments=bad, state="absent")["install"])
    )


def test_a_package_that_the_node_cannot_have_is_refused_once_the_node_has_lists_of_packages(tmp_path: Path) -> None:
    def found(policy: str) -> dict[str, Any]:
        given = params(tmp_path, kind="session", environments=[SCIENCE])
        peers = {"host": "gpu1", "address": "", "hosts": ["login1"], "logins": [], "mesos": {}, "nodes": []}
        facts = {"python": "3.13", "policy": policy.splitlines()}
        return portal.desired(given, facts, peers).as_dict()

    lines = "python3-numpy:\n  Installed: (none)\n  Candidate: 1:1.24.2\n"
    (problem,) = found(lines)["problems"]
    assert problem["cause"] == "no repository of gpu1 has python3-pandas"
    assert "portal_environments" in problem["remedy"]
    assert found(f"{lines}python3-pandas:\n  Candidate: 1.5.3\n")["problems"] == []
    assert found("")["problems"] == []


def test_an_environment_of_packages_has_jupyterlab_of_the_wheels_and_the_packages_of_the_system(
    tmp_path: Path,
) -> None:
    python = portal_programs.PYTHON
    if not (portal_programs.environment() / "bin" / "jupyterhub").is_file():
        pytest.skip("there is no JupyterLab here: make test-full brings it")
    opt = tmp_path / "opt"
    opt.mkdir()
    (opt / "notebook").symlink_to(portal_programs.environment())
    for row in plan(tmp_path, python, kind="session", environments=[SCIENCE])["install"]["files"]:
        path = Path(row["path"].replace(portal.OPT, str(opt)))
        if "/environments" not in row["path"]:
            continue
        if row.get("state") == "directory":
            path.mkdir()
        elif row.get("state") == "link":
            path.symlink_to(row["src"].replace(portal.OPT, str(opt)))
        else:
            path.write_text(row["content"].replace(portal.OPT, str(opt)))
            path.chmod(int(row["mode"], 8))
    programs = opt / "environments" / "science" / "bin"
    lab = subprocess.run([programs / "jupyterhub-singleuser", "--version"], capture_output=True, text=True, check=True)
    assert re.match(r"\d+\.\d+", lab.stdout)
    tell = "import json, jupyterlab.commands as c, sys; print(json.dumps([sys.prefix, c.get_app_dir(), *sys.path]))"
    told = subprocess.run([programs / "python", "-c", tell], capture_output=True, text=True, check=True)
    prefix, app, *paths = json.loads(told.stdout)
    assert prefix == str(opt / "environments" / "science")
    assert (Path(app) / "static" / "index.html").is_file()
    assert paths.index(f"{opt}/notebook/lib/python{python}/site-packages") < paths.index(
        "/usr/lib/python3/dist-packages"
    )


@pytest.mark.parametrize("check", [False, True])
def test_wheels_that_the_controller_lacks_are_named_before_anything_is_changed(tmp_path: Path, check: bool) -> None:
    wheelhouse = str(tmp_path / "wheels")
    (problem,) = plan(tmp_path, check=check, wheelhouse=wheelhouse)["problems"]
    assert problem["code"] == "no_wheels"
    assert "61 of 61" in problem["cause"]
    assert f"{wheelhouse} on the controller" in problem["cause"]
    assert "gpuops fetch manifest.json mirror" in problem["remedy"]
    (tmp_path / "wheels").mkdir()
    for row in portal.wheels("3.13", "hub")[1:]:
        (tmp_path / "wheels" / row["file"]).touch()
    assert "lacks 1 of 61" in causes(plan(tmp_path, wheelhouse=wheelhouse))


def test_without_a_place_for_wheels_only_check_mode_goes_on_as_the_manifest_needs_it(tmp_path: Path) -> None:
    assert "no_wheels" in [row["code"] for row in plan(tmp_path, check=False)["problems"]]
    found = plan(tmp_path, check=True)
    assert not found["problems"]
    assert any(row.get("source", "").endswith(".whl") for row in found["install"]["files"])


def test_ansible_does_not_read_the_default_place_of_the_wheels_as_inventory(tmp_path: Path) -> None:
    default = yaml.safe_load((ROOT / "roles" / "portal" / "defaults" / "main.yml").read_text())["portal_wheelhouse"]
    inventory = tmp_path / "inventory"
    place = Path(default.replace("{{ inventory_dir }}", str(inventory)))
    place.mkdir(parents=True)
    (place / "jupyterhub-5.3.0-py3-none-any.whl").write_bytes(b"PK\x03\x04")
    (inventory / "hosts.yml").write_text("all: {hosts: {node1: }}\n")
    done = try_run([BIN / "ansible-inventory", "-i", inventory, "--list"], ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED="1")
    assert done.returncode == 0, done.stderr
    assert "node1" in done.stdout


@pytest.mark.parametrize(
    ("peers", "cause"),
    [
        ({"hosts": ["login1", "login2"]}, "has 2 hosts"),
        ({"hosts": []}, "has 0 hosts"),
        ({"logins": ["head1"]}, "no commands of Slurm"),
    ],
)
def test_a_site_has_one_portal_which_has_slurm(tmp_path: Path, peers: dict[str, Any], cause: str) -> None:
    assert cause in causes(plan(tmp_path, peers=peers))


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"port": 0}, "not a valid port"),
        ({"session_port_last": 20050}, "less than 100 ports"),
        ({"login": "kerberos"}, "no such login"),
        ({"scheduler": "pbs"}, "no such scheduler"),
        ({"login": "oidc"}, "needs options"),
        (ldap(tls_strategy="insecure"), "without TLS"),
        (ldap(tls_kwargs={"validate": 0}), "proves nothing"),
        (ldap(tls_strategy="insecure", server_address="localhost.example.org"), "without TLS"),
        (oidc(token_url="http://id.example.org/token"), "token_url is not an https:// URL"),
        (oidc(userdata_url=None), "userdata_url is not an https:// URL"),
        ({"domains": ["exa mple"]}, "not a valid domain"),
        ({"environments": [{"name": "A b", "path": "/x"}]}, "name of its own"),
        ({"environments": [{"name": "a", "path": "/x"}, {"name": "a", "path": "/y"}]}, "name of its own"),
        ({"environments": [{"name": "a", "path": "x'; id"}]}, "no path"),
        ({"environments": [{"name": "a"}]}, "not one of a path, an image and packages"),
        ({"environments": [{"name": "a", "path": "/x", "image": "torch"}]}, "not one of a path, an image"),
        ({"environments": [{"name": "a", "packages": ["-oDir=/tmp"]}]}, "not the name of a package"),
        ({"environments": [{"name": "notebook", "path": "/x"}]}, "name of its own"),
        ({"limits": {"gpus": 1}}, "some are missing"),
        ({"limits_by_group": {"lab": {"gpu": 1}}}, "not a limit"),
        ({"limits_by_group": {"lab": {"cpus": 0}}}, "less than a session needs"),
        ({"tls_files": {"key": "/k"}}, "no authority"),
        ({"database": "mysql://portal:secret-word@db1/portal"}, "not the URL of a PostgreSQL"),
        ({"database": "postgresql://portal:secret word@db1/portal"}, "not the URL of a PostgreSQL"),
        (
            {"database": "postgresql://db1/portal?user=portal&password=secret-word"},
            "not the URL of a PostgreSQL database",
        ),
        ({"database": "postgresql://portal:secret@word@db1/portal"}, "not the URL of a PostgreSQL database"),
        ({"idle_minutes": 5}, "is not ended after such a time"),
        ({"idle_minutes": -1}, "is not ended after such a time"),
        ({"idle_minutes_by_group": {"lab": 100_000}}, "is not ended after such a time"),
        ({"idle_minutes_by_group": {"lab": True}}, "is not ended after such a time"),
        ({"idle_minutes_by_group": {"lab": "60"}}, "is not ended after such a time"),
        ({"idle_spared_minutes": -1}, "not a number of minutes"),
        ({"idle_webhook": "mailto:alice"}, "not a URL"),
        ({"idle_webhook": "https://x/ y"}, "not a URL"),
        ({"idle_mail_domain": "a@b"}, "not a valid domain"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, changed: dict[str, Any], cause: str) -> None:
    found = plan(tmp_path, **changed)
    assert cause in causes(found)
    assert "secret" not in str(found["problems"])
    assert found["service"] == {}


@pytest.mark.parametrize(
    "changed",
    [
        ldap(),
        ldap(tls_strategy="on_connect"),
        ldap(tls_strategy="insecure", server_address="localhost"),
        ldap(tls_strategy="insecure", server_address="::1"),
        ldap(tls_strategy="insecure", server_address="ldapi:///run/slapd/ldapi"),
        ldap(tls_strategy="insecure", server_address="ldap://127.0.0.1"),
        oidc(),
        oidc(token_url="http://127.0.0.1:8080/token"),
    ],
)
def test_logins_with_tls_or_on_the_same_host_are_taken(tmp_path: Path, changed: dict[str, Any]) -> None:
    assert causes(plan(tmp_path, **changed)) == ""


def test_the_hub_and_the_proxy_are_two_units_and_only_their_own_files_restart_them(tmp_path: Path) -> None:
    units = {row["name"]: row for row in plan(tmp_path)["service"]["units"]}
    hub, proxy = units["baremetal-gpu-portal.service"], units["baremetal-gpu-portal-proxy.service"]
    assert "/etc/baremetal-gpu/portal/settings.json" in hub["restart_on"]
    assert "/etc/baremetal-gpu/portal/made-of" in hub["restart_on"]
    assert not [path for path in proxy["restart_on"] if "settings" in path or "made-of" in path]


MESOS = {
    "marathons": ["http://m1:8080"],
    "masters": ["https://m1:5050"],
    "http_user": "operator",
    "operator": {"user": "operator", "password": "s3cret-of-masters"},
    "authority": "PEM",
}


@pytest.mark.parametrize(
    ("mesos", "changed", "cause"),
    [
        ({"marathons": []}, {}, "no host in marathon"),
        ({"masters": []}, {}, "no host in mesos_masters"),
        ({}, {"ssh": True}, "have no SSH"),
        ({}, {"partition": "gpu"}, "no such thing"),
        ({}, {"environments": [{"name": "torch", "image": "a:5000/torch:1"}]}, "run in no image"),
    ],
)
def test_marathon_is_refused_where_the_rest_is_for_slurm(
    tmp_path: Path, mesos: dict[str, Any], changed: dict[str, Any], cause: str
) -> None:
    peers = {"mesos": {**MESOS, **mesos}, "logins": []}
    found = plan(tmp_path, peers=peers, **{"scheduler": "marathon", "ssh": False, **changed})
    assert cause in causes(found)
    assert found["service"] == {}


def test_the_login_of_marathon_is_roots_alone(tmp_path: Path) -> None:
    secrets = {"http:operator": "s3cret-of-marathon"}
    peers = {"mesos": MESOS, "logins": []}
    found = plan(tmp_path, peers=peers, scheduler="marathon", ssh=False, cluster_secrets=secrets)
    written = files(found["service"])
    for secret in ("s3cret-of-marathon", "s3cret-of-masters"):
        assert [path for path, row in written.items() if secret in str(row.get("content"))] == [marathon_backend.PATH]
    row = written[marathon_backend.PATH]
    assert (row["mode"], row["owner"], row["sensitive"]) == ("0600", "root", True)
    assert json.loads(row["content"])["ca_file"] in written
    assert settings.parse(written["/etc/baremetal-gpu/portal/settings.json"]["content"]).scheduler == "marathon"
    # Back at Slurm nothing is left of it.
    assert files(plan(tmp_path)["service"])[marathon_backend.PATH]["state"] == "absent"


IN_DOCKER = {
    "scheduler": "docker",
    "ssh": False,
    "environments": [{"name": "notebook", "image": "reg1:5000/site/notebook:1"}],
}


@pytest.mark.parametrize(
    ("version", "peers", "changed", "cause"),
    [
        ("20.10.24+dfsg1", {}, {}, "login1 has Docker 20.10.24+dfsg1, which does not give GPUs by CDI"),
        ("24.0.9", {}, {}, "login1 has Docker 24.0.9"),
        ("", {}, {"check": False}, "Docker does not answer on login1"),
        ("26.1.5", {"hostvars": {"login1": {"container_runtime_engine": "podman"}}}, {}, "no Docker"),
        ("26.1.5", {"address": "127.0.0.1"}, {}, "containers cannot reach the hub"),
        ("26.1.5", {"address": "", "host": "localhost", "hosts": ["localhost"]}, {}, "containers cannot reach the hub"),
        ("26.1.5", {}, {"ssh": True}, "have no SSH"),
        ("26.1.5", {}, {"qos": "high"}, "Docker has no such thing"),
        ("26.1.5", {}, {"environments": [{"name": "t", "path": "/t"}]}, "not in a directory"),
        ("26.1.5", {}, {"environments": [{"name": "t", "packages": ["python3-torch"]}]}, "not in a directory"),
        ("26.1.5", {}, {"environments": []}, "and there is none"),
        ("26.1.5", {}, {"environments": [{"name": "t", "image": "unknown"}]}, "no such image"),
    ],
)
def test_docker_is_refused_where_it_cannot_have_sessions(
    tmp_path: Path, version: str, peers: dict[str, Any], changed: dict[str, Any], cause: str
) -> None:
    found = plan(tmp_path, peers={"logins": [], **peers}, docker=version, **{**IN_DOCKER, **changed})
    assert cause in causes(found)
    assert all(row["remedy"] for row in found["problems"])
    assert found["service"] == {}


@pytest.mark.parametrize("version", ["25.0.0", "26.1.5+dfsg1", "29.0.1", ""])
def test_docker_from_25_on_has_sessions_and_check_mode_waits_for_its_installation(tmp_path: Path, version: str) -> None:
    assert causes(plan(tmp_path, peers={"logins": []}, docker=version, **IN_DOCKER)) == ""


def test_sessions_of_docker_have_images_alone_and_what_measures_them(tmp_path: Path) -> None:
    found = plan(tmp_path, peers={"logins": []}, docker="26.1.5", **IN_DOCKER)
    text = files(found["service"])["/etc/baremetal-gpu/portal/settings.json"]["content"]
    known = settings.parse(text)
    assert (known.names, known.registry) == (["notebook"], "")
    # An environment from wheels is none of theirs, so its name is free.
    assert known.images == {"notebook": "reg1:5000/site/notebook:1"}
    assert session.MEASURE in files(found["install"])
    assert session.MEASURE not in files(plan(tmp_path)["install"])
    gone = plan(tmp_path, state="absent", **IN_DOCKER)
    assert files(gone["install"])[session.MEASURE]["state"] == "absent"


def test_secrets_are_not_everybodys(tmp_path: Path) -> None:
    found = files(plan(tmp_path)["service"])
    token = found["/etc/baremetal-gpu/portal/proxy.env"]
    assert (token["mode"], token["sensitive"]) == ("0600", True)
    assert found["/etc/baremetal-gpu/portal/settings.json"]["mode"] == "0640"
    holders = [path for path, row in found.items() if "token-of-the-proxy" in str(row.get("content"))]
    assert holders == ["/etc/baremetal-gpu/portal/proxy.env"]


def test_the_program_reads_the_settings_that_the_role_writes(tmp_path: Path) -> None:
    changed = {
        "limits_by_group": {"lab": {"gpus": 8}},
        "allowed_groups": ["lab"],
        "environments": [{"name": "t", "path": "/t"}],
    }
    text = files(plan(tmp_path, **changed)["service"])["/etc/baremetal-gpu/portal/settings.json"]["content"]
    found = settings.parse(text)
    assert found.environments == {"notebook": "/opt/baremetal-gpu/notebook", "t": "/t"}
    assert found.limits.gpus == 1
    assert found.limits_by_group == {"lab": {"gpus": 8}}
    assert json.loads(text)["hub"]["hub_connect_url"] == "https://192.0.2.5:8081"


CATALOGUE = [
    {
        "name": "pytorch-cuda",
        "reference": "reg1:5000/catalogue/pytorch-cuda",
        "digest": f"sha256:{'d' * 64}",
        "needs": {"driver": "580.65.06"},
    }
]
TORCH = {"name": "torch", "image": "pytorch-cuda"}


def nodes(**drivers: str | None) -> dict[str, Any]:
    """Nodes with these drivers; None where nobody has looked yet."""
    hostvars = {
        name: {
            "slurm_common_containers": True,
            **({"ansible_facts": {"gpu": {"driver": {"version": version}}}} if version else {}),
        }
        for name, version in drivers.items()
    }
    return {"nodes": list(drivers), "hostvars": hostvars}


def test_an_image_of_the_catalogue_is_an_environment_by_its_digest(tmp_path: Path) -> None:
    found = plan(tmp_path, peers=nodes(n1="580.65.06"), environments=[TORCH], image_catalogue=CATALOGUE)
    assert found["problems"] == []
    text = files(found["service"])["/etc/baremetal-gpu/portal/settings.json"]["content"]
    known = settings.parse(text)
    assert known.images == {"torch": f"reg1:5000/catalogue/pytorch-cuda@sha256:{'d' * 64}"}
    assert known.names == ["notebook", "torch"]
    assert known.place_of("alice") == "reg1:5000/alice/"
    assert known.image_of("torch", "alice") == known.images["torch"]
    assert known.image_of("reg1:5000/alice/x:v1", "alice") == "reg1:5000/alice/x:v1"
    assert known.image_of("reg1:5000/alice/x:v1", "bob") == known.image_of("notebook", "alice") == ""


def test_without_images_in_the_form_nobody_names_one(tmp_path: Path) -> None:
    found = plan(tmp_path, image_catalogue=CATALOGUE)
    text = files(found["service"])["/etc/baremetal-gpu/portal/settings.json"]["content"]
    assert settings.parse(text).place_of("alice") == ""


def test_nodes_whose_driver_nobody_knows_are_looked_at_before_anything_is_changed(tmp_path: Path) -> None:
    peers = nodes(n1="580.65.06", n2=None)
    assert plan(tmp_path, peers=peers, environments=[TORCH], image_catalogue=CATALOGUE)["look"] == ["n2"]
    assert plan(tmp_path, peers=peers)["look"] == []
    assert plan(tmp_path, peers=peers, kind="session", environments=[TORCH], image_catalogue=CATALOGUE)["look"] == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"nodes": nodes(n1="570.1")}, ["pytorch-cuda needs driver 580.65.06", "n1 has driver 570.1", "upgrade"]),
        (
            {"nodes": {"nodes": ["n1", "n2"], "hostvars": {**nodes(n1="580.65.06")["hostvars"], "n2": {}}}},
            ["not all nodes run images: n2", "slurm_common_containers"],
        ),
        ({"image": "pytorch"}, ["has no such image", "[pytorch]", "gpuops image push"]),
        ({"image": "reg1:5000/catalogue/x;id"}, ["has no such image", "x;id"]),
        ({"catalogue": [{**CATALOGUE[0], "digest": "sha256:abc"}]}, ["its digest is not right", "abc"]),
    ],
)
def test_an_image_that_a_session_could_not_run_in_is_refused(
    tmp_path: Path, changed: dict[str, Any], told: list[str]
) -> None:
    found = plan(
        tmp_path,
        peers=changed.get("nodes", nodes(n1="580.65.06")),
        environments=[{**TORCH, "image": changed.get("image", "pytorch-cuda")}],
        image_catalogue=changed.get("catalogue", CATALOGUE),
    )
    (problem,) = found["problems"]
    text = f"{problem['cause']} [{problem['evidence']}] {problem['remedy']}"
    assert [word for word in told if word not in text] == []
    assert found["service"] == {}


@pytest.mark.parametrize("name", ["session", "login"])
def test_only_the_hub_opens_the_sockets_of_the_programs_that_work_as_root(tmp_path: Path, name: str) -> None:
    document = plan(tmp_path)["service"]
    found = files(document)
    unit = found[f"/etc/systemd/system/baremetal-gpu-portal-{name}.socket"]["content"]
    assert "SocketUser=baremetal-gpu-portal\n" in unit
    assert "SocketMode=0600\n" in unit
    assert found[f"/usr/libexec/baremetal-gpu/portal-{name}"]["owner"] == "root"
    assert (
        f"ExecStart=/usr/libexec/baremetal-gpu/portal-{name}\n"
        in (found[f"/etc/systemd/system/baremetal-gpu-portal-{name}@.service"]["content"])
    )
    (row,) = [row for row in document["units"] if row["name"] == f"baremetal-gpu-portal-{name}.socket"]
    assert (row["enabled"], row["state"]) == (True, "started")


def test_the_hub_gains_no_rights_and_reads_no_hash_of_a_password(tmp_path: Path) -> None:
    found = files(plan(tmp_path)["service"])
    hub = found["/etc/systemd/system/baremetal-gpu-portal.service"]["content"]
    assert "NoNewPrivileges=yes" in hub
    assert "CapabilityBoundingSet=\n" in hub
    assert "shadow" not in hub
    assert "SupplementaryGroups" not in hub
    config = found["/etc/baremetal-gpu/portal/config.py"]["content"]
    assert "pamela" not in config


URL = "postgresql://portal:a%40b!c@db1.example.org:5432/portal?sslmode=verify-full&sslrootcert=/etc/ssl/certs/ca.pem"


@pytest.mark.parametrize("url", [URL, "postgresql:///portal", "postgresql://portal@/portal?host=/run/postgresql"])
def test_the_url_of_the_database_is_only_where_the_hub_alone_reads_it(tmp_path: Path, url: str) -> None:
    found = plan(tmp_path, database=url)
    assert found["problems"] == []
    holders = {path: row for path, row in files(found["service"]).items() if url in str(row.get("content"))}
    (row,) = holders.values()
    assert (row["owner"], row["group"], row["mode"], row["sensitive"]) == ("root", "baremetal-gpu-portal", "0640", True)
    assert json.loads(row["content"])["hub"]["db_url"] == url
    assert url not in str(found["install"])
    assert {"name": "libpq5"} in found["install"]["packages"]


def test_with_a_database_of_the_sites_nothing_copies_the_file_that_is_not_used(tmp_path: Path) -> None:
    for database, state in (("", "started"), (URL, "stopped")):
        document = plan(tmp_path, database=database)["service"]
        (timer,) = [row for row in document["units"] if row["name"] == "baremetal-gpu-portal-backup.timer"]
        assert timer["state"] == state
        for kind in ("timer", "service"):
            row = files(document)[f"/etc/systemd/system/baremetal-gpu-portal-backup.{kind}"]
            assert (row.get("state") == "absent") == bool(database)
    assert {"name": "libpq5"} not in plan(tmp_path)["install"]["packages"]


def test_the_ssh_jump_is_no_login_and_has_no_rights(tmp_path: Path) -> None:
    found = files(plan(tmp_path)["service"])
    config = found["/etc/baremetal-gpu/portal/sshd_config"]["content"].splitlines()
    for line in (
        "Port 2222",
        "AllowUsers baremetal-gpu-portal-ssh",
        "AuthorizedKeysFile none",
        "DisableForwarding yes",
    ):
        assert line in config
    unit = found["/etc/systemd/system/baremetal-gpu-portal-ssh.service"]["content"].splitlines()
    for line in ("User=baremetal-gpu-portal-ssh", "CapabilityBoundingSet=", "NoNewPrivileges=yes"):
        assert line in unit
    socket = found["/etc/systemd/system/baremetal-gpu-portal-keys.socket"]["content"]
    assert "SocketUser=baremetal-gpu-portal-ssh\n" in socket
    assert "SocketMode=0600\n" in socket


def test_another_configuration_of_the_jump_keeps_connections(tmp_path: Path) -> None:
    units = {row["name"]: row for row in plan(tmp_path)["service"]["units"]}
    jump = units["baremetal-gpu-portal-ssh.service"]
    assert jump["reload_on"] == ["/etc/baremetal-gpu/portal/sshd_config"]
    assert jump["restart_on"] == ["/etc/systemd/system/baremetal-gpu-portal-ssh.service"]


@pytest.mark.parametrize(("port", "cause"), [(22, "no port below 1024"), (8081, "has it already"), (70000, "no port")])
def test_a_port_for_ssh_that_cannot_be_is_refused(tmp_path: Path, port: int, cause: str) -> None:
    assert cause in causes(plan(tmp_path, ssh_port=port))
    assert plan(tmp_path, ssh=False, ssh_port=port)["problems"] == []


def test_without_ssh_nothing_of_it_is_there_or_stays(tmp_path: Path) -> None:
    there, without = plan(tmp_path), plan(tmp_path, ssh=False)
    names = {"baremetal-gpu-portal-ssh.service", "baremetal-gpu-portal-keys.socket"}
    assert {row["name"]: row["state"] for row in without["service"]["units"] if row["name"] in names} == dict.fromkeys(
        names, "stopped"
    )
    only = {path for path, row in files(without["service"]).items() if row.get("state") == "absent"}
    assert only == files(there["service"]).keys() - (files(without["service"]).keys() - only)
    assert {"name": "openssh-server"} in there["install"]["packages"]
    assert {"name": "openssh-server"} in plan(tmp_path, kind="session")["install"]["packages"]
    assert {"name": "openssh-server"} not in without["install"]["packages"]
    settings_of = files(without["service"])["/etc/baremetal-gpu/portal/settings.json"]["content"]
    assert settings.parse(settings_of).ssh_ports is None
    assert json.loads(settings_of)["hub"]["ssh"] is None


def test_absent_takes_away_what_present_has_made_and_keeps_the_database(tmp_path: Path) -> None:
    there, gone = plan(tmp_path), plan(tmp_path, state="absent", python="3.9")
    assert gone["problems"] == []
    for part in ("install", "service"):
        made = {path for path, row in files(there[part]).items() if row.get("state") != "directory"}
        absent = {path for path, row in files(gone[part]).items() if row["state"] == "absent"}
        # With a directory all goes that is in it.
        assert not [path for path in made if not absent & {path, *map(str, Path(path).parents)}]
    assert {row["name"] for row in there["service"]["units"]} == {row["name"] for row in gone["service"]["units"]}
    assert gone["environment"] == {"path": "/opt/baremetal-gpu/portal", "state": "absent"}
    assert "/var/lib/baremetal-gpu-portal" not in json.dumps(gone["service"]["files"])


def test_without_certificates_yet_there_is_no_service_but_the_question_for_them(tmp_path: Path) -> None:
    found = plan(tmp_path, certificates={}, proxy_token="", name="portal.example.org")
    assert found["service"] == {}
    assert found["certificates"] == [{"name": "login1", "names": NAMES}]
    assert found["url"] == "https://portal.example.org"


def test_the_hub_reads_policies_and_a_group_may_have_none(tmp_path: Path) -> None:
    changed = {
        "idle_minutes": 60,
        "idle_minutes_by_group": {"course": 20, "staff": 0},
        "idle_webhook": "https://hooks.example.org/s3cret",
    }
    found = files(plan(tmp_path, **changed)["service"])
    told = settings.parse(found["/etc/baremetal-gpu/portal/settings.json"]["content"]).hub["idle"]
    assert idle.Policy(**told["default"]) == idle.policy_for(60, 30)
    assert idle.Policy(**told["by_group"]["course"]).window_s == 1200.0
    assert told["by_group"]["staff"] is None
    assert told["sample_s"] < idle.Policy().gap_s / 2
    holders = [path for path, row in found.items() if "s3cret" in str(row.get("content"))]
    assert holders == ["/etc/baremetal-gpu/portal/settings.json"]


def test_a_webhook_that_is_wrong_is_not_shown(tmp_path: Path) -> None:
    """It may have a secret in it."""
    found = plan(tmp_path, idle_webhook="ftp://s3cret")
    assert "s3cret" not in json.dumps(found["problems"])


def test_nodes_get_the_program_that_measures_and_lose_it_with_the_portal(tmp_path: Path) -> None:
    row = files(plan(tmp_path, kind="session")["install"])[session.MEASURE]
    assert row["mode"] == "0755"
    assert session.MEASURE not in files(plan(tmp_path)["install"])
    gone = files(plan(tmp_path, kind="session", state="absent")["install"])
    assert gone[session.MEASURE]["state"] == "absent"
    command = "/usr/local/bin/gpu-environment"
    assert files(plan(tmp_path, kind="session")["install"])[command]["src"].endswith("/gpu-environment")
    assert gone[command]["state"] == "absent"


def test_absent_takes_away_what_sessions_had(tmp_path: Path) -> None:
    there = files(plan(tmp_path, kind="session")["install"])
    gone = files(plan(tmp_path, kind="session", state="absent")["install"])
    made = {path for path, row in there.items() if row.get("state") != "directory"}
    assert made <= {path for path, row in gone.items() if row["state"] == "absent"}


def test_jupyterlab_reads_what_the_role_writes(tmp_path: Path) -> None:
    found = files(plan(tmp_path, kind="session")["install"])
    description = json.loads(found[portal.IN_LAB["package.json"]]["content"])
    loaded = description["jupyterlab"]["_build"]["load"]
    assert found[f"{portal.LAB}/{loaded}"]["mode"] == "0644"
    assert f'"{description["name"]}"' in found[f"{portal.LAB}/{loaded}"]["content"]
    # It would ask everybody whether they want its news, which come from the internet.
    assert description["jupyterlab"]["disabledExtensions"] == ["@jupyterlab/apputils-extension:announcements"]


def restarted_by(document: dict[str, Any], path: str) -> set[str]:
    """The units that a changed file restarts."""
    rows = document["units"]
    return {row["name"] for row in rows if any(fnmatch.fnmatchcase(path, one) for one in row.get("restart_on", ()))}


def test_another_part_of_the_package_restarts_the_hub_alone(tmp_path: Path) -> None:
    document = plan(tmp_path)["service"]
    parts = [path for path in files(document) if path.startswith(f"{portal.LIBRARY}/") and "." in Path(path).name]
    assert len(parts) > 50
    for path in (*parts, portal.CONFIG):
        assert restarted_by(document, path) == {"baremetal-gpu-portal.service"}
    assert restarted_by(document, portal.PROXY_FILE) == {"baremetal-gpu-portal-proxy.service"}


def test_the_package_is_laid_down_with_all_that_it_imports_and_python_of_the_hub_finds_it(tmp_path: Path) -> None:
    found = plan(tmp_path)
    assert found["environment"]["paths"] == [portal.LIBRARY]
    assert plan(tmp_path, kind="session")["environment"]["paths"] == []
    there, made = files(found["service"]), set()
    for path, row in there.items():
        if not path.startswith(portal.LIBRARY):
            continue
        # One above another, each made before what is in it.
        assert path == portal.LIBRARY or str(Path(path).parent) in made
        made |= {path} if row.get("state") == "directory" else set()
        assert (row["owner"], row["group"]) == ("root", "root")
        assert row["mode"] == ("0755" if row.get("state") == "directory" else "0644")
        for name in re.findall(r"^ *from (baremetal_gpu_portal[\w.]*) import", row.get("content", ""), re.MULTILINE):
            assert f"{portal.LIBRARY}/{name.replace('.', '/')}.py" in there or name == "baremetal_gpu_portal"
    collection = "ansible_collections/baremetal/gpu/plugins/module_utils"
    assert f"{portal.LIBRARY}/{collection}/portal/session.py" in there
    assert f"{portal.LIBRARY}/{collection}/host/files.py" in there
    assert f"{portal.LIBRARY}/baremetal_gpu_portal/templates/home.html" in there


def test_what_a_host_has_of_before_the_package_is_removed_and_restarts_no_proxy(tmp_path: Path) -> None:
    document = plan(tmp_path)["service"]
    before = ["/usr/libexec/baremetal-gpu/portal-library", "/usr/share/baremetal-gpu/portal/templates"]
    before += [f"/etc/baremetal-gpu/portal/hub_{name}.py" for name in ("own", "watch", "places")]
    for path in (*before, "/usr/share/baremetal-gpu/portal/now.html"):
        assert files(document)[path]["state"] == "absent"
        assert not restarted_by(document, path)
    # Its command stays the same, so that nobody's connection is cut and the hub is restarted once.
    assert not restarted_by(document, portal.CERTIFICATES_PROGRAM)
    unit = files(document)[portal.unit_path("baremetal-gpu-portal-proxy.service")]["content"]
    assert "\nExecStartPre=/opt/baremetal-gpu/portal/bin/python /etc/baremetal-gpu/portal/hub_certificates.py " in unit
    removed = files(plan(tmp_path, state="absent")["service"])
    assert {removed[path]["state"] for path in (*before, portal.LIBRARY, *portal.IN_HUB.values())} == {"absent"}


def test_a_file_that_a_former_version_of_the_package_had_goes_and_the_hub_is_restarted(tmp_path: Path) -> None:
    modules = f"{portal.LIBRARY}/ansible_collections/baremetal/gpu/plugins/module_utils"
    former = [f"{portal.LIBRARY}/baremetal_gpu_portal/{name}" for name in ("old.py", "static/old-page.css", "who/x.py")]
    former += [f"{modules}/portal/old.py"]
    others = [
        f"{portal.LIBRARY}/baremetal_gpu_portal/__pycache__/old.cpython-313.pyc",
        f"{portal.LIBRARY}/baremetal_gpu_portal/notes.txt",
        f"{portal.LIBRARY}/baremetal_gpu_portal/../../../../../etc/x.py",
        f"{portal.LIBRARY}/ansible_collections/other/site/x.py",
        "/etc/x.py",
        "baremetal_gpu_portal/old.py\n",
    ]
    now = list(files(plan(tmp_path)["service"]))
    document = plan(tmp_path, library=[*former, *others, *now])["service"]
    assert [path for path in files(document) if path not in now] == sorted(former)
    for path in former:
        assert files(document)[path] == {"path": path, "state": "absent"}
        assert restarted_by(document, path) == {"baremetal-gpu-portal.service"}


def test_the_role_finds_the_files_of_a_former_version(tmp_path: Path) -> None:
    """The tasks' own search, in another place."""
    (find,) = [
        task
        for task in yaml.safe_load((ROOT / "roles" / "portal" / "tasks" / "service.yml").read_text())
        if "ansible.builtin.find" in task
    ]
    library = tmp_path / "python"
    for name in ("baremetal_gpu_portal/old.py", "baremetal_gpu_portal/templates/old.html"):
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).touch()
    plans = {"__portal_plan": {"environment": {"paths": [str(library)]}}}
    role = yaml.safe_load((ROOT / "roles" / "portal" / "vars" / "main.yml").read_text())["__portal_plan"]
    (told,) = re.findall(r"'library': (.*),\n", role)
    told = {
        "ansible.builtin.copy": {"dest": str(tmp_path / "told"), "content": f"{{{{ {told} }}}}"},
        "check_mode": False,
    }
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "vars": plans, "tasks": [find, told]}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    done = try_run(
        [BIN / "ansible-playbook", "--check", tmp_path / "play.yml"], ANSIBLE_CONFIG=str(ROOT / "ansible.cfg")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(json.loads((tmp_path / "told").read_text())) == sorted(map(str, library.rglob("*.*")))


def test_whoever_has_left_the_site_is_closed_for_the_portal(tmp_path: Path) -> None:
    users = [{"name": "alice"}, {"name": "bob", "state": "present"}, {"name": "carol", "state": "archived"}]
    users.append({"name": "dave", "state": "absent", "confirm": "dave"})
    given = portal.settings(params(tmp_path, homes_users=users), {"host": "login1", "address": "192.0.2.5"})
    known = settings.parse(json.dumps(given))
    assert known.closed == {"carol", "dave"}
    with pytest.raises(Refused, match="carol cannot have sessions: the home was archived or removed") as refused:
        known.person("carol")
    assert refused.value.problem.code == "closed_account"


# --- origins ---------------------------------------------------------------------------------------------------------

WORDS = "one_for_people_who_trust_each_other"
BELOW = f"{portal.BELOW}.portal.example.org"


@pytest.mark.parametrize("name", ["", "login1", "192.0.2.5", "portal.example.org.", "Portal", "portal.example.7"])
def test_a_name_below_which_no_browser_takes_others_is_refused(tmp_path: Path, name: str) -> None:
    (problem,) = plan(tmp_path, name=name)["problems"]
    assert problem["subject"] == "portal_name"
    assert "portal.example.org" in problem["remedy"]
    assert WORDS in problem["remedy"]


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        ({}, "login1 finds no address of the names below portal.example.org"),
        ({"portal.example.org": ["192.0.2.5"], BELOW: []}, "finds no address"),
        ({"portal.example.org": ["192.0.2.5"], BELOW: ["198.51.100.9"]}, "have another address than it"),
    ],
)
def test_names_of_sessions_that_lead_nowhere_or_elsewhere_are_refused(
    tmp_path: Path, found: dict[str, list[str]], cause: str
) -> None:
    (problem,) = plan(tmp_path, found=found)["problems"]
    assert (problem["code"], cause in problem["cause"]) == ("no_wildcard_name", True)
    assert "*.portal.example.org" in problem["remedy"]


def test_a_site_without_dns_need_not_find_the_names_of_people_but_they_are_in_the_certificate(tmp_path):
    found = plan(tmp_path, found={}, check_names=False)
    assert (found["problems"], found["names"]) == ([], [])
    assert "*.portal.example.org" in found["certificates"][0]["names"]


def test_the_portals_host_may_have_its_own_name_on_loopback(tmp_path: Path) -> None:
    found = plan(tmp_path, found={"portal.example.org": ["127.0.1.1"], BELOW: ["192.0.2.5"]})
    assert found["problems"] == []


def test_an_own_certificate_is_for_the_names_of_sessions_too(tmp_path: Path) -> None:
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", "-days", "2"]
    given = {name: str(tmp_path / f"{name}.pem") for name in ("authority", "certificate", "key")}
    for names, codes in (
        ("DNS:portal.example.org", ["no_wildcard_certificate"]),
        ("DNS:portal.example.org,DNS:*.example.org", ["no_wildcard_certificate"]),
        ("DNS:portal.example.org,DNS:*.PORTAL.example.org", []),
    ):
        out = ["-keyout", given["key"], "-out", given["certificate"], "-addext", f"subjectAltName={names}"]
        subprocess.run([*words, *out], check=True, capture_output=True)
        problems = plan(tmp_path, tls_files=given)["problems"]
        assert [row["code"] for row in problems] == codes
        assert all("*.portal.example.org" in row["cause"] for row in problems)


def test_who_refuses_own_origins_says_so_in_words_and_needs_no_names(tmp_path: Path) -> None:
    assert "no such choice" in causes(plan(tmp_path, origins="shared"))
    found = plan(tmp_path, origins=WORDS, name="", found={})
    assert (found["problems"], found["names"]) == ([], [])
    made = files(found["service"])
    assert json.loads(made[portal.SETTINGS]["content"])["hub"]["own_origins"] is False
    assert "--host-routing" not in made[f"/etc/systemd/system/{portal.PROXY}"]["content"]
    assert found["certificates"][0]["names"] == ["login1", "192.0.2.5"]


def test_the_proxy_and_the_hub_prove_themselves_and_the_former_sees_to_origins(tmp_path: Path) -> None:
    found = plan(tmp_path)
    made = files(found["service"])
    hub = json.loads(made[portal.SETTINGS]["content"])["hub"]
    assert hub["own_origins"] is True
    assert {name: hub[name].partition(":")[0] for name in ("hub_bind_url", "hub_connect_url", "proxy_api_url")} == (
        dict.fromkeys(("hub_bind_url", "hub_connect_url", "proxy_api_url"), "https")
    )
    unit = made[f"/etc/systemd/system/{portal.PROXY}"]["content"]
    assert "http://" not in unit
    assert " --host-routing " in unit
    assert f"\nEnvironment=NODE_OPTIONS=--require={portal.SHARE}/proxy.js\n" in unit
    assert "\nEnvironment=PORTAL_HUB=https://portal.example.org\n" in unit
    assert f"{portal.CERTIFICATES_PROGRAM} {portal.HUB_TLS} IP:192.0.2.5 DNS:portal.example.org\n" in unit
    for part in ("api", "client"):
        assert f" --{part}-ssl-request-cert --{part}-ssl-reject-unauthorized" in unit


# --- what people like ------------------------------------------------------------------------------------------------


def test_the_form_begins_with_what_the_site_offers_and_one_gpu_is_the_first(tmp_path: Path) -> None:
    text = files(plan(tmp_path)["service"])["/etc/baremetal-gpu/portal/settings.json"]["content"]
    first, *_others = settings.parse(text).hub["presets"]
    assert (first["name"], first["gpus"]) == ("One GPU", 1)


@pytest.mark.parametrize(
    ("preset", "told"),
    [
        ({"name": ""}, "a preset has a name"),
        ({"gpus": 1}, "a preset has a name"),
        ({"name": "a\nb"}, "a preset has a name"),
        ({"name": "Much", "gpus": "8"}, "gpus of Much is not a whole number"),
        ({"name": "Much", "cpus": 0}, "cpus of Much is not a whole number of 1"),
        ({"name": "Much", "memory": 8}, "Much has what no session has"),
        ({"name": "Much", "model": "a 100"}, "Much has no model of GPUs"),
        ({"name": "Torch", "environment": "torch"}, "Torch has an environment that there is not"),
    ],
)
def test_a_preset_that_no_session_could_be_is_refused(tmp_path: Path, preset: dict[str, Any], told: str) -> None:
    assert told in causes(plan(tmp_path, presets=[preset]))


@pytest.mark.parametrize("url", ["http://mon1:9090", "ftp://127.0.0.1", "127.0.0.1:9090"])
def test_prometheus_is_on_this_host_or_has_tls(tmp_path: Path, url: str) -> None:
    assert "it is neither an https:// URL nor on this host" in causes(plan(tmp_path, prometheus=url))
    for other in ("http://127.0.0.1:9090", "https://mon1:9090", ""):
        assert "it is neither an https:// URL" not in causes(plan(tmp_path, prometheus=other))
