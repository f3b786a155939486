"""How the application handles the specification in its own file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_eos.engine import application
from airflow_eos.model.spec import RunSpec
from airflow_eos.model.spec_json import spec_to_json

NAME = "airflow-eos-spec-0123456789abcdef.json"
SPEC = RunSpec(
    kafka={"bootstrap.servers": "a:1", "sasl.password": "TOPSECRET"},
    pipeline="p",
    run_id="r",
    source_topics=("s",),
    sink_topic="o",
    group_id="g",
)
CODE = b"print('a')\n"


@pytest.fixture
def localised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The application as YARN gives it to a container: a link, and the file in the user's cache."""
    cached = tmp_path / "usercache" / "me" / "filecache" / "15" / "submit_main.py"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(application.with_specification(CODE, NAME, spec_to_json(SPEC)))
    link = tmp_path / "container" / "submit_main.py"
    link.parent.mkdir()
    link.symlink_to(cached)
    monkeypatch.setitem(application.sys.modules, "__main__", SimpleNamespace(__file__=str(link)))
    return link, cached


def test_yarn_keeps_no_specification(localised: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The file would stay in the user's cache after the application."""
    link, cached = localised
    monkeypatch.setenv("CONTAINER_ID", "container_1_0001_01_000001")
    assert application._read_spec(NAME).kafka == SPEC.kafka
    assert not cached.exists()
    assert (link.read_bytes(), link.is_symlink()) == (CODE, False)


def test_a_file_that_is_not_in_the_cache_of_yarn_is_left_alone(
    localised: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may be the author's."""
    link, cached = localised
    monkeypatch.delenv("CONTAINER_ID", raising=False)
    application._read_spec(NAME)
    assert cached.exists()
    monkeypatch.setenv("CONTAINER_ID", "container_1_0001_01_000001")
    elsewhere = cached.rename(link.with_name("other.py"))
    monkeypatch.setattr(application.sys.modules["__main__"], "__file__", str(elsewhere))
    application._read_spec(NAME)
    assert elsewhere.exists()
