# SPDX-License-Identifier: GPL-3.0-or-later
"""Generate the reference part of the documentation, so that it cannot say anything else than the code.

A hook of mkdocs: it adds one page per role from the role's argument_specs and defaults, and one per module and plugin
from its DOCUMENTATION, EXAMPLES and RETURN. On the other pages it puts

- `<!-- section: roles/x/README.md # Title -->`: that section of a README, without its heading,
- `<!-- systems -->`: the operating systems of the collection's own table,
- `<!-- stages -->`: the stages of a run, of the collection's own list,
- `<!-- examined -->`: what each role's README says of where it was run.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from ansible_collections.baremetal.gpu.plugins.plugin_utils.stages import STAGES

ROOT = Path(__file__).resolve().parents[1]

# A module of the collection, as a link from a page of the reference.
MODULE_LINK = (re.compile(r"\bM\(baremetal\.gpu\.(\w+)\)"), r"[\1](../modules/\1.md)")
# Ansible's semantic markup, as far as it is used here, in Markdown.
MARKUP = [
    (re.compile(r"\b[CVE]\(((?:[^()\\]|\\.|\([^()]*\))*)\)"), r"`\1`"),
    (re.compile(r"\b(?:O|RV)\((?:[\w.#]+:)?((?:[^()\\]|\\.|\([^()]*\))*)\)"), r"`\1`"),
    (re.compile(r"\b[MP]\(([^()#]+)(?:#\w+)?\)"), r"`\1`"),
    (re.compile(r"\bB\(([^()]*)\)"), r"**\1**"),
    (re.compile(r"\bI\(([^()]*)\)"), r"*\1*"),
    (re.compile(r"\bL\(([^(),]*),\s*([^()]*)\)"), r"[\1](\2)"),
    (re.compile(r"\bU\(([^()]*)\)"), r"<\1>"),
]


def prose(text: str | list[str], separator: str = "\n\n", links: bool = True) -> str:
    """A description as Markdown.

    :param links: to the pages of modules; otherwise these are named.
    """
    joined = separator.join([text] if isinstance(text, str) else text)
    for pattern, replacement in [*([MODULE_LINK] if links else []), *MARKUP]:
        joined = pattern.sub(replacement, joined)
    return joined.strip()


def in_cell(text: str) -> str:
    """Text as it may stand in a cell of a table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def value(anything: Any) -> str:
    """A default as one would write it in YAML."""
    written = yaml.safe_dump(anything, default_flow_style=True, width=1000, sort_keys=False).strip()
    return f"`{in_cell(written.removesuffix('...').strip())}`"


def type_of(spec: dict[str, Any]) -> str:
    elements = f" of {spec['elements']}" if "elements" in spec else ""
    return f"{spec.get('type', 'str')}{elements}"


def options_table(options: dict[str, Any], defaults: dict[str, Any], prefix: str = "", links: bool = True) -> list[str]:
    """Rows for options and, below each, for those inside it."""
    rows = []
    for name, spec in options.items():
        if name.startswith("_") and name != "_input":
            continue  # between an action plugin and its module
        about = prose(spec.get("description", ""), " ", links)
        if "choices" in spec:
            about += " One of " + ", ".join(value(choice) for choice in spec["choices"]) + "."
        if spec.get("required"):
            given = "**required**"
        elif not prefix and name in defaults:
            given = value(defaults[name])
        else:
            given = value(spec["default"]) if "default" in spec else ""
        rows.append(f"| `{prefix}{name}` | {type_of(spec)} | {given} | {in_cell(about)} |")
        inside = spec.get("options") or spec.get("suboptions") or {}
        inner = f"{prefix}{name}." if spec.get("type") == "dict" else f"{prefix}{name}[]."
        rows += options_table(inside, {}, inner, links)
    return rows


TABLE_HEAD = ["| name | type | default | meaning |", "| --- | --- | --- | --- |"]


def table(options: dict[str, Any], defaults: dict[str, Any] | None = None) -> str:
    if not options:
        return "None.\n"
    return "\n".join([*TABLE_HEAD, *options_table(options, defaults or {})]) + "\n"


