"""Prints tables of the results of rounds.py, next to the theoretical minimum times for the link.

usage: report.py DIR OUT

DIR contains results.jsonl, the ranges, and the properties of the links. OUT is written as JSON.
"""

import json
import statistics
import sys
from pathlib import Path

RATE_BYTES_PER_S = 125e6
# Bytes of content in a segment, and bytes of the IP packet that carries it.
SEGMENT_BYTES, PACKET_BYTES = 1448, 1500
FIRST_SEGMENTS = 10
PER_CALL = 400
WINDOWED = (
    "fordway-windowed",
    "fordway-windowed@xrdhttp",
    "fordway-h2-windowed",
    "fordway@single",
    "fordway-h2@single",
    "fordway-sequential",
    "fordway-h2-sequential",
    "xrdcl-4",
    "curl",
    "xrdcp",
    "obstore",
    "fsspec",
)
NAMES = {
    "fordway": "fordway, a call at a time",
    "fordway-windowed": "fordway, 16 calls in flight",
    "fordway@copied": "fordway, a call at a time, without sendfile",
    "fordway@xrdhttp": "fordway from XrdHttp, a call at a time",
    "fordway-windowed@xrdhttp": "fordway from XrdHttp, 16 calls in flight",
    "fordway-h2": "fordway by HTTP/2, a call at a time",
    "fordway-h2-windowed": "fordway by HTTP/2, 16 calls in flight",
    "fordway@single": "fordway without lists, 16 calls in flight",
    "fordway-h2@single": "fordway by HTTP/2 without lists, 16 calls",
    "fordway-sequential": "fordway, in order by 64 KiB, read ahead",
    "fordway-h2-sequential": "fordway by HTTP/2, in order, read ahead",
    "davix": "davix",
    "davix@xrdhttp": "davix from XrdHttp",
    "receive": "a loop that only receives",
    "pread": "no network: pread from the page cache",
    "xrdcl": "XrdCl, one call at a time",
    "xrdcl-4": "XrdCl, 4 calls in flight",
}


def floor_s(size, rtt_s):
    """Returns the minimum time: the transfer at the link's rate, two round trips, and the idle time of slow
    start."""
    send_s = size * PACKET_BYTES / SEGMENT_BYTES / RATE_BYTES_PER_S
    unused_s, window = 0.0, FIRST_SEGMENTS * PACKET_BYTES
    while window < rtt_s * RATE_BYTES_PER_S:
        unused_s += rtt_s - window / RATE_BYTES_PER_S
        window *= 2
    return send_s + 2 * rtt_s + unused_s


