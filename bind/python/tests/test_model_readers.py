"""Tests that formats are recognised by their content: header names, units, and the labels that tools
print.
"""

import json
import random
from pathlib import Path

import model_data as data
import pytest
from model_data import model, refused
from sample_run import write_sample_run

from fordway.model import points, quantities, readers
from fordway.model.cli import main

WRK = """Running 10s test @ http://127.0.0.1:8080/objects/{name}
  2 threads and 16 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.25ms  210.00us   9.00ms   97.00%
    Req/Sec     6.40k   120.00     6.90k    80.00%
  Latency Distribution
     50%    1.20ms
     75%    1.30ms
     90%    1.40ms
     99%    2.00ms
  128000 requests in 10.00s, {read} read
Requests/sec:  12800.00
Transfer/sec:     15.00MB
"""
LIKWID = """CPU name:\tAn Example Processor
CPU clock:\t{clock}
"""
TABLE = """Group 1: Custom
+---------------------------+-------------+--------------+
|           Event           |   Counter   | {head} |
+---------------------------+-------------+--------------+
|    Runtime (RDTSC) [s]    |     TSC     | {runtime} |
| L2_LINES_OUT_DEMAND_DIRTY | PMC1:KERNEL |     12800000 |
|   CPU_CLK_UNHALTED_CORE   |    FIXC1    |   2560000000 |
|    CPU_CLK_UNHALTED_REF   |    FIXC2    |   5120000000 |
+---------------------------+-------------+--------------+
"""
H2LOAD = """starting benchmark...
spawning thread #0: 4 total client(s). 1000 total requests
Application protocol: h2

finished in 2.50s, 400.00 req/s, 401.00KB/s
requests: 1000 total, 1000 started, 1000 done, 1000 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 1000 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 1.01MB (1060000) total, 20.51KB (21000) headers (space savings 86.00%), 976.56KB (1000000) data
{times}
"""
TIMES_OLD = """                     min         max         mean         sd        +/- sd
time for request:      900us      5.00ms      2.50ms       210us    90.00%
time for connect:     1.00ms      1.10ms      1.05ms        10us    50.00%"""
TIMES_NEW = """          min         max      median       p95       p99      mean        sd    +/- sd
request :     900us      5.00ms      2.40ms      3.00ms      4.00ms      2.50ms       210us    90.00%
connect :    1.00ms      1.10ms      1.05ms      1.10ms      1.10ms      1.05ms        10us    50.00%"""


def read(tmp_path: Path, text: str, **choice: object) -> dict[str, float]:
    """Returns the only row of a file with `text`."""
    path = tmp_path / "measured.out"
    path.write_text(text)
    rows = readers.read([path], readers.Choice(**choice)).rows
    assert len(rows) == 1
    return rows.iloc[0].to_dict()


def test_wrk_is_read_with_its_units(tmp_path: Path) -> None:
    row = read(tmp_path, WRK.format(name="1024", read="150.00MB"))
    assert row["time_us"] == 1_250
    assert (row["requests"], row["threads"], row["connections"]) == (128_000, 2, 16)
    assert row["size_bytes"] == 1_024
    assert row["duration_us"] == 10e6
    assert row["read_bytes"] == 150 * 1024**2
    assert row["timeouts"] == row["errors"] == 0
    assert read(tmp_path, WRK.format(name="1024", read="150.00MB"), statistic="p50")["time_us"] == 1_200


@pytest.mark.parametrize(
    ("name", "read_", "size"),
    [("10.bin", "1.25GB", 10_240), ("1.bin", "29.00MB", 1), ("4k/1000", "151.00MB", 1_000)],
)
def test_wrks_size_is_what_the_url_says_if_the_bytes_agree(
    tmp_path: Path, name: str, read_: str, size: int
) -> None:
    assert read(tmp_path, WRK.format(name=name, read=read_))["size_bytes"] == size


def test_wrks_size_must_be_said_where_the_url_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.out"
    path.write_text(WRK.format(name="index.html", read="150.00MB"))
    assert "--object-size" in refused(capsys, "check", str(path))
    assert model(capsys, "check", str(path), "--object-size", "1KiB")["points"][0]["size_bytes"] == 1_024


@pytest.mark.parametrize("head", ["   Core 0   ", " HWThread 0 "])
def test_likwid_around_wrk_counts_the_client(tmp_path: Path, head: str) -> None:
    text = LIKWID.format(clock="2.50 GHz") + WRK.format(name="1024", read="150.00MB")
    row = read(tmp_path, text + TABLE.format(head=head, runtime="1.001000e+01"))
    assert row["client_cycles"] == 20_000
    assert row["client_reference_cycles"] == 40_000
    assert row["client_evicted_bytes"] == 100 * 64
    assert row["client_clock_mhz"] == 2_500
    assert row["client_runtime_us"] == pytest.approx(10.01e6)


