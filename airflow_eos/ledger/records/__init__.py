"""The versioned values of ledger records, one module per kind."""
