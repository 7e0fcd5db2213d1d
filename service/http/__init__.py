"""The request pipeline: authentication, idempotency, rate limits, errors, paging, conditional requests."""
