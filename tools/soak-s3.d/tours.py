"""A tour of the gateway by each client: everyday use of S3, with a check of the content in each step.

A tour is a generator of pairs (step, failure). The failure is an empty string if the step succeeded. The tour
of a client that is not installed raises `Absent` before its first step.
"""

import hashlib
import importlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import traceback
import urllib.error
import urllib.request

LARGE = bytes(range(256)) * (80 << 10)  # 20 MiB: three parts or more for every client.


class Absent(Exception):
    """The client is not installed."""


def module(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Absent(f"there is no Python package {name} ({error})") from error


def program(name):
    return shutil.which(name) or _absent(name)


def _absent(name):
    raise Absent(f"there is no program {name}")


def steps(of, *arguments):
    """Runs the steps of a tour in order. Each step is a function that asserts."""
    for step in of:
        try:
            step(*arguments)
            yield step.__name__, ""
        except Exception as error:  # A step that fails must not prevent later steps.
            where = traceback.extract_tb(error.__traceback__)[-1]
            yield step.__name__, f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"


def code_of(call, **arguments):
    """Returns the code of the error that a call raises. A call that succeeds fails the step."""
    client_error = module("botocore.exceptions").ClientError
    try:
        call(**arguments)
    except client_error as error:
        return error.response["Error"]["Code"]
    raise AssertionError("the call succeeded")


# ---- boto3


def boto3(gateway, place):
    """boto3, with its default settings."""
    library = module("boto3")
    config = module("botocore.config").Config(signature_version="s3v4")
    s3 = library.client(
        "s3",
        endpoint_url=gateway.url,
        aws_access_key_id="main",
        aws_secret_access_key="main-secret",
        region_name="us-east-1",
        config=config,
        verify=False,
    )
    b = "tour-boto3"

    def create():
        s3.create_bucket(Bucket=b)
        assert b in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]

    def put():
        for key in ("a b+c", "ä/ö~", "dir/k"):
            s3.put_object(Bucket=b, Key=key, Body=key.encode())
            assert s3.get_object(Bucket=b, Key=key)["Body"].read() == key.encode()

    def checksums():
        errors = module("botocore.exceptions")
        missing = (errors.MissingDependencyException, errors.FlexibleChecksumError)
        for algorithm in (
            "CRC32",
            "CRC32C",
            "CRC64NVME",
            "SHA1",
            "SHA256",
            "SHA512",
            "MD5",
            "XXHASH64",
            "XXHASH3",
            "XXHASH128",
        ):
            try:
                s3.put_object(Bucket=b, Key="sum", Body=b"summed", ChecksumAlgorithm=algorithm)
            except missing:  # Some algorithms need awscrt, and boto3 cannot compute MD5.
                continue
            answer = s3.get_object(Bucket=b, Key="sum", ChecksumMode="ENABLED")
            assert answer["Body"].read() == b"summed" and answer["Checksum" + algorithm], algorithm

    def multipart():
        transfer = module("boto3.s3.transfer").TransferConfig(
            multipart_threshold=5 << 20, multipart_chunksize=5 << 20
        )
        path = place / "large"
        path.write_bytes(LARGE)
        s3.upload_file(str(path), b, "large", Config=transfer)
        s3.download_file(b, "large", str(place / "back"), Config=transfer)
        assert (place / "back").read_bytes() == LARGE
        assert s3.head_object(Bucket=b, Key="large")["ETag"].endswith('-4"')

    def ranges():
        answer = s3.get_object(Bucket=b, Key="large", Range="bytes=1000-1999")
        assert answer["Body"].read() == LARGE[1000:2000] and answer["ContentRange"].endswith(f"/{len(LARGE)}")

    def listing():
        for number in range(2500):
            s3.put_object(Bucket=b, Key=f"many/{number:04}", Body=b"")
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=b, Prefix="many/")
        keys = [entry["Key"] for page in pages for entry in page["Contents"]]
        assert keys == [f"many/{number:04}" for number in range(2500)]

    def copy():
        s3.copy_object(
            Bucket=b, Key="copy", CopySource={"Bucket": b, "Key": "a b+c"}, ChecksumAlgorithm="SHA256"
        )
        assert s3.get_object(Bucket=b, Key="copy")["Body"].read() == b"a b+c"
        s3.copy({"Bucket": b, "Key": "large"}, b, "large copy")
        assert s3.head_object(Bucket=b, Key="large copy")["ContentLength"] == len(LARGE)

    def metadata():
        s3.put_object(
            Bucket=b, Key="said", Body=b"x", Metadata={"colour": "red"}, ContentType="a/b", Tagging="t=u"
        )
        answer = s3.head_object(Bucket=b, Key="said")
        assert (answer["Metadata"], answer["ContentType"]) == ({"colour": "red"}, "a/b")
        assert s3.get_object_tagging(Bucket=b, Key="said")["TagSet"] == [{"Key": "t", "Value": "u"}]

    def delete_many():
        for start in range(0, 2500, 1000):
            objects = [{"Key": f"many/{number:04}"} for number in range(start, min(start + 1000, 2500))]
            answer = s3.delete_objects(Bucket=b, Delete={"Objects": objects})
            assert len(answer["Deleted"]) == len(objects) and "Errors" not in answer
        assert s3.list_objects_v2(Bucket=b, Prefix="many/")["KeyCount"] == 0

    def presigned():
        url = s3.generate_presigned_url("put_object", Params={"Bucket": b, "Key": "signed"})
        request = urllib.request.Request(url, data=b"by url", method="PUT", headers={"content-type": ""})
        urllib.request.urlopen(request).close()
        url = s3.generate_presigned_url("get_object", Params={"Bucket": b, "Key": "signed"})
        assert urllib.request.urlopen(url).read() == b"by url"

    def conditional():
        tag = s3.put_object(Bucket=b, Key="once", Body=b"1", IfNoneMatch="*")["ETag"]
        assert (
            code_of(s3.put_object, Bucket=b, Key="once", Body=b"2", IfNoneMatch="*") == "PreconditionFailed"
        )
        s3.put_object(Bucket=b, Key="once", Body=b"3", IfMatch=tag)
        assert code_of(s3.get_object, Bucket=b, Key="once", IfMatch=tag) == "PreconditionFailed"

    def versioned():
        s3.put_bucket_versioning(Bucket=b, VersioningConfiguration={"Status": "Enabled"})
        first, second = (s3.put_object(Bucket=b, Key="v", Body=body)["VersionId"] for body in (b"1", b"2"))
        assert s3.get_object(Bucket=b, Key="v", VersionId=first)["Body"].read() == b"1"
        s3.delete_object(Bucket=b, Key="v")
        assert code_of(s3.get_object, Bucket=b, Key="v") == "NoSuchKey"
        names = [
            version["VersionId"] for version in s3.list_object_versions(Bucket=b, Prefix="v")["Versions"]
        ]
        assert names == [second, first]

    def refused():
        answer = code_of(s3.rename_object, Bucket=b, Key="large", RenameSource=f"/{b}/copy")
        assert answer == "NotImplemented"
        assert s3.head_object(Bucket=b, Key="large")["ContentLength"] == len(LARGE)

    tour = [
        create,
        put,
        checksums,
        multipart,
        ranges,
        listing,
        copy,
        metadata,
        delete_many,
        presigned,
        conditional,
    ]
    yield from steps([*tour, versioned, refused])


