"""harbor: a task's environment, built of a Dockerfile."""

import asyncio
import logging
import tempfile
from pathlib import Path

from harbor.environments.e2b import E2BEnvironment
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths

from steps import Framework, sleep, state

framework = Framework("harbor")


async def main():
    with tempfile.TemporaryDirectory() as tmp:
        tmp = Path(tmp)
        task = tmp / "environment"
        task.mkdir()
        (task / "greeting").write_text("hello from the task\n")
        (task / "Dockerfile").write_text("FROM base\nWORKDIR /home/user/app\nCOPY greeting greeting\nRUN wc -c <greeting >size\n")
        trial = TrialPaths(trial_dir=tmp / "trial")
        trial.mkdir()
        environment = E2BEnvironment(
            environment_dir=task, environment_name="drowse-task", session_id="one", trial_paths=trial,
            task_env_config=EnvironmentConfig(cpus=1, memory_mb=512), logger=logging.getLogger(),
        )
        with framework.step("builds its template of a Dockerfile"):
            await environment.start(force_build=True)
        sandbox = environment._sandbox.sandbox_id
        with framework.step("runs code"):
            result = await environment.exec("cat greeting size; python3 -c 'print(6*7)'")
            assert (result.return_code, result.stdout) == (0, "hello from the task\n20\n42\n"), result
        with framework.step("uploads and downloads files"):
            (tmp / "up").write_bytes(bytes(range(256)))
            await environment.upload_file(tmp / "up", "/home/user/app/up")
            await environment.download_file("/home/user/app/up", tmp / "down")
            assert (tmp / "down").read_bytes() == bytes(range(256))
        with framework.step("sleeps"):
            sleep(sandbox)
        with framework.step("wakes, with its files"):
            import e2b

            e2b.Sandbox.connect(sandbox, timeout=600)
            result = await environment.exec("cat greeting; wc -c <up")
            assert result.stdout == "hello from the task\n256\n", result
            assert state(sandbox) == "running"
        with framework.step("ends its sandbox"):
            await environment.stop(delete=True)


asyncio.run(main())
