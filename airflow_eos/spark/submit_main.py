"""The application of ``spark-submit`` for a function that the author names.

It runs as a script outside of the package, so it imports everything by name.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    # As a script this file's folder is first on the path: our modules would shadow top-level ones.
    sys.path[:] = [place for place in sys.path if not place or Path(place) != Path(__file__).resolve().parent]
    import_module("airflow_eos.engine.application").command_line()
