"""A key is where Roshi would look for it: published values of the hashes, and their remainders."""

from __future__ import annotations

import pytest

from headwater import InvalidInput
from headwater.timeline.pool import Pool, find_hash, fnv, fnva, murmur3


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0x00000000),
        ("hello", 0x248BFA47),
        ("hello, world", 0x149BBB7F),
        ("Winter is coming", 0x43617E8F),
        ("19 Jan 2038 at 3:14:07 AM", 0xE31E8A70),
        ("The quick brown fox jumps over the lazy dog.", 0xD5C48BFC),
    ],
)
def test_murmur3(text: str, value: int) -> None:
    assert murmur3(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "one", "one_a"),
    [
        ("", 0x811C9DC5, 0x811C9DC5),
        ("a", 0x050C5D7E, 0xE40C292C),
        ("ab", 0x70772D38, 0x4D2505CA),
        ("abc", 0x439C2F4B, 0x1A47E90B),
    ],
)
def test_fnv_and_fnva(text: str, one: int, one_a: int) -> None:
    assert (fnv(text.encode()), fnva(text.encode())) == (one, one_a)


@pytest.mark.parametrize("name", ["murmur3", "fnv", "fnva"])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_an_instance_is_the_remainder_of_the_hash(name: str, count: int) -> None:
    pool = Pool([f"h:{port}" for port in range(1, count + 1)], name, 100)
    keys = [f"key-{i}".encode() for i in range(50)] + [b"", b"\xff\x00"]
    assert [pool.index(key) for key in keys] == [find_hash(name)(key) % count for key in keys]
    shares = pool.split(keys)
    assert sorted(key for _, share in shares for key in share) == sorted(keys)
    for instance, share in shares:
        assert all(pool.instances[pool.index(key)] is instance for key in share)


def test_bytes_above_127_count_as_such() -> None:
    assert murmur3(b"\xff\xff\xff\xff") == 0x76293B50
    assert murmur3(b"\x21\x43\x65") == 0x7E4A8634


@pytest.mark.parametrize("name", ["sha1", "", None])
def test_another_hash_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="murmur3, fnv, fnva"):
        find_hash(name)
