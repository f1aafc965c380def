"""Prints the line coverage of one parser, from `llvm-cov export` on standard input. Fails below 85 %.

usage: lines.py TARGET "FILE[: NAME...]": only functions whose name, or whose type or module, contains one of the names.
"""

import json
import re
import sys

LEAST_PERCENT = 85
CODE = 0


def lines_of(function):
    """Returns how often each line ran: the count of the smallest region that covers the line."""
    counts = {}
    regions = [region for region in function["regions"] if region[7] == CODE]
    for start, _column, end, _end_column, count, *_rest in sorted(regions, key=lambda region: region[0] - region[2]):
        counts |= dict.fromkeys(range(start, end + 1), count)
    return counts


def main():
    target, source = sys.argv[1:]
    file, _, names = source.partition(": ")
    # In a mangled name, each part follows its length.
    wanted = re.compile("|".join(rf"{len(name)}_?{name}(?![a-z])" for name in names.split()) or ".")
    counts = {}
    for function in json.load(sys.stdin)["data"][0]["functions"]:
        if function["filenames"][0].endswith(file) and wanted.search(function["name"]):
            for line, count in lines_of(function).items():
                counts[line] = max(counts.get(line, 0), count)
    covered = sum(count > 0 for count in counts.values())
    percent = 100 * covered / max(len(counts), 1)
    print(f"{target:<24} {file:<46} {len(counts):>7} {percent:>6.1f}%")
    sys.exit(percent < LEAST_PERCENT)


if __name__ == "__main__":
    main()
