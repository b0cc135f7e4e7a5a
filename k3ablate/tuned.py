"""Which values were found best for an arm, and which does it get at another size? `recipes/tuned/<experiment>/`.

One file per arm with its optimum at each size that was tuned, and `laws.yaml` with each optimum as a power law of the
training FLOPs of the baseline. `TunedValues.at` picks: what was tuned at that very size, else the law, else the nearest
tuned size. The files are written by `tune`; nothing here fits anything. `isoflop` writes a `Ladder`, the tokens per
parameter of sizes, to `recipes/ladders/<experiment>.yaml`, for budgets of kind compute_optimal.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from k3ablate.config import Config, InputError, Tree
from k3ablate.search import Range, Scalar, Tuning

LAWS = "laws"  # the file of that name beside the arms'
LARGEST_LOGARITHM = 700.0  # of a factor that is a number
BEYOND = 1.001  # factor outside the tuned range from which on a law is extrapolated


class TunedPath(Config):
    """The optimum of one path at one size. Without a curve it is the best trial's value, and `note` says why."""

    value: Scalar
    low: float | None = None  # of a 95 percent interval; a curve's end beyond the range is open
    high: float | None = None
    is_from_curve: bool = False
    is_at_edge: bool = False
    note: str = ""


class TunedSize(Config):
    """What a study of one arm at one size told."""

    baseline_flops: PositiveFloat  # of the baseline's training at this size: what laws go by
    trials: dict[str, NonNegativeInt]  # how they ended -> how many
    best_loss: float
    curve_loss: float | None = None  # of the curve at its minimum
    space: dict[str, Range]  # with what was widened
    paths: dict[str, TunedPath]


class TunedArm(Config):
    """`recipes/tuned/<experiment>/<arm>.yaml`."""

    experiment: str
    arm: str
    setting: str  # digest of what was tuned, without the tuned values
    corpus: str
    seed: int  # of every trial's training
    tuning: Tuning
    sizes: dict[str, TunedSize] = Field(min_length=1)

    @property
    def num_trials(self) -> int:
        """Trials of all sizes."""
        return sum(sum(size.trials.values()) for size in self.sizes.values())


class Law(Config):
    """coefficient * FLOPs^exponent. A 95 percent interval takes three sizes: of two none tells whether they scatter."""

    coefficient: PositiveFloat
    exponent: float
    exponent_low: float | None = None
    exponent_high: float | None = None
    centre: PositiveFloat | None = None  # FLOPs at which the value is known best
    spread: float | None = None  # of the sizes' ln FLOPs about that centre: weighted standard deviation
    sizes: tuple[str, ...]  # that it went through
    smallest: PositiveFloat  # FLOPs
    largest: PositiveFloat

    def at(self, flops: float) -> float:
        """The value at the baseline's training FLOPs."""
        return self.coefficient * math.exp(self.exponent * math.log(flops))

    def interval(self, flops: float) -> tuple[float, float] | None:
        """95 percent interval of the law's value at FLOPs; None where the exponent has none."""
        if self.exponent_high is None or self.centre is None or self.spread is None:
            return None
        away = math.hypot(self.spread, math.log(flops / self.centre))
        logarithm = (self.exponent_high - self.exponent) * away
        factor = math.exp(logarithm) if logarithm < LARGEST_LOGARITHM else math.inf
        return self.at(flops) / factor, self.at(flops) * factor

    def beyond(self, flops: float) -> float:
        """The factor by which `flops` lies outside the tuned sizes; 1 inside."""
        factor = max(flops / self.largest, self.smallest / flops)
        return factor if factor > BEYOND else 1.0


def optimal_ratio(law: Law, flops: float) -> float:
    """Tokens per parameter r at which a model is compute-optimal: law(flops r) = r, where r = 1 takes `flops`."""
    assert law.exponent < 1, "ladders are checked"
    return float(law.at(flops) ** (1 / (1 - law.exponent)))


class Rung(Config):
    """A size at the tokens per parameter that the law of an arm gives it."""

    ratio: PositiveFloat  # tokens per active parameter
    low: PositiveFloat  # of a 95 percent interval
    high: PositiveFloat
    active_params: PositiveInt
    tokens: PositiveInt
    flops: PositiveFloat
    beyond: float = 1.0  # factor outside the budgets that the law went through; 1 inside


