"""Errors say where, what and what next, and carry their exit code."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path

import pytest

from memexport.errors import InputError, MemexportError, OutputError, UsageError


@pytest.mark.parametrize(
    ("error", "code"), [(MemexportError, 1), (UsageError, 2), (InputError, 3), (OutputError, 4)]
)
def test_every_error_has_the_exit_code_of_the_public_contract(error, code):
    assert error.exit_code == code
    assert issubclass(error, MemexportError)


def test_an_error_about_a_file_names_it_the_place_and_the_fault():
    error = InputError(Path("a.memx"), "byte 4096", "checksum differs", hint="read the rest")
    assert str(error) == "a.memx: byte 4096: checksum differs"
    assert (error.path, error.where, error.what, error.hint) == (
        "a.memx",
        "byte 4096",
        "checksum differs",
        "read the rest",
    )


def test_an_error_about_a_whole_file_names_no_place():
    assert str(OutputError("a.memx", None, "exists already")) == "a.memx: exists already"


def test_a_usage_error_may_have_a_hint():
    assert (str(UsageError("no")), UsageError("no").hint, UsageError("no", "yes").hint) == ("no", None, "yes")


def test_a_hint_is_shown_below_the_message_of_an_uncaught_error():
    assert "".join(traceback.format_exception_only(UsageError("no", "yes"))).endswith(
        "UsageError: no\n(yes)\n"
    )
    assert pickle.loads(pickle.dumps(UsageError("no", "yes"))).__notes__ == ["(yes)"]
    assert not hasattr(UsageError("no"), "__notes__")


def test_a_plain_error_survives_a_process_boundary():
    assert str(pickle.loads(pickle.dumps(UsageError("no")))) == "no"
