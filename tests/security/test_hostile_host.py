# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that answers every module with what it likes, and gpuops as it is called: nothing comes of it.

In the place of the host's Python is a program of the attacker's. What he wants is a file on the controller, a place
where none of ours is written, a terminal that obeys, or a secret in a file that others read.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from gpuops.fetch import manifest
from gpuops.run import events
from gpuops.site import secrecy
from tests.unit.fetch.test_manifest import CALLED, EVENTS, with_package, written
from tests.unit.gpuops.conftest import HERE, Bench
from tests.unit.gpuops.test_hostile_host import hostile_facts, template
from tests.unit.gpuops.test_secrecy import PASSWORD, PLACES, place, tells
from tests.unit.gpuops.test_status import REASON, facts
from tests.unit.gpuops.test_untrusted_events import EVIL, OBEYED, Page
from tests.unit.project.tree import BIN, try_run

SHELL = ("$(touch {})", "`touch {}`", ";touch {};", "|touch {}", "\n- pipe: touch {}\n")


class Attack:
    """What the attacker says, and the file that he would like to have."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.canary = directory / "canary"
        self.words = [template(self.canary), *(word.format(self.canary) for word in SHELL)]

    def variables(self, *answers: dict[str, Any]) -> dict[str, str]:
        """Of a host that gives all these answers in one, whatever it is asked."""
        said: dict[str, Any] = {"changed": False, "ansible_facts": {}}
        for answer in answers:
            said["ansible_facts"].update(answer.get("ansible_facts", {}))
            said.update({key: value for key, value in answer.items() if key != "ansible_facts"})
        (self.directory / "said.json").write_text(json.dumps(said))
        python = self.directory / "python"
        python.write_text(f"#!/bin/sh\nexec cat {self.directory}/said.json\n")
        python.chmod(0o755)
        return {"ansible_connection": "local", "ansible_python_interpreter": str(python)}

    def came_to_nothing(self, before: set[Path], allowed: Path) -> None:
        assert not self.canary.exists()
        new = {path for path in everything(self.directory) - before if allowed not in (path, *path.parents)}
        assert not new


def everything(directory: Path) -> set[Path]:
    # Neither Python's nor Ansible's own.
    return {path for path in directory.rglob("*") if not {"__pycache__", ".ansible"} & set(path.parts)}


@pytest.fixture
def attack(tmp_path: Path) -> Attack:
    return Attack(tmp_path)


def is_harmless(text: str) -> bool:
    return not [sign for sign in OBEYED if sign in text]


def test_2_a_site_that_is_made_of_its_answers_runs_nothing(bench: Bench, attack: Attack) -> None:
    evil = attack.variables({"ansible_facts": hostile_facts("".join(attack.words) + EVIL.replace("\ud800", ""))})
    hosts = {"evil": {"roles": ["gpu", "storage"], "variables": evil}, "good": {"role": "cpu", "variables": HERE}}
    (bench.path / "answers.yml").write_text(yaml.safe_dump({"become": False, "use_free_disks": True, "hosts": hosts}))
    before, site = everything(bench.path), bench.path / "site"
    done = bench.call("init", "site", "--answers", "answers.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert is_harmless(done.stdout + done.stderr)
    listed = try_run([BIN / "ansible-inventory", "--list"], cwd=site)
    assert listed.returncode == 0, listed.stderr
    variables = json.loads(listed.stdout)["_meta"]["hostvars"]
    assert set(variables) == {"evil", "good"}
    assert "canary" not in json.dumps(variables["good"])
    attack.came_to_nothing(before, site)


def said(word: str, instead: str) -> list[dict[str, Any]]:
    """The answers of a host that says another word."""
    return [json.loads(json.dumps(EVENTS[0]).replace(word, instead)), *EVENTS[3:]]


@pytest.mark.parametrize(
    "answer",
    [
        with_package(name=CALLED),
        with_package(name="libc6", version="1 -o Dir::Bin::dpkg=x"),
        said("debian13", "../../../x"),
        said("trixie", "trixie main\\ndeb http://evil/ x"),
    ],
    ids=["an option for a name", "an option for a version", "a way out for a release", "a line for a codename"],
)
def test_3_no_manifest_is_made_of_such_answers(answer: list[dict[str, Any]]) -> None:
    with pytest.raises(manifest.ManifestError, match="is refused"):
        manifest.from_events(map(events.typed, answer))


@pytest.mark.parametrize(
    "changed",
    [
        {"packages": [CALLED]},
        {"packages": ["libc6", "--", "-y"]},
        {"name": "../../../x"},
        {"name": "debian13/../../x"},
        {"codename": "trixie\ndeb [trusted=yes] http://evil/ x"},
        {"components": ["main [trusted=yes]"]},
        {"architecture": "amd64 -o x"},
    ],
)
def test_3_and_a_manifest_that_has_them_is_not_fetched(
    bench: Bench, attack: Attack, apt: Path, changed: dict[str, Any]
) -> None:
    path = written(bench.path, **changed)
    before = everything(bench.path)
    done = bench.call("fetch", str(path), "deep/down/mirror", "--archive", "http://127.0.0.1:9/")
    assert done.returncode == 1
    assert "is refused" in done.stderr
    assert is_harmless(done.stdout + done.stderr)
    assert not apt.exists()
    attack.came_to_nothing(before, bench.path / "nothing")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "FILE:///etc/passwd", "ftp://127.0.0.1:9/x", "//x/y", "data:,x"])
def test_3_nor_a_file_of_the_controllers(bench: Bench, attack: Attack, apt: Path, url: str) -> None:
    path = written(bench.path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "releases": [], "downloads": [{"url": url, "sha256": "0" * 64}]}))
    before = everything(bench.path)
    done = bench.call("fetch", str(path), "mirror", "--archive", "http://127.0.0.1:9/")
    assert done.returncode == 1
    assert "is refused" in done.stderr
    attack.came_to_nothing(before, bench.path / "nothing")


def everywhere(value: Any, text: str) -> Any:
    """The value with the text behind every text."""
    if isinstance(value, dict):
        return {key: everywhere(part, text) for key, part in value.items()}
    if isinstance(value, list):
        return [everywhere(part, text) for part in value]
    return value + text if isinstance(value, str) and key_is_free(value) else value


def key_is_free(value: str) -> bool:
    """Not what facts cannot be understood without: verdicts, kinds and states."""
    return len(value) > 12


PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - baremetal.gpu.gpu_facts:
    - debug: {var: ansible_facts}
    - fail: {msg: "{{ ansible_facts | string }}"}
"""


