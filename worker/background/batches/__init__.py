"""Jobs that a request or a command began, continued a batch at a time."""
