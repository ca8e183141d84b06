"""The rules of the house: short functions, few parameters, names used once, no import circles; a unit test is
named after the module that it tests.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tandemmq"
LINES_MAX = 60
PARAMETERS_MAX = 8

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Facts:
    """The facts of a module that the rules need. Its syntax tree is not kept: those of the whole package are
    millions of objects, which each garbage collection of later tests would visit.
    """

    functions: dict[str, tuple[int, int]]
    """The lines and parameters of each function, by its place."""
    classes: tuple[str, ...]
    imports: frozenset[tuple[str, str]]
    """Each imported module, and the name that is taken from it or an empty string."""


@functools.cache
def _modules() -> dict[str, Facts]:
    """Returns the facts of each module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        module = ".".join(parts).removesuffix(".__init__")
        found[module] = _facts(module, ast.parse(path.read_text()))
    return found


def _facts(module: str, tree: ast.Module) -> Facts:
    functions, classes, imports = {}, [], set()
    for node in ast.walk(tree):
        if isinstance(node, FunctionNode):
            lines = (node.end_lineno or 0) - node.lineno + 1
            functions[f"{module}: {node.name}, line {node.lineno}"] = (lines, _parameter_count(node))
        elif isinstance(node, ast.ClassDef):
            classes.append(node.name)
        elif isinstance(node, ast.Import):
            imports |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports |= {(node.module, alias.name) for alias in node.names}
    return Facts(functions, tuple(classes), frozenset(imports))


def _parameter_count(node: FunctionNode) -> int:
    """Returns the number of parameters without `self` and `cls`."""
    names = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return len(names) - (bool(names) and names[0].arg in ("self", "cls"))


def _functions() -> dict[str, tuple[int, int]]:
    return {place: sizes for facts in _modules().values() for place, sizes in facts.functions.items()}


def test_functions_fit_on_a_screen() -> None:
    assert {place: lines for place, (lines, _) in _functions().items() if lines > LINES_MAX} == {}


def test_functions_have_few_parameters() -> None:
    assert {place: count for place, (_, count) in _functions().items() if count > PARAMETERS_MAX} == {}


def test_class_names_are_used_once() -> None:
    owners = defaultdict(list)
    for module, facts in _modules().items():
        for name in facts.classes:
            owners[name].append(module)
    assert {name: modules for name, modules in owners.items() if len(modules) > 1} == {}


def _imported(module: str, facts: Facts) -> set[str]:
    """Returns the modules of the package that this one imports anywhere, also for its types only."""
    found = set()
    for source, name in facts.imports:
        full = f"{source}.{name}"
        found.add(full if full in _modules() else source)
    return found & _modules().keys() - {module}


def test_modules_import_each_other_in_one_direction() -> None:
    graph = {module: _imported(module, facts) for module, facts in _modules().items()}
    # A package's own file re-exports names of its modules.
    for module, imported in graph.items():
        graph[module] = {name for name in imported if not name.startswith(f"{module}.")}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle of imports: {' -> '.join(error.args[1])}") from None


WHOLE_PART = {"test_client_decisions", "test_client_waiting", "test_java_vectors"}
"""Unit tests of rules that several modules of their part share."""


def _module_names(part: str) -> set[str]:
    """Returns the names of the modules and folders of a part of the package."""
    paths = [path.relative_to(PACKAGE / part) for path in (PACKAGE / part).rglob("*.py")]
    return {path.stem for path in paths} | {folder for path in paths for folder in path.parts[:-1]}


@pytest.mark.parametrize(
    "part",
    sorted(
        {path.name for path in (ROOT / "tests" / "unit").iterdir() if (PACKAGE / path.name).is_dir()}
        - {"bench"}
    ),
)
def test_unit_tests_are_named_after_their_module(part: str) -> None:
    """A name is `test_`, the part if the rest is ambiguous, the module or its folder, and the subject."""
    names = _module_names(part)
    stray = []
    for path in (ROOT / "tests" / "unit" / part).rglob("test_*.py"):
        name = path.stem.removeprefix("test_")
        candidates = (name, name.removeprefix(f"{part}_"), name.removeprefix(f"{part.removesuffix('s')}_"))
        is_named = any(f"{one}_".startswith(f"{module}_") for one in candidates for module in names)
        if not is_named and path.stem not in WHOLE_PART:
            stray.append(path.name)
    assert stray == []
