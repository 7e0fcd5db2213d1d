"""Every place where something sealed is kept, and what it is bound to there: `table|row|purpose`.

What is not named here would stay behind when keys are rotated; a test compares these places with the tables.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Place:
    """A sealed column of a table whose rows are known by `key`."""

    table: str
    key: str
    column: str
    purpose: str

    def context(self, row_id: str) -> str:
        """Return what is sealed in this column of that row is bound to: copied elsewhere it does not open."""
        return f"{self.table}|{row_id}|{self.purpose}"


TARGET_SECRET: Final = Place("targets", "id", "secret_sealed", "signing secret")
SHARED_SECRET: Final = Place("integration_secrets", "name", "secret_sealed", "shared secret")
SUBJECT: Final = Place("compliance_requests", "id", "subject_sealed", "subject")
REPORT: Final = Place("compliance_requests", "id", "report_sealed", "report")
CANARY: Final = Place("installation", "id", "key_canary", "canary")

#: All but the canary, which tells whether the rest opens and is sealed anew when all of it is.
SEALED: Final = (TARGET_SECRET, SHARED_SECRET, SUBJECT, REPORT)
