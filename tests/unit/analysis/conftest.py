"""What the tests of the analysis share."""

from __future__ import annotations

from hypothesis import settings

# On a busy machine any example may take long; that is no fault of the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
