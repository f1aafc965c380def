"""Tests notification configurations and events with an unmodified boto3: the calls, the received events, and
the errors. The gateway of this file has a webhook, so the tests start it themselves.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote_plus

import pytest
from conftest import READY, program

boto3 = pytest.importorskip("boto3", reason="boto3 is missing")
config_of_botocore = pytest.importorskip("botocore.config", reason="boto3 is missing")
exceptions = pytest.importorskip("botocore.exceptions", reason="boto3 is missing")

ARN = "arn:fordway:sqs::ci:webhook"


class Receiver:
    """A web server that keeps the records of all events."""

    def __init__(self) -> None:
        records: list[dict] = []
        self.records = records

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                records.extend(json.loads(body)["Records"])
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/"

    def events(self, count: int) -> list[tuple[str, str]]:
        """Waits for `count` events; returns their names and keys in the order of their sequencers."""
        deadline = time.monotonic() + 20
        while len(self.records) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        ordered = sorted(self.records, key=lambda record: record["s3"]["object"]["sequencer"])
        self.records.clear()
        return [(record["eventName"], unquote_plus(record["s3"]["object"]["key"])) for record in ordered]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


@pytest.fixture
def s3(tmp_path: Path, receiver: Receiver) -> Iterator:
    root = tmp_path / "root"
    root.mkdir()
    options = ["--listen", "127.0.0.1:0", "--webhook", f"ci={receiver.url}", "--webhook-private", "ci"]
    environment = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret"}
    command = [program(os.environ.get("FORDWAY_BIN", "fordway")), "serve", str(root), *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | environment
    ) as gateway:
        try:
            ready = gateway.stdout.readline()
            assert ready.startswith(READY), f"not the ready line: {ready!r}"
            yield boto3.client(
                "s3",
                endpoint_url=ready.strip().rpartition(" at ")[2],
                aws_access_key_id="me",
                aws_secret_access_key="secret",
                region_name="us-east-1",
                config=config_of_botocore.Config(signature_version="s3v4"),
            )
        finally:
            gateway.terminate()


def configure(s3, events: list[str], **more: object) -> None:
    rule = {"QueueArn": ARN, "Events": events, **more}
    s3.put_bucket_notification_configuration(
        Bucket="bucket", NotificationConfiguration={"QueueConfigurations": [rule]}
    )


def test_a_configuration_comes_back(s3) -> None:
    s3.create_bucket(Bucket="bucket")
    assert "QueueConfigurations" not in s3.get_bucket_notification_configuration(Bucket="bucket")
    prefix = {"Name": "prefix", "Value": "in/"}
    queue = {
        "Id": "q",
        "QueueArn": ARN,
        "Events": ["s3:ObjectCreated:*"],
        "Filter": {"Key": {"FilterRules": [prefix]}},
    }
    topic = {"Id": "t", "TopicArn": "arn:fordway:sns::ci:webhook", "Events": ["s3:ObjectRemoved:Delete"]}
    s3.put_bucket_notification_configuration(
        Bucket="bucket",
        NotificationConfiguration={"QueueConfigurations": [queue], "TopicConfigurations": [topic]},
    )
    found = s3.get_bucket_notification_configuration(Bucket="bucket")
    found["QueueConfigurations"][0]["Filter"]["Key"]["FilterRules"][0]["Name"] = "prefix"
    assert (found["QueueConfigurations"], found["TopicConfigurations"]) == ([queue], [topic])
    s3.put_bucket_notification_configuration(Bucket="bucket", NotificationConfiguration={})
    assert "QueueConfigurations" not in s3.get_bucket_notification_configuration(Bucket="bucket")


def test_what_is_not_supported_is_refused(s3) -> None:
    s3.create_bucket(Bucket="bucket")
    other = {"QueueArn": "arn:fordway:sqs::other:webhook", "Events": ["s3:ObjectCreated:*"]}
    function = {"LambdaFunctionArn": "arn:aws:lambda:::f", "Events": ["s3:ObjectCreated:*"]}
    for configuration, code in (
        ({"QueueConfigurations": [other]}, "InvalidArgument"),
        ({"QueueConfigurations": [other | {"QueueArn": "arn:aws:sqs:us-east-1:1:q"}]}, "InvalidArgument"),
        ({"QueueConfigurations": [other | {"Events": ["s3:Nothing"]}]}, "InvalidArgument"),
        ({"LambdaFunctionConfigurations": [function]}, "NotImplemented"),
        ({"EventBridgeConfiguration": {}}, "NotImplemented"),
    ):
        with pytest.raises(exceptions.ClientError) as refused:
            s3.put_bucket_notification_configuration(Bucket="bucket", NotificationConfiguration=configuration)
        assert refused.value.response["Error"]["Code"] == code, configuration
    s3.put_bucket_notification_configuration(
        Bucket="bucket",
        NotificationConfiguration={"QueueConfigurations": [other]},
        SkipDestinationValidation=True,
    )


def test_each_change_has_its_event(s3, receiver: Receiver) -> None:
    s3.create_bucket(Bucket="bucket")
    configure(s3, ["s3:ObjectCreated:*", "s3:ObjectRemoved:*", "s3:ObjectTagging:*"])
    s3.put_object(Bucket="bucket", Key="a b+c", Body=b"hello")
    s3.copy_object(Bucket="bucket", Key="copy", CopySource={"Bucket": "bucket", "Key": "a b+c"})
    s3.put_object_tagging(Bucket="bucket", Key="copy", Tagging={"TagSet": [{"Key": "k", "Value": "v"}]})
    s3.delete_object_tagging(Bucket="bucket", Key="copy")
    upload = s3.create_multipart_upload(Bucket="bucket", Key="big")["UploadId"]
    part = s3.upload_part(Bucket="bucket", Key="big", UploadId=upload, PartNumber=1, Body=b"part")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(Bucket="bucket", Key="big", UploadId=upload, MultipartUpload=parts)
    s3.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "copy"}, {"Key": "big"}]})
    found = receiver.events(7)
    assert found[:5] == [
        ("ObjectCreated:Put", "a b+c"),
        ("ObjectCreated:Copy", "copy"),
        ("ObjectTagging:Put", "copy"),
        ("ObjectTagging:Delete", "copy"),
        ("ObjectCreated:CompleteMultipartUpload", "big"),
    ]
    assert sorted(found[5:]) == [("ObjectRemoved:Delete", "big"), ("ObjectRemoved:Delete", "copy")]


def test_versions_and_delete_markers(s3, receiver: Receiver) -> None:
    s3.create_bucket(Bucket="bucket")
    s3.put_bucket_versioning(Bucket="bucket", VersioningConfiguration={"Status": "Enabled"})
    configure(s3, ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"])
    first = s3.put_object(Bucket="bucket", Key="k", Body=b"1")["VersionId"]
    second = s3.put_object(Bucket="bucket", Key="k", Body=b"22")["VersionId"]
    marker = s3.delete_object(Bucket="bucket", Key="k")["VersionId"]
    s3.delete_object(Bucket="bucket", Key="k", VersionId=first)
    deadline = time.monotonic() + 20
    while len(receiver.records) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    objects = [(record["eventName"], record["s3"]["object"]) for record in receiver.records]
    objects.sort(key=lambda pair: pair[1]["sequencer"])
    assert [(name, found["versionId"], found.get("size")) for name, found in objects] == [
        ("ObjectCreated:Put", first, 1),
        ("ObjectCreated:Put", second, 2),
        ("ObjectRemoved:DeleteMarkerCreated", marker, None),
        ("ObjectRemoved:Delete", first, None),
    ]


def test_filters(s3, receiver: Receiver) -> None:
    s3.create_bucket(Bucket="bucket")
    rules = [{"Name": "prefix", "Value": "in/"}, {"Name": "suffix", "Value": ".root"}]
    configure(s3, ["s3:ObjectCreated:Put"], Filter={"Key": {"FilterRules": rules}})
    for key in ("in/a.txt", "out/a.root", "in/a.root"):
        s3.put_object(Bucket="bucket", Key=key, Body=b"x")
    s3.delete_object(Bucket="bucket", Key="in/a.root")
    assert receiver.events(1) == [("ObjectCreated:Put", "in/a.root")]
    time.sleep(0.5)
    assert receiver.records == []


def test_forms(s3, receiver: Receiver) -> None:
    requests = pytest.importorskip("requests", reason="requests is missing")
    s3.create_bucket(Bucket="bucket")
    configure(s3, ["s3:ObjectCreated:Post"])
    form = s3.generate_presigned_post("bucket", "form")
    sent = requests.post(form["url"], data=form["fields"], files={"file": b"content"}, timeout=30)
    assert sent.status_code == 204, sent.text
    assert receiver.events(1) == [("ObjectCreated:Post", "form")]
