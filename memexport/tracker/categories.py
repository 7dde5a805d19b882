"""What each storage is for, worked out from what was logged about it until it is written.

What a tensor of a model or optimizer is for, somebody says (CATEGORY rows). For all others, where and how
long they live says it: what is gone when the stretch of forward, backward or optimizer that made it ends is
temporary; what a forward leaves behind are its activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from memexport.model import Category, Phase
from memexport.tracker import rows
from memexport.tracker.chunk import Ints, Rows
from memexport.tracker.rows import Labels

Mask = npt.NDArray[np.bool_]

_PHASES: Final = np.arange(len(Phase), dtype=np.uint8)
_PHASES[Phase.UNKNOWN] = Phase.OTHER
_PASSES: Final = _PHASES.copy()
_PASSES[Phase.RECOMPUTE] = Phase.BACKWARD
"""A backward goes on while it recomputes."""

_LEFT_BEHIND: Final = np.full(len(Phase), Category.OTHER, np.uint8)
"""By phase: what a storage is that outlives the stretch that made it, if nobody says more."""
_LEFT_BEHIND[[Phase.FORWARD, Phase.RECOMPUTE]] = Category.ACTIVATION

# An input is what a model is given, unless another model made it.
_MAY_BE_INPUT: Final = (Category.OTHER, Category.TEMPORARY, Category.UNATTRIBUTED)


def begins_stretch(chunk: Rows, labels: Labels) -> Mask:
    """Where a forward, backward, optimizer step, or what is between them begins, by rows.

    Operators, their allocations, and the begins and ends of models and optimizers say so.
    """
    return _changes(chunk, _names(chunk, labels), _PASSES)


def _names(chunk: Rows, labels: Labels) -> npt.NDArray[np.uint32]:
    names: npt.NDArray[np.uint32] = np.array(labels.names, np.uint32)[chunk.label]
    return names


def _changes(chunk: Rows, names: npt.NDArray[np.uint32], passes: npt.NDArray[np.uint8]) -> Mask:
    kind = chunk.kind
    says = np.flatnonzero(
        (kind == rows.OPERATOR) | (kind == rows.BOUNDARY) | ((kind == rows.ALLOCATION) & (names != 0))
    )
    phase = passes[chunk.phase[says]]
    changes: Mask = kind == rows.STEP
    changes[says[1:]] |= phase[1:] != phase[:-1]
    return changes


@dataclass(frozen=True)
class Categorized:
    """What is known of the rows of one chunk.

    Attributes:
        category: of each ALLOCATION, RELEASE and heeded CATEGORY row.
        module: the column, where a CATEGORY row knew a better one.
        anew: CATEGORY rows of storages whose ALLOCATION was in an earlier chunk: they are allocated anew.
    """

    category: npt.NDArray[np.uint8]
    module: npt.NDArray[np.uint32]
    anew: Mask


class Categories:
    """Follows the storages from chunk to chunk. Memory grows with what is live, not with the recording."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._number = np.empty(0, np.int64)
        self._category = np.empty(0, np.uint8)

    def read(self, chunk: Rows, *, complete: bool) -> Categorized:
        """The next chunk; `complete` if the stretch that it ends with does not go on in another."""
        names = _names(chunk, self._labels)
        said = np.array(self._labels.categories, np.uint8)[chunk.label]
        births = np.flatnonzero(chunk.kind == rows.ALLOCATION)
        deaths = np.flatnonzero(chunk.kind == rows.RELEASE)
        claims = np.flatnonzero(chunk.kind == rows.CATEGORY)
        category, module = said.copy(), chunk.module.copy()
        made = births[(names[births] != 0) & (said[births] == Category.UNATTRIBUTED)]
        ends = _ends(chunk.second, made, deaths)
        category[made] = _by_lifetime(chunk, names, made, ends, complete=complete)
        anew = self._heed(chunk, births, claims, category, module)
        self._follow(chunk, births, deaths, np.flatnonzero(anew), category)
        return Categorized(category, module, anew)

    def _heed(
        self,
        chunk: Rows,
        births: Ints,
        claims: Ints,
        category: npt.NDArray[np.uint8],
        module: npt.NDArray[np.uint32],
    ) -> Mask:
        """Change the allocations that CATEGORY rows speak of; which of these rows come too late for that."""
        anew = np.zeros(len(chunk), np.bool_)
        if not len(claims):
            return anew
        numbers = chunk.second[births]
        rows_of = dict(zip(numbers.tolist(), births.tolist(), strict=True))
        for claim in claims.tolist():
            number, claimed = int(chunk.second[claim]), int(category[claim])
            birth = rows_of.get(number)
            before = int(category[birth]) if birth is not None else self._known(number)
            if before is None or (claimed == Category.INPUT and before not in _MAY_BE_INPUT):
                continue
            if birth is not None:
                category[birth] = claimed
                module[birth] = chunk.module[claim] or module[birth]
            else:
                anew[claim] = True
        return anew

    def _known(self, number: int) -> int | None:
        """The category of a storage of an earlier chunk; None if it is gone."""
        place = int(np.searchsorted(self._number, number))
        known = place < len(self._number) and self._number[place] == number
        return int(self._category[place]) if known else None

    def _follow(
        self, chunk: Rows, births: Ints, deaths: Ints, anew: Ints, category: npt.NDArray[np.uint8]
    ) -> None:
        """Give the RELEASE rows their categories, and remember what is live when the chunk is over."""
        number = np.concatenate((self._number, chunk.second[births]))
        known = np.concatenate((self._category, category[births]))
        order: npt.NDArray[Any] = np.argsort(number, kind="stable")
        number, known = number[order], known[order]
        known[_find(number, chunk.second[anew])] = category[anew]
        place = _find(number, chunk.second[deaths])
        category[deaths[place >= 0]] = known[place[place >= 0]]
        alive = np.ones(len(number), np.bool_)
        alive[place[place >= 0]] = False
        self._number, self._category = number[alive], known[alive]


def _by_lifetime(
    chunk: Rows, names: npt.NDArray[np.uint32], made: Ints, ends: Ints, *, complete: bool
) -> npt.NDArray[np.uint8]:
    """The category of allocations by operators of which nobody said what they are for.

    `ends` are the rows of their releases, −1 for those that are still to come.
    """
    phase = chunk.phase[made]
    category = _LEFT_BEHIND[phase]
    in_pass = np.cumsum(_changes(chunk, names, _PASSES))
    in_phase = np.cumsum(_changes(chunk, names, _PHASES))
    # What is recomputed is used, and released, by the same backward.
    recomputed = phase == Phase.RECOMPUTE
    began = np.where(recomputed, in_phase[made], in_pass[made])
    ended = np.where(recomputed, in_phase[ends], in_pass[ends])
    category[(ends >= 0) & (began == ended)] = Category.TEMPORARY
    if not complete and len(made):
        # What else a backward or optimizer that still runs has made may yet turn out to be.
        runs_on = (ends < 0) & (in_pass[made] == in_pass[-1]) & (phase != Phase.OTHER)
        category[runs_on & (category == Category.OTHER)] = Category.TEMPORARY
    return category


def _ends(numbers: Ints, births: Ints, deaths: Ints) -> Ints:
    """The row in which each storage is released; −1 for one that is not."""
    place = _find(numbers[deaths], numbers[births])
    return np.where(place >= 0, deaths[place] if len(deaths) else -1, -1)


def _find(among: Ints, numbers: Ints) -> Ints:
    """The place of each number in `among`, where none occurs twice; −1 for what is not there."""
    if not len(among):
        return np.full(len(numbers), -1)
    order = np.argsort(among, kind="stable")
    place = order[np.minimum(np.searchsorted(among, numbers, sorter=order), len(among) - 1)]
    return np.where(among[place] == numbers, place, -1)
