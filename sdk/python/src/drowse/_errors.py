"""What can go wrong, as exceptions that say what happened, the state now and the
next step."""

from __future__ import annotations

import json
from typing import Any


class DrowseError(Exception):
    """Everything that this package raises by itself."""


class UnreachableError(DrowseError):
    """No server answered, and nothing was done."""


class RequestTimeoutError(DrowseError, TimeoutError):
    """The server did not answer in time. What was asked for may have been done."""


class ConnectionLostError(DrowseError):
    """The connection broke before the answer was complete. What was asked for may have been done."""


class SandboxInterruptedError(ConnectionLostError):
    """A stream was cut: the sandbox was paused or ended, or the connection broke.

    ``reason`` says which, and ``pid`` is the command whose output it was, if it was one.
    A command of a paused sandbox goes on when it wakes: ``commands.attach(pid)``.
    """

    def __init__(self, reason: str, pid: int | None = None) -> None:
        self.reason = reason
        self.pid = pid
        super().__init__(reason)

    def __str__(self) -> str:
        if self.pid is None:
            return self.reason
        return f"{self.reason}, while process {self.pid} ran; if it sleeps, wake it and call commands.attach({self.pid})"


class CommandError(DrowseError):
    """A command that was run with ``check=True`` failed. ``result`` is how."""

    def __init__(self, command: str, result: Any) -> None:
        self.command = command
        self.result = result
        why = f": {result.reason}" if result.reason else ""
        last = f"\n{result.stderr.strip()[-2000:]}" if result.stderr.strip() else ""
        super().__init__(f"{command[:200]!r} ended with {result.status or result.exit_code}{why}{last}")


class CommandTimeoutError(DrowseError, TimeoutError):
    """A command ran longer than it may, and was killed."""


class APIError(DrowseError):
    """The server, or the sandbox, refused.

    ``status`` is the HTTP status, ``code`` a stable name of what is wrong (docs/api/errors.md),
    ``message`` what happened and the state now, ``remediation`` the next step, ``cause`` what lies
    behind it, and ``context`` has facts for programs.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str = "",
        remediation: str = "",
        cause: str = "",
        context: dict[str, Any] | None = None,
    ) -> None:
        self.message = message
        self.status = status
        self.code = code
        self.remediation = remediation
        self.cause = cause
        self.context = context or {}
        super().__init__(message)

    @property
    def state(self) -> str | None:
        """The state of the sandbox when it refused, where that is known."""
        state = self.context.get("state")
        return state if isinstance(state, str) else None

    def __str__(self) -> str:
        text = self.message
        if self.remediation and self.remediation not in text:
            text += f". Next step: {self.remediation}"
        return f"{text} [{self.code}]" if self.code else text


class InvalidRequestError(APIError):
    """The request can never succeed as it is."""


class AuthenticationError(APIError):
    """No valid API key."""


class PermissionDeniedError(APIError):
    """The API key may not do this."""


class NotFoundError(APIError):
    """There is no such thing."""


class SandboxEndedError(NotFoundError):
    """The sandbox has ended. ``reason`` says of what, such as Killed or OutOfMemory."""

    @property
    def reason(self) -> str:
        return str(self.context.get("reason") or self.cause)


class ConflictError(APIError):
    """The state does not allow it, such as a pause of a sandbox that sleeps."""


class NotRunningError(ConflictError):
    """The sandbox sleeps, and this may not wake it."""


class LimitError(APIError):
    """A limit is reached: a quota, a rate, the disk."""


class UnavailableError(APIError):
    """Not possible right now; the server may be able to in a moment."""


class ForkError(DrowseError):
    """Some children of a fork did not start. ``sandboxes`` are those that did, and ``errors``
    says why the others did not."""

    def __init__(self, sandboxes: list[Any], errors: list[APIError]) -> None:
        self.sandboxes = sandboxes
        self.errors = errors
        super().__init__(f"{len(errors)} of {len(errors) + len(sandboxes)} children did not start: {errors[0]}")


_CLASSES: dict[int, type[APIError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    413: InvalidRequestError,
    422: InvalidRequestError,
    429: LimitError,
    502: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
    507: LimitError,
}

_ASLEEP = {"not_running", "not_resumable", "sandbox_not_running"}

# The statuses that belong to the codes of the Connect protocol.
_RPC = {
    "invalid_argument": 400,
    "failed_precondition": 400,
    "out_of_range": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "already_exists": 409,
    "aborted": 409,
    "resource_exhausted": 429,
    "unimplemented": 501,
    "unavailable": 503,
    "deadline_exceeded": 504,
}


def make(
    message: str,
    status: int,
    code: str = "",
    remediation: str = "",
    cause: str = "",
    context: dict[str, Any] | None = None,
) -> APIError:
    """The exception of the class that an answer belongs to."""
    context = context or {}
    kind = _CLASSES.get(status, APIError)
    if context.get("state") == "terminated" or code == "sandbox_terminated":
        kind = SandboxEndedError
    elif code in _ASLEEP:
        kind = NotRunningError
    elif code == "idempotency_key_reused":
        kind = ConflictError
    elif code == "timeout_too_large":
        kind = LimitError
    return kind(message, status=status, code=code, remediation=remediation, cause=cause, context=context)


def from_answer(status: int, body: bytes) -> DrowseError:
    """The exception for an answer that refuses: of the control plane, of the proxy in
    front of sandboxes, or of a sandbox's agent."""
    try:
        wire = json.loads(body)
    except ValueError:
        wire = None
    if not isinstance(wire, dict):
        text = body[:200].decode("utf-8", "replace").strip()
        return make(f"the server answered {status}" + (f": {text}" if text else ""), status)
    native = wire.get("error")
    if isinstance(native, dict):
        return make(
            str(native.get("message") or f"the server answered {status}"),
            status,
            str(native.get("code") or ""),
            str(native.get("remediation") or ""),
            str(native.get("cause") or ""),
            native.get("context") if isinstance(native.get("context"), dict) else None,
        )
    message = str(wire.get("message") or f"the server answered {status}")
    if isinstance(wire.get("code"), str):
        return from_rpc(wire)
    if wire.get("interrupted"):
        return SandboxInterruptedError(message)
    code = str(wire.get("error_code") or "")
    context = {k: wire[k] for k in ("reason", "endedAt", "pausedAt") if wire.get(k)}
    if wire.get("sandboxId"):
        context["sandbox"] = wire["sandboxId"]
        if wire.get("endedAt"):
            context["state"] = "terminated"
        elif wire.get("pausedAt"):
            context["state"] = "paused"
        if status == 502 and not code:
            code = "port_closed" if wire.get("port") else "sandbox_not_running"
    return make(message, status, code, str(wire.get("remedy") or ""), "", context)


def from_rpc(error: dict[str, Any], pid: int | None = None) -> DrowseError:
    """The exception for an error of the Connect protocol, which ends a stream too."""
    code, message = str(error.get("code") or "unknown"), str(error.get("message") or "")
    if code in ("unavailable", "aborted"):
        # Only the server in front of the agent says so, when it ends a stream.
        return SandboxInterruptedError(message or "the connection to the sandbox was cut", pid)
    if code == "deadline_exceeded":
        return CommandTimeoutError(message or "the command ran longer than it may")
    return make(message or code, _RPC.get(code, 500), code)
