from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.offset_records import CommittedOffset, OffsetKey
from stratalog.broker.groups.offsets import OffsetChange, Offsets

KEY = OffsetKey("g", "orders", 0)
OTHER = OffsetKey("g", "orders", 1)


def at(offset: int) -> CommittedOffset:
    return CommittedOffset(offset, -1, "", 0)


def offsets() -> Offsets:
    return Offsets(GroupConfig())


def test_pending_offset_counts_after_the_commit() -> None:
    one = offsets()
    one.pending.add(7, [(KEY, at(5))])
    assert (one.find(KEY), KEY in one.pending, OTHER in one.pending) == (None, True, False)
    one.end_transaction(7, one.pending.keys(7), commit=True)
    assert (one.find(KEY), KEY in one.pending) == (at(5), False)


def test_aborted_offset_does_not_change_the_committed_one() -> None:
    one = offsets()
    one.apply([OffsetChange(KEY, at(1))])
    one.pending.add(7, [(KEY, at(5))])
    one.end_transaction(7, one.pending.keys(7), commit=False)
    assert (one.find(KEY), one.pending.of("g")) == (at(1), [])


def test_offset_or_deletion_that_is_written_before_the_commit_is_newer() -> None:
    one = offsets()
    one.pending.add(7, [(KEY, at(5)), (OTHER, at(6))])
    one.apply([OffsetChange(KEY, at(9))])
    one.apply(one.delete([OTHER]))
    assert KEY in one.pending
    one.end_transaction(7, one.pending.keys(7), commit=True)
    assert (one.find(KEY), one.find(OTHER)) == (at(9), None)


def test_later_write_of_two_transactions_counts_in_any_order_of_their_ends() -> None:
    one = offsets()
    one.pending.add(7, [(KEY, at(5))])
    one.pending.add(8, [(KEY, at(6))])
    one.end_transaction(8, one.pending.keys(8), commit=True)
    assert KEY in one.pending
    one.end_transaction(7, one.pending.keys(7), commit=True)
    assert (one.find(KEY), KEY in one.pending) == (at(6), False)


def test_deleted_group_and_topic_drop_their_pending_offsets() -> None:
    one = offsets()
    one.pending.add(7, [(KEY, at(5))])
    assert one.delete_group("g") == one.delete_topic("g", "orders") == [OffsetChange(KEY, None)]
    assert (one.group_ids(), one.topics("g")) == (["g"], {"orders"})


STEPS = st.lists(st.tuples(st.sampled_from("wpca"), st.integers(0, 2), st.sampled_from([KEY, OTHER])), max_size=30)


@given(STEPS)
def test_last_committed_write_counts_in_any_order_of_ends(
    steps: list[tuple[str, int, OffsetKey]],
) -> None:
    one, model, pending = offsets(), dict[OffsetKey, int](), dict[int, dict[OffsetKey, int]]()
    for moment, (kind, producer, key) in enumerate(steps):
        if kind == "w":
            one.apply([OffsetChange(key, at(moment))])
            model[key] = moment
        elif kind == "p":
            one.pending.add(producer, [(key, at(moment))])
            pending.setdefault(producer, {})[key] = moment
        else:
            one.end_transaction(producer, one.pending.keys(producer), commit=kind == "c")
            for each, offset in pending.pop(producer, {}).items():
                if kind == "c":
                    model[each] = max(offset, model.get(each, -1))
        for each in (KEY, OTHER):
            assert (each in one.pending) == any(each in held for held in pending.values())
    found = {key: committed.offset for key in (KEY, OTHER) if (committed := one.find(key)) is not None}
    assert found == model
