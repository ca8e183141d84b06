"""The hooks of `make docs`: the navigation, links that leave docs/, the pages of the API. MkDocs calls them.

Strategy:   documents are written for the repository, so a link names a file of the repository. The link leads
            to the page of the file if there is one, otherwise to the repository; a file that does not exist
            fails the build. Pages of the API list what `__all__` of the public modules names, so a name
            that is gone fails the build as well.
Invariants: every page of docs/ is in the navigation: a folder `NAME/` follows its page `NAME.md`, and pages
            that no section names are in the last one.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tandemmq.spark.commitlog import LOG_OPTION_TABLE
from tandemmq.spark.option_table import render_option_table
from tandemmq.spark.options import OPTION_TABLE
from tandemmq.spark.sink.options import SINK_OPTION_TABLE

ROOT: Final = Path(__file__).parents[1]
REPOSITORY: Final = "https://github.com/tandemmq/tandemmq"

ROOT_PAGES: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "examples/README.md": "examples.md",
}
"""Documents outside docs/ that have a page, by their path in the repository."""

SECTIONS: Final = {
    "Develop": ("client", "testing", "coming-from-kafka", "public-api"),
    "Spark": ("spark", "examples"),
    "Operate": (
        "cli",
        "operations",
        "console",
        "mcp",
        "proxy",
        "settings",
        "durability",
        "security",
        "compatibility",
        "interop",
    ),
    "API reference": ("api",),
    "Design": ("architecture", "states", "bounds", "glossary", "simulation", "spec", "decisions"),
    "Evidence": ("performance", "benchmarks", "costs", "proofs", "evidence"),
    "Project": ("roadmap", "changelog", "contributing", "security-policy", "code-of-conduct"),
}
"""The sections of the navigation: names of pages or folders."""

API: Final = {
    "api/client": ("Client", ("tandemmq.client.*", "tandemmq.client.otel")),
    "api/testing": (
        "Tests",
        ("tandemmq.testing.*", "tandemmq.pytest_plugin", "tandemmq.pytest_async_fixtures"),
    ),
    "api/errors": ("Errors", ("tandemmq.errors",)),
    "api/spark": (
        "Spark",
        (
            "tandemmq.spark.session.build_session",
            "tandemmq.spark.lake.sink.LakeSink",
            "tandemmq.spark.pipelines.rollup.read_rollup",
            "tandemmq.spark.pipelines.history.history",
            "tandemmq.spark.offsets.measure_lag",
        ),
    ),
}
"""The pages of the API: title and objects; `.*` stands for the names of `__all__`."""

SPARK_OPTIONS: Final = {
    "Options of the source `tandemmq`": OPTION_TABLE,
    "Options of the sink `tandemmq`": SINK_OPTION_TABLE,
    "Options of the source `commitlog`": LOG_OPTION_TABLE,
}

_LINK: Final = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s#]+)((?:#[^)\s]*)?\))")
_ITEM: Final = re.compile(r"( *)(?:[-*]|\d+\.) ")
_TABLE_RULE: Final = re.compile(r"\|?\s*:?-+:?\s*\|")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in docs/, and sets the navigation."""
    for source, uri in ROOT_PAGES.items():
        if files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, content=(ROOT / source).read_text(encoding="utf-8")))
    for name, (title, objects) in API.items():
        parts = [f"# {title}", *(f"::: {one}" for one in _expand(objects))]
        if name == "api/spark":
            parts += (
                f"## {heading}\n\n{render_option_table(table)}" for heading, table in SPARK_OPTIONS.items()
            )
        text = "\n\n".join(parts) + "\n"
        files.append(File.generated(config, f"{name}.md", content=text))
    config.nav = _navigation(sorted(file.src_uri for file in files.documentation_pages()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the links of a page, and separates lists and tables as GitHub does not require it."""
    uri = page.file.src_uri
    if uri.removesuffix(".md") in API:
        return markdown
    sources = {target: source for source, target in ROOT_PAGES.items()}
    source = sources.get(uri, f"docs/{uri}")
    lines = [
        # The documents have no links by reference: brackets behind brackets are text.
        line
        if is_code
        else _LINK.sub(lambda match: _relink(match, source, uri, files), line).replace("][", "]\\[")
        for line, is_code in _lines(markdown)
    ]
    return "\n".join(_separated(lines))


def _expand(objects: Iterable[str]) -> Iterator[str]:
    for name in objects:
        if not name.endswith(".*"):
            yield name
            continue
        module = name.removesuffix(".*")
        path = ROOT / "src" / module.replace(".", "/") / "__init__.py"
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                yield from (f"{module}.{one}" for one in ast.literal_eval(node.value))


def _navigation(uris: list[str]) -> list[Any]:
    """Returns the sections; each page is in one of them."""
    rest = dict.fromkeys(uris)
    rest.pop("index.md", None)
    sections: list[Any] = [{"TandemMQ": "index.md"}]
    for title, names in SECTIONS.items():
        pages = [page for name in names for page in _pages_of(name, rest)]
        for page in pages:
            for uri in _uris_in(page):
                rest.pop(uri, None)
        if len(pages) == 1 and isinstance(pages[0], dict):
            (pages,) = pages[0].values()  # the section is one folder
        if pages:
            sections.append({title: pages})
    if rest:
        sections.append({"More": list(rest)})
    return sections


def _pages_of(name: str, uris: Iterable[str]) -> list[Any]:
    """Returns the page of this name, if there is one, and the pages of the folder of this name."""
    own = f"{name}.md"
    inside = [uri for uri in uris if uri.startswith(f"{name}/")]
    # The page that introduces a folder is its first one.
    inside.sort(key=lambda uri: (uri.rpartition("/")[2] not in ("README.md", "index.md"), uri))
    if not inside:
        return [own] if own in uris else []
    introduction = [own] if own in uris else []
    title = name.rpartition("/")[2].replace("-", " ").capitalize()
    folder: list[Any] = []
    for uri in inside:
        stem = uri.removesuffix(".md")
        parent = posixpath.dirname(uri)
        if parent != name and f"{parent}.md" in inside:
            continue  # listed behind the page of that folder
        folder.extend(_pages_of(stem, inside) if any(one.startswith(f"{stem}/") for one in inside) else [uri])
    return [{title: introduction + folder}]


def _uris_in(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for pages in entry.values():
            for page in pages:
                yield from _uris_in(page)


def _relink(match: re.Match[str], source: str, uri: str, files: Files) -> str:
    """Returns the link of a document, as its page needs it."""
    opening, target, end = match.groups()
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    page = ROOT_PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
    if page and files.get_file_from_path(page) is not None:
        return f"{opening}{posixpath.relpath(page, posixpath.dirname(uri) or '.')}{end}"
    if not (ROOT / path).exists():
        raise PluginError(f"{source}: the link {target} leads to no file of the repository")
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{opening}{REPOSITORY}/{kind}/main/{path}{end}"


def _lines(markdown: str) -> Iterator[tuple[str, bool]]:
    """Yields the lines, each with True if it belongs to a block of code."""
    is_code = False
    for line in markdown.split("\n"):
        is_fence = line.lstrip().startswith("```")
        yield line, is_code or is_fence
        if is_fence:
            is_code = not is_code


def _separated(lines: list[str]) -> Iterator[str]:
    """Yields the lines with an empty one before each list and table, and inner lists indented by four."""
    before, is_list = "", False
    for number, (line, is_code) in enumerate(_lines("\n".join(lines))):
        if not is_code:
            item = _ITEM.match(line)
            follows = lines[number + 1] if number + 1 < len(lines) else ""
            is_table = line.startswith("|") and not before.startswith("|") and _TABLE_RULE.match(follows)
            if before.strip() and (is_table or (item and not item[1] and not is_list)):
                yield ""
            if item and 0 < len(item[1]) < 4 and is_list:
                line = "    " + line.lstrip()
            is_list = bool(item) or (
                is_list and (line.startswith(" ") or bool(line.strip() and before.strip()))
            )
        yield line
        before = line


class PlainDocstrings(griffe.Extension):
    """Makes Markdown of the lists of our docstrings: a name or a heading, two spaces, text that may continue
    below itself.
    """

    _ENTRY: Final = re.compile(r"( *)([A-Za-z_][\w, ]*?[:,]?) {2,}(\S.*)")

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Shows the methods of the blocking clients, `send = blocking(Producer.send)`, as functions."""
        homes = (pkg[name] for name in ("client.blocking_clients", "testing.blocking"))
        for facade in (one for home in homes for one in home.classes.values()):
            for name, member in list(facade.attributes.items()):
                made = re.fullmatch(r"blocking\((\w+)\.(\w+)\)", str(member.value))
                if made is None:
                    continue
                method = pkg.modules_collection[facade.resolve(made[1])].members[made[2]]
                function = griffe.Function(name, lineno=member.lineno, parameters=method.parameters)
                function.returns, function.docstring = method.returns, member.docstring
                facade.set_member(name, function)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = "\n".join(self._markdown(obj.docstring.value.split("\n")))

    def _markdown(self, lines: list[str]) -> Iterator[str]:
        column = None  # at which the text of the entry continues
        for line in lines:
            entry = self._ENTRY.fullmatch(line)
            indent = len(line) - len(line.lstrip())
            if entry and len(entry[1]) < 4 and (column is None or indent < column):
                if column is None:
                    yield ""
                column = entry.start(3)
                name = entry[2]
                yield f"- **{name}** {entry[3]}" if name.endswith(":") else f"- `{name}`: {entry[3]}"
            elif column is not None and line.strip() and indent == column:
                yield "  " + line.strip()
            elif column is not None and line.strip() and not indent and re.fullmatch(r"\w+,?", line):
                yield f"- `{line}`"
            else:
                if column is not None:
                    yield ""
                column = None
                yield line
