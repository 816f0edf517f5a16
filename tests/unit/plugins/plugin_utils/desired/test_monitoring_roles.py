# SPDX-License-Identifier: GPL-3.0-or-later
"""The plans of node_exporter, Prometheus and Alertmanager: what their daemons would run with, as those read it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import alertmanager, node_exporter, prometheus
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from tests import debian_programs

CERTIFICATES = {
    "authority": {"path": "/site/ca.pem", "sha256": "a" * 64},
    "certificates": {
        "head1": {
            "certificate": "/site/head1.pem",
            "certificate_sha256": "b" * 64,
            "key": "/site/head1.key",
            "key_sha256": "c" * 64,
        }
    },
}
GROUPS = {
    "prometheus_servers": ["head1"],
    "node_exporters": ["gpu1", "head1", "stor1"],
    "slurm_controllers": ["head1"],
    "slurm_nodes": ["gpu1"],
    "gpu_reconcilers": ["head1"],
    "ceph_mgrs": ["stor1"],
    "gpu_cluster": ["gpu1", "head1", "stor1"],
}
HOSTVARS: dict[str, dict[str, Any]] = {
    "gpu1": {"ansible_host": "192.0.2.31", "prometheus_labels": {"rack": "r12", "model": "a100"}},
    "head1": {},
    "stor1": {"ansible_host": "2001:db8::21", "node_exporter_listen": "[2001:db8::21]:9200"},
}


def prometheus_plan(groups: Any = None, hostvars: Any = None, certificates: Any = None, **params: Any) -> Plan:
    groups = {**GROUPS, **(groups or {})}
    return prometheus.desired(
        {
            "state": "present",
            "listen": "127.0.0.1:9090",
            "scrape_interval": "10s",
            "retention_time": "90d",
            "retention_size": "20GB",
            "remote_write": [],
            "external_labels": {},
            "scrape_configs": [],
            "docs_url": "",
            "external_url": "",
            "node_tls": "required",
            "ceph": False,
            "alertmanager": "127.0.0.1:9093",
            **params,
        },
        {},
        {
            "host": "head1",
            "servers": groups["prometheus_servers"],
            "exporters": groups["node_exporters"],
            "groups": groups,
            "hostvars": {**HOSTVARS, **(hostvars or {})},
            "certificates": CERTIFICATES if certificates is None else certificates,
        },
    )


@pytest.mark.parametrize(
    ("portal", "row", "has_page"),
    [
        (None, {}, True),
        ("head1", {}, False),
        ("head1", {"portal_state": "absent"}, True),
        ("head1", {"portal_prometheus": ""}, True),
        ("gpu1", {}, True),
        ("gpu1", {"portal_prometheus": "https://head1.example.org:9090"}, False),
    ],
)
def test_where_the_portal_shows_the_gpus_prometheus_has_no_page_of_them(
    portal: str | None, row: dict[str, Any], has_page: bool
) -> None:
    found = prometheus_plan({"portals": [portal] if portal else []}, {portal or "head1": row})
    (page,) = (one for one in found.desired["files"] if one["path"] == prometheus.PAGE)
    assert ("content" in page) == has_page
    assert (page.get("state") == "absent") != has_page


def alertmanager_plan(**params: Any) -> Plan:
    return alertmanager.desired(
        {
            "state": "present",
            "listen": "127.0.0.1:9093",
            "external_url": "",
            "receivers": [],
            "smtp": {},
            "watchdog_webhook": "",
            "group_wait": "5s",
            "group_interval": "2m",
            "repeat_interval": "12h",
            **params,
        },
        {},
        {},
    )


def exporter_plan(issued: Any = None, **params: Any) -> Plan:
    return node_exporter.desired(
        {
            "state": "present",
            "listen": ":9100",
            "tls": "required",
            "certificates": [],
            "homes": "",
            "zookeeper": {},
            "portal": {},
            "kubernetes": {},
            "has_kubernetes": False,
            **params,
        },
        {},
        {"host": "head1", "certificates": CERTIFICATES if issued is None else issued, "has_prometheus": False},
    )


def files(plan: Plan) -> dict[str, dict[str, Any]]:
    assert not plan.problems, plan.problems
    return {row["path"]: row for row in plan.desired["files"]}


def text(plan: Plan, path: str) -> str:
    return str(files(plan)[path]["content"])


def targets(plan: Plan, job: str = "node") -> dict[str, dict[str, Any]]:
    """The entries of a job's targets, by host."""
    jobs = ("node", "node-of-scheduler") if job == "node" else (job,)
    found = [entry for name in jobs for entry in json.loads(text(plan, f"/etc/prometheus/targets/{name}.json"))]
    return {entry["labels"]["host"]: entry for entry in found}


