"""What is claimed for each component, where does it hold, and who else has checked it?

`claims` reads `analysis/published/claims.yaml` and refuses a file whose grades are not earned by its checks;
`unclaimed` multiplies the published factors and says what they leave of the total. Nothing here is measured by us: our
multipliers are in `fits`, what they say of a claim is in `verdicts`, and `board` shows both.
"""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from k3ablate.config import Config, InputError, parse, read_yaml
from k3ablate.fits.attribution import Part, attribute_claims
from k3ablate.recipes import published_path

CLAIMS = "claims"
Grade = Literal["high", "mixed", "self-cited"]


class Check(Config):
    """Somebody else's work that bears on a claim."""

    who: str = Field(min_length=1)
    what: str = Field(min_length=1)
    covers: Literal["mechanism", "factor"]


class Condition(Config):
    """What a source states as needed for its claim, and what K3 has of it."""

    text: str = Field(min_length=1)
    quantity: str = Field(min_length=1)
    below: float
    source: str = Field(min_length=1)
    value: float  # K3's
    value_source: str = Field(min_length=1)

    @property
    def holds(self) -> bool:
        """Whether K3 fulfils it."""
        return self.value < self.below

    def __str__(self) -> str:
        holds = "holds" if self.holds else "does not hold"
        return f"{self.quantity} < {self.below:g}; K3 has {self.value:g}: {holds}"


class Claim(Config):
    """One published statement. `factor`: the baseline's compute over the changed model's at equal loss.

    `levels` are those that experiments give the component where they change just what the claim is about.
    """

    name: str = Field(min_length=1)
    component: str = Field(min_length=1)
    levels: tuple[str, ...] = ()
    change: str = Field(min_length=1)
    factor: float | None = Field(default=None, gt=0)
    part_of_total: bool = False
    where: str = Field(min_length=1)
    source: str = Field(min_length=1)
    condition: Condition | None = None
    checks: tuple[Check, ...]
    grade: Grade

    @model_validator(mode="after")
    def _grade_is_earned(self) -> Self:
        covered = {check.covers for check in self.checks}
        earned: Grade = "high" if "factor" in covered else "mixed" if covered else "self-cited"
        if self.grade != earned:
            raise ValueError(f"grade {self.grade!r} of {self.component} is not what its checks earn; write {earned}")
        if self.part_of_total and self.factor is None:
            raise ValueError(f"{self.component} is part of the total but has no factor; write one, or leave it out")
        return self


class Claims(Config):
    """The total that is claimed, and the claims about its components."""

    total: Claim
    claims: tuple[Claim, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _parts_do_not_overlap(self) -> Self:
        parts = [claim.component for claim in self.claims if claim.part_of_total]
        twice = sorted({name for name in parts if parts.count(name) > 1})
        if twice:
            raise ValueError(f"{twice[0]} has two claims that are part of the total; a component counts once")
        names = [claim.name for claim in (self.total, *self.claims)]
        same = sorted({name for name in names if names.count(name) > 1})
        if same:
            raise ValueError(f"two claims are called {same[0]!r}; give each its own name")
        if self.total.factor is None:
            raise ValueError("the total has no factor; write the one that is claimed")
        return self


def claims(path: Path | None = None) -> Claims:
    """The claims in a file, by default the published ones; InputError says what to mend."""
    found = path or published_path(CLAIMS)
    if found is None:
        raise InputError("analysis/published/claims.yaml: no such file; it comes with the repository")
    return parse(Claims, read_yaml(found), str(found))


def unclaimed(found: Claims) -> tuple[Part, ...]:
    """The parts of the total that have a factor, and the remainder that none accounts for; logarithms add up."""
    assert found.total.factor is not None, "claims are read with a total"
    factors = {
        claim.component: claim.factor for claim in found.claims if claim.part_of_total and claim.factor is not None
    }
    return attribute_claims(factors, found.total.factor)
