"""The pages, and the same in JSON below ``/api/v1``: for the API server, which imports this module alone.

Airflow does not authenticate what a plugin mounts: every route depends on :func:`_viewer`.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import APIRouter, Body, Depends, FastAPI, Query, Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from airflow_eos import __version__, settings
from airflow_eos.ui import views
from airflow_eos.ui.desk import Desk, Trouble
from airflow_eos.ui.viewer import Viewer

if TYPE_CHECKING:
    from starlette.middleware.base import RequestResponseEndpoint

    from airflow_eos.model.spec import Deployment
    from airflow_eos.ui.history import RunHistory

log = logging.getLogger(__name__)

T = TypeVar("T")

_FOLDER = Path(__file__).parent
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'self'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_templates = Environment(
    loader=FileSystemLoader(_FOLDER / "templates"), autoescape=True, undefined=StrictUndefined
)
_templates.filters["json"] = functools.partial(json.dumps, ensure_ascii=False)
_JSON = "/api/v1/"


def deployment() -> Deployment:
    """Return where the pages look: the connection of ``[eos] ui_kafka_config_id``, the ledger, the prefix."""
    from airflow_eos.hooks.kafka_eos import KafkaEosHook
    from airflow_eos.model.spec import Deployment

    kafka = KafkaEosHook(settings.ui_kafka_config_id()).get_config()
    ledger = settings.ledger_to_ask(settings.default_ledger_topic())
    return Deployment(kafka, ledger, settings.default_prefix())


def create_app(desk: Desk | None = None) -> FastAPI:
    """Return the pages as an application to be mounted."""
    app = FastAPI(
        title="airflow-eos",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(requires_access_view(AccessView.PLUGINS))],
    )
    app.state.desk = desk or Desk(deployment)
    app.include_router(_router)
    app.middleware("http")(_with_headers)
    app.add_exception_handler(Trouble, _on_trouble)  # type: ignore[arg-type]
    app.add_exception_handler(Exception, _on_error)
    return app


async def _with_headers(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Give every answer the headers of the pages, those of FastAPI itself too, and answer HEAD as GET."""
    method = request.method
    request.scope["method"] = "GET" if method == "HEAD" else method
    response = await call_next(request)
    request.scope["method"] = method  # by which the server leaves out the body
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


_router = APIRouter()


def _viewer(user: GetUserDep) -> Viewer:
    """Return what the user of this request may see."""
    return Viewer(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"), user.get_id())


Asking = Annotated[Viewer, Depends(_viewer)]
Page = Annotated[int, Query(ge=0, le=100_000)]
Text = Annotated[str, Query(max_length=2_000)]


def _now() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc)


def _ask(request: Request, viewer: Viewer, question: Callable[[RunHistory], T]) -> T:
    desk: Desk = request.app.state.desk
    return desk.ask(question, viewer.name)


def _damaged(request: Request) -> Collection[tuple[str, str]]:
    desk: Desk = request.app.state.desk
    return desk.damaged


# -- pages ------------------------------------------------------------------------------------------------


@_router.get("/", response_class=HTMLResponse)
def pipelines_page(request: Request, viewer: Asking, page: Page = 0) -> Response:
    """All pipelines."""
    return _html(request, "pipelines.html", **_pipelines(request, viewer, page))


@_router.get("/pipeline", response_class=HTMLResponse)
def pipeline_page(request: Request, viewer: Asking, name: Text, page: Page = 0, find: Text = "") -> Response:
    """One pipeline."""
    return _html(request, "pipeline.html", **_pipeline(request, viewer, name, page, find))


@_router.get("/run", response_class=HTMLResponse)
def run_page(request: Request, viewer: Asking, pipeline: Text, key: Text) -> Response:
    """One run."""
    return _html(request, "run.html", **_run(request, viewer, pipeline, key))


@_router.get("/transactions", response_class=HTMLResponse)
def transactions_page(request: Request, viewer: Asking) -> Response:
    """The transactions that are open now."""
    return _html(request, "transactions.html", **_transactions(request, viewer))


@_router.get("/health", response_class=HTMLResponse)
def health_page(request: Request, viewer: Asking) -> Response:
    """What the doctor would say, as far as it can be seen without writing."""
    return _html(request, "health.html", **_health(request, viewer))


@_router.get("/style.css")
def style() -> Response:
    """The style sheet of all pages."""
    return _file("style.css", "text/css")


@_router.get("/page.js")
def script() -> Response:
    """The script of all pages."""
    return _file("page.js", "text/javascript")


# -- JSON -------------------------------------------------------------------------------------------------


