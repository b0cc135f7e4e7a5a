"""The verb `split` over tables: planted truths, other people's columns, partial designs, how often intervals hold."""

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

import k3ablate
from k3ablate.answers import as_json
from k3ablate.cli import main
from k3ablate.config import InputError
from k3ablate.fits.attribution import TOGETHER
from k3ablate.fits.split import coalitions, first_in, interactions, last_in, shapley
from k3ablate.fits.uncertainty import Noise, percentile_interval
from k3ablate.records import read_table
from k3ablate.splitting import split

COMPONENTS = ("attention", "residual", "feed_forward", "balancing")
GAINS = {"attention": 0.4, "residual": 0.25, "feed_forward": 0.15, "balancing": 0.0}
INTERACTION = -0.12  # of attention and residual
SHAPLEY = GAINS | {"attention": 0.4 + INTERACTION / 2, "residual": 0.25 + INTERACTION / 2}
EXPONENT = 0.09


def gain(coalition: frozenset[str]) -> float:
    return sum(GAINS[name] for name in coalition) + INTERACTION * ({"attention", "residual"} <= coalition)


def planted(num_sizes: int = 3, num_seeds: int = 2, deviation: float = 0.002, seed: int = 0) -> pandas.DataFrame:
    """The full factorial of four components with an A/A arm; runs of one seed share two thirds of their variance."""
    generator = np.random.default_rng(seed)
    compute, rows = np.geomspace(1e17, 1e20, num_sizes), []
    common = {kind: generator.standard_normal((num_sizes, num_seeds)) for kind in ("arms", "a/a")}
    arms = [("".join(f"+{name}" for name in COMPONENTS if name in c) or "k2", c) for c in coalitions(COMPONENTS)]
    for arm, coalition in [*arms, ("a/a", frozenset[str]())]:
        shared = common["a/a" if arm == "a/a" else "arms"]
        noise = deviation * (np.sqrt(2 / 3) * shared + np.sqrt(1 / 3) * generator.standard_normal(shared.shape))
        levels = {name: "k3" if name in coalition else "k2" for name in COMPONENTS}
        for size, number in itertools.product(range(num_sizes), range(num_seeds)):
            loss = 30 * (compute[size] * np.exp(gain(coalition))) ** -EXPONENT * np.exp(noise[size, number])
            label = {"arm": arm, "size": f"s{size}", "seed": number + 10 * (arm == "a/a")}
            rows.append(label | {"loss": loss, "flops": compute[size]} | levels)
    return pandas.DataFrame(rows)


def only(table: pandas.DataFrame, *arms: str) -> pandas.DataFrame:
    return table[table["arm"].isin(["k2", "a/a", *arms])]


FULL = "".join(f"+{name}" for name in COMPONENTS)


def test_without_noise_the_planted_parts_come_back() -> None:
    found = split(planted(deviation=0.0), baseline="k2", num_draws=20)
    assert (found.baseline, found.split.target, found.split.method) == ("k2", FULL, "shapley")
    for part in found.split.parts:
        assert part.effect.log == pytest.approx(SHAPLEY[part.name], abs=1e-5)
    by_pair = {frozenset((pair.first, pair.second)): pair.effect for pair in found.split.pairs}
    for pair, interaction in by_pair.items():
        expected = INTERACTION if pair == {"attention", "residual"} else 0.0
        assert interaction is not None
        assert interaction.log == pytest.approx(expected, abs=1e-5)
    assert found.extrapolated == {}


def test_planted_parts_lie_near_their_intervals_and_the_repeat_holds_one() -> None:
    found = split(planted(num_seeds=3), num_draws=400)
    for part in found.split.parts:
        interval = part.effect.log_interval
        assert interval is not None
        # twice the half-width misses once in ten thousand; how often the interval itself misses is counted below
        assert abs(part.effect.log - SHAPLEY[part.name]) < interval.high - interval.low
    assert found.split.whole is not None
    assert sum(part.effect.log for part in found.split.parts) == pytest.approx(found.split.whole.log, abs=1e-12)
    assert math.prod(part.effect.factor for part in found.split.parts) == pytest.approx(found.split.whole.factor)
    (check,) = found.checks
    assert (check.arm, check.repeats, check.contains_one) == ("a/a", "k2", True)


