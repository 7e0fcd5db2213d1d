"""How requests to a target are made, as its row says."""

from collections.abc import Sequence
from typing import Any, Final

from schemas.targets.delivery_options import DEFAULT_OPTIONS, DeliveryOptions
from storage.db.columns import columns, select_list
from storage.db.models import TargetRow

#: The DeliveryOptions of a target `t`, in hand-written SQL.
OPTION_COLUMNS: Final = select_list(DeliveryOptions, {"t": TargetRow})
#: The same for Peewee.
OPTION_FIELDS: Final = tuple(columns(DeliveryOptions, TargetRow))


def options_from(values: Sequence[Any]) -> DeliveryOptions:
    """Return the delivery options of one row of these columns."""
    if tuple(values) == DEFAULT_OPTIONS:
        return DEFAULT_OPTIONS
    *plain, headers, standard_secret, certificate = values
    sealed = [None if each is None else bytes(each) for each in (headers, standard_secret, certificate)]
    return DeliveryOptions(*plain, *sealed)


def options_of(row: TargetRow) -> DeliveryOptions:
    """Return the delivery options of a target's row."""
    return options_from([getattr(row, field.name) for field in OPTION_FIELDS])
