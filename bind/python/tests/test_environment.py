"""Tests the package versions of this environment, which bind/python/requirements.txt pins."""

from __future__ import annotations

from importlib.metadata import distributions

from packaging.specifiers import SpecifierSet

# The version of /usr/bin/python3 in Debian 12. This version is the oldest Python with which `make run` and
# `make test` must work.
OLDEST_PYTHON = "3.11.2"


def test_every_version_installs_on_the_oldest_python() -> None:
    """Detects that `make setup` would fail on Debian 12, even if this environment has a newer Python."""
    wanted = {each.name: SpecifierSet(each.metadata.get("Requires-Python") or "") for each in distributions()}
    assert len(wanted) > 20, "this is not the environment of the tests"
    assert [f"{name} {python}" for name, python in wanted.items() if OLDEST_PYTHON not in python] == []
