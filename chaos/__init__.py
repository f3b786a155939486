"""``make chaos``: every fault at every protocol state of a cursor pipeline, then at random."""
