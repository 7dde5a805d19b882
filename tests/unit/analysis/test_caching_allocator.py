"""The simulated caching allocator, against torch's rules and a recording of the real one."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memexport.analysis.allocator_settings import SMALL_SEGMENT, AllocatorSettings, parse_settings
from memexport.analysis.caching_allocator import CachingAllocator

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SNAPSHOTS = Path(__file__).parents[2] / "data" / "snapshots"


def allocated(*sizes: int, settings: AllocatorSettings | None = None) -> CachingAllocator:
    """An allocator from which these sizes have been had, under the keys 0, 1, …"""
    allocator = CachingAllocator(settings)
    for key, size in enumerate(sizes):
        allocator.allocate(key, size)
    return allocator


@pytest.mark.parametrize(
    ("name", "allocations"), [("silmont_mem_snapshot", 36), ("drisspg_mini_snapshot", 28)]
)
def test_it_reserves_what_the_real_one_reserved_event_by_event(name: str, allocations: int) -> None:
    snapshot = pickle.loads((SNAPSHOTS / f"{name}.pickle").read_bytes())
    (trace,) = (t for t in snapshot["device_traces"] if t)
    allocator, reserved, compared = CachingAllocator(), 0, 0
    for entry in trace:
        match entry["action"]:
            case "segment_alloc":
                reserved += entry["size"]
            case "alloc":
                allocator.allocate(entry["addr"], entry["size"])
                assert allocator.reserved == reserved
                compared += 1
            case "free_completed":
                allocator.release(entry["addr"])
    assert compared == allocations
    assert allocator.reserved == sum(segment["total_size"] for segment in snapshot["segments"])
    listed = sum(segment["allocated_size"] for segment in snapshot["segments"])
    assert allocator.allocated == listed or listed == 0  # one that was cut by hand lists no blocks in use


@pytest.mark.parametrize(
    ("size", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (13 * MIB, 14 * MIB, 14 * MIB),  # what is left over is too little to be split off
        (13 * MIB - 512, 13 * MIB - 512, 14 * MIB),
    ],
)
def test_a_first_request_takes_a_block_in_a_segment_of_these_sizes(
    size: int, block: int, segment: int
) -> None:
    allocator = allocated(size)
    assert (allocator.allocated, allocator.reserved) == (block, segment)


def test_a_request_for_nothing_takes_nothing() -> None:
    allocator = allocated(0)
    allocator.release(0)
    assert (allocator.allocated, allocator.reserved) == (0, 0)


def test_small_requests_share_a_segment_and_large_ones_do_not_mix_with_them() -> None:
    assert allocated(*[512] * 4096).reserved == SMALL_SEGMENT
    assert allocated(*[512] * 4097).reserved == 2 * SMALL_SEGMENT
    assert allocated(512, 2 * MIB).reserved == SMALL_SEGMENT + 20 * MIB


def test_what_was_given_back_is_kept_and_used_again() -> None:
    allocator = allocated(30 * MIB)
    allocator.release(0)
    assert (allocator.allocated, allocator.reserved) == (0, 30 * MIB)
    allocator.allocate(1, 28 * MIB)
    assert (allocator.allocated, allocator.reserved) == (28 * MIB, 30 * MIB)


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = allocated(40 * MIB, 30 * MIB)
    allocator.release(0)
    allocator.release(1)
    allocator.allocate(2, 29 * MIB)  # out of the 30, of which 1 MiB is too little to be split off
    allocator.allocate(3, 40 * MIB)
    assert (allocator.allocated, allocator.reserved) == (70 * MIB, 70 * MIB)


def test_free_neighbours_merge() -> None:
    allocator = allocated(4 * MIB, 4 * MIB, 4 * MIB, 8 * MIB)
    assert allocator.reserved == 20 * MIB
    for key in (0, 2, 1):
        allocator.release(key)
    allocator.allocate(4, 12 * MIB)
    assert allocator.reserved == 20 * MIB


def test_blocks_that_are_not_neighbours_do_not() -> None:
    allocator = allocated(4 * MIB, 4 * MIB, 4 * MIB, 8 * MIB)
    for key in (0, 2):
        allocator.release(key)
    allocator.allocate(4, 8 * MIB)
    assert allocator.reserved == 40 * MIB


def test_a_key_that_is_allocated_anew_with_the_same_size_changes_nothing() -> None:
    allocator = allocated(30 * MIB)
    allocator.allocate(0, 30 * MIB)
    assert allocator.allocated == 30 * MIB
    allocator.allocate(0, 50 * MIB)
    assert (allocator.allocated, allocator.reserved) == (50 * MIB, 80 * MIB)
    allocator.release(7)
    assert allocator.allocated == 50 * MIB


def test_free_segments_are_given_back_only_when_there_is_no_room() -> None:
    allocator = CachingAllocator(limit=100 * MIB)
    allocator.allocate(0, 60 * MIB)
    allocator.release(0)
    allocator.allocate(1, 70 * MIB)
    assert (allocator.reserved, allocator.retries, allocator.failures) == (70 * MIB, 1, 0)


def test_a_request_that_does_not_fit_fails_once_and_is_served_beyond_the_limit() -> None:
    allocator = CachingAllocator(limit=100 * MIB)
    for key in range(4):
        allocator.allocate(key, 60 * MIB)
    assert (allocator.reserved, allocator.retries, allocator.failures) == (240 * MIB, 1, 1)


@pytest.mark.parametrize(
    ("divisions", "size", "rounded"),
    [
        (4, 1200, 1536),
        (4, 5000, 5120),
        (4, 4097, 5120),
        (4, 4096, 4096),
        (8, 3 * MIB + 1, 3 * MIB + 256 * KIB),
    ],
)
def test_sizes_are_rounded_to_a_division_of_their_power_of_two(
    divisions: int, size: int, rounded: int
) -> None:
    settings = parse_settings(f"roundup_power2_divisions:{divisions}")
    assert settings.rounded(size) == (rounded if size > 512 * divisions else -(-size // 512) * 512)


def test_divisions_may_differ_by_size() -> None:
    settings = parse_settings("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
    assert settings.roundup_power2_divisions == (1,) * 9 + (2, 4) + (8,) * 5
    assert settings.rounded(100 * MIB + 1) == 100 * MIB + 512
    assert settings.rounded(600 * MIB) == 768 * MIB


def test_blocks_beyond_max_split_size_are_not_split() -> None:
    settings = parse_settings("max_split_size_mb:64")
    allocator = allocated(100 * MIB, settings=settings)
    allocator.release(0)
    allocator.allocate(1, 20 * MIB)
    assert allocator.reserved == 120 * MIB
    allocator.allocate(2, 90 * MIB)
    assert (allocator.allocated, allocator.reserved) == (120 * MIB, 120 * MIB)


def test_other_settings_are_read_or_named() -> None:
    settings = parse_settings("large_segment_size_mb:32, expandable_segments:True,max_split_size_mb:x")
    assert settings.large_segment == 32 * MIB
    assert settings.ignored == ("expandable_segments", "max_split_size_mb")
    assert parse_settings("expandable_segments:False").ignored == ()
    assert parse_settings("") == AllocatorSettings()


@given(
    st.lists(st.tuples(st.integers(0, 9), st.one_of(st.none(), st.integers(0, 40 * MIB))), max_size=200),
    st.booleans(),
)
def test_it_reserves_what_it_hands_out_and_everything_can_be_given_back(
    actions: list[tuple[int, int | None]], divided: bool
) -> None:
    settings = parse_settings("roundup_power2_divisions:4") if divided else AllocatorSettings()
    allocator, live = CachingAllocator(settings, limit=100 * MIB), dict[int, int]()
    for key, size in actions:
        if size is None:
            allocator.release(key)
            live.pop(key, None)
        else:
            allocator.allocate(key, size)
            live[key] = size
        assert sum(live.values()) <= allocator.allocated <= allocator.reserved
    for key in list(live):
        allocator.release(key)
    assert allocator.allocated == 0
    allocator._empty_cache()
    assert allocator.reserved == 0


def test_it_is_fast() -> None:
    allocator = CachingAllocator()
    started = time.process_time()
    for key in range(100_000):
        allocator.allocate(key, 512 + key % 1000 * 4096)
        allocator.release(key - 1000)
    assert time.process_time() - started < 5  # a tenth of that, on a quiet machine