def config(plan: Plan) -> dict[str, Any]:
    return dict(yaml.safe_load(text(plan, "/etc/prometheus/prometheus.yml")))


def routes(plan: Plan) -> dict[str, Any]:
    return dict(yaml.safe_load(text(plan, "/etc/prometheus/alertmanager.yml")))


def refused(plan: Plan) -> str:
    """What the only problem says."""
    assert not plan.desired
    (problem,) = plan.problems
    assert problem.remedy
    return f"{problem.subject}: {problem.cause}: {problem.evidence}"


# -- node_exporter ------------------------------------------------------------------------------------------------


def test_only_who_has_a_certificate_of_the_site_reads_the_metrics_of_a_host():
    web = yaml.safe_load(text(exporter_plan(), "/etc/prometheus/node-exporter-web.yml"))["tls_server_config"]
    assert web["client_auth_type"] == "RequireAndVerifyClientCert"
    assert web["client_ca_file"] in files(exporter_plan())
    key = files(exporter_plan())[web["key_file"]]
    assert (key["mode"], key["group"], key["sensitive"]) == ("0640", "prometheus", True)
    arguments = files(exporter_plan())["/etc/default/prometheus-node-exporter"]
    assert "--web.config.file=/etc/prometheus/node-exporter-web.yml" in arguments["content"]
    # Disks below /mnt have alerts.
    assert "--collector.filesystem.mount-points-exclude=^/(dev|proc|run|sys|var/lib/" in arguments["content"]
    # The package starts the daemon as soon as it is there.
    assert arguments["early"]


def test_without_tls_it_listens_on_loopback_or_not_at_all():
    assert "without TLS" in refused(exporter_plan(tls="off"))
    plan = exporter_plan(tls="off", listen="127.0.0.1:9100", issued={})
    assert "web.config" not in text(plan, "/etc/default/prometheus-node-exporter")
    assert not [path for path in files(plan) if "tls" in path]


@pytest.mark.parametrize("listen", ["9100", "0.0.0.0", ":0", ":99999", ':9100" evil', "a b:9100"])
def test_an_address_that_is_none_is_refused(listen):
    assert listen in refused(exporter_plan(listen=listen))


def test_it_tells_of_what_the_host_has():
    def parts(**params: Any) -> Any:
        return json.loads(text(exporter_plan(**params), "/etc/baremetal-gpu/host-metrics.json"))

    own = ["/etc/prometheus/tls/certificate.pem", "/etc/baremetal-gpu/log-*/certificate.pem"]
    assert parts() == {"certificates": own}
    assert parts(certificates=["/etc/ssl/site/*.pem"])["certificates"] == [*own, "/etc/ssl/site/*.pem"]
    assert parts(homes="/home")["homes"] == {"root": "/home"}
    server = {"host": "127.0.0.1", "port": 2181}
    assert parts(zookeeper=server)["zookeeper"] == {**server, "config": "/etc/zookeeper/ensemble/zoo.cfg"}
    assert "node_exporter_homes" in refused(exporter_plan(homes="home"))
    portal = {"hub_port": 8081, "port": 443}
    assert parts(portal=portal)["portal"] == {**portal, "told": "/var/lib/baremetal-gpu-portal/told.json"}
    plane = parts(kubernetes={"node": "head1"}, has_kubernetes=True)
    assert (plane["kubernetes"], parts(has_kubernetes=True).get("kubernetes")) == ({"node": "head1"}, None)
    assert {"/etc/kubernetes/pki/*.crt", "/var/lib/kubelet/pki/*-current.pem"} <= set(plane["certificates"])
    timer = text(exporter_plan(kubernetes={"node": "head1"}), "/etc/systemd/system/baremetal-gpu-host-metrics.timer")
    assert "OnUnitActiveSec=30s" in timer
    # Its certificate is watched, too.
    assert "/etc/baremetal-gpu/portal/tls/certificate.pem" in parts(portal=portal)["certificates"]


