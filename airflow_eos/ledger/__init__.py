"""The ledger: keys and ids, committed and pinned values, and the check that it is the original topic."""
