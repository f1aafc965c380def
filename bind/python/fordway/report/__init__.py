"""Reports of runs: writes one self-contained HTML page about one or more run directories.

`runfile` and `counters` read data. `figures` and the modules `figures_*` draw figures. `tables`,
`tables_layers` and `page` write HTML. `kinds` lists the figures and tables of each kind of run. `cli`
implements the `fordway-report` command.
"""
