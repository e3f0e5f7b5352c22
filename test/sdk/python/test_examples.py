"""Runs every example of the pages about the SDK, each as a program of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = [
    (page, n, block)
    for page in ("README.md", "sdk.md")
    for n, block in enumerate(re.findall(r"^```python\n(.*?)^```", Path(page).read_text(), re.M | re.S), 1)
]


def test_there_are_some() -> None:
    assert {page for page, _, _ in EXAMPLES} == {"README.md", "sdk.md"}


@pytest.mark.parametrize(("page", "n", "block"), EXAMPLES, ids=[f"{p}-{n}" for p, n, _ in EXAMPLES])
def test_example(page: str, n: int, block: str) -> None:
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for wanted in re.findall(r"# -> (.*)", block):
        assert wanted in done.stdout.splitlines(), f"{wanted!r} is not in {done.stdout!r}"
