"""Problems for which `make dist` refuses to publish."""

from __future__ import annotations

import io
import tarfile
import zipfile

import pytest

from tools.check_dist import problems

TRACKED = {"airflow_eos/__init__.py", "testing/airflow_eos_testing/__init__.py", "notes.txt"}
SOURCES = {
    "airflow_eos": {"airflow_eos/__init__.py", "CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"},
    "airflow_eos_testing": {
        "airflow_eos_testing/__init__.py", "LICENSE", "README.md", "pyproject.toml", "same_version.py",
    },
}  # fmt: skip
METADATA = """Metadata-Version: 2.4
Name: airflow-eos
Version: 1.0
Author: us
Summary: s
License-Expression: Apache-2.0
Requires-Python: >=3.10
Project-URL: Source, https://example.org

See [a page](https://example.org/x.md) and [below](#below).
"""


def release(folder, *, stray=(), missing=(), inside=(), metadata=METADATA):
    """Make the archives of a release; changes concern the package itself."""
    for package, names in SOURCES.items():
        own = package == "airflow_eos"
        held = (names | set(stray)) - set(missing) if own else names
        with tarfile.open(folder / f"{package}-1.0.tar.gz", "w:gz") as archive:
            for name in {*held, "PKG-INFO", ".gitignore"}:
                archive.addfile(tarfile.TarInfo(f"{package}-1.0/{name}"), io.BytesIO())
        with zipfile.ZipFile(folder / f"{package}-1.0-py3-none-any.whl", "w") as archive:
            for name in (f"{package}/__init__.py", *(inside if own else ())):
                archive.writestr(name, "")
            archive.writestr(f"{package}-1.0.dist-info/METADATA", metadata if own else METADATA)
    return folder


def test_a_release_with_what_is_tracked_has_no_problems(tmp_path):
    """The builder's own files are allowed."""
    assert problems(release(tmp_path), TRACKED) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"stray": ["notes.txt"]}, "airflow_eos-1.0.tar.gz: stray file notes.txt"),
        ({"stray": ["airflow_eos/draft.py"]}, "airflow_eos-1.0.tar.gz: stray file airflow_eos/draft.py"),
        ({"missing": ["LICENSE"]}, "airflow_eos-1.0.tar.gz: lacks LICENSE"),
        ({"missing": ["airflow_eos/__init__.py"]}, "airflow_eos-1.0.tar.gz: lacks airflow_eos/__init__.py"),
        ({"inside": ["tests/test_a.py"]}, "airflow_eos-1.0-py3-none-any.whl: stray file tests/test_a.py"),
        (
            {"metadata": METADATA + "[how](docs/page.md)\n"},
            "airflow_eos-1.0-py3-none-any.whl: relative link in the description: docs/page.md",
        ),
        (
            {"metadata": METADATA.replace("Summary: s\n", "")},
            "airflow_eos-1.0-py3-none-any.whl: no Summary in the metadata",
        ),
    ],
)
def test_each_problem_is_named_with_its_archive(tmp_path, changes, problem):
    """Each alone, by file and name."""
    assert problems(release(tmp_path, **changes), TRACKED) == [problem]


def test_an_archive_that_is_missing_is_a_problem(tmp_path):
    """Both distributions are published together."""
    release(tmp_path)
    (tmp_path / "airflow_eos_testing-1.0.tar.gz").unlink()
    assert problems(tmp_path, TRACKED) == [
        f"airflow_eos_testing: 0 source archives and 1 wheels in {tmp_path}"
    ]