def test_the_first_look_at_a_bare_host_has_no_certificates_yet():
    assert not [path for path in files(exporter_plan(issued={})) if path.endswith(".pem")]


# -- Prometheus ---------------------------------------------------------------------------------------------------


def test_every_host_of_the_inventory_is_a_target_with_its_labels():
    found = targets(prometheus_plan())
    assert found["gpu1"] == {
        "targets": ["192.0.2.31:9100"],
        "labels": {"host": "gpu1", "rack": "r12", "model": "a100", "role": "slurm_nodes"},
    }
    assert found["head1"]["targets"] == ["head1:9100"]
    assert found["head1"]["labels"]["slurm_controller"] == found["head1"]["labels"]["reconciler"] == "yes"
    assert found["stor1"]["targets"] == ["[2001:db8::21]:9200"]


def test_a_host_that_leaves_the_inventory_leaves_prometheus():
    assert set(targets(prometheus_plan({"node_exporters": ["head1"]}))) == {"head1"}


def test_ceph_is_scraped_where_its_module_is_on():
    assert targets(prometheus_plan(), "ceph") == {}
    assert targets(prometheus_plan(ceph=True), "ceph")["stor1"]["targets"] == ["[2001:db8::21]:9283"]


def test_a_node_can_say_nothing_of_another_one():
    jobs = {job["job_name"]: job for job in config(prometheus_plan())["scrape_configs"]}
    assert "honor_labels" not in jobs["node"]
    dropped = {tuple(rule["source_labels"]): rule["regex"] for rule in jobs["node"]["metric_relabel_configs"]}
    assert dropped["slurm_controller", "__name__"] == ";(slurm_.*|gpu_lease_.*)"
    assert dropped["reconciler", "__name__"] == ";(gpuops_reconciler_.*)"
    assert dropped["kubernetes_control_plane", "__name__"] == ";(kubernetes_.*)"
    # Only slurmctld's host tells of GPUs on others, under the same job.
    controllers = jobs["node-of-scheduler"]
    assert controllers["honor_labels"] is True
    assert controllers["relabel_configs"] == [{"target_label": "job", "replacement": "node"}]
    (head,) = json.loads(text(prometheus_plan(), "/etc/prometheus/targets/node-of-scheduler.json"))
    assert head["labels"]["host"] == "head1"
    planes = prometheus_plan({"slurm_controllers": [], "kubernetes_control_planes": ["head1"]})
    (plane,) = json.loads(text(planes, "/etc/prometheus/targets/node-of-scheduler.json"))
    assert plane["labels"]["kubernetes_control_plane"] == plane["labels"]["reconciler"] == "yes"
    for job in ("node", "node-of-scheduler"):
        assert jobs[job]["scheme"] == "https"
        assert set(jobs[job]["tls_config"].values()) <= set(files(prometheus_plan()))


def test_no_host_can_fill_the_memory_of_prometheus():
    for job in config(prometheus_plan())["scrape_configs"][:3]:
        assert job["sample_limit"] > 10_000
        assert job["body_size_limit"].endswith("MB")


def test_alerts_go_where_alertmanager_listens_if_it_is_there():
    moved = config(prometheus_plan(alertmanager="127.0.0.1:9094"))
    assert moved["alerting"]["alertmanagers"][0]["static_configs"] == [{"targets": ["127.0.0.1:9094"]}]
    none = config(prometheus_plan(alertmanager=""))
    assert "alerting" not in none
    assert "alertmanager" not in {job["job_name"] for job in none["scrape_configs"]}