class Ladder(Config):
    """`recipes/ladders/<experiment>.yaml`: what a sweep at equal compute told."""

    experiment: str
    baseline: str  # its arm of that name
    setting: str  # digest of the baseline that was swept
    laws: dict[str, Law]  # arm -> tokens per active parameter over training FLOPs
    sizes: dict[str, dict[str, Rung]]  # arm -> size

    def budget(self) -> dict[str, Tree]:
        """What a budget of kind compute_optimal takes: the law of the baseline, so that arms spend the same."""
        if self.baseline not in self.laws:
            raise InputError(f"{self.experiment}: no law for its baseline {self.baseline}; sweep two or more budgets")
        law = self.laws[self.baseline].tree()
        return {"experiment": self.experiment, "arm": self.baseline, "setting": self.setting, "law": law}


@dataclass(frozen=True)
class Taken:
    """The values an arm gets at one size, and for each path where its value comes from."""

    values: Mapping[str, Scalar]
    origins: Mapping[str, str]


class TunedValues(Config):
    """What an experiment takes from the tuning of `experiment`.

    `arms: baseline` gives every arm the baseline's values, which is what a comparison with shared settings is.
    """

    experiment: str
    arms: Literal["own", "baseline"] = "own"
    tuned: dict[str, TunedArm] = Field(min_length=1)
    laws: dict[str, dict[str, Law]] = Field(default_factory=dict)  # arm -> path -> law

    def at(self, arm: str, size: str, flops: float) -> Taken:
        """What `arm` gets at `size`, where the baseline's training takes `flops`; InputError for an arm not tuned."""
        if arm not in self.tuned:
            raise InputError(
                f"tuned: {self.experiment} has no values for arm {arm}, only for {', '.join(self.tuned)}; "
                f"`k3ablate tune {self.experiment}` finds them"
            )
        found = self.tuned[arm]
        taken = {path: self._taken(found, path, size, flops) for path in found.tuning.space}
        return Taken(
            {path: value for path, (value, _) in taken.items()}, {path: origin for path, (_, origin) in taken.items()}
        )

    def _taken(self, found: TunedArm, path: str, size: str, flops: float) -> tuple[Scalar, str]:
        if size in found.sizes and math.isclose(found.sizes[size].baseline_flops, flops, rel_tol=BEYOND - 1):
            return found.sizes[size].paths[path].value, f"tuned at {size}{_doubt(found.sizes[size], path)}"
        law = self.laws.get(found.arm, {}).get(path)
        if law is None:
            near = min(found.sizes, key=lambda name: abs(math.log(found.sizes[name].baseline_flops / flops)))
            factor = flops / found.sizes[near].baseline_flops
            origin = f"of the nearest tuned size {near}, with {factor:.3g} times its FLOPs: no law"
            return found.sizes[near].paths[path].value, origin
        widest = found.tuning.space[path]
        value = round(law.at(flops)) if widest.whole else float(f"{law.at(flops):.6g}")
        beyond = law.beyond(flops)
        warning = "" if beyond == 1 else f"; WARNING: {beyond:.3g} times beyond what was tuned"
        return value, f"law through {', '.join(law.sizes)}: {_known(law, flops)}{warning}"


def file_of(arm: str) -> str:
    """The file name of an arm's recipe."""
    return f"{quote(arm, safe='+=@')}.yaml"


def resolved(named: Tree, recipes: Callable[[str], Mapping[str, Tree]]) -> dict[str, Tree]:
    """`X`, or `{from: X, arms: baseline}`, as the tree of `TunedValues`; `recipes` gives the files of X by name."""
    written = named if isinstance(named, Mapping) else {"from": named}
    if set(written) - {"from", "arms"} or not isinstance(written.get("from"), str):
        raise InputError(f"found {named!r}; write the name of a tuned experiment, or {{from: X, arms: baseline}}")
    files = recipes(written["from"])
    arms: dict[str, Tree] = {}
    for name, tree in files.items():
        arm = tree.get("arm", name) if isinstance(tree, Mapping) else name
        if name != LAWS and arm in arms:
            raise InputError(f"{written['from']}: two files are of arm {arm}; delete one")
        arms |= {} if name == LAWS else {arm: tree}
    shared = {key: value for key, value in written.items() if key == "arms"}
    return {"experiment": written["from"], "tuned": arms, "laws": files.get(LAWS, {}), **shared}


def _doubt(size: TunedSize, path: str) -> str:
    one = size.paths[path]
    if one.is_at_edge:
        return ", at the edge of its range" if size.space[path].choices is None else ", the outermost of its choices"
    return "" if one.is_from_curve else ", best trial"


def _known(law: Law, flops: float) -> str:
    interval = law.interval(flops)
    if interval is None:
        return "no interval from two sizes" if len(law.sizes) == 2 else "no interval; `k3ablate tune` writes it"
    return f"95 percent {interval[0]:.4g} to {interval[1]:.4g}"
