"""Parses the blocks of a page of the docs, and runs them in a shell as a reader would.

The blocks of a page run in order, in the home directory of a new user:

- `console`: each line that starts with `$ ` is a command, which `> ` or a backslash continues. The lines
  after a command are its output, if the page shows any. In the output, `...` matches any text, including
  whole lines.
- `sh`: the block is a script. `python`: the block is a program.
- A block of any language with `title="NAME"` is written to the file NAME.

Comments directly before a block contain instructions:

- `<!-- not run: REASON -->`: the block is not run.
- `<!-- needs: PROGRAM, COMMAND ... -->`: if a program is missing, or a command (of several words) fails, the
  rest of the page is skipped.
- `<!-- server -->`: the last command of the block runs until the page ends. The next block uses another
  terminal.
- `<!-- figures differ -->`: only the text before the first digit of each output line is compared.
- `<!-- exit code: N -->`: the exit status of the last command must be N. The default is 0.

Each loopback port of a page is replaced by a free port.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[3]
RUN = ("console", "sh", "python")
# The limit is only for commands that hang. A comparison that flushes each object takes more than 30 s while
# other programs use the disk.
TIMEOUT_S = 180

_FENCE = re.compile(r"^( *)```(\w*)(.*)$")
_MARK = re.compile(r"^ *<!-- ([\w ]+?)(?:: (.*?))? -->$")
_PORT = re.compile(r"\b(127\.0\.0\.1|localhost):(\d{2,5})\b")


@dataclass(frozen=True)
class Block:
    """A fenced block, with the instructions in the comments before it."""

    place: str
    language: str
    title: str | None
    text: str
    marks: dict[str, str]

    @property
    def is_run(self) -> bool:
        """Returns whether a test runs the block or writes it to a file."""
        return "not run" not in self.marks and (self.title is not None or self.language in RUN)


@dataclass
class Step:
    """A command of a console block, and its output on the page, which is `None` if the page shows no
    output.
    """

    command: str
    output: str | None = None


def pages() -> list[str]:
    """Returns the pages whose commands are run, as paths relative to the root of the repository."""
    found = [*ROOT.glob("docs/start/*.md"), *ROOT.glob("docs/howto/*.md")]
    return ["README.md", *sorted(str(page.relative_to(ROOT)) for page in found)]


def blocks(page: str) -> list[Block]:
    """Returns the fenced blocks of a page."""
    found, marks = [], {}
    lines = iter(enumerate((ROOT / page).read_text().splitlines(), 1))
    for number, line in lines:
        if mark := _MARK.match(line):
            marks[mark[1]] = mark[2] or ""
        elif fence := _FENCE.match(line):
            indent, language, rest = fence.groups()
            text = "".join(_until_fence(lines, indent))
            title = re.search(r'title="([^"]+)"', rest)
            found.append(Block(f"{page}:{number}", language, title and title[1], text, marks))
            marks = {}
        elif line.strip():
            marks = {}
    return found


def _until_fence(lines: iter, indent: str) -> list[str]:
    body = []
    for _, line in lines:
        if line.rstrip() == f"{indent}```":
            return body
        body.append(line.removeprefix(indent) + "\n")
    raise AssertionError("a block that does not end")


def steps(text: str) -> list[Step]:
    """Returns the commands of a console block."""
    found: list[Step] = []
    continues = False
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Step(line[2:]))
        elif continues or (line.startswith("> ") and found[-1].output is None):
            found[-1].command += "\n" + line.removeprefix("> ")
        else:
            found[-1].output = (found[-1].output or "") + line + "\n"
        continues = found[-1].output is None and line.endswith("\\")
    return found


def mismatch(shown: str, actual: str, figures_differ: bool) -> str | None:
    """Returns a description of the difference between the output of a command and the page, or `None` if they
    match.
    """
    lines = [line.rstrip() for line in shown.splitlines()]
    if figures_differ:
        labels = [re.split(r"\d|\.\.\.", line)[0].split() for line in lines]
        pattern = ".*?".join(r"\s+".join(map(re.escape, words)) for words in labels if words)
        fits = re.search(pattern, actual, re.DOTALL)
    else:
        pattern = "".join(r"(?:.*\n)*?" if line == "..." else _line(line) for line in lines)
        fits = re.fullmatch(pattern, "".join(line.rstrip() + "\n" for line in actual.splitlines()))
    return None if fits else f"the page shows\n{shown}\nand the output is\n{actual}"


def _line(line: str) -> str:
    return ".*?".join(map(re.escape, line.split("..."))) + "\n"


@dataclass
class Terminal:
    """A shell in the home directory of a new user, with the servers that the page has started."""

    directory: Path
    environment: dict[str, str]
    wrapper: list[str] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)

    def __enter__(self) -> Terminal:
        self.shell = subprocess.Popen(
            [*self.wrapper, "bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            env=self.environment,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.shell.pid, number)
                self.shell.wait(timeout=10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
            time.sleep(0.05)
        self.shell.stdin.close()
        self.shell.stdout.close()

    def run(self, block: Block) -> None:
        """Runs or writes a block. Raises `AssertionError` if the page is wrong."""
        text = self.with_free_ports(block.text)
        if block.title is not None:
            path = self.directory / block.title.replace("~", self.environment["HOME"], 1)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o600)
        elif block.language == "console":
            self._run_steps(steps(text), block)
        else:
            script = Path(self.environment["BLOCKS"]) / f"block.{block.language}"
            script.write_text(text)
            program = {"sh": "bash -e", "python": "python3"}[block.language]
            self._run_steps([Step(f"{program} {shlex.quote(str(script))}")], block)

    def _run_steps(self, found: list[Step], block: Block) -> None:
        for index, step in enumerate(found):
            is_last = index == len(found) - 1
            if is_last and "server" in block.marks:
                self._serve(step, block)
                return
            output, code = self._execute(step.command)
            expected = int(block.marks.get("exit code", "0")) if is_last else 0
            where = f"{block.place}: $ {step.command}\n"
            assert code == expected, f"{where}exit code {code}, expected {expected}\n{output}"
            wrong = step.output and mismatch(step.output, output, "figures differ" in block.marks)
            assert not wrong, where + str(wrong)

    def _serve(self, step: Step, block: Block) -> None:
        log = Path(self.environment["BLOCKS"]) / "server.log"
        self._execute(f"exec {{fd}}>{shlex.quote(str(log))}")
        self._execute(f"{{ {step.command}\n}} >&$fd 2>&1 {{fd}}>&- &\nexec {{fd}}>&-")
        end = time.monotonic() + TIMEOUT_S
        while wrong := mismatch(step.output or "", log.read_text(), "figures differ" in block.marks):
            assert time.monotonic() < end, f"{block.place}: $ {step.command}\n{wrong}"
            time.sleep(0.02)

    def _execute(self, command: str) -> tuple[str, int]:
        mark = f"-end-of-{os.urandom(8).hex()}-"
        self.shell.stdin.write(f"{{ {command}\n}} </dev/null\nprintf '%s%d\\n' {mark} $?\n".encode())
        self.shell.stdin.flush()
        output, end = b"", time.monotonic() + TIMEOUT_S
        while not (found := re.search(rb"(.*)" + mark.encode() + rb"(\d+)\n", output, re.DOTALL)):
            ready, _, _ = select.select([self.shell.stdout], [], [], max(0, end - time.monotonic()))
            assert ready, f"$ {command}\ndid not end within {TIMEOUT_S} s\n{output.decode()}"
            piece = os.read(self.shell.stdout.fileno(), 1 << 16)
            assert piece, f"$ {command}\nended the shell\n{output.decode()}"
            output += piece
        return found[1].decode(errors="replace"), int(found[2])

    def with_free_ports(self, text: str) -> str:
        """Returns the text with each loopback port replaced by a free port. A port has the same replacement
        on the whole page.
        """

        def free(match: re.Match) -> str:
            if match[2] not in self.ports:
                with socket.create_server(("127.0.0.1", 0)) as listener:
                    self.ports[match[2]] = listener.getsockname()[1]
            return f"{match[1]}:{self.ports[match[2]]}"

        return _PORT.sub(free, text)
