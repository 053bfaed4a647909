"""Random steps of a replica: as a follower it appends the leader's bytes, and now and then it begins an epoch of its
own, or restarts at the log end offset."""

from __future__ import annotations

from collections.abc import Callable

from stratalog.records._framing import stamp
from stratalog.records.batch import batches as batches_in
from tests.storage.faults.model import AppendedBatch, Model
from tests.storage.faults.workload import Workload


class ReplicaWorkload(Workload):
    """A Workload whose appends come from a leader."""

    def steps(self) -> dict[Callable[[], None], int]:
        return {**super().steps(), self.begin_epoch: 4, self.truncate_at_the_end: 2, self.restart: 2}

    def append_batches(self, batches: list[AppendedBatch], control: bytearray | None = None) -> None:
        data = self._encode(batches) if control is None else control
        headers = [batch.header for batch in batches_in(data)]
        stamp(data, headers, self.model.end, batches[0].leader_epoch)
        grown = Model([*self.model.batches, *batches])
        self._expect(grown)
        cut_off = data[: self.rng.choice([0, 0, 10, 70])]
        assert self.log.append_from_leader(data + cut_off[: headers[0].size - 1]) == grown.end
        self.settle(grown)

    def begin_epoch(self) -> None:
        self.leader_epoch += 1
        self.log.begin_epoch(self.leader_epoch)
        assert self.log.leader_epochs.latest == self.leader_epoch

    def truncate_at_the_end(self) -> None:
        """Another leader did not have the epoch that has no batches yet."""
        assert self.log.truncate(self.model.end) == self.model.end
        assert all(start < self.model.end for _, start in self.log.leader_epochs.entries)

    def restart(self) -> None:
        """Remove everything. The model keeps the batches as ones before the log start offset."""
        end = self.model.end
        self._expect(self.model, highest_start=end)
        self.log.restart_at(end)
        assert (self.log.log_start_offset, self.log.log_end_offset) == (end, end)
        self.settle(self.model, promised=end)
