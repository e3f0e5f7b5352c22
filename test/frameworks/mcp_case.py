"""e2b-mcp-server: its one tool, called by an MCP client over stdio."""

import asyncio
import json
import os
import sys

import e2b
import httpx
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from steps import Framework

framework = Framework("e2b-mcp-server")


async def main():
    server = StdioServerParameters(command=sys.executable, args=["-c", "import e2b_mcp_server; e2b_mcp_server.main()"], env=dict(os.environ))
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        assert [tool.name for tool in (await session.list_tools()).tools] == ["run_code"]
        with framework.step("runs code"):
            result = await session.call_tool("run_code", {"code": "print(6*7)"})
            assert json.loads(result.content[0].text)["stdout"] == ["42\n"], result
        with framework.step("writes a file"):
            code = "open('/home/user/note.txt','w').write('written'); import os, sys; print('but', file=sys.stderr); print(os.environ['E2B_SANDBOX_ID'])"
            result = json.loads((await session.call_tool("run_code", {"code": code})).content[0].text)
            assert result["stderr"] == ["but\n"], result
    # It leaves its sandboxes to their timeouts.
    sandbox = result["stdout"][0].strip()
    with framework.step("leaves a sandbox that sleeps and wakes"):
        api = httpx.Client(base_url=f"https://api.{os.environ['E2B_DOMAIN']}", headers={"X-API-Key": os.environ["E2B_API_KEY"]})
        assert api.post(f"/sandboxes/{sandbox}/pause").status_code == 204
        assert api.post(f"/sandboxes/{sandbox}/resume", json={"timeout": 60}).status_code == 201
        with e2b.Sandbox.connect(sandbox) as again:
            assert again.files.read("/home/user/note.txt") == "written"


asyncio.run(main())
