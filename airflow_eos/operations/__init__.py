"""Operations for administrators and the page: checks, repair, queries, upkeep of the ledger."""
