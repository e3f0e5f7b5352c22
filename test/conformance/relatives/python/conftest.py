"""Cases for the SDKs of other servers, each on a sandbox that the
others of its file use too, where that does not disturb them.

How a case went is written to DROWSE_CONFORMANCE_RESULTS, a file, as lines of
JSON; test/conformance/report makes the table of them.
"""

import importlib.metadata
import json
import os

import pytest

PACKAGES = ("novita-sandbox", "cubesandbox", "mitos-run")
AREAS = {"test_novita": "Novita", "test_cube": "CubeSandbox", "test_mitos": "mitos"}


def report(**line):
    path = os.environ.get("DROWSE_CONFORMANCE_RESULTS")
    if path:
        with open(path, "a") as out:
            print(json.dumps(line), file=out)


def pytest_configure(config):
    report(registry="PyPI", packages={name: importlib.metadata.version(name) for name in PACKAGES})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    ok = False
    try:
        result = yield
        ok = True
        return result
    finally:
        report(area=AREAS[item.path.stem], case=item.name, ok=ok)


# CubeSandbox's SDK reaches sandboxes by plain HTTP only.
collect_ignore = [] if os.environ.get("CUBE_PROXY_NODE_IP") else ["test_cube.py"]
