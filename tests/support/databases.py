"""Marks of tests and test modules that need one kind of database; the others run on both."""

from typing import Final

import pytest

#: For what does not depend on the database, or only concerns this one.
on_sqlite: Final = pytest.mark.database("sqlite")
on_postgresql: Final = pytest.mark.database("postgresql")
