# The benchmarks source this file. Creates a scratch directory in memory that is removed when the script ends, and sets
# a time limit. This file is not executable, so that `make bench` does not run it.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
fordway=${FORDWAY:-$root/target/release/fordway}
# The maximum time of one comparison, and the space that the largest comparison needs.
limit_s=600 room_mib=1024

[[ -x $fordway ]] || {
    echo "$fordway is missing; build it with: cargo build --release --locked" >&2
    exit 1
}

# On tmpfs, the figures do not include the disk. A tmpfs with too little space (as in many containers) is not used.
if [[ $(stat --file-system --format=%T /dev/shm 2>/dev/null) == tmpfs ]] &&
    (($(df --output=avail --block-size=MiB /dev/shm | tail -n 1 | tr -dc 0-9) >= room_mib)); then
    scratch=$(mktemp --directory /dev/shm/fordway-bench-XXXXXX)
else
    scratch=$(mktemp --directory --tmpdir fordway-bench-XXXXXX)
    echo "note: /dev/shm is not a tmpfs with $room_mib MiB free; working in $scratch," \
        "so these figures include the disk" >&2
fi
readonly root fordway scratch limit_s room_mib

# A script that is stopped ends the comparison before it removes the scratch directory, because the comparison would
# otherwise continue to write there.
running=
clean_up() {
    if [[ $running ]]; then
        kill "$running" 2>/dev/null || true
        wait "$running" || true
    fi
    rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# fill DIR COUNT BYTES: creates COUNT files of BYTES random bytes each.
fill() {
    local dir=$1 count=$2 bytes=$3
    mkdir -p "$dir"
    head -c $((count * bytes)) /dev/urandom |
        split --bytes="$bytes" --suffix-length=5 --numeric-suffixes - "$dir/f"
}

# compare NAME DIR OPTION...: compares the lanes on DIR in the scratch directory, and keeps the run in out/NAME.run.
compare() {
    local name=$1 dir=$2
    shift 2
    timeout --kill-after=30 "$limit_s" \
        "$fordway" compare "$dir" --root "$scratch" --out "$root/out/$name.run" --no-report "$@" &
    running=$!
    # The comparison runs in the background, because a shell handles signals only between commands, or while it waits.
    wait "$running"
    running=
}
