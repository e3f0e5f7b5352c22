"""langchain-e2b: a deep agent whose file system and shell are a sandbox."""

import e2b
from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_e2b import E2BSandbox

from steps import Framework, sleep, state

framework = Framework("langchain-e2b")


class Scripted(GenericFakeChatModel):
    """A model that says what it was told to say, and takes any tools."""

    def bind_tools(self, tools, **kwargs):
        return self


def call(name, **args):
    return AIMessage(content="", tool_calls=[{"name": name, "args": args, "id": f"call-{name}"}])


def run(backend, *messages):
    agent = create_deep_agent(model=Scripted(messages=iter([*messages, AIMessage(content="done")])), backend=backend)
    return [m.content for m in agent.invoke({"messages": [("user", "go")]})["messages"]]


backend = E2BSandbox(sandbox=e2b.Sandbox.create(timeout=600))
with framework.step("runs code"):
    said = run(backend, call("execute", command="python3 -c 'print(6*7)'"))
    assert any("42" in text for text in said), said
with framework.step("writes and reads files"):
    said = run(
        backend,
        call("write_file", file_path="/home/user/note.txt", content="written before the sleep"),
        call("edit_file", file_path="/home/user/note.txt", old_string="before", new_string="well before"),
        call("read_file", file_path="/home/user/note.txt"),
        call("ls", path="/home/user"),
    )
    assert any("written well before the sleep" in text for text in said), said
    assert any("note.txt" in text for text in said[-2:]), said
    assert backend.upload_files([("/home/user/raw", b"\x00\xff")])[0].error is None
    backend.execute("nohup sleep 1000 >/dev/null 2>&1 & echo $! >/home/user/pid")
with framework.step("sleeps"):
    sleep(backend.id)
with framework.step("wakes, with files and processes"):
    again = E2BSandbox(sandbox=e2b.Sandbox.connect(backend.id, timeout=600))
    said = run(again, call("execute", command="cat /home/user/note.txt; kill -0 $(cat /home/user/pid) && echo lives"))
    assert any("written well before the sleep" in text and "lives" in text for text in said), said
    assert again.download_files(["/home/user/raw"])[0].content == b"\x00\xff"
    assert state(backend.id) == "running"
with framework.step("ends its sandbox"):
    assert e2b.Sandbox.kill(backend.id)
