"""The pages, and their contents as JSON below ``/api/v1``; only the API server imports this module.

Airflow does not authenticate a plugin's application: every route depends on :func:`_viewer`.
"""

from __future__ import annotations

import datetime as dt
import functools
import logging
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AccessView,
    ConnectionDetails,
    DagAccessEntity,
)
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import APIRouter, Body, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from airflow_eos import __version__, settings
from airflow_eos.model.ranges import utc_now
from airflow_eos.model.spec import Deployment
from airflow_eos.operations.verification import NOT_MATCHING, verified_counts
from airflow_eos.ui import views
from airflow_eos.ui.addresses import Requested, page_of, runs_of
from airflow_eos.ui.answers import base_of, file_answer, html_answer, json_answer, with_headers
from airflow_eos.ui.attempt_rows import attempts_view
from airflow_eos.ui.attempts import Attempt, Tasks, read_attempts
from airflow_eos.ui.desk import Desk
from airflow_eos.ui.known_runs import KnownRuns
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
from airflow_eos.ui.trouble import Trouble
from airflow_eos.ui.viewer import NOT_SHOWN, Viewer, not_shown

log = logging.getLogger(__name__)

T = TypeVar("T")

_JSON = "/api/v1/"


def deployment() -> Deployment:
    """Return the connection of ``[eos] ui_kafka_config_id``, the ledger and the prefix."""
    from airflow_eos.hooks.kafka_eos import KafkaEosHook

    kafka = KafkaEosHook(settings.ui_kafka_config_id()).get_config()
    ledger = settings.ledger_to_ask(settings.default_ledger_topic())
    return Deployment(kafka, ledger, settings.default_prefix())


def create_app(desk: Desk | None = None) -> FastAPI:
    """Return the application of the pages."""
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
    app.middleware("http")(with_headers)
    app.add_exception_handler(Trouble, _on_trouble)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, _on_invalid)  # type: ignore[arg-type]
    app.add_exception_handler(Exception, _on_error)
    return app


_router = APIRouter()


def _viewer(user: GetUserDep) -> Viewer:
    """Return the permissions of this request's user."""
    manager = get_auth_manager()
    sees_attempts = all(
        manager.is_authorized_dag(method="GET", access_entity=entity, user=user)
        for entity in (DagAccessEntity.TASK_INSTANCE, DagAccessEntity.XCOM)
    )
    dag_ids = manager.get_authorized_dag_ids(user=user, method="GET")
    return Viewer(dag_ids, user.get_id(), sees_attempts=sees_attempts)


def _viewer_of_everything(user: GetUserDep) -> Viewer:
    """Like :func:`_viewer`, but marks administrators: users who may see the connection of the pages.

    They could query the brokers themselves.
    """
    viewer = _viewer(user)
    connection = ConnectionDetails(conn_id=settings.ui_kafka_config_id())
    viewer.is_admin = get_auth_manager().is_authorized_connection(method="GET", details=connection, user=user)
    return viewer


Asking = Annotated[Viewer, Depends(_viewer)]
AskingAll = Annotated[Viewer, Depends(_viewer_of_everything)]
Page = Annotated[int, Query(ge=0, le=100_000)]
Text = Annotated[str, Query(max_length=2_000)]


def _ask(request: Request, viewer: Viewer, question: Callable[[KnownRuns], T]) -> T:
    """Ask the desk, unless the user has no Dags, could see no result, and would only delay others."""
    if not viewer.dag_ids and not viewer.is_admin:
        raise Trouble(NOT_SHOWN, "Nothing to show", "There is no Dag that you may see.")
    return _desk(request).ask(question, viewer.name)


def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


# -- pages, and the same as JSON --------------------------------------------------------------------------

Answered = tuple[dict[str, Any], int]
"""The values of a page, and the status of the response."""


def _page(path: str, template: str) -> Callable[[Callable[..., Answered]], Callable[..., Answered]]:
    """Return a decorator that serves a view as HTML at a path, and as JSON at that path below ``/api/v1``."""

    def add(view: Callable[..., Answered]) -> Callable[..., Answered]:
        @functools.wraps(view)  # FastAPI reads the parameters of the view
        def html(request: Request, **parameters: Any) -> Response:
            values, status = view(request, **parameters)
            return html_answer(request, template, status, **values)

        @functools.wraps(view)
        def as_json(request: Request, **parameters: Any) -> Response:
            return json_answer(*view(request, **parameters))

        _router.add_api_route(path, html, response_class=HTMLResponse, response_model=None)
        _router.add_api_route(f"{_JSON}{path.strip('/') or 'pipelines'}", as_json, response_model=None)
        return view

    return add


@_page("/", "pipelines.html")
def _pipelines(
    request: Request,
    viewer: AskingAll,
    find: Text = "",
    dag: Text = "",
    state: Text = "",
    order: Order = "urgency",
) -> Answered:
    """All pipelines; only Airflow's part if Kafka does not answer."""
    prefix, now = settings.default_prefix(), utc_now()
    ledger: LedgerRows | None = None
    trouble: Trouble | None = None
    open_now = OpenNow()

    def answer(history: KnownRuns) -> tuple[LedgerRows, OpenNow]:
        return ledger_rows(history, viewer, now), OpenNow.beside(history, viewer, prefix)

    try:
        ledger, open_now = _ask(request, viewer, answer)
    except Trouble as error:
        trouble = error
    attempts = _attempts(viewer, now, ledger.tasks if ledger else None)
    if trouble and not attempts:
        raise trouble
    transactions = open_now.rows(viewer, attempts or (), prefix, now)
    values = pipelines_view(
        ledger, attempts, now, transactions, open_now.unseen, find=find, dag=dag, state=state, order=order
    )
    return {**values, "trouble": trouble and trouble.to_dict()}, trouble.status if trouble else 200