def test_json_holds_the_same_numbers_as_the_answer() -> None:
    found = split(planted(), num_draws=50, total=2.5)
    read = json.loads(as_json(found))
    assert [part["effect"]["log"] for part in read["split"]["parts"]] == [p.effect.log for p in found.split.parts]
    assert read["split"]["parts"][-1]["name"] == "unattributed"
    assert read["loss"] == found.loss
    assert read["flops_convention"] == "column flops of the table"
    assert read["checks"][0]["contains_one"] in (True, False)


def test_same_table_same_numbers() -> None:
    assert split(planted(), num_draws=50) == split(planted(), num_draws=50)


def test_order_of_rows_moves_no_estimate() -> None:
    table = planted()
    first = split(table, baseline="k2", target=FULL, num_draws=20)
    second = split(table.iloc[::-1], baseline="k2", target=FULL, num_draws=20)
    logs = {part.name: part.effect.log for part in second.split.parts}
    assert {part.name: part.effect.log for part in first.split.parts} == pytest.approx(logs, rel=1e-6, abs=1e-9)


def test_one_at_a_time_has_first_in_and_one_remainder() -> None:
    found = split(only(planted(), FULL, *(f"+{name}" for name in COMPONENTS)), num_draws=100)
    assert found.split.method == "first in"
    assert found.split.parts[-1].name == TOGETHER
    assert found.split.parts[-1].effect.log_interval is not None
    assert found.split.parts[-1].effect.log_interval.contains(INTERACTION)
    assert "no Shapley values, which need all 16 arms" in found.text()


def test_diverged_arms_are_named_with_what_is_lost() -> None:
    table = planted().assign(status="finished", reason="")
    table.loc[table["arm"] == "+residual", ["status", "reason", "loss"]] = ["diverged", "loss above 30", np.nan]
    found = split(table, num_draws=50)
    assert found.split.method == "pairwise"
    text = found.text()
    assert "+residual is missing: no run of this arm finished; lost: first in of residual, the Shapley values" in text
    assert "+residual s0 seed 0: diverged: loss above 30" in text


def test_a_stated_point_is_where_it_is_read() -> None:
    at_loss = split(planted(), at_loss=0.6, num_draws=20)
    assert at_loss.loss == 0.6
    at_flops = split(planted(), at_flops=1e21, num_draws=20)
    assert at_flops.compute == pytest.approx(1e21)
    assert at_flops.extrapolated["k2"] == pytest.approx(10.0)
    assert "extrapolated for 17 of 17 arms" in at_flops.text()
    with pytest.raises(InputError, match="state one of them"):
        split(planted(), at_loss=0.6, at_flops=1e21, num_draws=20)


def test_another_target_is_split_by_its_own_components() -> None:
    found = split(planted(), target="+attention+residual", num_draws=50)
    assert [part.name for part in found.split.parts] == ["attention", "residual"]
    assert found.split.method == "shapley"


def test_anybodys_columns_with_numbers_for_levels_and_no_arms() -> None:
    table = planted()
    table = table[table["arm"] != "a/a"].drop(columns="arm").rename(columns={"loss": "nats", "flops": "C"})
    table = table.assign(**{name: (table[name] == "k3").astype(int) for name in COMPONENTS})
    found = split(table.assign(note="tried twice"), components=COMPONENTS[:2], x="C", y="nats",
                  where=["feed_forward=0", "balancing=0"], num_draws=50)  # fmt: skip
    assert found.baseline == "attention=0, residual=0"
    assert found.split.target == "attention=1, residual=1"
    assert found.split.method == "shapley"
    assert found.left_out == (
        "feed_forward=0: 48 of 96 rows left out", "balancing=0: 24 of 48 rows left out",
    )  # fmt: skip
    assert "FLOPs: column C of the table" in found.text()


def test_published_series_are_the_component() -> None:
    """Kimi Linear against MLA: one component, whose multiplier at one loss is the whole."""
    table = pandas.read_csv(Path(__file__).parents[1] / "analysis" / "published" / "kimi_linear_figure5.csv")
    found = split(table, by="series", x="pflop_s_days", components=["series"], num_draws=200)
    assert (found.baseline, found.split.target) == ("MLA", "Kimi Linear")
    (part,) = found.split.parts
    assert part.effect.factor_interval is not None
    assert part.effect.factor_interval.contains(1.16)
    assert found.split.whole == part.effect
    assert "interaction" not in found.text()


