"""Checks the files that packages and docs give to administrators: manifests, units, scripts and settings."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import docs_blocks
import pytest
import yaml
from gateways import program

if TYPE_CHECKING:
    from types import ModuleType

TREE = docs_blocks.ROOT


def tool(name: str) -> ModuleType:
    """Loads a Python program of tools/ without running it."""
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(TREE / "tools" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def test_containers_with_our_image_run_what_it_contains() -> None:
    soak = tool("soak-kubernetes")
    documents = [each for text in soak.of_docs().values() for each in yaml.safe_load_all(text)]
    assert list(soak.missing_commands(documents)) == []
    broken = yaml.safe_load(
        "kind: Deployment\n"
        "spec: {template: {spec: {containers: [], initContainers: [\n"
        "  {name: ours, image: 'registry.example/fordway:0.1', command: [sh]},\n"
        "  {name: program, image: fordway, command: [fordway, ls]},\n"
        "  {name: other, image: 'debian:12', command: [sh]}]}}}\n"
    )
    assert list(soak.missing_commands([broken])) == [("ours", "sh")]


def test_the_manifests_give_the_gateway_a_users_file_that_it_accepts() -> None:
    """The files of a Secret belong to root and the group `fsGroup`, and Kubernetes adds the mode 0440."""
    page = tool("soak-kubernetes").of_docs()["docs: gateway.yaml"]
    spec = next(each for each in yaml.safe_load_all(page) if each["kind"] == "Deployment")
    pod = spec["spec"]["template"]["spec"]
    secret = next(each["secret"] for each in pod["volumes"] if "secret" in each)
    assert secret["defaultMode"] == 0o440
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]


def test_the_analysis_waits_for_the_gateway_in_its_pod() -> None:
    page = tool("soak-kubernetes").of_docs()["docs: pod.yaml"]
    pod = next(each for each in yaml.safe_load_all(page) if each["kind"] == "Pod")
    gateway = pod["spec"]["initContainers"][0]
    socket = next(word.removeprefix("--socket=") for word in gateway["args"] if word.startswith("--socket="))
    assert gateway["startupProbe"]["exec"]["command"] == ["fordway", "--endpoint", f"unix://{socket}", "ls"]


def test_replicas_accept_the_session_tokens_of_each_other() -> None:
    documents = list(yaml.safe_load_all(tool("soak-kubernetes").of_docs()["docs: gateway.yaml"]))
    deployment = next(each for each in documents if each["kind"] == "Deployment")
    secret = next(each for each in documents if each["kind"] == "Secret")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert deployment["spec"]["replicas"] > 1
    assert "--session-key=/secret/session.key" in arguments and "session.key" in secret["stringData"]


def sed_command(file: str) -> str:
    """Returns the `sed` command in `file` that adapts logrotate's settings for a gateway run by root."""
    commands = re.findall(r"sed -i '(.*)' /etc/logrotate.d/fordway", (TREE / file).read_text())
    assert len(commands) == 1, file
    return commands[0]


def rotate(place: Path, owner: str, settings: str) -> subprocess.CompletedProcess[str]:
    """Runs logrotate on a log of `owner`, with the settings of the package; `owner` replaces fordway."""
    logs, state, config = place / "log", place / "state", place / "logrotate"
    logs.mkdir(mode=0o750)
    for path in (logs / "a.log", logs / "a.log.1"):
        path.write_text("line\n")
        path.chmod(0o600)
        shutil.chown(path, owner, owner)
    shutil.chown(logs, owner, owner)
    place.chmod(0o755)
    config.write_text(settings.replace("/var/log/fordway", str(logs)).replace("systemctl", "true"))
    config.chmod(0o644)
    command = ["logrotate", "--force", "--state", state, config]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a log to another user")
@pytest.mark.skipif(shutil.which("logrotate") is None, reason="logrotate is missing")
def test_the_logs_of_both_kinds_of_gateway_are_rotated() -> None:
    settings = (TREE / "contrib/package/logrotate").read_text()
    other = pwd.getpwuid(1).pw_name
    of_other = settings.replace("    su fordway fordway", f"    su {other} {other}")
    commands = {
        sed_command(file)
        for file in (
            "contrib/package/logrotate",
            "contrib/fordway-serve.service.d/act-as-users.conf",
            "docs/howto/install.md",
        )
    }
    assert len(commands) == 1
    sed = subprocess.run(["sed", *commands], input=of_other, capture_output=True, text=True, check=True)
    for owner, text, works in [
        (other, of_other, True),
        ("root", sed.stdout, True),
        ("root", of_other, False),
    ]:
        # pytest's directories are in directories that other users cannot search.
        with tempfile.TemporaryDirectory() as place:
            done = rotate(Path(place), owner, text)
            rotated = sorted(path.name for path in (Path(place) / "log").iterdir())
            expected = ["a.log.1", "a.log.2.gz"] if works else ["a.log", "a.log.1"]
            assert (done.returncode == 0, rotated) == (works, expected), (owner, done.stderr)