@_page("/pipeline", "pipeline.html")
def _pipeline(request: Request, viewer: Asking, name: Text, page: Page = 0, find: Text = "") -> Answered:
    """One pipeline, with its coverage and a page of its runs."""
    now = utc_now()
    trouble: Trouble | None = None

    def answer(history: KnownRuns) -> tuple[dict[str, Any], Tasks]:
        view = views.pipeline_view(history, viewer, name, now, page=page, find=find)
        return view, views.tasks_beside(history, viewer, name)

    tasks: Tasks = {}
    try:
        values, tasks = _ask(request, viewer, answer)
    except Trouble as error:
        trouble = error
        sentence = UNCOMMITTED if error.status == NOT_SHOWN else UNANSWERED
        values = row_without_record(name, sentence)
    attempts = _attempts(viewer, now, tasks)
    tries = [attempt for attempt in attempts or () if attempt.pipeline == name]
    if trouble and not tries:
        raise trouble
    if trouble and trouble.status == NOT_SHOWN:
        trouble = None  # it has not committed yet, as far as this user may know
    values |= attempts_view(None if attempts is None else tries, now)
    return {**values, "trouble": trouble and trouble.to_dict()}, trouble.status if trouble else 200


@_page("/run", "run.html")
def _run(request: Request, viewer: Asking, pipeline: Text, key: Text) -> Answered:
    """One run."""
    return _ask(request, viewer, lambda history: views.run_view(history, viewer, pipeline, key)), 200


@_page("/transactions", "transactions.html")
def _transactions(request: Request, viewer: AskingAll) -> Answered:
    """The transactions that are open now."""
    prefix, now = settings.default_prefix(), utc_now()
    attempts = _attempts(viewer, now) or ()
    open_now = _ask(request, viewer, lambda history: OpenNow.of(history, viewer, prefix))
    return {"transactions": open_now.rows(viewer, attempts, prefix, now)}, 200


@_page("/health", "health.html")
def _health(request: Request, viewer: AskingAll) -> Answered:
    """The read-only checks of the doctor."""
    prefix, now = settings.default_prefix(), utc_now()
    attempts = _attempts(viewer, now) or ()

    def answer(history: KnownRuns) -> dict[str, Any]:
        open_now = OpenNow.beside(history, viewer, prefix)
        rows = open_now.rows(viewer, attempts, prefix, now)
        check = check_of(rows, open_now.unseen)
        return {**views.health_view(history, viewer, check), "transactions": rows}

    return _ask(request, viewer, answer), 200


# -- other answers ----------------------------------------------------------------------------------------


@_router.get("/of")
def page_of_airflow(
    request: Request,
    viewer: Asking,
    dag_id: Text,
    run_id: Text = "",
    task_id: Text = "",
    map_index: Text = "",
) -> Response:
    """Redirect from a Dag, a Dag run or a task instance of Airflow to the page about it."""
    query = Requested(dag_id, run_id, task_id, map_index)
    if dag_id not in viewer.dag_ids:
        raise not_shown("Dag")
    attempts = _attempts(viewer, utc_now(), dag_id=dag_id) or ()
    runs = _ask(request, viewer, lambda history: list(runs_of(history, viewer, query)))
    return RedirectResponse(f"{base_of(request)}{page_of(runs, attempts, query)}", 303)


@_router.get("/style.css")
def style() -> Response:
    """The style sheet of all pages."""
    return file_answer("style.css", "text/css")


@_router.get("/page.js")
def script() -> Response:
    """The script of all pages."""
    return file_answer("page.js", "text/javascript")


@_router.post("/api/v1/verify")
def verify_json(
    request: Request,
    viewer: Asking,
    pipeline: Annotated[str, Body(max_length=2_000)],
    run_key: Annotated[str, Body(max_length=2_000)],
) -> Response:
    """Read a run's output again. Takes JSON only: a form of another site cannot send it with the cookie."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Trouble(415, "JSON only", "Send application/json.")
    record = _ask(request, viewer, lambda history: views.run_of(history, viewer, pipeline, run_key))
    findings = _desk(request).verify(record, viewer.name)
    outcomes = {finding["outcome"] for finding in findings}
    return json_answer(
        {
            "pipeline": record.pipeline,
            "matches": outcomes.isdisjoint(NOT_MATCHING),
            "ok": outcomes <= {"ok"},
            "runs": 1,
            **verified_counts(findings),
            "findings": findings,
        }
    )


def _attempts(
    viewer: Viewer, now: dt.datetime, tasks: Tasks | None = None, dag_id: str | None = None
) -> list[Attempt] | None:
    """Return the attempts that a user may see; None if they cannot be read, or this user may see none.

    :param dag_id: only those of this Dag.
    """
    if not viewer.sees_attempts:
        return None
    return read_attempts(viewer.dag_ids if dag_id is None else viewer.dag_ids & {dag_id}, now, tasks)


def _on_trouble(request: Request, error: Trouble) -> Response:
    if _JSON in request.url.path:
        return json_answer(error.to_dict(), error.status)
    return html_answer(request, "trouble.html", error.status, title=error.title, text=error.text)


def _on_invalid(request: Request, error: RequestValidationError) -> Response:
    """Name the invalid parameters without their values, which JSON may not be able to represent."""
    problems = (f"{', '.join(map(str, part['loc']))}: {part['msg']}" for part in error.errors())
    return _on_trouble(request, Trouble(422, "Not understood", "; ".join(problems)))


def _on_error(request: Request, error: Exception) -> Response:  # noqa: ARG001 - logged by the server
    return _on_trouble(request, Trouble(500, "That went wrong", "The API server's log has the reason."))