@pytest.mark.parametrize(
    ("components", "message"),
    [
        (["atention"], "--component atention: no such column; the table has arm, size"),
        (["seed"], "--component seed: every table of runs has this column; copy it under another name"),
        (["rung"], r"--component rung: arm k2 has several levels \(s0, s1, s2\)"),
        (["gap"], "--component gap: row 1 of the data has no level"),
    ],
)
def test_wrong_components_are_refused(components: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        split(planted().assign(gap=None, rung=planted()["size"]), components=components, num_draws=20)


def test_a_named_component_is_not_credited_with_what_others_change() -> None:
    """Of the full factorial only the arm that changes attention alone, and the repeat, say what attention gains."""
    found = split(planted(deviation=0.0), components=["attention"], num_draws=20)
    assert found.split.target == "+attention"
    assert [part.effect.log for part in found.split.parts] == pytest.approx([GAINS["attention"]], abs=1e-5)
    assert [check.arm for check in found.checks] == ["a/a"]
    (sentence,) = found.left_out
    assert sentence.startswith("left out, because residual, feed_forward, balancing change too: +residual, ")
    assert sentence.count("+attention") == 7  # with every set of the other three but the empty one
    assert found.left_out[0] in found.text()


@pytest.mark.parametrize("target", [None, "+attention+residual"])
def test_components_that_never_change_alone_are_refused(target: str | None) -> None:
    table = only(planted(), "+attention+residual")
    with pytest.raises(InputError, match=r"--component attention: .* differs from k2 in residual too.*--where"):
        split(table, components=["attention"], target=target, num_draws=20)
    with pytest.raises(InputError, match="in residual too"):
        split(planted(), components=["attention"], target="+attention+residual", num_draws=20)
    assert split(table.drop(columns="residual"), components=["attention"], num_draws=20).left_out == ()


def test_a_table_without_components_names_the_option() -> None:
    with pytest.raises(InputError, match="--component"):
        split(planted().drop(columns=list(COMPONENTS)), num_draws=20)


def files(folder: Path) -> list[str]:
    table = planted()
    table.to_csv(folder / "runs.csv", index=False)
    table.to_parquet(folder / "runs.parquet", index=False)
    return [str(folder / "runs.csv"), str(folder / "runs.parquet")]


@pytest.mark.slow
def test_the_command_loads_no_training_library(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom k3ablate.cli import main\nfor table in {files!r}:\n    try:\n        main(['split', table])\n"
        "    except SystemExit as stop:\n        print('exit', stop.code, {heavy!r} & set(sys.modules))"
    ).format(files=files(tmp_path), heavy={"torch", "lightning", "mlflow", "datasets", "numba", "matplotlib"})
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.count("exit 0 set()") == 2
    assert result.stdout.count("Shapley (95 %)") == 2


def test_the_command_gives_the_numbers_of_the_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = files(tmp_path)[0]
    with pytest.raises(SystemExit) as stop:
        main(["split", table, "--target", "+attention+residual", "--at-loss", "0.6", "--total", "2", "--json",
              "--where", "size!=s9", "--component", "attention", "--component", "residual"])  # fmt: skip
    assert stop.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    expected = k3ablate.split(
        read_table(Path(table)), target="+attention+residual", at_loss=0.6, total=2.0, where=["size!=s9"],
        components=["attention", "residual"],
    )  # fmt: skip
    assert printed == json.loads(as_json(expected))
    assert printed["split"]["parts"][-1]["name"] == "unattributed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--baseline", "k22"], "baseline: no arm 'k22' in the table; did you mean 'k2'? write one of "),
        (
            ["--target", "+atention"],
            "target: no arm '+atention' in the table; did you mean '+attention'? write one of ",
        ),
        (["--form", "cubic"], "form: unknown form 'cubic'"),
        (["--component", "size"], "--component size: every table of runs has this column"),
    ],
)
def test_wrong_calls_are_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["split", files(tmp_path)[0], *arguments])
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def covered(num_tables: int, num_draws: int) -> dict[str, float]:
    """Share of planted factorial tables (3 sizes, 2 seeds) whose intervals hold the truth, by kind of number.

    The curve of every arm is least squares on ln L in closed form, to which the solver's are compared elsewhere.
    """
    generator, subsets = np.random.default_rng(7), coalitions(COMPONENTS)
    log_compute, num_seeds = np.log(np.geomspace(1.0, 1000.0, 3)), 2
    x = np.repeat(log_compute, num_seeds)
    solve = np.linalg.pinv(np.stack([np.ones_like(x), -x], axis=1))
    log_loss = np.array([-EXPONENT * (x + gain(subset)) for subset in subsets]).ravel()
    at_log_loss, hits = -EXPONENT * log_compute[-1], dict.fromkeys(TRUTHS, 0.0)
    keys = [(size, seed) for _ in subsets for size in range(3) for seed in range(num_seeds)]

    def read(log_loss_DN: np.ndarray) -> np.ndarray:
        """ln m [arms, D] from losses of all arms."""
        offset, exponent = np.moveaxis(log_loss_DN.reshape(len(log_loss_DN), len(subsets), -1) @ solve.T, -1, 0)
        log_reached = ((offset - at_log_loss) / exponent).T
        return log_reached[0] - log_reached

    for _ in range(num_tables):
        seen = log_loss + 0.003 * generator.standard_normal(len(log_loss))
        pairs = seen.reshape(-1, num_seeds)
        square, degrees = float(((pairs - pairs.mean(axis=1, keepdims=True)) ** 2).sum()) / len(pairs), len(pairs)
        noise = Noise("seeds", math.sqrt(square), degrees, square, degrees, 0.0, 0, 1.0)
        fitted = (seen.reshape(len(subsets), -1) @ solve.T @ np.stack([np.ones_like(x), -x])).ravel()
        log_m = np.concatenate([read(seen[None]), read(fitted + noise.draw(keys, num_draws, generator))], axis=1)
        for kind, (values, truths) in found_and_true(dict(zip(subsets, log_m, strict=True))).items():
            inside = [
                percentile_interval(value[1:]).contains(truth) for value, truth in zip(values, truths, strict=True)
            ]
            hits[kind] += float(np.mean(inside))
    return {kind: share / num_tables for kind, share in hits.items()}


