"""Tests which clients call the store in the process, and where all other clients send their calls."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import mmap
from enum import Enum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from boto_clients import BUCKET, clients, without_endpoint

boto3 = pytest.importorskip("boto3")
import botocore.session  # noqa: E402
from boto3.s3 import transfer  # noqa: E402
from botocore.client import BaseClient  # noqa: E402
from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError, EndpointConnectionError  # noqa: E402

import fordway.boto  # noqa: E402
from fordway.errors import UnsupportedError, exception_for  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fordway import Store

__all__ = ["clients", "without_endpoint"]


@contextlib.contextmanager
def installed(root: Path | None) -> Iterator[Store]:
    """Makes new clients call the store in `root`, or in the directory that the environment names, and yields
    the store.
    """
    store = fordway.boto.install(root)
    try:
        yield store
    finally:
        fordway.boto.uninstall()


@pytest.mark.usefixtures("without_endpoint")
def test_clients_of_aiobotocore_refuse_a_directory_as_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aiobotocore = pytest.importorskip("aiobotocore.session")

    async def endpoint() -> str:
        async with aiobotocore.get_session().create_client("s3") as client:
            return str(client.meta.endpoint_url)

    (tmp_path / BUCKET).mkdir()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"file://{tmp_path}")
    with installed(None):
        with pytest.raises(ValueError, match="Invalid endpoint: file"):
            asyncio.run(endpoint())
        client = boto3.session.Session().client("s3")
        client.put_object(Bucket=BUCKET, Key="key", Body=b"abc")
        with pytest.raises(ValueError, match="Invalid endpoint: file"):
            asyncio.run(endpoint())
    assert (tmp_path / BUCKET / "key").read_bytes() == b"abc"


def regions() -> list[str]:
    """Returns a region of each of AWS's partitions that the installed botocore knows."""
    session = botocore.session.Session()
    partitions = session.get_available_partitions()
    found = (session.get_available_regions("s3", partition_name=partition) for partition in partitions)
    return [names[0] for names in found if names]


@pytest.mark.usefixtures("without_endpoint")
@pytest.mark.parametrize("region", regions())
def test_no_call_goes_to_aws_in_any_partition(tmp_path: Path, region: str) -> None:
    (tmp_path / BUCKET).mkdir()
    with installed(tmp_path):
        client = boto3.session.Session().client("s3", region_name=region)
        assert urlsplit(client.meta.endpoint_url).hostname.endswith(fordway.boto.AWS_DOMAINS)
        client.put_object(Bucket=BUCKET, Key="key", Body=b"abc")
        with pytest.raises(UnsupportedError, match=r"PutObject .*because of ACL, .*AWS_ENDPOINT_URL"):
            client.put_object(Bucket=BUCKET, Key="key", Body=b"secret", ACL="private")
    assert (tmp_path / BUCKET / "key").read_bytes() == b"abc"


@pytest.mark.usefixtures("without_endpoint")
def test_a_client_remembers_the_endpoint_with_which_it_was_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / BUCKET).mkdir()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with installed(tmp_path):
        client = boto3.session.Session().client("s3")
        monkeypatch.delenv("AWS_ENDPOINT_URL")

        def handler(**_: object) -> None:
            pass

        client.meta.events.register("before-call.s3", handler)
        client.meta.events.unregister("before-call.s3", handler)
        client.put_object(Bucket=BUCKET, Key="key", Body=b"abc")
    assert (tmp_path / BUCKET / "key").read_bytes() == b"abc"


