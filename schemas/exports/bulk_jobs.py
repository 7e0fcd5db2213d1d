"""A bulk job: one decision on every export that matched a filter when the job was created."""

from enum import StrEnum


class BulkJobStatus(StrEnum):
    """The status of a bulk job."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