# ---- programs


class Commands:
    """Runs programs with the gateway's keys in their environment."""

    def __init__(self, gateway, place, further=()):
        self.environment = gateway.environment() | {"HOME": str(place)} | dict(further)
        self.place = place

    def __call__(self, *command, status=0):
        done = subprocess.run(
            [str(word) for word in command],
            env=self.environment,
            cwd=self.place,
            capture_output=True,
            timeout=600,
        )
        assert (done.returncode == 0) == (status == 0), (
            f"{command}: {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}"
        )
        return done.stdout.decode(errors="replace")


def files(place, count):
    """Creates a directory of small files and one large file. Returns the directory."""
    many = place / "many"
    many.mkdir()
    for number in range(count):
        (many / f"{number:04}").write_text(str(number))
    (place / "large").write_bytes(LARGE)
    return many


def same(one, other):
    assert (
        hashlib.sha256(pathlib.Path(one).read_bytes()).digest()
        == hashlib.sha256(pathlib.Path(other).read_bytes()).digest()
    )


def aws_cli(gateway, place):
    """The AWS command line."""
    aws, run, b = program("aws"), Commands(gateway, place), "tour-awscli"
    many = files(place, 2500)

    def create():
        run(aws, "s3", "mb", f"s3://{b}")

    def multipart():
        run(aws, "s3", "cp", "large", f"s3://{b}/large")
        run(aws, "s3", "cp", f"s3://{b}/large", "back")
        same(place / "large", place / "back")

    def ranges():
        run(aws, "s3api", "get-object", "--bucket", b, "--key", "large", "--range", "bytes=5-9", "part")
        assert (place / "part").read_bytes() == LARGE[5:10]

    def listing():
        run(aws, "s3", "sync", many, f"s3://{b}/many")
        assert len(run(aws, "s3", "ls", f"s3://{b}/many/").splitlines()) == 2500

    def copy():
        run(aws, "s3", "cp", f"s3://{b}/large", f"s3://{b}/copy", "--metadata", "colour=red")
        assert "red" in run(aws, "s3api", "head-object", "--bucket", b, "--key", "copy")

    def presigned():
        url = run(aws, "s3", "presign", f"s3://{b}/many/0007").strip()
        assert urllib.request.urlopen(url).read() == b"7"

    def conditional():
        put = (
            aws,
            "s3api",
            "put-object",
            "--bucket",
            b,
            "--key",
            "once",
            "--body",
            many / "0001",
            "--if-none-match",
            "*",
        )
        run(*put)
        run(*put, status=1)

    def versioned():
        run(
            aws,
            "s3api",
            "put-bucket-versioning",
            "--bucket",
            b,
            "--versioning-configuration",
            "Status=Enabled",
        )
        assert "Enabled" in run(aws, "s3api", "get-bucket-versioning", "--bucket", b)

    def delete_many():
        run(aws, "s3", "rm", f"s3://{b}", "--recursive")
        assert run(aws, "s3", "ls", f"s3://{b}", "--recursive") == ""

    yield from steps(
        [create, multipart, ranges, listing, copy, presigned, conditional, versioned, delete_many]
    )