def test_a_host_whose_exporter_is_taken_out_is_no_target():
    assert "gpu1" not in targets(prometheus_plan(hostvars={"gpu1": {"node_exporter_state": "absent"}}))


def test_the_disk_is_bounded():
    words = text(prometheus_plan(retention_size="5GB", retention_time="30d"), "/etc/default/prometheus")
    assert "--storage.tsdb.retention.size=5GB" in words
    assert "--storage.tsdb.retention.time=30d" in words


def test_prometheus_takes_its_configuration_and_its_rules(tmp_path: Path):
    promtool = debian_programs.path_of("promtool")
    if promtool is None:
        pytest.skip("promtool is not here: python -m tests.needs fetches it")
    remote = {"url": "https://metrics.example.org/write", "basic_auth": {"username": "site", "password": "x"}}
    plan = prometheus_plan(remote_write=[remote], external_labels={"site": "north"}, ceph=True)
    here = text(plan, "/etc/prometheus/prometheus.yml").replace("/etc/prometheus", str(tmp_path))
    for path, row in files(plan).items():
        copy = tmp_path / path.removeprefix("/etc/prometheus").lstrip("/")
        if row.get("state") == "directory":
            copy.mkdir(parents=True, exist_ok=True)
    for path, row in files(plan).items():
        if path.startswith("/etc/prometheus/") and ("content" in row or "source" in row):
            copy = tmp_path / path.removeprefix("/etc/prometheus/")
            copy.parent.mkdir(exist_ok=True)
            copy.write_text(here if path.endswith("prometheus.yml") else row.get("content", ""))
    done = subprocess.run(
        [promtool, "check", "config", tmp_path / "prometheus.yml"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "rules found" in done.stdout


def test_a_password_for_remote_write_is_in_no_diff():
    row = files(prometheus_plan(remote_write=[{"url": "https://metrics.example.org"}]))[
        "/etc/prometheus/prometheus.yml"
    ]
    assert (row["sensitive"], row["mode"]) == (True, "0640")


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"docs_url": "/docs/"}, "prometheus_docs_url: it is not a URL at which the readers"),
        ({"docs_url": "http://127.0.0.1:8000/"}, "prometheus_docs_url: it is not a URL at which the readers"),
        ({"external_url": "https://localhost/"}, "prometheus_external_url: it is not a URL at which the readers"),
        ({"external_url": "http://[::1]:9090"}, "prometheus_external_url: it is not a URL at which the readers"),
        ({"external_url": 'https://x.example.org/"'}, "prometheus_external_url: it is not a URL at which the readers"),
        ({"listen": "0.0.0.0:9090"}, "prometheus_listen: Prometheus has no login"),
        ({"retention_size": "lots"}, "may fill the disk: lots"),
        ({"retention_time": "90 days"}, "not a duration"),
        ({"scrape_interval": "often"}, "not a duration"),
        ({"scrape_configs": [{"job_name": "node"}]}, "one that is taken: node"),
        ({"scrape_configs": [{}]}, "has no job_name"),
        ({"groups": {"prometheus_servers": ["head1", "stor1"]}}, "each alert would come from each"),
        ({"hostvars": {"gpu1": {"ansible_host": "a b"}}}, "gpu1: its address"),
        ({"hostvars": {"gpu1": {"node_exporter_listen": "here"}}}, "gpu1: its node_exporter_listen"),
        ({"hostvars": {"gpu1": {"prometheus_labels": {"host": "x"}}}}, "gpu1: its prometheus_labels have host"),
        ({"hostvars": {"gpu1": {"prometheus_labels": {"a-b": "x"}}}}, "a name that Prometheus refuses: a-b"),
        ({"hostvars": {"gpu1": {"prometheus_labels": ["rack"]}}}, "gpu1: its prometheus_labels are not a dict"),
    ],
    ids=str,
)
def test_what_prometheus_could_not_run_with_is_refused(params, words):
    assert words in refused(prometheus_plan(**params))


