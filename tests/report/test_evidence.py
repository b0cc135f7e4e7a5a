"""Published claims: what they multiply to, and grades that cannot be written without the checks that earn them."""

from pathlib import Path

import numpy as np
import pytest

from k3ablate.config import InputError, read_yaml, write_yaml
from k3ablate.fits.attribution import UNATTRIBUTED
from k3ablate.recipes import published_path
from k3ablate.report.evidence import claims, unclaimed


def changed(tmp_path: Path, **changes: object) -> Path:
    """The published file with other values in its first claim, or in the total."""
    source = published_path("claims")
    assert source is not None
    tree = read_yaml(source)
    total = changes.pop("total", {})
    tree["total"] |= total
    tree["claims"][0] |= changes
    write_yaml(tree, tmp_path / "claims.yaml")
    return tmp_path / "claims.yaml"


def test_two_published_factors_leave_sixty_percent_of_the_logarithm() -> None:
    """1.16 x 1.25 = 1.45 of 2.5: the rest, 1.72, has no public source."""
    parts = {part.name: part for part in unclaimed(claims())}
    assert set(parts) == {"attention", "residual", UNATTRIBUTED}
    assert round(parts["attention"].effect.factor * parts["residual"].effect.factor, 2) == 1.45
    assert round(parts[UNATTRIBUTED].effect.factor, 2) == 1.72
    assert parts[UNATTRIBUTED].share == pytest.approx(np.log(2.5 / 1.45) / np.log(2.5))
    assert parts[UNATTRIBUTED].share == pytest.approx(0.6, abs=0.01)
    assert sum(part.effect.log for part in parts.values()) == pytest.approx(np.log(2.5))


def test_every_claim_has_a_source_and_the_grades_that_are_known() -> None:
    found = claims()
    grades = {(claim.component, claim.factor): claim.grade for claim in found.claims}
    assert grades["attention", 1.16] == "mixed"
    assert grades["residual", 1.25] == "self-cited"
    assert found.total.grade == "self-cited"
    assert all("arXiv" in claim.source for claim in found.claims)
    assert {claim.component for claim in found.claims} >= {"attention", "residual", "feed_forward", "balancing"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grade": "high"}, "grade 'high' of attention is not what its checks earn; write mixed"),
        ({"checks": []}, "grade 'mixed' of attention is not what its checks earn; write self-cited"),
        ({"factor": None}, "attention is part of the total but has no factor"),
        ({"factor": -1.0}, "claims.0.factor: found -1.0"),
        ({"component": "residual"}, "residual has two claims that are part of the total"),
        ({"name": "Block AttnRes"}, "two claims are called 'Block AttnRes'"),
        ({"condition": {"quantity": "L"}}, "claims.0.condition.text"),
        ({"total": {"factor": None}}, "the total has no factor"),
        ({"grades": "high"}, "claims.0.grades: unknown key"),
    ],
)
def test_claims_that_do_not_hold_together_are_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        claims(changed(tmp_path, **changes))


def test_a_check_of_the_factor_itself_earns_the_highest_grade(tmp_path: Path) -> None:
    checks = [{"who": "another laboratory", "what": "equal-loss factor 1.15", "covers": "factor"}]
    assert claims(changed(tmp_path, checks=checks, grade="high")).claims[0].grade == "high"


def test_block_attention_residuals_are_affordable_for_the_layers_that_k3_has() -> None:
    (claim,) = (claim for claim in claims().claims if claim.condition is not None)
    stated = claim.condition
    assert claim.name == "Block AttnRes"
    assert stated is not None
    assert (stated.below, stated.value, stated.holds) == (100, 93, True)
    assert str(stated) == "L < 100; K3 has 93: holds"
    assert str(stated.model_copy(update={"value": 100.0})) == "L < 100; K3 has 100: does not hold"
