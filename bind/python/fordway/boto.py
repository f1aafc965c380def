"""S3 clients of boto3 that call a store inside the process instead of a server.

>>> import fordway.boto
>>> fordway.boto.install("file:///data/objects")
>>> s3 = boto3.client("s3")

botocore creates a class for each client. After `install`, the class of an S3 client is derived from
botocore's class, and has its own `_make_api_call`. This module carries out a call in the process if three
conditions hold. The module must support the operation and all parameters of the call. Only botocore, boto3,
s3transfer and awscli may have registered handlers for the client's events. The program itself must not have
selected another endpoint. botocore sends all other calls, with its own events, validation and signature. A
program that works on a local store must not reach buckets of the same name at AWS. A call therefore fails if
botocore would send it to AWS only because no other endpoint is configured.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from botocore import UNSIGNED, configprovider
from botocore.awsrequest import AWSResponse
from botocore.client import BaseClient, ClientCreator
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from botocore.regions import EndpointResolverBuiltins
from botocore.validate import ParamValidator

import fordway
import fordway.boto_uploads  # adds its operations to `OPERATIONS`
from fordway.boto_operations import OPERATIONS, position_of, rewind, unsent
from fordway.boto_responses import add_headers, client_error, parse_times, time_parser_of
from fordway.errors import FordwayError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fordway import Store

EVENTS_OF_AWS_CLI = ("top-level-args-parsed",)
"""Events of aws-cli's command line, for which aws-cli registers a method of a dictionary."""
OWN_MODULES = ("botocore", "boto3", "s3transfer", "awscli")
"""Modules whose event handlers do not affect calls in the process. The handlers do not examine requests, or
only change parts of requests that a call in the process does not have.
"""

FOREIGN_MODULES = ("botocore.stub", "s3transfer.crt")
"""Modules of botocore and s3transfer whose handlers replace calls. The responses of a `Stubber` take
precedence over the store's responses. Transfers by the AWS Common Runtime (CRT) only need the request of a
call.
"""

TRANSFERS = "boto3.s3.transfer"
"""The module that selects how boto3 transfers files."""

ENDPOINT_VARIABLE = "FORDWAY_STORE"
"""The environment variable with the endpoint for `install()`."""

RUN_ENDPOINT, RUN_SECRET_KEY = "FORDWAY_RUN_ENDPOINT", "FORDWAY_RUN_SECRET_KEY"
"""The environment variables with the address and the secret key of the gateway of `fordway run`."""

RUN_ACCESS_KEY = "fordway-run"
"""The access key of this gateway."""

OWN_ENDPOINTS = ("/", "file:", "unix:", "tcp:")
"""Prefixes of Fordway's endpoints that are not HTTP servers."""

AWS_DOMAINS = (
    ".amazonaws.com",
    ".amazonaws.com.cn",
    ".amazonaws.eu",
    ".api.aws",
    ".api.amazonwebservices.com.cn",
    ".c2s.ic.gov",
    ".sc2s.sgov.gov",
    ".cloud.adc-e.uk",
    ".csp.hci.ic.gov",
)
"""The domains of AWS in all partitions, for clients of which only the endpoint is known."""

LOCKED, PAUSE_S_MAX = "LockTimeout", 20
"""The kind of an error for which botocore repeats a call, and the longest pause before it does."""

S3_ID = "S3"
"""The ID of the service in botocore's service models."""

answered: Counter[tuple[str, str]] = Counter()
"""The number of calls, including failed calls, for each operation and path. The path is `in process` or
`botocore`.
"""

_VALIDATOR = ParamValidator()

USUAL = {"string": str, "blob": bytes}
"""Types for which botocore accepts every value. (`Operation.takes` first checks that the bucket and the key
are not empty.)
"""

_usual_types: dict[str, dict[str, type | None]] = {}
"""The usual types of each operation's parameters."""

_counting = threading.Lock()

_calls_path: str | None = None
"""The file of `record_calls`."""