def test_a_password_in_a_scrape_configuration_is_in_no_diff():
    own = {"job_name": "own", "basic_auth": {"username": "a", "password": "secret"}}
    assert files(prometheus_plan(scrape_configs=[own]))["/etc/prometheus/prometheus.yml"]["sensitive"]


def test_the_key_goes_with_the_last_who_uses_it():
    key = "/etc/prometheus/tls/key.pem"
    assert key not in files(prometheus_plan(state="absent"))
    assert files(prometheus_plan({"node_exporters": ["gpu1"]}, state="absent"))[key]["state"] == "absent"
    assert files(exporter_plan(state="absent"))[key]["state"] == "absent"


def test_without_prometheus_its_data_stays():
    rows = files(prometheus_plan(state="absent"))
    assert all(row["state"] == "absent" for row in rows.values())
    assert not [path for path in rows if path.startswith("/var/lib")]


# -- Alertmanager -------------------------------------------------------------------------------------------------

ONCALL = {"name": "oncall", "severities": ["page"], "webhook": "https://pager.example.org/hook"}
TEAM = {"name": "team", "severities": ["ticket", "page"], "chat": "https://chat.example.org/hooks/secret"}
MAIL = {"name": "mail", "severities": ["ticket"], "email": "ops@example.org"}
SMTP = {"smarthost": "mail.example.org:587", "from": "alerts@example.org", "user": "alerts", "password": "secret"}


def test_each_severity_goes_to_who_wants_it():
    found = routes(alertmanager_plan(receivers=[ONCALL, TEAM, MAIL], smtp=SMTP))
    told = {route["receiver"]: route["matchers"] for route in found["route"]["routes"]}
    assert told["oncall"] == ['severity=~"page"']
    assert told["team"] == ['severity=~"page|ticket"']
    # An alert goes to all of them.
    assert all(route["continue"] for route in found["route"]["routes"][1:])
    # What is only on a dashboard calls nobody.
    assert found["route"]["receiver"] == "nobody"
    assert found["receivers"][0] == {"name": "nobody"}


def test_the_watchdog_calls_who_watches_from_outside_and_nobody_else():
    found = routes(alertmanager_plan(receivers=[ONCALL], watchdog_webhook="https://dead.example.org"))
    first = found["route"]["routes"][0]
    assert (first["matchers"], first["receiver"], first["repeat_interval"]) == (
        ['alertname="Watchdog"'],
        "watchdog",
        "30s",
    )
    assert "continue" not in first


