"""The hash chain of the audit log: the record of an entry, its hash, and the verification of a whole chain.

The hash of an entry is the SHA-256 of its canonical record: every column, its position, and the hash of the entry before.
The record contains the actor's SHA-256 instead of the actor, so that a receipt can omit the name of a worker's host.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from schemas.base.strict_json import JsonValue, canonical
from schemas.base.timestamps import format_rfc3339, from_ms

#: The `previous` hash of the first entry, which has no entry before it.
GENESIS: Final = "0" * 64
Line = Mapping[str, Any]


class BrokenChain(Exception):
    """The chain differs from the one that was written; the message names the position and the problem."""


class Anchor(NamedTuple):
    """The position and hash of an entry, saved earlier and used to verify the chain."""

    position: int
    hash: str


class ChainEntry(NamedTuple):
    """The columns of an audit entry that its hash covers, as stored; `at` is milliseconds since 1970."""

    id: int
    at: int
    actor: str
    action: str
    subject_id: str
    status_before: str | None
    status_after: str | None
    reason: str | None
    digest: bytes | None


#: The members of a line, and those that its hash covers.
MEMBERS: Final = frozenset({*ChainEntry._fields, "position", "actor_sha256", "previous", "hash"})
HASHED: Final = MEMBERS - {"actor", "hash"}


def line_of(entry: ChainEntry, position: int, previous: str) -> dict[str, Any]:
    """Return an entry as a line of an export, with its hash at `position`, after the entry with the hash `previous`.

    Raises ValueError, TypeError or OverflowError if a column has a value that no entry can have.
    """
    hashed: dict[str, JsonValue] = {
        "position": position,
        "id": entry.id,
        "at": format_rfc3339(from_ms(entry.at)),
        "actor_sha256": hashlib.sha256(entry.actor.encode()).hexdigest(),
        "action": entry.action,
        "subject_id": entry.subject_id,
        "status_before": entry.status_before,
        "status_after": entry.status_after,
        "reason": entry.reason,
        "digest": None if entry.digest is None else f"sha256:{bytes(entry.digest).hex()}",
        "previous": previous,
    }
    return {**hashed, "actor": entry.actor, "hash": hashlib.sha256(canonical(hashed)).hexdigest()}


def line_problem(line: Any) -> str | None:
    """Return the problem of a line by itself, or None if its hash matches its contents; an actor of None was left out."""
    if not isinstance(line, dict) or line.keys() != MEMBERS:
        return "it is not a line of the audit log"
    if line["actor"] is not None and _sha256(line["actor"]) != line["actor_sha256"]:
        return "the actor was changed"
    if hashlib.sha256(canonical({name: line[name] for name in HASHED})).hexdigest() != line["hash"]:
        return "its hash does not match its contents"
    return None


class ChainVerification:
    """Verifies the lines of a chain, the oldest first; every method raises BrokenChain at the first contradiction.

    A chain begins at position 1, or after an anchor if the entries before were deleted.
    """

    def __init__(self, anchors: Mapping[int, str]) -> None:
        self._anchors = dict(anchors)
        self.count = 0
        #: The position and hash of the last verified entry.
        self.head = Anchor(0, GENESIS)

    def add(self, line: Any) -> None:
        """Verify the next line."""
        problem = line_problem(line)
        if problem is not None:
            raise BrokenChain(f"Line {self.count + 1}, after position {self.head.position}: {problem}.")
        position, before = line["position"], self.before(line["position"])
        if line["previous"] != before.hash:
            raise BrokenChain(f"Position {position}: it does not follow the entry at position {before.position}.")
        self._require_anchor(position, line["hash"])
        self.head, self.count = Anchor(position, line["hash"]), self.count + 1

    def before(self, position: Any) -> Anchor:
        """Return the entry that must precede the next entry, whose position is `position`."""
        if not isinstance(position, int) or position < 1:
            raise BrokenChain(f"After position {self.head.position}: the next entry has no valid position.")
        if self.count == 0 and position > 1:
            anchor = self._anchors.get(position - 1)
            if anchor is None:
                next_step = f"If you deleted them, pass the anchor of position {position - 1}."
                raise BrokenChain(f"The log begins at position {position}: the entries before it are missing. {next_step}")
            self.head = Anchor(position - 1, anchor)
        if position != self.head.position + 1:
            raise BrokenChain(f"Position {self.head.position + 1} is missing: position {position} follows.")
        return self.head

    def finish(self) -> None:
        """Verify that the chain reaches every anchor."""
        for position, _ in sorted(self._anchors.items()):
            if position > self.head.position:
                raise BrokenChain(f"The log ends at position {self.head.position}, before the anchor of {position}.")
            if position < self.head.position - self.count:
                raise BrokenChain(f"The log begins after the anchor of position {position}.")

    def _require_anchor(self, position: int, hash_: str) -> None:
        if self._anchors.get(position, hash_) != hash_:
            raise BrokenChain(f"Position {position}: its hash is not the one of the anchor; the log was rewritten.")


def _sha256(text: Any) -> str | None:
    return hashlib.sha256(text.encode()).hexdigest() if isinstance(text, str) else None
