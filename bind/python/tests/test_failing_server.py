"""Tests what a store does after a server failed in the middle of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gateways import KEYS
from scripted_server import FAILED, scripted

import fordway
from fordway import errors

if TYPE_CHECKING:
    from scripted_server import Response


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


ABOUT = '<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"a"</ETag><Size>1</Size>'
OBJECT = f"<Contents><Key>{{}}</Key>{ABOUT}</Contents>"
VERSION = f"<Version><Key>{{}}</Key><VersionId>1</VersionId><IsLatest>true</IsLatest>{ABOUT}</Version>"
PAGE_ENTRIES = 1000
"""Entries of a full page. The client requests another page only after these."""
KEYS_LISTED = [f"{number:04}" for number in range(PAGE_ENTRIES)] + ["last"]


def failing_pages(kind: str, entry: str, token: str) -> list[Response]:
    """Returns the responses to a listing of two pages, of which the second fails twice."""
    entries = [entry.format(key) for key in KEYS_LISTED]

    def page(entries: list[str], is_truncated: str, token: str) -> Response:
        head = f"<Name>bucket</Name><IsTruncated>{is_truncated}</IsTruncated>{token}"
        return 200, {}, f"<{kind}>{head}{''.join(entries)}</{kind}>".encode()

    first = page(entries[:PAGE_ENTRIES], "true", token)
    return [first, FAILED, FAILED, page(entries[PAGE_ENTRIES:], "false", "")]


def test_a_listing_does_not_end_at_an_error() -> None:
    token = "<NextContinuationToken>next</NextContinuationToken>"
    responses = failing_pages("ListBucketResult", OBJECT, token)
    with scripted(lambda *_: responses.pop(0)) as where, fordway.open(where, retries=0) as store:
        entries = store.list("bucket")
        assert [next(entries).key for _ in range(PAGE_ENTRIES)] == KEYS_LISTED[:PAGE_ENTRIES]
        for _ in range(2):
            with pytest.raises(errors.FordwayError):
                next(entries)
        assert [entry.key for entry in entries] == ["last"]
        assert not responses and next(entries, None) is None


def test_a_table_of_a_listing_is_whole_after_an_error() -> None:
    token = "<NextContinuationToken>next</NextContinuationToken>"
    responses = failing_pages("ListBucketResult", OBJECT, token)
    responses[2:3] = responses[:1]
    with scripted(lambda *_: responses.pop(0)) as where, fordway.open(where, retries=0) as store:
        entries = store.list("bucket")
        with pytest.raises(errors.FordwayError):
            entries.to_arrow()
        assert entries.to_arrow()["key"].to_pylist() == KEYS_LISTED


def test_a_listing_of_versions_does_not_end_at_an_error() -> None:
    token = "<NextKeyMarker>0999</NextKeyMarker><NextVersionIdMarker>1</NextVersionIdMarker>"
    responses = failing_pages("ListVersionsResult", VERSION, token)
    with scripted(lambda *_: responses.pop(0)) as where, fordway.open(where, retries=0) as store:
        versions = store.list_versions("bucket")
        assert [next(versions).key for _ in range(PAGE_ENTRIES)] == KEYS_LISTED[:PAGE_ENTRIES]
        for _ in range(2):
            with pytest.raises(errors.FordwayError):
                next(versions)
        assert [version.key for version in versions] == ["last"]
