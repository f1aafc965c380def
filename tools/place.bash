# Sourced by the scripts that build libraries.

# place FROM TO: puts a library into its place, without what debuggers want. A program may be running with the old one:
# it is replaced, never written into. An LLVM that the machine has by chance says of each member that it is too new for it.
place() {
    cp "$1" "$2.new"
    { if [[ $1 == *.a ]]; then
        # Debug information apart from the code is in members of an archive that `strip` does not take where they are empty.
        ar t "$2.new" | { grep '\.dwo$' || true; } | xargs --no-run-if-empty --delimiter='\n' ar d "$2.new"
    fi
    strip --strip-debug "$2.new"; } 2>&1 | { grep -v '^bfd plugin: LLVM' >&2 || true; }
    mv -f "$2.new" "$2"
}
