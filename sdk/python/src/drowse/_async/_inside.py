"""Requests into one sandbox."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import httpx

from .._config import AGENT_PORT
from .._errors import SandboxInterruptedError, from_rpc
from .._wire import Frames, frame

if TYPE_CHECKING:
    from ._client import AsyncClient


class AsyncInside:
    """The way to the agent of a sandbox, and to the servers in it."""

    def __init__(self, client: AsyncClient, sandbox: str, token: str, traffic: str) -> None:
        self.client = client
        self.sandbox = sandbox
        self._token = token
        self._traffic = traffic

    async def send(
        self,
        method: str,
        path: str,
        *,
        port: int = AGENT_PORT,
        content: bytes | BinaryIO | None = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        user: str | None = None,
        again: bool = False,
        stream: bool = False,
        timeout: float | None = None,
    ) -> httpx.Response:
        """Makes a request to a port. The key of the API does not go with it."""
        base, head = self.client._config.inside(self.sandbox, port)
        if self._traffic:
            head["E2b-Traffic-Access-Token"] = self._traffic
        if port == AGENT_PORT:
            # Compressing costs more than it saves this near.
            head["Accept-Encoding"] = "identity"
            if self._token:
                head["X-Access-Token"] = self._token
            if user:
                # Says who runs it inside, and proves nothing.
                head["Authorization"] = "Basic " + base64.b64encode(f"{user}:".encode()).decode()
        head.update(headers or {})
        return await self.client._send(
            method,
            base + path,
            head,
            content,
            query,
            again=again,
            stream=stream,
            timeout=timeout,
            foreign=port != AGENT_PORT,
        )

    async def call(
        self, method: str, message: Any, *, user: str | None = None, again: bool = True, timeout: float | None = None
    ) -> Any:
        """Calls a method of the agent that answers once."""
        head = {"Content-Type": "application/json", "Connect-Protocol-Version": "1"}
        content = json.dumps(message).encode()
        response = await self.send(
            "POST", "/" + method, content=content, headers=head, user=user, again=again, timeout=timeout
        )
        return await self.client._json(response)

    async def open(
        self, method: str, message: Any, *, user: str | None = None, timeout: float | None = None
    ) -> httpx.Response:
        """Opens a stream of the agent."""
        head = {
            "Content-Type": "application/connect+json",
            "Connect-Protocol-Version": "1",
            "Keepalive-Ping-Interval": "50",
        }
        if timeout is not None:
            head["Connect-Timeout-Ms"] = str(max(1, round(timeout * 1000)))
        return await self.send("POST", "/" + method, content=frame(message), headers=head, user=user, stream=True)

    async def messages(self, response: httpx.Response, pid: int | None = None) -> AsyncGenerator[dict[str, Any], None]:
        """The messages of a stream. One that does not end as it should is an exception."""
        frames = Frames()
        try:
            async for data in response.aiter_bytes():
                for end, message in frames.feed(data):
                    if not end:
                        yield message
                    elif message.get("error"):
                        raise from_rpc(message["error"], pid)
                    else:
                        return
        except (httpx.TransportError, httpx.StreamError) as e:
            raise SandboxInterruptedError("the connection to the sandbox broke", pid) from e
        raise SandboxInterruptedError("the stream of the sandbox ended early", pid)