def test_likwid_of_the_server_is_a_file_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrk, server = tmp_path / "wrk.out", tmp_path / "server.out"
    wrk.write_text(WRK.format(name="1024", read="150.00MB"))
    server.write_text(LIKWID.format(clock="2.50 GHz") + TABLE.format(head="Core 0", runtime="1.1e+01"))
    found = model(capsys, "check", str(wrk), "--server-likwid", str(server))
    assert found["points"][0]["server_cycles"] == 20_000
    server.write_text(LIKWID.format(clock="2.50 GHz") + TABLE.format(head="Core 0", runtime="3.1e+00"))
    assert "cover 3.10 s of a run of 10.00 s" in refused(
        capsys, "check", str(wrk), "--server-likwid", str(server)
    )
    server.write_text("nothing")
    assert "no table of events" in refused(capsys, "check", str(wrk), "--server-likwid", str(server))


@pytest.mark.parametrize("times", [TIMES_OLD, TIMES_NEW])
def test_h2load_is_read_whatever_its_columns(tmp_path: Path, times: str) -> None:
    row = read(tmp_path, H2LOAD.format(times=times))
    assert row["time_us"] == 2_500
    assert (row["requests"], row["connections"], row["rate_per_s"]) == (1_000, 4, 400)
    assert row["size_bytes"] == 1_000
    assert row["read_bytes"] == 1_060_000
    if times is TIMES_NEW:
        assert read(tmp_path, H2LOAD.format(times=times), statistic="p50")["time_us"] == 2_400


def test_headers_say_units(tmp_path: Path) -> None:
    row = read(
        tmp_path, "object_size_KiB,latency_mean_ms,nreq,client_CUC_cycles,client_L3EV_B\n4,1.5,10,1000,640\n"
    )
    assert (row["size_bytes"], row["time_us"]) == (4_096, 1_500)
    assert (row["client_cycles"], row["client_evicted_bytes"]) == (100, 64)
    assert read(tmp_path, "size_MB,t_req_s\n2,0.5\n")["size_bytes"] == 2e6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("obj_size,lat_avg_us\n1,2\n", "does not state its unit"),
        ("obj_size_B,latency\n1,2\n", "no column of times"),
        ("lat_avg_us,nreq\n1,2\n", "no column of sizes"),
        ("obj_size_B,lat_avg_us\n1,timeout\n", "not a number"),
        ("obj_size_B,lat_avg_us\n", "no rows"),
        ("obj_size_B,lat_avg_us,client_CUC_cycles\n1,2,3\n", "no column of requests"),
        ("obj_size_B,lat_avg_us,nreq,client_LLOD\n1,2,3,4\n", "lines or bytes"),
        ("", "is empty"),
        ("hello\n", "an unknown format"),
        ("{]", "not valid JSON"),
        ("[]", "no successful requests"),
        (WRK.format(name="1024", read="150.00MB")[:200], "cut off"),
    ],
)
def test_what_cannot_be_read_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text)
    assert said in refused(capsys, "check", str(path))


def test_damaged_outputs_are_refused_or_read_and_nothing_else(tmp_path: Path) -> None:
    drawn = random.Random(1)
    wrk = LIKWID.format(clock="2.5 GHz") + WRK.format(name="1024", read="150.00MB")
    whole = [wrk + TABLE.format(head="Core 0", runtime="1e1"), H2LOAD.format(times=TIMES_NEW)]
    whole.append(data.by_size().to_csv(index=False))
    path = tmp_path / "a.txt"
    refusals = 0
    for turn in range(600):
        text = list(drawn.choice(whole))
        for _ in range(drawn.randrange(1, 12)):
            at = drawn.randrange(len(text))
            text[at : at + drawn.randrange(1, 30)] = drawn.choice(
                ["", "-", "nan", "1e999", "\n", ",", "|", "x"]
            )
        path.write_text("".join(text))
        try:
            readers.read([path], readers.Choice())
        except points.MeasurementError as error:
            refusals += 1
            assert str(error), turn
    assert refusals > 0


def test_size_classes_of_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(write_sample_run(tmp_path / "a.run"))
    assert "posix, embedded, http" in refused(capsys, "fit", run)
    assert "--phase" in refused(capsys, "fit", run, "--phase", "rename")
    found = model(capsys, "fit", run, "--lane", "http", "--statistic", "p50", "--model", "linear")
    assert found["coefficients"][0]["value"] == pytest.approx(78, rel=0.15)


