"""Runs the Python that README.md and docs/templates.md show, as it stands there."""

import contextlib
import io
import os
import re
from pathlib import Path

import pytest

PAGES = Path(os.environ["DROWSE_PAGES"])


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", (PAGES / page).read_text(), re.M | re.S)


def run(code):
    """Runs a block as a program, and returns what it prints."""
    names = {}
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), names)
    finally:
        if "sbx" in names:
            names["sbx"].kill()
    return printed.getvalue()


def shown():
    return {re.search(r"# pip install (\S+)", code)[1]: code for code in blocks("README.md")}


def test_every_block_of_the_readme_is_run():
    assert sorted(shown()) == ["e2b", "e2b-code-interpreter"]


@pytest.mark.parametrize("package, prints", [("e2b", "still here\n"), ("e2b-code-interpreter", "42\n")])
def test_readme(package, prints):
    assert run(shown()[package]) == prints


def test_templates_page(tmp_path, monkeypatch):
    """The block expects an app beside it, and uses a name that others could have."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app/requirements.txt").write_text("")
    (tmp_path / "app/server.py").write_text("import http.server as h; h.HTTPServer(('', 8000), h.SimpleHTTPRequestHandler).serve_forever()\n")
    [code] = blocks("docs/templates.md")
    program = tmp_path / "build.py"
    program.write_text(code.replace('Sandbox.create("my-server:stable")', 'sbx = Sandbox.create("my-server:stable")'))
    assert "sbx = " in program.read_text()
    names = {"__file__": str(program), "__name__": "build"}
    monkeypatch.chdir(tmp_path)
    exec(compile(program.read_text(), str(program), "exec"), names)
    try:
        assert "server.py" in names["sbx"].commands.run("curl -s localhost:8000/").stdout
    finally:
        names["sbx"].kill()
