# Generated from _async/_client.py. Do not edit.
"""A connection to one server."""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self

import httpx

from .. import models
from .._background import Background
from .._config import USER_AGENT, Config
from .._errors import (
    ConnectionLostError,
    DrowseError,
    RequestTimeoutError,
    UnavailableError,
    UnreachableError,
    from_answer,
)
from .._wire import EventLines, decode
from ._admin import Secrets, Snapshots

#: How long a stream may be silent before it counts as broken. The server says
#: something every 15 seconds, and the agent every 50.
_SILENCE = 110.0


class Client:
    """A connection to one server. What is not given is taken from the environment:
    DROWSE_URL and DROWSE_API_KEY, as the command line has them.

    ``timeout`` is how long one answer may take, in seconds; commands and files have limits of
    their own. ``retries`` is how often a request is made again that could not be made, or that
    does no harm when it is made twice.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        sandbox_url: str | None = None,
        timeout: float = 120.0,
        retries: int = 2,
        http: httpx.Client | None = None,
    ) -> None:
        self._connect(Config.of(url, api_key, sandbox_url), timeout, retries, http)

    def _connect(self, config: Config, timeout: float, retries: int, http: httpx.Client | None) -> None:
        self._config = config
        self._timeout = timeout
        self._retries = retries
        self._own = http is None
        self._http = http or httpx.Client(
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            mounts={f"all://[{h}]" if ":" in h else f"all://{h}": None for h in self._config.direct()},
        )
        self.snapshots = Snapshots(self)
        self.secrets = Secrets(self)

    def _another(self) -> Self:
        """A client of the same server with connections of its own."""
        other = type(self).__new__(type(self))
        other._connect(self._config, self._timeout, self._retries, None)
        return other

    @property
    def url(self) -> str:
        return self._config.url

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def close(self) -> None:
        """Closes the connections. Sandboxes go on as they are."""
        if self._own:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def health(self) -> None:
        """Returns if a server answers and says that it is well."""
        self.request("GET", "/health")

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        again: bool | None = None,
    ) -> Any:
        """Makes any request to the API, and returns the JSON of the answer.

        ``again`` says whether it does no harm twice, so that it may be made again when its answer
        was lost; of GET, PUT, PATCH and DELETE that is so.
        """
        if again is None:
            again = method != "POST"
        head = {"X-API-Key": self._config.api_key, "Accept": "application/json", **(headers or {})}
        content = None
        if body is not None:
            head["Content-Type"] = "application/json"
            content = json.dumps(body).encode()
        response = self._send(method, self._config.url + path, head, content, query, again=again)
        return self._json(response)

    def events(
        self, *, after: int | Literal["now"] | None = None, follow: bool = True
    ) -> Generator[models.Event, None, None]:
        """What has happened to all sandboxes, and then what happens, each once and in order.

        ``after`` is the id of an event to go on from, or ``"now"``. Without ``follow`` it ends where
        the log does. A connection that breaks is taken up again where it broke off.
        """
        for event in self._events("/v1/events", after, follow):
            yield event

    def _events(
        self, path: str, after: int | Literal["now"] | None, follow: bool
    ) -> Generator[models.Event, None, None]:
        if not follow:
            while True:
                page = self.request("GET", path, query={} if after is None else {"after": str(after)})
                for one in page["events"]:
                    yield decode(models.Event, one)
                if not page["events"]:
                    return
                after = int(page["next"])
        reached, failures = False, 0
        while True:
            head = {"X-API-Key": self._config.api_key, "Accept": "text/event-stream"}
            query = {} if after is None else {"after": str(after)}
            try:
                response = self._send("GET", self._config.url + path, head, None, query, again=True, stream=True)
                reached = True
                lines = EventLines()
                try:
                    for data in response.iter_bytes():
                        for at, text in lines.feed(data):
                            failures = 0
                            if at is not None:
                                after = at
                            if text:
                                yield decode(models.Event, json.loads(text))
                finally:
                    response.close()
            except (httpx.TransportError, UnreachableError, ConnectionLostError, RequestTimeoutError, UnavailableError):
                if not reached:
                    raise
            failures += 1
            Background.sleep(min(30.0, 0.5 * 2 ** min(failures, 10)))

    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        content: bytes | BinaryIO | None,
        query: Mapping[str, str] | None,
        *,
        again: bool,
        stream: bool = False,
        timeout: float | None = None,
        foreign: bool = False,
    ) -> httpx.Response:
        """Makes a request, again where that is right. An answer that refuses is an exception; that
        of a ``foreign`` server only if it comes from the proxy in front of it."""
        rest = self._timeout if timeout is None else timeout
        limits = httpx.Timeout(rest, connect=min(rest, 10.0), pool=None, read=_SILENCE if stream else rest)
        head = {"User-Agent": USER_AGENT, **headers}
        attempt = 0
        while True:
            attempt += 1
            last = attempt > self._retries
            wait = 0.2 * 2**attempt * (0.5 + random.random() / 2)
            body = content if content is None or isinstance(content, bytes) else Background.blocks(content)
            try:
                request = self._http.build_request(
                    method, url, headers=head, content=body, params=query or None, timeout=limits
                )
                response = self._http.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as e:
                if last:
                    raise UnreachableError(
                        f"no server answers at {self._base(url)}: {_words(e)}; start it with drowse serve, or set DROWSE_URL"
                    ) from e
            except httpx.TimeoutException as e:
                if last or not again:
                    raise RequestTimeoutError(
                        f"{method} {self._base(url)}: no answer within {rest:g} s; it may have been carried out"
                    ) from e
            except httpx.TransportError as e:
                if last or not again:
                    raise ConnectionLostError(f"the connection to {self._base(url)} broke before an answer: {_words(e)}") from e
            except RuntimeError as e:
                if not self._http.is_closed:
                    raise
                raise DrowseError("this handle was closed: Sandbox.get(id) makes another") from e
            except httpx.InvalidURL as e:
                raise DrowseError(f"the URL {url[:200]!r} cannot be asked for: {e}") from e
            else:
                if response.is_success:
                    return response
                failure = self._refusal(response)
                complete = type(failure) is not ConnectionLostError
                if foreign and complete and not (response.status_code == 502 and b'"sandboxId"' in response.content):
                    return response
                told = response.headers.get("Retry-After", "")
                busy = response.status_code == 429 and told != ""
                passing = response.status_code in (502, 503, 504) and again and isinstance(failure, UnavailableError)
                if last or not (busy or passing):
                    raise failure
                if told.isdigit():
                    wait = max(wait, min(int(told), 10))
            Background.sleep(wait)

    def _base(self, url: str) -> str:
        return self._config.data_url if url.startswith(self._config.data_url) else self._config.url

    def _refusal(self, response: httpx.Response) -> DrowseError:
        try:
            response.read()
        except httpx.TransportError as e:
            return ConnectionLostError(f"the connection to {self.url} broke in an answer of {response.status_code}: {_words(e)}")
        finally:
            response.close()
        return from_answer(response.status_code, response.content)

    def _json(self, response: httpx.Response) -> Any:
        try:
            body = response.read()
        except httpx.TransportError as e:
            raise ConnectionLostError(f"the connection to {self.url} broke in the answer: {_words(e)}") from e
        finally:
            response.close()
        if not body:
            return None
        with suppress(ValueError):
            return json.loads(body)
        raise DrowseError(f"the answer of {response.url.copy_with(query=None)} is no JSON: is this the URL of a drowse server?")


def _words(e: Exception) -> str:
    return str(e) or type(e).__name__
