from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stratalog.broker.transactions import state
from stratalog.broker.transactions.state import (
    HIGHEST_EPOCH,
    ProducerIdAndEpoch,
    Transaction,
    TransactionState,
    TransactionStep,
)
from stratalog.protocol.error_codes import ErrorCode
from stratalog.storage.names import TopicPartition

HERE, THERE = TopicPartition("orders", 0), TopicPartition("orders", 1)
ONLY_HERE = frozenset([HERE])
ID = 7
NEW_ID = 1007


def known(of: TransactionState, epoch: int = 3, **fields: object) -> Transaction:
    partitions = (
        frozenset([HERE])
        if of in (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
        else frozenset()
    )
    return Transaction("t", ID, epoch, 60_000, of, partitions, 10, 20)._replace(**fields)  # type: ignore[arg-type]


def end(
    one: Transaction, epoch: int, *, commit: bool, version: int, new_id: int | None = None, who: int = ID
) -> TransactionStep:
    return state.end(one, ProducerIdAndEpoch(who, epoch), commit=commit, version=version, now_ms=50, new_id=new_id)


def ended(one: Transaction, epoch: int, *, commit: bool, version: int) -> Transaction:
    step = end(one, epoch, commit=commit, version=version)
    assert step.error is ErrorCode.none
    assert step.transaction is not None
    return step.transaction


class TestInitialize:
    @pytest.mark.parametrize(
        "at_rest", [TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT]
    )
    def test_next_instance_gets_the_next_epoch(self, at_rest: TransactionState) -> None:
        step = state.initialize(known(at_rest), 1000, None, 50, None)
        assert step.error is ErrorCode.none
        assert step.transaction == Transaction("t", ID, 4, 1000, updated_ms=50)

    @pytest.mark.parametrize("prepared", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
    def test_new_instance_waits_for_a_transaction_that_is_ending(self, prepared: TransactionState) -> None:
        assert state.initialize(known(prepared), 1000, None, 50, None) == (
            ErrorCode.concurrent_transactions,
            None,
            False,
        )

    def test_open_transaction_is_aborted_with_an_epoch_of_no_client(self) -> None:
        step = state.initialize(known(TransactionState.ONGOING), 1000, None, 50, None)
        assert step.error is ErrorCode.concurrent_transactions
        assert step.transaction is not None
        assert (step.transaction.state, step.transaction.epoch) == (TransactionState.PREPARE_ABORT, 4)
        assert step.transaction.partitions == {HERE}

    def test_exhausted_epochs_lead_to_a_new_producer_id(self) -> None:
        last = known(TransactionState.COMPLETE_COMMIT, HIGHEST_EPOCH - 1)
        assert state.initialize(last, 1000, None, 50, None).needs_id
        rotated = state.initialize(last, 1000, None, 50, NEW_ID).transaction
        assert rotated is not None
        assert (rotated.producer_id, rotated.epoch, rotated.previous_id) == (NEW_ID, 0, ID)

    def test_recovering_producer_gets_the_next_epoch_and_the_same_for_a_retry(self) -> None:
        first = state.initialize(
            known(TransactionState.COMPLETE_ABORT), 1000, ProducerIdAndEpoch(ID, 3), 50, None
        ).transaction
        assert first is not None
        assert (first.epoch, first.last_epoch) == (4, 3)
        again = state.initialize(first, 1000, ProducerIdAndEpoch(ID, 3), 60, None).transaction
        assert again is not None
        assert again.epoch == 4

    def test_retry_after_the_last_epoch_gets_the_same_new_producer_id(self) -> None:
        claimed = ProducerIdAndEpoch(ID, HIGHEST_EPOCH - 1)
        first = state.initialize(known(TransactionState.EMPTY, HIGHEST_EPOCH - 1), 1, claimed, 50, NEW_ID).transaction
        assert first is not None
        again = state.initialize(first, 1, claimed, 60, None).transaction
        assert again is not None
        assert (again.producer_id, again.epoch) == (NEW_ID, 0)

    @pytest.mark.parametrize(
        "claimed", [ProducerIdAndEpoch(ID, 2), ProducerIdAndEpoch(ID, 4), ProducerIdAndEpoch(ID + 1, 3)]
    )
    def test_replaced_producer_is_fenced(self, claimed: ProducerIdAndEpoch) -> None:
        for of in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
            assert state.initialize(known(of), 1000, claimed, 50, None).error is ErrorCode.producer_fenced


class TestAdd:
    @pytest.mark.parametrize(
        "at_rest", [TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT]
    )
    def test_first_partition_begins_the_transaction(self, at_rest: TransactionState) -> None:
        begun = state.add(known(at_rest), ProducerIdAndEpoch(ID, 3), frozenset([HERE]), 2, 50).transaction
        assert begun is not None
        assert (begun.state, begun.partitions, begun.started_ms, begun.client_version) == (
            TransactionState.ONGOING,
            ONLY_HERE,
            50,
            2,
        )

    def test_further_partitions_do_not_restart_the_transaction(self) -> None:
        one = state.add(
            known(TransactionState.ONGOING), ProducerIdAndEpoch(ID, 3), frozenset([THERE]), 0, 50
        ).transaction
        assert one is not None
        assert (one.partitions, one.started_ms) == (ONLY_HERE | {THERE}, 10)

    def test_known_partition_is_not_written_again(self) -> None:
        assert state.add(known(TransactionState.ONGOING), ProducerIdAndEpoch(ID, 3), frozenset([HERE]), 0, 50) == (
            ErrorCode.none,
            None,
            False,
        )

    @pytest.mark.parametrize(
        "of",
        [one for one in TransactionState if one not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)],
    )
    def test_errors_have_kafkas_order(self, of: TransactionState) -> None:
        def error(who: ProducerIdAndEpoch) -> ErrorCode:
            return state.add(known(of), who, frozenset([HERE]), 0, 50).error

        assert error(ProducerIdAndEpoch(ID + 1, 9)) is ErrorCode.invalid_producer_id_mapping
        assert error(ProducerIdAndEpoch(ID, 2)) is error(ProducerIdAndEpoch(ID, 4)) is ErrorCode.producer_fenced
        assert error(ProducerIdAndEpoch(ID, 3)) is (
            ErrorCode.concurrent_transactions if known(of).is_ending else ErrorCode.none
        )


class TestVerify:
    def test_only_partitions_of_the_open_transaction_pass(self) -> None:
        who = ProducerIdAndEpoch(ID, 3)
        assert state.verify(known(TransactionState.ONGOING), who, HERE) is ErrorCode.none
        assert state.verify(known(TransactionState.ONGOING), who, THERE) is ErrorCode.transaction_abortable
        assert state.verify(known(TransactionState.COMPLETE_COMMIT), who, HERE) is ErrorCode.transaction_abortable
        assert state.verify(known(TransactionState.PREPARE_COMMIT), who, HERE) is ErrorCode.concurrent_transactions
        assert (
            state.verify(known(TransactionState.ONGOING), ProducerIdAndEpoch(ID, 2), HERE) is ErrorCode.producer_fenced
        )
        assert (
            state.verify(known(TransactionState.ONGOING), ProducerIdAndEpoch(8, 3), HERE)
            is ErrorCode.invalid_producer_id_mapping
        )


NONE, BUSY, WRONG, FENCED = (
    ErrorCode.none,
    ErrorCode.concurrent_transactions,
    ErrorCode.invalid_txn_state,
    ErrorCode.producer_fenced,
)


class TestEnd:
    @pytest.mark.parametrize(
        ("of", "commit", "abort"),
        [
            (TransactionState.EMPTY, WRONG, WRONG),
            (TransactionState.ONGOING, NONE, NONE),
            (TransactionState.PREPARE_COMMIT, BUSY, WRONG),
            (TransactionState.PREPARE_ABORT, WRONG, BUSY),
            (TransactionState.COMPLETE_COMMIT, NONE, WRONG),
            (TransactionState.COMPLETE_ABORT, WRONG, NONE),
        ],
    )
    def test_older_clients_may_repeat_an_end_but_not_change_it(
        self, of: TransactionState, commit: ErrorCode, abort: ErrorCode
    ) -> None:
        assert end(known(of), 3, commit=True, version=0).error is commit
        assert end(known(of), 3, commit=False, version=0).error is abort
        for epoch in (2, 4):
            assert end(known(of), epoch, commit=True, version=0).error is FENCED
        assert end(known(of), 3, commit=True, version=0, who=8).error is ErrorCode.invalid_producer_id_mapping

    @pytest.mark.parametrize(
        ("of", "abort_again", "abort", "commit_again", "commit"),  # Kafka's table
        [
            (TransactionState.EMPTY, FENCED, NONE, FENCED, WRONG),
            (TransactionState.ONGOING, FENCED, NONE, FENCED, NONE),
            (TransactionState.COMPLETE_ABORT, NONE, NONE, WRONG, WRONG),
            (TransactionState.COMPLETE_COMMIT, WRONG, NONE, NONE, WRONG),
            (TransactionState.PREPARE_COMMIT, WRONG, FENCED, BUSY, FENCED),
            (TransactionState.PREPARE_ABORT, BUSY, FENCED, WRONG, FENCED),
        ],
    )
    def test_newer_clients_retry_with_the_previous_epoch(
        self, of: TransactionState, abort_again: ErrorCode, abort: ErrorCode, commit_again: ErrorCode, commit: ErrorCode
    ) -> None:
        one = known(of)
        assert end(one, 2, commit=False, version=2).error is abort_again
        assert end(one, 3, commit=False, version=2).error is abort
        assert end(one, 2, commit=True, version=2).error is commit_again
        assert end(one, 3, commit=True, version=2).error is commit
        for epoch in (1, 4):
            assert end(one, epoch, commit=True, version=2).error is FENCED

    def test_newer_clients_get_the_next_epoch_which_the_markers_carry(self) -> None:
        prepared = ended(known(TransactionState.ONGOING), 3, commit=True, version=2)
        assert (prepared.state, prepared.epoch) == (TransactionState.PREPARE_COMMIT, 4)
        assert state.producer_after(prepared) == (ID, 4)
        assert state.complete(prepared, 60).epoch == 4

    def test_older_clients_keep_their_epoch(self) -> None:
        prepared = ended(known(TransactionState.ONGOING), 3, commit=False, version=0)
        assert (prepared.state, prepared.epoch) == (TransactionState.PREPARE_ABORT, 3)
        assert state.complete(prepared, 60).state is TransactionState.COMPLETE_ABORT

    def test_abort_without_a_partition_begins_the_transaction_at_its_end(self) -> None:
        assert ended(known(TransactionState.EMPTY, started_ms=-1), 3, commit=False, version=2).started_ms == 50

    @pytest.mark.parametrize("commit", [True, False])
    def test_end_in_the_last_epoch_leads_to_a_new_producer_id(self, commit: bool) -> None:
        last = known(TransactionState.ONGOING, HIGHEST_EPOCH - 1)
        assert end(last, HIGHEST_EPOCH - 1, commit=commit, version=2).needs_id
        prepared = end(last, HIGHEST_EPOCH - 1, commit=commit, version=2, new_id=NEW_ID).transaction
        assert prepared is not None
        assert (prepared.producer_id, prepared.epoch, prepared.next_id) == (ID, HIGHEST_EPOCH, NEW_ID)
        assert state.producer_after(prepared) == (NEW_ID, 0)
        complete = state.complete(prepared, 60)
        assert (complete.producer_id, complete.epoch, complete.next_id) == (NEW_ID, 0, -1)
        repeated = end(complete, HIGHEST_EPOCH - 1, commit=commit, version=2)
        assert repeated == (ErrorCode.none, None, False)
        assert end(complete, HIGHEST_EPOCH - 1, commit=not commit, version=2).error is WRONG

    def test_highest_epoch_is_fenced_without_a_higher_one(self) -> None:
        fenced = state.fence(known(TransactionState.ONGOING, HIGHEST_EPOCH - 1), 50)
        assert (fenced.epoch, fenced.state) == (HIGHEST_EPOCH, TransactionState.PREPARE_ABORT)
        assert state.initialize(state.complete(fenced, 60), 1, None, 70, None).needs_id

    def test_producer_fenced_in_its_last_epoch_does_not_get_the_fencing_epoch(self) -> None:
        """Kafka 4.1 returns that epoch (KAFKA-20090)."""
        claimed = ProducerIdAndEpoch(ID, HIGHEST_EPOCH - 1)
        fenced = state.complete(state.fence(known(TransactionState.ONGOING, HIGHEST_EPOCH - 1), 50), 60)
        for commit in (True, False):
            assert end(fenced, claimed.epoch, commit=commit, version=2).error is FENCED
        assert state.initialize(fenced, 1, claimed, 70, None).needs_id
        for again in (fenced, state.initialize(fenced, 1, claimed, 70, NEW_ID).transaction):
            assert again is not None
            one = state.initialize(again, 1, claimed, 80, NEW_ID).transaction
            assert one is not None
            assert (one.producer_id, one.epoch) == (NEW_ID, 0)

    def test_producer_learns_of_the_abort_after_its_timeout_and_continues(self) -> None:
        aborted = state.complete(state.fence(known(TransactionState.ONGOING), 50), 60)
        assert end(aborted, 3, commit=True, version=2).error is WRONG
        assert end(aborted, 3, commit=False, version=2) == (NONE, None, False)
        assert end(aborted, 3, commit=False, version=0).error is FENCED
        went_on = state.initialize(aborted, 1000, ProducerIdAndEpoch(ID, 3), 70, None).transaction
        assert went_on is not None
        assert (went_on.epoch, went_on.state) == (4, TransactionState.EMPTY)


class TestTime:
    def test_only_open_transactions_time_out(self) -> None:
        one = known(TransactionState.ONGOING)
        assert not one.has_timed_out(10 + 60_000)
        assert one.has_timed_out(10 + 60_001)
        assert not known(TransactionState.PREPARE_ABORT).has_timed_out(10**9)

    def test_only_idle_ids_expire(self) -> None:
        assert known(TransactionState.EMPTY).has_expired(120, 100)
        assert not known(TransactionState.EMPTY).has_expired(119, 100)
        assert not known(TransactionState.ONGOING).has_expired(10**9, 100)


ACTIONS = st.lists(
    st.tuples(st.integers(0, 5), st.booleans(), st.integers(-1, 1), st.sampled_from((0, 2))), max_size=40
)


@example([(1, False, 0, 0), (0, False, 0, 0), (4, False, 0, 0), (1, False, 0, 0)], HIGHEST_EPOCH - 1)
@given(ACTIONS, st.integers(0, 3) | st.integers(HIGHEST_EPOCH - 4, HIGHEST_EPOCH - 1))
def test_epochs_only_rise_and_no_end_changes_for_any_requests(
    actions: list[tuple[int, bool, int, int]], epoch: int
) -> None:
    one, new_id = known(TransactionState.EMPTY, epoch), 1000
    for kind, flag, off, version in actions:
        before, who, new_id = one, ProducerIdAndEpoch(one.producer_id, one.epoch + off), new_id + 1
        if kind == 0:
            step = state.initialize(one, 1000, who if flag else None, 50, new_id)
        elif kind == 1:
            step = state.add(one, who, frozenset([HERE if flag else THERE]), version, 50)
        elif kind in (2, 3):
            step = state.end(one, who, commit=flag, version=version, now_ms=50, new_id=new_id)
        elif kind == 4 and one.is_ending:
            step = TransactionStep(ErrorCode.none, state.complete(one, 50))
        elif kind == 5 and one.state is TransactionState.ONGOING:
            step = TransactionStep(ErrorCode.none, state.fence(one, 50))
        else:
            continue
        one = step.transaction or one
        assert 0 <= one.epoch <= HIGHEST_EPOCH
        assert (one.producer_id, one.epoch) >= (before.producer_id, before.epoch)
        if before.is_ending and one is not before:
            assert one.state is state.completed(before.state)
        if one.state is TransactionState.ONGOING or (
            step.error is ErrorCode.none and one.state is TransactionState.EMPTY
        ):
            assert one.epoch < HIGHEST_EPOCH  # so that every epoch can be fenced
        assert bool(one.partitions) <= (one.state is TransactionState.ONGOING or one.is_ending)
