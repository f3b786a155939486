"""What the runs of a pipeline have read, worked out from their records: pure, nothing is asked."""
