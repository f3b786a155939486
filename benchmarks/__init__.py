"""Side-by-side measurements: ``python -m benchmarks``, or ``make bench``."""
