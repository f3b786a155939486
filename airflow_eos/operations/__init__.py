"""What administrators and the page ask and do: checks, repair, look-ups, upkeep of the ledger."""
