"""The module that `fordway run` adds to a Python program, so that boto3 needs no server.

Python imports this module when it starts. The module does nothing until a program imports botocore. Every
Python that the program starts imports it, so it must run on Python 3.6.
"""

import copy
import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder

if False:  # not `TYPE_CHECKING`, because this module must not delay the start of programs
    from collections.abc import Callable
    from typing import Any

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
        prefer_profiles()
        try:
            import fordway.boto
        except Exception as error:
            # An older Python may find a fordway that it cannot run.
            explain(f"boto goes to the gateway, because this Python cannot import fordway ({error})")
            return
        fordway.boto.install()
        if os.environ.get("FORDWAY_EXPLAIN"):
            fordway.boto.record_calls(os.environ["FORDWAY_EXPLAIN"])


def prefer_profiles() -> None:
    """Makes the endpoint of a profile that the program selects take precedence over the gateway.

    botocore prefers the `AWS_ENDPOINT_URL` variable. A program that copies objects between two services would
    then read and write the same directory.
    """
    from botocore import configprovider

    # Older versions of botocore have no such class. They do not read the variable.
    provider = getattr(configprovider, "ConfiguredEndpointProvider", None)
    if provider is None:
        return
    provide = provider.provide

    def provide_profile_first(self: "Any") -> "str | None":  # noqa: ANN401
        return endpoint_of_profile(self, provide) or provide(self)

    provider.provide = provide_profile_first


def endpoint_of_profile(provider: "Any", provide: "Callable[[Any], str | None]") -> "str | None":  # noqa: ANN401
    """Returns the endpoint of the client's profile. Returns `None` for a profile without an endpoint, for the
    default profile, and if the program itself has set `AWS_ENDPOINT_URL`.
    """
    name = "AWS_ENDPOINT_URL"
    profile, profiles = provider._scoped_config, provider._full_config.get("profiles", {})
    if profile is profiles.get("default") or os.environ.get(name) != os.environ.get("FORDWAY_RUN_ENDPOINT"):
        return None
    without_gateway = copy.copy(provider)
    without_gateway._environ = {each: value for each, value in os.environ.items() if each != name}
    return provide(without_gateway)


def explain(text: str) -> None:
    """Prints `text` if `fordway run` has the `--explain` option."""
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
