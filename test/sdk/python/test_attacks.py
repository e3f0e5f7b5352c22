"""What goes wrong between a program and its sandboxes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from drowse import (
    AuthenticationError,
    Client,
    ConnectionLostError,
    DrowseError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    RequestTimeoutError,
    Sandbox,
    SandboxInterruptedError,
    UnreachableError,
)

SERVER = os.environ["DROWSE_URL"]


class Relay:
    """Stands between a client and the server, and breaks off when it is told to. ``lose`` is how
    many answers it swallows, once a request has gone through."""

    def __init__(self, lose: int = 0, prefix: bytes = b"") -> None:
        self.lose = lose
        self.prefix = prefix
        self.heads: list[bytes] = []
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        host, port = SERVER.removeprefix("http://").split(":")
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection((host, int(port)))
            self._open += [near, far]
            lost = self.lose > 0
            self.lose -= lost
            threading.Thread(target=self._copy, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._copy, args=(far, near, lost), daemon=True).start()

    def _copy(self, of: socket.socket, to: socket.socket, lost: bool) -> None:
        try:
            while data := of.recv(65536):
                if lost:
                    break
                if b" HTTP/1.1\r\n" in data:
                    self.heads.append(data)
                    data = data.replace(b" " + self.prefix + b"/", b" /", 1) if self.prefix else data
                to.sendall(data)
        except OSError:
            pass
        for one in (of, to):
            with_shutdown(one)

    def cut(self) -> None:
        for one in self._open:
            with_shutdown(one)

    def close(self) -> None:
        self._listener.close()
        self.cut()


def with_shutdown(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    one.close()


@contextmanager
def silent() -> Iterator[str]:
    """The URL of a server that takes connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_keys(client: Client) -> None:
    for wrong in ("e2b_0000", "nonsense"):
        with Client(api_key=wrong) as other, pytest.raises(AuthenticationError) as refused:
            Sandbox.create(client=other)
        assert refused.value.status == 401 and "Next step" in str(refused.value)
    for impossible in ("a\nb", "schlüssel"):
        with pytest.raises(DrowseError, match="DROWSE_API_KEY"):
            Client(api_key=impossible)
    made = client.request("POST", "/v1/keys", body={"name": "sdk", "role": "read"})
    with Client(api_key=made["key"] + "\n") as reader, pytest.raises(PermissionDeniedError):
        Sandbox.create(client=reader)
    client.request("DELETE", f"/v1/keys/{made['id']}")
    assert made["key"] not in repr(client) + repr(client._config)


def test_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DROWSE_API_KEY")
    with pytest.raises(DrowseError, match="no API key"):
        Client()
    for url in ("127.0.0.1:3000", "ftp://host", "http://", "http://host:99999", "http://h?q"):
        with pytest.raises(DrowseError, match="URL"):
            Client(url, "key")


def test_no_server() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}") as client, pytest.raises(UnreachableError, match="drowse serve"):
        Sandbox.create(client=client)
    with silent() as url, Client(url, timeout=0.5, retries=0) as client, pytest.raises(RequestTimeoutError):
        client.health()
    with silent() as url, Client(url, timeout=0.2, retries=1) as client, pytest.raises(TimeoutError):
        client.request("POST", "/v1/keys", body={})


def test_refused(client: Client) -> None:
    with pytest.raises(InvalidRequestError) as invalid:
        Sandbox.create(client=client, timeout=-1)
    assert invalid.value.code and invalid.value.context
    with pytest.raises(NotFoundError):
        Sandbox.create("no-such-template", client=client)
    for nonsense in ("../keys", "", "A b", "i" * 300):
        with pytest.raises(DrowseError):
            Sandbox.get(nonsense, client=client)
    for nonsense in ("..", "", "."):
        with pytest.raises(DrowseError):
            client.secrets.remove(nonsense)
    with pytest.raises(NotFoundError):
        client.snapshots.get("../../v1/keys")


def test_lost_answers(client: Client) -> None:
    """An answer that is lost makes one sandbox, not two."""
    with closing(Relay(lose=2)) as relay, Client(relay.url) as lossy:
        with Sandbox.create(client=lossy, metadata={"lost": "answer"}) as sandbox:
            found = Sandbox.list(client=client, metadata={"lost": "answer"})
            assert [f.id for f in found] == [sandbox.id]
            creates = [h.lower() for h in relay.heads if h.startswith(b"POST /v1/sandboxes ")]
            keys = {h.split(b"idempotency-key: ")[1].split(b"\r\n")[0] for h in creates}
            assert len(creates) == 3 and len(keys) == 1
    with closing(Relay(lose=1)) as relay, Client(relay.url) as lossy, pytest.raises(ConnectionLostError):
        lossy.request("POST", "/v1/keys", body={})