def rclone(gateway, place):
    """rclone, including its check of contents."""
    settings = {
        "RCLONE_CONFIG_T_TYPE": "s3",
        "RCLONE_CONFIG_T_PROVIDER": "Other",
        "RCLONE_CONFIG_T_ENDPOINT": gateway.url,
        "RCLONE_CONFIG_T_ENV_AUTH": "true",
    }
    run, b, tool = Commands(gateway, place, settings), "t:tour-rclone", program("rclone")
    many = files(place, 2500)

    def create():
        run(tool, "mkdir", b)

    def listing():
        run(tool, "copy", many, f"{b}/many", "--transfers", "8")
        assert len(run(tool, "lsf", f"{b}/many").splitlines()) == 2500

    def check():
        run(tool, "check", many, f"{b}/many")

    def multipart():
        run(tool, "copyto", "large", f"{b}/large", "--s3-upload-cutoff", "5M", "--s3-chunk-size", "5M")
        run(tool, "copyto", f"{b}/large", "back")
        same(place / "large", place / "back")

    def ranges():
        assert run(tool, "cat", f"{b}/many/0123", "--offset", "1", "--count", "2") == "23"

    def copy():
        run(tool, "copyto", f"{b}/large", f"{b}/copy")
        assert "20971520" in run(tool, "size", f"{b}/copy")

    def presigned():
        assert urllib.request.urlopen(run(tool, "link", f"{b}/many/0007").strip()).read() == b"7"

    def versioned():
        run(tool, "backend", "versioning", b, "Enabled")
        assert "Enabled" in run(tool, "backend", "versioning", b)

    def delete_many():
        run(tool, "delete", b)
        assert run(tool, "lsf", b, "-R", "--files-only") == ""

    yield from steps([create, listing, check, multipart, ranges, copy, presigned, versioned, delete_many])


