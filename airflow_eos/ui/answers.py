"""HTTP responses of the pages: HTML, JSON and files, all with the same headers."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.middleware.base import RequestResponseEndpoint

from airflow_eos import __version__, settings
from airflow_eos.ui.moments import age_text

_FOLDER = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'self'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
templates = Environment(
    loader=FileSystemLoader(_FOLDER / "templates"), autoescape=True, undefined=StrictUndefined
)
templates.filters["json"] = functools.partial(json.dumps, ensure_ascii=False)
templates.filters["age"] = age_text


async def with_headers(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Add the headers of the pages to every response, including FastAPI's own; handle HEAD like GET."""
    method = request.method
    request.scope["method"] = "GET" if method == "HEAD" else method
    response = await call_next(request)
    request.scope["method"] = method  # the server omits the body of HEAD
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def base_of(request: Request) -> str:
    """Return the root path of the pages: Airflow mounts them, and may itself be below a path."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def html_answer(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """Return a page; the template escapes every value."""
    base = base_of(request)
    site = base.removesuffix(settings.PAGES_PREFIX)
    text = templates.get_template(template).render(base=base, site=site, version=__version__, **values)
    return HTMLResponse(text.encode(errors="replace"), status, headers=HEADERS)


def json_answer(values: Any, status: int = 200) -> Response:
    """Return values as JSON."""
    # Text of a record that UTF-8 cannot encode becomes "?", and a number that JSON lacks an error.
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text.encode(errors="replace"), status, headers=HEADERS, media_type="application/json")


def file_answer(name: str, kind: str) -> Response:
    """Return a static file.

    :param kind: its media type.
    """
    text = (_FOLDER / "static" / name).read_text(encoding="utf-8")
    return Response(text, media_type=kind, headers={**HEADERS, "Cache-Control": "private, max-age=300"})
