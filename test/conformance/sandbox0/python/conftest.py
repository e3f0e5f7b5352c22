"""Cases for sandbox0's SDK in either generation, on sandboxes that the cases of a
file share where that does not disturb them.

How a case went is written to DROWSE_CONFORMANCE_RESULTS, a file, as lines of
JSON; test/conformance/report makes the table of them.
"""

import importlib.metadata
import json
import os

import pytest

VERSION = importlib.metadata.version("sandbox0")


def report(**line):
    path = os.environ.get("DROWSE_CONFORMANCE_RESULTS")
    if path:
        with open(path, "a") as out:
            print(json.dumps(line), file=out)


def pytest_configure(config):
    report(registry="PyPI", packages={"sandbox0": VERSION})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    ok = False
    try:
        result = yield
        ok = True
        return result
    finally:
        report(area="sandbox0", case=item.name, ok=ok)
