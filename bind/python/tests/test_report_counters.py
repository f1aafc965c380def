"""Tests reports with hardware counters, which likwid-perfctr, perf stat or PAPI has written."""

import json
from pathlib import Path

import pytest
import sample_run
from test_report_layers import ppbench

from fordway.report import cli
from fordway.report.counters import Counted, CounterError, read_counted

CSV = """--------------------------------------------------------------------------------
STRUCT,Info,3,,,
CPU name:,An Example Processor,,,
CPU clock:,2.3 GHz,,,
TABLE,Group 1 Raw,L3,3,,
Event,Counter,HWThread 0,HWThread 1,
INSTR_RETIRED_ANY,FIXC0,1000000,500000,
L2_LINES_IN_ALL,PMC0,3000,1000,
TABLE,Group 1 Raw Stat,L3,2,,
Event,Counter,Sum,Min,Max,Avg
INSTR_RETIRED_ANY STAT,FIXC0,1500000,500000,1000000,750000
TABLE,Group 1 Metric,L3,2,,
Metric,HWThread 0,HWThread 1,,
Runtime (RDTSC) [s],RUNTIME,RUNTIME,,
CPI,1.5,nan,,
"""
TABLE = """CPU name:	An Example Processor
Group 1: L3
+-------------------+---------+------------+------------+
|       Event       | Counter | HWThread 0 | HWThread 1 |
+-------------------+---------+------------+------------+
| INSTR_RETIRED_ANY |  FIXC0  |   1000000  |   500000   |
|  L2_LINES_IN_ALL  |   PMC0  |      3000  |     1000   |
+-------------------+---------+------------+------------+
+------------------------+---------+---------+---------+---------+--------+
|          Event         | Counter |   Sum   |   Min   |   Max   |   Avg  |
+------------------------+---------+---------+---------+---------+--------+
| INSTR_RETIRED_ANY STAT |  FIXC0  | 1500000 |  500000 | 1000000 | 750000 |
+------------------------+---------+---------+---------+---------+--------+
+----------------------+------------+------------+
|        Metric        | HWThread 0 | HWThread 1 |
+----------------------+------------+------------+
|  Runtime (RDTSC) [s] |   RUNTIME  |   RUNTIME  |
|          CPI         |     1.5    |      -     |
+----------------------+------------+------------+
"""


@pytest.mark.parametrize("form", [CSV, TABLE])
def test_likwid_output_is_read_in_both_forms(tmp_path: Path, form: str) -> None:
    output = tmp_path / "likwid.txt"
    output.write_text(form.replace("RUNTIME", "2.5000"))
    counted = read_counted(output)
    assert counted.events == {"INSTR_RETIRED_ANY": 1_500_000, "L2_LINES_IN_ALL": 4_000}
    assert counted.threads == ["HWThread 0", "HWThread 1"]
    assert counted.runtime_s == 2.5


def test_counters_are_shown_if_they_cover_the_run_and_refused_if_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = sample_run.write_sample_run(tmp_path / "doc.run")
    output = tmp_path / "likwid.csv"
    for runtime, covers in [("48.3000", True), ("3.0000", False)]:
        output.write_text(CSV.replace("RUNTIME", runtime))
        out = tmp_path / f"{runtime}.html"
        status = cli.main([str(run), "--counters", str(output), "--out", str(out)])
        assert (status == 0, out.exists()) == (covers, covers)
        if covers:
            assert "1,500,000" in out.read_text()
    assert "covers 3.000 s of a run of 48.200 s" in capsys.readouterr().err


def test_a_published_table_has_no_counters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("bare", size, milliseconds, 0, 0) for size in (1, 1000) for milliseconds in (1.0, 2.0)]
    table, output = ppbench(tmp_path / "experiment.csv", rows), tmp_path / "likwid.csv"
    output.write_text(CSV.replace("RUNTIME", "2.5"))
    assert cli.main([str(table), "--counters", str(output)]) == 1
    assert "is a published table, whose duration is unknown" in capsys.readouterr().err


