"""Commands against the API of a remote installation, in place of the local database."""