def unit(name: str) -> list[str]:
    return (TREE / "contrib" / name).read_text().splitlines()


def test_the_unit_keeps_the_mode_of_the_log_directory_that_the_docs_give_it() -> None:
    page = (TREE / "docs/howto/admin.md").read_text()
    mode = re.search(r"--owner fordway --group fordway --mode (\d+) /var/log/fordway", page)[1]
    assert f"LogsDirectoryMode=0{mode}" in unit("fordway-serve.service")


def test_only_a_gateway_with_immutable_locks_may_clear_immutable_flags() -> None:
    lines = unit("fordway-serve.service.d/act-as-users.conf")
    sets = [line.partition("=")[2].split() for line in lines if line.startswith("CapabilityBoundingSet=")]
    # An empty assignment clears the set of the unit; later assignments add capabilities.
    assert sets[0] == []
    assert "CAP_LINUX_IMMUTABLE" not in [capability for some in sets for capability in some]
    assert "#   CapabilityBoundingSet=CAP_LINUX_IMMUTABLE" in lines, (
        "docs/howto/backup.md refers to this line"
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
@pytest.mark.parametrize("name", ["fordway-serve.service", "fordway-node.service"])
def test_systemd_reads_the_units(tmp_path: Path, name: str) -> None:
    """Replaces the path of the program, because the packages' programs are not installed on this machine."""
    for path in (TREE / "contrib").rglob("*"):
        if path.suffix in (".service", ".conf") and path.parent.name in ("contrib", f"{name}.d"):
            copy = tmp_path / path.relative_to(TREE / "contrib")
            copy.parent.mkdir(exist_ok=True)
            copy.write_text(path.read_text().replace("/usr/bin/fordway", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", tmp_path / name]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs a prolog")
@pytest.mark.parametrize("directory", ["usr/bin", "usr/local/bin"])
@pytest.mark.parametrize("kind", ["", "-serve"])
def test_the_prolog_finds_the_program_of_a_package_and_of_a_build(directory: str, kind: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        (place / directory).mkdir(parents=True)
        (place / directory / "fordway").symlink_to(program())
        (place / "root").mkdir()
        paths = {"/usr/local/bin:/usr/bin": f"{place}/usr/local/bin:{place}/usr/bin", "/run/": f"{place}/"}
        environment = {
            "PATH": os.environ["PATH"],
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_UID": "0",
            "FORDWAY_ROOT": str(place / "root"),
        }

        def run(name: str) -> subprocess.CompletedProcess[str]:
            text = (TREE / "contrib" / f"{name}{kind}").read_text()
            for old, new in paths.items():
                text = text.replace(old, new)
            command = ["bash", "-c", text]
            pipe = subprocess.PIPE
            with subprocess.Popen(
                command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
            ) as script:
                out, said = script.communicate()
            # When a prolog ends, Slurm kills the process group of the prolog.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGKILL)
            return subprocess.CompletedProcess(command, script.returncode, out, said)

        def gateway() -> str:
            return (place / "fordway" / ("7-http/pid" if kind else "7.pid")).read_text()

        started = run("slurm-prolog")
        assert started.returncode == 0, started.stderr
        first = gateway()
        again = run("slurm-prolog")
        assert (again.returncode, gateway()) == (0, first), again.stderr
        process = Path("/proc") / first.split()[0]
        assert "fordway" in (process / "cmdline").read_text(), "the gateway outlives the prolog"
        ended = run("slurm-epilog")
        assert ended.returncode == 0, ended.stderr
        assert not process.exists()
        assert not (place / "fordway" / ("7-http" if kind else "7.pid")).exists()
        started = run("slurm-prolog")
        assert started.returncode == 0, started.stderr
        pid = int(gateway().split()[0])
        # The number in the file now belongs to another process, which the epilog must not kill.
        stranger = subprocess.Popen(["sleep", "60"])
        try:
            record = place / "fordway" / ("7-http/pid" if kind else "7.pid")
            record.write_text(f"{stranger.pid} 1\n")
            assert run("slurm-epilog").returncode == 0
            assert stranger.poll() is None
        finally:
            stranger.kill()
            stranger.wait()
            os.kill(pid, signal.SIGTERM)
        (place / directory / "fordway").unlink()
        refused = run("slurm-prolog")
        assert refused.returncode == 1 and "set FORDWAY_BIN" in refused.stderr, refused.stderr
