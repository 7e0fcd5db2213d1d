"""What commands share: settings and database, options, output, terminal."""
