# Sourced by the scripts that build libraries.

# strip_debug LIBRARY: removes debug information. Where rustc keeps it apart from the code, a static library has members
# for it (.dwo), and `strip` fails on the empty ones.
strip_debug() {
    if [[ $(head --bytes=7 "$1") == '!<arch>' ]]; then
        ar t "$1" | { grep '\.dwo$' || true; } | xargs --no-run-if-empty --delimiter='\n' ar d "$1"
    fi
    strip --strip-debug "$1"
}

# place FROM TO: installs a library without debug information. A program may be running with the old one: it is
# replaced, never written into. An LLVM plugin of binutils that is older than rustc warns of each member; that is left out.
place() {
    cp "$1" "$2.new"
    strip_debug "$2.new" 2>&1 | { grep -v '^bfd plugin: LLVM' >&2 || true; }
    mv -f "$2.new" "$2"
}
