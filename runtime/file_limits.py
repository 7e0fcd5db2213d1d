"""The limit of open files and connections of this process."""

import resource


def raise_file_limit(count: int) -> int:
    """Raise the soft limit to `count`, or to a lower hard limit; return the number that is allowed now, `count` at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return count
    allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed
