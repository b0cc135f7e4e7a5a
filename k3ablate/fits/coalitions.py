"""Which arms of a table form the coalitions of a split, and which are missing?

From the baseline to a target arm: the components in which the two differ are the changes, and an arm belongs to the
split where each of its components stands at the baseline's or at the target's level. An arm with the levels of another
is not a coalition twice: it is a check. Further levels enter the pairwise model, and arms of them are other targets.
No ln m is read here (see `readings`), and nothing is attributed (see `split`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from k3ablate.config import InputError
from k3ablate.fits.observations import check_arm
from k3ablate.fits.split import NOBODY, Coalition, coalitions

Changed = Mapping[str, Mapping[str, str]]  # arm -> component -> level, where it differs from the baseline's
MAX_CHANGES = 12  # 4,096 arms


@dataclass(frozen=True)
class Change:
    """One component at another level than the baseline's."""

    component: str
    level: str

    @property
    def name(self) -> str:
        """'component=level', as it stands in coalitions."""
        return f"{self.component}={self.level}"


@dataclass(frozen=True)
class Design:
    """The arms around one baseline, and the changes from it to one target."""

    baseline: str
    target: str | None  # None where no arm changes every component
    changes: tuple[Change, ...]  # from the baseline to the target
    further: tuple[Change, ...]  # other levels in the table
    arms: Mapping[Coalition, str]  # every combination of levels in the table -> its first arm
    repeats: Mapping[str, str]  # arm -> the arm whose levels it repeats
    other_targets: tuple[str, ...]  # arms with every component changed, to other levels than the target's

    @property
    def names(self) -> tuple[str, ...]:
        """The changes as they stand in coalitions."""
        return tuple(change.name for change in self.changes)

    @property
    def everything(self) -> Coalition:
        """The coalition of all changes."""
        return frozenset(self.names)

    @property
    def component_of(self) -> dict[str, str]:
        """Change -> component, further levels included."""
        return {change.name: change.component for change in (*self.changes, *self.further)}

    @property
    def concerned(self) -> list[str]:
        """Arms of the coalitions between baseline and target, and those that repeat one of them."""
        inside = [arm for coalition, arm in self.arms.items() if coalition <= self.everything]
        return [*inside, *(arm for arm, first in self.repeats.items() if first in inside)]

    def missing(self, read: Mapping[Coalition, object]) -> tuple[Coalition, ...]:
        """Coalitions of the changes that have no value in `read`."""
        return tuple(subset for subset in coalitions(self.names) if subset not in read)

    def arm_name(self, coalition: Coalition) -> str:
        """The arm of a coalition, or what it would change."""
        if coalition in self.arms:
            return self.arms[coalition]
        return " + ".join(self.label(name) for name in self.component_of if name in coalition)

    def label(self, name: str) -> str:
        """How a change is shown: the component, and its level where the table has further ones."""
        component = self.component_of[name]
        return name if any(change.component == component for change in self.further) else component

    def term_label(self, term: Coalition) -> str:
        """How a single change or a pair is shown."""
        return " x ".join(self.label(name) for name in self.component_of if name in term)


def design(changed: Changed, baseline: str, target: str | None = None) -> Design:
    """The changes from `baseline` to `target`; None takes the last arm that changes every component, if there is one.

    InputError where there is nothing to split: no components, or a target with the baseline's levels.
    """
    check_arm(baseline, changed)
    assert not changed[baseline], "the baseline does not differ from itself"
    most_first = sorted(changed.values(), key=len, reverse=True)
    components = list(dict.fromkeys(name for arm in most_first for name in arm))
    if not components:
        raise InputError(
            f"table: no component differs between {baseline} and another arm; name the columns that hold the "
            "components' levels with --component"
        )
    everything_changed = [arm for arm in changed if len(changed[arm]) == len(components)]
    if target is None:
        chosen = everything_changed[-1] if everything_changed else None
    else:
        chosen = _checked(target, changed, baseline)
    levels_wanted = changed[chosen] if chosen else _last_levels(components, changed)
    changes = tuple(Change(name, levels_wanted[name]) for name in components if name in levels_wanted)
    _refuse_too_many(changes)
    return Design(
        baseline=baseline,
        target=chosen,
        changes=changes,
        further=_further(components, changed, changes),
        arms=_arms(changed, baseline, chosen),
        repeats=_repeats(changed, baseline, chosen),
        other_targets=_other_targets(everything_changed, changed, chosen),
    )


def _coalition(changed: Mapping[str, str]) -> Coalition:
    return frozenset(Change(name, level).name for name, level in changed.items())


def _checked(target: str, changed: Changed, baseline: str) -> str:
    check_arm(target, changed, what="target")
    if not changed[target]:
        raise InputError(
            f"target: {target} has the levels of {baseline}, so that there is nothing to split; "
            f"write one of {', '.join(arm for arm in changed if changed[arm])}"
        )
    return target


def _last_levels(components: Sequence[str], changed: Changed) -> dict[str, str]:
    """The level of every component in the last arm that changes it."""
    return {name: next(arm[name] for arm in reversed(list(changed.values())) if name in arm) for name in components}


def _further(components: Sequence[str], changed: Changed, changes: Sequence[Change]) -> tuple[Change, ...]:
    found = dict.fromkeys(Change(name, arm[name]) for name in components for arm in changed.values() if name in arm)
    return tuple(change for change in found if change not in changes)


def _in_order(changed: Changed, baseline: str, target: str | None) -> list[str]:
    """Arms with those first that stand for their levels."""
    return [baseline, *([target] if target else []), *(arm for arm in changed if arm not in (baseline, target))]


def _arms(changed: Changed, baseline: str, target: str | None) -> dict[Coalition, str]:
    found: dict[Coalition, str] = {}
    for arm in _in_order(changed, baseline, target):
        found.setdefault(_coalition(changed[arm]), arm)
    assert found[NOBODY] == baseline, "the baseline stands for its own levels"
    return found


def _repeats(changed: Changed, baseline: str, target: str | None) -> dict[str, str]:
    first = _arms(changed, baseline, target)
    return {arm: first[_coalition(changed[arm])] for arm in changed if first[_coalition(changed[arm])] != arm}


def _other_targets(everything_changed: Sequence[str], changed: Changed, target: str | None) -> tuple[str, ...]:
    seen = {_coalition(changed[target])} if target else set()
    found = []
    for arm in everything_changed:
        if _coalition(changed[arm]) not in seen:
            seen.add(_coalition(changed[arm]))
            found.append(arm)
    return tuple(found)


def _refuse_too_many(changes: Sequence[Change]) -> None:
    if len(changes) > MAX_CHANGES:
        raise InputError(
            f"split: {len(changes)} components make {2 ** len(changes):,} coalitions; split at most {MAX_CHANGES}: "
            "name fewer columns with --component, or a --target that changes fewer"
        )
