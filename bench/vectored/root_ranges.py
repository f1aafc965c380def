"""Creates a ROOT file, and lists the ranges of some of its columns.

usage: root_ranges.py DIR [--events N] [--branches N] [--per-basket N] [--chosen PERCENT...]
       root_ranges.py --list FILE TREE BRANCH...

The first form creates DIR/file, a TTree written by uproot, and DIR/ranges-PERCENT for each PERCENT (10, 50 and
100). Each line of ranges-PERCENT is `offset length` of one basket of the chosen branches, which are PERCENT
per cent of all branches. The second form prints such lines for any ROOT file, tree and branches. The order of
the baskets is as in an event loop: all chosen branches of the first events, then of the next. `fordway read
--ranges` and `fordway bench vector --ranges` accept the lines.
"""

import argparse
import random
import sys
from pathlib import Path

import numpy
import uproot

SEED = 291


def write(path, events, branches, per_basket):
    """Writes a flat tree of floats that compress only partly. Returns the names of the tree's branches."""
    draw = numpy.random.default_rng(SEED)
    names = [f"branch{number:03}" for number in range(branches)]
    with uproot.recreate(path, compression=uproot.ZLIB(1)) as file:
        file.mktree("events", dict.fromkeys(names, numpy.dtype("float64")))
        for start in range(0, events, per_basket):
            count = min(per_basket, events - start)
            file["events"].extend({name: numpy.round(draw.normal(size=count), 3) for name in names})
    return names


def baskets(path, tree, names):
    """Returns (offset, length) of the baskets of these branches, in the order of their first events."""
    found = []
    with uproot.open(path) as file:
        for number, name in enumerate(names):
            branch = file[tree][name]
            count = branch.num_baskets
            entries = branch.member("fBasketEntry")[:count]
            offsets, lengths = branch.member("fBasketSeek")[:count], branch.member("fBasketBytes")[:count]
            found += [
                (int(e), number, int(o), int(n))
                for e, o, n in zip(entries, offsets, lengths, strict=True)
                # A basket without a separate record is part of the tree's record.
                if n > 0
            ]
    return [(offset, length) for _, _, offset, length in sorted(found)]


def lines(ranges):
    return "".join(f"{offset} {length}\n" for offset, length in ranges)


def make(options):
    directory = Path(options.names[0])
    path = directory / "file"
    # While uproot uses the file, its name must end in `.root`, because uproot depends on the suffix.
    named = directory / "file.root"
    names = write(named, options.events, options.branches, options.per_basket)
    for percent in options.chosen:
        chosen = sorted(random.Random(percent).sample(names, max(1, len(names) * percent // 100)))
        (directory / f"ranges-{percent}").write_text(lines(baskets(named, "events", chosen)))
    named.rename(path)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", metavar="DIR | FILE TREE BRANCH...")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--branches", type=int, default=100)
    parser.add_argument("--per-basket", type=int, default=20_000)
    parser.add_argument("--chosen", type=int, nargs="+", default=[10, 50, 100])
    options = parser.parse_args()
    if not options.list:
        make(options)
    elif len(options.names) < 3:
        parser.error("--list needs FILE TREE BRANCH...")
    else:
        file, tree, *branches = options.names
        sys.stdout.write(lines(baskets(file, tree, branches)))


if __name__ == "__main__":
    main()
