"""The look-up of a shared secret, hand-written because every inbound request with a signature runs it."""

from typing import Final

from storage.db.engine import first_row

_SECRET: Final = "SELECT secret_sealed FROM integration_secrets WHERE name = ?"  # noqa: S105 - a statement


def find_sealed(name: str) -> bytes | None:
    """Return the encrypted secret that an operator set for an integration; None if there is none."""
    found = first_row(_SECRET, (name,))
    return None if found is None else found[0]
