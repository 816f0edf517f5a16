# SPDX-License-Identifier: GPL-3.0-or-later
"""The secrets of a site, and how they are taken out of whatever is printed or kept.

Secrets are what Ansible can know and nobody is to read: files below ``.secrets``, everything that Ansible Vault has
encrypted as far as its password is at hand, variables that are secret by their names, and the passwords
themselves. They are looked for in every form in which a task, a module or a web server writes a text.
"""

from __future__ import annotations

import base64
import contextlib
import html
import json
import os
import re
import shlex
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text

HIDDEN = "********"
# A text of fewer signs may be part of any word, so it is no secret by itself. One that a variable named like a password
# has, or that somebody has typed as one, is hidden from `SHORTEST` signs on, where it stands alone.
LONG_ENOUGH, SHORTEST = 8, 4
# Variables that are secret by their names.
_NAMED = re.compile(
    r"(?i)(^|[_-])(pass|passw|passwd|password|passphrase|passcode|secret|token|credential|pin|otp|bearer"
    r"|(api|auth|access|secret|private|encryption|signing|shared|license|licence)[_-]?key)(s|_?hash)?$"
)
# Of these names only what looks like a key is one.
_KEYS = re.compile(r"(?i)(^|[_-])keys?$")
_KEY = re.compile(r"[A-Za-z0-9+/_-]{20,}={0,2}")
# What stands beside a secret and is none.
_BESIDE = re.compile(
    r"(?i)(^|[_-])(principal|user|username|login|name|id|host|hosts|port|realm|service|issuer|type|method|algorithm"
    r"|email|role|roles|group|groups|comment|state|scope|scopes|path|file|dir|url|uri)$"
)
# A quick look at a whole file for such names.
_ANY_NAMED = re.compile(
    r"(?i)(pass|passw|passwd|password|passphrase|passcode|secret|token|credential|pin|otp|bearer|key)(s|_?hash)?[\"']?\s*[:=]"
)
_LINE = re.compile(r"""(?mx) (?:^|[\s{,]) ["']? (\w[\w-]*) ["']? \s* [:=] \s* ("[^"\n]*"|'[^'\n]*'|[^\s,}#][^\n,}]*)""")
# Whose secret it is may be read, also where both are in one place.
_OWNER = re.compile(r"(?i)(^|[_-])(principal|user|username)$")
# A path, a URL, or a template that takes its value from somewhere else.
_NO_SECRET = re.compile(r"\s*(/|~|\./|\{\{|[a-z]+://)")
# Everybody may know them.
_PUBLIC = re.compile(
    r"-----BEGIN (CERTIFICATE|PUBLIC KEY|CERTIFICATE REQUEST|X509 CRL)-----.*?-----END \1-----", re.DOTALL
)
_FRAME = re.compile(r"-----(BEGIN|END) [A-Z0-9 ]+-----")
_VAULT = b"$ANSIBLE_VAULT;"
_LEFT_OUT = {".gpuops", ".git", ".cache", ".venv", "reports", "artifacts", "__pycache__"}
# Directories of variables beside an inventory or a playbook.
_OF_VARIABLES = ("group_vars", "host_vars", "vars", "vault", "vaults", ".secrets")
INFINITE = 1 << 30
_SUFFIXES = (".yml", ".yaml", ".json", ".ini", ".vault")
FILES_AT_MOST, BYTES_AT_MOST = 20000, 4_000_000


class _Sealed(str):
    """A text that was encrypted in the midst of others."""


def _is_secret_name(name: object, value: object = None) -> bool:
    if not isinstance(name, str):
        return False
    looks_like_one = isinstance(value, (Mapping, list)) or (isinstance(value, str) and _KEY.fullmatch(value.strip()))
    return bool(_NAMED.search(name) or (looks_like_one and _KEYS.search(name)))


def _is_cluster_id(key: object, value: object) -> bool:
    """The UUID of a cluster is no secret, and whoever reads an error needs it."""
    if not (isinstance(key, str) and re.search(r"(^|_)fsid$", key) and isinstance(value, str)):
        return False
    try:
        return str(uuid.UUID(value.strip())) == value.strip().lower()
    except ValueError:
        return False


