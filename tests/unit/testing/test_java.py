"""Finding a Java runtime that can run a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_eos.exceptions import ConfigurationError
from airflow_eos_testing import java

if TYPE_CHECKING:
    from pathlib import Path


def make_java(home: Path, banner: str) -> Path:
    """A fake Java runtime that prints a version banner where Java does."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    executable.chmod(0o755)
    return executable


@pytest.fixture
def no_other_java(monkeypatch, tmp_path):
    """Only runtimes that a test creates can be found; ``/bin`` stays for the shell."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "JVM_FOLDER", tmp_path / "jvm")


@pytest.mark.parametrize(
    ("banner", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ("bash: java: command not found", None),
    ],
)
def test_the_major_version_is_read_from_every_style_of_banner(banner, major):
    """Old (1.8), short (25) and early-access banners all have a major version."""
    assert java.parse_java_version(banner) == major


def test_java_home_wins_over_path(no_other_java, monkeypatch, tmp_path):
    """A user who sets JAVA_HOME gets that Java."""
    chosen = make_java(tmp_path / "home", 'openjdk version "21.0.1"')
    make_java(tmp_path / "path", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))

    assert java.find_java() == chosen


def test_a_too_old_default_is_passed_over_for_a_newer_one(no_other_java, monkeypatch, tmp_path):
    """Java 11 on PATH does not hide a Java 17 in the distribution's folder."""
    make_java(tmp_path / "path", 'openjdk version "11.0.2"')
    newer = make_java(tmp_path / "jvm" / "java-17", 'openjdk version "17.0.1"')
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))

    assert java.find_java() == newer


def test_missing_java_is_one_line_that_says_what_to_install(no_other_java):
    """Without any Java the error is a single line with the package to install."""
    with pytest.raises(ConfigurationError) as caught:
        java.find_java()

    assert "\n" not in str(caught.value)
    assert "Java 17 or later is needed" in str(caught.value)
    assert "openjdk-17-jre-headless" in str(caught.value)


def test_a_too_old_java_is_named_in_the_error(no_other_java, monkeypatch, tmp_path):
    """The error names the Java that was found, and why it was not used."""
    old = make_java(tmp_path / "home", 'java version "1.8.0_402"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))

    with pytest.raises(ConfigurationError, match=f"{old} is Java 8"):
        java.find_java()
