"""smolagents: an agent whose code runs in a sandbox, with variables that outlive its sleep."""

import os

from e2b import Template
from smolagents import CodeAgent, FinalAnswerTool
from smolagents.models import ChatMessage, MessageRole, Model

from steps import Framework, sleep, state

framework = Framework("smolagents")


class Scripted(Model):
    """A model that says what it was told to say."""

    def __init__(self, *codes):
        super().__init__(model_id="scripted")
        self.codes = list(codes)

    def generate(self, messages, stop_sequences=None, response_format=None, tools_to_call_from=None, **kwargs):
        self.heard = messages
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: next\n<code>\n{self.codes.pop(0)}\n</code>")


model = Scripted(
    "kept = [6 * 7]\nprint('counted', kept)",
    "open('/home/user/note.txt', 'w').write('written before the sleep')",
    "final_answer({'kept': kept})",
    "kept.append(1)",
    "final_answer({'kept': kept, 'note': open('/home/user/note.txt').read()})",
)
# What smolagents sends imports numpy and Pillow.
wheels = os.environ["DROWSE_WHEELS"]
template = Template(file_context_path=wheels).from_template("base").copy("*.whl", "/tmp/wheels/")
with framework.step("has a template with numpy and Pillow built"):
    Template.build(template.run_cmd("pip install --no-index /tmp/wheels/*.whl"), "with-numpy")
agent = CodeAgent(
    tools=[], model=model, executor_type="e2b",
    executor_kwargs={"template": "with-numpy", "timeout": 600, "lifecycle": {"on_timeout": "pause", "auto_resume": True}},
)
sandbox = agent.python_executor.sandbox
with framework.step("runs code"):
    answer = agent.run("count")
    assert "counted [42]" in str(agent.memory.steps[1].observations), agent.memory.steps[1]
with framework.step("gives the final answer"):
    assert answer == {"kept": [42]}, answer
with framework.step("sleeps"):
    sleep(sandbox.sandbox_id)
with framework.step("wakes, with files and variables"):
    agent.tools["final_answer"] = FinalAnswerTool()  # smolagents 1.26.0 cannot use one for two runs
    answer = agent.run("count on", reset=False)
    assert answer == {"kept": [42, 1], "note": "written before the sleep"}, answer
    assert state(sandbox.sandbox_id) == "running"
with framework.step("ends its sandbox"):
    agent.cleanup()
