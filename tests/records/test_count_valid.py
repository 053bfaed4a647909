"""count_valid never counts a batch that the slower checks would refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.records._framing import count_valid, parse_header, parse_headers
from stratalog.records.batch import Batch
from stratalog.records.builder import build_batch
from stratalog.records.legacy import build_message_set
from tests.records.strategies import record

gaps = st.sampled_from([0, 0, 0, 1, 5, -1, -3])


@given(st.lists(st.tuples(gaps, st.integers(1, 3), st.booleans()), min_size=1, max_size=6), st.data())
def test_counted_batches_rise_stay_below_the_limit_and_have_their_checksums(
    shapes: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    buffer, offset = bytearray(), 10
    for gap, count, damaged in shapes:
        offset = max(offset + gap, 0)
        batch = build_batch([record(b"%d" % offset)] * count, base_offset=offset)
        batch[-1] ^= damaged
        buffer += batch
        offset += count
    headers, _, _ = parse_headers(buffer)
    limit = data.draw(st.sampled_from([offset, offset + 1, offset - 1, 10**6]))
    checksums = data.draw(st.booleans())
    first = data.draw(st.integers(0, len(headers) - 1))
    previous = 9 if first == 0 else headers[first - 1].last_offset
    count = count_valid(buffer, headers, first, previous, limit, checksums)
    for header in headers[first : first + count]:
        assert previous < header.base_offset <= header.last_offset < limit
        assert not checksums or Batch(buffer, header).crc_matches()
        previous = header.last_offset
    if first + count < len(headers):
        stop = headers[first + count]
        is_last = first + count + 1 == len(headers)
        follows = is_last or headers[first + count + 1].base_offset > stop.last_offset
        plain = stop.base_offset == previous + 1 or (stop.base_offset > previous and not is_last and follows)
        sound = Batch(buffer, stop).crc_matches() or not checksums
        assert not (plain and sound and stop.last_offset < limit), "stopped for nothing"


def test_old_messages_are_not_counted() -> None:
    buffer = build_message_set([record()], magic=1)
    assert count_valid(buffer, parse_headers(buffer)[0], 0, -1, 10, True) == 0


def test_batch_past_the_buffer_is_refused() -> None:
    batch = build_batch([record()])
    header = parse_header(batch)
    assert header is not None
    with pytest.raises(ValueError, match="past the buffer"):
        count_valid(batch[:-1], [header], 0, -1, 10, False)
