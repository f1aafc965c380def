"""Tests that every command in the README, docs/start and docs/howto has the output that its page shows."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import docs_blocks
import pytest
from docs_blocks import Terminal


def environment(home: Path, binary: Path, blocks: Path) -> dict[str, str]:
    """Returns the environment of a new user. The environment contains the two programs and this Python, but
    no S3 settings.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "FORDWAY_", "XDG_", "RCLONE_"))
        and not name.lower().endswith("_proxy")
    }
    path = [str(binary.parent), str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"]
    return kept | {
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home),
        "PATH": os.pathsep.join(path),
        "LC_ALL": "C.UTF-8",
        "USER": "you",
        "BLOCKS": str(blocks),
        "AWS_EC2_METADATA_DISABLED": "true",
        "PYTHONUNBUFFERED": "1",
        # Without this setting, `fordway-lab` may refuse to measure, because tests run in parallel and the
        # machine is rarely idle.
        "FORDWAY_LAB_FORCE": "1",
    }


def fordway() -> Path:
    """Returns the path of the binary `fordway`."""
    named = shutil.which(os.environ.get("FORDWAY_BIN", "fordway"))
    if named is None:
        pytest.skip("fordway is missing: FORDWAY_BIN names the binary")
    return Path(named).resolve()


def as_ordinary_user() -> list[str]:
    """Returns a command prefix that runs a program as an ordinary user, because the pages are for ordinary
    users. If the tests run as root, the prefix creates a user namespace in which root's files belong to this
    user.
    """
    if os.geteuid() != 0:
        return []
    wrapper = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if subprocess.run([*wrapper, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("root cannot become an ordinary user here: there are no user namespaces")
    return wrapper


@pytest.fixture(scope="session")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future]]:
    """Runs the tested pages, several in parallel, because they spend most of their time waiting."""
    asked = [item.callspec.params.get("page") for item in request.session.items if hasattr(item, "callspec")]
    with ThreadPoolExecutor(3) as pool:
        places = {page: tmp_path_factory.mktemp("page") for page in docs_blocks.pages() if page in asked}
        yield {page: pool.submit(run_page, page, place) for page, place in places.items()}


def run_page(page: str, place: Path) -> None:
    """Runs the blocks of a page in a new home directory. Raises `AssertionError` if the page is wrong."""
    binary = fordway()
    # Readers run the commands in a directory below their home directory.
    home, blocks = place / "you", place / "blocks"
    directory = home / "tutorial"
    directory.mkdir(parents=True)
    blocks.mkdir()
    variables = environment(home, binary, blocks)
    with Terminal(directory, variables, as_ordinary_user()) as terminal:
        for block in docs_blocks.blocks(page):
            for needed in filter(None, block.marks.get("needs", "").split(", ")):
                if not is_there(needed, variables):
                    pytest.skip(f"{needed} is missing or fails: the rest of {page} is not run")
            if block.is_run:
                terminal.run(block)


def is_there(needed: str, variables: dict[str, str]) -> bool:
    """Returns whether `needed` is an existing program or a command that succeeds."""
    words = needed.split()
    if shutil.which(words[0], path=variables["PATH"]) is None:
        return False
    command = [*as_ordinary_user(), *words]
    return len(words) == 1 or subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("page", docs_blocks.pages())
def test_page_does_what_it_shows(page: str, runs: dict[str, Future]) -> None:
    runs[page].result()


def test_generated_pages_are_what_the_code_says() -> None:
    tool = docs_blocks.ROOT / "tools" / "reference-pages"
    done = subprocess.run([tool, "--check", fordway()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_shared_options_are_left_out() -> None:
    tool = docs_blocks.ROOT / "tools" / "reference-pages"
    pages = runpy.run_path(str(tool), run_name="reference_pages")
    without_shared = pages["without_shared"]
    options = "  -h, --human-readable  Show sizes\n  -V, --verbose\n          Print more\n\n"
    short = "  -h, --help            Print help\n  -V, --version         Print version\n"
    long = "  -h, --help\n          Print help\n\n  -V, --version\n          Print version\n\n"
    shared = "Global options:\n      --json  Print JSON\n\n"
    for own in (f"Options:\n{options}{short}\n", f"Options:\n{options}{long}"):
        kept = without_shared(f"{own}{shared}Examples:\n  fordway ls\n")
        assert kept.replace("\n\n\n", "\n\n") == f"Options:\n{options}Examples:\n  fordway ls\n"
    assert without_shared(f"Options:\n{short}\n{shared}Examples:\n") == "Examples:\n"


def test_declarations_of_the_header_are_found() -> None:
    tool = docs_blocks.ROOT / "tools" / "reference-pages"
    commented = runpy.run_path(str(tool), run_name="reference_pages")["commented"]
    constant = r"#define (\w+) (\d+)$"
    text = "/* One. */\n#define A 1\n\n/* Two\n * lines. */\n#define B 2\n"
    assert commented(constant, text, "constants") == [("One.", "A", "1"), ("Two lines.", "B", "2")]
    with pytest.raises(SystemExit, match="finds no constants"):
        commented(constant, "// One.\n#define A 1\n", "constants")


def test_every_block_is_run_or_says_why_not() -> None:
    known = {*docs_blocks.RUN, "text", "toml", "yaml", "ini", "nginx", "json", "c", "bash"}
    for page in docs_blocks.pages():
        for block in docs_blocks.blocks(page):
            assert block.language in known, f"{block.place}: a block of the language {block.language!r}"
            assert block.marks.get("not run") != "", f"{block.place}: not run, without a reason"


def test_a_wrong_page_is_found(tmp_path: Path) -> None:
    def run(text: str, **marks: str) -> None:
        block = docs_blocks.Block(
            "a page", "console", None, text, {name.replace("_", " "): it for name, it in marks.items()}
        )
        with Terminal(tmp_path, dict(os.environ, BLOCKS=str(tmp_path))) as terminal:
            terminal.run(block)

    run("$ echo one; echo two\none\ntwo\n$ cd /; export X=1\n$ echo $PWD $X\n/ 1\n")
    run("$ printf 'a 1\\nb 2\\nc 3\\n'\na ...\n...\nc 3\n")
    run("$ printf 'a 1\\nb 2\\n'\na 7\nb 8\n", figures_differ="")
    run("$ false\n", exit_code="1")
    run("$ echo ready; sleep 60\nready\n", server="")
    for wrong in [
        "$ echo one\ntwo\n",
        "$ false\n",
        "$ exit\n",
        "$ printf 'a\\nb\\n'\na\n",
        "$ echo a\na\n...\nb\n",
    ]:
        with pytest.raises(AssertionError):
            run(wrong)
    with pytest.raises(AssertionError):
        run("$ printf 'a 1\\nb 2\\n'\na 7\nc 8\n", figures_differ="")
