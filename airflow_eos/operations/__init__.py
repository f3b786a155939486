"""Operations for administrators and the web page: checks, repair, queries, upkeep of the ledger."""
