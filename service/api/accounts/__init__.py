"""API resources of accounts and what is managed in them."""
