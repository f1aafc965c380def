"""Tests that the three descriptions of the run file agree: the Rust code that writes it, its page in the
docs, and the sample run of these tests.
"""

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from sample_run import BLOCK_TYPES, OPERATION_TYPES, write_sample_run

from fordway.report import shape

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "run-file.md"
MEASURE = ROOT / "lab" / "measure" / "src"
STRUCT = re.compile(
    r"#\[derive\([^]]*\bSerialize\b[^]]*\)\][^{;]*?pub struct (\w+) \{(.*?)^\}", re.DOTALL | re.MULTILINE
)
FIELD = re.compile(r"^    pub (\w+):", re.MULTILINE)
COLUMN = re.compile(r"\(\s*\"([a-z_]+)\",")


def rust_fields() -> dict[str, set[str]]:
    """Returns the fields of every struct in `run.json`, taken from the Rust source."""
    sources = "\n".join(
        (MEASURE / name).read_text() for name in ("run.rs", "conditions.rs", "machine.rs", "stats.rs")
    )
    return {name: set(FIELD.findall(body)) for name, body in STRUCT.findall(sources)}


def rust_columns(function: str) -> list[str]:
    """Returns the columns that `function` of the Rust source writes to an Arrow file."""
    source = (MEASURE / "run.rs").read_text()
    body = source[source.index(f"fn {function}(") :]
    return COLUMN.findall(body[: re.search(r"\n(    )?}\n", body).start()])


def test_the_source_is_read_rightly() -> None:
    fields = rust_fields()
    assert set(fields) == {
        "RunDocument",
        "RowDescription",
        "LanePhaseResult",
        "LatencyQuantiles",
        "SpeedRatio",
        "LaneIo500Score",
        "LimitingResource",
        "Machine",
        "FileSystem",
        "Io500Scores",
        "ConfidenceInterval",
        "LoadGeneratorSummary",
        "TcpConnectionStats",
        "ParallelJobSummary",
        "MessageExchangeResult",
        "RunReliabilityReport",
        "MeasurementWarning",
        "LanePhaseKey",
        "DisturbanceFigures",
    }
    assert {"schema", "summaries", "warnings"} <= fields["RunDocument"]
    assert len(fields["LatencyQuantiles"]) == 7


def test_every_field_is_on_the_page() -> None:
    page = PAGE.read_text()
    names = set().union(*rust_fields().values())
    names |= {
        *rust_columns("operations_batch"),
        *rust_columns("blocks_batch"),
        *rust_columns("objects_batch"),
    }
    assert len(names) > 50
    assert sorted(name for name in names if f"`{name}`" not in page) == []


def test_every_kind_of_run_is_on_the_page_and_is_written_by_a_command() -> None:
    lines = PAGE.read_text().splitlines()
    (row,) = [line for line in lines if line.startswith("| `kind` | string | the measuring command")]
    assert tuple(re.findall(r"`(\w+)`", row.partition("command")[2])) == shape.RUN_KINDS
    sources = [path for part in ("lab", "bin/fordway-lab") for path in (ROOT / part).rglob("src/**/*.rs")]
    written = {kind for path in sources for kind in re.findall(r'\bkind: "(\w+)"', path.read_text())}
    assert {"compare", "rest", "speedup"} <= written
    assert written - {"test", "other"} <= set(shape.RUN_KINDS)


def test_the_sample_is_what_rust_would_write(tmp_path: Path) -> None:
    info = json.loads((write_sample_run(tmp_path / "x.run") / "run.json").read_text())
    fields = rust_fields()
    compared = next(summary for summary in info["summaries"] if summary["ratio"])
    for name, part in {
        "RunDocument": info,
        "RowDescription": info["lanes"][0],
        "LanePhaseResult": compared,
        "LatencyQuantiles": compared["latency"],
        "SpeedRatio": compared["ratio"],
        "ConfidenceInterval": compared["ratio"]["interval"],
        "LimitingResource": compared["limit"],
        "Machine": info["machine"],
        "RunReliabilityReport": info["conditions"],
        "MeasurementWarning": info["conditions"]["doubts"][0],
        "LanePhaseKey": info["conditions"]["doubts"][0]["cells"][0],
        "DisturbanceFigures": info["conditions"]["figures"],
        "FileSystem": info["machine"]["file_systems"][0],
    }.items():
        assert set(part) == fields[name], name


@pytest.mark.parametrize(
    ("file", "function", "types"),
    [
        ("operations.arrow", "operations_batch", OPERATION_TYPES),
        ("blocks.arrow", "blocks_batch", BLOCK_TYPES),
    ],
)
def test_the_sample_has_the_columns_of_rust(
    tmp_path: Path, file: str, function: str, types: dict[str, pa.DataType]
) -> None:
    assert rust_columns(function) == list(types)
    with pa.OSFile(str(write_sample_run(tmp_path / "x.run") / file)) as source:
        table = pa.ipc.open_file(source).read_all()
    assert table.schema.names == list(types)
    assert table.num_rows > 0


def test_the_example_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sample_run(tmp_path / "NAME.run")
    example = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example is not None
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(example.group(1), names)
    assert len(names["p99_us"]) == 18
