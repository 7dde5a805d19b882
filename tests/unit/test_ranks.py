"""What a process says of its place in a run, and what its files are called."""

from __future__ import annotations

import os

import pytest

from memexport.errors import UsageError
from memexport.ranks import PLACEHOLDERS, Process, escaped, filled, filled_for_one, this_process

ALONE = Process("node-a", 4711)
THIRD = Process("node-a", 4711, rank=3, local_rank=1, world_size=16)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (None, None, None)),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "16"}, (3, 1, 16)),
        ({"RANK": "0"}, (0, None, None)),
        ({"WORLD_SIZE": "1", "LOCAL_RANK": "0"}, (None, 0, 1)),
        ({"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "8"}, (5, 1, 8)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2"}, (1, None, 2)),
        # The script of sbatch -n 8, which is one process; mpirun in it is asked before.
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}, (None, None, None)),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, (2, None, 4)),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}, (2, 1, 4)),
        # srun --mpi=pmi2
        (
            {
                "PMI_RANK": "3",
                "PMI_SIZE": "4",
                "SLURM_PROCID": "3",
                "SLURM_LOCALID": "1",
                "SLURM_STEP_NUM_TASKS": "4",
            },
            (3, 1, 4),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "OMPI_COMM_WORLD_SIZE": "4",
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "1",
            },
            (2, 0, 4),
        ),
        ({"RANK": "7", "WORLD_SIZE": "8", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (7, None, 8)),
        ({"RANK": "seven", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (1, None, 2)),
        ({"RANK": "", "WORLD_SIZE": "²"}, (None, None, None)),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else None,
)
def test_any_launcher_says_which_process_this_is(environment, expected):
    process = this_process(environment)
    assert (process.rank, process.local_rank, process.world_size) == expected
    assert process.pid == os.getpid()


@pytest.mark.parametrize(
    ("name", "process", "expected"),
    [
        ("run-{rank}.memx", THIRD, "run-03.memx"),
        ("run-{rank}.memx", ALONE, "run-0.memx"),
        ("{host}/{pid}-{local_rank}.memx", THIRD, "node-a/4711-1.memx"),
        ("s3://bucket/{rank}/run.memx", THIRD, "s3://bucket/03/run.memx"),
        ("a{{rank}}.memx", THIRD, "a{rank}.memx"),
        ("{rank}{rank}", Process("", 0, 9, 0, 11), "0909"),
        ("{rank}", Process("", 0, 9, 0, 10), "9"),
        ("", THIRD, ""),
    ],
)
def test_placeholders_are_filled(name, process, expected):
    assert filled(name, process) == expected


@pytest.mark.parametrize("name", ["{world}.memx", "{}", "{rank:03}", "{rank!r}", "run-{rank", "run-rank}"])
def test_what_is_no_placeholder_is_wrong_usage_and_says_what_is_one(name):
    with pytest.raises(UsageError) as caught:
        filled(name, THIRD)
    assert all(f"{{{known}}}" in caught.value.hint for known in PLACEHOLDERS)


def test_names_sort_and_glob_in_the_order_of_the_ranks(tmp_path):
    names = [filled("run-{rank}.memx", Process("", 0, rank, 0, 120)) for rank in range(120)]
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in sorted(tmp_path.glob("run-*.memx"))] == names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("run.memx", "run-03.memx"),
        ("out/run.otlp.jsonl", "out/run-03.otlp.jsonl"),
        ("out.d/run", "out.d/run-03"),
        ("run-v3.memx", "run-v3-03.memx"),
        ("3-of-16.memx", "3-of-16-03.memx"),
        ("3/run.memx", "3/run-03.memx"),
        ("a{{b}}.memx", "a{b}-03.memx"),
    ],
)
def test_one_name_for_several_processes_gets_the_rank(name, expected):
    assert filled_for_one(name, THIRD)[0] == expected


@pytest.mark.parametrize("name", ["run-3.memx", "run-003.memx", "rank3.memx", "run_r3.memx", "16.3.memx"])
def test_a_name_that_has_the_rank_stays_as_it_is(name):
    assert filled_for_one(name, THIRD) == (name, None)


@pytest.mark.parametrize(
    "name", ["run.memx", "run-0.memx", "rank1-v2.memx", "run-0-1.memx", "2026-07-01.memx"]
)
def test_no_two_processes_get_the_same_name(name):
    world = [Process("node-a", 10 + rank, rank, rank, 4) for rank in range(4)]
    assert len({filled_for_one(name, process)[0] for process in world}) == 4


def test_only_the_first_process_says_that_a_name_was_changed():
    name, said = filled_for_one("run.memx", Process("node-a", 1, 0, 0, 2))
    assert name == "run-0.memx"
    assert said == (
        "2 processes would write to 'run.memx': each writes its own, this one 'run-0.memx'; {rank} says where"
    )
    assert filled_for_one("run.memx", Process("node-a", 2, 1, 1, 2)) == ("run-1.memx", None)


def test_a_name_that_is_for_one_process_is_not_changed():
    assert filled_for_one("run.memx", ALONE) == ("run.memx", None)
    assert filled_for_one("run-{pid}.memx", THIRD) == ("run-4711.memx", None)
    assert filled_for_one("run-{local_rank}.memx", THIRD) == ("run-1.memx", None)


def test_a_host_has_several_processes():
    assert filled_for_one("run-{host}.memx", THIRD)[0] == "run-node-a-03.memx"


def test_a_local_rank_that_is_not_known_tells_nobody_apart():
    world = [Process("node-a", 10 + rank, rank, None, 2) for rank in range(2)]
    names = [filled_for_one("run-{local_rank}.memx", process)[0] for process in world]
    assert names == ["run-0.memx", "run-0-1.memx"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("s3://bucket/run-{local_rank}.memx", "s3://bucket/run-1-03.memx"),
        ("s3://bucket/run-{pid}.memx", "s3://bucket/run-4711-03.memx"),
        ("s3://bucket/{host}/run-{pid}.memx", "s3://bucket/node-a/run-4711.memx"),
        ("s3://bucket/{rank}/run.memx", "s3://bucket/03/run.memx"),
    ],
)
def test_behind_a_url_the_processes_of_all_hosts_have_names_of_their_own(name, expected):
    assert filled_for_one(name, THIRD)[0] == expected


def test_an_escaped_text_comes_back():
    assert filled(escaped("a{b}{{c"), THIRD) == "a{b}{{c"