def readme_of(role: Path) -> str:
    """What the role's README says, without its title and its list of variables, which the page has in full."""
    text = re.sub(r"^# .*\n", "", (role / "README.md").read_text())
    return re.sub(r"^## Variables\n.*?(?=^## |\Z)", "", text, flags=re.MULTILINE | re.DOTALL).strip()


def defaults_of(role: Path) -> dict[str, Any]:
    path = role / "defaults" / "main.yml"
    return (yaml.safe_load(path.read_text()) if path.exists() else None) or {}


def entry_points_of(role: Path) -> dict[str, dict[str, Any]]:
    """The role's argument specifications by entry point."""
    found: dict[str, dict[str, Any]] = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())
    return found["argument_specs"]


def role_page(role: Path) -> str:
    specs, defaults = entry_points_of(role), defaults_of(role)
    page = [f"# Role {role.name}\n", readme_of(role) + "\n"]
    for name, entry in specs.items():
        page.append("## Variables\n" if name == "main" else f"## Variables of the entry point {name}\n")
        if name != "main":
            page.append(prose(entry.get("short_description", "")) + ".\n")
        page.append(table(entry.get("options") or {}, defaults))
    return "\n".join(page)


def returned(values: dict[str, Any], prefix: str = "") -> list[str]:
    rows = []
    for name, spec in values.items():
        about = in_cell(prose(spec.get("description", ""), " "))
        rows.append(
            f"| `{prefix}{name}` | {type_of(spec)} | {in_cell(prose(str(spec.get('returned', ''))))} | {about} |"
        )
        rows += returned(
            spec.get("contains") or {}, f"{prefix}{name}." if spec.get("type") == "dict" else f"{prefix}{name}[]."
        )
    return rows


