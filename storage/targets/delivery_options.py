"""How requests to a target are made, as stored in the target's row."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from peewee import Model

from schemas.targets.delivery_options import DEFAULT_OPTIONS, DeliveryOptions
from storage.db.columns import columns, select_list
from storage.db.models import TargetRow

Job = TypeVar("Job")

#: The DeliveryOptions of a target `t`, in hand-written SQL.
OPTION_COLUMNS: Final = select_list(DeliveryOptions, {"t": TargetRow})
#: The same columns for Peewee.
OPTION_FIELDS: Final = tuple(columns(DeliveryOptions, TargetRow))
_OPTIONS: Final = len(OPTION_FIELDS)


def options_from(values: Sequence[Any]) -> DeliveryOptions:
    """Return the delivery options of one row of these columns."""
    return DEFAULT_OPTIONS if tuple(values) == DEFAULT_OPTIONS else DeliveryOptions(*values)


def job_columns(shape: type, model: type[Model], **others: Any) -> list[Any]:
    """Return the columns for the fields of a job at a target, whose last field is `options`; `read_job` reads them."""
    of_target = {"base_url": TargetRow.base_url, "secret_sealed": TargetRow.secret_sealed}
    # The first column of the options; the other ones follow at the end.
    return [*columns(shape, model, **of_target, options=OPTION_FIELDS[0], **others), *OPTION_FIELDS[1:]]


def read_job(shape: Callable[..., Job], row: Sequence[Any]) -> Job:
    """Return the job of one row of `job_columns`."""
    return shape(*row[:-_OPTIONS], options_from(row[-_OPTIONS:]))


def options_of(row: TargetRow) -> DeliveryOptions:
    """Return the delivery options of a target's row."""
    return options_from([getattr(row, field.name) for field in OPTION_FIELDS])
