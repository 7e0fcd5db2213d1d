"""How many files and connections this process may have open at once."""

import resource


def allow_files(count: int) -> int:
    """Raise the soft limit to `count`, as far as the hard one lets us; return how many are allowed now, `count` at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return count
    allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed
