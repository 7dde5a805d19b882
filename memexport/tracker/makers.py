"""Whose autograd node it is, where several threads make nodes.

Each thread numbers the nodes that it makes from 0, and a node does not say which thread made it. Replicas of
a model run in threads side by side; and where a backward on an accelerator is itself differentiated, the
engine's thread makes nodes beside those of the forward.
"""

from __future__ import annotations

from memexport.tracker.modules import ModuleNode, SequenceOwners


class Makers:
    """The threads that made nodes, by their numberings.

    Attributes:
        are_several: there is more than one of them.
    """

    def __init__(self) -> None:
        self.are_several = False
        self._all: list[SequenceOwners] = []

    def add(self, owners: SequenceOwners) -> None:
        """This thread makes nodes. Saying it twice does nothing."""
        if not any(owners is known for known in self._all):
            self._all.append(owners)
            self.are_several = len(self._all) > 1

    def clear(self) -> None:
        """Forget all of them."""
        self._all.clear()
        self.are_several = False

    def step(self) -> None:
        """A training or optimizer step is over: graphs of before are hardly used again."""
        for owners in self._all:
            owners.step()

    def owner(self, sequence: int) -> ModuleNode | None:
        """The module in which any thread made its node of this number; None where they differ.

        Those that made theirs lately come first: an older node of another thread is hardly alive.
        """
        making = [owners for owners in self._all if owners.has_made(sequence)]
        making = [owners for owners in making if owners.is_recent(sequence)] or making
        found = [owners.owner(sequence) for owners in making]
        # Around the modules that run side by side, what a thread made belongs to none: that says nothing.
        if not any(owners.differentiates for owners in making):
            found = [owner for owner in found if owner is not None]
        paths = {None if owner is None else owner.path for owner in found}
        return found[0] if len(paths) == 1 else None
