"""The application of ``spark-submit`` where the author names a function instead of writing one.

It runs as a script, in a place of its own: everything is imported by name, from what was shipped or
installed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    # As a script this file's folder is first on the path: our modules would shadow top-level ones.
    sys.path[:] = [place for place in sys.path if not place or Path(place) != Path(__file__).resolve().parent]
    import_module("airflow_eos.engine.application").command_line()
