"""Reports of runs: from run directories to one self-contained page.

`runfile` and `likwid` read; `figures`, `figures_load` and `figures_ranks` draw; `tables` and `page` write;
`kinds` says which kind of run has what; `cli` is the command `fordway-report`.
"""
