"""The client of the operator's OpenID Connect issuer: bounded requests, its description and keys, its ID tokens."""
