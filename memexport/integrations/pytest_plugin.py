"""Tests that fail when their code takes more memory than they allow.

```python
@pytest.mark.memexport(max_peak="1GiB")
def test_the_model_fits():
    model(batch).sum().backward()
```

The peak is what is allocated at most *above what was allocated when tracking began*: what other tests and
fixtures left behind does not count. Tracking begins when the test's body does, or when the fixture
`memexport_tracker` is set up, and ends with the body. pytest loads this module by its entry point; neither
torch nor the tracker is imported before a test asks for it.
"""

from __future__ import annotations

import gc
import hashlib
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

if TYPE_CHECKING:
    from memexport.analysis.limits import Limits
    from memexport.analysis.summary import Summary
    from memexport.tracker import Tracker

_MARKER: Final = "memexport"
_OF_LIMITS: Final = ("max_peak", "max_growth", "devices")
_LONGEST_NAME: Final = 120


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--memexport-dir`."""
    group = parser.getgroup("memexport", "memory of tests")
    group.addoption(
        "--memexport-dir",
        metavar="DIR",
        help="keep the recording of each test that is marked memexport, or uses memexport_tracker, in DIR",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "memexport(max_peak=None, max_growth=None, devices=(), **tracker): track the memory of the test's"
        ' body, and fail it if it peaks more than max_peak ("1GiB") above what was allocated before, or if'
        ' more than max_growth ("1MiB/step") stays with each step, which tracker.step() ends. Other arguments'
        " are those of memexport.Tracker: fake=True, capture=..., record_stacks=True.",
    )


@pytest.fixture
def memexport_tracker(request: pytest.FixtureRequest) -> Iterator[Tracker]:
    """A started `memexport.Tracker`; its arguments come through the marker `memexport`."""
    watch = request.node.stash[_WATCH] = _Watch(request.node)
    try:
        yield watch.tracker
    finally:
        watch.tracker.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Track the body of a marked test, and judge it when it has passed."""
    watch = item.stash.get(_WATCH, None)
    if watch is None:
        if item.get_closest_marker(_MARKER) is None:
            return (yield)
        watch = _Watch(item)
    try:
        result = yield
    except Exception:
        watch.report()
        raise
    finally:
        watch.tracker.stop()
    watch.judge()
    return result


class _Watch:
    """A tracker around one test, started."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        marker = item.get_closest_marker(_MARKER)
        if marker is not None and marker.args:
            _fail(f"pytest.mark.memexport takes arguments by name only, not {marker.args[0]!r}")
        arguments = dict(marker.kwargs) if marker is not None else {}
        self._limits = _limits({name: arguments.pop(name, None) for name in _OF_LIMITS})
        self.tracker = _tracker(item, arguments)
        # What the tests before left to the collector must not be taken for this one's.
        gc.collect()
        self.tracker.start()

    def report(self) -> None:
        """Show the summary with the test."""
        self.tracker.stop()
        self._item.add_report_section("call", "memexport", str(self.tracker.summary()))

    def judge(self) -> None:
        """Fail the test if a limit is not kept."""
        from memexport.analysis.limits import judge
        from memexport.analysis.text import printable

        summary = self.tracker.summary()
        verdicts = judge(summary, self._limits)
        reasons = [*(reason for verdict in verdicts for reason in verdict.reasons), *self.tracker.exceeded()]
        if reasons:
            self.report()
            _fail("\n".join([*map(printable, reasons), *_top_lines(summary)]))


_WATCH: Final = pytest.StashKey[_Watch]()


def _limits(given: dict[str, Any]) -> Limits:
    from memexport.analysis.limits import Limits
    from memexport.analysis.sizes import parse_size
    from memexport.analysis.tolerance import parse_slope

    try:
        return Limits(
            max_peak_bytes=_bytes(given["max_peak"], parse_size),
            max_growth_bytes=_bytes(given["max_growth"], parse_slope),
            devices=tuple(given["devices"] or ()),
            above_start=True,
        )
    except ValueError as error:
        _fail(f"pytest.mark.memexport: {error}")


def _bytes(value: int | str | None, parse: Any) -> int | None:
    return value if value is None or isinstance(value, int) else int(parse(value))


def _tracker(item: pytest.Item, arguments: dict[str, Any]) -> Tracker:
    from memexport.errors import MemexportError

    try:
        from memexport.tracker import Tracker

        exporters = [*arguments.pop("exporters", ()), *_recording(item)]
        return Tracker(exporters=exporters, **arguments)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        _fail("pytest.mark.memexport needs torch: pip install 'memexport[torch]'")
    except (MemexportError, TypeError) as error:
        _fail(f"pytest.mark.memexport: {error}")


def _recording(item: pytest.Item) -> Iterator[Path]:
    """Where the recording is kept, if anywhere: a name of its own for each test, whatever its parameters."""
    directory = item.config.getoption("--memexport-dir")
    if directory is None:
        return
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    readable = re.sub(r"[^\w.-]+", "-", item.nodeid).strip("-")[-_LONGEST_NAME:]
    digest = hashlib.sha256(item.nodeid.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    yield folder / f"{readable}-{digest}.memx"


def _top_lines(summary: Summary) -> Iterator[str]:
    """Where it peaked, and what was live then."""
    from memexport.analysis.report import peak_sentences
    from memexport.analysis.text import human_bytes

    for sentence, device in zip(peak_sentences(summary), summary.devices.values(), strict=False):
        live = ", ".join(f"{name} {human_bytes(size)}" for name, size in device.categories_at_peak.items())
        yield f"{sentence}; live then: {live}"


def _fail(reason: str) -> NoReturn:
    pytest.fail(reason, pytrace=False)
