# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets of every kind, planted wherever a run may say something, are in no file and on no screen."""

from __future__ import annotations

import base64
import contextlib
import html
import json
import random
import re
import shlex
import string
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest
import yaml
from ansible.parsing.vault import VaultLib, VaultSecret
from markupsafe import escape

from gpuops.run import records
from gpuops.site import Site, secrecy, secrets
from tests.unit.gpuops.conftest import HERE
from tests.unit.project.tree import ROOT

PASSWORD = "sesame-open-up"
FSID = "0b9b3a52-8d2e-4c53-9d1c-3f1d2f0f6a11"


def sealed(text: str, password: str = PASSWORD) -> str:
    secret = VaultSecret(password.encode())
    return VaultLib([("default", secret)]).encrypt(text, secret=secret).decode()


def inline(text: str) -> str:
    return "!vault |\n" + "".join(f"    {line}\n" for line in sealed(text).splitlines())


# Where a secret is: what a site has there, with the secret in the place of @.
PLACES = {
    "a vault of a group": ("inventory/group_vars/all/vault.yml", lambda text: sealed(f"vault_a: {json.dumps(text)}\n")),
    "a vault of a host": ("inventory/host_vars/here/vault.yml", lambda text: sealed(f"b: {json.dumps(text)}\n")),
    "a vault that is called otherwise": (
        "inventory/host_vars/here/main.yml",
        lambda text: sealed(f"c: {{deep: [{json.dumps(text)}]}}\n"),
    ),
    "a file of variables here": ("more.yml", lambda text: sealed(f"f: {json.dumps(text)}\n")),
    "a value of a file here": ("other.yml", lambda text: f"vars:\n  g: {inline(text)}"),
    "a vault beside the playbook": ("group_vars/all/x.yml", lambda text: sealed(f"d: {json.dumps(text)}\n")),
    "a value in the midst of others": (
        "inventory/group_vars/all/open.yml",
        lambda text: f"plain: 1\ne: {inline(text)}",
    ),
    "a variable that is named so": (
        "inventory/group_vars/all/login.yml",
        lambda text: f"ansible_become_password: {json.dumps(text)}\n",
    ),
    "a file of secrets": ("inventory/.secrets/token", lambda text: f"{text}\n"),
    "a file of secrets further below": ("inventory/.secrets/a/b/c", lambda text: f"{text}\n"),
    "a document of secrets": ("inventory/.secrets/keys.json", lambda text: json.dumps({"keys": [{"x": text}]})),
    "a login": ("inventory/.secrets/login", lambda text: f"operator:{text}\n"),
    "a key that ends like a cluster's": (
        "inventory/group_vars/all/vault_b.yml",
        lambda text: sealed(f"offsid: {json.dumps(text)}\nceph_fsid: {FSID}\nother_fsid: {json.dumps(text)}\n"),
    ),
}


def place(directory: Path, secrets_by_place: dict[str, str]) -> Site:
    (directory / "inventory").mkdir(exist_ok=True)
    (directory / "inventory" / "hosts.json").write_text(json.dumps({"all": {"hosts": {"here": HERE}}}))
    (directory / "password").write_text(f"{PASSWORD}\n")
    (directory / "ansible.cfg").write_text("[defaults]\ninventory = inventory\nvault_password_file = password\n")
    for name, secret in secrets_by_place.items():
        path, made = PLACES[name]
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(made(secret))
    return Site(directory / "inventory")


@pytest.mark.parametrize("name", PLACES)
def test_a_secret_is_found_where_it_is(name, tmp_path, monkeypatch):
    site = place(tmp_path, {name: "correct horse 7"})
    monkeypatch.chdir(tmp_path)
    assert "correct horse 7" in secrets(site)
    assert PASSWORD in secrets(site)
    assert FSID not in secrets(site)


