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
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, ConnectionDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import APIRouter, Body, Depends, FastAPI, Query, Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from airflow_eos import __version__, settings
from airflow_eos.ui import views
from airflow_eos.ui.attempt_rows import attempts_view
from airflow_eos.ui.attempts import Attempt, AttemptsUnseen, Tasks, read_attempts
from airflow_eos.ui.desk import TOO_MANY, Desk, Trouble
from airflow_eos.ui.pipeline_rows import (
    UNANSWERED,
    UNCOMMITTED,
    LedgerRows,
    Order,
    ledger_rows,
    pipelines_view,
    row_without_record,
)
from airflow_eos.ui.transaction_rows import OpenNow, check_of
from airflow_eos.ui.viewer import NOT_SHOWN, Viewer

if TYPE_CHECKING:
    from starlette.middleware.base import RequestResponseEndpoint

    from airflow_eos.engine.history import RunHistory
    from airflow_eos.model.spec import Deployment

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


def _viewer_of_everything(user: GetUserDep) -> Viewer:
    """As :func:`_viewer`, and whether it is an administrator: who may see the connection of the pages.

    Whoever may see that could ask the brokers himself.
    """
    viewer = _viewer(user)
    connection = ConnectionDetails(conn_id=settings.ui_kafka_config_id())
    viewer.is_admin = get_auth_manager().is_authorized_connection(method="GET", details=connection, user=user)
    return viewer


Asking = Annotated[Viewer, Depends(_viewer)]
AskingAll = Annotated[Viewer, Depends(_viewer_of_everything)]
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
def pipelines_page(
    request: Request, viewer: AskingAll, find: Text = "", state: Text = "", order: Order = "urgency"
) -> Response:
    """All pipelines."""
    values, status = _pipelines(request, viewer, find, state, order)
    return _html(request, "pipelines.html", status, **values)


@_router.get("/pipeline", response_class=HTMLResponse)
def pipeline_page(request: Request, viewer: Asking, name: Text, page: Page = 0, find: Text = "") -> Response:
    """One pipeline."""
    values, status = _pipeline(request, viewer, name, page, find)
    return _html(request, "pipeline.html" if values["runs"] else "uncommitted.html", status, **values)


@_router.get("/run", response_class=HTMLResponse)
def run_page(request: Request, viewer: Asking, pipeline: Text, key: Text) -> Response:
    """One run."""
    return _html(request, "run.html", **_run(request, viewer, pipeline, key))


@_router.get("/transactions", response_class=HTMLResponse)
def transactions_page(request: Request, viewer: AskingAll) -> Response:
    """The transactions that are open now."""
    return _html(request, "transactions.html", **_transactions(request, viewer))


@_router.get("/health", response_class=HTMLResponse)
def health_page(request: Request, viewer: AskingAll) -> Response:
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
def pipelines_json(
    request: Request, viewer: AskingAll, find: Text = "", state: Text = "", order: Order = "urgency"
) -> Response:
    """All pipelines."""
    return _json(*_pipelines(request, viewer, find, state, order))


@_router.get("/api/v1/pipeline")
def pipeline_json(request: Request, viewer: Asking, name: Text, page: Page = 0, find: Text = "") -> Response:
    """One pipeline, with its coverage and a page of its runs."""
    return _json(*_pipeline(request, viewer, name, page, find))


@_router.get("/api/v1/run")
def run_json(request: Request, viewer: Asking, pipeline: Text, key: Text) -> Response:
    """One run."""
    return _json(_run(request, viewer, pipeline, key))


@_router.get("/api/v1/transactions")
def transactions_json(request: Request, viewer: AskingAll) -> Response:
    """The transactions that are open now."""
    return _json(_transactions(request, viewer))


@_router.get("/api/v1/health")
def health_json(request: Request, viewer: AskingAll) -> Response:
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
    from airflow_eos.engine.verification import verified_counts

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


