"""openai-agents: sessions that pause when they are left, and are taken up again from saved state."""

import asyncio
import io
import json
from pathlib import Path

from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions, E2BSandboxType

from steps import Framework, state

framework = Framework("openai-agents")


async def output(session, *command):
    result = await session.exec(*command, shell=False)
    assert result.exit_code == 0, result
    return result.stdout.decode() if isinstance(result.stdout, bytes) else result.stdout


async def main():
    for kind, persistence in ((E2BSandboxType.E2B, "tar"), (E2BSandboxType.CODE_INTERPRETER, "snapshot")):
        client = E2BSandboxClient()
        options = E2BSandboxClientOptions(
            sandbox_type=kind, timeout=600, pause_on_exit=True, workspace_persistence=persistence, exposed_ports=(8000,)
        )
        session = await client.create(options=options)
        name = f" ({kind.value}, {persistence})"
        async with session:
            sandbox = session.state.sandbox_id
            with framework.step("runs code" + name):
                assert await output(session, "python3", "-c", "print(6*7)") == "42\n"
            with framework.step("writes a file" + name):
                await session.write(Path("note.txt"), io.BytesIO(b"written before the sleep"))
            with framework.step("names the address of a port" + name):
                end = await session.resolve_exposed_port(8000)
                assert sandbox in end.host and end.tls, end
            saved = json.dumps(client.serialize_session_state(session.state))
        with framework.step("pauses on exit" + name):
            assert state(sandbox) == "paused", state(sandbox)
        with framework.step("resumes by saved state, with its files" + name):
            again = await client.resume(client.deserialize_session_state(json.loads(saved)))
            async with again:
                assert again.state.sandbox_id == sandbox
                assert (await again.read(Path("note.txt"))).read() == b"written before the sleep"
        assert state(sandbox) == "paused"


asyncio.run(main())