TRUTHS = ("shapley", "interaction", "first in", "last in", "total")


def found_and_true(values: dict[frozenset[str], np.ndarray]) -> dict[str, tuple[list[np.ndarray], list[float]]]:
    everything = frozenset(COMPONENTS)
    pairs = interactions(values, COMPONENTS)
    first = [first_in(values, name) for name in COMPONENTS]
    last = [last_in(values, name, everything) for name in COMPONENTS]
    return {
        "shapley": (list(shapley(values, COMPONENTS).values()), list(SHAPLEY.values())),
        "interaction": (
            list(pairs.values()), [INTERACTION if pair == {"attention", "residual"} else 0.0 for pair in pairs],
        ),
        "first in": ([value for value in first if value is not None], list(GAINS.values())),
        "last in": (
            [value for value in last if value is not None],
            [gain(everything) - gain(everything - {name}) for name in COMPONENTS],
        ),
        "total": ([values[everything]], [gain(everything)]),
    }  # fmt: skip


def test_intervals_cover_as_often_as_they_say() -> None:
    for kind, rate in covered(num_tables=1000, num_draws=250).items():
        assert 0.93 <= rate <= 0.97, kind


def test_a_header_without_rows_and_a_component_named_twice_are_refused() -> None:
    with pytest.raises(InputError, match="table: no rows"):
        split(planted().iloc[:0])
    with pytest.raises(InputError, match="--component attention: stands there twice"):
        split(planted(), components=["attention", "attention"])


@pytest.mark.parametrize("without", [[], ["+attention+residual"]])
def test_the_order_of_rows_changes_no_digit(without: list[str]) -> None:
    table = planted()
    table = table[~table["arm"].isin(without)]
    first, other = (
        json.loads(as_json(split(rows, baseline="k2", target=FULL, num_draws=20)))
        for rows in (table, table.sample(frac=1, random_state=1))
    )
    assert first["split"]["components"] == other["split"]["components"]
    assert first["split"]["pairs"] == other["split"]["pairs"]
    assert (first["loss"], first["checks"], first["beyond"]) == (other["loss"], other["checks"], other["beyond"])
