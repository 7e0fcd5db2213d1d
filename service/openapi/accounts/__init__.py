"""Documents the routes that manage accounts."""
