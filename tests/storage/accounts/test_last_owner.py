"""An account keeps an active owner, even if two owners demote each other at the same moment."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from schemas.base.errors import Conflict
from schemas.base.principal import Role, TokenKind, TokenPrincipal
from service.operations.accounts import accounts as operations
from storage.accounts import accounts
from storage.db.engine import connection
from tests.support.factories import Customer, make_colleague

OWNERS = 4


def test_simultaneous_demotions_of_owners_leave_one_owner(customer: Customer) -> None:
    everybody = [customer, *(make_colleague(customer) for _ in range(OWNERS - 1))]
    barrier = Barrier(OWNERS)

    def demote(number: int) -> bool:
        caller, other = everybody[number], everybody[(number + 1) % OWNERS]
        abilities = frozenset({"account:manage"})
        actor = TokenPrincipal(1, caller.user_id, caller.account_id, TokenKind.API, abilities, True, Role.OWNER)
        with connection():
            barrier.wait()
            try:
                operations.set_role(other.email, Role.VIEWER, actor)
            except Conflict:
                return False
        return True

    with ThreadPoolExecutor(OWNERS) as threads:
        demoted = list(threads.map(demote, range(OWNERS)))
    assert sorted(demoted) == [False, True, True, True]
    owners = [user for user in accounts.list_users(customer.account_id) if user.role is Role.OWNER]
    assert len(owners) == 1