def test_doubts_about_a_run_are_warnings_of_its_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_sample_run(tmp_path / "a.run")
    doubt = "other processes took 28 % of the machine's processor time during the run"
    for verdict, said in (("doubtful", "is in doubt"), ("refused", "was measured by force")):
        info = json.loads((run / "run.json").read_text())
        info["conditions"] |= {"verdict": verdict, "is_forced": verdict == "refused"}
        (run / "run.json").write_text(json.dumps(info))
        words = [str(run), "--lane", "http", "--model", "linear"]
        assert main(["fit", *words, "--json"]) == 0
        warnings = json.loads(capsys.readouterr().out)["warnings"]
        assert [each for each in warnings if said in each and doubt in each]
        assert main(["fit", *words]) == 0
        assert doubt in capsys.readouterr().out
        assert main(["advise", "--machine", str(run), "--sizes", "4KiBx9", "--json"]) == 0
        warnings = json.loads(capsys.readouterr().out)["warnings"]
        assert [each for each in warnings if said in each and doubt in each]


def test_doubts_are_inherited_by_predictions_checks_and_probes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_sample_run(tmp_path / "a.run")
    info = json.loads((run / "run.json").read_text())
    info["conditions"] |= {"verdict": "refused", "is_forced": True}
    (run / "run.json").write_text(json.dumps(info))
    words = [str(run), "--lane", "http"]
    found = model(capsys, "fit", *words, "--model", "linear")
    (tmp_path / "fit.json").write_text(json.dumps(found))
    for again in (["predict", str(tmp_path / "fit.json"), "--size", "4KiB"],):
        warnings = model(capsys, *again)["warnings"]
        assert [each for each in warnings if "measurements in doubt: a was measured by force" in each]
    quiet = write_sample_run(tmp_path / "b.run")
    info["conditions"] |= {"verdict": "measured", "is_forced": False, "doubts": []}
    (quiet / "run.json").write_text(json.dumps(info))
    checked = model(capsys, "check", str(quiet), "--lane", "http", "--fit", str(tmp_path / "fit.json"))
    assert [each for each in checked["warnings"] if "measurements in doubt: a was measured" in each]
    probe = {"schema": "fordway.probe", "quantities": [{"name": "rtt", "value": 60.0, "unit": "us"}]}
    for verdict, is_told in (("measured", False), ("refused", True)):
        probe["conditions"] = info["conditions"] | {"verdict": verdict, "is_forced": is_told}
        (tmp_path / "probe.json").write_text(json.dumps(probe))
        probed = model(capsys, "fit", str(quiet), "--lane", "http", "--machine", str(tmp_path / "probe.json"))
        assert any("probe.json was measured by force" in each for each in probed["warnings"]) == is_told


@pytest.mark.parametrize(
    "content", [{}, {"quantities": None}, {"quantities": [{"name": "rtt"}]}, {"quantities": [1]}]
)
def test_a_damaged_probe_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: dict
) -> None:
    run = write_sample_run(tmp_path / "a.run")
    (tmp_path / "probe.json").write_text(json.dumps({"schema": "fordway.probe"} | content))
    said = refused(capsys, "fit", str(run), "--lane", "http", "--machine", str(tmp_path / "probe.json"))
    assert "is not a valid probe" in said


@pytest.mark.parametrize(
    "head", ['lat_avg_us,"lat_avg_us"', "lat_avg_us,lat_avg_us.1", 'lat_avg_us, "lat_avg_us" ']
)
def test_a_column_that_occurs_twice_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], head: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"size_B,{head}\n" + "".join(f"{4**at},{100 + at},{200 + at}\n" for at in range(8)))
    assert "has the column lat_avg_us twice" in refused(capsys, "fit", str(path))


def test_a_known_name_with_an_unknown_unit_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.csv"
    rows = "".join(f"{4**at},{200 + at},{100 + at}\n" for at in range(8))
    path.write_text("size_B,lat_avg_usec,lat_p50_us\n" + rows)
    found = model(capsys, "fit", str(path), "--model", "linear")
    assert found["statistic"] == "p50"
    assert any("the unit in the name of lat_avg_usec is unknown" in each for each in found["warnings"])


