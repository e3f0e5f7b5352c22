"""Servers inside, reached by the host name that get_host gives them."""

import json
import re

import pytest

from support import done, eventually, preview, state_of


@pytest.fixture
def serve():
    """Starts a server inside that shows a file, and returns when it answers."""

    async def start(sandbox, port, body):
        await done(sandbox.files.write(f"/home/user/{port}/index.html", body))
        server = f"python3 -m http.server --bind 127.0.0.1 --directory /home/user/{port} {port}"
        await done(sandbox.commands.run(server, background=True, timeout=0))
        eventually("the server answers", lambda: preview(sandbox, port)[0] == 200, within=30)

    return start


async def test_a_host_name_has_port_and_sandbox(either):
    sandbox = await either()
    host = sandbox.get_host(8000)
    assert re.fullmatch(rf"8000-{sandbox.sandbox_id}\.[a-z0-9.:-]+", host)


async def test_the_right_server_of_the_right_sandbox_answers(either, serve):
    sandboxes = [await either(), await either()]
    for sandbox in sandboxes:
        for port in (8000, 8001):
            await serve(sandbox, port, f"{port} of {sandbox.sandbox_id}")
    for sandbox in sandboxes:
        for port in (8000, 8001):
            assert preview(sandbox, port) == (200, f"{port} of {sandbox.sandbox_id}".encode())


async def test_a_port_where_nobody_listens(either):
    sandbox = await either()
    status, body = preview(sandbox, 8123)
    assert status == 502
    assert json.loads(body) == {
        "sandboxId": sandbox.sandbox_id,
        "message": "The sandbox is running but port is not open",
        "port": 8123,
        "code": 502,
    }


async def test_a_visit_wakes(either, serve):
    sandbox = await either(lifecycle={"on_timeout": "pause", "auto_resume": True})
    await serve(sandbox, 8000, "awake")
    await done(sandbox.pause())
    assert preview(sandbox, 8000) == (200, b"awake")
    assert state_of(sandbox) == "running"


async def test_of_a_private_sandbox_with_its_token_only(either):
    sandbox = await either(network={"allow_public_traffic": False})
    assert preview(sandbox, 8000)[0] == 403
    token = {"e2b-traffic-access-token": sandbox.traffic_access_token}
    assert preview(sandbox, 8000, token)[0] == 502
