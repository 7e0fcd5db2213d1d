"""Which formats are read, and the table of what their severities become; docs/scanners.md shows it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from bin.scan_import import lighthouse, nuclei, sarif, wapiti, zap
from bin.scan_import.document import Node, UnreadableReport, read
from bin.scan_import.issues import Flaw


@dataclass(frozen=True, slots=True)
class Format:
    """One format: what a person calls it, how it is told from others and read, and what becomes of its severities."""

    title: str
    looks_so: Callable[[Any], bool]
    flaws: Callable[[Node], Iterable[Flaw]]
    severities: tuple[tuple[str, str], ...]
    may_be_lines: bool = False


FORMATS: Final = {
    "zap": Format("ZAP", zap.looks_so, zap.flaws, tuple((f"riskcode {code}", to) for code, to in zap.SEVERITIES.items())),
    "lighthouse": Format(
        "Lighthouse",
        lighthouse.looks_so,
        lighthouse.flaws,
        (
            *((f"impact {impact}", to) for impact, to in lighthouse.SEVERITIES.items()),
            *((words, to) for words, _, to in lighthouse.SCORES),
        ),
    ),
    "nuclei": Format("Nuclei", nuclei.looks_so, nuclei.flaws, tuple(nuclei.SEVERITIES.items()), may_be_lines=True),
    "wapiti": Format(
        "Wapiti", wapiti.looks_so, wapiti.flaws, tuple((f"level {level}", to) for level, to in wapiti.SEVERITIES.items())
    ),
    "sarif": Format(
        "SARIF",
        sarif.looks_so,
        sarif.flaws,
        (
            *((words, to) for words, _, to in sarif.SCORES),
            *((f"level {level}", to) for level, to in sarif.SEVERITIES.items()),
        ),
    ),
}


def flaws_in(content: bytes, name: str) -> list[Flaw]:
    """Return the flaws of a report in the format `name`, all of it read and checked. Raises UnreadableReport."""
    asked = FORMATS[name]
    report = read(content, may_be_lines=asked.may_be_lines)
    if not (asked.looks_so(report.value) or (asked.may_be_lines and report.value == [])):
        raise UnreadableReport(_other(report.value, asked))
    return list(asked.flaws(report))


def severity_table() -> str:
    """Return the table of severities, in Markdown."""
    rows = [f"| {each.title} | {said} | {becomes} |" for each in FORMATS.values() for said, becomes in each.severities]
    return "\n".join(["| report | says | the ticket's severity |", "|---|---|---|", *rows])


def _other(value: Any, asked: Format) -> str:
    found = next(_recognised(value), None)
    if found is None:
        return f"This does not look like a {asked.title} report, nor like any other that is read."
    return f"This looks like a {FORMATS[found].title} report: --format {found} reads it."


def _recognised(value: Any) -> Iterator[str]:
    return (name for name, each in FORMATS.items() if each.looks_so(value))
