"""Which curves can a loss follow, and what is known about each without any data?

A `Form` is a sum of terms, L = sum of coefficient x variable^-exponent, a constant term having no exponent. For fixed
exponents it is linear in its non-negative coefficients, which is what the solver's variable projection uses. A new form
is one more entry of `FORMS`; a form may name other variables than compute, and several. Nothing here fits or draws.

Array legend: S starts or draws, N points, V variables, T terms, K exponents, P scaled parameters, G grid rows.
Scaled parameters: a constant as it is, a power term's coefficient as its logarithm at the centre of the data, exponents
as they are; losses are divided by their geometric mean first. `natural` turns them back.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from k3ablate.config import InputError

Array = NDArray[np.float64]

# Exponents of loss curves in print lie between .03 and .5; outside this range a fit is at a bound and says so.
EXPONENT_RANGE = (1e-4, 3.0)
LOG_COEFFICIENT_RANGE = (-30.0, 20.0)  # of a power term, relative to the losses at the centre of the data
VANISHED = -20.0  # below it, a power term is as good as not there
SMALL_START = np.exp(-10.0)  # of a coefficient that projection sets to zero: at its bound it could not come back


@dataclass(frozen=True)
class Term:
    """coefficient x variable^-exponent, or a constant where there is no exponent."""

    coefficient: str
    exponent: str | None = None
    variable: str = "compute"


@dataclass(frozen=True)
class Form:
    """A named sum of terms. `min_distinct`: fewest different inputs that are not taken as undetermined."""

    name: str
    formula: str
    terms: tuple[Term, ...]
    min_distinct: int

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the inputs, in the order of the columns of `x_NV`."""
        return tuple(dict.fromkeys(term.variable for term in self.terms if term.exponent))

    @property
    def coefficients(self) -> tuple[str, ...]:
        """Names of the linear parameters, one per term."""
        return tuple(term.coefficient for term in self.terms)

    @property
    def exponents(self) -> tuple[str, ...]:
        """Names of the exponents, without repetition."""
        return tuple(dict.fromkeys(term.exponent for term in self.terms if term.exponent))

    @property
    def parameters(self) -> tuple[str, ...]:
        """Coefficients, then exponents: the order of the scaled vector."""
        return self.coefficients + self.exponents

    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds of the scaled parameters, each [P]."""
        pairs = [LOG_COEFFICIENT_RANGE if term.exponent else (0.0, np.inf) for term in self.terms]
        pairs += [EXPONENT_RANGE] * len(self.exponents)
        lower_P, upper_P = np.array(pairs).T
        return lower_P, upper_P

    def design(self, exponents_GK: Array, x_NV: Array) -> Array:
        """Matrix [G, N, T] that multiplies the coefficients, for each row of exponents; `x_NV`: centred logarithms."""
        columns = [self._column(term, exponents_GK, x_NV) for term in self.terms]
        return np.stack(columns, axis=-1)

    def log_prediction(self, theta_SP: Array, x_NV: Array) -> tuple[Array, Array]:
        """ln L [S, N] and its derivative by the scaled parameters [S, N, P]."""
        # points lie last in memory, which makes every row one pass
        gradient_SPN = np.zeros((len(theta_SP), len(self.parameters), len(x_NV)))
        prediction_SN = np.zeros((len(theta_SP), len(x_NV)))
        for index, term in enumerate(self.terms):
            if term.exponent is None:
                prediction_SN += theta_SP[:, index, None]
                gradient_SPN[:, index] = 1.0
                continue
            exponent, x_N = self.parameters.index(term.exponent), x_NV[:, self._variable(term)]
            part_SN = np.exp(theta_SP[:, index, None] - theta_SP[:, exponent, None] * x_N)
            prediction_SN += part_SN
            gradient_SPN[:, index] = part_SN
            gradient_SPN[:, exponent] -= part_SN * x_N
        with np.errstate(divide="ignore", invalid="ignore"):
            gradient_SPN /= prediction_SN[:, None]
            return np.log(prediction_SN), gradient_SPN.swapaxes(1, 2)

    def scaled(self, coefficients_ST: Array, exponents_SK: Array) -> Array:
        """Scaled parameters [S, P] from coefficients and exponents at the centre of the data."""
        linear_ST = np.maximum(coefficients_ST, 0.0)
        for index, term in enumerate(self.terms):
            if term.exponent:
                linear_ST[:, index] = np.log(np.maximum(linear_ST[:, index], SMALL_START))
        return np.concatenate([linear_ST, exponents_SK], axis=-1)

    def natural(self, theta_SP: Array, centre_V: Array, log_scale: float) -> dict[str, Array]:
        """Parameter name -> values [S] in the units of the data, undoing the centring and the loss scale."""
        values = {name: theta_SP[:, index] for index, name in enumerate(self.parameters)}
        linear_ST = self._linear(theta_SP) * np.exp(log_scale)
        for index, term in enumerate(self.terms):
            shift = values[term.exponent] * centre_V[self._variable(term)] if term.exponent else 0.0
            values[term.coefficient] = linear_ST[:, index] * np.exp(shift)
        return values

    def predict(self, values: Mapping[str, Array] | Mapping[str, float], inputs: Array | float) -> Array:
        """Loss at each input, in the units the values were fitted in; several variables lie on the last axis."""
        inputs_V = np.asarray(inputs) if len(self.variables) > 1 else np.asarray(inputs)[..., None]
        parts = [
            values[term.coefficient]
            * (inputs_V[..., self._variable(term)] ** -values[term.exponent] if term.exponent else 1.0)
            for term in self.terms
        ]
        return np.asarray(sum(parts))

    def log_inputs(self, inputs: Array) -> Array:
        """Logarithms [N, V] of inputs [N] of one variable or [N, V]."""
        return np.log(inputs.reshape(len(inputs), len(self.variables)))

    def log_compute_at(self, values: Mapping[str, Array], loss: float | Array) -> Array:
        """ln of the compute at which each curve [S] reaches `loss` (one, or one each); infinite below its floor."""
        constants = [values[term.coefficient] for term in self.terms if term.exponent is None]
        powers = [(values[term.coefficient], values[term.exponent]) for term in self.terms if term.exponent]
        assert len(powers) == 1, "only a curve of one variable has an inverse"
        above = loss - np.asarray(sum(constants))
        with np.errstate(divide="ignore", invalid="ignore"):
            log_compute = (np.log(powers[0][0]) - np.log(above)) / powers[0][1]
        return np.where(above > 0, log_compute, np.inf)

    def _linear(self, theta_SP: Array) -> Array:
        """Coefficients [S, T] at the centre of the data, out of their logarithms."""
        linear_ST = theta_SP[:, : len(self.terms)].copy()
        for index, term in enumerate(self.terms):
            if term.exponent:
                linear_ST[:, index] = np.exp(linear_ST[:, index])
        return linear_ST

    def _column(self, term: Term, exponents_GK: Array, x_NV: Array) -> Array:
        if term.exponent is None:
            return np.ones((len(exponents_GK), len(x_NV)))
        exponent_G = exponents_GK[:, self.exponents.index(term.exponent)]
        return np.exp(-exponent_G[:, None] * x_NV[:, self._variable(term)])

    def _variable(self, term: Term) -> int:
        return self.variables.index(term.variable)


POWER = Form("power", "L = A C^-a", (Term("A", "a"),), min_distinct=2)
# Three values of compute determine E, A and a exactly, however many seeds stand at each: nothing is left to check them.
POWER_FLOOR = Form("power_floor", "L = E + A C^-a", (Term("E"), Term("A", "a")), min_distinct=4)

CURVES = {form.name: form for form in (POWER, POWER_FLOOR)}  # of compute, which multipliers are read from

# Hoffmann et al., arXiv 2203.15556, equation 2.
CHINCHILLA = Form(
    "chinchilla",
    "L = E + A/N^alpha + B/D^beta",
    (Term("E"), Term("A", "alpha", "params"), Term("B", "beta", "tokens")),
    min_distinct=6,
)

FORMS = CURVES | {CHINCHILLA.name: CHINCHILLA}


@dataclass(frozen=True)
class MultipliedForm(Form):
    """A form of compute in which compute is multiplied by a parameter m first: one arm of parallel curves."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Those of the form, then the multiplier."""
        return (*super().parameters, "m")

    def predict(self, values: Mapping[str, Array] | Mapping[str, float], inputs: Array | float) -> Array:
        """Loss at each compute."""
        return super().predict(values, np.asarray(inputs) * values["m"])

    def log_compute_at(self, values: Mapping[str, Array], loss: float | Array) -> Array:
        """ln of the compute at which each curve [S] reaches `loss` (one, or one each); infinite below its floor."""
        return super().log_compute_at(values, loss) - np.log(values["m"])


# One arm of curves that share parameters with those of other arms; all are fitted at once, see `shared`.
SHARED_FLOOR = MultipliedForm(
    "shared_floor", "L = E + A (m C)^-a, E, A and a common to all arms", (Term("E"), Term("A", "a")), min_distinct=3
)
SHARED_EXPONENT = Form(
    "shared_exponent", "L = E + A C^-a, E and a common to all arms", (Term("E"), Term("A", "a")), min_distinct=3
)
SHARED = {form.name: form for form in (SHARED_FLOOR, SHARED_EXPONENT)}


def form_named(name: str) -> Form:
    """The form of that name that one arm alone is fitted with; another name is an InputError with the known ones."""
    if name in SHARED:
        raise InputError(f"form: {name} fits all arms of a table at once (`k3ablate report --form {name}`), not one")
    if name not in FORMS:
        raise InputError(f"form: unknown form {name!r}; write one of {', '.join(FORMS)}")
    return FORMS[name]


def curve_named(name: str) -> Form:
    """The form of that name, also where it is one arm's part of a form that arms share."""
    return SHARED[name] if name in SHARED else form_named(name)
