"""These tests need no internet: what is refused inside is refused without one."""

from support import done

UNREACHABLE = "curl --silent --max-time 30 http://192.0.2.1/; echo $?"
COULD_NOT_CONNECT = "7\n"


async def test_without_internet_access(either):
    sandbox = await either(allow_internet_access=False)
    assert (await done(sandbox.get_info())).allow_internet_access is False
    assert (await done(sandbox.commands.run(UNREACHABLE))).stdout == COULD_NOT_CONNECT


async def test_an_update_replaces_all_rules_and_survives_a_pause(either):
    sandbox = await either(network={"deny_out": ["192.0.2.1"]})
    assert (await done(sandbox.commands.run(UNREACHABLE))).stdout == COULD_NOT_CONNECT
    await done(sandbox.update_network({"deny_out": ["192.0.2.0/24"]}))
    await done(sandbox.pause())
    await done(sandbox.connect())
    assert (await done(sandbox.get_info())).network["deny_out"] == ["192.0.2.0/24"]
    assert (await done(sandbox.commands.run(UNREACHABLE))).stdout == COULD_NOT_CONNECT
