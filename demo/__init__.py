"""``make demo``: a run is killed half way under a real scheduler; independent readers count the records."""