def test_sizes_in_bytes_are_preferred_to_names_in_kilobytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.csv"
    sizes = [4**at for at in range(12)]
    rows = "".join(f"{max(1, size // 1000)},{size},{100 + size / 1000}\n" for size in sizes)
    path.write_text("name_KB,obj_size_B,lat_avg_us\n" + rows)
    found = model(capsys, "fit", str(path), "--model", "linear")
    assert [each["size_bytes"] for each in found["points"]] == sizes
    assert found["coefficients"][0]["value"] == pytest.approx(100, rel=1e-6)


def test_summaries_of_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    lines = [json.dumps(_summary(size, 100 + size / 500)) for size in (100, 1_000, 10_000, 100_000)]
    path.write_text("\n".join(lines))
    found = model(capsys, "fit", str(path), "--model", "frequency-simple")
    assert found["points"][0]["frequency_mhz"] == pytest.approx(2_000)
    assert found["coefficients"][0]["value"] == pytest.approx(100, rel=1e-3)
    assert found["coefficients"][1]["value"] == pytest.approx(4, rel=1e-3)
    assert found["points"][3]["mathis_bytes_per_us"] == pytest.approx(
        1_460 / (50 * (1_000 * 1_460 / 1e8) ** 0.5)
    )
    assert any("more than eq. 4 allows" in each for each in found["warnings"])


def _summary(size: int, time_us: float) -> dict:
    """Returns the output of `bench rest --json` for one load, with only the fields that models use."""
    time_ns = int(1e3 * time_us)
    counters = {"cpu_ns": 1_000_000, "cycles": 2_000_000, "reference_cycles": None}
    tcp = {"count": 1, "rtt_us": 50, "rtt_max_us": 60, "retransmits": 1_000, "mss_bytes": 1_460}
    load = {"rate_asked_per_s": None, "connections": 1, "streams": 1, "tcp": tcp}
    return {
        "lane": "http/1.1",
        "phase": f"GET {size}",
        "operations": 1_000,
        "errors": 0,
        "bytes": 1_000 * size,
        "ops_per_s": 0.98e6 / time_us,
        "latency": {"mean_ns": time_ns, "p50_ns": time_ns},
        "load": load | {"client": counters, "server": None},
    }


def test_a_decimal_comma_is_refused() -> None:
    assert quantities.parse("1,234,567.5us", "time") == pytest.approx(1_234_567.5)
    for text in ("1,5ms", "0,005s", "1,2345ms", "1234,567ms", "1,234,5ms", "1.5,000ms", "1,ms"):
        with pytest.raises(points.MeasurementError):
            quantities.parse(text, "time")


def test_quantities_have_units() -> None:
    assert quantities.parse("2.49GHz", "frequency") == pytest.approx(2_490)
    assert quantities.parse("1Gbit/s", "bandwidth") == 125
    assert quantities.parse("17,444 MB/s", "bandwidth") == pytest.approx(17_444)
    assert quantities.parse("0.06ms", "time") == pytest.approx(60)
    assert quantities.parse("64KiB", "size") == 65_536
    for text in ("5900", "5900 parsecs", "-1us", ""):
        with pytest.raises(points.MeasurementError):
            quantities.parse(text, "bandwidth")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("obj_size_B;lat_avg_us\n1;80,5\n", "with semicolons"),
        ("obj_size_B\tlat_avg_us\n1\t80\n", "with tabs"),
        ("obj_size_B,lat_avg_us\n1,80,5\n2,90,5\n4,99,5\n8,110,5\n", "more cells than the header"),
        (f"obj_size_B,lat_avg_us\n1,80\n{'9' * 400},90\n", "too large"),
        ("obj_size_B,obj_size_B,lat_avg_us\n1,2,80\n", "the column obj_size_B twice"),
        ("obj_size_B,lat_avg_us\n1e300,80\n", "beyond any request: check the units"),
        ("obj_size_B,lat_avg_us\n1,1e308\n", "beyond any request: check the units"),
        ('{"summaries": null}', "no successful requests"),
        ('{"summaries": [{"load": {"rate_asked_per_s": 1}, "latency": {"mean_ns": 1}}]}', "lacks 'lane'"),
    ],
)
def test_what_only_looks_like_measurements_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    assert says in refused(capsys, "fit", str(path))


def test_comments_may_come_before_the_header(tmp_path: Path) -> None:
    row = read(tmp_path, "# measured on a Monday\r\nobj_size_B,lat_avg_us\r\n4096,80\r\n")
    assert (row["size_bytes"], row["time_us"]) == (4_096, 80)


def test_both_letters_for_micro_are_units(tmp_path: Path) -> None:
    for letter in "\u00b5\u03bc":
        assert read(tmp_path, f"obj_size_B,lat_avg_{letter}s\n4096,80\n")["time_us"] == 80
