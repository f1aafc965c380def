# Scripts source this file. Prepares OpenFOAM's damBreak, the case of Richter's Table 1, for several rank counts. This
# file is not executable, so that `make bench` does not run it.

foam_examples=/usr/share/doc/openfoam-examples/examples/multiphase/interFoam/laminar/damBreak/damBreak
# Debian's programs look for their settings in this directory.
export WM_PROJECT_DIR=${WM_PROJECT_DIR:-/usr/share/openfoam}

# has_dambreak: succeeds if damBreak is installed; otherwise prints how to install it.
has_dambreak() {
    if ! command -v interFoam >/dev/null || [[ ! -d $foam_examples ]]; then
        echo "damBreak is left out: install it with apt-get install --no-install-recommends openfoam openfoam-examples"
        return 1
    fi
}

# cut_dambreak DIR RANKS FINENESS END: creates DIR, a case of 7,700 x FINENESS x FINENESS cells until time END (s), for
# RANKS ranks. The mesh is the damBreakFine mesh of OpenFOAM's user guide, with each cell divided in both
# directions.
cut_dambreak() {
    local dir=$1 ranks=$2 f=$3 end=$4
    cp -r "$foam_examples" "$dir"
    local low=$((10 * f)) high=$((76 * f)) left=$((46 * f)) dam=$((4 * f)) right=$((40 * f))
    sed -i "s/(23 8 1)/($left $low 1)/; s/(19 8 1)/($right $low 1)/; s/(23 42 1)/($left $high 1)/
        s/(4 42 1)/($dam $high 1)/; s/(19 42 1)/($right $high 1)/" "$dir/system/blockMeshDict"
    # The write interval is longer than the run, so that the disk has no influence.
    sed -i "s/^endTime .*/endTime $end;/; s/^writeInterval .*/writeInterval 1000;/; /sampling/d" "$dir/system/controlDict"
    sed -i "s/^numberOfSubdomains .*/numberOfSubdomains $ranks;/; s/n  *(2 2 1)/n ($ranks 1 1)/" "$dir/system/decomposeParDict"
    cp "$dir/0/alpha.water.orig" "$dir/0/alpha.water"
    {
        blockMesh -case "$dir"
        setFields -case "$dir"
        ((ranks == 1)) || decomposePar -case "$dir"
    } >"$dir/log"
    grep --quiet "nCells: $((7700 * f * f))$" "$dir/log" || {
        echo "damBreak: blockMesh did not make a mesh of $((7700 * f * f)) cells; see $dir/log" >&2
        return 1
    }
}

# The command that each rank runs. $0 is the directory of the cases, $1 the number of ranks.
# shellcheck disable=SC2016 # for the shell that runs it
readonly run_dambreak='if [ "$1" = 1 ]; then exec interFoam -case "$0/1"; else exec interFoam -parallel -case "$0/$1"; fi'
