"""Creates the pictures of ``docs/page.md``: ``python -m tests.support.page_pictures``.

They show the product's views and templates with the records of :mod:`tests.support.page_example`.
"""

from __future__ import annotations

from pathlib import Path

import tests.support.airflow_home  # noqa: F401 - before Airflow

from tests.support.browser import browser  # isort: skip
from tests.support.page_example import BROKEN_LEDGER, FLIGHTS, example_site  # isort: skip
from tests.support.page_site import site_served  # isort: skip

IMAGES = Path(__file__).parents[2] / "docs" / "images"
WIDE, NARROW = (1280, 800), (390, 800)
PICTURES = {
    "page-list": ("/", WIDE, "light"),
    "page-light": (f"/pipeline?name={FLIGHTS}", WIDE, "light"),
    "page-dark": (f"/pipeline?name={BROKEN_LEDGER}", WIDE, "dark"),
    "page-narrow": ("/", NARROW, "dark"),
}
"""Address, size in pixels and colour scheme of each."""
PIPELINES = 6


def main() -> None:
    """Create all pictures."""
    with site_served(example_site(PIPELINES)) as served, browser() as seen:
        for name, (path, size, scheme) in PICTURES.items():
            seen.resize(*size)
            seen.prefer(scheme)
            seen.open(served.address + path)
            (IMAGES / f"{name}.png").write_bytes(seen.picture())


if __name__ == "__main__":
    main()