_call = threading.local()
"""The thread's current call. `reason` is the result of `_reason` for the call. `wrapped` is the
`WrappedCall`, if any.
"""


def _is_botocores(method: object) -> bool:
    """Returns whether a method is botocore's own. Wrappers imitate the attributes of a method, but not its
    type and its globals.
    """
    return type(method) is FunctionType and method.__globals__["__name__"].partition(".")[0] == "botocore"


_botocore_call = BaseClient._make_api_call if _is_botocores(BaseClient._make_api_call) else None
"""botocore's own method. `None` if another program has replaced it before this module was imported."""

_botocore_create: Callable[..., type] | None = None
"""The method of `ClientCreator` that `_create_class` replaces. `None` if it is not replaced."""

_botocore_create_client: Callable[..., Any] | None = None
"""The method of `ClientCreator` that `_create_client` replaces. `None` if it is not replaced."""

_boto3_should_use_crt: Callable[..., bool] | None = None
"""The function of boto3 that `_should_use_crt` replaces. `None` if it is not replaced."""

_creation = threading.local()
"""`is_ours` is true while the thread creates a client whose class `_create_class` may create."""

_store: Store | None = None

# Older versions of botocore do not read endpoints from the environment.
_provider = getattr(configprovider, "ConfiguredEndpointProvider", None)
_provide: Callable[[Any], str | None] | None = getattr(_provider, "provide", None)


def _after_fork() -> None:
    """Replaces the lock, because a thread that does not exist in this process may have held it."""
    global _counting
    _counting = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def install(endpoint: str | os.PathLike[str] | None = None) -> Store:
    """Makes all S3 clients that are created after this call, even by existing sessions, call the store at
    `endpoint`.

    The default endpoint is the value of the `FORDWAY_STORE` environment variable. If the variable is not set,
    `fordway.open` determines the endpoint. A second call of `install` changes the store, for existing clients
    too. Returns the store.
    """
    global _store, _botocore_create, _botocore_create_client
    _store = fordway.open(endpoint if endpoint is not None else os.environ.get(ENDPOINT_VARIABLE))
    if _botocore_create is None:
        # A session copies botocore's list of event handlers when it is created, but all sessions use this
        # class when they create a client.
        _botocore_create = ClientCreator._create_client_class
        ClientCreator._create_client_class = _create_class
    if _botocore_create_client is None:
        _botocore_create_client = ClientCreator.create_client
        ClientCreator.create_client = _create_client
    if _provide is not None:
        _provider.provide = _provide_server
    return _store


def explanation() -> str:
    """Returns the numbers of calls so far, by operation and path (`in process` or `botocore`), as text."""
    counts = ", ".join(f"{operation} {way}: {count}" for (operation, way), count in sorted(answered.items()))
    return f"boto: {counts or 'no calls'}"


def record_calls(path: str) -> None:
    """Makes this process, and the processes that it forks, add a line to the file `path` for each call:
    operation and path, separated by a tab.
    """
    global _calls_path
    _calls_path = path


def uninstall() -> None:
    """Reverts `install`, so that botocore sends all calls again."""
    global _store, _botocore_create, _botocore_create_client, _boto3_should_use_crt
    # If other code has since replaced a method, that code still calls our method.
    if ClientCreator._create_client_class is _create_class:
        ClientCreator._create_client_class, _botocore_create = _botocore_create, None
    if ClientCreator.create_client is _create_client:
        ClientCreator.create_client, _botocore_create_client = _botocore_create_client, None
    if getattr(sys.modules.get(TRANSFERS), "_should_use_crt", None) is _should_use_crt:
        sys.modules[TRANSFERS]._should_use_crt, _boto3_should_use_crt = _boto3_should_use_crt, None
    if _provide is not None:
        _provider.provide = _provide
    _store = None


