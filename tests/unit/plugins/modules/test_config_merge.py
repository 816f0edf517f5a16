# SPDX-License-Identifier: GPL-3.0-or-later
"""config_merge on real files, with a systemctl of the test in the PATH."""

from __future__ import annotations

import json
import os
import re
import time

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.config import record as config_record
from ansible_collections.baremetal.gpu.plugins.modules import config_merge

ADDED = {"gid", "group", "mode", "owner", "size", "state", "uid", "invocation"}

# Answers `show` from a file and writes down what it is asked to do.
SYSTEMCTL = """#!/bin/sh
echo "$*" >> {root}/systemctl.log
case "$1" in
show) cat {root}/unit ;;
restart|reload)
  if [ -e {root}/refuse ] && grep -q bad {root}/daemon.json; then echo "Job failed" >&2; exit 1; fi
  printf 'ActiveState=active\\nExecMainStartTimestampMonotonic=%s\\n' \
    "$(awk '{{printf "%d", $1 * 1000000}}' /proc/uptime)" > {root}/unit ;;
esac
"""


class Host:
    def __init__(self, root, capsys):
        self.root = root
        self.capsys = capsys
        self.path = root / "daemon.json"
        self.state = root / "state"
        (root / "bin").mkdir()
        self.program("systemctl", SYSTEMCTL.format(root=root))
        self.program("journalctl", "#!/bin/sh\necho 'unable to configure the Docker daemon'\n")

    def program(self, name, text):
        path = self.root / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def running(self, since=None):
        microseconds = int((time.monotonic() - 100 if since is None else since) * 1e6)
        (self.root / "unit").write_text(f"ActiveState=active\nExecMainStartTimestampMonotonic={microseconds}\n")

    def stopped(self):
        (self.root / "unit").write_text("ActiveState=inactive\nExecMainStartTimestampMonotonic=0\n")

    def run(self, check=False, **arguments):
        parameters = {
            "path": str(self.path),
            "state_dir": str(self.state),
            "_ansible_check_mode": check,
            "_ansible_diff": True,
            "_ansible_remote_tmp": str(self.root),
            **arguments,
        }
        with patch_module_args(parameters), pytest.raises(SystemExit):
            config_merge.main()
        captured = self.capsys.readouterr()
        result = json.loads(captured.out.splitlines()[-1])
        # Where a part of the controller was imported before, a warning is shown instead of returned.
        self.warned = " ".join([*map(str, result.get("warnings", [])), *captured.err.split()])
        # Ansible adds what it finds at `path`, which is not the module's own answer.
        return {key: value for key, value in result.items() if key not in ADDED}

    @property
    def asked(self):
        """What the unit was told to do."""
        log = self.root / "systemctl.log"
        return [line for line in log.read_text().splitlines() if not line.startswith("show")] if log.exists() else []

    def snapshot(self):
        return {
            str(path): (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
            for path in self.root.rglob("*")
            if path.is_file() and path.name != "systemctl.log"
        }


@pytest.fixture
def host(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    result = Host(tmp_path, capsys)
    result.stopped()
    return result


def test_merges_and_a_second_run_changes_nothing(host):
    host.path.write_text('{\n  "log-driver": "journald",\n  "features": {"buildkit": true}\n}\n')
    first = host.run(values={"features": {"cdi": True}}, mode="0640")
    assert first["changed"]
    assert first["changed_keys"] == ["features.cdi"]
    assert host.path.read_text() == (
        '{\n  "log-driver": "journald",\n  "features": {\n    "buildkit": true,\n    "cdi": true\n  }\n}\n'
    )
    assert host.path.stat().st_mode & 0o7777 == 0o640
    before = host.snapshot()
    second = host.run(values={"features": {"cdi": True}}, mode="0640")
    assert not second["changed"]
    assert host.snapshot() == before


def test_check_mode_tells_the_truth_and_touches_nothing(host):
    host.path.write_text('{"debug": true}')
    host.running()
    before = host.snapshot()
    arguments = {"values": {"debug": False, "data-root": "/srv"}, "unit": "docker.service", "record": True}
    told = host.run(check=True, **arguments)
    assert host.snapshot() == before
    assert host.asked == []
    done = host.run(**arguments)
    assert told == done
    assert done["changed_keys"] == ["data-root", "debug"]
    assert done["action"] == "restart"
    assert done["diff"][0]["after"] == host.path.read_text()


def test_the_layout_of_a_right_file_is_left_alone(host):
    host.path.write_text('{"features":{"cdi":true},   "x":1}')
    assert not host.run(values={"features": {"cdi": True}})["changed"]
    assert host.path.read_text() == '{"features":{"cdi":true},   "x":1}'


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b'{\n  "debug": true,\n}\n', "line [23], column"),
        (b'{"a": 1}\n{"b": 2}\n', "line 2, column 1"),
        (b'{\n"a": "\xff"}', "line 2, column 7: not UTF-8"),
    ],
)
def test_a_malformed_file_is_refused_and_left_untouched(host, content, where):
    host.path.write_bytes(content)
    host.running()
    before = host.snapshot()
    result = host.run(values={"debug": True}, unit="docker.service", record=True, backup=True)
    assert result["failed"]
    assert str(host.path) in result["msg"]
    assert "Correct or remove the file" in result["msg"]
    assert result["line"] >= 2
    assert re.search(where, result["msg"])
    assert host.snapshot() == before
    assert host.asked == []


