"""The ledger topic as a log: its scan, its index, its records and their signatures."""