def _provide_server(provider: Any) -> str | None:  # noqa: ANN401
    """Returns the endpoint that the environment specifies for a client. Returns `None` for an S3 endpoint
    such as `file:///data`: Fordway's programs accept it, but botocore would refuse to create a client for it.

    This applies only to clients that call the store. Without an endpoint, clients of other libraries, such as
    aiobotocore, would send their calls to AWS. botocore must refuse to create these clients.
    """
    endpoint = _provide(provider)
    if not getattr(_creation, "is_ours", False):
        return endpoint
    # In `fordway run`, the variable is a gateway's address, so another endpoint is the program's own choice,
    # which must not become the directory of `fordway run`.
    if RUN_ENDPOINT in os.environ or getattr(provider, "_client_name", None) != "s3":
        return endpoint
    return None if endpoint and endpoint.startswith(OWN_ENDPOINTS) else endpoint


def _count(operation: str, way: str) -> None:
    with _counting:
        answered[operation, way] += 1
    if _calls_path is not None:
        _record(_calls_path, operation, way)


def _record(path: str, operation: str, way: str) -> None:
    # The file is opened for each call, because a program may close all descriptors of its process. It no
    # longer exists if the process outlives `fordway run`.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, f"{operation}\t{way}\n".encode())
        finally:
            os.close(descriptor)


def _sign_with_keys_of_run(client: Any) -> None:  # noqa: ANN401
    """Makes a client of the gateway of `fordway run` sign with the gateway's keys.

    The program's own keys, and unsigned requests, are for the service that the gateway replaces. Calls in the
    process need no keys either. botocore has no public interface for this change.
    """
    signer, secret_key = getattr(client, "_request_signer", None), os.environ.get(RUN_SECRET_KEY)
    if secret_key and client.meta.endpoint_url == os.environ.get(RUN_ENDPOINT) and signer is not None:
        signer._credentials = Credentials(RUN_ACCESS_KEY, secret_key)
        if client.meta.config.signature_version is UNSIGNED:
            client.meta.events.register_first("choose-signer.s3", _choose_signature)


def _choose_signature(**_: object) -> str:
    """Returns the version of the signatures of a client that botocore would not let sign."""
    return "s3v4"


def _create_client(creator: ClientCreator, *arguments: object, **options: object) -> Any:  # noqa: ANN401
    """Creates a client as botocore does. aiobotocore has its own method, which does not call this one."""
    before, _creation.is_ours = getattr(_creation, "is_ours", False), True
    try:
        return _botocore_create_client(creator, *arguments, **options)
    finally:
        _creation.is_ours = before


def _create_class(creator: ClientCreator, service_name: str, service_model: Any) -> type:  # noqa: ANN401
    """Creates the class of a client as botocore does. The class of an S3 client calls the store."""
    made = _botocore_create(creator, service_name, service_model)
    if _store is None or service_model.service_id != S3_ID:
        return made
    _transfer_in_python()
    return _calling_store(made)


def _transfer_in_python() -> None:
    """Makes boto3 transfer files with calls of its client. The AWS Common Runtime (CRT), which boto3 selects
    on some machines, would send requests to AWS itself.
    """
    global _boto3_should_use_crt
    # boto3 has imported the module if it creates the client.
    transfers = sys.modules.get(TRANSFERS)
    if _boto3_should_use_crt is None and hasattr(transfers, "_should_use_crt"):
        _boto3_should_use_crt, transfers._should_use_crt = transfers._should_use_crt, _should_use_crt


def _should_use_crt(_: object) -> bool:
    """Returns whether boto3 should transfer files with the CRT."""
    return False


