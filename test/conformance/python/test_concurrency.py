from concurrent.futures import ThreadPoolExecutor


def test_five_sandboxes_at_once_do_not_see_each_other(new):
    with ThreadPoolExecutor(5) as pool:
        sandboxes = list(pool.map(lambda i: new(envs={"INDEX": str(i)}), range(5)))
        assert len({s.sandbox_id for s in sandboxes}) == 5
        list(pool.map(lambda i: sandboxes[i].files.write("/tmp/same-path", f"of {i}"), range(5)))
        outputs = list(
            pool.map(
                lambda s: s.commands.run('cat /tmp/same-path; echo " $INDEX $E2B_SANDBOX_ID"').stdout,
                sandboxes,
            )
        )
        assert outputs == [f"of {i} {i} {s.sandbox_id}\n" for i, s in enumerate(sandboxes)]
        assert list(pool.map(lambda s: s.kill(), sandboxes)) == [True] * 5
        assert list(pool.map(lambda s: s.is_running(), sandboxes)) == [False] * 5
