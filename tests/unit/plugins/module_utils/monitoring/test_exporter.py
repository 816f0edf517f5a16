# SPDX-License-Identifier: GPL-3.0-or-later
"""The host exporter as a program: what it writes, and what it survives."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring import exporter
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring.metrics import METRICS
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring.part import Part
from tests.unit.plugins.exposition import Family, parse, style_faults
from tests.unit.plugins.module_utils.monitoring.test_certificates import END, certificate
from tests.unit.plugins.promtool import faults, needs_promtool
from tests.unit.plugins.zookeeper_words import Words

SUCCESS = "baremetal_gpu_host_part_success"


@pytest.fixture
def words() -> Iterator[Words]:
    one = Words("follower")
    yield one
    one.stop()


@pytest.fixture
def config(tmp_path: Path, words: Words) -> Path:
    (tmp_path / "head1.pem").write_bytes(certificate())
    (tmp_path / "zoo.cfg").write_text("server.1=a:2888:3888\nserver.2=b:2888:3888\nserver.3=c:2888:3888\n")
    settings = {
        "certificates": [f"{tmp_path}/*.pem"],
        "zookeeper": {"host": "127.0.0.1", "port": words.port, "config": f"{tmp_path}/zoo.cfg"},
        "homes": {"root": str(tmp_path)},
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(settings))
    return path


def by_part(families: dict[str, Family], name: str) -> dict[str, float]:
    return {dict(labels).get("part", ""): value for labels, value in families[name].series.items()}


def look(todo: dict[str, Callable[[], Part]], **given: object) -> tuple[dict[str, Family], list[str]]:
    page, complaints = exporter.look(todo, **given)  # type: ignore[arg-type]
    return parse(page), complaints


def good(name: str = "zookeeper_serving") -> Part:
    part = Part()
    part.add(name, {}, 1.0)
    return part


def test_the_file_has_what_the_settings_name(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    target = tmp_path / "host.prom"
    assert exporter.main(["--config", str(config), "--textfile", str(target)]) == 0
    assert capsys.readouterr().err == ""
    assert target.stat().st_mode & 0o777 == 0o644
    found = parse(target.read_text())
    assert by_part(found, SUCCESS) == {"certificates": 1.0, "zookeeper": 1.0, "homes": 1.0}
    path = (("path", f"{tmp_path}/head1.pem"),)
    assert found["baremetal_gpu_certificate_expiry_timestamp_seconds"].series == {path: END.timestamp()}
    assert found["zookeeper_serving"].series == {(): 1.0}
    assert found["zookeeper_ensemble_servers"].series == {(): 3.0}


def test_without_a_textfile_the_page_is_printed(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exporter.main(["--config", str(config)]) == 0
    assert "zookeeper_serving" in parse(capsys.readouterr().out)


def test_a_part_that_is_not_named_does_not_run(config: Path, words: Words, capsys: pytest.CaptureFixture[str]) -> None:
    words.stop()
    config.write_text(json.dumps({"certificates": []}))
    assert exporter.main(["--config", str(config)]) == 0
    assert set(parse(capsys.readouterr().out)) == {SUCCESS}


def full() -> Part:
    part = Part()
    for name, (_kind, labels, _help) in METRICS.items():
        if name != SUCCESS:
            part.add(name, {label: f"a {label}" for label in labels}, 3.5)
    return part


def test_every_metric_has_the_labels_of_the_table_and_follows_the_conventions() -> None:
    found, complaints = look({"homes": full})
    assert set(found) == set(METRICS)
    assert not complaints
    assert not style_faults(found)
    for name, (kind, labels, text) in METRICS.items():
        assert (found[name].kind, found[name].help, found[name].labels()) == (kind, text, set(labels))
        assert not {"job", "instance"} & set(labels)


@needs_promtool
def test_promtool_finds_nothing(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert faults(exporter.look({"homes": full})[0]) == ""
    exporter.main(["--config", str(config)])
    assert faults(capsys.readouterr().out) == ""


# --- parts that fail --------------------------------------------------------------------------------------------------


def hangs() -> Part:
    time.sleep(60)
    return Part()


def crashes() -> Part:
    os.kill(os.getpid(), signal.SIGKILL)
    return Part()


def fails() -> Part:
    raise RecursionError("a\nb")


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (hangs, "no metrics of homes: no answer within 0.3 s"),
        (crashes, "no metrics of homes: by signal 9"),
        (fails, "no metrics of homes: RecursionError a b"),
    ],
)
def test_a_part_that_fails_costs_no_other_and_is_told(work: Callable[[], Part], said: str) -> None:
    patience = {"homes": 0.3, "zookeeper": 10.0}
    found, complaints = look({"homes": work, "zookeeper": good}, patience_s=patience)
    assert by_part(found, SUCCESS) == {"homes": 0.0, "zookeeper": 1.0}
    assert found["zookeeper_serving"].series == {(): 1.0}
    assert complaints == [said]


def test_while_a_look_of_before_hangs_its_part_is_not_begun_again(tmp_path: Path) -> None:
    """As a child that hangs in the kernel does, the first one has the lock, and lives on without its parent."""
    begun, end = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        with exporter._lock(f"{tmp_path}/homes.lock"):
            os.write(begun[1], b".")
            os.read(end[0], 1)
            os._exit(0)
    os.read(begun[0], 1)
    todo: dict[str, Callable[[], Part]] = {"homes": lambda: good("cephfs_home_used_bytes"), "zookeeper": good}
    found, complaints = look(todo, directory=str(tmp_path))
    assert by_part(found, SUCCESS) == {"homes": 0.0, "zookeeper": 1.0}
    assert complaints == ["no metrics of homes: an earlier look still hangs in the kernel"]
    os.write(end[1], b".")
    os.waitpid(child, 0)
    found, complaints = look(todo, directory=str(tmp_path))
    assert by_part(found, SUCCESS) == {"homes": 1.0, "zookeeper": 1.0}
    assert complaints == []
    for descriptor in (*begun, *end):
        os.close(descriptor)


def test_what_is_wrong_is_told_once_and_again_after_it_was_right(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{tmp_path}/run")
    config.write_text(json.dumps({"certificates": [f"{tmp_path}/x.pem"]}))
    told = []
    for content in (b"", b"", certificate(), b""):
        (tmp_path / "x.pem").write_bytes(content)
        assert exporter.main(["--config", str(config), "--textfile", f"{tmp_path}/host.prom"]) == 0
        told.append(capsys.readouterr().err.count("x.pem cannot be read: it has no certificate"))
    assert told == [1, 0, 0, 1]


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        '{"certificates": "/etc/*.pem"}',
        '{"certificates": ["etc/a.pem"]}',
        '{"zookeeper": {"host": "127.0.0.1", "port": 0, "config": "/etc/zoo.cfg"}}',
        '{"zookeeper": {"port": 2181}}',
        '{"homes": {"root": "home"}}',
        "{" * 100000,
    ],
)
def test_settings_that_cannot_be_used_leave_no_file_of_before(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(content)
    (tmp_path / "host.prom").write_text("old 1\n")
    words = ["--config", f"{tmp_path}/config.json", "--textfile", f"{tmp_path}/host.prom"]
    assert exporter.main(words) == exporter.USAGE_ERROR
    assert f"{tmp_path}/config.json cannot be used: " in capsys.readouterr().err
    assert not (tmp_path / "host.prom").exists()


def test_a_directory_that_is_missing_and_a_disk_that_is_full_are_told_and_leave_no_file_of_before(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--config", str(config), "--textfile"]
    assert exporter.main([*words, f"{tmp_path}/none/host.prom"]) == exporter.FAILED
    assert "none/host.prom cannot be written: No such file or directory. To do: " in capsys.readouterr().err
    (tmp_path / "host.prom").write_text("old 1\n")

    def refuse(*_given: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporter.host_files, "write", refuse)
    assert exporter.main([*words, f"{tmp_path}/host.prom"]) == exporter.FAILED
    assert "No space left on device" in capsys.readouterr().err
    assert not (tmp_path / "host.prom").exists()
