"""Transactions: files that are published together, one after another."""

from __future__ import annotations

import contextlib

from fsspec.transaction import Transaction


class ObjectTransaction(Transaction):
    """A transaction that always ends, even if a file cannot be published.

    Before version 2026.9, a transaction of fsspec itself does not end if a file cannot be published. The file
    system then silently discards everything that is written later, for all of its users in this process.
    """

    def complete(self, commit: bool = True) -> None:
        """Ends the transaction, and publishes its files if `commit` is true. If a file cannot be published,
        discards this file and all further files.
        """
        fs, files = self.fs, self.files
        with contextlib.ExitStack() as ending:
            for file in files:
                # Has no effect on a file that is already published.
                ending.callback(file.discard)
            ending.callback(files.clear)
            fs._intrans, fs._transaction = False, None
            for file in files if commit else ():
                file.commit()