def test_amtool_takes_all_receivers(tmp_path: Path):
    amtool = debian_programs.path_of("amtool")
    if amtool is None:
        pytest.skip("amtool is not here: python -m tests.needs fetches it")
    plan = alertmanager_plan(receivers=[ONCALL, TEAM, MAIL], smtp=SMTP, watchdog_webhook="https://dead.example.org")
    templates = "/etc/prometheus/alertmanager_templates"
    (tmp_path / "baremetal-gpu.tmpl").write_text(text(plan, f"{templates}/baremetal-gpu.tmpl"))
    (tmp_path / "alertmanager.yml").write_text(
        text(plan, "/etc/prometheus/alertmanager.yml").replace(templates, str(tmp_path))
    )
    done = subprocess.run(
        [amtool, "check-config", tmp_path / "alertmanager.yml"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "5 receivers" in done.stdout
    assert "1 templates" in done.stdout


@pytest.mark.parametrize(
    ("states", "title"),
    [
        (["firing"], "GPU 0 is fatal"),
        (["resolved", "firing"], "GPU 1 is fatal"),
        (["firing", "resolved", "firing"], "GpuFatal, 2 times"),
        (["resolved", "resolved"], "over: GpuFatal, 2 times"),
    ],
)
def test_the_title_of_a_message_counts_what_is_wrong_now(states: list[str], title: str, tmp_path: Path):
    amtool = debian_programs.path_of("amtool")
    if amtool is None:
        pytest.skip("amtool is not here: python -m tests.needs fetches it")
    template, data = tmp_path / "baremetal-gpu.tmpl", tmp_path / "data.json"
    template.write_text(
        text(
            alertmanager_plan(receivers=[MAIL], smtp=SMTP), "/etc/prometheus/alertmanager_templates/baremetal-gpu.tmpl"
        )
    )
    alerts = [
        {"status": state, "annotations": {"summary": f"GPU {number} is fatal"}} for number, state in enumerate(states)
    ]
    status = "firing" if "firing" in states else "resolved"
    data.write_text(json.dumps({"status": status, "alerts": alerts, "commonLabels": {"alertname": "GpuFatal"}}))
    words = [f"--template.glob={template}", '--template.text={{ template "baremetal_gpu.title" . }}']
    done = subprocess.run(
        [amtool, "template", "render", *words, f"--template.data={data}"], check=False, capture_output=True, text=True
    )
    assert done.stdout.strip() == title, done.stderr


def test_links_lead_to_where_people_reach_the_servers():
    url = "https://mon.example.org/alerts"
    for plan, path in (
        (prometheus_plan, "/etc/default/prometheus"),
        (alertmanager_plan, "/etc/default/prometheus-alertmanager"),
    ):
        assert "external-url" not in files(plan())[path]["content"]
        # Requests of the site itself go on to have no path.
        words = files(plan(external_url=url))[path]["content"]
        assert f" --web.external-url={url} --web.route-prefix=/" in words
    (chat,) = routes(alertmanager_plan(receivers=[TEAM]))["receivers"][-1]["slack_configs"]
    assert chat["title_link"] == "{{ (index .Alerts 0).Annotations.runbook_url }}"


def test_addresses_of_webhooks_are_in_no_diff():
    row = files(alertmanager_plan(receivers=[TEAM]))["/etc/prometheus/alertmanager.yml"]
    assert (row["sensitive"], row["mode"], row["group"]) == (True, "0640", "prometheus")


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"external_url": "alerts.example.org"}, "alertmanager_external_url: it is not a URL at which the readers"),
        ({"listen": ":9093"}, "alertmanager_listen: Alertmanager has no login"),
        ({"group_wait": "soon"}, "not a duration"),
        ({"watchdog_webhook": "dead"}, "not an http or https URL"),
        ({"receivers": ["oncall"]}, "entry 1: it is not a dict"),
        ({"receivers": [ONCALL, ONCALL]}, "entry 2: its name is missing, taken"),
        ({"receivers": [{**ONCALL, "name": "nobody"}]}, "its name is missing, taken"),
        ({"receivers": [{**ONCALL, "severities": ["critical"]}]}, "its severities are not known"),
        ({"receivers": [{**ONCALL, "severities": "page"}]}, "its severities are not known"),
        ({"receivers": [{**ONCALL, "chat": "https://x.example.org"}]}, "or several: webhook, chat"),
        ({"receivers": [{**ONCALL, "webhook": "file:///etc"}]}, "its webhook is not an http"),
        ({"receivers": [{**ONCALL, "pager": "x"}]}, "a key that is not known: pager"),
        ({"receivers": [MAIL]}, "there is no mail server"),
        ({"receivers": [{**MAIL, "email": "ops"}], "smtp": SMTP}, "its email is not an address"),
        ({"smtp": {"smarthost": "mail"}}, "no smarthost or no from"),
        ({"smtp": {**SMTP, "smarthost": "mail"}}, "its smarthost is not a host with a port"),
        ({"smtp": {**SMTP, "password": ""}}, "user goes with password"),
        ({"smtp": {**SMTP, "pass": "x"}}, "a key that is not known: pass"),
    ],
    ids=str,
)
def test_receivers_that_nobody_could_reach_are_refused(params, words):
    assert words in refused(alertmanager_plan(**params))


def test_a_secret_is_in_no_problem():
    (problem,) = alertmanager_plan(receivers=[{**TEAM, "chat": "ftp://secret"}]).problems
    assert "secret" not in json.dumps(problem.as_dict())
