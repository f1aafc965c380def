"""Cost models of requests, fitted to measurements and held against them (`docs/explain/model.md`).

`readers`, `read_csv`, `read_text` and `read_run` make `points.Points` of files; `checks` refuses what cannot
be true; `quantities` reads numbers with units; `terms` turns counters into the times that models are made of;
`models` has the equations; `fitting` finds coefficients; `diagnostics` says what they are worth; `mathis`
bounds TCP; `study` joins these; `report` and `plot` show; `predict` uses stored fits; `options` and `cli` are
the command `fordway-model`.
"""
