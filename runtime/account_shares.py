"""Shares a bounded number of slots between accounts: sender threads, name lookups, pings.

A slot is held for as long as a receiver or a name server makes its holder wait, and cannot be taken back. So the rule keeps
slots free for accounts that hold few:

1. An account takes a slot while fewer than `shared` are held; of those that want one, the account that holds the fewest.
2. Beyond that, an account takes one while it holds fewer than `reserved` and fewer than `limit` are held.

An account alone uses every shared slot. While at most `accounts` accounts hold slots, one that holds fewer than `reserved`
gets the next at once, whatever the others do: what each holds beyond `reserved` it took by the first rule, so together they
hold at most `shared` beyond it; with at most `reserved` for each, and one account below that, fewer than `limit` =
`shared` + `accounts` * `reserved` are held. With more accounts, the one that holds the fewest gets the next free slot.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

#: None stands for callers that act for no account, such as a command.
AccountId: TypeAlias = int | None

#: How many accounts may hold slots while each is guaranteed its reserved ones. A slot is a thread that waits: 50 kB.
ACCOUNTS: Final = 16
#: An account is guaranteed a quarter of what one alone may use.
_RESERVED_PART: Final = 4


class AccountShares:
    """Counts the slots that each account holds; the caller synchronizes its threads.

    `held` is what accounts hold already; it may be negative for what is to be held in advance.
    """

    def __init__(self, shared: int, accounts: int = ACCOUNTS, held: Mapping[AccountId, int] | None = None) -> None:
        self.shared = shared
        self.reserved = max(1, shared // _RESERVED_PART)
        #: How many of an account's reserved slots one of its targets may hold.
        self.half_reserved = max(1, self.reserved // 2)
        self.limit = shared + accounts * self.reserved
        self._held = dict(held or {})
        self.total = sum(self._held.values())

    def held(self, account_id: AccountId) -> int:
        """Return how many slots an account holds."""
        return self._held.get(account_id, 0)

    @property
    def is_reserve(self) -> bool:
        """Return whether all shared slots are held, so that the next one is a reserved one."""
        return self.total >= self.shared

    def may_take(self, account_id: AccountId) -> bool:
        """Return whether an account may take a slot now."""
        if not self.is_reserve:
            return True
        return self.total < self.limit and self.held(account_id) < self.reserved

    def in_order(self, accounts: Iterable[AccountId]) -> list[AccountId]:
        """Return the accounts that may take a slot, in the order in which they get one."""
        allowed = list(filter(self.may_take, accounts))
        return allowed if len(allowed) < 2 else sorted(allowed, key=self.held)

    def holders_of_all(self) -> list[AccountId]:
        """Return the accounts that hold all they may hold now."""
        return [account_id for account_id in self._held if not self.may_take(account_id)]

    def take(self, account_id: AccountId) -> None:
        """Count a slot that an account takes."""
        self._held[account_id] = self.held(account_id) + 1
        self.total += 1

    def release(self, account_id: AccountId) -> None:
        """Count a slot that an account has released."""
        self.total -= 1
        left = self._held.get(account_id, 0) - 1
        if left:
            self._held[account_id] = left
        else:
            self._held.pop(account_id, None)