def test_a_password_of_the_vault_may_come_in_any_way(tmp_path, monkeypatch):
    site = place(tmp_path, {"a vault of a host": "correct horse 7"})
    (tmp_path / "ansible.cfg").write_text("[defaults]\ninventory = inventory\n")
    (tmp_path / "told.sh").write_text(f"#!/bin/sh\necho {PASSWORD}\n")
    (tmp_path / "told.sh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert "correct horse 7" not in secrets(site)
    for words in (
        ["--vault-password-file", "password"],
        ["--vault-pass-file=password"],
        ["--vault-id", "default@password"],
        ["--vault-id=prod@told.sh"],
    ):
        assert "correct horse 7" in secrets(site, words), words
    assert "correct horse 7" in secrets(site, typed=[PASSWORD])
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(tmp_path / "password"))
    assert "correct horse 7" in secrets(site)
    monkeypatch.delenv("ANSIBLE_VAULT_PASSWORD_FILE")
    (tmp_path / "ansible.cfg").write_text("[defaults]\nvault_identity_list = dev@nowhere, prod@told.sh\n")
    assert "correct horse 7" in secrets(site)


def test_what_is_said_on_the_command_line_counts(tmp_path, monkeypatch):
    site = place(tmp_path, {})
    (tmp_path / "more.yml").write_text(sealed("x: in-a-file-1\n"))
    monkeypatch.chdir(tmp_path)
    words = ["-e", "db_password=short user=nobody-here", "--extra-vars={'api_token': 'long-enough-1'}", "-e@more.yml"]
    found = secrets(site, words)
    assert {"short", "long-enough-1", "in-a-file-1"} <= found
    assert "nobody-here" not in found


def test_what_is_no_secret_stays_readable(tmp_path, monkeypatch):
    site = place(tmp_path, {"a key that ends like a cluster's": "correct horse 7"})
    (tmp_path / "inventory" / "group_vars" / "all" / "plain.yml").write_text(
        "converge_reboot: allowed-by-us\nansible_ssh_private_key_file: /srv/keys/key-file\nkey: gpu.devices\n"
        "registry_password: '{{ vault_registry }}'\ntoken_url: https://idp.example/token\n"
        "credentials: {principal: marathon-1, secret: swordfish}\ncache_key: host-and-model\n"
    )
    (tmp_path / "inventory" / ".secrets").mkdir()
    (tmp_path / "inventory" / ".secrets" / "mesos.json").write_text(
        json.dumps({"credentials": [{"principal": "mesos-agent", "secret": "its-own-secret"}]})
    )
    monkeypatch.chdir(tmp_path)
    redact = records.Redactor(secrets(site))
    said = (
        f"fsid {FSID} allowed-by-us /srv/keys/key-file gpu.devices {{{{ vault_registry }}}} marathon-1 "
        "https://idp.example/token host-and-model mesos-agent"
    )
    assert redact(said) == said
    assert redact("a swordfish b its-own-secret") == "a ******** b ********"


def test_short_ones_are_hidden_where_they_stand_alone_and_make_no_words_black():
    redact = records.Redactor({"port", "no"})
    assert redact("the port, report and export of port 5") == "the ********, report and export of ******** 5"
    assert redact("no, nothing") == "no, nothing"


def in_base64(text, before="", behind="", altchars=None):
    return base64.b64encode(f"{before}{text}{behind}".encode(), altchars).decode()


# What makes other writing of a secret, and what is left that tells it.
WAYS = {
    "as it is": str,
    "in JSON": lambda text: json.dumps({"a": text}),
    "in JSON as Ansible writes it": lambda text: json.dumps({"a": text}, ensure_ascii=False),
    "in JSON in JSON": lambda text: json.dumps(json.dumps({"a": text})),
    "in Python": lambda text: repr([text]),
    "in Python beside quotes": lambda text: repr([f'{text} it\'s "x"']),
    "in Python in JSON": lambda text: json.dumps({"a": repr([f'{text} it\'s "x"'])}),
    "in YAML": lambda text: yaml.safe_dump({"a": text}, width=10000),
    "for a shell": lambda text: f"echo {shlex.quote(text)}",
    "in HTML": lambda text: f"<p>{escape(text)}</p>",
    "in an attribute": lambda text: f'<p a="{html.escape(text)}">',
    "in a URL": lambda text: f"https://a:{urllib.parse.quote(text, safe='')}@b/",
    "in a query": lambda text: urllib.parse.urlencode({"a": text}),
    "in base64": in_base64,
    "in base64 with a line break": lambda text: in_base64(text, behind="\n"),
    "in base64 of a login": lambda text: f"Authorization: Basic {in_base64(text, 'admin:')}",
    "in base64 of a longer login": lambda text: in_base64(text, "admin2:", ":x"),
    "in base64 for URLs": lambda text: in_base64(text, "x", altchars=b"-_"),
    "in hexadecimal": lambda text: text.encode().hex(),
    "in the midst of a word": lambda text: f"aaa{text}bbb",
}