class Secrets:
    """Gathers secrets; ``found`` is what is to be hidden.

    :param passwords: of Ansible Vault.
    """

    def __init__(self, passwords: Iterable[bytes] = ()) -> None:
        self.found: set[str] = set()
        self._passwords = list(dict.fromkeys(passwords))
        for password in self._passwords:
            self.text(password.decode("utf-8", "replace"), named=True)

    def text(self, text: str, named: bool = False) -> None:
        """A secret, and each of its lines."""
        shortest = SHORTEST if named else LONG_ENOUGH
        text = _PUBLIC.sub("", text)
        for part in (text, *text.splitlines()):
            if len(part.strip()) >= shortest and not _FRAME.fullmatch(part.strip()):
                self.found.add(part.strip())

    def leaves(self, content: Any, sealed: bool, named: bool = False) -> None:
        """What is secret in a document.

        :param sealed: all of it is.
        :param named: what it is the value of has the name of a secret.
        """
        if isinstance(content, Mapping):
            for key, value in content.items():
                if not _is_cluster_id(key, value) and not (isinstance(key, str) and _OWNER.search(key)):
                    inherited = named and not (isinstance(key, str) and _BESIDE.search(key))
                    self.leaves(value, sealed, inherited or _is_secret_name(key, value))
        elif isinstance(content, (list, tuple, set)):
            for value in content:
                self.leaves(value, sealed, named)
        elif isinstance(content, _Sealed):
            self.text(content, named=True)
        elif content is not None and not isinstance(content, bool) and (sealed or named):
            text = content.decode("utf-8", "replace") if isinstance(content, bytes) else str(content)
            if sealed or not _NO_SECRET.match(text):
                self.text(text, named)

    def file(self, path: Path, secret: bool) -> None:
        """What is secret in a file; one that cannot be read has nothing that Ansible could print.

        :param secret: all of it is.
        """
        try:
            if not path.is_file() or path.stat().st_size > BYTES_AT_MOST:
                return
            data = path.read_bytes()
        except OSError:
            return
        if data.startswith(_VAULT):
            opened = self._opened(data)
            if opened is not None:
                self._content(opened, True)
        else:
            self._content(data, secret or "vault" in path.name.lower())

    def _content(self, data: bytes, sealed: bool) -> None:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            if sealed:
                self.text(base64.b64encode(data).decode())
            return
        if not sealed and "!vault" not in text and not _ANY_NAMED.search(text):
            return
        documents = self._documents(text)
        if any(isinstance(content, (Mapping, list)) for content in documents):
            self.leaves(documents, sealed)
            return
        if sealed:
            self.text(text, named=len(text.split()) == 1)
        for name, value in _LINE.findall(text):
            self.leaves({name: value.strip().strip("\"'")}, sealed)

    def _documents(self, text: str) -> list[Any]:
        """What a file of JSON or YAML holds; nothing if it is neither."""
        try:
            return [json.loads(text)]
        except (ValueError, RecursionError):
            pass
        try:
            return list(yaml.load_all(text, Loader=_loader(self._opened)))
        except (yaml.YAMLError, ValueError, TypeError, RecursionError):
            return []

    def _opened(self, data: bytes) -> bytes | None:
        if not self._passwords:
            return None
        from ansible.errors import AnsibleError
        from ansible.parsing.vault import VaultLib, VaultSecret

        try:
            return bytes(VaultLib([("default", VaultSecret(word)) for word in self._passwords]).decrypt(data))
        except (AnsibleError, ValueError):
            return None


