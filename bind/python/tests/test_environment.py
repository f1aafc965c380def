"""Tests the pinned versions of this environment, as bind/python/requirements.txt lists them."""

from __future__ import annotations

from importlib.metadata import distributions

from packaging.specifiers import SpecifierSet

# /usr/bin/python3 of Debian 12, the oldest Python of a machine on which `make run` and `make test` must work.
OLDEST_PYTHON = "3.11.2"


def test_every_version_installs_on_the_oldest_python() -> None:
    """A newer Python here does not hide that `make setup` fails on Debian 12."""
    wanted = {each.name: SpecifierSet(each.metadata.get("Requires-Python") or "") for each in distributions()}
    assert len(wanted) > 20, "this is not the environment of the tests"
    assert [f"{name} {python}" for name, python in wanted.items() if OLDEST_PYTHON not in python] == []
