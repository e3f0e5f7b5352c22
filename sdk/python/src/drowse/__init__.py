"""Sandboxes that sleep when nothing happens, and wake with their memory, their
processes and their files.

    from drowse import Sandbox

    with Sandbox.create(idle_timeout=60, on_idle="pause", auto_resume=True) as sandbox:
        print(sandbox.commands.run("echo hello").stdout)

Every class has an asynchronous twin: AsyncSandbox, AsyncClient.
"""

from . import models
from ._async import AsyncClient, AsyncHold, AsyncProcess, AsyncSandbox
from ._errors import (
    APIError,
    AuthenticationError,
    CommandError,
    CommandTimeoutError,
    ConflictError,
    ConnectionLostError,
    DrowseError,
    ForkError,
    InvalidRequestError,
    LimitError,
    NotFoundError,
    NotRunningError,
    PermissionDeniedError,
    RequestTimeoutError,
    SandboxEndedError,
    SandboxInterruptedError,
    UnavailableError,
    UnreachableError,
)
from ._results import FileInfo, Output, ProcessInfo, Result
from ._sync import Client, Hold, Process, Sandbox
from ._version import __version__
from .models import Hook, Hooks, Service, ServiceReady

__all__ = [
    "APIError",
    "AsyncClient",
    "AsyncHold",
    "AsyncProcess",
    "AsyncSandbox",
    "AuthenticationError",
    "Client",
    "CommandError",
    "CommandTimeoutError",
    "ConflictError",
    "ConnectionLostError",
    "DrowseError",
    "FileInfo",
    "ForkError",
    "Hold",
    "Hook",
    "Hooks",
    "InvalidRequestError",
    "LimitError",
    "NotFoundError",
    "NotRunningError",
    "Output",
    "PermissionDeniedError",
    "Process",
    "ProcessInfo",
    "RequestTimeoutError",
    "Result",
    "Sandbox",
    "SandboxEndedError",
    "SandboxInterruptedError",
    "Service",
    "ServiceReady",
    "UnavailableError",
    "UnreachableError",
    "__version__",
    "models",
]
