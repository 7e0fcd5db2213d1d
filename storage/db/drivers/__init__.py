"""How each kind of database is opened, written to and waited for."""