def floors(results, fragments, rtt_s):
    """Returns the minimum times with all calls in flight from the start, and with a round trip for each call."""
    size = results[0]["bytes"]
    whole = floor_s(size, rtt_s)
    calls = -(-fragments // PER_CALL) if fragments else 1
    return whole, whole + (calls - 1) * rtt_s


def table(rtt_ms, workload, results, directory):
    """Returns one table as data."""
    path = directory / f"ranges-{workload}"
    fragments = len(path.read_text().splitlines()) if path.exists() else 0
    good = [result for result in results if "error" not in result]
    windowed, per_call = floors(good, fragments, rtt_ms / 1e3) if good and rtt_ms else (None, None)
    rows = []
    for client in dict.fromkeys(result["client"] for result in results):
        mine = [result for result in results if result["client"] == client]
        times = [result["seconds"] for result in mine if "error" not in result]
        row = {"client": client, "error": next((result["error"] for result in mine if "error" in result), None)}
        if times:
            cpu = [result["client_cpu_seconds"] for result in mine if "error" not in result]
            floor = windowed if client in WINDOWED else per_call
            row |= {"seconds": times, "median_s": statistics.median(times), "cpu_s": statistics.median(cpu)}
            row |= {"floor_s": floor, "of_floor": statistics.median(times) / floor if floor else None}
        rows.append(row)
    rows.sort(key=lambda row: row.get("median_s", float("inf")))
    return {"rtt_ms": rtt_ms, "workload": workload, "fragments": fragments, "rows": rows} | {
        "floor_windowed_s": windowed,
        "floor_per_call_s": per_call,
    }


def show(data):
    where = f"RTT {data['rtt_ms']:g} ms, 1 Gbit/s" if data["rtt_ms"] else "loopback"
    what = f"{data['fragments']} fragments" if data["fragments"] else "the whole file"
    print(f"\n{where}, {what}")
    if data["floor_windowed_s"]:
        floors_text = f"{data['floor_windowed_s']:.2f} s with calls in flight"
        if data["fragments"]:
            floors_text += f", {data['floor_per_call_s']:.2f} s with a round trip for each call"
        print(f"floor: {floors_text}")
    print(f"  {'client':<40} {'median s':>9} {'min':>7} {'max':>7} {'x floor':>8} {'CPU s':>7}")
    for row in data["rows"]:
        name = NAMES.get(row["client"], row["client"])
        if row["error"]:
            print(f"  {name:<40} {row['error']}")
            continue
        ratio = f"{row['of_floor']:.2f}" if row["of_floor"] else "-"
        low, high = min(row["seconds"]), max(row["seconds"])
        print(f"  {name:<40} {row['median_s']:>9.2f} {low:>7.2f} {high:>7.2f} {ratio:>8} {row['cpu_s']:>7.2f}")


def goals(tables):
    """Yields the goals that were measured as (sentence, ratio, maximum). `None` means no limit."""
    for data in tables:
        rows = {row["client"]: row for row in data["rows"] if not row["error"]}
        share = "the whole file" if data["workload"] == "whole" else f"{data['workload']} %"
        where = f"RTT {data['rtt_ms']:g} ms, {share}"

        def ratio(one, other, what, rows=rows):
            return rows[one][what] / rows[other][what] if one in rows and other in rows else None

        if data["workload"] == "whole":
            if "fordway-sequential" in rows and data["rtt_ms"]:
                # The goal is 0.85 of the link's rate. The minimum time already includes slow start.
                yield f"{where}: in order with read-ahead, of the floor", rows["fordway-sequential"]["of_floor"], 1 / 0.85
            continue
        if data["rtt_ms"]:
            if "fordway" in rows:
                # A round trip takes longer than the link's latency. If round trips take most of the time, the
                # minimum time is too low for a limit, and only the comparison with XrdCl has a limit.
                most = 1.1 if data["rtt_ms"] <= 120 else None
                yield f"{where}: a call at a time, of its floor", rows["fordway"]["of_floor"], most
            if "fordway-windowed" in rows:
                yield f"{where}: calls in flight, of their floor", rows["fordway-windowed"]["of_floor"], 1.1
            of_xrdcl = ratio("fordway-windowed", "xrdcl-4", "median_s")
            yield f"{where}: calls in flight, of XrdCl's", of_xrdcl, 1.03
            of_xrdcl = ratio("fordway", "xrdcl", "median_s")
            yield f"{where}: a call at a time, of XrdCl's", of_xrdcl, 1.1
        else:
            # XRootD copies content, and so does nginx without sendfile. Clients of these servers then copy
            # from the processor's cache, which contains the content after the server's copy. With sendfile,
            # clients copy from the page cache, as pread does. The minimum is the CPU time of pread, or of a
            # loop that only receives.
            of_xrdcl = ratio("fordway@copied", "xrdcl", "cpu_s")
            yield "loopback: client CPU, both from servers that copy, of XrdCl's", of_xrdcl, 1.5
            yield "loopback: client CPU, from nginx with sendfile, of XrdCl's", ratio("fordway", "xrdcl", "cpu_s"), 1.5
            of_xrdcl = ratio("fordway@xrdhttp", "xrdcl", "cpu_s")
            yield "loopback: client CPU, both from XRootD, of XrdCl's", of_xrdcl, 1.5
            of_loop = ratio("fordway", "receive", "cpu_s")
            yield "loopback: client CPU, of a loop's that only receives", of_loop, 1.5
            yield "loopback: client CPU, of that of pread from the page cache", ratio("fordway", "pread", "cpu_s"), None
            yield "loopback: client CPU, of davix's", ratio("fordway", "davix", "cpu_s"), 1.0
            yield "loopback: client CPU, a loop that only receives, of XrdCl's", ratio("receive", "xrdcl", "cpu_s"), None
            yield "loopback: client CPU, pread from the page cache, of XrdCl's", ratio("pread", "xrdcl", "cpu_s"), None


def main():
    directory, out = Path(sys.argv[1]), Path(sys.argv[2])
    results = [json.loads(line) for line in (directory / "results.jsonl").read_text().splitlines()]
    links = {path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("link-*.json"))}
    keys = dict.fromkeys((result["rtt_ms"], result["workload"]) for result in results)
    tables = []
    for rtt_ms, workload in keys:
        mine = [result for result in results if (result["rtt_ms"], result["workload"]) == (rtt_ms, workload)]
        tables.append(table(rtt_ms, workload, mine, directory))
        show(tables[-1])
    print()
    for sentence, times, most in goals(tables):
        if times is not None and most is None:
            print(f"        {sentence}: {times:.2f} x")
        elif times is not None:
            print(f"{'holds  ' if times <= most else 'MISSED '} {sentence}: {times:.2f} x (at most {most})")
    overlap = directory / "overlap.txt"
    said = overlap.read_text().strip() if overlap.exists() else None
    if said:
        print(f"\ndavix, asked for fragments that overlap, {said}")
    for link in list(links.values())[:1]:
        print(f"congestion control: {link['parameters']['net/ipv4/tcp_congestion_control']}")
    out.write_text(json.dumps({"tables": tables, "links": links, "davix_overlap": said}, indent=1) + "\n")
    print(f"as JSON: {out}")


if __name__ == "__main__":
    main()
