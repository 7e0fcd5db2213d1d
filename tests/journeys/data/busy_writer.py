"""Writes to a database as fast as possible until it is killed: an account and its project in each transaction."""

import sys

from runtime.clock import utc_now
from storage.accounts import accounts, projects
from storage.db.engine import connection, open_database, transaction


def main() -> None:
    """Print a line after the start, then write until killed."""
    open_database(sys.argv[1])
    with connection():
        sys.stdout.write("writing\n")
        sys.stdout.flush()
        while True:
            with transaction():
                account = accounts.add_account("Busy", utc_now())
                projects.add_project("Busy", account.id, utc_now())


if __name__ == "__main__":
    main()
