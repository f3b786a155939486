"""The ledger: its keys and ids, what is committed and pinned in it, and whether it is the one of before."""