def page_with_counters(tmp_path: Path, rows: int, elapsed_s: float) -> str:
    """Returns the report of a run of `elapsed_s` with `rows` summaries, each with 720 operations in
    10 s. The counters cover the whole run.
    """
    run = sample_run.write_sample_run(tmp_path / f"{rows}-{elapsed_s}.run")
    info = json.loads((run / "run.json").read_text())
    info["summaries"] = info["summaries"][:rows]
    for row in info["summaries"]:
        row |= {"ops_per_s": row["operations"] / 10}
    info["elapsed_ns"] = int(elapsed_s * 1e9)
    (run / "run.json").write_text(json.dumps(info))
    output, out = tmp_path / "perf.csv", tmp_path / "page.html"
    nanoseconds = info["elapsed_ns"]
    output.write_text(f"1440000,,cycles,1000,100.00,,\n{nanoseconds},ns,duration_time,1000,100.00,,\n")
    assert cli.main([str(run), "--counters", str(output), "--out", str(out)]) == 0
    return out.read_text()


def test_counts_are_divided_only_by_the_operations_that_they_cover(tmp_path: Path) -> None:
    assert "<td>1,440,000</td><td>2,000</td>" in page_with_counters(tmp_path, 1, 10.05)
    with_warm_up = page_with_counters(tmp_path, 1, 12.5)
    assert "<td>1,440,000</td><td>\u2264 2,000</td>" in with_warm_up
    assert "2.5 s of 12.5 s outside of the counted operations" in with_warm_up
    several = page_with_counters(tmp_path, 2, 20)
    assert "<td>1,440,000</td><td>not measured</td>" in several
    assert "the run has several rows" in several


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nothing of the kind", "has no table of events"),
        (CSV.replace("Runtime (RDTSC) [s]", "CPI"), "does not state the time of counting"),
    ],
)
def test_other_output_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    run = sample_run.write_sample_run(tmp_path / "doc.run")
    output = tmp_path / "likwid.csv"
    output.write_text(text)
    assert cli.main([str(run), "--counters", str(output)]) == 1
    assert reason in capsys.readouterr().err
    assert cli.main([str(run), "--counters", str(tmp_path / "missing")]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_regions_of_the_marker_api_are_not_mixed(tmp_path: Path) -> None:
    def table(region: str, count: int) -> str:
        head = f"TABLE,Region {region},Group 1 Raw,L3,1\nEvent,Counter,HWThread 0\n"
        return f"{head}INSTR_RETIRED_ANY,FIXC0,{count}\n"

    output = tmp_path / "likwid.csv"
    output.write_text(table("A", 100))
    assert read_counted(output).events == {"INSTR_RETIRED_ANY": 100}
    output.write_text(table("A", 100) + table("B", 1000) + table("C", 7000))
    with pytest.raises(CounterError, match=r"several regions of the marker API \(A, B\)"):
        read_counted(output)
    groups = "".join(f"TABLE,Group {at} Raw,L3,1\n" + table("A", at).split("\n", 1)[1] for at in (1, 2, 3))
    output.write_text(groups)
    assert sorted(read_counted(output).events.values()) == [1, 2, 3]


PERF_TEXT = """ a line of the program: 12 files
# started on Mon Nov 30 17:26:22 2026


 Performance counter stats for 'fordway bench rest http://127.0.0.1:8080/1k':

          3,210.45 msec task-clock                       #    0.998 CPUs utilized
                12      context-switches                 #    3.738 /sec
     1,964,145,726      cycles:u                         #    3.845 GHz                         (83.40%)
    11,682,238,319      instructions:u                   #    5.95  insn per cycle              (83.38%)
                                                  #    0.06  stalled cycles per insn  (83.30%)
             41.14 MiB  uncore_imc/cas_count_read/
   <not supported>      branch-misses

      48.250000000 seconds time elapsed

       3.100000000 seconds user
       0.100000000 seconds sys

 and 7 more lines
"""
PERF_FIELDS = """# started on Mon Nov 30 17:26:21 2026

3210.45,msec,task-clock,3210451234,100.00,0.066,CPUs utilized
12,,context-switches,3210451234,100.00,3.738,/sec
1964145726,,cycles:u,2677516329,83.40,3.845,GHz
11682238319,,instructions:u,2677516329,83.38,5.95,insn per cycle
,,,,,0.06,stalled cycles per insn
41.14,MiB,uncore_imc/cas_count_read/,3210451234,100.00,,
<not supported>,,branch-misses,0,100.00,,
"""
PERF_EVENTS = {
    "task-clock [msec]": 3210.45,
    "context-switches": 12,
    "cycles:u": 1_964_145_726,
    "instructions:u": 11_682_238_319,
    "uncore_imc/cas_count_read/ [MiB]": 41.14,
    "branch-misses": None,
}


def perf_json() -> str:
    """Returns what `perf stat -j` would write in place of `PERF_FIELDS`."""
    lines = []
    for row in PERF_FIELDS.splitlines():
        cells = row.split(",")
        if len(cells) < 5 or not cells[0]:
            continue
        count = cells[0] if cells[0].startswith("<") else f"{float(cells[0]):f}"
        lines.append(
            json.dumps(
                {
                    "counter-value": count,
                    "unit": cells[1],
                    "event": cells[2],
                    "event-runtime": int(cells[3]),
                    "pcnt-running": float(cells[4]),
                    "metric-value": float(cells[5] or 0),
                    "metric-unit": cells[6],
                }
            )
        )
    return "\n".join(["the program wrote {", *lines, '{"of": "the program"}', "{ not JSON"])


def counted_in(tmp_path: Path, text: str) -> Counted:
    output = tmp_path / "counters"
    output.write_text(text)
    return read_counted(output)


@pytest.mark.parametrize("text", [PERF_TEXT, PERF_FIELDS, PERF_FIELDS.replace(",", ";"), perf_json()])
def test_every_form_of_perf_stat_is_read(tmp_path: Path, text: str) -> None:
    counted = counted_in(tmp_path, text)
    assert counted.tool == "perf stat"
    assert counted.events == pytest.approx(PERF_EVENTS)
    assert counted.runtime_s == pytest.approx(48.25, rel=0.02)
    assert counted.notes == [
        "cycles:u was counted for 83 % of the time and scaled",
        "instructions:u was counted for 83 % of the time and scaled",
    ]


def test_perf_stat_of_other_locales_and_versions_is_read(tmp_path: Path) -> None:
    text = """ Performance counter stats for './x':

       1660,048586      task-clock (msec)         #    1,000 CPUs utilized
   6.314.282.417      cycles                    #    3,804 GHz
  12\u202f345      page-faults

       1,660692551 seconds time elapsed
"""
    counted = counted_in(tmp_path, text)
    expected = {"task-clock [msec]": 1660.048586, "cycles": 6_314_282_417, "page-faults": 12_345}
    assert (counted.events, counted.runtime_s) == (pytest.approx(expected), pytest.approx(1.660692551))
    fields = "1660,05;msec;task-clock;1660048586;100,00;1,000;CPUs utilized\n9;;cycles;1660048586;50,00;;\n"
    counted = counted_in(tmp_path, fields)
    assert counted.events == pytest.approx({"task-clock [msec]": 1660.05, "cycles": 9})
    assert counted.notes == ["cycles was counted for 50 % of the time and scaled"]


def test_rows_of_perf_stat_for_cores_and_intervals_are_added(tmp_path: Path) -> None:
    cores = "".join(f"S0-D0-C{core},1,{core + 5},,cycles,{10**9},100.00,,\n" for core in range(3))
    assert counted_in(tmp_path, cores).events == {"cycles": 5 + 6 + 7}
    intervals = "".join(f"     {at}.000;CPU0;{at};;cycles;{10**9};100.00;;\n" for at in (1, 2, 3))
    assert counted_in(tmp_path, intervals).events == {"cycles": 1 + 2 + 3}


def test_text_of_perf_stat_for_cores_intervals_and_repetitions_is_read(tmp_path: Path) -> None:
    begin, end = " Performance counter stats for 'system wide':\n\n", "\n       2.5 seconds time elapsed\n"
    repeated = """        1,000.00 msec task-clock       #    0.993 CPUs utilized   ( +-  0.31% )
     100,000,000      LLC-load-misses                                ( +-  1.40% )
     200,000,000      cycles           #    0.200 GHz                ( +-  0.10% )  (83.34%)
"""
    counted = counted_in(tmp_path, begin + repeated + end.replace("2.5", "2.5 +- 0.1"))
    assert counted.events == {"task-clock [msec]": 1000, "LLC-load-misses": 10**8, "cycles": 2 * 10**8}
    assert counted.runtime_s == 2.5
    each = "CPU0          1,234      cycles    #  0.1 GHz\nCPU1          1,000      cycles\n"
    assert counted_in(tmp_path, begin + each + end).events == {"cycles": 2234}
    cores = (
        "S0-D0-C0           2      1,234,567      cycles\nS0-D0-C1           2              3      cycles\n"
    )
    assert counted_in(tmp_path, begin + cores + end).events == {"cycles": 1_234_570}
    intervals = """#           time             counts unit events
     1.000123456          1,000      cycles           #    0.1 GHz
     1.000123456           2.50 msec task-clock       #    0.003 CPUs utilized
     2.000323456          2,000      cycles
"""
    for text in (intervals, intervals + begin + "      3,000      cycles\n        2.50 msec task-clock\n"):
        counted = counted_in(tmp_path, text)
        assert counted.events == pytest.approx({"cycles": 3000, "task-clock [msec]": 2.5})
        assert counted.runtime_s == pytest.approx(2.000323456)
    heading = "#           time CPU            counts unit events\n"
    by_cpu = "     1.5 CPU0      7      cycles\n     1.5 CPU1      8      cycles\n"
    assert counted_in(tmp_path, heading + by_cpu).events == {"cycles": 15}


def test_the_event_duration_time_is_the_time_of_counting(tmp_path: Path) -> None:
    counted = counted_in(tmp_path, "5,,cycles,1000,100.00,,\n2500000000,ns,duration_time,1000,100.00,,\n")
    assert (counted.events, counted.runtime_s) == ({"cycles": 5}, 2.5)


def papi(threads: object) -> str:
    return json.dumps({"papi_version": "7.1.0.0", "cpu_info": "An Example", "threads": threads})


def test_outermost_regions_of_papi_are_added(tmp_path: Path) -> None:
    def region(parent: str, count: str | dict[str, str], elapsed: str) -> dict[str, object]:
        times = {"name": "work", "parent_region_id": parent, "real_time_nsec": elapsed, "cycles": "200"}
        return {**times, "PAPI_TOT_INS": count}

    parts = {"region_value": "70", "read_1": "30"}
    regions = {"0": region("-1", "100", "2000000000"), "1": region("0", "60", "900000000")}
    newer = papi({"0": {"regions": {**regions, "2": region("-1", parts, "500000000")}}})
    counted = counted_in(tmp_path, newer)
    assert (counted.tool, counted.threads) == ("PAPI", ["thread 0"])
    # `cycles` is a time, not an event.
    assert counted.events == {"PAPI_TOT_INS": 170}
    assert counted.runtime_s == 2.5
    older = [{"work": {"region_count": "1", "cycles": "200", "PAPI_TOT_INS": "100", "real_time_nsec": "7"}}]
    counted = counted_in(tmp_path, papi([{"id": "0", "regions": older}, {"id": "1", "regions": older}]))
    assert counted.events == {"PAPI_TOT_INS": 200}


@pytest.mark.parametrize(
    "text", ["{}", "[]", "null", papi({"0": {}}), papi([1]), papi("x"), papi({"0": {"regions": {"0": 5}}})]
)
def test_other_json_has_no_counters(tmp_path: Path, text: str) -> None:
    with pytest.raises(CounterError, match="has no table of events"):
        counted_in(tmp_path, text)


@pytest.mark.parametrize("text", [PERF_TEXT, PERF_FIELDS, perf_json()])
def test_what_was_not_counted_is_shown_as_not_measured(tmp_path: Path, text: str) -> None:
    run, output = sample_run.write_sample_run(tmp_path / "doc.run"), tmp_path / "perf.txt"
    output.write_text(text)
    assert cli.main([str(run), "--counters", str(output)]) == 0
    page = (tmp_path / "doc.html").read_text()
    assert "perf.txt, perf stat: 48.250 s" in page or "perf.txt, perf stat: 48.643 s" in page
    assert "cycles:u was counted for 83 % of the time and scaled" in page
    assert "<th>branch-misses</th><td>not measured</td><td>not measured</td>" in page


def test_counters_without_a_time_are_refused_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, output = sample_run.write_sample_run(tmp_path / "doc.run"), tmp_path / "perf.csv"
    output.write_text("5,,cycles,1000,100.00,,\n")
    assert cli.main([str(run), "--counters", str(output)]) == 1
    assert "-e duration_time" in capsys.readouterr().err