def test_server_goes_in_mid_stream(client: Client) -> None:
    with Sandbox.create(client=client) as sandbox, closing(Relay()) as relay, Client(relay.url) as through:
        far = Sandbox.get(sandbox.id, client=through)
        process = far.commands.start("echo on; exec sleep 1000")
        with pytest.raises(SandboxInterruptedError) as cut:
            for piece in process:
                assert piece.text == "on\n"
                relay.cut()
        assert cut.value.pid == process.pid
        assert process.pid in [p.pid for p in sandbox.commands.list()], "the command runs on"
        # Events are followed over it.
        seen: list[str] = []

        def follow() -> None:
            for event in far.events():
                seen.append(event.type)
                if event.type == "running":
                    relay.cut()

        thread = threading.Thread(target=follow)
        thread.start()
        sandbox.pause()
        sandbox.wake()
        sandbox.kill()
        thread.join(60)
        assert seen == ["created", "running", "pausing", "paused", "resuming", "resumed", "terminated"]


def test_base_path(client: Client) -> None:
    """A server behind a proxy that has it below a path."""
    with closing(Relay(prefix=b"/some/where")) as relay, Client(relay.url + "/some/where/") as below:
        with Sandbox.create(client=below) as sandbox:
            assert sandbox.commands.run("echo there").stdout == "there\n"
            sandbox.files.write("/tmp/x", "y")
            assert sandbox.files.read("/tmp/x") == b"y"
        assert relay.heads and all(h.split(b" ")[1].startswith(b"/some/where/") for h in relay.heads)


def test_path_routing(client: Client) -> None:
    """Under a name that is no address the sandbox is named in the path. The key stays outside."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(404, json={"code": 404, "message": "path does not exist"})

    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        named = Client("https://drowse.example.com/base", "e2b_00", http=http)
        sandbox = Sandbox(named, {"id": "iabc", "template": "base", "token": "inside"})
        with pytest.raises(NotFoundError):
            sandbox.files.read("/x")
    (request,) = asked
    assert str(request.url) == "https://drowse.example.com/base/s/iabc/49983/files?path=%2Fx"
    assert request.headers["X-Access-Token"] == "inside" and "X-API-Key" not in request.headers


def test_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is reached without one, another host through it."""
    with closing(Relay()) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        with Client() as client:
            client.health()
        assert not proxy.heads
        with Client("http://drowse.test") as client:
            client.request("GET", "/v1/keys")
        assert proxy.heads[0].startswith(b"GET http://drowse.test/v1/keys ")


def test_threads(client: Client, shared: Sandbox) -> None:
    def work(n: int) -> tuple[str, bytes]:
        shared.files.write(f"/tmp/threads/{n}", str(n) * 10_000)
        out = shared.commands.run(f"sleep 0.2; echo {n}", check=True).stdout
        return out, shared.files.read(f"/tmp/threads/{n}")

    with ThreadPoolExecutor(16) as pool:
        for n, (out, data) in enumerate(pool.map(work, range(48))):
            assert (out, data) == (f"{n}\n", str(n).encode() * 10_000)


def test_interrupt(client: Client, shared: Sandbox) -> None:
    """A program that is interrupted takes its command with it."""
    program = f"from drowse import Sandbox\nSandbox.get({shared.id!r}).commands.run('echo on; exec -a interrupted sleep 1000', on_stdout=print)"
    child = subprocess.Popen([sys.executable, "-uc", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout and child.stdout.readline() == "on\n"
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert "interrupted" not in shared.commands.run("ps ax").stdout


def test_closed(client: Client) -> None:
    with Sandbox.create() as sandbox:
        (child,) = sandbox.fork()
    with child:
        assert child.commands.run("true").ok, "a child has connections of its own"
    with pytest.raises(DrowseError, match="closed"):
        child.info()


def test_tls(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with TLS by a private authority, which the environment names."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        + ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
        + ["-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    server = subprocess.Popen(
        [os.environ["DROWSE_BINARY"], "serve", "--state-dir", str(tmp_path / "state"), "--listen", f"127.0.0.1:{port}"]
        + ["--tls-cert", str(cert), "--tls-key", str(key)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        # First who trusts it, and waits until it is there.
        with monkeypatch.context() as environment:
            environment.setenv("SSL_CERT_FILE", str(cert))
            with Client(f"https://127.0.0.1:{port}", retries=7) as trusting, Sandbox.create(client=trusting) as sandbox:
                assert sandbox.commands.run("echo sealed").stdout == "sealed\n"
        with Client(f"https://127.0.0.1:{port}", retries=0) as untrusting:
            with pytest.raises(UnreachableError, match="certificate"):
                untrusting.health()
    finally:
        server.terminate()
        server.wait(60)
