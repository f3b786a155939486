"""Reading a batch takes about as much memory as allowed, whatever its bytes were chosen to cost."""

from __future__ import annotations

import subprocess
import sys

import pytest

from airflow_eos.recordbatch.compression import Compressor
from airflow_eos.recordbatch.header import crc32c
from airflow_eos.recordbatch.limits import HEADER_BYTES, RECORD_BYTES
from tests.support import record_batches
from tests.support.record_batches import varint, write

pytestmark = pytest.mark.process

BUDGET = 32 << 20
EACH = 50_000  # headers of a record, if it has any
ZSTD = 4


def records(count, header=b"", headers=0):
    """Return a section of this many records, each with only this many headers; and their number."""
    ends = b"\x01\x01" + varint(headers) + header * headers
    fields = (b"\x00\x00" + varint(number) + ends for number in range(count))
    return b"".join(varint(len(each)) + each for each in fields), count


def with_headers(total, header):
    return records(total // EACH, header, EACH)


MOST_HEADERS = (BUDGET - (4 << 20)) // HEADER_BYTES
SECTIONS = {
    # Within the budget as bytes; as columns they were half a gigabyte.
    "records": (lambda: (b"\x0c\x00\x00\x00\x01\x01\x00" * 4_000_000, 4_000_000), "its 4000000 records take"),
    "headers": (lambda: with_headers(15_000_000, b"\x00\x01"), "its 15000000 headers take"),
    # The largest batch that is read.
    "read: records": (lambda: records(BUDGET // (RECORD_BYTES + 10)), ""),
    "read: headers": (lambda: with_headers(MOST_HEADERS, b"\x00\x01"), ""),
    "read: header keys that are no UTF-8": (lambda: with_headers(MOST_HEADERS, b"\x04\xff\xff\x01"), ""),
    "read: headers of many records": (lambda: records(10_000, b"\x00\x01", 60), ""),
}

CODE = """if True:
    import pathlib, resource, sys
    from airflow_eos.exceptions import CorruptBatch
    from airflow_eos.recordbatch.decode import decode_batches
    from airflow_eos.recordbatch.header import iter_batches
    from airflow_eos.recordbatch.limits import DecodeLimits
    blob = pathlib.Path(sys.argv[1]).read_bytes()
    small = pathlib.Path(sys.argv[2]).read_bytes()
    limits = DecodeLimits(max_bytes=int(sys.argv[3]))
    list(decode_batches(iter_batches(small, "topic", 3)))  # what only a first time takes is taken
    have = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = have + 3 * limits.max_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        (decoded,) = decode_batches(iter_batches(blob, "topic", 3), limits=limits)
        print("read", len(decoded))
    except CorruptBatch as error:
        print(error)
"""


@pytest.mark.parametrize(("section", "refused"), SECTIONS.values(), ids=SECTIONS)
def test_reading_takes_about_the_budget(tmp_path, monkeypatch, section, refused):
    """In a process limited to three times the budget, since allocators round and keep memory."""
    monkeypatch.setattr(record_batches, "calc_crc32c", crc32c)  # the support's own is a loop in Python
    compress = Compressor("zstd").compress
    data, count = section()
    paths = []
    for name, (content, number) in {"blob": (data, count), "small": records(3, b"\x00\x01", 2)}.items():
        blob = write(
            [], section=bytes(compress(content)), attributes=ZSTD, count=number, last_offset=number - 1
        )
        paths.append(tmp_path / name)
        paths[-1].write_bytes(blob)
    done = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, paths), str(BUDGET)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    if refused:
        assert f"topic-3 at offset 0 is refused: {refused}" in done.stdout
        assert "see eos.max.batch.bytes; skip_offsets=" in done.stdout
    else:
        assert done.stdout == f"read {count}\n"
