"""Batches of an attacker: whatever their bytes, they are read or refused, within time and memory."""

from __future__ import annotations

import gzip
import os
import random
import resource

import lz4.frame
import pyarrow as pa
import pytest

from airflow_eos.exceptions import CorruptBatch
from airflow_eos.recordbatch.decode import decode_batches
from airflow_eos.recordbatch.header import crc32c
from airflow_eos.recordbatch.limits import DecodeLimits
from tests.support import record_batches
from tests.support.record_batches import Record, body, raw, write

LIMITS = DecodeLimits(max_bytes=1 << 20, max_record_headers=100)
CODECS = (
    (0, bytes),
    (1, gzip.compress),
    (2, lambda data: pa.Codec("snappy").compress(data, asbytes=True)),
    (3, lz4.frame.compress),
    (4, lambda data: pa.Codec("zstd").compress(data, asbytes=True)),
)


def mutated(chance, data):
    """Change, remove or repeat a few bytes, or insert varints with large values."""
    out = bytearray(data)
    for _ in range(chance.randint(0, 4)):
        at = chance.randrange(len(out) + 1)
        kind = chance.randrange(5)
        if kind == 0 and at < len(out):
            out[at] = chance.randrange(256)
        elif kind == 1:
            del out[at : at + chance.randint(1, 20)]
        elif kind == 2:
            out[at:at] = out[at : at + chance.randint(1, 200)] * chance.randint(1, 50)
        elif kind == 3:
            out[at:at] = chance.choice(
                (b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x0f", b"\x80" * 12, b"\x00" * 64)
            )
        else:
            out[at:at] = chance.randbytes(chance.randint(1, 30))
    return bytes(out)


def batch(chance, offset):
    """One batch with a valid checksum; its section is damaged before or after compression, or both."""
    count = chance.choice((1, 2, 17, 60))
    headers = tuple((f"h{n}", None if n % 2 else b"x" * n) for n in range(chance.choice((0, 0, 3, 90))))
    records = [
        Record(offset + n, n, b"k" * chance.randrange(9), b"v" * chance.randrange(300), headers)
        for n in range(count)
    ]
    codec, compress = chance.choice(CODECS)
    section = body(records, offset, 0)
    if chance.random() < 0.05:
        section *= 1 + (chance.randint(1, 4) << 20) // len(section)  # decompresses to more than the budget
    section = mutated(chance, section)
    compressed = compress(section) if chance.random() < 0.7 else mutated(chance, compress(section))
    claimed = count if chance.random() < 0.8 else chance.choice((0, -1, count + 1, 2**31 - 1))
    return raw(write(records, base_offset=offset, section=compressed, attributes=codec, count=claimed))


def fuzz(seed, count, monkeypatch):
    monkeypatch.setattr(record_batches, "calc_crc32c", crc32c)  # the support's own is a loop in Python
    chance = random.Random(seed)
    read = refused = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(count):
        group = [batch(chance, 100 * n) for n in range(chance.choice((1, 1, 4)))]
        message = ""
        try:
            for decoded in decode_batches(group, limits=LIMITS, headers=chance.random() < 0.7):
                for column in (decoded.key, decoded.value, decoded.headers):
                    if column is not None:
                        column.validate(full=True)
                read += 1
        except CorruptBatch as error:
            message = str(error)
            refused += 1
        assert not message or "topic-3 at offset" in message
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 256 << 10, f"{grown} KiB more"
    assert read > count / 10
    assert refused > count / 10


@pytest.mark.search
@pytest.mark.timeout(120)
def test_hostile_batches_are_read_or_refused(monkeypatch):
    """Only CorruptBatch is raised, with the place; columns that were read are complete."""
    fuzz(seed=os.environ.get("EOS_SEED") or "hostile", count=1_500, monkeypatch=monkeypatch)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_many_hostile_batches_are_read_or_refused(monkeypatch):
    """The same, longer: each seed makes other batches."""
    seed = os.environ.get("EOS_SEED") or random.randrange(1_000_000)
    print(f"EOS_SEED={seed}")
    fuzz(seed=f"long {seed}", count=60_000, monkeypatch=monkeypatch)