def test_a_conflict_is_refused_and_remove_settles_it(host):
    host.path.write_text('{"features": {"buildkit": true}}')
    result = host.run(values={"features": "all"})
    assert result["failed"]
    assert "features is a table" in result["msg"]
    assert "`remove`" in result["msg"]
    assert not host.run(values={"features": "all"}, remove=["features"]).get("failed")
    assert json.loads(host.path.read_text()) == {"features": "all"}


def test_a_missing_file_is_made_and_nothing_is_made_for_nothing(host):
    host.path = host.root / "etc" / "docker" / "daemon.json"
    assert not host.run(remove=["graph"])["changed"]
    assert not host.path.exists()
    result = host.run(values={"debug": True}, mode="0644")
    assert result["changed"]
    assert result["diff"][0]["before_header"].endswith("(absent)")
    assert json.loads(host.path.read_text()) == {"debug": True}
    assert not host.run(values={"debug": True}, mode="0644")["changed"]


def test_a_link_stays_a_link(host):
    real = host.root / "real.json"
    real.write_text("{}")
    host.path.symlink_to(real)
    host.run(values={"debug": True})
    assert host.path.is_symlink()
    assert json.loads(real.read_text()) == {"debug": True}


def test_only_the_mode(host):
    host.path.write_text('{"a": 1}')
    host.path.chmod(0o600)
    told = host.run(check=True, values={"a": 1}, mode="0644")
    assert told["changed"]
    assert host.path.stat().st_mode & 0o777 == 0o600
    assert host.run(values={"a": 1}, mode="0644")["changed"]
    assert not host.run(values={"a": 1}, mode="0644")["changed"]


def test_validation_refuses_and_the_file_stays(host):
    host.path.write_text('{"a": 1}')
    host.program("enginectl", '#!/bin/sh\ngrep -q bad "$2" && { echo "unknown key in $2" >&2; exit 1; }; exit 0\n')
    before = host.snapshot()
    for check in (True, False):
        result = host.run(check=check, values={"bad": 1}, validate="enginectl --file %s", backup=True)
        assert result["failed"]
        assert f"unknown key in {host.path}" in result["msg"]
        assert host.snapshot() == before
    assert host.run(values={"good": 1}, validate="enginectl --file %s")["validated"]


def test_validation_waits_for_its_program(host):
    result = host.run(values={"a": 1}, validate="/usr/bin/engine-that-is-not-installed %s")
    assert result["changed"]
    assert result["validated"] is False


def test_validate_needs_its_placeholder(host):
    assert "%s" in host.run(values={"a": 1}, validate="true")["msg"]


def test_backup(host):
    host.path.write_text('{"a": 1}')
    result = host.run(values={"a": 2}, backup=True)
    with open(result["backup_file"], encoding="utf-8") as stream:
        assert stream.read() == '{"a": 1}'


def test_restart_on_a_change_only(host):
    host.running()
    assert host.run(values={"a": 1}, unit="docker.service")["action"] == "restart"
    assert host.run(values={"a": 1}, unit="docker.service")["action"] == "none"
    assert host.asked == ["restart docker.service"]


def test_a_stopped_unit_is_left_alone(host):
    assert host.run(values={"a": 1}, unit="docker.service")["action"] == "none"
    assert host.asked == []


