"""The module that `fordway run` adds to a Python program, so that boto3 needs no server.

Python imports this module when it starts. The module does nothing until a program imports botocore. Every
Python that the program starts imports it, so it must run on Python 3.6.
"""

import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder

TARGET_MODULE = "botocore.client"
"""The module whose import triggers the installation of `fordway.boto`. `fordway.boto` changes a class of this
module, so the import must be complete.
"""


class AfterImport(MetaPathFinder, Loader):
    """Imports the target module as usual, and then installs `fordway.boto`."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        """Finds the target module, and then stops intercepting imports."""
        if name != TARGET_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> object:
        """Delegates to the module's own loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: object) -> None:
        """Runs the module, and then installs `fordway.boto`."""
        self._loader.exec_module(module)
        try:
            import fordway.boto
        except Exception as error:
            # An older Python may find a fordway that it cannot run.
            explain(f"boto goes to the gateway, because this Python cannot import fordway ({error})")
            return
        fordway.boto.install()
        if os.environ.get("FORDWAY_EXPLAIN"):
            import atexit

            atexit.register(lambda: explain(fordway.boto.explanation()))


def explain(text: str) -> None:
    """Prints `text` if `fordway run` has the option `--explain`."""
    if os.environ.get("FORDWAY_EXPLAIN"):
        print(f"fordway run: {text}", file=sys.stderr)  # noqa: T201 (it is asked for)


def run_hidden_module() -> None:
    """Runs the next `sitecustomize` on `sys.path`, which this module hides, if it exists."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (pathlib would cost milliseconds)
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("FORDWAY_STORE"):
    sys.meta_path.insert(0, AfterImport())
run_hidden_module()