def s5cmd(gateway, place):
    """s5cmd."""
    run, b = Commands(gateway, place, {"S3_ENDPOINT_URL": gateway.url}), "s3://tour-s5cmd"
    tool, many = program("s5cmd"), files(place, 2500)

    def create():
        run(tool, "mb", b)

    def listing():
        run(tool, "cp", f"{many}/", f"{b}/many/")
        assert len(run(tool, "ls", f"{b}/many/").splitlines()) == 2500

    def multipart():
        run(tool, "cp", "--part-size", "5", "large", f"{b}/large")
        run(tool, "cp", f"{b}/large", "back")
        same(place / "large", place / "back")

    def copy():
        run(tool, "cp", "--metadata", "colour=red", f"{b}/large", f"{b}/copy")

    def presigned():
        assert urllib.request.urlopen(run(tool, "presign", f"{b}/many/0007").strip()).read() == b"7"

    def delete_many():
        run(tool, "rm", f"{b}/*")
        run(tool, "rb", b)

    yield from steps([create, listing, multipart, copy, presigned, delete_many])


def restic(gateway, place):
    """restic: creates, fills, checks and prunes a repository."""
    further = {"RESTIC_REPOSITORY": f"s3:{gateway.url}/tour-restic", "RESTIC_PASSWORD": "a password"}
    run, tool, many = Commands(gateway, place, further), program("restic"), files(place, 200)

    def create():
        run(tool, "init")

    def put():
        run(tool, "backup", many, place / "large")

    def check():
        run(tool, "check", "--read-data")

    def restore():
        run(tool, "restore", "latest", "--target", "restored")
        same(place / "large", place / f"restored{place}/large")

    def delete_many():
        run(tool, "forget", "--keep-last", "1", "--prune")

    yield from steps([create, put, check, restore, delete_many])


def s3fs(gateway, place):
    """s3fs, the S3 file system of fsspec."""
    system = module("s3fs").S3FileSystem(
        key="main",
        secret="main-secret",
        endpoint_url=gateway.url,
        client_kwargs={"region_name": "us-east-1", "verify": False},
    )
    b = "tour-s3fs"

    def create():
        system.mkdir(b)

    def put():
        system.pipe(f"{b}/dir/a b+c", b"some")
        assert system.cat(f"{b}/dir/a b+c") == b"some"

    def multipart():
        with system.open(f"{b}/large", "wb", block_size=5 << 20) as file:
            file.write(LARGE)
        assert system.cat(f"{b}/large") == LARGE

    def ranges():
        assert system.cat_file(f"{b}/large", start=7, end=99) == LARGE[7:99]

    def listing():
        system.pipe({f"{b}/many/{number:04}": b"x" for number in range(2500)})
        assert len(system.ls(f"{b}/many", refresh=True)) == 2500

    def copy():
        system.copy(f"{b}/large", f"{b}/copy")
        assert system.info(f"{b}/copy")["size"] == len(LARGE)

    def metadata():
        system.setxattr(f"{b}/copy", colour="red")
        assert system.getxattr(f"{b}/copy", "colour") == "red"

    def presigned():
        assert urllib.request.urlopen(system.sign(f"{b}/dir/a b+c")).read() == b"some"

    def delete_many():
        system.rm(b, recursive=True)
        assert not system.exists(b)

    yield from steps([create, put, multipart, ranges, listing, copy, metadata, presigned, delete_many])


def s3torchconnector(gateway, place):
    """The AWS connector for PyTorch, through its underlying client."""
    client_module = module("s3torchconnectorclient._mountpoint_s3_client")
    os.environ |= {"AWS_ACCESS_KEY_ID": "main", "AWS_SECRET_ACCESS_KEY": "main-secret"}
    client = client_module.MountpointS3Client(region="us-east-1", endpoint=gateway.url, force_path_style=True)
    maker = Commands(gateway, place)

    def create():
        maker(program("aws"), "s3", "mb", "s3://tour-torch")

    def put():
        stream = client.put_object("tour-torch", "k")
        stream.write(LARGE)
        stream.close()

    def get():
        assert b"".join(client.get_object("tour-torch", "k")) == LARGE

    def listing():
        keys = [entry.key for page in client.list_objects("tour-torch") for entry in page.object_info]
        assert keys == ["k"]

    yield from steps([create, put, get, listing])


def _in_place(tour):
    def begun(gateway, _):
        with tempfile.TemporaryDirectory(prefix="tour.") as place:
            yield from tour(gateway, pathlib.Path(place))

    return begun


CLIENTS = [boto3, aws_cli, rclone, s5cmd, restic, s3fs, s3torchconnector]
TOURS = {tour.__name__: _in_place(tour) for tour in CLIENTS}