def test_reload_where_that_is_enough(host):
    host.running()
    arguments = {"unit": "docker.service", "reload_keys": ["registry-mirrors"]}
    assert host.run(values={"registry-mirrors": ["https://m"]}, **arguments)["action"] == "reload"
    assert host.run(values={"registry-mirrors": ["https://n"], "a": 1}, **arguments)["action"] == "restart"
    assert host.asked == ["reload docker.service", "restart docker.service"]


def test_a_run_cut_before_the_restart_is_completed_by_the_next(host, monkeypatch):
    host.running()

    def cut(self, action):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(config_merge.Unit, "do", cut)
        arguments = {"path": str(host.path), "state_dir": str(host.state), "values": {"a": 1}, "unit": "docker.service"}
        with patch_module_args({**arguments, "_ansible_remote_tmp": str(host.root)}), pytest.raises(KeyboardInterrupt):
            config_merge.main()
    assert json.loads(host.path.read_text()) == {"a": 1}
    assert host.asked == []
    told = host.run(check=True, values={"a": 1}, unit="docker.service")
    assert (told["changed"], told["action"], told["changed_keys"]) == (True, "restart", [])
    assert host.asked == []
    assert host.run(values={"a": 1}, unit="docker.service")["action"] == "restart"
    assert host.asked == ["restart docker.service"]
    assert not host.run(values={"a": 1}, unit="docker.service")["changed"]
    assert list(host.state.iterdir()) == []


@pytest.mark.parametrize("how", ["restarted", "rebooted", "stopped"])
def test_a_cut_run_that_something_else_has_completed(host, monkeypatch, how):
    host.running()
    with monkeypatch.context() as patch:
        patch.setattr(config_merge.Unit, "do", lambda self, action: (_ for _ in ()).throw(KeyboardInterrupt))
        arguments = {"path": str(host.path), "state_dir": str(host.state), "values": {"a": 1}, "unit": "docker.service"}
        with patch_module_args({**arguments, "_ansible_remote_tmp": str(host.root)}), pytest.raises(KeyboardInterrupt):
            config_merge.main()
    if how == "restarted":
        host.running(since=time.monotonic() + 1)
    elif how == "stopped":
        host.stopped()
    else:
        monkeypatch.setattr(config_merge, "boot_id", lambda: "another boot")
    assert not host.run(values={"a": 1}, unit="docker.service")["changed"]
    assert host.asked == []


def test_a_unit_that_does_not_start_gets_its_file_back(host):
    host.path.write_text('{"a": 1}')
    host.running()
    (host.root / "refuse").touch()
    result = host.run(values={"bad": 1}, unit="docker.service", record=True)
    assert result["failed"]
    assert "runs with the earlier file again" in result["msg"]
    assert "unable to configure the Docker daemon" in result["msg"]
    assert host.path.read_text() == '{"a": 1}'
    assert host.asked == ["restart docker.service", "reset-failed docker.service", "restart docker.service"]
    # Nothing of it is claimed, and nothing is left to be done.
    assert not host.run(values={}, unit="docker.service", record=True)["changed"]


def test_a_recorded_setting_is_taken_out_when_it_is_wanted_no_longer(host):
    host.path.write_text('{"debug": true, "keep": 1}')
    host.run(values={"debug": True, "data-root": "/srv", "labels": ["a"]}, record=True)
    result = host.run(values={"labels": ["a"]}, record=True)
    assert result["changed_keys"] == ["data-root"]
    assert json.loads(host.path.read_text()) == {"debug": True, "keep": 1, "labels": ["a"]}


def test_absent_takes_out_what_was_put_in(host):
    host.path.write_text('{"debug": true, "features": {"buildkit": true}}')
    host.run(values={"debug": True, "features": {"cdi": True}}, record=True)
    result = host.run(state="absent", values={"debug": True, "features": {"cdi": True}}, record=True)
    assert result["changed"]
    assert json.loads(host.path.read_text()) == {"debug": True, "features": {"buildkit": True}}
    assert not host.run(state="absent", record=True)["changed"]
    assert list(host.state.iterdir()) == []


def test_absent_removes_a_file_in_which_nothing_is_left(host):
    host.run(values={"debug": True}, record=True)
    told = host.run(check=True, state="absent", record=True)
    assert host.path.exists()
    done = host.run(state="absent", record=True)
    assert not host.path.exists()
    assert told == done
    assert done["diff"][0]["after_header"].endswith("(absent)")
    assert not host.run(state="absent", record=True)["changed"]


