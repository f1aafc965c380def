# The scripts that build libraries source this file.

# Cargo sets variables for a program that it runs (a test, xtask). The build script of `ring` would treat these
# variables as a change, so all crates that depend on `ring` would be compiled again.
unset "${!CARGO_PKG_@}" "${!CARGO_MANIFEST_@}"

# Only one process at a time builds and places libraries. Tests that run at the same time may all find the libraries
# outdated.
exec {builds}<tools/place.bash
flock "$builds"

# strip_debug LIBRARY: removes debug information. If rustc separates debug information from the code, a static library
# has members for the debug information (.dwo), and `strip` fails on empty members.
strip_debug() {
    if [[ $(head --bytes=7 "$1") == '!<arch>' ]]; then
        ar t "$1" | { grep '\.dwo$' || true; } | xargs --no-run-if-empty --delimiter='\n' ar d "$1"
    fi
    strip --strip-debug "$1"
}

# place FROM TO: installs a library without debug information. A program may be using the old file, so the file is
# replaced, never overwritten. An LLVM plugin of binutils that is older than rustc warns about each member; these
# warnings are suppressed.
place() {
    cp "$1" "$2.new"
    strip_debug "$2.new" 2>&1 | { grep -v '^bfd plugin: LLVM' >&2 || true; }
    mv -f "$2.new" "$2"
}
