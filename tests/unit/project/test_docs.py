# SPDX-License-Identifier: GPL-3.0-or-later
"""The documentation builds, leads somewhere, and its examples are not made up."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer
import yaml

from gpuops.cli import app as gpuops
from tests.lab.machines.cli import app as lab
from tests.unit.project.tree import BIN, ROOT, role_names, run, tracked, try_run

PAGES = [*tracked("docs", ".md"), Path("README.md"), *(Path("roles") / role / "README.md" for role in role_names())]
BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)


def blocks(language: str) -> list:
    found = []
    for page in PAGES:
        for match in BLOCK.finditer((ROOT / page).read_text()):
            if match["language"] == language:
                code = re.sub(rf"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
                found.append(pytest.param(code, id=f"{page}:{match.string.count(chr(10), 0, match.start()) + 1}"))
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built documentation."""
    out = tmp_path_factory.mktemp("site")
    run(sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", out, NO_MKDOCS_2_WARNING="1")
    return out


def test_every_role_and_module_has_a_reference_page(site):
    for role in role_names():
        assert (site / "reference" / "roles" / f"{role}.html").is_file()
    for module in tracked("plugins/modules", ".py"):
        assert (site / "reference" / "modules" / f"{module.stem}.html").is_file()


@pytest.mark.parametrize("schema", tracked("gpuops", ".schema.json"), ids=str)
def test_each_schema_of_the_command_is_published(schema, site):
    assert (site / f"gpuops-{schema.name}").read_text() == (ROOT / schema).read_text()


def test_no_markup_of_ansible_is_left(site):
    for page in (site / "reference").rglob("*.html"):
        article = page.read_text().split("<article")[1].split("</article")[0]
        left = re.findall(r"\b(?:[BCEILMOPUV]|RV)\([^)]*\)", re.sub(r"<pre.*?</pre>", "", article, flags=re.DOTALL))
        assert not left, f"{page.name}: {left}"


def test_every_page_is_in_the_navigation():
    nav = yaml.safe_dump(yaml.safe_load(re.sub(r"!!\S+", "", (ROOT / "mkdocs.yml").read_text()))["nav"])
    assert not [page.name for page in tracked("docs", ".md") if page.name not in nav]


class Loaded(HTMLParser):
    """Addresses that a browser asks when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "img", "iframe"):
            self.addresses.append(values.get("src") or "")
        if tag == "link" and values.get("rel") in ("stylesheet", "preconnect", "icon"):
            self.addresses.append(values.get("href") or "")


def test_pages_can_be_read_without_a_network(site):
    parser = Loaded()
    for page in site.rglob("*.html"):
        parser.feed(page.read_text())
    assert parser.addresses
    assert not [address for address in parser.addresses if "//" in address]


@pytest.mark.parametrize("page", [page for page in PAGES if page.parts[0] != "docs"], ids=str)
def test_links_of_pages_outside_docs_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        if not re.match(r"[a-z]+:|#", target):
            assert ((ROOT / page).parent / target.split("#")[0]).exists(), f"{page} links to {target}"


@pytest.mark.parametrize("code", [*blocks("yaml"), *blocks("json")])
def test_data_examples_are_valid(code: str):
    """JSON is YAML too."""
    assert yaml.safe_load(code) is not None


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def commands(code: str) -> list[list[str]]:
    """Command lines of a console example, without what they print."""
    joined = re.sub(r"\\\n", " ", code)
    return [shlex.split(line, comments=True) for line in joined.splitlines() if line.strip()]


@pytest.mark.parametrize("code", blocks("console"))
def test_console_examples_call_what_is_there(code: str):
    lines = commands(code)
    assert lines
    for words in lines:
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        name = words[0].rsplit("/", 1)[-1]
        if name == "make":
            assert {word for word in words[1:] if "=" not in word} <= make_targets(), words
        elif name == "gpuops":
            check_command("gpuops", gpuops, words[1:])
        elif words[0] == "tools/lab":
            check_command("tools/lab", lab, words[1:])
        elif name.startswith("ansible"):
            check_ansible(name, words)
        else:
            assert name in COMMON or (ROOT / words[0]).is_file() or (BIN / name).is_file(), f"what is {name}?"


COMMON = {
    ".",
    "cd",
    "export",
    "sbatch",
    "squeue",
    "srun",
    "cp",
    "git",
    "python3",
    "ssh",
    "ssh-keygen",
    "sudo",
    "docker",
    "podman",
    "rsync",
    "skopeo",
    "cat",
    "chown",
    "systemctl",
    "dkms",
    "dpkg",
    "amtool",
    "apt-get",
    "echo",
    "mke2fs",
    "mkdir",
    "module",
    "mount",
    "nvcc",
    "kubeadm",
    "kubectl",
}


def check_command(name: str, app: typer.Typer, words: list[str]) -> None:
    """Every word up to the first option or argument is a sub-command."""
    command = typer.main.get_command(app)
    for word in words:
        known = getattr(command, "commands", None)
        if known is None:
            return
        if word.startswith("-"):
            assert word in {option for parameter in command.params for option in parameter.opts} | {"--help"}, words
            return
        assert word in known, f"{name} has no command {' '.join(words)}"
        command = known[word]


def check_ansible(name: str, words: list[str]) -> None:
    """Playbooks, inventories and modules that a command names are there."""
    assert (BIN / name).is_file(), name
    for word in words[1:]:
        collection = re.fullmatch(r"baremetal\.gpu\.(\w+)", word)
        if collection:
            thing = collection[1]
            places = [
                ROOT / "playbooks" / f"{thing}.yml",
                *ROOT.glob(f"plugins/*/{thing}.py"),
                ROOT / "roles" / thing,
            ]
            assert any(place.exists() for place in places), f"there is no {word}"
        elif word.startswith(("playbooks/", "inventories/")) and "mysite" not in word:
            assert (ROOT / word).exists(), f"there is no {word}"


def test_readme_shows_only_make_targets_that_are_there():
    shown = re.findall(r"`make ([a-z-]+)`", "".join((ROOT / page).read_text() for page in PAGES))
    assert shown
    assert set(shown) <= make_targets()


def test_every_make_target_is_listed_by_help():
    listed = set(re.findall(r"^([a-z-]+) ", run("make", "--no-print-directory", "help"), re.MULTILINE))
    assert listed == make_targets()


def test_make_runs_something_for_every_target():
    done = try_run(["make", "--dry-run", "--always-make", *sorted(make_targets())])
    assert done.returncode == 0, done.stderr
    for script in re.findall(r"^(\S+/\S+)", done.stdout, re.MULTILINE):
        if not script.startswith(".venv"):
            assert (ROOT / script).is_file(), script


def codes_made(path: Path) -> set[str]:
    """Codes that a file gives to problems and cautions: the strings in the first argument."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "problem",
            "caution",
        ):
            first = [node.args[0].body, node.args[0].orelse] if isinstance(node.args[0], ast.IfExp) else [node.args[0]]
            found |= {part.value for part in first if isinstance(part, ast.Constant)}
    return found


def test_preflight_codes_are_all_documented():
    parts = ROOT.joinpath("plugins", "module_utils", "preflight").glob("*.py")
    sources = [path.relative_to(ROOT) for path in parts] + [Path("plugins/module_utils/gpu/compatibility.py")]
    made = set().union(*map(codes_made, sources))
    readme = (ROOT / "roles" / "gpu_preflight" / "README.md").read_text().split("## Codes")[1].split("## ")[0]
    named = {code for row in re.findall(r"^\| (`.+?) \|", readme, re.MULTILINE) for code in re.findall(r"`(\w+)`", row)}
    assert made
    assert made == named, f"not in the README: {sorted(made - named)}; not in the code: {sorted(named - made)}"
