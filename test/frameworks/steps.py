"""What a framework is driven to do, step by step. Each step that is done is a line
of JSON in the file DROWSE_FRAMEWORK_RESULTS: the framework, its version, the step."""

import contextlib
import importlib.metadata
import json
import os
import time

import e2b


class Framework:
    def __init__(self, package):
        self.package, self.version = package, importlib.metadata.version(package)

    @contextlib.contextmanager
    def step(self, name):
        """A step, which is done if the block ends without an exception."""
        begin = time.monotonic()
        yield
        line = {"framework": self.package, "version": self.version, "step": name}
        print(f"{self.package}: {name} ({time.monotonic() - begin:.1f} s)", flush=True)
        with open(os.environ["DROWSE_FRAMEWORK_RESULTS"], "a") as f:
            f.write(json.dumps(line) + "\n")


def state(sandbox_id):
    """The state of a sandbox, asked for in a way that does not wake it."""
    return str(getattr(e2b.Sandbox.get_info(sandbox_id).state, "value", e2b.Sandbox.get_info(sandbox_id).state))


def sleep(sandbox_id):
    """Put a sandbox to sleep, and see that it sleeps."""
    e2b.Sandbox.pause(sandbox_id)
    assert state(sandbox_id) == "paused", state(sandbox_id)
