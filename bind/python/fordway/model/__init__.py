"""Cost models of requests, fitted to measurements and checked against them (`docs/explain/model.md`).

`readers`, `read_csv`, `read_text` and `read_run` convert files to `points.Points`. `checks` rejects
impossible values. `quantities` parses numbers with units. `terms` computes the terms of the models from
counters. `models` has the equations. `fitting` finds coefficients. `diagnostics` and `adequacy` check the
fits. `mathis` bounds TCP throughput. `study` combines these modules. `report` and `plot` present results.
`predict` uses stored fits. `options` and `cli` implement the `fordway-model` command.
"""
