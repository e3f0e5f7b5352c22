"""What this server does not have is refused by name, and leaves nothing behind."""

import e2b
import pytest

from support import done, preview

UNSUPPORTED = "is not supported by this server yet"


@pytest.fixture(params=["sync", "async"])
def classes(request):
    """The named class in either kind."""
    return lambda name: getattr(e2b, name if request.param == "sync" else f"Async{name}")


async def refused(call, reason=UNSUPPORTED):
    with pytest.raises(Exception, match=reason):
        await done(call())


async def test_secrets(classes):
    secret = classes("Secret")
    for call in (
        lambda: secret.create("some-secret", "value"),
        lambda: secret.update("some-secret", "value"),
        lambda: secret.get_info("some-secret"),
        lambda: secret.list().next_items(),
        lambda: secret.exists("some-secret"),
        lambda: secret.destroy("some-secret"),
    ):
        await refused(call, "403: E2B's secrets do not say for which hosts")


async def test_the_gateway_for_mcp(either):
    await refused(lambda: either(mcp={"time": {}}), f'400: "mcp" {UNSUPPORTED}')
    sandbox = await either()
    assert sandbox.get_mcp_url() == f"https://{sandbox.get_host(50005)}/mcp"
    assert preview(sandbox, 50005)[0] == 502  # nobody is there
    with pytest.raises(e2b.FileNotFoundException):
        await done(sandbox.get_mcp_token())


@pytest.mark.parametrize(
    "field, option",
    [
        ("iam", {"iam": {"tokens": {"own": {"audience": "somebody", "token_type": "JWT-SVID"}}}}),
        ("network.egressProxy", {"network": {"egress_proxy": {"address": "127.0.0.1:1080"}}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_sandbox_with(either, field, option):
    why = ": the egress proxy .* is at an address that no sandbox can reach" if field == "network.egressProxy" else f" {UNSUPPORTED}"
    with pytest.raises(Exception, match=f'400: .*"{field}"{why}'):
        await either(**option)
