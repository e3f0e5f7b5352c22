# Generated from _async/__init__.py. Do not edit.
"""One half of the package: see drowse."""

from ._admin import Secrets, Snapshots
from ._client import Client
from ._commands import Commands, Process
from ._files import Files
from ._sandbox import Hold, Sandbox
from ._services import Services

__all__ = [
    "Client",
    "Commands",
    "Files",
    "Hold",
    "Process",
    "Sandbox",
    "Secrets",
    "Services",
    "Snapshots",
]
