from logtier.network.request_memory import RequestMemory


def test_what_fits_is_admitted_and_the_rest_waits_in_its_order() -> None:
    memory = RequestMemory(100)
    admitted: list[str] = []
    assert memory.admit(60, lambda: admitted.append("a"))
    assert not memory.admit(50, lambda: admitted.append("b"))
    assert not memory.admit(10, lambda: admitted.append("c"))
    memory.release(60)
    assert admitted == ["b", "c"]
    assert memory.used_bytes == 60


def test_one_request_larger_than_the_budget_is_admitted_alone() -> None:
    memory = RequestMemory(100)
    admitted: list[str] = []
    assert memory.admit(500, lambda: admitted.append("a"))
    assert not memory.admit(500, lambda: admitted.append("b"))
    memory.release(500)
    assert admitted == ["b"]


def test_a_connection_that_is_gone_waits_no_more_and_blocks_nobody() -> None:
    memory = RequestMemory(100)
    admitted: list[str] = []

    def gone() -> None:
        admitted.append("gone")

    assert memory.admit(50, lambda: None)
    assert not memory.admit(90, gone)
    assert not memory.admit(50, lambda: admitted.append("next"))
    memory.withdraw(gone)
    assert admitted == ["next"]
    assert memory.used_bytes == 100


def test_no_limit_admits_everything() -> None:
    memory = RequestMemory(-1)
    assert memory.admit(1 << 40, lambda: None)
    assert memory.admit(1 << 40, lambda: None)
