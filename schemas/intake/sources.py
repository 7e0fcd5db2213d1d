"""Who hands something in from outside, and what each of them was refused last, without a word of what it sent."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from schemas.base.errors import FieldProblem


class InboundSource(StrEnum):
    """A kind of sender, by the name that the documents know it by."""

    SCANNER = "scanner"
    EMAIL = "email"
    BROWSER_EXTENSION = "browser-extension"
    CMS_PLUGIN = "cms-plugin"
    STOREFRONT_APP = "storefront-app"
    COMPLIANCE = "compliance"


class CredentialFault(StrEnum):
    """Why a credential did not do; for the operator alone, because a client reads the same of all of them."""

    NOT_CONFIGURED = "not_configured"
    MISSING = "missing"
    TWICE = "twice"
    WRONG = "wrong"
    WRONG_KIND = "wrong_kind"
    LACKS_ABILITY = "lacks_ability"


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that was wrong: a JSON Pointer of our own names, or a header's name, and a code."""

    path: str
    code: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request of a source that was refused; `request_id` is what the log knows it by."""

    source: InboundSource
    at: datetime
    status: int
    code: str
    troubles: tuple[Trouble, ...]
    request_id: str


def troubles_of(problems: tuple[FieldProblem, ...]) -> tuple[Trouble, ...]:
    """Return what is kept of the problems of a body."""
    return tuple(Trouble(each.path, each.code) for each in problems)
