import json

import pytest
from e2b import AuthenticationException, Sandbox, SandboxException

from support import OLD_SDK, UNKNOWN, near, raises_exactly, raw_info, request, seconds_until

DAY = 24 * 3600


def test_wrong_api_key(new):
    sandbox = new()
    opts = {"api_key": "e2b_" + "0" * 40}
    for call in (
        lambda: new(**opts),
        lambda: Sandbox.list(**opts).next_items(),
        lambda: Sandbox.get_info(sandbox.sandbox_id, **opts),
        lambda: Sandbox.kill(sandbox.sandbox_id, **opts),
        lambda: Sandbox.kill(UNKNOWN, **opts),
        lambda: Sandbox.connect(sandbox.sandbox_id, **opts),
    ):
        with raises_exactly(AuthenticationException):
            call()
    assert sandbox.is_running() is True


def test_unknown_template(new):
    with raises_exactly(SandboxException) as caught:
        new(template="no-such-template")
    assert str(caught.value).startswith("404: ")
    assert "no-such-template" in str(caught.value)


# The old SDK takes a timeout of 0 for "not given".
@pytest.mark.parametrize("timeout", [-1] if OLD_SDK else [0, -1])
def test_timeout_that_is_not_positive_is_refused(new, timeout):
    with raises_exactly(SandboxException) as caught:
        new(timeout=timeout)
    assert str(caught.value).startswith("400: ")
    assert "timeout" in str(caught.value).lower()


def test_timeout_beyond_24_hours_is_refused_naming_the_limit(new):
    with raises_exactly(SandboxException) as caught:
        new(timeout=DAY + 1)
    assert str(caught.value).startswith("400: ")
    assert "24 hours" in str(caught.value)


def test_timeout_of_24_hours_is_granted_in_full(new):
    assert seconds_until(new(timeout=DAY).get_info().end_at) == near(DAY, 10)


def test_set_timeout_and_connect_beyond_24_hours_are_refused_and_change_nothing(new):
    sandbox = new()
    end_at = raw_info(sandbox)["endAt"]
    for call in (
        lambda: sandbox.set_timeout(DAY + 3600),
        lambda: sandbox.set_timeout(-1),
        lambda: Sandbox.connect(sandbox.sandbox_id, timeout=DAY + 3600),
        lambda: Sandbox.connect(sandbox.sandbox_id, timeout=-1),
    ):
        with raises_exactly(SandboxException) as caught:
            call()
        assert str(caught.value).startswith("400: ")
    with raises_exactly(SandboxException) as caught:
        sandbox.set_timeout(DAY + 3600)
    assert "24 hours" in str(caught.value)
    assert raw_info(sandbox)["endAt"] == end_at


@pytest.mark.parametrize("headers", [{}, {"X-Access-Token": "wrong"}], ids=["none", "wrong"])
def test_sandbox_does_not_answer_without_its_token(new, headers):
    status, body = request(new(), 49983, "/files?path=/etc/hostname", headers)
    assert status == 401
    assert json.loads(body)["code"] == 401
