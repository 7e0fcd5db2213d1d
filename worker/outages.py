"""What this process may be cut off from, told once for all of its threads."""

import logging
from typing import Final

from runtime.outages import Outage

_log: Final = logging.getLogger(__name__)

DATABASE: Final = Outage(_log, "database away, trying again", "database is back")
REDIS: Final = Outage(_log, "redis away, sweeping on", "redis is back")
