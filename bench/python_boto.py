"""usage: python_boto.py ROUNDS

The measurement of bench/python-boto.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import boto3

import fordway.boto

CALLS, KEYS = 300, {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


def cpu_s(process: int) -> float:
    """Returns the sum of the CPU times of this process and of the gateway, in seconds."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(client: object, gateway: int, name_of_new: str) -> dict[str, float]:
    """Returns the CPU time per call in microseconds, by operation.

    The names of new objects begin with `name_of_new`.
    """
    body = os.urandom(4096)
    calls: dict[str, Callable[[int], object]] = {
        "put": lambda i: client.put_object(Bucket="bucket", Key=f"{name_of_new}{i}", Body=body),
        "overwrite": lambda i: client.put_object(Bucket="bucket", Key=f"k{i}", Body=body),
        "get": lambda i: client.get_object(Bucket="bucket", Key=f"k{i}")["Body"].read(),
        "head": lambda i: client.head_object(Bucket="bucket", Key=f"k{i}"),
        "list": lambda _: client.list_objects_v2(Bucket="listed"),
    }
    found = {}
    for name, call in calls.items():
        count = CALLS if name != "list" else 10
        before = cpu_s(gateway)
        for number in range(count):
            call(number)
        found[name] = (cpu_s(gateway) - before) / count * 1e6
    return found


def main() -> None:
    """Measures calls in the process and through a gateway in turn, and prints the table."""
    rounds = int(sys.argv[1])
    os.environ |= KEYS | {"AWS_DEFAULT_REGION": "us-east-1"}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        command = ["target/release/fordway", "serve", root, "--listen", "127.0.0.1:0", "--durability", "none"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as gateway:
            os.environ["AWS_ENDPOINT_URL"] = gateway.stdout.readline().rsplit(" at ", 1)[1].strip()
            through = boto3.session.Session().client("s3")
            store = fordway.boto.install(root)
            within = boto3.session.Session().client("s3")
            for bucket in ("bucket", "listed"):
                store.create_bucket(bucket)
            store.put_many("listed", [(f"key{number:04}", b"x") for number in range(1000)])
            store.put_many("bucket", [(f"k{number}", b"x") for number in range(CALLS)])
            runs = [
                (measure(within, gateway.pid, f"i{round}-"), measure(through, gateway.pid, f"g{round}-"))
                for round in range(rounds)
            ]
            gateway.terminate()
    print("CPU time, us        in process   through a gateway   ratio")
    for name in runs[0][0]:
        ours, theirs = (statistics.median(run[way][name] for run in runs) for way in (0, 1))
        print(f"{name:18} {ours:12.1f} {theirs:19.1f} {theirs / ours:7.1f}")


if __name__ == "__main__":
    main()
