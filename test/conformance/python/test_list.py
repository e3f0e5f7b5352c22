import pytest
from e2b import Sandbox, SandboxQuery, SandboxState

from support import ids, list_all, marker

ODD = {"odd key": "a b", "k&=%é": "c&d=e%20 é", "plus": "1+1"}


class Three:
    def __init__(self):
        self.run = marker()
        self.created = []

    def newest_first(self):
        return ids(self.created)[::-1]


@pytest.fixture(scope="module")
def three():
    three = Three()
    try:
        for index in range(3):
            metadata = {"run": three.run, "index": str(index), **ODD}
            three.created.append(Sandbox.create(timeout=150, metadata=metadata))
        yield three
    finally:
        for sandbox in three.created:
            sandbox.kill()


def test_by_metadata_newest_first(three):
    found = list_all(metadata={"run": three.run})
    assert ids(found) == three.newest_first()
    for info in found:
        assert info.state is SandboxState.RUNNING
        assert info.metadata["run"] == three.run
        assert info.template_id
        assert info.cpu_count >= 1
        assert info.memory_mb >= 128
        assert info.end_at > info.started_at
    times = [info.started_at for info in found]
    assert times == sorted(times, reverse=True)


def test_without_a_filter_all_are_there(three):
    assert set(three.newest_first()) <= set(ids(list_all()))


def test_all_pairs_must_match(three):
    found = list_all(metadata={"run": three.run, "index": "1"})
    assert ids(found) == [three.created[1].sandbox_id]
    assert list_all(metadata={"run": three.run, "index": "7"}) == []


@pytest.mark.parametrize("key, value", ODD.items())
def test_odd_metadata(three, key, value):
    found = list_all(metadata={"run": three.run, key: value})
    assert ids(found) == three.newest_first()
    assert found[0].metadata[key] == value
    assert list_all(metadata={"run": three.run, key: value + "x"}) == []


def test_pages_of_one(three):
    paginator = Sandbox.list(query=SandboxQuery(metadata={"run": three.run}), limit=1)
    for page, want in enumerate(three.newest_first()):
        assert paginator.has_next is True
        assert ids(paginator.next_items()) == [want]
        assert paginator.has_next is (page < 2)
    with pytest.raises(Exception, match="No more items"):
        paginator.next_items()


def test_page_that_is_exactly_full_is_the_last(three):
    paginator = Sandbox.list(query=SandboxQuery(metadata={"run": three.run}), limit=3)
    assert len(paginator.next_items()) == 3
    assert paginator.has_next is False


def test_oldest_first_when_asked_for(three):
    found = list_all(order="asc", limit=2, metadata={"run": three.run})
    assert ids(found) == ids(three.created)


def test_started_after_takes_a_value_from_the_list(three):
    middle = list_all(metadata={"run": three.run})[1]
    found = list_all(metadata={"run": three.run}, started_after=middle.started_at)
    assert ids(found) == three.newest_first()[:2]


def test_by_state_and_not_at_all_after_kill(new):
    metadata = {"run": marker()}
    older, newer = new(metadata=metadata), new(metadata=metadata)

    def listed(*states):
        return ids(list_all(metadata=metadata, **({"state": list(states)} if states else {})))

    older.pause()
    assert listed(SandboxState.RUNNING) == ids([newer])
    assert listed(SandboxState.PAUSED) == ids([older])
    assert listed(SandboxState.RUNNING, SandboxState.PAUSED) == ids([newer, older])
    assert listed() == ids([newer, older])

    newer.kill()
    assert listed() == ids([older])
    older.kill()
    assert listed() == []
