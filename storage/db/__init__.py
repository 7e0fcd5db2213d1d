"""The database: engine, models, migrations, bulk SQL, group commit, locks, identifiers."""