def _pipelines(
    request: Request, viewer: Viewer, find: str, state: str, order: Order
) -> tuple[dict[str, Any], int]:
    """Return the list and the status of the answer: where Kafka has no answer Airflow has what it knows."""
    damaged, now = _damaged(request), _now()
    prefix = settings.default_prefix()
    ledger: LedgerRows | None = None
    trouble: Trouble | None = None
    open_now = OpenNow()

    def answer(history: RunHistory) -> tuple[LedgerRows, OpenNow]:
        return ledger_rows(history, viewer, now, damaged=damaged), _open_now(history, viewer, prefix)

    try:
        ledger, open_now = _ask(request, viewer, answer)
    except Trouble as error:
        trouble = error
    attempts = _attempts(viewer, now, ledger.tasks if ledger else None, trouble)
    transactions = open_now.rows(viewer, attempts or (), prefix, now)
    values = pipelines_view(ledger, attempts, now, transactions, find=find, state=state, order=order)
    return {**values, "trouble": trouble and trouble.to_dict()}, trouble.status if trouble else 200


def _pipeline(
    request: Request, viewer: Viewer, name: str, page: int, find: str
) -> tuple[dict[str, Any], int]:
    """Return one pipeline and the status of the answer, see :func:`_pipelines`."""
    damaged, now = _damaged(request), _now()
    trouble: Trouble | None = None

    def answer(history: RunHistory) -> tuple[dict[str, Any], Tasks]:
        found = views.pipeline_view(history, viewer, name, now, page=page, find=find, damaged=damaged)
        return found, views.tasks_of(history, viewer, name)

    tasks: Tasks = {}
    try:
        values, tasks = _ask(request, viewer, answer)
    except Trouble as error:
        trouble = error
        sentence = UNCOMMITTED if error.status == NOT_SHOWN else UNANSWERED
        values = row_without_record(name, sentence)
    attempts = _attempts(viewer, now, tasks, trouble)
    its = [one for one in attempts or () if one.pipeline == name]
    if trouble and not its:
        raise trouble
    if trouble and trouble.status == NOT_SHOWN:
        trouble = None  # it has not committed yet, as far as this user may know
    found = {**values, **attempts_view(None if attempts is None else its, now)}
    return {**found, "trouble": trouble and trouble.to_dict()}, trouble.status if trouble else 200


def _attempts(
    viewer: Viewer, now: dt.datetime, tasks: Tasks | None, trouble: Trouble | None
) -> list[Attempt] | None:
    """Return the attempts that a user may see, None where they cannot be read.

    :param trouble: why the ledger has no answer; raised where Airflow has none, too.
    """
    try:
        attempts = [] if trouble and trouble.status == TOO_MANY else read_attempts(viewer.dag_ids, now, tasks)
    except AttemptsUnseen:
        attempts = None
    if trouble and not attempts:
        raise trouble
    return attempts


def _run(request: Request, viewer: Viewer, pipeline: str, key: str) -> dict[str, Any]:
    damaged = (pipeline, key) in _damaged(request)
    return _ask(
        request, viewer, lambda history: views.run_view(history, viewer, pipeline, key, damaged=damaged)
    )


def _transactions(request: Request, viewer: Viewer) -> dict[str, Any]:
    prefix, now = settings.default_prefix(), _now()
    attempts = _attempts(viewer, now, None, None) or ()
    open_now = _ask(request, viewer, lambda history: OpenNow.of(history, viewer, prefix))
    return {"transactions": open_now.rows(viewer, attempts, prefix, now)}


def _health(request: Request, viewer: Viewer) -> dict[str, Any]:
    prefix, now = settings.default_prefix(), _now()
    attempts = _attempts(viewer, now, None, None) or ()

    def answer(history: RunHistory) -> dict[str, Any]:
        rows = _open_now(history, viewer, prefix).rows(viewer, attempts, prefix, now)
        return {**views.health_view(history, viewer, check_of(rows)), "transactions": rows}

    return _ask(request, viewer, answer)


def _open_now(history: RunHistory, viewer: Viewer, prefix: str) -> OpenNow:
    """Return the open transactions for a page that shows more than these; none where brokers refuse."""
    from airflow_eos.exceptions import AuthorizationFailed

    try:
        return OpenNow.of(history, viewer, prefix)
    except AuthorizationFailed as error:
        log.info("The page cannot list open transactions: %s", error)
        return OpenNow()


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
        return _json(error.to_dict(), error.status)
    return _html(request, "trouble.html", error.status, title=error.title, text=error.text)


def _on_error(request: Request, error: Exception) -> Response:  # noqa: ARG001 - logged by the server
    return _on_trouble(request, Trouble(500, "That went wrong", "The API server's log has the reason."))
