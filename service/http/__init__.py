"""The request pipeline: authentication, idempotency, errors, paging, conditional requests."""
