"""Tables and transactions: the only layer that imports Peewee."""