def test_7_and_8_what_it_says_of_itself_and_of_secrets_moves_nobody(bench: Bench, attack: Attack) -> None:
    """It knows the secrets that are sent to it, and may say them again in any form."""
    known = {name: f"{number}-correct'horse {number}" for number, name in enumerate(PLACES)}
    del known["a variable that is named so"]
    place(bench.path, known)
    forms = [*known.values(), *(base64.b64encode(f"x:{word}".encode()).decode() for word in known.values())]
    says = EVIL.replace("\ud800", "") + " ".join(forms) + attack.words[0]
    evil = attack.variables(
        everywhere(facts("fatal", **{**REASON, "text": "x" * 13}), says),
        {"msg": says, "warnings": [says], "deprecations": [{"msg": says, "version": "1"}], "stdout": says},
    )
    groups = {"gpu_cluster": {"hosts": {"evil": evil}}}
    (bench.path / "inventory" / "hosts.json").write_text(json.dumps({"all": {"children": groups}}))
    (bench.path / "play.yml").write_text(PLAY)
    before, shown = everything(bench.path), ""
    for command in (["status"], ["doctor", "evil"], ["up", "-p", "play.yml"], ["inventory"]):
        done = bench.call(*command)
        assert "Traceback" not in done.stderr, done.stderr
        shown += done.stdout + done.stderr
    done = bench.call("report", "-o", "out/report.html")
    assert done.returncode == 0, done.stderr
    shown += done.stdout + done.stderr
    assert not attack.canary.exists()
    made = everything(bench.path) - before
    texts = {path: path.read_text() for path in made if path.is_file()}
    assert {path.suffix for path in texts} >= {".html", ".xml", ".json", ".jsonl", ".log"}
    assert {path.relative_to(bench.path).parts[0] for path in made} <= {"out", "inventory", ".gpuops", "report.html"}
    # It was heard, and what it said of secrets is hidden.
    assert secrecy.HIDDEN in shown
    assert "fatal" in shown
    page = Page(next(text for path, text in texts.items() if path.suffix == ".html"))
    assert not page.tags & {"img", "iframe"}
    assert not [name for name in page.attributes if name.startswith("on")]
    ElementTree.fromstring(next(text for path, text in texts.items() if path.suffix == ".xml"))
    for name, text in {"the screen": shown, **texts}.items():
        assert is_harmless(text), name
        assert PASSWORD not in text, name
        for secret in known.values():
            assert not tells(secret, text), (name, secret)