@pytest.mark.usefixtures("without_endpoint")
def test_boto3_transfers_files_with_calls_of_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def should_use_crt(_: object) -> bool:
        return True

    monkeypatch.setattr(transfer, "_should_use_crt", should_use_crt)
    monkeypatch.setattr(transfer, "create_crt_transfer_manager", lambda *_: pytest.fail("CRT"), raising=False)
    (tmp_path / BUCKET).mkdir()
    (tmp_path / "file").write_bytes(b"abc")
    with installed(tmp_path):
        client = boto3.session.Session().client("s3")
        client.upload_file(str(tmp_path / "file"), BUCKET, "key")
        client.download_file(BUCKET, "key", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == b"abc"
    assert transfer._should_use_crt is should_use_crt, "not after uninstall"


@pytest.mark.usefixtures("without_endpoint")
def test_calls_that_the_crt_only_serializes_do_not_reach_the_store(tmp_path: Path) -> None:
    def handler(**_: object) -> None:
        pass

    handler.__module__ = "s3transfer.crt"
    (tmp_path / BUCKET).mkdir()
    with installed(tmp_path) as store:
        store.put(BUCKET, "key", b"abc")
        client = boto3.session.Session().client("s3")
        client.meta.events.register("request-created.s3.*", handler)
        with pytest.raises(UnsupportedError):
            client.delete_object(Bucket=BUCKET, Key="key")
        assert store.get(BUCKET, "key") == b"abc"


Call = tuple[str, dict[str, Any]]
"""The operation and the parameters of a call."""


def tracer_of_wraps(calls: list[Call]) -> Callable[..., Any]:
    """Returns a wrapper of botocore's method that records calls."""
    original = BaseClient._make_api_call

    @functools.wraps(original)
    def traced(self: BaseClient, operation: str, parameters: dict[str, Any]) -> Any:  # noqa: ANN401
        calls.append((operation, parameters))
        return original(self, operation, parameters)

    return traced


def tracer_of_wrapt(calls: list[Call]) -> Callable[..., Any]:
    """Returns a wrapper as OpenTelemetry, AWS X-Ray and Datadog make it."""
    wrapt = pytest.importorskip("wrapt")

    def traced(wrapped: Callable[..., Any], _: object, arguments: Any, options: Any) -> Any:  # noqa: ANN401
        calls.append(arguments)
        return wrapped(*arguments, **options)

    return wrapt.FunctionWrapper(BaseClient._make_api_call, traced)


@pytest.mark.usefixtures("without_endpoint")
@pytest.mark.parametrize("make_tracer", [tracer_of_wraps, tracer_of_wrapt])
def test_wrappers_of_botocores_method_see_the_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_tracer: Callable[[list[Call]], Any]
) -> None:
    calls: list[Call] = []
    monkeypatch.setattr(BaseClient, "_make_api_call", make_tracer(calls))
    (tmp_path / BUCKET).mkdir()
    fordway.boto.answered.clear()
    with installed(tmp_path):
        client = boto3.session.Session().client("s3")
        client.put_object(Bucket=BUCKET, Key="a%20b", Body=b"abc")
        assert client.get_object(Bucket=BUCKET, Key="a%20b")["Body"].read() == b"abc"
        listed = client.list_objects_v2(Bucket=BUCKET, Prefix="a%20")
        assert (listed["Prefix"], listed["Contents"][0]["Key"]) == ("a%20", "a%20b")
        client.copy_object(Bucket=BUCKET, Key="copy", CopySource={"Bucket": BUCKET, "Key": "a%20b"})
        assert client.get_bucket_location(Bucket=BUCKET)["LocationConstraint"] is None
        with pytest.raises(client.exceptions.NoSuchKey) as caught:
            client.get_object(Bucket=BUCKET, Key="nothing")
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404
        with pytest.raises(UnsupportedError, match="because of ACL"):
            client.put_object(Bucket=BUCKET, Key="key", ACL="private")
    operations = ["PutObject", "GetObject", "ListObjectsV2", "CopyObject", "GetBucketLocation", "GetObject"]
    assert [operation for operation, _ in calls] == [*operations, "PutObject"]
    assert fordway.boto.answered["GetObject", "in process"] == 2
    assert fordway.boto.answered["PutObject", "botocore"] == 1
    assert sum(fordway.boto.answered.values()) == 7
    assert (tmp_path / BUCKET / "copy").read_bytes() == b"abc"


class DeletingBody(io.RawIOBase):
    """A body that makes a call of another client when it is read."""

    def __init__(self, client: Any) -> None:  # noqa: ANN401
        self.client, self.error = client, None

    def read(self, _: int = -1) -> bytes:
        if self.error is None:
            with pytest.raises(EndpointConnectionError) as caught:
                self.client.delete_object(Bucket=BUCKET, Key="key")
            self.error = caught.value
        return b""


@pytest.mark.usefixtures("without_endpoint")
def test_a_wrapped_call_does_not_take_calls_of_other_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BaseClient, "_make_api_call", tracer_of_wraps([]))
    (tmp_path / BUCKET).mkdir()
    with installed(tmp_path) as store:
        store.put(BUCKET, "key", b"abc")
        session = boto3.session.Session()
        once = Config(retries={"total_max_attempts": 1}, connect_timeout=1)
        elsewhere = session.client("s3", endpoint_url="http://127.0.0.1:1", config=once)
        body = DeletingBody(elsewhere)
        session.client("s3").put_object(Bucket=BUCKET, Key="other", Body=body)
        assert body.error is not None
        assert store.get(BUCKET, "key") == b"abc"


