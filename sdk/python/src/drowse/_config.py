"""Which server, which key, and how requests get there."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from ._errors import DrowseError
from ._version import __version__

DEFAULT_URL = "http://127.0.0.1:3000"
AGENT_PORT = 49983
CODE_PORT = 49999
USER_AGENT = f"drowse-python/{__version__}"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.endswith(".localhost") or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _base(text: str) -> str:
    parts = urlsplit(text.strip())
    try:
        ok = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        ok = False
    if not ok or parts.query or parts.fragment:
        raise DrowseError(f"the server's URL is {text!r}: give http://host:port or https://host, by url= or DROWSE_URL")
    return text.strip().rstrip("/")


@dataclass(frozen=True)
class Config:
    """Where requests go. The key is sent to the server, never into a sandbox."""

    url: str
    data_url: str
    api_key: str = field(repr=False)

    @classmethod
    def of(cls, url: str | None, api_key: str | None, sandbox_url: str | None) -> Config:
        """What is given, and what is not by the environment, as the command line has it."""
        env = os.environ
        base = _base(url or env.get("DROWSE_URL") or env.get("E2B_API_URL") or DEFAULT_URL)
        data = sandbox_url
        if data is None and url is None:
            data = env.get("DROWSE_SANDBOX_URL") or env.get("E2B_SANDBOX_URL")
        key = (api_key or env.get("DROWSE_API_KEY") or env.get("E2B_API_KEY") or "").strip()
        if not key:
            raise DrowseError("there is no API key: give it by api_key= or DROWSE_API_KEY; drowse serve prints it")
        if not key.isascii() or not key.isprintable():
            raise DrowseError("the API key has characters that no key has: give it by api_key= or DROWSE_API_KEY")
        return cls(base, _base(data) if data else base, key)

    def inside(self, sandbox: str, port: int) -> tuple[str, dict[str, str]]:
        """The URL of a port of a sandbox, and the headers that go with it. Headers name the
        sandbox where the server takes them: under localhost, an address or sandbox.*."""
        host = (urlsplit(self.data_url).hostname or "").lower()
        if host == "localhost" or host.startswith("sandbox.") or _is_address(host):
            return self.data_url, {"E2b-Sandbox-Id": sandbox, "E2b-Sandbox-Port": str(port)}
        return f"{self.data_url}/s/{sandbox}/{port}", {}

    def direct(self) -> list[str]:
        """The hosts that no proxy of the environment is asked for: this machine."""
        hosts = {urlsplit(u).hostname or "" for u in (self.url, self.data_url)}
        return sorted(h for h in hosts if _is_loopback(h.lower()))


_ID = re.compile(r"([a-z0-9]+)(-[a-z0-9]+)?")


def sandbox_path(sandbox: str) -> str:
    found = _ID.fullmatch(sandbox)
    if not found:
        raise DrowseError(f"{sandbox[:100]!r} is no id of a sandbox: want lower-case letters and digits")
    return f"/v1/sandboxes/{found[1]}"


def below(path: str, *names: str) -> str:
    """A path with names below it that may have any character."""
    for name in names:
        if name in ("", ".", ".."):
            raise DrowseError(f"{name!r} is no name")
        path += "/" + quote(name, safe="")
    return path
