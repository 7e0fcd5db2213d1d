"""Shares a bounded number of slots between accounts: sender threads, name lookups, pings.

A slot is held for as long as a receiver or a name server keeps its holder waiting, and cannot be revoked. Two rules keep
slots free for accounts that hold few:

1. While fewer than `shared` slots are held, any account may take one. If several want one, the account that holds the
   fewest goes first.
2. After that, an account may take a slot only if it holds fewer than `reserved`, and only while fewer than `limit` are held.

`limit` is `shared` + `accounts` * `reserved`. A single active account can use every shared slot. While at most `accounts`
accounts hold slots, an account below `reserved` never waits. Proof: slots that an account holds above `reserved` were taken
under rule 1, so all accounts together hold at most `shared` of these; each also holds at most `reserved`, and one holds
fewer; so fewer than `limit` are held. With more accounts, the account that holds the fewest gets the next free slot.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

#: None stands for callers that act for no account, such as a command.
AccountId: TypeAlias = int | None

#: For how many accounts the reserved slots are guaranteed. A slot is a thread that waits, which takes 50 kB.
ACCOUNTS: Final = 16
#: Each account is guaranteed a quarter of the slots that a single active account may use.
_RESERVED_PART: Final = 4


class AccountShares:
    """Counts the slots that each account holds; the caller synchronizes its threads.

    `held` maps accounts to the slots that they hold at the start. A negative number gives an account that many slots in
    advance.
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
        """Return the accounts that may take a slot, those that hold the fewest slots first."""
        allowed = list(filter(self.may_take, accounts))
        return allowed if len(allowed) < 2 else sorted(allowed, key=self.held)

    def holders_of_all(self) -> list[AccountId]:
        """Return the accounts that may take no further slot now."""
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
