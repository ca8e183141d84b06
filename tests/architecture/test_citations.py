"""Every citation of the specification and of a decision leads somewhere.

A citation is `spec NAME REFS`: NAME is a page of docs/spec with the pages in its folder, REFS are sections
(`4.1 and 4.2`, `3 to 6`), items of a numbered list (`21.3` is item 3 of section 21) or numbered facts
(`SP-12`, `I7`). A decision is cited as `decision 010`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC_FOLDER = ROOT / "docs" / "spec"
SPEC = {
    path.stem: "\n".join(
        part.read_text(encoding="utf-8") for part in (path, *sorted((SPEC_FOLDER / path.stem).glob("*.md")))
    )
    for path in SPEC_FOLDER.glob("*.md")
}
DECISIONS = {path.name[:3] for path in (ROOT / "docs" / "decisions").glob("*.md")}
SOURCES = [
    path
    for folder in ("src", "tools", "tests")
    for path in (ROOT / folder).rglob("*.py")
    if path != Path(__file__)
]
DOCUMENTS = [path for path in (ROOT / "docs").rglob("*.md") if SPEC_FOLDER not in path.parents]

NAMES = "|".join(sorted(SPEC.keys() - {"README"}))
REF = r"(?:SP-\d+|[A-Z]\d+|\d+(?:\.\d+)*)(?!\w)"
CITATION = re.compile(rf"\b[Ss]pec ({NAMES})(?!\w)(?: ({REF}(?:(?:, | and | to | or ){REF})*))?")
UNNAMED = re.compile(
    rf"(?<![Ss]pec )(?<![\w./`-])(?:{NAMES}) (?=\d[\d.]*(?![\w.]| \*))|(?<!\w)SP-\d+|\bstyle \d|§"
)
DECISION = re.compile(r"\b(?<![Ss]pec )[Dd]ecision (\d+)(?:\]\([\w/.]*?(\d+)-)?")

HEADING = re.compile(r"##+ (\d+(?:\.\d+)*)[. ]")
NUMBERED = re.compile(r"\*\*(\d+(?:\.\d+)+) |(?:\| |- )?(SP-\d+) |\| ([A-Z]\d+) \|")
ITEM = re.compile(r"(\d+)\. ")
INTERNAL = re.compile(rf"`(?:docs/spec/)?({NAMES})\.md`,? (\d+(?:\.\d+)*)")


def flat(text: str) -> str:
    """One line: a citation may be broken where a line of a docstring or comment ends."""
    return re.sub(r"\s*\n\s*(?:#+ )?", " ", text)


def anchors(text: str) -> set[str]:
    """The numbered facts of a file of the specification."""
    found, section = set(), ""
    for line in text.splitlines():
        if match := HEADING.match(line):
            section = match[1]
            found.add(section)
        elif match := NUMBERED.match(line):
            found.update(filter(None, match.groups()))
        elif match := ITEM.match(line):
            found.add(f"{section}.{match[1]}")
    return found


ANCHORS = {name: anchors(text) for name, text in SPEC.items()}


def dead_citations(text: str) -> list[str]:
    dead = []
    for match in CITATION.finditer(text):
        refs = re.findall(REF, match[2] or "")
        dead += [f"{match[1]} {ref}" for ref in refs if ref not in ANCHORS[match[1]]]
    for match in DECISION.finditer(text):
        if match[1] not in DECISIONS or match[2] not in (None, match[1]):
            dead.append(match[0])
    rest = CITATION.sub("", text)
    return dead + [rest[match.start() : match.end() + 12] for match in UNNAMED.finditer(rest)]


@pytest.mark.parametrize("folder", ["src", "tools", "tests", "docs"])
def test_citations_lead_somewhere(folder: str) -> None:
    dead = {}
    for path in [*SOURCES, *DOCUMENTS]:
        if (name := str(path.relative_to(ROOT))).startswith(folder):
            dead[name] = dead_citations(flat(path.read_text(encoding="utf-8")))
    assert {name: found for name, found in dead.items() if found} == {}


def test_the_specification_cites_itself_rightly() -> None:
    dead = []
    for name, text in SPEC.items():
        dead += [
            f"{name}: {other} {ref}" for other, ref in INTERNAL.findall(text) if ref not in ANCHORS[other]
        ]
        for ref in re.findall(r"\bsections? (\d+(?:\.\d+)*)", text):
            if ref not in ANCHORS[name] and name != "README":
                dead.append(f"{name}: section {ref}")
        dead += [f"{name}: {ref}" for ref in re.findall(r"SP-\d+", text) if ref not in ANCHORS["spark"]]
    assert dead == []


def test_dead_citations_are_found() -> None:
    """Each form that is wrong, among some that are right."""
    text = flat(
        """Right: spec store 4 and 4.1, spec spark SP-12, SP-23; spec store 21.3, spec nameserver 3 to 6.
        # decision 010 is right, broken is (spec
        # store 99), store 5, spec store 4, 77, spec spark SP-999, style 8, decision 999, decision 10
        """
    )
    assert len(ANCHORS["store"]) > 30
    assert [re.split(r",|\)", found)[0] for found in dead_citations(text)] == [
        "store 99",
        "store 77",
        "spark SP-999",
        "decision 999",
        "decision 10",
        "store 5",
        "style 8",
    ]