def _calling_store(made: type) -> type:
    """Returns a subclass of a client's class with our `_make_api_call` and a check for event handlers.

    Methods that event handlers have added to botocore's class remain effective.
    """

    def _make_api_call(self: Any, operation_name: str, api_params: dict[str, Any]) -> Any:  # noqa: ANN401
        store = _store
        if store is not None and not self._fordway_is_watched:
            if BaseClient._make_api_call is not _botocore_call:
                return _call_wrapped(self, made, operation_name, api_params)
            try:
                answer = _answer(self, store, operation_name, api_params)
            except ClientError:
                _count(operation_name, "in process")
                raise
            if answer is not None:
                _count(operation_name, "in process")
                return answer
        _count(operation_name, "botocore")
        _call.reason = _reason(self, operation_name, api_params)
        return made._make_api_call(self, operation_name, api_params)

    def __init__(self: Any, *arguments: object, **options: object) -> None:  # noqa: ANN401, N807
        self._fordway_is_watched, self._fordway_time_parser = True, None
        made.__init__(self, *arguments, **options)
        self._fordway_time_parser = time_parser_of(self)
        # The environment may be different when a handler is registered later.
        has_other_endpoint = _has_other_endpoint(self)
        self._fordway_is_watched = has_other_endpoint or _has_foreign_handlers(self.meta.events)
        _watch_registrations(self, has_other_endpoint)
        _sign_with_keys_of_run(self)
        self.meta.events.register_first("provide-client-params.s3", functools.partial(_note_parameters, self))
        self.meta.events.register_last("before-call.s3", functools.partial(_answer_wrapped, self))
        if _leads_to_aws(self):
            # `_refuse` is registered last, so that a `Stubber` can return a response first.
            self.meta.events.register_last("before-call.s3", _refuse)
            self.meta.events.register_first("choose-signer.s3", _refuse_presigned)

    own = {"_make_api_call": _make_api_call, "__init__": __init__, "__module__": made.__module__}
    return type(made.__name__, (made,), own | {"__doc__": made.__doc__})


@dataclass
class WrappedCall:
    """A call that another program's function has received first."""

    client: Any
    parameters: dict[str, Any]
    is_answered: bool = False
    """Whether the store has answered the call."""


def _call_wrapped(client: Any, made: type, operation: str, parameters: dict[str, Any]) -> Any:  # noqa: ANN401
    """Makes a call for which another program has replaced botocore's method, to trace calls or to fake
    responses.

    The replacement receives the call. If it calls botocore's method, `_answer_wrapped` calls the store.
    """
    before = getattr(_call, "wrapped", None)
    _call.wrapped = wrapped = WrappedCall(client, parameters)
    _call.reason = _reason(client, operation, parameters)
    try:
        return made._make_api_call(client, operation, parameters)
    finally:
        _count(operation, "in process" if wrapped.is_answered else "botocore")
        _call.wrapped = before


def _wrapped_call_of(client: Any) -> WrappedCall | None:  # noqa: ANN401
    """Returns the call of `_call_wrapped` that `client` makes. During that call, for example while its
    body is read, the thread may also make calls of other clients, which are not for the store.
    """
    wrapped = getattr(_call, "wrapped", None)
    return wrapped if wrapped is not None and wrapped.client is client else None


def _note_parameters(client: Any, params: dict[str, Any], **_: object) -> None:  # noqa: ANN401
    """Records the parameters that botocore's method has received, before botocore changes them for a
    request.
    """
    wrapped = _wrapped_call_of(client)
    if wrapped is not None:
        wrapped.parameters = dict(params)


def _answer_wrapped(client: Any, model: Any, context: dict[str, Any], **_: object) -> Any:  # noqa: ANN401
    """Answers a call of `_call_wrapped` instead of botocore. Returns `None` for all other calls."""
    store, wrapped = _store, _wrapped_call_of(client)
    if store is None or wrapped is None:
        return None
    try:
        answer = _answer(client, store, model.name, wrapped.parameters)
    except ClientError as error:
        answer = error.response
    if answer is None:
        return None
    wrapped.is_answered = True
    # The store's names are not encoded, so botocore must not decode them.
    context.pop("encoding_type_auto_set", None)
    described = answer["ResponseMetadata"]
    return AWSResponse(None, described["HTTPStatusCode"], described["HTTPHeaders"], None), answer


