"""Prints a table of the results of the script `http-wan`, and writes them as JSON.

usage: http_wan.py DIR OUT

DIR contains files LOSS-OBJECT-VERSION-ROUND.jsonl (the output of `fordway bench rest`) and link-LOSS.json.
"""

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

VERSIONS = "1.1", "2", "3"


def read(directory):
    """Returns the results by loss, object and version, with one result for each round."""
    found = defaultdict(list)
    for path in sorted(directory.glob("*-*-*-*.jsonl")):
        loss, name, version, _round = path.stem.split("-")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[float(loss), name, version] += [line for line in lines if "latency" in line]
    return found


def figures(rows):
    """Returns median, minimum and maximum of the rounds; `None` if no request succeeded in any round."""
    errors, rows = sum(row["errors"] for row in rows), [row for row in rows if row["latency"]]
    if not rows:
        return {"rounds": 0, "errors": errors, "p50_ms": None}
    p50 = [row["latency"]["p50_ns"] / 1e6 for row in rows]
    p99 = [row["latency"]["p99_ns"] / 1e6 for row in rows]
    rates = [row["ops_per_s"] for row in rows]
    return {
        "rounds": len(rows),
        "errors": errors,
        "p50_ms": statistics.median(p50),
        "p50_ms_least": min(p50),
        "p50_ms_most": max(p50),
        "p99_ms": statistics.median(p99),
        "ops_per_s": statistics.median(rates),
        "mib_per_s": statistics.median(row["bytes_per_s"] for row in rows) / 2**20,
    }


def line(*cells):
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, (7, 12, 9, 26, 10, 9, 9, 7), strict=True))


def main():
    directory, out = Path(sys.argv[1]), Path(sys.argv[2])
    found, results = read(directory), []
    print(line("loss %", "object", "HTTP", "p50 ms [least, most]", "p99 ms", "req/s", "MiB/s", "errors"))
    for loss, name in sorted({key[:2] for key in found}, key=lambda key: (key[0], key[1] != "small")):
        for version in (version for version in VERSIONS if found[loss, name, version]):
            one = figures(found[loss, name, version])
            results.append({"loss_percent": loss, "object": name, "http": version} | one)
            if one["p50_ms"] is None:
                print(line(f"{loss:g}", name, version, "-", "-", "-", "-", one["errors"]))
                continue
            times = f"{one['p50_ms']:,.0f} [{one['p50_ms_least']:,.0f}, {one['p50_ms_most']:,.0f}]"
            what = "4 KiB x 8" if name == "small" else "large x 1"
            cells = f"{one['p99_ms']:,.0f}", f"{one['ops_per_s']:.3g}", f"{one['mib_per_s']:.3g}", one["errors"]
            print(line(f"{loss:g}", what, version, times, *cells))
    links = {path.stem: json.loads(path.read_text()) for path in directory.glob("link-*.json")}
    out.write_text(json.dumps({"results": results, "links": links}, indent=1) + "\n")


if __name__ == "__main__":
    main()