@pytest.mark.parametrize("remove", [[1], [[]], [["a", 1]], [""]])
def test_remove_refuses_what_is_no_key(host, remove):
    host.path.write_text('{"a": 1}')
    result = host.run(remove=remove)
    assert result["failed"]
    assert "in `remove`" in result["msg"]


def test_a_broken_record_is_made_anew(host):
    host.run(values={"a": 1}, record=True)
    record = next(host.state.iterdir())
    record.write_text("{")
    assert not host.run(values={"a": 1}, record=True)["changed"]
    assert "does not come back" in host.warned
    assert record.with_name(f"{record.name}.unreadable").read_text() == "{"
    assert json.loads(record.read_text())["schema"] == 1
    assert record.stat().st_mode & 0o777 == 0o600


OPERATORS = {"default-runtime": "crun", "runtimes": {"crun": {"path": "/usr/bin/crun"}}, "dns": ["10.0.0.1"]}
OURS = {"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}


@pytest.mark.parametrize("goes", [{"values": {"debug": True}}, {"state": "absent"}])
def test_the_operators_value_comes_back_when_the_role_lets_go(host, goes):
    host.path.write_text(json.dumps(OPERATORS))
    host.run(values={**OURS, "debug": True}, record=True, lists="union")
    host.run(values={**OURS, "debug": True}, record=True, lists="union")
    assert json.loads(host.path.read_text())["default-runtime"] == "nvidia"
    told = host.run(check=True, record=True, lists="union", **goes)
    assert '"default-runtime": "crun"' in told["diff"][0]["after"]
    done = host.run(record=True, lists="union", **goes)
    assert told == done
    assert json.loads(host.path.read_text()) == {**OPERATORS, **goes.get("values", {})}
    assert not host.run(record=True, lists="union", **goes)["changed"]


def test_the_operators_value_comes_back_into_the_file_of_an_engine_that_is_used_no_longer(host):
    host.path.write_text(json.dumps(OPERATORS))
    host.run(values=OURS, record=True)
    host.run(path=str(host.root / "own.json"), record=True, withdraw_from=[{"path": str(host.path)}])
    assert json.loads(host.path.read_text()) == OPERATORS


def test_the_operators_value_comes_back_with_its_comment(host):
    host.path = host.root / "containers.conf"
    text = '# Ours.\n[engine]\nruntime = "runc" # tested\n\n[containers]\n'
    host.path.write_text(text)
    wanted = {"engine": {"runtime": "crun"}, "containers": {"pids_limit": 4096}}
    host.run(format="toml", values=wanted, record=True)
    assert 'runtime = "crun" # tested' in host.path.read_text()
    host.run(format="toml", state="absent", record=True)
    assert host.path.read_text() == text


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("before", [None, {"default-runtime": "kata"}])
def test_a_cut_run_forgets_neither_what_is_ours_nor_what_that_replaced(host, monkeypatch, before, written):
    host.path.write_text(json.dumps(OPERATORS))
    if before is not None:
        host.run(values=before, record=True)
    write = config_merge.write

    def cut(module, path, text):
        if path != str(host.path) or written:
            write(module, path, text)
        if path == str(host.path):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(config_merge, "write", cut)
        arguments = {"path": str(host.path), "state_dir": str(host.state), "values": OURS, "record": True}
        with patch_module_args({**arguments, "_ansible_remote_tmp": str(host.root)}), pytest.raises(KeyboardInterrupt):
            config_merge.main()
    assert json.loads(host.path.read_text())["default-runtime"] == (
        "nvidia" if written else "kata" if before else "crun"
    )
    host.run(state="absent", record=True)
    assert json.loads(host.path.read_text()) == OPERATORS


def test_a_service_that_refuses_ours_leaves_what_was_there_remembered(host):
    host.path.write_text(json.dumps(OPERATORS))
    host.run(values=OURS, record=True)
    host.running()
    (host.root / "refuse").touch()
    assert host.run(values={**OURS, "default-runtime": "bad"}, record=True, unit="docker.service")["failed"]
    host.run(state="absent", record=True)
    assert json.loads(host.path.read_text()) == OPERATORS


def test_a_record_of_an_earlier_release_is_read(host):
    host.path.write_text('{"a": 1, "b": 2}')
    host.run(values={"a": 1, "c": 3}, record=True)
    record = next(host.state.iterdir())
    record.write_text('{"schema": 1, "claims": [[["c"], 3]], "pending": null}')
    assert not host.run(values={"a": 1, "c": 3}, record=True)["changed"]
    host.run(state="absent", record=True)
    assert json.loads(host.path.read_text()) == {"a": 1, "b": 2}


def test_what_is_removed_for_good_is_said_before(host):
    host.path.write_text('{"graph": "/srv", "debug": true}')
    host.run(check=True, values={"debug": False}, remove=["graph"], record=True)
    assert "graph is removed, even if it was written by hand, and does not come back" in host.warned
    assert json.loads(host.path.read_text()) == {"graph": "/srv", "debug": True}


def test_toml_keeps_comments_and_refuses_what_is_broken(host):
    host.path = host.root / "config.toml"
    host.path.write_text('# ours\nversion = 2\n[plugins."cri".cni]\nbin_dir = "/usr/lib/cni" # Debian\n')
    arguments = {"format": "toml", "values": {"plugins": {"cri": {"enable_cdi": True}}}, "record": True}
    assert host.run(**arguments)["changed_keys"] == ["plugins.cri.enable_cdi"]
    assert not host.run(**arguments)["changed"]
    assert host.path.read_text() == (
        '# ours\nversion = 2\n[plugins."cri".cni]\nbin_dir = "/usr/lib/cni" # Debian\n\n'
        "[plugins.cri]\nenable_cdi = true\n"
    )
    before = host.snapshot()
    assert "null" in host.run(format="toml", values={"a": None})["msg"]
    assert host.snapshot() == before
    host.path.write_text("a = 1\nb = \n")
    result = host.run(**arguments)
    assert "is not a valid TOML file and is left untouched: line 2, column 5" in result["msg"]


def test_what_was_put_into_the_file_of_another_service_is_taken_out(host):
    other = host.root / "daemon.json"
    other.write_text('{"debug": true}')
    host.run(values={"features": {"cdi": True}}, record=True)
    host.running()
    arguments = {
        "path": str(host.root / "containers.conf"),
        "format": "toml",
        "values": {"containers": {"pids_limit": 4096}},
        "record": True,
        "backup": True,
        "withdraw_from": [{"path": str(other), "format": "json"}],
    }
    before = host.snapshot()
    told = host.run(check=True, **arguments)
    assert host.snapshot() == before
    done = host.run(**arguments)
    assert told == done
    assert done["changed_keys"] == ["containers.pids_limit", f"{other}: features.cdi"]
    assert done["diff"][1]["after"] == other.read_text()
    assert json.loads(other.read_text()) == {"debug": True}
    assert len(list(host.root.glob("daemon.json.*"))) == 1, "no copy of the earlier file"
    assert host.asked == []
    assert not host.run(**arguments)["changed"]


def test_nothing_is_taken_out_of_a_file_of_which_nothing_is_remembered(host):
    host.path.write_text("not JSON")
    result = host.run(
        path=str(host.root / "own.json"), values={"a": 1}, record=True, withdraw_from=[{"path": str(host.path)}]
    )
    assert result["changed_keys"] == ["a"]
    assert str(host.path) not in host.warned
    assert host.path.read_text() == "not JSON"


def test_a_file_of_another_service_that_has_become_malformed_is_left_alone(host):
    host.run(values={"a": 1}, record=True)
    host.path.write_text("not JSON")
    arguments = {"path": str(host.root / "own.json"), "record": True, "withdraw_from": [{"path": str(host.path)}]}
    result = host.run(**arguments)
    assert not result["changed"]
    assert f"{host.path} is left as it is" in host.warned
    # Once it is right again, it is remembered what to take out.
    host.path.write_text('{"a": 1}')
    assert host.run(**arguments)["changed"]
    assert not host.path.exists()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100000,
        b'{"claims": 3, "pending": null}',
        b'{"claims": null, "pending": [1]}',
        b'{"claims": null, "pending": {"action": "restart"}}',
        b'{"claims": [[[["a"]], 1]], "pending": null}',
    ],
)
def test_a_record_that_was_changed_is_made_anew_and_said(tmp_path, text):
    record = config_record.Record(str(tmp_path), "/etc/docker/daemon.json")
    with open(record.path, "wb") as file:
        file.write(text)
    with pytest.raises(config_record.Unreadable):
        record.load()
    assert (record.claims, record.pending) == (None, None)