def _loader(opened: Callable[[bytes], bytes | None]) -> Any:
    """A loader of YAML that opens what is encrypted in it, and takes any other tag for what it stands at."""

    def sealed(_loader: Any, node: Any) -> Any:
        found = opened(str(node.value).strip().encode()) if isinstance(node, yaml.ScalarNode) else None
        return None if found is None else _Sealed(found.decode("utf-8", "replace"))

    def plain(loader: Any, _suffix: str, node: Any) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return node.value
        make = loader.construct_sequence if isinstance(node, yaml.SequenceNode) else loader.construct_mapping
        return make(node, deep=True)

    made = type("Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
    made.add_multi_constructor("!", plain)  # type: ignore[attr-defined]  # its class is known when it runs
    for tag in ("!vault", "!vault-encrypted"):
        made.add_constructor(tag, sealed)  # type: ignore[attr-defined]  # as above
    return made


def _files(root: Path) -> Iterator[Path]:
    """The files below a directory, links followed no further than to files."""
    count = 0
    for directory, names, files in os.walk(root):
        names[:] = sorted(set(names) - _LEFT_OUT)
        for name in sorted(files):
            count += 1
            if count > FILES_AT_MOST:
                return
            yield Path(directory) / name


def gather(
    inventory: Path,
    config: Path | None,
    settings: Mapping[str, str],
    words: Sequence[str],
    typed: Iterable[str],
    playbook: str = "",
) -> set[str]:
    """What is secret at a site.

    :param inventory: a file, or a directory with everything below it.
    :param config: the ansible.cfg that holds, and its section ``defaults`` as ``settings``.
    :param words: further options for Ansible's commands.
    :param typed: passwords that somebody has typed.
    :param playbook: a file, or the name of one in a collection.
    """
    typed = [text for text in typed if text]
    found = Secrets([*_passwords(config, settings, words), *(text.encode() for text in typed)])
    roots = [inventory] if inventory.is_dir() else [inventory.parent / name for name in _OF_VARIABLES]
    beside = {Path.cwd(), inventory.parent, *([config.parent] if config else [])}
    if playbook and Path(playbook).is_file():
        beside.add(Path(playbook).resolve().parent)
    files = {inventory} if inventory.is_file() else set()
    for place in beside:
        roots += [place / name for name in _OF_VARIABLES]
        with contextlib.suppress(OSError):
            files |= {path for path in place.iterdir() if path.suffix in _SUFFIXES or "vault" in path.name}
    files |= {path for root in roots for path in _files(root)}
    for path in sorted(files):
        found.file(path, secret=".secrets" in path.parts)
    _extra_variables(found, words)
    for name, value in os.environ.items():
        if _is_secret_name(name):
            found.text(value)
    return found.found


def _option(words: Sequence[str], *names: str) -> list[str]:
    """The values of an option, in whichever way it is written."""
    found = []
    for number, word in enumerate(words):
        for name in names:
            if word == name and number + 1 < len(words):
                found.append(words[number + 1])
            elif word.startswith(f"{name}=") and name.startswith("--"):
                found.append(word.partition("=")[2])
            elif not name.startswith("--") and word.startswith(name) and word != name:
                found.append(word[len(name) :])
    return found


def _passwords(config: Path | None, settings: Mapping[str, str], words: Sequence[str]) -> Iterator[bytes]:
    """The passwords of Ansible Vault that are in files, or that a program of the site prints."""
    here = config.parent if config else Path.cwd()
    named = [
        (here, settings.get("vault_password_file") or ""),
        (Path.cwd(), os.environ.get("ANSIBLE_VAULT_PASSWORD_FILE") or ""),
    ]
    named += [(Path.cwd(), word) for word in _option(words, "--vault-password-file", "--vault-pass-file")]
    identities = [
        (here, settings.get("vault_identity_list") or ""),
        (Path.cwd(), os.environ.get("ANSIBLE_VAULT_IDENTITY_LIST") or ""),
    ]
    identities += [(Path.cwd(), word) for word in _option(words, "--vault-id")]
    rows = [(place, "default", name) for place, name in named if name]
    for place, listed in identities:
        for identity in listed.split(","):
            label, at, source = identity.strip().partition("@")
            source = source if at else label
            if source and not source.startswith("prompt"):
                rows.append((place, label if at else "default", source))
    for place, label, name in dict.fromkeys(rows):
        yield from _password_of(place / Path(name).expanduser(), label)


def _password_of(path: Path, label: str) -> Iterator[bytes]:
    from ansible.errors import AnsibleError
    from ansible.parsing.dataloader import DataLoader
    from ansible.parsing.vault import get_file_vault_secret

    try:
        secret = get_file_vault_secret(filename=str(path), vault_id=label, loader=DataLoader())
        secret.load()
    except (AnsibleError, OSError):
        return
    if secret.bytes:
        yield secret.bytes


def _extra_variables(found: Secrets, words: Sequence[str]) -> None:
    for word in _option(words, "-e", "--extra-vars"):
        if word.startswith("@"):
            found.file(Path(word[1:]).expanduser(), secret=False)
            continue
        try:
            content = yaml.safe_load(word)
        except yaml.YAMLError:
            content = None
        if not isinstance(content, Mapping):
            try:
                pairs = [part.partition("=") for part in shlex.split(word)]
            except ValueError:
                pairs = [word.partition("=")]
            content = {name: value for name, equals, value in pairs if equals}
        found.leaves(content, sealed=False)


def forms(secret: str) -> set[str]:
    """Every way in which a text may be written where somebody reads it."""
    written = json.dumps(secret)[1:-1]
    plainer = json.dumps(secret, ensure_ascii=False)[1:-1]
    # In a text that has quotes of both kinds, Python writes them otherwise.
    quotes = repr(f"{secret}'\"")[1:-4]
    found = {
        secret,
        *(written, plainer, json.dumps(written)[1:-1], json.dumps(plainer, ensure_ascii=False)[1:-1]),
        *(repr(secret)[1:-1], quotes, json.dumps(quotes, ensure_ascii=False)[1:-1]),
        *(yaml.dump(secret, default_style='"', allow_unicode=plain, width=INFINITE)[1:-2] for plain in (True, False)),
        secret.replace("'", "'\"'\"'"),
        secret.replace("'", "'\\''"),
        secret.replace("'", "''"),
        *(html.escape(secret), html.escape(secret, quote=False)),
        html.escape(secret).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"),
        html.escape(secret, quote=False).replace('"', "&quot;").replace("\n", "&#10;"),
        *(untrusted_text.one_line(secret, len(secret) + 1), untrusted_text.several_lines(secret, len(secret) + 1)),
        " ".join(secret.split()),
    }
    data = secret.encode("utf-8", "replace")
    for quoted in (
        quote(secret, safe="", errors="replace"),
        quote(secret, errors="replace"),
        quote_plus(secret, errors="replace"),
    ):
        found |= {quoted, re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), quoted)}
    found |= {data.hex(), data.hex().upper()}
    for before in range(3):
        # What of it does not depend on what stands before and behind it.
        whole = base64.b64encode(b"\0" * before + data)
        sure = whole[(before * 8 + 5) // 6 : (before + len(data)) * 8 // 6].decode()
        found |= {sure, sure.translate(str.maketrans("+/", "-_"))} if len(sure) >= LONG_ENOUGH else set()
    lined = base64.b64encode(data).decode()
    for width in (64, 76):
        if len(lined) > width:
            lines = [lined[start : start + width] for start in range(0, len(lined), width)]
            found |= {line for line in lines if len(line) >= 2 * LONG_ENOUGH}
    return {form for form in found if len(form) >= SHORTEST}


class Redactor:
    """Takes secrets out of texts and documents.

    It takes as long for thousands of secrets as for one: a text is gone through once, and compared where the beginning
    of one is met.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._by_head: dict[str, list[str]] = {}
        short = set()
        for secret in {secret for secret in secrets if len(secret) >= SHORTEST}:
            for form in forms(secret):
                if len(form) >= LONG_ENOUGH and (len(secret) >= LONG_ENOUGH or form != secret):
                    self._by_head.setdefault(form[:LONG_ENOUGH], []).append(form)
                elif form == secret:
                    short.add(secret)
        for rows in self._by_head.values():
            rows.sort(key=len, reverse=True)
        words = "|".join(re.escape(word) for word in sorted(short, key=len, reverse=True))
        self._short = re.compile(rf"(?<![\w.-])(?:{words})(?![\w-])") if words else None

    def __call__(self, text: str) -> str:
        spans = self._spans(text)
        if spans:
            parts, last = [], 0
            for start, end in spans:
                parts += [text[last:start], HIDDEN]
                last = end
            text = "".join([*parts, text[last:]])
        return self._short.sub(HIDDEN, text) if self._short else text

    def document(self, value: Any) -> Any:
        """The same for everything in a document of JSON. Names of ours stay, whatever somebody's secret is."""
        texts: list[str] = []
        _texts(value, texts)
        joined = "\0".join(texts)
        if not self._spans(joined, first=True) and not (self._short and self._short.search(joined)):
            return value
        return self._redacted(value)

    def _redacted(self, value: Any) -> Any:
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {key if _is_ours(key) else self(str(key)): self._redacted(part) for key, part in value.items()}
        return [self._redacted(part) for part in value] if isinstance(value, (list, tuple)) else value

    def _spans(self, text: str, first: bool = False) -> list[tuple[int, int]]:
        """Where secrets are, those that overlap as one; only whether there is any with ``first``."""
        heads = self._by_head
        if not heads:
            return []
        spans: list[tuple[int, int]] = []
        for start in range(len(text) - LONG_ENOUGH + 1):
            rows = heads.get(text[start : start + LONG_ENOUGH])
            if rows is None:
                continue
            end = next((start + len(form) for form in rows if text.startswith(form, start)), 0)
            if not end:
                continue
            if first:
                return [(start, end)]
            if spans and start <= spans[-1][1]:
                spans[-1] = spans[-1][0], max(end, spans[-1][1])
            else:
                spans.append((start, end))
        return spans


def _is_ours(key: Any) -> bool:
    return not isinstance(key, str) or (key.isascii() and key.replace("_", "").isalpha() and key.islower())


def _texts(value: Any, found: list[str]) -> None:
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, dict):
        for key, part in value.items():
            found.append(str(key))
            _texts(part, found)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _texts(part, found)
