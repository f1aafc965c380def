"""Tests boto3's client for AWS STS, and S3 requests with the temporary credentials that STS issues."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import os
import socket
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from conftest import READY, program

AUDIENCE = "https://wlcg.cern.ch/jwt/v1/any"
ROLE_ARN = "arn:aws:iam:::role/{}"

boto3 = pytest.importorskip("boto3", reason="boto3 is missing")
config_of_botocore = pytest.importorskip("botocore.config", reason="boto3 is missing")
# These packages are dependencies of other clients, so they are installed together with the clients.
rsa = pytest.importorskip("rsa", reason="rsa is missing")
requests = pytest.importorskip("requests", reason="requests is missing")


def encoded(content: bytes) -> str:
    """Returns base64url without padding."""
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class Provider:
    """An OIDC provider in this process, with one RSA key."""

    def __init__(self) -> None:
        self.public, self.private = rsa.newkeys(2048)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                document = provider.documents().get(self.path)
                body = json.dumps(document).encode()
                self.send_response(404 if document is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def documents(self) -> dict[str, dict]:
        """Returns the provider's documents by path."""
        numbers = (self.public.n, self.public.e)
        modulus, exponent = (encoded(number.to_bytes((number.bit_length() + 7) // 8)) for number in numbers)
        key = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "one", "n": modulus, "e": exponent}
        discovery = {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/jwks"}
        return {"/.well-known/openid-configuration": discovery, "/jwks": {"keys": [key]}}

    def token(self, **changes: object) -> str:
        """Returns a token that follows the WLCG profile. `changes` replace claims."""
        now = int(time.time())
        claims = {"wlcg.ver": "1.0", "iss": self.issuer, "sub": "a-subject", "aud": AUDIENCE, "iat": now}
        claims |= {"nbf": now, "exp": now + 600, "wlcg.groups": ["/cms"], "scope": "storage.read:/"} | changes
        header = {"alg": "RS256", "kid": "one", "typ": "JWT"}
        signed = ".".join(encoded(json.dumps(part).encode()) for part in (header, claims))
        return f"{signed}.{encoded(rsa.sign(signed.encode(), self.private, 'SHA-256'))}"


@pytest.fixture(scope="module")
def provider():
    """An OIDC provider."""
    provider = Provider()
    yield provider
    provider.server.shutdown()
    provider.server.server_close()


@dataclass(frozen=True)
class Service:
    """A gateway whose users file has a user and two roles."""

    endpoint: str
    place: Path

    def client(self, name: str, credentials: dict | None = None):
        """Returns a client with the user's keys, or with temporary credentials."""
        keys = {"aws_access_key_id": "ALICE", "aws_secret_access_key": "alice-secret"}
        if credentials:
            keys = {
                "aws_access_key_id": credentials["AccessKeyId"],
                "aws_secret_access_key": credentials["SecretAccessKey"],
                "aws_session_token": credentials["SessionToken"],
            }
        # Without this setting, boto3 signs URLs and forms with Signature Version 2.
        config = config_of_botocore.Config(signature_version="s3v4") if name == "s3" else None
        where = {"endpoint_url": self.endpoint, "region_name": "us-east-1"}
        return boto3.client(name, config=config, **where, **keys)


def users_file(issuer: str, audience: str) -> str:
    """Returns a users file with a user, a role for the user, and a role for tokens that the issuer signs."""
    who = f"uid = {os.geteuid()}\ngid = {os.getegid()}\n"
    return f"""
[[user]]
name = "alice"
access_key = "ALICE"
secret_key = "alice-secret"
{who}
[[oidc]]
issuer = "{issuer}"
audience = ["{audience}"]
allow_private = true
[[role]]
name = "readers"
read_only = true
assumed_by = ["alice"]
{who}
[[role]]
name = "cms"
max_duration_s = 900
{who}
[[role.oidc]]
issuer = "{issuer}"
[role.oidc.claims]
"wlcg.groups" = ["/cms", "/cms/*"]
"""


@contextlib.contextmanager
def serving(place: Path, users: str) -> Iterator[Service]:
    """Yields a gateway in `place` that issues temporary credentials."""
    binary = program(os.environ.get("FORDWAY_BIN", "fordway"))
    (place / "root" / "bucket").mkdir(parents=True)
    (place / "root" / "bucket" / "key").write_bytes(b"content")
    for name, text in (("users.toml", users), ("session.key", "k" * 40)):
        (place / name).touch(mode=0o600)
        (place / name).write_text(text)
    command = [binary, "serve", str(place / "root"), "--listen", "127.0.0.1:0", "--durability", "none"]
    command += ["--credentials", str(place / "users.toml"), "--session-key", str(place / "session.key")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            ready = server.stdout.readline()
            assert ready.startswith(READY), f"not the ready line: {ready!r}"
            yield Service(ready.rsplit(" at ", 1)[1].strip(), place)
        finally:
            server.terminate()
            assert server.wait(timeout=30) == 0


@pytest.fixture(scope="module")
def service(provider: Provider, tmp_path_factory: pytest.TempPathFactory):
    """A gateway that trusts the provider of this module."""
    with serving(tmp_path_factory.mktemp("sts"), users_file(provider.issuer, AUDIENCE)) as service:
        yield service


@contextlib.contextmanager
def openid_server() -> Iterator[str]:
    """Yields the issuer of an independent OIDC server that lets anyone log in."""
    user = json.dumps({"sub": "bob", "wlcg.groups": ["/cms"]})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [program("oidc-provider-mock"), "--port", str(port), "--user-claims", user]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            said = iter(server.stderr.readline, "")
            assert any("Uvicorn running" in line for line in said), "the server has not started"
            # Read the rest of the output, because the server would block when the pipe is full.
            threading.Thread(target=server.stderr.read, daemon=True).start()
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def logged_in(issuer: str, client: str, subject: str) -> str:
    """Logs in with an authorization code, and returns the ID token."""
    back = "http://localhost/back"
    asked = {
        "client_id": client,
        "redirect_uri": back,
        "response_type": "code",
        "scope": "openid",
        "state": "s",
    }
    login = requests.post(
        f"{issuer}/oauth2/authorize", params=asked, data={"sub": subject}, allow_redirects=False, timeout=30
    )
    found = urllib.parse.parse_qs(urllib.parse.urlsplit(login.headers["Location"]).query)
    form = {"grant_type": "authorization_code", "code": found["code"][0], "redirect_uri": back}
    answer = requests.post(f"{issuer}/oauth2/token", data=form, auth=(client, "secret"), timeout=30)
    return answer.json()["id_token"]


def test_an_openid_server_by_others_is_understood(tmp_path: Path) -> None:
    with openid_server() as issuer, serving(tmp_path, users_file(issuer, "a-client")) as service:
        sts, token = service.client("sts"), logged_in(issuer, "a-client", "bob")
        arguments = {"RoleArn": ROLE_ARN.format("cms"), "RoleSessionName": "job"}
        assumed = sts.assume_role_with_web_identity(WebIdentityToken=token, **arguments)
        assert (assumed["SubjectFromWebIdentityToken"], assumed["Provider"]) == ("bob", issuer)
        s3 = service.client("s3", assumed["Credentials"])
        assert s3.get_object(Bucket="bucket", Key="key")["Body"].read() == b"content"
        token = logged_in(issuer, "another-client", "bob")
        with pytest.raises(sts.exceptions.InvalidIdentityTokenException):
            sts.assume_role_with_web_identity(WebIdentityToken=token, **arguments)
        token = logged_in(issuer, "a-client", "somebody-else")
        with pytest.raises(sts.exceptions.ClientError) as refused:
            sts.assume_role_with_web_identity(WebIdentityToken=token, **arguments)
        assert code(refused) == "AccessDenied"


def code(error: pytest.ExceptionInfo) -> str:
    """Returns the code of a ClientError."""
    return error.value.response["Error"]["Code"]


def test_a_user_gets_a_session(service: Service) -> None:
    sts = service.client("sts")
    assert sts.get_caller_identity()["Arn"] == "arn:aws:iam:::user/alice"
    credentials = sts.get_session_token(DurationSeconds=900)["Credentials"]
    left = credentials["Expiration"] - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(seconds=840) < left <= datetime.timedelta(seconds=900)
    s3 = service.client("s3", credentials)
    s3.put_object(Bucket="bucket", Key="new", Body=b"new")
    assert s3.get_object(Bucket="bucket", Key="new")["Body"].read() == b"new"
    url = s3.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "key"})
    assert "X-Amz-Security-Token" in url
    got = subprocess.run([program("curl"), "-sSf", url], capture_output=True, check=True)
    assert got.stdout == b"content"
    again = service.client("sts", credentials)
    assert again.get_caller_identity()["UserId"] == "alice"
    with pytest.raises(again.exceptions.ClientError) as refused:
        again.get_session_token()
    assert code(refused) == "AccessDenied"


def test_large_objects_are_stored_in_a_session(service: Service) -> None:
    credentials = service.client("sts").get_session_token()["Credentials"]
    s3, content = service.client("s3", credentials), os.urandom(9 * 1024 * 1024)
    (service.place / "large").write_bytes(content)
    s3.upload_file(str(service.place / "large"), "bucket", "large")
    assert (service.place / "root" / "bucket" / "large").read_bytes() == content


def test_a_form_is_signed_in_a_session(service: Service) -> None:
    s3 = service.client("s3", service.client("sts").get_session_token()["Credentials"])
    form = s3.generate_presigned_post("bucket", "form")
    assert "x-amz-security-token" in form["fields"]
    fields = [argument for pair in form["fields"].items() for argument in ("-F", "{}={}".format(*pair))]
    command = [program("curl"), "-sSf", *fields, "-F", "file=content", form["url"]]
    subprocess.run(command, check=True, capture_output=True)
    assert (service.place / "root" / "bucket" / "form").read_bytes() == b"content"


def test_a_user_assumes_a_role(service: Service) -> None:
    sts = service.client("sts")
    assumed = sts.assume_role(RoleArn=ROLE_ARN.format("readers"), RoleSessionName="night-run")
    assert assumed["AssumedRoleUser"]["Arn"] == "arn:aws:sts:::assumed-role/readers/night-run"
    s3 = service.client("s3", assumed["Credentials"])
    assert s3.get_object(Bucket="bucket", Key="key")["Body"].read() == b"content"
    with pytest.raises(s3.exceptions.ClientError) as refused:
        s3.put_object(Bucket="bucket", Key="refused", Body=b"")
    assert code(refused) == "AccessDenied"
    with pytest.raises(sts.exceptions.ClientError) as refused:
        sts.assume_role(RoleArn=ROLE_ARN.format("cms"), RoleSessionName="night-run")
    assert code(refused) == "AccessDenied"


def test_a_web_identity_assumes_a_role(service: Service, provider: Provider) -> None:
    sts = service.client("sts")
    arguments = {"RoleArn": ROLE_ARN.format("cms"), "RoleSessionName": "job"}
    assumed = sts.assume_role_with_web_identity(WebIdentityToken=provider.token(), **arguments)
    assert assumed["SubjectFromWebIdentityToken"] == "a-subject"
    s3 = service.client("s3", assumed["Credentials"])
    assert s3.get_object(Bucket="bucket", Key="key")["Body"].read() == b"content"
    for exception, token in [
        (sts.exceptions.ExpiredTokenException, provider.token(exp=int(time.time()) - 120)),
        (sts.exceptions.InvalidIdentityTokenException, provider.token(aud="another")),
        (sts.exceptions.InvalidIdentityTokenException, provider.token()[:-8]),
        (sts.exceptions.ClientError, provider.token(**{"wlcg.groups": ["/atlas"]})),
    ]:
        with pytest.raises(exception):
            sts.assume_role_with_web_identity(WebIdentityToken=token, **arguments)


def test_boto3_refreshes_credentials_by_itself(
    service: Service, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boto3 gets the credentials with a token from a file. Boto3 replaces the credentials 15 minutes before
    they expire. Credentials for this role are valid for 15 minutes, so boto3 replaces them immediately.
    """
    token = service.place / "token"
    token.write_text(provider.token())
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_ENDPOINT_URL": service.endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_ROLE_ARN": ROLE_ARN.format("cms"),
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
    }.items():
        monkeypatch.setenv(name, value)
    session = boto3.Session()
    s3 = session.client("s3")
    assert s3.get_object(Bucket="bucket", Key="key")["Body"].read() == b"content"
    before = session.get_credentials().access_key
    token.write_text(provider.token(sub="another-subject"))
    assert s3.get_object(Bucket="bucket", Key="key")["Body"].read() == b"content"
    assert session.get_credentials().access_key != before


def test_the_command_line_gets_credentials(service: Service) -> None:
    """Gets temporary credentials with aws-cli, and reads an object with these credentials."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    keys = {"AWS_ACCESS_KEY_ID": "ALICE", "AWS_SECRET_ACCESS_KEY": "alice-secret"}
    where = {"AWS_ENDPOINT_URL": service.endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
    command = [program("aws"), "sts", "get-session-token", "--output", "json"]
    printed = subprocess.run(command, capture_output=True, check=True, env=kept | keys | where)
    credentials = json.loads(printed.stdout)["Credentials"]
    s3 = service.client("s3", credentials)
    assert s3.get_object(Bucket="bucket", Key="key")["Body"].read() == b"content"
