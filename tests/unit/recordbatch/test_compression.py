"""Compressed data is written as brokers accept it, and read from every client."""

from __future__ import annotations

import gzip
import resource
import struct
import subprocess
import sys
import time
from pathlib import Path

import lz4.frame
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.recordbatch.compression import (
    Codec,
    Compressor,
    decompress,
)
from airflow_eos.recordbatch.limits import OverBudget
from airflow_eos.recordbatch.zstd_frames import zstd_content_size
from tests.support.compressed_forms import gzip_with, xerial
from tests.support.record_batches import Record, write

TEXT = b"".join(b'{"id": %d}' % number for number in range(20_000))
BUDGET = 1 << 24
COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


def streamed_zstd(data):
    """As Java's zstd streams: no content size in the frame."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("codec", list(Codec))
@given(data=st.binary(max_size=300) | st.sampled_from([TEXT]))
def test_every_codec_gives_back_what_was_compressed(codec, data):
    """Decompression returns the original, also an empty one."""
    packed = bytes(Compressor(codec.label).compress(memoryview(data)))
    assert bytes(decompress(codec, packed, BUDGET)) == data


@pytest.mark.parametrize("codec", COMPRESSED)
def test_compression_compresses(codec):
    """Repetitive text shrinks to less than half."""
    assert len(Compressor(codec.label).compress(TEXT)) < len(TEXT) / 2


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        pytest.param(Codec.ZSTD, streamed_zstd(TEXT), id="zstd without content size"),
        pytest.param(
            Codec.ZSTD, streamed_zstd(TEXT[:9]) + streamed_zstd(TEXT[9:]), id="zstd frames without sizes"
        ),
        pytest.param(
            Codec.ZSTD,
            bytes(Compressor("zstd").compress(TEXT[:999])) + bytes(Compressor("zstd").compress(TEXT[999:])),
            id="zstd frames with sizes",
        ),
        pytest.param(Codec.SNAPPY, xerial(TEXT), id="snappy in xerial frames"),
        pytest.param(Codec.SNAPPY, pa.Codec("snappy").compress(TEXT, asbytes=True), id="snappy raw"),
        pytest.param(Codec.LZ4, lz4.frame.compress(TEXT, block_linked=True), id="lz4 linked"),
        pytest.param(
            Codec.LZ4,
            lz4.frame.compress(TEXT, block_linked=False, content_checksum=True, store_size=False),
            id="lz4 checksum, no size",
        ),
        pytest.param(
            Codec.GZIP, gzip.compress(TEXT[:50]) + gzip.compress(TEXT[50:]), id="gzip of two members"
        ),
    ],
)
def test_what_other_clients_write_is_read(codec, data):
    """Java, librdkafka and kafka-python differ in framing, not in content."""
    assert bytes(decompress(codec, data, BUDGET)) == TEXT


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 65_535, 65_791, 65_792, 100_000])
def test_the_content_size_of_a_zstd_frame_is_read_at_each_field_width(size):
    """The field takes 1, 2 or 4 bytes, and the 2-byte form is offset by 256."""
    data = bytes(size)
    assert zstd_content_size(bytes(Compressor("zstd").compress(data))) == size


def test_a_zstd_frame_without_a_content_size_is_recognised():
    """Java's streams omit it."""
    assert zstd_content_size(streamed_zstd(TEXT)) is None


def test_lz4_is_written_in_independent_blocks():
    """Brokers refuse linked blocks; bit 5 of the frame descriptor says independent."""
    assert Compressor("lz4").compress(TEXT)[4] & 0x20


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda _: b"\x07" * 40, lambda _: b""]
)
def test_damaged_data_is_one_error_that_names_the_codec(codec, damage):
    """Any error of the library becomes a ValueError; no partial result is returned."""
    with pytest.raises(ValueError, match=codec.label):
        decompress(codec, damage(bytes(Compressor(codec.label).compress(TEXT))), BUDGET)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_named(codec):
    """Ids 5 to 7 are not assigned."""
    with pytest.raises(ValueError, match=f"codec {codec} is unknown"):
        decompress(codec, b"data", BUDGET)


