"""The first five timelines of lifecycle.md 12, with seconds in place of
minutes. The native API says what the SDK does not: generation, cause, reason.
"""

from datetime import datetime, timedelta, timezone

from e2b import Sandbox, SandboxNotFoundException

from support import NotRunning, eventually, raises_exactly, state_of, v1

PAUSES = {"on_timeout": "pause", "auto_resume": True}

# What a busy machine may add to a deadline.
MAX_LATENESS = timedelta(seconds=60)

# By how much the clock inside may differ.
MAX_CLOCK_ERROR = timedelta(milliseconds=500)


def moment(text):
    return datetime.fromisoformat(text)


def after(seconds):
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


def happened(due, at):
    """Wants that something happened when it was due: never before, and not
    much later."""
    assert timedelta() <= at - due <= MAX_LATENESS


def paused(sandbox, cause, generation):
    """Waits until the sandbox has been paused in the generation, and returns
    when that began. The SDK shows it as paused before the commit, when a
    request still cancels the pause."""
    eventually("paused", lambda: v1(sandbox)["state"] == "paused", within=20)
    assert state_of(sandbox) == "paused"
    life = v1(sandbox, "/lifecycle")
    pausing = next(e for e in life["transitions"] if e["type"] == "pausing")
    assert life["generation"] == generation
    assert (pausing["cause"], pausing["generation"]) == (cause, generation)
    return moment(pausing["time"])


def awake(sandbox, generation, granted, auto_resume=True):
    """Wants that the sandbox runs in the generation, and was granted a time."""
    life, info = v1(sandbox, "/lifecycle"), v1(sandbox)
    assert (life["state"], life["generation"]) == ("running", generation)
    assert moment(info["endAt"]) - moment(info["startedAt"]) == timedelta(seconds=granted)
    assert [c["deadline"] for c in life["clocks"] if c["clock"] == "timeout"] == [info["endAt"]]
    assert sandbox.get_info().end_at == moment(info["endAt"])
    assert info["settings"]["autoResume"] is auto_resume


def test_two_minutes(new):
    sandbox = new(timeout=2, lifecycle=PAUSES)
    due = moment(v1(sandbox)["startedAt"]) + timedelta(seconds=2)
    happened(due, paused(sandbox, "timeout", 1))
    assert sandbox.commands.run("echo awake").stdout == "awake\n"
    awake(sandbox, 2, 300)

    due = after(1)
    sandbox.set_timeout(1)
    happened(due, paused(sandbox, "timeout", 2))
    assert sandbox.commands.run("echo awake").stdout == "awake\n"
    awake(sandbox, 3, 300)


def test_one_hour(new):
    sandbox = new(timeout=3600, lifecycle=PAUSES)
    awake(sandbox, 1, 3600)
    sandbox.set_timeout(1)
    paused(sandbox, "timeout", 1)
    assert sandbox.commands.run("echo awake").stdout == "awake\n"
    awake(sandbox, 2, 3600)


def test_background_job(new):
    sandbox = new(lifecycle=PAUSES)
    job = sandbox.commands.run(
        "SECONDS=0; while ((SECONDS < 8)); do :; done; date +%s.%N >ended", background=True, timeout=0
    )
    job.disconnect()
    v1(sandbox, method="PATCH", idleTimeoutSeconds=2)

    def counts_as_work():
        life = v1(sandbox, "/lifecycle")
        return life["busy"] and any(h["kind"] == "process" and h["counts"] for h in life["holds"])

    eventually("the job counts as work", counts_as_work)
    paused_at = paused(sandbox, "idle", 1)
    v1(sandbox, method="PATCH", idleTimeoutSeconds=0)
    ended = datetime.fromtimestamp(float(sandbox.files.read("ended")), timezone.utc)  # wakes it
    happened(ended + timedelta(seconds=2) - MAX_CLOCK_ERROR, paused_at)
    awake(sandbox, 2, 300)


def test_live_deadline(new):
    sandbox = new(lifecycle={"on_timeout": "kill"})
    due = after(8)
    sandbox.set_timeout(8)
    v1(sandbox, method="PATCH", idleTimeoutSeconds=2)
    eventually("ended", lambda: v1(sandbox)["state"] == "terminated", within=20)
    life = v1(sandbox, "/lifecycle")
    assert (life["tombstone"]["reason"], life["generation"]) == ("TimeoutExpired", 1)
    happened(due, moment(life["tombstone"]["at"]))
    assert [e for e in life["transitions"] if e["cause"] == "idle"] == []
    with raises_exactly(SandboxNotFoundException):
        Sandbox.connect(sandbox.sandbox_id)


def test_manual_only(new):
    sandbox = new(timeout=2, lifecycle={"on_timeout": "pause", "auto_resume": False})
    due = moment(v1(sandbox)["startedAt"]) + timedelta(seconds=2)
    happened(due, paused(sandbox, "timeout", 1))
    with raises_exactly(NotRunning):
        sandbox.commands.run("echo asleep")
    asleep = v1(sandbox, "/lifecycle")
    assert (asleep["state"], asleep["generation"]) == ("paused", 1)
    sandbox.connect(timeout=60)
    awake(sandbox, 2, 60, auto_resume=False)
    assert sandbox.commands.run("echo awake").stdout == "awake\n"
