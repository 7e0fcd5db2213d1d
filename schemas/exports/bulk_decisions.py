"""One decision on many exports: the exports that a caller names, and the result for each."""

from dataclasses import dataclass
from typing import Any, Final

from schemas.base.errors import RiskRelayError
from schemas.exports.state_machine import ExportStatus

#: An export that changed after a bulk job had been created.
CHANGED: Final = "changed"


@dataclass(frozen=True, slots=True)
class ExportReference:
    """An export to decide on, and what the caller saw of it: the digest of its ticket or its version, where given."""

    id: str
    ticket_digest: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class DecisionResult:
    """The result for one export: the status that it has now, or why nothing was decided.

    One that was in the wanted state already has neither changed nor an error.
    """

    id: str
    status: ExportStatus | None = None
    is_changed: bool = False
    error: RiskRelayError | None = None

    @property
    def error_code(self) -> str | None:
        """The code of the first invalid field if there is one, since it names the cause; else the error's."""
        if self.error is None:
            return None
        return self.error.problems[0].code if self.error.problems else self.error.code

    def record(self) -> dict[str, Any]:
        """Return it as JSON."""
        if self.error is None:
            return {"id": self.id, "status": self.status}
        message = self.error.problems[0].message if self.error.problems else self.error.message
        return {"id": self.id, "error": {"code": self.error_code, "message": message}}
