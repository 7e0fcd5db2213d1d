"""Column types that mean the same on both databases: instants as integer milliseconds, JSON as text."""

import json
from datetime import datetime
from typing import Any, Final

from peewee import BigIntegerField, TextField

from schemas.base.timestamps import from_ms, to_ms

#: json.dumps would make such an encoder anew for every value.
_compact: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class MomentField(BigIntegerField):
    """An instant, in whole milliseconds since 1970: exact on both databases, comparable in SQL, readable by any client."""

    def db_value(self, value: datetime | int | None) -> int | None:
        return to_ms(value) if isinstance(value, datetime) else value

    def python_value(self, value: int | None) -> datetime | None:
        return from_ms(value)


class JsonField(TextField):
    """A JSON value as text: stored and read back unchanged, and the same on both databases."""

    def db_value(self, value: Any) -> str | None:
        return None if value is None else self.text(value)

    @staticmethod
    def text(value: Any) -> str:
        """Return a value as it is stored."""
        return _compact(value)

    def python_value(self, value: str | None) -> Any:
        return None if value is None else json.loads(value)
