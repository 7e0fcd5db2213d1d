"""Identifiers are ULIDs with a prefix: they sort by time, and within a millisecond by the order of their creation."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from schemas.base.timestamps import to_ms
from storage.db.identifiers import ATTEMPT, EXPORT, first_id, is_id, new_id
from tests.support.factories import NOW

#: The times that fit into both 48 bits of milliseconds and a datetime.
moments = st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - the zone is given apart


@given(moments)
def test_an_identifier_is_a_ulid_of_its_moment(moment: datetime) -> None:
    made = new_id(ATTEMPT, moment)
    assert is_id(ATTEMPT, made)
    reported = ULID.from_str(made.removeprefix("att_"))
    assert str(reported) == made.removeprefix("att_")
    assert reported.milliseconds == to_ms(moment)


@given(moments, moments)
def test_identifiers_sort_by_their_moments(one: datetime, other: datetime) -> None:
    earlier, later = sorted([one, other])
    assert to_ms(earlier) == to_ms(later) or new_id(EXPORT, earlier) < new_id(EXPORT, later)


def test_identifiers_of_one_millisecond_are_unique_and_sort_by_creation() -> None:
    made = [new_id(EXPORT, NOW) for _ in range(1000)]
    assert made == sorted(set(made))


def test_every_character_of_an_identifier_after_its_timestamp_is_random() -> None:
    made = [new_id(EXPORT, NOW + timedelta(milliseconds=number))[-16:] for number in range(200)]
    # In 200 random draws, each position has more than 16 of the 32 characters, unless a position is constant.
    assert all(len({letters[place] for letters in made}) > 16 for place in range(16))


def test_concurrent_threads_never_get_the_same_identifier() -> None:
    with ThreadPoolExecutor(8) as threads:
        made = [each for ids in threads.map(lambda _: [new_id(EXPORT, NOW) for _ in range(500)], range(8)) for each in ids]
    assert len(set(made)) == 4000


def test_a_bound_has_the_form_of_an_identifier_without_random_digits() -> None:
    assert first_id(EXPORT, NOW) == f"exp_{ULID.from_int(to_ms(NOW) << 80)}"
    assert first_id(EXPORT, datetime(1960, 1, 1, tzinfo=UTC)) == f"exp_{'0' * 26}"