@pytest.mark.usefixtures("without_endpoint")
def test_a_wrapper_may_change_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = BaseClient._make_api_call

    def changing(self: BaseClient, operation: str, parameters: dict[str, Any]) -> Any:  # noqa: ANN401
        return original(self, operation, parameters | {"Key": "other"})

    monkeypatch.setattr(BaseClient, "_make_api_call", changing)
    (tmp_path / BUCKET).mkdir()
    with installed(tmp_path) as store:
        boto3.session.Session().client("s3").put_object(Bucket=BUCKET, Key="key", Body=b"abc")
        assert store.get(BUCKET, "other") == b"abc"


@pytest.mark.usefixtures("without_endpoint")
def test_a_wrapper_may_answer_the_call_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = BaseClient._make_api_call

    @functools.wraps(original)
    def fake(_: object, operation: str, __: object) -> str:
        return operation

    (tmp_path / BUCKET).mkdir()
    with installed(tmp_path):
        client = boto3.session.Session().client("s3")
        with monkeypatch.context() as patched:
            patched.setattr(BaseClient, "_make_api_call", fake)
            assert client.put_object(Bucket=BUCKET, Key="key", Body=b"abc") == "PutObject"
        assert "Contents" not in client.list_objects_v2(Bucket=BUCKET)


class Name(str, Enum):  # noqa: UP042 (its `str` is not its value)
    """Names as members of an enumeration."""

    BUCKET = BUCKET
    KEY = "a b"


class Text(str):
    """Text of another type, such as NumPy's strings."""


def test_names_may_be_of_subclasses_of_str(clients: tuple[Any, Any]) -> None:
    names = {"Bucket": Text(BUCKET), "Key": Text("a b")}
    for client in clients:
        client.put_object(Bucket=Name.BUCKET, Key=Name.KEY, Body=b"abc")
        assert client.get_object(**names)["Body"].read() == b"abc"
        listed = client.list_objects_v2(Bucket=Name.BUCKET, Prefix=Name.KEY)
        assert (listed["Prefix"], type(listed["Prefix"])) == ("a b", str)
        tags = {"TagSet": [{"Key": Text("a b"), "Value": Text("a b")}]}
        client.put_object_tagging(**names, Tagging=tags)
        assert client.get_object_tagging(**names)["TagSet"] == [{"Key": "a b", "Value": "a b"}]
        client.copy_object(Bucket=BUCKET, Key="copy", CopySource=names)
        done = client.delete_objects(
            Bucket=BUCKET, Delete={"Objects": [{"Key": names["Key"]}, {"Key": "copy"}]}
        )
        assert sorted(entry["Key"] for entry in done["Deleted"]) == ["a b", "copy"]
    assert {way for _, way in fordway.boto.answered} == {"in process"}


