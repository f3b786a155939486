"""Computes which offsets the runs of a pipeline have read, from their records; pure, without I/O."""
