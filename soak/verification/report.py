"""The report of a soak, as text and as JSON."""

import json
import mmap
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from soak.plan import SoakPlan
from soak.verification.deliveries import Findings
from soak.verification.samples import Sample, Trend, growing, trends

#: Log message for a result that was discarded because the worker had lost its lease.
FENCED: Final = "lease expired before the result was written"
#: Maximum number of printed findings of each kind.
_MAX_PRINTED: Final = 10
#: Variable parts of log lines: ids, numbers, paths.
_VARIABLE_PART: Final = re.compile(r"[0-9a-f]{32}|/[^ ]+|[0-9]+")
#: Runs without kills that last this long check trends; shorter runs only print their figures.
_TREND_FROM_S: Final = 600.0


@dataclass
class SoakReport:
    """Report of one soak of one database; `problems` has a sentence for each other failure of the run."""

    plan: SoakPlan
    findings: Findings
    counts: Counter[str]
    faults: Counter[str]
    kills: int
    elapsed_s: float
    settled_s: float
    fenced: int
    complaints: Counter[str]
    exit_codes: Mapping[str, int | None]
    surprises: list[str]
    attempts: int
    samples: list[Sample]
    problems: list[str] = field(default_factory=list)

    @property
    def trends(self) -> list[Trend]:
        """Trends of memory, descriptors and threads; none in a run with kills."""
        return [] if self.plan.kills else trends(self.samples)

    @property
    def growing(self) -> list[Trend]:
        """Figures that grew, in a run long enough for a trend."""
        return growing(self.trends) if self.elapsed_s >= _TREND_FROM_S else []

    @property
    def is_clean(self) -> bool:
        """Return whether the run found no problem."""
        return self.findings.is_clean and not (self.surprises or self.problems or self.growing)

    def record(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "plan": self.plan.record(),
            "is_clean": self.is_clean,
            "took_s": round(self.elapsed_s, 1),
            "settled_s": round(self.settled_s, 1),
            "requests": self.counts["requests"],
            "pages": self.counts["pages"],
            "asked_again": self.counts["retried"],
            "acknowledged": self.counts["acknowledged"],
            "not_acknowledged": self.counts["not acknowledged"],
            "approved": self.counts["approved"],
            "approved_by_rule": self.counts["approved by a rule"],
            "bulk_jobs": self.counts["bulk jobs"],
            "sent": self.attempts,
            "scans": self.counts["scans"],
            "events": self.findings.events,
            "events_sent": self.findings.events_sent,
            **{status: self.findings.counts[status] for status in ("exported", "failed", "blocked")},
            "kills": self.kills,
            "faults": dict(sorted(self.faults.items())),
            "lost": len(self.findings.lost),
            "wrong": len(self.findings.wrong),
            "forbidden": len(self.findings.forbidden),
            "repeated": self.findings.repeated.total(),
            "repeated_by_cause": dict(self.findings.repeated),
            "issues": self.findings.tracked["issue"],
            "issues_twice": self.findings.issues_twice,
            "creates": self.findings.tracked["create"],
            "lookups": self.findings.tracked["lookup"],
            "late": self.findings.late,
            "worst_late_s": round(self.findings.worst_late_ms / 1000, 1),
            "fenced": self.fenced,
            "answers": {name: count for name, count in sorted(self.counts.items()) if name.startswith("status ")},
            "exit_codes": dict(self.exit_codes),
            "complaints": dict(self.complaints.most_common()),
            "surprises": self.surprises,
            "problems": self.problems,
            "found": {name: getattr(self.findings, name)[:100] for name in ("lost", "wrong", "forbidden")},
            "trends": [{**asdict(trend), "is_flat": trend.is_flat} for trend in self.trends],
            "samples": self.samples,
        }


def print_report(report: SoakReport) -> None:
    """Print the report."""
    record = report.record()
    click.echo(
        f"\n{report.plan.database}, seed {report.plan.seed}: {record['took_s']:g} s, settled in {record['settled_s']:g} s"
    )
    _row(record, "requests", "pages", "asked_again", "acknowledged", "not_acknowledged", "approved")
    _row(record, "approved_by_rule", "bulk_jobs")
    _row(record, "sent", "exported", "failed", "blocked", "repeated", "late", "worst_late_s", "fenced")
    _row(record, "issues", "issues_twice", "creates", "lookups")
    _row(record, "scans", "events", "events_sent")
    _row(record, "kills", "lost", "wrong", "forbidden")
    for title, counted in (
        ("gone wrong", record["faults"]),
        ("answers", record["answers"]),
        ("logged", record["complaints"]),
    ):
        if counted:
            click.echo(f"  {title}: " + ", ".join(f"{name} {count}" for name, count in counted.items()))
    for line in _growth(report):
        click.echo(f"  {line}")
    for line in _complaints(report):
        click.echo(f"  ! {line}")
    click.echo("  nothing lost" if report.is_clean else "  NOT CLEAN")


def _row(record: Mapping[str, Any], *names: str) -> None:
    click.echo("  " + "  ".join(f"{name.replace('_', ' ')} {record[name]:,}" for name in names))


def _growth(report: SoakReport) -> Iterator[str]:
    for trend in sorted(report.trends, key=lambda each: (each.process, each.figure)):
        verdict = "flat" if trend.is_flat else "GROWING"
        yield (
            f"{trend.process:18} {trend.figure:12} {trend.first:9.1f} -> {trend.second:9.1f} "
            f"({trend.slope_per_hour:+.2f} an hour, highest {trend.highest:.1f}) {verdict}"
        )
    counted = [sample for sample in report.samples if sample.get("database")]
    if counted and not report.plan.kills:
        first, last = counted[0]["database"], counted[-1]["database"]
        done = max(1, counted[-1]["done"] - counted[0]["done"])
        yield f"database {first['bytes'] / 1e6:.1f} MB -> {last['bytes'] / 1e6:.1f} MB"
        yield "rows an approval: " + ", ".join(
            f"{table} {(count - first['rows'].get(table, 0)) / done:.2f}" for table, count in last["rows"].items()
        )


def _complaints(report: SoakReport) -> Iterator[str]:
    for name in ("lost", "wrong", "forbidden"):
        yield from _few(name, getattr(report.findings, name))
    yield from _few("surprise", report.surprises)
    yield from _few("problem", report.problems)


def _few(name: str, sentences: list[str]) -> Iterator[str]:
    yield from (f"{name}: {sentence}" for sentence in sentences[:_MAX_PRINTED])
    if len(sentences) > _MAX_PRINTED:
        yield f"{name}: and {len(sentences) - _MAX_PRINTED} more."


def read_logs(paths: Iterable[Path]) -> tuple[int, Counter[str]]:
    """Return the number of results discarded after a lost lease, and counts of warnings and errors by message.

    A line that is not in the log's JSON format counts as a complaint.
    """
    complaints: Counter[str] = Counter()
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as lines:
            complaints.update(complaint for line in lines if (complaint := _complaint(line)) is not None)
    return complaints.pop(FENCED, 0), complaints


def contains(path: Path, text: str) -> bool:
    """Return whether a file contains `text`; a folder contains none."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text.encode()) >= 0


def _complaint(line: str) -> str | None:
    try:
        record = json.loads(line)
    except ValueError:
        return "(a line that is none of the log's)"
    if record.get("level") in {"info", "debug"}:
        return None
    if record.get("message") == FENCED:
        return FENCED
    return f"{record.get('level')}: {_VARIABLE_PART.sub('*', str(record.get('message')))}"