def undone(said):
    """What somebody who knows the usual ways of writing reads there."""
    yield said
    yield html.unescape(said)
    yield urllib.parse.unquote_plus(said)
    yield said.replace("''", "'")
    yield said.replace("'\"'\"'", "'")
    yield re.sub(r'\\(["\\/\'])', r"\1", said)
    yield re.sub(r"\\(?:x|u00)([0-9a-fA-F]{2})", lambda match: chr(int(match[1], 16)), said)
    for part in re.findall(r"[\w+/-]{8,}", said, re.ASCII):
        for cut in range(4):
            for alphabet in (b"+/", b"-_"):
                data = part[cut:]
                for padded in (data + "=" * (-len(data) % 4), data[: len(data) // 4 * 4]):
                    with contextlib.suppress(ValueError):
                        yield base64.b64decode(padded, alphabet).decode("latin-1")
        with contextlib.suppress(ValueError):
            yield bytes.fromhex(part).decode("latin-1")


def tells(secret, said):
    """Whether somebody who reads this can tell the secret."""
    looked_for = (secret, secret.encode().decode("latin-1"))
    return any(form in twice for once in undone(said) for twice in undone(once) for form in looked_for)


SECRETS = [
    "correct-horse-7",
    "pass\"word\\1'x",
    "a b <c> & d'e",
    "AQDk1mRnAAAAABAAo9+/xyzzy==",
    "über-geheim",
    "%41&x=y+z",
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_hidden_however_it_is_written(secret, way):
    redact = records.Redactor({secret, "another-secret"})
    said = WAYS[way](secret)
    assert tells(secret, said), "the test's own way of reading it is at fault"
    assert not tells(secret, redact(said))
    found = redact.document({"a": [{"b": said, f"key {said}": 1}]})
    assert not tells(secret, json.dumps(found))


def try_secrets(seed):
    chance = random.Random(seed)
    signs = string.ascii_letters + string.digits + "+/=-_'\"\\ %&<>é{}:$"
    made = ["".join(chance.choice(signs) for _ in range(chance.randrange(8, 40))).strip() for _ in range(5)]
    made = [text for text in made if len(text) >= 8]
    redact = records.Redactor(set(made))
    for secret in made:
        for name, write in WAYS.items():
            said = f"{chance.choice(['', 'x ', 'ab', '=='])}{write(secret)}{chance.choice(['', ' y', 'c'])}"
            assert not tells(secret, redact(said)), (name, secret)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_secret_is(seed):
    try_secrets(seed)


@pytest.mark.slow
def test_whatever_a_secret_is_for_longer():
    for seed in range(100, 1100):
        try_secrets(seed)


def test_lines_of_a_key_are_hidden_one_by_one_and_a_certificate_is_not():
    body = [base64.b64encode(random.Random(number).randbytes(48)).decode() for number in range(5)]
    key = "-----BEGIN PRIVATE KEY-----\n" + "\n".join(body) + "\n-----END PRIVATE KEY-----\n"
    certificate = key.replace("PRIVATE KEY", "CERTIFICATE").replace(body[0], "MIIpublic" * 7)
    known = secrecy.Secrets()
    known.text(key + certificate)
    redact = records.Redactor(known.found)
    assert not [
        line for line in body if line in redact(f"+ {body[1]}\n" + key + base64.b64encode(key.encode()).decode())
    ]
    assert "MIIpublic" in redact(certificate)
    assert redact("-----BEGIN PRIVATE KEY-----") == "-----BEGIN PRIVATE KEY-----"
    wrapped = base64.encodebytes(key.encode()).decode()
    assert not [line for line in wrapped.splitlines()[:-1] if line in redact(wrapped)]


def test_documents_keep_the_names_that_programs_go_by():
    redact = records.Redactor({"monitors", "degraded-1"})
    assert redact.document({"monitors": ["degraded-1"], "state": 1}) == {"monitors": ["********"], "state": 1}


def test_thousands_of_secrets_are_as_quick_as_one():
    chance = random.Random(1)
    made = {"".join(chance.choice(string.ascii_letters) for _ in range(20)) for _ in range(3000)}
    redact = records.Redactor(made)
    text = "nothing of the kind is said here; " * 100 + next(iter(made))
    assert redact(text).endswith("here; ********")


PLAYBOOK = """
- name: A play that says {{ plain_play }}
  hosts: all
  gather_facts: false
  vars:
    every: "{{ lookup('file', everything) | from_json }}"
    plain_play: "{{ (lookup('file', everything) | from_json)[0] }}"
  tasks:
    - name: "A task that says {{ every[0] }}"
      debug: {msg: "{{ item }} {{ item | b64encode }} {{ ('admin:' ~ item) | b64encode }} {{ item | urlencode }}"}
      loop: "{{ every }}"
    - name: Change
      copy: {content: "{{ every | to_nice_json }}", dest: "{{ playbook_dir }}/planted", mode: "0600"}
    - name: Say it on the other output, and end with an error
      script: said.sh {{ every | map('quote') | join(' ') }} {{ every[1] | b64encode }}
      ignore_errors: true
    - name: Fail
      fail: {msg: "{{ every | join(' ') }} {{ every[1] | b64encode }} Remedy: {{ every[2] }}"}
"""


def test_secrets_of_every_kind_said_in_every_place_are_nowhere(bench):
    # As a variable of that name Ansible would use it.
    made = {
        name: f"{number}-correct'horse {number}"
        for number, name in enumerate(PLACES)
        if name != "a variable that is named so"
    }
    place(bench.path, made)
    everything = [*made.values(), "of-the-command-line"]
    (bench.path / "everything.json").write_text(json.dumps(everything))
    (bench.path / "play.yml").write_text(PLAYBOOK)
    (bench.path / "said.sh").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\" >&2\nexit 1\n")
    words = ["-e", f"everything={bench.path}/everything.json", "-e", json.dumps({"db_password": everything[-1]})]
    shown = ""
    for command in (["up", "-p", "play.yml"], ["up", "-p", "play.yml", "--json"], ["plan", "-p", "play.yml", "--diff"]):
        (bench.path / "planted").unlink(missing_ok=True)
        done = bench.call(*command, "--", *words, "--diff")
        assert done.returncode == 2, done.stdout + done.stderr
        assert secrecy.HIDDEN in done.stdout
        shown += done.stdout + done.stderr
    files = {path: path.read_text() for path in (bench.path / "inventory" / ".gpuops").rglob("*") if path.is_file()}
    assert {path.name for path in files} >= {"output.log", "events.jsonl", "run.json", "hosts.json"}
    for path, text in {Path("the screen"): shown, **files}.items():
        for secret in everything:
            assert not tells(secret, text), (path, secret)
        assert PASSWORD not in text


def test_an_inventory_that_cannot_be_read_is_shown_without_its_secrets(bench):
    place(bench.path, {"a file of secrets": "correct horse 7"})
    (bench.path / "inventory" / "group_vars").mkdir()
    (bench.path / "inventory" / "group_vars" / "all.yml").write_text("x: [correct horse 7\ny: }\n")
    for command in (["status"], ["doctor", "here"], ["inventory"], ["up", "-p", "play.yml"]):
        (bench.path / "play.yml").write_text("- hosts: all\n  tasks: []\n")
        done = subprocess.run(
            [sys.executable, "-m", "gpuops", *command],
            cwd=bench.path,
            env={**bench.environment(), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode
        assert "correct horse 7" not in done.stdout + done.stderr, command
