"""One half of the package: see drowse."""

from ._admin import AsyncSecrets, AsyncSnapshots
from ._client import AsyncClient
from ._commands import AsyncCommands, AsyncProcess
from ._files import AsyncFiles
from ._sandbox import AsyncHold, AsyncSandbox
from ._services import AsyncServices

__all__ = [
    "AsyncClient",
    "AsyncCommands",
    "AsyncFiles",
    "AsyncHold",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSecrets",
    "AsyncServices",
    "AsyncSnapshots",
]
