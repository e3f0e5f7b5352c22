"""The code interpreter, through E2B's own clients of it."""

import asyncio
import time

import pytest
from e2b import NotFoundException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox

from support import LEFTOVER, done, eventually, v1


@pytest.fixture
def new():
    made = []

    def create(**opts):
        made.append(Sandbox.create(**{"timeout": LEFTOVER, **opts}))
        return made[-1]

    yield create
    for sandbox in made:
        sandbox.kill()


@pytest.fixture(params=["sync", "async"])
async def either(request, new):
    """Creates a sandbox of either class, as the other tests' does."""
    made = []

    async def create(**opts):
        if request.param == "sync":
            return new(**opts)
        made.append(await AsyncSandbox.create(**{"timeout": LEFTOVER, **opts}))
        return made[-1]

    yield create
    for sandbox in made:
        await sandbox.kill()


def test_state_output_and_value(new):
    sandbox = new()
    seen = []
    sandbox.run_code("x = 41")
    execution = sandbox.run_code(
        "import sys\nprint(1)\nprint('é😀', file=sys.stderr)\nx + 1",
        on_stdout=lambda m: seen.append(m.line),
        on_stderr=lambda m: seen.append(m.line),
        on_result=lambda r: seen.append(r.text),
    )
    assert (execution.logs.stdout, execution.logs.stderr) == (["1\n"], ["é😀\n"])
    assert (execution.text, execution.execution_count) == ("42", 2)
    assert sorted(seen) == ["1\n", "42", "é😀\n"]


def test_error(new):
    error = new().run_code("def f():\n    return 1 / 0\nf()").error
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero")
    assert "line 2, in f" in error.traceback and "kernel.py" not in error.traceback


def test_rich_results(new):
    code = """
class Rich:
    def _repr_html_(self): return "<b>html</b>"
    def _repr_markdown_(self): return "*markdown*"
    def _repr_svg_(self): return "<svg/>"
    def _repr_png_(self): return b"png"
    def _repr_latex_(self): return "$latex$"
    def _repr_json_(self): return {"a": 1}
    def _repr_mimebundle_(self, **_): return {"e2b/data": {"c": [1]}, "text/own": "own"}
Rich()"""
    result = new().run_code(code).results[0]
    assert result.is_main_result
    assert (result.html, result.markdown, result.svg) == ("<b>html</b>", "*markdown*", "<svg/>")
    assert (result.png, result.latex, result.json) == ("cG5n", "$latex$", {"a": 1})
    assert (result.data, result.extra) == ({"c": [1]}, {"text/own": "own"})


async def test_contexts(either):
    sandbox = await either()
    context = await done(sandbox.create_code_context(cwd="/usr", language="js"))

    async def run(code):
        return (await done(sandbox.run_code(code, context=context))).text

    assert await run("const a = process.cwd(); a") == "/usr"
    listed = await done(sandbox.list_code_contexts())
    assert [c.language for c in listed] == ["python", "javascript", "javascript"]
    await done(sandbox.restart_code_context(context))
    assert await run("typeof a") == "undefined"
    await done(sandbox.remove_code_context(context))
    with pytest.raises(NotFoundException):
        await run("1")


def test_timeout_interrupts_and_state_stays(new):
    sandbox = new()
    sandbox.run_code("kept = 'kept'")
    with pytest.raises(TimeoutException):
        sandbox.run_code("import time; time.sleep(300)", timeout=3)
    assert sandbox.run_code("kept").text == "kept"


def test_state_survives_a_pause(new):
    sandbox = new()
    sandbox.run_code("x = [1]")
    sandbox.pause()
    sandbox.connect()
    assert sandbox.run_code("x.append(2); x").text == "[1, 2]"


def test_idle_kernels_keep_nothing_awake_and_running_cells_do(new):
    sandbox = new(lifecycle={"on_timeout": "pause", "auto_resume": True})
    sandbox.run_code("x = 1")
    sandbox.run_code("1", language="js")
    v1(sandbox, method="PATCH", idleTimeoutSeconds=2)
    eventually("paused", lambda: v1(sandbox)["state"] == "paused", within=60)
    began = time.monotonic()
    assert sandbox.run_code("import time; time.sleep(6); x").text == "1"
    assert time.monotonic() - began >= 6
    life = v1(sandbox, "/lifecycle")
    assert life["generation"] == 2, "the cell was not left alone"
    assert [e["cause"] for e in life["transitions"] if e["type"] == "pausing"][-1] == "idle"


async def test_contexts_run_in_parallel():
    sandbox = await AsyncSandbox.create(timeout=LEFTOVER)
    try:
        contexts = [await sandbox.create_code_context() for _ in range(3)]
        # Each waits for all the others.
        code = "import os, time\nopen('/tmp/{}', 'w').close()\nwhile len([n for n in os.listdir('/tmp') if n.startswith('at-')]) < 3: time.sleep(0.05)\n{}"
        done = await asyncio.gather(
            *(sandbox.run_code(code.format(f"at-{n}", n), context=c) for n, c in enumerate(contexts))
        )
        assert [e.text for e in done] == ["0", "1", "2"]
    finally:
        await sandbox.kill()
