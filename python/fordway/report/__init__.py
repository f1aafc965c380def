"""Reports of runs: from run directories to one self-contained page.

`runfile` reads, `figures` draws, `page` writes, `cli` is the command `fordway-report`.
"""
