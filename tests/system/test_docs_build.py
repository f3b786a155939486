"""`make docs` builds the whole site from the pages and the docstrings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Sphinx's releases for Python 3.10 read other Markdown"
)
def test_the_site_is_built_without_a_warning_and_without_a_network(tmp_path):
    """Links between pages and to headings are resolved, docstrings are parsed; nothing is fetched."""
    code = (
        "import socket, sys\n"
        "def refuse(self, address): raise OSError(f'a network in the build: {address}')\n"
        "socket.socket.connect = refuse\n"
        "from sphinx.cmd.build import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    options = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(tmp_path / "doctrees")]
    done = subprocess.run(
        [sys.executable, "-c", code, *options, str(DOCS), str(tmp_path / "site")],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path / "airflow")},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    assert (site / "searchindex.js").exists()
    assert (site / "llms.txt").read_text() == (DOCS / "llms.txt").read_text()
    assert "airflow_eos.ReadProcessWriteOperator" in (site / "api.html").read_text()