FORGED = {
    "snappy": (Codec.SNAPPY, b"\xff\xff\xff\x7f" + b"data", "snappy block of 8 bytes claims 268435455"),
    "zstd": (Codec.ZSTD, struct.pack("<IBBQ", 0xFD2FB528, 0xC0, 0, 1 << 28), "cannot be decompressed"),
}


@pytest.mark.parametrize(("codec", "data", "reason"), FORGED.values(), ids=FORGED)
def test_a_claimed_size_is_not_allocated(codec, data, reason):
    """A claim within the budget is not trusted either if so few bytes cannot hold it."""
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(ValueError, match=reason):
        decompress(codec, data, 1 << 30)
    assert pa.default_memory_pool().max_memory() <= max(before, 1 << 24)


BOMBS = {
    "gzip": lambda size: (Codec.GZIP, gzip.compress(bytes(size))),
    "gzip of many members": lambda size: (Codec.GZIP, gzip.compress(bytes(size // 16)) * 16),
    "snappy": lambda size: (Codec.SNAPPY, bytes(Compressor("snappy").compress(bytes(size)))),
    "xerial": lambda size: (Codec.SNAPPY, xerial(bytes(size), 1 << 20)),
    "lz4": lambda size: (Codec.LZ4, lz4.frame.compress(bytes(size), store_size=False)),
    "lz4 that says so": lambda size: (Codec.LZ4, lz4.frame.compress(bytes(size))),
    "zstd": lambda size: (Codec.ZSTD, streamed_zstd(bytes(size))),
    "zstd that says so": lambda size: (Codec.ZSTD, bytes(Compressor("zstd").compress(bytes(size)))),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_the_budget_is_exact(bomb):
    """Data that fits is read, one byte more is refused."""
    size = 1 << 22
    codec, data = bomb(size)
    assert bytes(decompress(codec, data, size)) == bytes(size)
    with pytest.raises(OverBudget, match=f"more than {size - 1} bytes"):
        decompress(codec, data, size - 1)


@given(
    contents=st.lists(st.binary(max_size=200), min_size=1, max_size=8),
    padding=st.binary(max_size=40).filter(lambda padding: not padding.startswith(b"\x1f\x8b\x08")),
    fields=st.sampled_from([(0, b""), (8, b"name\0"), (4, b"\2\0ab"), (31, b"\1\0anote\0text\0")]),
)
def test_gzip_members_are_read_to_the_first_bytes_that_are_not_one(contents, padding, fields):
    """Whatever their headers have; what follows them is ignored."""
    members = b"".join(gzip_with(content, *fields) for content in contents)
    assert decompress(Codec.GZIP, members + padding, BUDGET) == b"".join(contents)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
@given(data=st.data())
def test_cut_off_data_is_never_read_as_a_part_of_it(codec, data):
    """Truncated concatenations are an error, or the pieces that are whole."""
    pieces = [data.draw(st.binary(min_size=1, max_size=50)) for _ in range(3)]
    pack = {Codec.GZIP: gzip.compress, Codec.SNAPPY: xerial, Codec.ZSTD: Compressor("zstd").compress}[codec]
    packed = [bytes(pack(piece)) for piece in pieces]
    end = data.draw(st.integers(0, sum(map(len, packed))))
    try:
        read = bytes(decompress(codec, b"".join(packed)[:end], BUDGET))
    except ValueError:
        return
    assert read in [b"".join(pieces[:count]) for count in range(4)]


@pytest.mark.parametrize(
    ("codec", "unit"),
    [
        pytest.param(Codec.GZIP, gzip.compress(b""), id="gzip members of nothing"),
        pytest.param(Codec.GZIP, gzip.compress(b"x"), id="gzip members of a byte"),
        pytest.param(Codec.ZSTD, bytes(Compressor("zstd").compress(b"x")), id="zstd frames"),
        pytest.param(Codec.SNAPPY, xerial(b"x"), id="xerial streams"),
        pytest.param(Codec.LZ4, lz4.frame.compress(b"x"), id="lz4 frames"),
    ],
)
def test_the_time_for_many_pieces_grows_as_their_number(codec, unit):
    """Four times the pieces take about four times as long, not sixteen times."""

    def seconds(count):
        data = unit * count
        begin = time.process_time()
        decompress(codec, data, BUDGET)
        return time.process_time() - begin

    count = (1 << 20) // len(unit)
    bound = 9 * min(seconds(count) for _ in range(3)) + 0.01
    assert any(seconds(4 * count) < bound for _ in range(3))


@pytest.mark.process
def test_bombs_cost_an_error_and_not_the_memory(tmp_path):
    """Each codec, kilobytes that become 2 GiB, in a process that may not have that much."""
    bombs = {name: bomb(1 << 26) for name, bomb in BOMBS.items()}
    # Consecutive members, frames and blocks of 64 MiB: 2 GiB in all.
    for name in ("gzip", "gzip of many members"):
        bombs[name] = (Codec.GZIP, bombs[name][1] * 32)
    header, blocks = bombs["xerial"][1][:16], bombs["xerial"][1][16:]
    bombs["xerial"] = (Codec.SNAPPY, header + blocks * 32)
    bombs["zstd"] = (Codec.ZSTD, bombs["zstd"][1] * 32)
    for number, (codec, data) in enumerate(bombs.values()):
        (tmp_path / f"{number}.{int(codec)}").write_bytes(data)
    code = f"""if True:
        import pathlib, resource
        from airflow_eos.recordbatch.compression import decompress
        from airflow_eos.recordbatch.limits import OverBudget
        import lz4.frame
        have = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (have + (400 << 20), have + (400 << 20)))
        for path in sorted(pathlib.Path({str(tmp_path)!r}).iterdir()):
            try:
                decompress(int(path.suffix[1:]), path.read_bytes(), 32 << 20)
            except OverBudget as error:
                print("refused:", error)
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"refused: it decompresses to more than {32 << 20} bytes"] * len(
        BOMBS
    )


@pytest.mark.parametrize("codec", COMPRESSED)
def test_damaged_data_leaves_no_memory_behind(codec):
    """A worker lives on after the error: leaking a megabyte each time would end it."""
    data = bytes(Compressor(codec.label).compress(TEXT))

    def address_space():
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

    for turn in range(420):
        if turn == 20:
            before = address_space()
        with pytest.raises(ValueError, match=r"cannot be decompressed|cut off"):
            decompress(codec, data[: len(data) // 2], BUDGET)
    assert address_space() - before < 200 << 20  # allocators reserve 64 MB at a time


def test_an_unknown_compression_type_lists_the_known_ones():
    """The message is the list to choose from."""
    with pytest.raises(ConfigurationError, match=r"'brotli' is not one of none, gzip, snappy, lz4, zstd"):
        Compressor("brotli")


WITHOUT_LZ4 = """
import sys
from pathlib import Path
sys.modules["lz4"] = None
from airflow_eos.exceptions import EnvironmentMismatch
from airflow_eos.recordbatch.compression import Compressor, decompress
from airflow_eos.recordbatch.decode import decode_batch, decode_batches
from airflow_eos.recordbatch.header import iter_batches
import airflow_eos.spark.seal_task, airflow_eos.spark.send_task, airflow_eos.spark.source

for codec, number in (("none", 0), ("gzip", 1), ("snappy", 2), ("zstd", 4)):
    assert bytes(decompress(number, bytes(Compressor(codec).compress(b"text")), 4)) == b"text"
batches = list(iter_batches(bytes.fromhex(sys.argv[1]), "orders", 3))
for read in (
    lambda: Compressor("lz4"),
    lambda: decode_batch(batches[0], check_crc=False),
    lambda: list(decode_batches(batches, check_crc=False)),
):
    try:
        read()
    except EnvironmentMismatch as error:
        print(error)
"""


@pytest.mark.process
def test_without_lz4_everything_else_works_and_its_batches_say_what_is_missing():
    """Executors need the package only if records are compressed with lz4."""
    record = Record(0, 1, b"key", b"value")
    log = write([record], attributes=Codec.LZ4, compress=Compressor("lz4").compress)
    log += write([record._replace(offset=1)], base_offset=1)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LZ4, log.hex()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    compressor, alone, grouped = done.stdout.splitlines()
    assert compressor.startswith("lz4 is not installed on ")
    assert "install the package lz4" in compressor
    assert alone == grouped == f"record batch of orders-3 at offset 0 cannot be read: {compressor}"