def constants_of(path: Path) -> dict[str, Any]:
    """The constants that a module assigns at its top, without importing it."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


# Directory below plugins/ and reference/ -> what one is called, and the heading of all.
KINDS = {
    "modules": ("Module", "Modules"),
    "inventory": ("Inventory plugin", "Inventory plugins"),
    "callback": ("Callback plugin", "Callback plugins"),
    "filter": ("Filter", "Filters"),
    "lookup": ("Lookup", "Lookups"),
    "test": ("Test", "Tests"),
}


def plugin_page(kind: str, path: Path) -> str:
    text = constants_of(path)
    doc = yaml.safe_load(text["DOCUMENTATION"])
    page = [
        f"# {KINDS[kind][0]} {path.stem}\n",
        prose(doc["short_description"]) + ".\n",
        prose(doc["description"]) + "\n",
    ]
    page += ["## Options\n", table(doc.get("options") or {})]
    if doc.get("extends_documentation_fragment"):
        fragments = ", ".join(f"`{name}`" for name in doc["extends_documentation_fragment"])
        page.append(
            f"And Ansible's own of {fragments}, which `ansible-doc -t {kind} baremetal.gpu.{path.stem}` shows.\n"
        )
    if doc.get("attributes"):
        page.append("## Attributes\n\n| attribute | support | meaning |\n| --- | --- | --- |")
        page += [
            f"| {name} | {spec.get('support', '')} | {in_cell(prose(spec.get('description', ''), ' '))} |"
            for name, spec in doc["attributes"].items()
        ]
        page.append("")
    for title in ("requirements", "notes"):
        if doc.get(title):
            page.append(f"## {title.capitalize()}\n\n" + "\n".join(f"- {prose(item)}" for item in doc[title]) + "\n")
    page.append("## Examples\n\n```yaml\n" + text["EXAMPLES"].strip() + "\n```\n")
    result = yaml.safe_load(text.get("RETURN") or "") or {}
    if result:
        page.append("## Return values\n\n| name | type | returned | meaning |\n| --- | --- | --- | --- |")
        page += [*returned(result), ""]
    return "\n".join(page)


def roles() -> list[Path]:
    return sorted(path.parent for path in (ROOT / "roles").glob("*/README.md"))


def plugins(kind: str) -> list[Path]:
    return sorted(path for path in (ROOT / "plugins" / kind).glob("*.py") if path.stem != "__init__")


def short(role: Path) -> str:
    return str(next(iter(entry_points_of(role).values())).get("short_description", ""))


def index_page() -> str:
    page = ["# Reference\n", "Generated from the code.\n", "## Roles\n"]
    page += [f"- [{role.name}](roles/{role.name}.md): {prose(short(role))}" for role in roles()]
    for kind, (_one, heading) in KINDS.items():
        page += ["", f"## {heading}\n"]
        for path in plugins(kind):
            doc = yaml.safe_load(constants_of(path)["DOCUMENTATION"])
            page.append(f"- [{path.stem}]({kind}/{path.stem}.md): {prose(doc['short_description'])}")
    return "\n".join(page) + "\n"


def pages() -> dict[str, str]:
    """Address in the documentation → content."""
    found = {"reference/index.md": index_page()}
    found.update({f"reference/roles/{role.name}.md": role_page(role) for role in roles()})
    found.update(
        {f"reference/{kind}/{path.stem}.md": plugin_page(kind, path) for kind in KINDS for path in plugins(kind)}
    )
    schemas = sorted((ROOT / "gpuops").glob("*/*.schema.json"))
    found.update({f"gpuops-{path.name}": path.read_text() for path in schemas})
    return found


def section(path: str, title: str) -> str:
    """A section of a Markdown file, without its heading."""
    parts = re.split(r"^## (.+)$", (ROOT / path).read_text(), flags=re.MULTILINE)
    try:
        return parts[parts.index(title) + 1].strip()
    except ValueError:
        raise ValueError(f"{path} has no section {title}") from None


def systems() -> str:
    """The operating systems, and what stands behind each."""
    levels = {
        "ci": "run in the lab, on every change",
        "hardware": "run in the lab, and on a machine with real GPUs",
        "documented": "written from documentation, not run",
    }
    supported = constants_of(ROOT / "plugins" / "module_utils" / "system" / "distributions.py")["SUPPORTED"]
    rows = [f"| {row['name']} | {levels[row['level']]} |" for row in supported.values()]
    return "\n".join(["| operating system | level |", "| --- | --- |", *rows])


def stages() -> str:
    """The stages of a run, with their tags and who goes through them."""
    rows = []
    for stage in STAGES:
        tags = ", ".join(f"`{tag}`" for tag in stage.tags)
        groups = ", ".join(f"`{group}`" for group in stage.groups)
        rows.append(f"| {stage.name} | {tags} | {groups} | {in_cell(stage.loss)} |")
    return "\n".join(
        ["| stage | tags | hosts of | a host that fails it is without |", "| --- | --- | --- | --- |", *rows]
    )


def examined() -> str:
    """Where each role was run, in its own words."""
    rows = []
    for role in roles():
        if "\n## Examined on\n" in (role / "README.md").read_text():
            words = section(f"roles/{role.name}/README.md", "Examined on")
            rows.append(f"| [{role.name}](reference/roles/{role.name}.md) | {in_cell(words)} |")
    return "\n".join(["| role | where |", "| --- | --- |", *rows])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    markdown = markdown.replace("<!-- systems -->", systems()).replace("<!-- examined -->", examined())
    markdown = re.sub(r"\(\.\./gpuops/\w+/(\w+\.schema\.json)\)", r"(gpuops-\1)", markdown)
    return re.sub(r"<!-- section: (\S+) # (.+?) -->", lambda match: section(match[1], match[2]), markdown)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for address, content in pages().items():
        files.append(File.generated(config, address, content=content))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the generated pages into the navigation."""
    sections: list[Any] = ["reference/index.md"]
    sections.append({"Roles": [f"reference/roles/{role.name}.md" for role in roles()]})
    for kind, (_one, heading) in KINDS.items():
        sections.append({heading: [f"reference/{kind}/{path.stem}.md" for path in plugins(kind)]})
    for entry in config.nav or []:
        if isinstance(entry, dict) and "Reference" in entry:
            entry["Reference"] = sections
    return config
