"""The pytest plugin, in pytest runs of its own: what passes, what fails and why, what is kept."""

from __future__ import annotations

import subprocess
import sys

import pytest

import memexport

pytest_plugins = ["pytester"]

TESTS = """
import pytest, torch

KEPT = torch.ones(1024, 1024)  # 4 MiB that live before any test

@pytest.mark.memexport(max_peak="1MiB")
def test_too_much():
    torch.ones(1024, 1024)

@pytest.mark.memexport(max_peak="4MiB")
def test_fits():
    torch.ones(1024, 1024)

@pytest.mark.memexport(max_peak=0)
def test_nothing_is_allocated():
    assert KEPT is not None
"""


@pytest.fixture
def run(pytester):
    """Run these tests in a process of their own; `outcomes` and the lines of output."""

    def run(code, *options):
        pytester.makepyfile(code)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)

    return run


def test_a_test_fails_if_it_peaks_more_than_allowed_above_what_was_there_before(run):
    result = run(TESTS)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*_ test_too_much _*",
            "cpu peaked at 4.00 MiB above the start, 3.00 MiB over the limit of 1.00 MiB, in aten.ones.*",
            "cpu peaked at 8.00 MiB in aten.ones.default*; live then: *4.00 MiB*",
            "*Captured memexport call*",
            "memexport.archive: *",
        ]
    )


def test_simulated_tensors_take_nothing_and_are_judged_like_real_ones(run):
    result = run(
        """
        import pytest, torch

        def work():
            model = torch.nn.Linear(100_000, 100_000)
            model(torch.randn(8, 100_000)).sum().backward()

        @pytest.mark.memexport(max_peak="100GiB", fake=True)
        def test_fits():
            work()

        @pytest.mark.memexport(max_peak="70GiB", fake=True)
        def test_does_not_fit():
            work()

        @pytest.mark.memexport(fake=True, device="cuda", budget="40GiB")
        def test_is_beyond_the_budget():
            work()
        """
    )
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        ["cpu peaked at 74.5* GiB above the start*", "cuda:0 would run out of 40.00 GiB*"]
    )


def test_the_fixture_is_a_started_tracker_whose_steps_are_judged(run):
    result = run(
        """
        import pytest, torch

        @pytest.mark.memexport(max_growth="1KiB/step")
        def test_leaks(memexport_tracker):
            kept = []
            for _ in range(6):
                kept.append(torch.ones(1024))
                memexport_tracker.step()

        @pytest.mark.memexport(max_growth="0/step")
        def test_is_steady(memexport_tracker):
            for _ in range(6):
                torch.ones(1024)
                memexport_tracker.step()

        @pytest.mark.memexport(max_growth="1GiB/step")
        def test_has_no_steps(memexport_tracker):
            torch.ones(1024)

        def test_without_a_marker(memexport_tracker):
            torch.ones(1024)
            assert memexport_tracker.usage("peak")["cpu"]["total"] >= 4096
        """
    )
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "cpu grows by 4.00 KiB a step over 5 steps, and 1.00 KiB are allowed*",
            "cpu: growth needs 4 steps, and *",
        ]
    )


def test_recordings_are_kept_where_asked_one_for_each_test_whatever_its_name(run, pytester):
    code = """
    import pytest, torch

    @pytest.mark.memexport
    @pytest.mark.parametrize("size", [1, 2], ids=["a/b", "a:b"])
    def test_sizes(size):
        torch.ones(size * 1024)

    def test_that_is_not_marked():
        pass
    """
    run(code, "--memexport-dir", "kept/here").assert_outcomes(passed=3)
    paths = sorted((pytester.path / "kept" / "here").iterdir())
    assert len(paths) == 2
    peaks = []
    for path in paths:
        assert path.suffix == ".memx"
        with memexport.open(path) as recording:
            allocated = recording.summary().devices["cpu"].allocated
            peaks.append(allocated.peak - allocated.start)
    assert sorted(peaks) == [4096, 8192]


def test_under_xdist_each_worker_tracks_its_own_tests(run, pytester):
    code = """
    import pytest, torch

    @pytest.mark.memexport(max_peak="20KiB")
    @pytest.mark.parametrize("kib", [4, 8, 16, 32])
    def test_sizes(kib):
        torch.ones(kib * 256)
    """
    result = run(code, "-n", "2", "--memexport-dir", "kept")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["cpu peaked at 32.00 KiB above the start*", "*Captured memexport call*"])
    assert len(list((pytester.path / "kept").iterdir())) == 4


def test_a_test_that_fails_by_itself_shows_its_own_failure_and_the_summary(run):
    result = run(
        """
        import pytest, torch

        @pytest.mark.memexport(max_peak=0)
        def test_breaks():
            torch.ones(1024)
            assert 1 == 2

        @pytest.mark.memexport(max_peak=0)
        def test_skips():
            torch.ones(1024)
            pytest.skip("not today")
        """
    )
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*assert 1 == 2", "*Captured memexport call*"])
    assert "over the limit" not in result.stdout.str()


def test_a_module_may_be_marked_as_a_whole(run):
    result = run(
        """
        import pytest, torch

        pytestmark = pytest.mark.memexport(max_peak="1KiB")

        class TestBoth:
            def test_small(self):
                torch.ones(1)

            def test_large(self):
                torch.ones(1024)
        """
    )
    result.assert_outcomes(passed=1, failed=1)


WRONG = {
    'max_peak="lots"': "'lots' is no size",
    'max_growth="1MiB/epoch"': "is no growth",
    '"1GiB"': "takes arguments by name only",
    "max_peek=1": "max_peek",
    'device="cuda"': "of a simulation",
}


def test_wrong_arguments_fail_the_test_and_say_what_is_wrong(run):
    tests = (
        f"@pytest.mark.memexport({arguments})\ndef test_{number}(): pass\n"
        for number, arguments in enumerate(WRONG)
    )
    result = run("import pytest\n" + "".join(tests))
    result.assert_outcomes(failed=len(WRONG))
    assert "Traceback" not in result.stdout.str()
    for said in WRONG.values():
        assert said in result.stdout.str()


def test_the_marker_and_the_option_are_documented(run):
    run("", "--markers").stdout.fnmatch_lines(["@pytest.mark.memexport(max_peak=None, max_growth=None,*"])
    run("", "--help").stdout.fnmatch_lines(["*--memexport-dir=DIR*"])


def test_a_run_without_marked_tests_imports_neither_torch_nor_numpy_nor_the_tracker(run):
    result = run(
        """
        import sys

        def test():
            assert not {"torch", "numpy", "rich", "memexport.tracker"} & sys.modules.keys()
        """,
        # Plugins of others may import them.
        "-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:jaxtyping",
    )  # fmt: skip
    result.assert_outcomes(passed=1)


def test_the_plugin_alone_imports_nothing_heavy():
    code = (
        "import sys, memexport.integrations.pytest_plugin\n"
        "print({'torch', 'numpy', 'rich', 'memexport.tracker'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
