"""Every value that stands in the ledger, with its version: one module for each kind."""