def _answer(client: Any, store: Store, operation: str, parameters: dict[str, Any]) -> dict[str, Any] | None:  # noqa: ANN401
    """Returns the response of the store, or `None` for a call that botocore must send. Raises botocore's
    `ClientError`.
    """
    known = OPERATIONS.get(operation)
    if known is None:
        return None
    start = None
    if not _has_usual_types(operation, parameters):
        parameters = _plain_texts(parameters)
        if not _is_valid(client, operation, parameters):
            return None
        start = position_of(parameters.get("Body"))
    if not known.takes(parameters):
        return None
    try:
        answer = known.answer(store, parameters)
    except FordwayError as error:
        answer = _repeated(client, store, operation, parameters, error, start)
    if answer is not None:
        add_headers(client, operation, answer)
        if client._fordway_time_parser is not None:
            parse_times(client, operation, answer, client._fordway_time_parser)
    return answer


def _repeated(
    client: Any,  # noqa: ANN401
    store: Store,
    operation: str,
    parameters: dict[str, Any],
    error: FordwayError,
    start: int | None,
) -> dict[str, Any] | None:
    """Repeats a call that failed because another program held a lock (`SlowDown`), as often as botocore
    would. `start` is the position of the body before the call. Raises botocore's `ClientError`.
    """
    attempts_max = client.meta.config.retries.get("total_max_attempts", 1)
    retries = 0
    while error.kind == LOCKED and retries + 1 < attempts_max and rewind(parameters.get("Body"), start):
        time.sleep(min(random.random() * 2**retries, PAUSE_S_MAX))
        retries += 1
        try:
            answer = OPERATIONS[operation].answer(store, parameters)
        except FordwayError as repeated:
            error = repeated
        else:
            if answer is not None:
                answer["ResponseMetadata"]["RetryAttempts"] = retries
            return answer
    described = unsent(store, operation, parameters, error)
    raise client_error(client, operation, error, parameters, described, retries) from error


def _plain_texts(value: Any) -> Any:  # noqa: ANN401
    """Returns a parameter with plain text for instances of subclasses of `str`, such as members of
    enumerations and NumPy's strings.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if type(value) is dict:
        return {name: _plain_texts(each) for name, each in value.items()}
    if type(value) is list:
        return [_plain_texts(each) for each in value]
    return value


OF_PLAIN_BUCKETS = {"CopyObject", "DeleteObjects", "UploadPartCopy"}
"""Operations that are answered only if no bucket of the call has ever kept versions."""


def _reason(client: Any, operation: str, parameters: dict[str, Any]) -> str:  # noqa: ANN401
    """Returns the reason why botocore must send a call, as a part of a sentence. Returns an empty string if
    the operation itself is the reason.
    """
    known = OPERATIONS.get(operation)
    if known is None:
        return ""
    if client._fordway_is_watched:
        return ", because the program has registered handlers for botocore's events"
    unknown = sorted(parameters.keys() - known.known)
    if not unknown and operation in OF_PLAIN_BUCKETS:
        return ", because a bucket of this call keeps versions, or because of the value of a parameter"
    return f", because of {' and '.join(unknown) or 'the value of a parameter'}"


def _has_usual_types(operation: str, parameters: dict[str, Any]) -> bool:
    """Returns whether botocore accepts all parameters because of their types alone. Most calls then need no
    validation, which may take longer than the call itself.
    """
    usual = _usual_types.get(operation)
    if usual is None:
        return False
    for name, value in parameters.items():  # noqa: SIM110 (`all` takes longer)
        if type(value) is not usual.get(name):
            return False
    return True


def _is_valid(client: Any, operation: str, parameters: dict[str, Any]) -> bool:  # noqa: ANN401
    """Returns whether botocore accepts the types of all parameters. If botocore does not accept a type, it
    raises the error when it sends the call.
    """
    shape = client.meta.service_model.operation_model(operation).input_shape
    if shape is None:
        return True
    if operation not in _usual_types:
        _usual_types[operation] = {name: USUAL.get(kind.type_name) for name, kind in shape.members.items()}
    if "CopySource" in parameters:
        # botocore converts a dictionary to a string before it validates.
        parameters = {**parameters, "CopySource": ""}
    return not _VALIDATOR.validate(parameters, shape).has_errors()


def _has_other_endpoint(client: Any) -> bool:  # noqa: ANN401
    """Returns whether the program itself selected a server (which can be AWS) other than the server from the
    environment.
    """
    return not _is_named(client) and _is_selected(client)


def _leads_to_aws(client: Any) -> bool:  # noqa: ANN401
    """Returns whether the client's endpoint is AWS only because no other endpoint is configured."""
    return not _is_named(client) and not _is_selected(client)


