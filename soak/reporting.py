"""What a soak came to, as text for a terminal and as JSON for a file."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from soak.judging import Findings
from soak.plan import SoakPlan
from soak.samples import Sample, Trend, growing, trends

#: What the drain says of an attempt whose lease somebody else has: its result was refused.
FENCED: Final = "lease expired before the result was written"
#: A million sentences say no more than a few.
_SHOWN: Final = 10
#: What tells one line from another that says the same: ids, numbers, paths.
_ONE_OF_MANY: Final = re.compile(r"[0-9a-f]{32}|/[^ ]+|[0-9]+")
#: Without a kill there is time to see a trend from here on; shorter runs show their figures and judge none.
_TREND_FROM_S: Final = 600.0


@dataclass
class SoakReport:
    """One soak of one database; `problems` is what went wrong around the product's promises, a sentence each."""

    plan: SoakPlan
    findings: Findings
    counts: Counter[str]
    faults: Counter[str]
    kills: int
    took_s: float
    drained_s: float
    fenced: int
    complaints: Counter[str]
    exit_codes: Mapping[str, int | None]
    surprises: list[str]
    attempts: int
    samples: list[Sample]
    problems: list[str] = field(default_factory=list)

    @property
    def trends(self) -> list[Trend]:
        """How memory, descriptors and threads went, where nothing was killed; else nothing can be told."""
        return [] if self.plan.kills else trends(self.samples)

    @property
    def growing(self) -> list[Trend]:
        """What grew, in a run that was long enough to tell."""
        return growing(self.trends) if self.took_s >= _TREND_FROM_S else []

    @property
    def is_clean(self) -> bool:
        """Tell whether there is nothing to look at."""
        return self.findings.is_clean and not (self.surprises or self.problems or self.growing)

    def record(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "plan": self.plan.record(),
            "is_clean": self.is_clean,
            "took_s": round(self.took_s, 1),
            "drained_s": round(self.drained_s, 1),
            "requests": self.counts["requests"],
            "pages": self.counts["pages"],
            "asked_again": self.counts["asked again"],
            "acknowledged": self.counts["acknowledged"],
            "not_acknowledged": self.counts["not acknowledged"],
            "approved": self.counts["approved"],
            "sent": self.attempts,
            **{status: self.findings.counts[status] for status in ("exported", "failed", "blocked")},
            "kills": self.kills,
            "faults": dict(sorted(self.faults.items())),
            "lost": len(self.findings.lost),
            "wrong": len(self.findings.wrong),
            "forbidden": len(self.findings.forbidden),
            "repeated": self.findings.repeated.total(),
            "repeated_by_cause": dict(self.findings.repeated),
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


def tell(report: SoakReport) -> None:
    """Print what there is to know."""
    told = report.record()
    click.echo(
        f"\n{report.plan.database}, seed {report.plan.seed}: {told['took_s']:g} s, drained in {told['drained_s']:g} s"
    )
    _row(told, "requests", "pages", "asked_again", "acknowledged", "not_acknowledged", "approved")
    _row(told, "sent", "exported", "failed", "blocked", "repeated", "late", "worst_late_s", "fenced")
    _row(told, "kills", "lost", "wrong", "forbidden")
    for title, counted in (("gone wrong", told["faults"]), ("answers", told["answers"]), ("logged", told["complaints"])):
        if counted:
            click.echo(f"  {title}: " + ", ".join(f"{name} {count}" for name, count in counted.items()))
    for line in _growth(report):
        click.echo(f"  {line}")
    for line in _complaints(report):
        click.echo(f"  ! {line}")
    click.echo("  nothing lost" if report.is_clean else "  NOT CLEAN")


def _row(told: Mapping[str, Any], *names: str) -> None:
    click.echo("  " + "  ".join(f"{name.replace('_', ' ')} {told[name]:,}" for name in names))


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
    yield from (f"{name}: {sentence}" for sentence in sentences[:_SHOWN])
    if len(sentences) > _SHOWN:
        yield f"{name}: and {len(sentences) - _SHOWN} more."


def read_logs(paths: Iterable[Path]) -> tuple[int, Counter[str]]:
    """Return how many results were refused because a lease was lost, and how often each warning and error was logged.

    What is no line of the log's form counts as one.
    """
    complaints: Counter[str] = Counter()
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as lines:
            complaints.update(complaint for line in lines if (complaint := _complaint(line)) is not None)
    return complaints.pop(FENCED, 0), complaints


def _complaint(line: str) -> str | None:
    try:
        told = json.loads(line)
    except ValueError:
        return "(a line that is none of the log's)"
    if told.get("level") in {"info", "debug"}:
        return None
    if told.get("message") == FENCED:
        return FENCED
    return f"{told.get('level')}: {_ONE_OF_MANY.sub('*', str(told.get('message')))}"