def test_a_mapped_file_is_sent_from_its_position(clients: tuple[Any, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    client, _ = clients
    for start in (0, 4):
        with (tmp_path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as body:
            body.seek(start)
            client.put_object(Bucket=BUCKET, Key="key", Body=body)
        content = client.get_object(Bucket=BUCKET, Key="key")["Body"].read()
        assert content == b"0123456789"[start:]


def test_errors_have_the_fields_of_awss_documents(clients: tuple[Any, Any]) -> None:
    clients[0].put_object(Bucket=BUCKET, Key="key", Body=b"0123456789")
    clients[0].create_bucket(Bucket="other")
    version, names = "0" * 32, {"Bucket": BUCKET, "Key": "key"}
    source = {"Bucket": BUCKET, "Key": "nothing"}
    for call, parameters, facts in (
        ("get_object", {"Bucket": BUCKET, "Key": "a & b"}, {"Key": "a & b"}),
        ("get_object", {"Bucket": "nowhere", "Key": "key"}, {"BucketName": "nowhere"}),
        ("put_object", {"Bucket": "nowhere", "Key": "key"}, {"BucketName": "nowhere"}),
        ("create_bucket", {"Bucket": BUCKET}, {"BucketName": BUCKET}),
        ("create_bucket", {"Bucket": "a"}, {"BucketName": "a"}),
        ("delete_bucket", {"Bucket": BUCKET}, {"BucketName": BUCKET}),
        ("get_object", names | {"VersionId": version}, {"Key": "key", "VersionId": version}),
        ("list_parts", names | {"UploadId": version}, {"UploadId": version}),
        ("get_object", names | {"Range": "bytes=10-"}, {"RangeRequested": "bytes=10-"}),
        ("get_object", names | {"Range": "bytes=10-"}, {"ActualObjectSize": "10"}),
        ("get_object", names | {"IfMatch": '"other"'}, {"Condition": "If-Match"}),
        ("put_object", names | {"IfNoneMatch": "*"}, {"Condition": "If-None-Match"}),
        ("delete_object", names | {"IfMatch": '"other"'}, {"Condition": "If-Match"}),
        ("copy_object", {"Bucket": "other", "Key": "key", "CopySource": source}, {"Key": "nothing"}),
        ("get_bucket_tagging", {"Bucket": BUCKET}, {"BucketName": BUCKET}),
    ):
        found = []
        for client in clients:
            with pytest.raises(ClientError) as caught:
                getattr(client, call)(**parameters)
            found.append(caught.value.response["Error"])
        assert found[0] == found[1]
        assert found[0].items() >= facts.items()


def test_a_list_of_no_keys_is_malformed(clients: tuple[Any, Any]) -> None:
    errors = []
    for client in clients:
        with pytest.raises(ClientError) as caught:
            client.delete_objects(Bucket=BUCKET, Delete={"Objects": []})
        errors.append({name: caught.value.response["Error"][name] for name in ("Code", "Message")})
    assert errors[0] == errors[1]
    assert errors[0]["Code"] == "MalformedXML"
    assert fordway.boto.answered == {("DeleteObjects", "in process"): 1}


def test_responses_name_the_owner_and_the_date(clients: tuple[Any, Any]) -> None:
    within, through = clients
    within.put_object(Bucket=BUCKET, Key="key")
    owner = within.list_buckets()["Owner"]
    assert owner.keys() == through.list_buckets()["Owner"].keys()
    assert within.list_objects(Bucket=BUCKET)["Contents"][0]["Owner"] == owner
    for client in clients:
        first = client.list_objects_v2(Bucket=BUCKET, FetchOwner=True)["Contents"][0]
        assert first["Owner"].keys() == owner.keys()
        deleted = client.delete_object(Bucket=BUCKET, Key="none")
        assert deleted["ResponseMetadata"]["HTTPHeaders"]["date"].endswith(" GMT")
    assert {way for _, way in fordway.boto.answered} == {"in process"}


@pytest.mark.usefixtures("without_endpoint")
def test_a_call_is_repeated_while_another_program_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LockedStore:
        """A store whose next calls fail because of a lock, after they have read the body."""

        def __init__(self, store: Store, failures: int) -> None:
            self._store, self.failures = store, failures

        def put_with_info(self, bucket: str, key: str, content: Any, **options: Any) -> object:  # noqa: ANN401
            if self.failures:
                self.failures -= 1
                if hasattr(content, "read"):
                    content.read()
                raise exception_for("LockTimeout", "put: locked", f"s3://{bucket}/{key}", "locked")
            return self._store.put_with_info(bucket, key, content, **options)

    monkeypatch.setattr(fordway.boto.time, "sleep", lambda _: None)
    (tmp_path / BUCKET).mkdir()
    with installed(tmp_path) as store:
        client = boto3.session.Session().client("s3", config=Config(retries={"total_max_attempts": 3}))
        for body in (b"0123456789", "0123456789", io.BytesIO(b"..0123456789")):
            if hasattr(body, "seek"):
                body.seek(2)
            monkeypatch.setattr(fordway.boto, "_store", LockedStore(store, 2))
            done = client.put_object(Bucket=BUCKET, Key="key", Body=body)
            assert done["ResponseMetadata"]["RetryAttempts"] == 2
            assert (tmp_path / BUCKET / "key").read_bytes() == b"0123456789"
        monkeypatch.setattr(fordway.boto, "_store", locked := LockedStore(store, 9))
        with pytest.raises(ClientError, match="SlowDown") as caught:
            client.put_object(Bucket=BUCKET, Key="key", Body=b"other")
        assert caught.value.response["ResponseMetadata"]["RetryAttempts"] == 2
        assert locked.failures == 6