def _is_named(client: Any) -> bool:  # noqa: ANN401
    """Returns whether an environment variable contains the client's endpoint."""
    named = (os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"))
    return client.meta.endpoint_url in named


def _is_selected(client: Any) -> bool:  # noqa: ANN401
    """Returns whether the client was created with an explicit endpoint, from any source. Without one,
    botocore selects the endpoint of AWS in the client's region, which may be in any domain.

    botocore has no public interface for this query. If its private attribute does not exist, an endpoint
    outside of AWS's known domains counts as explicit.
    """
    builtins = getattr(getattr(client, "_ruleset_resolver", None), "_builtins", None)
    if builtins is not None:
        return builtins.get(EndpointResolverBuiltins.SDK_ENDPOINT) is not None
    return not (urlsplit(client.meta.endpoint_url).hostname or "").endswith(AWS_DOMAINS)


def _refuse(model: Any, **_: object) -> None:  # noqa: ANN401
    """Refuses a call before botocore signs and sends it."""
    if _store is not None:
        raise UnsupportedError(
            f"fordway.boto cannot carry out this {model.name} in the process"
            f"{getattr(_call, 'reason', '')}, and would have to send it to "
            "AWS, because no server is set as the endpoint; run the program with `fordway run`, which has a "
            "gateway for such calls, or set AWS_ENDPOINT_URL to the service to use"
        )


def _refuse_presigned(event_name: str, **_: object) -> None:
    """Refuses a presigned URL or form for AWS. Calls never get this far, because `_refuse` comes first."""
    if _store is not None:
        raise UnsupportedError(
            f"fordway.boto cannot presign {event_name.rpartition('.')[2]}, because no server is set as the "
            "endpoint, and the URL would lead to AWS; create the client with the endpoint_url of a gateway"
        )


def _is_own(handler: object) -> bool:
    module = getattr(getattr(handler, "func", handler), "__module__", None) or ""
    if module in FOREIGN_MODULES:
        return False
    return module.partition(".")[0] in OWN_MODULES or module == __name__


def _has_foreign_handlers(events: Any) -> bool:  # noqa: ANN401
    """Returns whether a session had other event handlers before it created the client.

    botocore has no public interface for this query. If its private tree of handlers does not exist, returns
    true.
    """
    try:
        children = events._emitter._handlers._root["children"]
        nodes = [node for name, node in children.items() if name not in EVENTS_OF_AWS_CLI]
        while nodes:
            node = nodes.pop()
            nodes.extend(node["children"].values())
            registered = (handler for handlers in node["values"] or () for handler in handlers)
            if not all(map(_is_own, registered)):
                return True
    except (AttributeError, KeyError, TypeError):
        return True
    return False


def _watch_registrations(client: Any, has_other_endpoint: bool) -> None:  # noqa: ANN401
    """Makes botocore send all calls while another handler is registered on the client."""
    events = client.meta.events

    def watched(change: Callable[..., Any]) -> Callable[..., Any]:
        def changing(event_name: str, handler: object = None, *arguments: object, **options: object) -> Any:  # noqa: ANN401
            done = change(event_name, handler, *arguments, **options)
            if not _is_own(handler):
                client._fordway_is_watched = has_other_endpoint or _has_foreign_handlers(events)
            return done

        return changing

    for name in ("register", "register_first", "register_last", "unregister"):
        setattr(events, name, watched(getattr(events, name)))
