"""Reports of runs: run directories become one self-contained page.

`runfile` and `likwid` read data. `figures` and the modules `figures_*` draw. `tables`, `tables_layers` and
`page` write HTML. `kinds` lists the figures and tables of each kind of run. `cli` is the command
`fordway-report`.
"""
