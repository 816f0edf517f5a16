# SPDX-License-Identifier: GPL-3.0-or-later
"""Whoever reads JSON and expects that it is none also expects that it is nested too deeply, which is another error."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.project.tree import ROOT

WHERE = ("plugins", "gpuops", "roles")
# Each has RecursionError in it.
ENOUGH = {"RecursionError", "MISSHAPEN", "Exception", "BaseException"}


def _reads_json(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("load", "loads")
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "json"
    )


def lacking(source: str) -> Iterator[int]:
    """The lines of readers that a deep document ends."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.Try, ast.With)):
            continue
        if not any(_reads_json(one) for part in node.body for one in ast.walk(part)):
            continue
        if isinstance(node, ast.Try):
            kinds = [handler.type or ast.Name("BaseException") for handler in node.handlers]
        else:
            kinds = [item.context_expr for item in node.items]
        caught = {
            name.id if isinstance(name, ast.Name) else name.attr
            for kind in kinds
            for name in ast.walk(kind)
            if isinstance(name, (ast.Name, ast.Attribute))
        }
        if "ValueError" in caught and not caught & ENOUGH:
            yield node.lineno


@pytest.mark.parametrize("top", WHERE)
def test_a_deep_document_is_refused_like_one_that_is_none(top: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(Path(ROOT, top).rglob("*.py"))
        for line in lacking(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_such_a_reader_is_found() -> None:
    source = "try:\n    json.loads(x)\nexcept {}:\n    pass\n"
    assert list(lacking(source.format("ValueError"))) == [1]
    assert list(lacking(source.format("(OSError, ValueError)"))) == [1]
    assert list(lacking(source.format("(OSError, ValueError, RecursionError)"))) == []
    assert list(lacking(source.format("(OSError, *bounded_json.MISSHAPEN)"))) == []
    assert list(lacking(source.format("OSError"))) == []
    assert list(lacking("with contextlib.suppress(ValueError):\n    json.loads(x)\n")) == [1]