@_router.get("/api/v1/pipelines")
def pipelines_json(request: Request, viewer: Asking, page: Page = 0) -> Response:
    """All pipelines."""
    return _json(_pipelines(request, viewer, page))


@_router.get("/api/v1/pipeline")
def pipeline_json(request: Request, viewer: Asking, name: Text, page: Page = 0, find: Text = "") -> Response:
    """One pipeline, with its coverage and a page of its runs."""
    return _json(_pipeline(request, viewer, name, page, find))


@_router.get("/api/v1/run")
def run_json(request: Request, viewer: Asking, pipeline: Text, key: Text) -> Response:
    """One run."""
    return _json(_run(request, viewer, pipeline, key))


@_router.get("/api/v1/transactions")
def transactions_json(request: Request, viewer: Asking) -> Response:
    """The transactions that are open now."""
    return _json(_transactions(request, viewer))


@_router.get("/api/v1/health")
def health_json(request: Request, viewer: Asking) -> Response:
    """What the doctor would say, as far as it can be seen without writing."""
    return _json(_health(request, viewer))


@_router.post("/api/v1/verify")
def verify_json(
    request: Request,
    viewer: Asking,
    pipeline: Annotated[str, Body(max_length=2_000)],
    run_key: Annotated[str, Body(max_length=2_000)],
) -> Response:
    """Read a run's output again. JSON bodies only: no form of another site can send one with the cookie."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Trouble(415, "JSON only", "Send application/json.")
    from airflow_eos.operations.verification import verified_counts

    record = _ask(request, viewer, lambda history: views.run_of(history, viewer, pipeline, run_key))
    desk: Desk = request.app.state.desk
    findings = desk.verify(record)
    outcomes = {one["outcome"] for one in findings}
    return _json(
        {
            "pipeline": record.pipeline,
            "matches": "mismatch" not in outcomes,
            "ok": outcomes <= {"ok"},
            "runs": 1,
            **verified_counts(findings),
            "findings": findings,
        }
    )


# -- both -------------------------------------------------------------------------------------------------


def _pipelines(request: Request, viewer: Viewer, page: int) -> dict[str, Any]:
    damaged = _damaged(request)
    return _ask(
        request, viewer, lambda history: views.pipelines_view(history, viewer, page, _now(), damaged=damaged)
    )


def _pipeline(request: Request, viewer: Viewer, name: str, page: int, find: str) -> dict[str, Any]:
    damaged = _damaged(request)

    def answer(history: RunHistory) -> dict[str, Any]:
        return views.pipeline_view(history, viewer, name, _now(), page=page, find=find, damaged=damaged)

    return _ask(request, viewer, answer)


def _run(request: Request, viewer: Viewer, pipeline: str, key: str) -> dict[str, Any]:
    damaged = (pipeline, key) in _damaged(request)
    return _ask(
        request, viewer, lambda history: views.run_view(history, viewer, pipeline, key, damaged=damaged)
    )


def _transactions(request: Request, viewer: Viewer) -> dict[str, Any]:
    prefix = settings.default_prefix()

    def answer(history: RunHistory) -> dict[str, Any]:
        return views.transactions_view(history.open_transactions(), history, viewer, prefix, _now())

    return _ask(request, viewer, answer)


def _health(request: Request, viewer: Viewer) -> dict[str, Any]:
    return _ask(request, viewer, lambda history: views.health_view(history, viewer))


def _html(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    # Mounted by Airflow, which may itself stand behind a path.
    base = request.scope.get("root_path", "").rstrip("/")
    site = base.removesuffix(settings.PAGES_PREFIX)
    text = _templates.get_template(template).render(base=base, site=site, version=__version__, **values)
    return HTMLResponse(text.encode(errors="replace"), status, headers=_HEADERS)


def _json(values: Any, status: int = 200) -> Response:
    # A record may hold what UTF-8 or JSON cannot: it costs a "?" or an error, never the whole page.
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text.encode(errors="replace"), status, headers=_HEADERS, media_type="application/json")


def _file(name: str, kind: str) -> Response:
    text = (_FOLDER / "static" / name).read_text(encoding="utf-8")
    return Response(text, media_type=kind, headers={**_HEADERS, "Cache-Control": "private, max-age=300"})


def _on_trouble(request: Request, error: Trouble) -> Response:
    if _JSON in request.url.path:
        return _json({"detail": error.text, "title": error.title}, error.status)
    return _html(request, "trouble.html", error.status, title=error.title, text=error.text)


def _on_error(request: Request, error: Exception) -> Response:  # noqa: ARG001 - logged by the server
    return _on_trouble(request, Trouble(500, "That went wrong", "The API server's log has the reason."))
