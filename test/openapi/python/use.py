"""A program against the generated client: imports all of it, and makes requests
without sending them."""

import importlib
import pkgutil
import sys

import drowse
from drowse import AuthenticatedClient
from drowse.api.default import create_sandbox, export_sandbox, import_sandbox, pause_sandbox
from drowse.models import CreateSandboxBody, PauseSandboxBody, Sandbox

modules = [m.name for m in pkgutil.walk_packages(drowse.__path__, "drowse.")]
for name in modules:
    importlib.import_module(name)
if len(modules) < 100:
    sys.exit(f"only {len(modules)} modules were generated")

client = AuthenticatedClient("http://127.0.0.1:3000", token="key", prefix="", auth_header_name="X-API-Key")
request = create_sandbox._get_kwargs(body=CreateSandboxBody.from_dict({"timeoutSeconds": 600, "onTimeout": "pause", "autoResume": True}))
assert (request["method"], request["url"]) == ("post", "/v1/sandboxes"), request
assert request["json"] == {"timeoutSeconds": 600, "onTimeout": "pause", "autoResume": True}, request
assert pause_sandbox._get_kwargs("i0abc", body=PauseSandboxBody())["url"] == "/v1/sandboxes/i0abc/pause"
assert export_sandbox and import_sandbox and Sandbox.from_dict
