"""The verb `fit` from the outside: anybody's columns, the same numbers everywhere, what is refused and what is said."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

import k3ablate
from k3ablate import cli, publishing
from k3ablate.answers import as_json
from k3ablate.config import InputError
from k3ablate.fits.analysis import analyse
from k3ablate.fits.forms import CHINCHILLA, POWER_FLOOR
from k3ablate.fits.resampling import MIN_POINTS
from k3ablate.fits.solve import LEAST_SQUARES
from k3ablate.fitting import DRAWS_SEED, Fitted, fit, point

PUBLISHED = Path(__file__).parents[1] / "analysis" / "published"
CHINCHILLA_CSV = PUBLISHED / "chinchilla_epoch.csv"
KIMI_LINEAR = pandas.read_csv(PUBLISHED / "kimi_linear_figure5.csv")
HEAVY = ("torch", "lightning", "mlflow", "datasets")
CONTRACT = {
    "arm", "form", "values", "objective", "delta", "num_points", "dropped", "converged_share", "clipped_share",
    "at_bounds", "intervals", "predictions", "warnings",
}  # fmt: skip
VALUES = {"E": 1.8, "A": 480.0, "B": 2100.0, "alpha": 0.35, "beta": 0.37}


def surface(num_sizes: int = 4, deviation: float = 0.0) -> pandas.DataFrame:
    """A table with other people's column names: models of every size trained on every number of tokens."""
    cells = [(n, d) for n in np.geomspace(1e8, 1e10, num_sizes) for d in np.geomspace(1e9, 1e12, num_sizes)]
    loss = CHINCHILLA.predict(VALUES, np.array(cells))
    noise = np.exp(deviation * np.random.default_rng(0).standard_normal(len(cells)))
    return pandas.DataFrame(cells, columns=["N", "D"]).assign(val=loss * noise, note="ok")


def floors() -> pandas.DataFrame:
    """Two arms of six sizes and two seeds, of compute in FLOPs."""
    generator, rows = np.random.default_rng(1), []
    for arm, factor in (("plain", 1.0), ("new", 1.3)):
        for size, compute in enumerate(np.geomspace(1e18, 1e22, 6)):
            for seed in (0, 1):
                loss = POWER_FLOOR.predict({"E": 1.7, "A": 400.0, "a": 0.14}, compute * factor)
                loss *= np.exp(0.001 * generator.standard_normal())
                rows.append({"arm": arm, "size": f"s{size}", "seed": seed, "flops": compute, "loss": float(loss)})
    return pandas.DataFrame(rows)


def crossing() -> pandas.DataFrame:
    """Two arms whose curves are not parallel."""
    table = floors()
    of_new = table["arm"] == "new"
    table.loc[of_new, "loss"] = 1.7 + 2.0 * (table.loc[of_new, "flops"] / 1e20) ** -0.25 * 0.5
    return table


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["fit", *arguments])
    seen = capsys.readouterr()
    return int(exit_.value.code or 0), seen.out, seen.err


CHINCHILLA_COMMAND = (str(CHINCHILLA_CSV), "--params", "params", "--tokens", "tokens", "--where", "used_in_fit=1")


def test_the_command_gives_a_list_of_fits_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *CHINCHILLA_COMMAND, "--predict", "1e9,2e10", "--predict", "7e10,1.4e12", "--json")
    assert (code, err) == (0, "")
    (found,) = json.loads(out)
    assert set(found) > CONTRACT
    assert (found["arm"], found["form"], found["num_points"], found["delta"]) == ("all", "chinchilla", 240, 1e-3)
    assert found["objective"] == pytest.approx(0.0010182740161, rel=1e-9)
    assert found["values"] == pytest.approx(
        {"E": 1.81722, "A": 477.826, "B": 2143.417, "alpha": 0.34731, "beta": 0.36717}, rel=2e-5
    )
    assert found["dropped"] == ["used_in_fit=1: 5 of 245 rows left out"]
    assert found["interval_method"] == "bootstrap over points, 1000 refits"
    assert found["intervals"]["E"]["low"] < 1.8172 < found["intervals"]["E"]["high"]
    inside, outside = found["predictions"]
    assert (inside["beyond"], inside["at"]) == (1.0, {"params": 1e9, "tokens": 2e10})
    assert [one["extrapolated"] for one in (inside, outside)] == [False, True]
    assert outside["beyond"] == pytest.approx(1.4e12 / 3.17754489e11)
    for one in (inside, outside):
        assert one["run_interval"]["low"] < one["interval"]["low"] < one["loss"] < one["interval"]["high"]
        assert one["interval"]["high"] < one["run_interval"]["high"]


def test_frames_and_files_and_text_have_the_same_numbers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = floors()
    table.to_parquet(tmp_path / "runs.parquet")
    table.to_csv(tmp_path / "runs.csv", index=False)
    answer = k3ablate.fit(table, "power_floor", predict=[(1e23,)])
    outputs = [run(capsys, str(tmp_path / name), "--form", "power_floor", "--predict", "1e23", "--json")[1]
               for name in ("runs.parquet", "runs.csv")]  # fmt: skip
    assert outputs[0] == outputs[1] == as_json(answer.fits) + "\n"
    _, text, _ = run(capsys, str(tmp_path / "runs.csv"), "--form", "power_floor", "--predict", "1e23")
    assert text == answer.text() + "\n"
    first = answer.fits[0]
    assert f"{first.values['a']:.6f}"[:7] in text
    assert f"loss {first.predictions[0].loss:.4f}" in text
    assert "extrapolated 10.0x" in text


def test_compute_is_in_flops_with_its_column_and_also_in_days() -> None:
    text = fit(floors(), "power_floor", predict=[(8.64e20,)]).text()
    assert "flops, measured 1e+18 (0.0116 PFLOP/s-days) to 1e+22 (116 PFLOP/s-days)" in text
    assert "FLOPs: column flops of the table" in text
    assert "at flops 8.64e+20 (10.0 PFLOP/s-days): loss" in text
    days = fit(KIMI_LINEAR, "power", by="series", x="pflop_s_days", predict=[(5.6,)]).text()
    assert "at pflop_s_days 5.6: loss" in days
    assert "(" not in days.split("pflop_s_days, measured ")[1].split(";")[0]
    assert "FLOPs: column pflop_s_days of the table" in days


def test_an_experiment_says_its_convention_and_its_baseline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(publishing, "runs", lambda name, root: (floors(), "new"))
    code, out, _ = run(capsys, "tiny", "--form", "shared_floor")
    assert code == 0
    assert f"FLOPs: {publishing.FLOPS_CONVENTION}" in out
    _, listed, _ = run(capsys, "tiny", "--form", "shared_floor", "--json")
    assert {one["arm"]: round(one["values"]["m"], 1) for one in json.loads(listed)} == {"plain": 0.8, "new": 1.0}


def test_residuals_of_the_loss_itself_give_the_curves_in_print() -> None:
    """Kimi Linear's report: 2.3092 C^-0.0536 and 2.2879 C^-0.0527, by least squares in plain loss."""
    found = fit(KIMI_LINEAR, "power", by="series", x="pflop_s_days", delta=LEAST_SQUARES, residuals="plain").fits
    assert [one.arm for one in found] == ["MLA", "Kimi Linear"]
    assert [round(one.values["A"], 4) for one in found] == [2.3091, 2.2879]
    assert [round(one.values["a"], 4) for one in found] == [0.0536, 0.0526]
    assert "half the sum of squares of residuals of L (least squares)" in found[0].text()
    plain = json.loads(as_json(found))[0]
    assert plain["delta"] is None  # JSON has no infinity; what is minimised is in words beside it
    assert plain["objective_of"].endswith("(least squares)")


def test_least_absolute_deviations_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *CHINCHILLA_COMMAND, "--delta", "0", "--json")
    (found,) = json.loads(out)
    assert found["objective"] == pytest.approx(1.1294947, abs=5e-8)
    assert found["objective_of"] == "sum of the sizes of residuals of ln L (least absolute deviations)"


@pytest.mark.parametrize(
    ("table", "columns", "form", "reason"),
    [
        (floors(), {}, "power_floor", "every arm determines its floor"),
        (floors().query("size < 's3'"), {}, "power", "power, because of new: power_floor: undetermined"),
        (surface(), {"params": "N", "tokens": "D", "y": "val"}, "chinchilla", "columns of parameters or tokens are"),
        (
            surface().rename(columns={"N": "active_params", "D": "tokens", "val": "loss"}),
            {},
            "chinchilla",
            "the table has no column flops",
        ),
    ],
)
def test_the_form_where_none_is_asked_for(
    table: pandas.DataFrame, columns: dict[str, str], form: str, reason: str
) -> None:
    found = fit(table, **columns)  # type: ignore[arg-type]
    assert {one.form for one in found.fits} == {form}
    assert reason in found.notes[0]


@pytest.mark.parametrize("form", ["shared_floor", "shared_exponent"])
def test_forms_that_arms_share_have_an_entry_per_arm(form: str) -> None:
    plain, new = fit(floors(), form, predict=[(1e20,)]).fits
    assert [plain.values[name] for name in ("E", "a")] == [new.values[name] for name in ("E", "a")]
    assert plain.intervals["E"] == new.intervals["E"]
    assert (plain.objective, plain.num_points) == (new.objective, 24)
    assert new.predictions[0].loss < plain.predictions[0].loss
    if form == "shared_floor":
        assert plain.values["m"] == 1.0
        assert new.values["m"] == pytest.approx(1.3, rel=0.05)
        assert new.intervals["m"].contains(1.3)
        assert fit(floors(), form, baseline="new").fits[0].values["m"] == pytest.approx(1 / new.values["m"], rel=1e-4)


def test_a_shared_form_that_the_arms_reject_says_so_and_withholds_its_multiplier() -> None:
    table = crossing()
    found = fit(table, "shared_floor", predict=[(1e20,)])
    for one in found.fits:
        assert any(
            "`k3ablate fit TABLE --form shared_floor --baseline ARM` gives m(C)" in text for text in one.warnings
        )
        assert one.multiplier is None
        assert set(one.values) == set(one.intervals) == {"E", "A", "a"}
        assert one.predictions[0].loss > 1
    assert "m" not in json.loads(as_json(found))["fits"][1]["values"]
    assert "shared_floor is rejected" in found.text()
    assert not any("rejected" in text for one in fit(floors(), "shared_floor").fits for text in one.warnings)
    own = fit(table, "shared_exponent").fits[1]
    assert any(text.startswith("shared_exponent is rejected") for text in own.warnings)
    assert not any("withheld" in text for text in own.warnings)


@pytest.mark.parametrize("form", ["power", "power_floor", None])
def test_a_baseline_gives_every_other_arm_the_multiplier_that_reports_read(
    form: str | None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = floors()
    table.rename(columns={"arm": "model", "flops": "C", "loss": "val"}).to_csv(tmp_path / "runs.csv", index=False)
    asked = ("--by", "model", "--x", "C", "--y", "val", "--baseline", "plain", *(("--form", form) if form else ()))
    _, listed, _ = run(capsys, str(tmp_path / "runs.csv"), *asked, "--json")
    plain, new = json.loads(listed)
    assert plain["multiplier"] is None
    found = new["multiplier"]
    expected = analyse(table, "plain", form, np.random.default_rng(DRAWS_SEED)).arm("new")
    assert expected.multiplier is not None
    assert expected.paired is not None
    assert (found["value"], found["loss"], found["p_value"], found["holm_p_value"]) == pytest.approx(
        (expected.multiplier.value, expected.multiplier.loss, expected.multiplier.p_value, expected.holm_p_value)
    )
    assert found["interval"]["low"] < found["value"] < found["interval"]["high"]
    assert found["paired"]["value"] == pytest.approx(expected.paired.value)
    assert (found["form"], found["measured"], found["beyond"], found["none"]) == (new["form"], True, 1.0, "")
    assert 0 < found["held_out_own"] < 0.2
    assert len(found["curve"]) == 25
    _, text, _ = run(capsys, str(tmp_path / "runs.csv"), *asked)
    assert text.count("multiplier against plain: ") == 1
    assert f"multiplier against plain: {expected.multiplier.value:.2f} (" in text
    assert f"paired, by 12 runs of equal size and seed: {expected.paired.value:.2f} (" in text
    assert "left out of the fits, is off by" in text


@pytest.mark.parametrize("form", ["power_floor", "shared_floor"])
def test_curves_that_are_not_parallel_have_a_multiplier_per_compute(form: str) -> None:
    found = fit(crossing(), form, baseline="plain", num_draws=50)
    multiplier = found.fits[1].multiplier
    assert multiplier is not None
    assert multiplier.one_exponent_rejected
    assert (multiplier.value is None) == ("is rejected" in multiplier.none) == (form == "shared_floor")
    assert multiplier.curve[0]["multiplier"] < 1 < multiplier.curve[-1]["multiplier"]
    assert found.text().count("m(C) at ") == 5
    assert fit(floors(), form, baseline="plain", num_draws=50).text().count("m(C) at ") == 0


def test_an_arm_with_the_levels_of_the_baseline_is_its_check() -> None:
    table, repeated = floors(), floors().query("arm == 'plain'")
    other = np.exp(0.001 * np.random.default_rng(5).standard_normal(len(repeated)))
    again = repeated.assign(arm="again", seed=repeated["seed"] + 2, loss=repeated["loss"] * other)
    table = pandas.concat([table, again], ignore_index=True)
    table["attention"] = np.where(table["arm"] == "new", "kda", "softmax")
    found = {one.arm: one for one in fit(table, "power_floor", baseline="plain", num_draws=200).fits}
    new, check = found["new"].multiplier, found["again"].multiplier
    assert new is not None
    assert check is not None
    assert (new.repeats_baseline, check.repeats_baseline) == (False, True)
    assert (new.holm_p_value is None, check.holm_p_value) == (False, None)
    assert "A/A check: it repeats plain, and its interval contains 1" in found["again"].text()
    assert "A/A check" not in found["new"].text()


def test_an_arm_without_a_curve_says_why_it_has_no_multiplier() -> None:
    table = floors().assign(status="finished", reason="")
    table.loc[table["arm"] == "new", ["status", "reason", "loss"]] = ["diverged", "NaN", np.nan]
    text = fit(table, "power", baseline="plain", num_draws=20).fits[1].text()
    assert "no curve: no run finished" in text
    assert "multiplier against plain: none: " in text


def test_multipliers_across_tokenizers_are_refused() -> None:
    table = floors().rename(columns={"arm": "tokenizer"})
    assert len(fit(table, "power", by="tokenizer", num_draws=20).fits) == 2
    with pytest.raises(InputError, match="baseline: losses of more than one tokenizer do not compare"):
        fit(table, "power", by="tokenizer", baseline="plain", num_draws=20)


def test_a_curve_that_arms_share_is_not_called_one_per_arm() -> None:
    assert (
        fit(floors(), "shared_floor", num_draws=20).notes[1]
        == "all arms fitted together, E, A and a common to all arms"
    )


def test_a_baseline_without_a_finished_run_is_asked_for() -> None:
    third = floors().query("arm == 'new'").assign(arm="third")
    table = pandas.concat([floors(), third], ignore_index=True).assign(status="finished", reason="")
    table.loc[table["arm"] == "plain", ["status", "reason", "loss"]] = ["diverged", "loss above 30", np.nan]
    with pytest.raises(InputError, match=r"no run of plain finished, .* write --baseline with one of new, third"):
        fit(table, "shared_floor", num_draws=50)
    assert [one.values.get("m") for one in fit(table, "shared_floor", baseline="third", num_draws=50).fits][2] == 1.0
    assert [bool(one.refused) for one in fit(table, "shared_exponent", num_draws=50).fits] == [True, False, False]


def test_where_intervals_come_from() -> None:
    assert "noise from spread over seeds, 12 degrees of freedom" in fit(floors(), "power").fits[0].interval_method
    few = surface(5, 0.002)
    columns = {"params": "N", "tokens": "D", "y": "val"}
    assert "noise from residuals" in fit(few, **columns).fits[0].interval_method  # type: ignore[arg-type]
    many = surface(10, 0.002)
    assert len(many) == MIN_POINTS
    assert "bootstrap over points" in fit(many, num_draws=50, **columns).fits[0].interval_method  # type: ignore[arg-type]
    asked = fit(many, num_draws=50, intervals="noise", **columns)  # type: ignore[arg-type]
    assert "noise from residuals" in asked.fits[0].interval_method


def test_a_few_repeated_points_of_a_large_table_are_not_its_noise() -> None:
    table = surface(10, 0.002)
    again = table.iloc[:2].assign(val=lambda rows: rows["val"] * 1.001)
    repeated = pandas.concat([table, again], ignore_index=True)
    found = fit(repeated, params="N", tokens="D", y="val", num_draws=50)
    assert "bootstrap over points" in found.fits[0].interval_method


def test_unfinished_runs_are_dropped_with_their_reason() -> None:
    table = floors().assign(status="finished", reason="")
    table.loc[3, ["status", "reason", "loss"]] = ["diverged", "loss above 30 at step 12", np.nan]
    found = fit(table, "power_floor", where=["size!=s5"]).fits[0]
    assert found.dropped == ("size!=s5: 4 of 24 rows left out", "s1 seed 1: diverged (loss above 30 at step 12)")
    assert found.num_points == 9
    assert "dropped: s1 seed 1: diverged (loss above 30 at step 12)" in found.text()


def test_an_arm_without_a_curve_keeps_its_place_and_says_why() -> None:
    table = floors().assign(status="finished", reason="")
    of_new = table["arm"] == "new"
    table.loc[of_new, ["status", "reason", "loss"]] = ["diverged", "NaN", np.nan]
    plain, new = fit(table, "power_floor").fits
    assert plain.refused == ""
    assert new.refused.startswith("no run finished, so there is nothing to fit: s0 seed 0: diverged (NaN); s0 seed 1")
    assert (new.values, new.objective, new.num_points) == ({}, None, 0)
    assert "no curve: no run finished" in new.text()
    assert len(new.dropped) == 12


def test_a_fit_at_a_bound_keeps_its_warning_everywhere() -> None:
    compute = np.geomspace(1e18, 1e22, 8)
    bent = np.exp(3 - 0.05 * np.log(compute / 1e18) - 0.005 * np.log(compute / 1e18) ** 2)
    found = fit(pandas.DataFrame({"flops": compute, "loss": bent}), "power_floor")
    (fitted,) = found.fits
    assert fitted.at_bounds == ("E",)
    assert "warning: E at a bound: this form does not suit the points" in found.text()
    assert "E at a bound: this form does not suit the points" in json.loads(as_json(found.fits))[0]["warnings"]


def test_the_table_itself_is_not_changed() -> None:
    table = surface()
    before = table.copy()
    fit(table, params="N", tokens="D", y="val")
    pandas.testing.assert_frame_equal(table, before)


TWENTY = surface().assign(D=lambda table: 20 * table["N"] * np.linspace(0.999, 1.001, len(table)))


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (surface().assign(D=1e11), {}, r"cannot tell E, B, beta apart.*rank 3 of 5; tokens has 1 different value"),
        (surface().assign(N=1e9), {}, r"cannot tell E, A, alpha apart.*params has 1 different value"),
        (TWENTY, {}, r"alpha, beta apart.*all have 20 to 20 tokens per param.*reduced form power_floor over compute"),
        (surface().assign(N=1e9, D=1e11), {}, "one size, no curve"),
        (surface().head(5), {}, "5 points for 5 free parameters; add sizes or seeds"),
        (surface().assign(status="diverged", reason="NaN"), {}, "no run finished, so there is nothing to fit"),
        (surface().assign(digest="a"), {}, "digest a stands 16 times"),
        (surface().assign(val=lambda t: t["val"].where(t.index != 7, -1.0)), {}, "row 8 .* val -1.0; a positive"),
        (surface().assign(val=lambda t: t["val"].where(t.index != 7, 0.0)), {}, r"row 8 of .* finished with val 0.0"),
        (surface().assign(D=lambda t: t["D"].where(t.index != 7)), {}, "row 8 of .* D nan; .*--where keeps other"),
        (surface().assign(N=lambda t: t["N"].where(t.index != 7, np.inf)), {}, "row 8 of .* finished with N inf"),
        (surface().assign(val=lambda t: t["val"].astype(object).where(t.index != 7, "x")), {}, "row 8 .* with val x"),
        (surface().assign(validation=["a", *["b"] * 15]), {}, r"2 values of validation \(a, b\).*--where validation=a"),
        (surface().assign(corpus=["a", *["b"] * 15]), {}, r"2 values of corpus \(a, b\)"),
        (surface().assign(metric=["nats", *["bits"] * 15]), {}, r"2 values of metric \(bits, nats\)"),
        (surface().assign(loss_unit=["nats", *["bits"] * 15]), {}, r"2 values of loss_unit \(bits, nats\)"),
        (surface().assign(status="COMPLETED"), {}, "row 1 of the data: status 'COMPLETED'; write one of diverged"),
        (surface(), {"params": "n"}, r"no column 'n' for params; it has N, D, val, note"),
        (surface(), {"form": "power"}, "no column flops; it has .*; name the column of compute .--x COLUMN."),
        (surface(), {"baseline": "all"}, "baseline: chinchilla has no compute to multiply; write --form power_floor"),
        (surface(), {"form": "chinchila"}, "unknown form 'chinchila'; write one of power, power_floor, chinchilla"),
        (surface(), {"delta": -1.0}, "--delta -1.0: write a positive number, inf for least squares, or 0"),
        (surface(), {"delta": math.nan}, "--delta nan"),
        (surface(), {"intervals": "resampling"}, f"16 points; from fewer than {MIN_POINTS} it gives intervals"),
        (surface(), {"predict": [(1e9,)]}, "--predict 1e[+]09: chinchilla takes one number for each of params, tokens"),
        (surface(), {"predict": [(1e9, 0.0)]}, "--predict 1e[+]09,0: write positive numbers"),
        (surface(), {"where": ["N>1e12"]}, "--where N>1e12: keeps none of 16 rows"),
    ],
)  # fmt: skip
def test_refusals_teach(table: pandas.DataFrame, options: dict[str, object], message: str) -> None:
    asked = {"params": "N", "tokens": "D", "y": "val"} | options
    with pytest.raises(InputError, match=message):
        fit(table, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "shared_floor", "intervals": "resampling"}, "fitted in ln L, with intervals of the noise model"),
        ({"form": "shared_floor", "residuals": "plain"}, "fitted in ln L, with intervals of the noise model"),
        ({"form": "shared_floor", "baseline": "plane"}, "no arm 'plane' in the table; did you mean 'plain'"),
        ({"form": "shared_floor", "where": ["arm=new"]}, "shared_floor: needs finished runs of new and of another arm"),
    ],
)
def test_what_shared_forms_refuse(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit(floors(), **options)  # type: ignore[arg-type]


def test_wrong_input_is_one_message_and_exit_code_two(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    TWENTY.to_csv(tmp_path / "runs.csv", index=False)
    named = ("--params", "N", "--tokens", "D", "--y", "val")
    code, out, err = run(capsys, str(tmp_path / "runs.csv"), *named)
    assert (code, out) == (2, "")
    assert "cannot tell A, B, alpha, beta apart" in err
    assert err.count("\n") == 1
    code, _, err = run(capsys, str(tmp_path / "runs.csv"), *named, "--predict", "1e9;2e10")
    assert (code, "write a compute, or parameters,tokens for chinchilla: 1e9,2e10" in err) == (2, True)
    code, _, err = run(capsys, str(tmp_path / "none.csv"))
    assert (code, "no such table" in err) == (2, True)


def test_points_are_read_as_they_are_typed() -> None:
    assert point("1e9,2e10") == (1e9, 2e10)
    assert point(" 5.6 ") == (5.6,)
    with pytest.raises(InputError, match="--predict a,1: write a compute"):
        point("a,1")


@pytest.mark.slow
def test_no_training_library_is_in_the_process() -> None:
    program = (
        "import sys\nfrom k3ablate import cli\n"
        "try:\n    cli.main(sys.argv[1:])\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", program, "fit", *CHINCHILLA_COMMAND, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout)[0]["form"] == "chinchilla"
    assert done.stderr == "[]\n"


def test_the_package_is_there_before_pandas_is() -> None:
    program = "import sys, k3ablate; print('pandas' in sys.modules, 'scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False False\n"
    assert isinstance(fit(floors(), "power"), Fitted)
    with pytest.raises(AttributeError, match="has no attribute 'fitt'"):
        _ = k3ablate.fitt  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "powr"}, "unknown form 'powr'; write one of power, .*chinchilla, shared_floor, shared_exponent"),
        ({"form": ""}, "unknown form ''"),
        ({"form": "power", "baseline": "nope"}, "baseline: no arm 'nope' in the table"),
        ({"baseline": ""}, "baseline: no arm '' in the table; write one of plain, new"),
        ({"baseline": "plain", "residuals": "plain"}, "curves fitted in ln L; leave out --residuals plain"),
        ({"params": "seed"}, r"no column tokens; it has arm, .*; name the column of tokens .--tokens COLUMN."),
        ({"form": "power", "y": "arm"}, "with arm plain; a positive, finite number in the loss column arm is needed"),
        ({"x": "loss"}, "column 'loss' is named for loss and for compute"),
    ],
)
def test_what_is_asked_for_is_not_ignored(options: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit(floors(), **options)  # type: ignore[arg-type]


def test_every_fit_of_the_list_says_why_its_form_and_what_holds_for_all() -> None:
    found = fit(floors(), num_draws=20)
    for one in json.loads(as_json(found.fits)):
        assert [f"form: {one['form_reason']}", *one["notes"]] == list(found.notes)
        assert (one["form_reason"], one["notes"]) == (
            "power_floor: every arm determines its floor",
            ["one curve per arm"],
        )


def test_losses_that_do_not_fall_are_not_measured_in_rounding() -> None:
    found = fit(floors().assign(loss=3.0), "power", num_draws=20)
    assert not [text for one in found.fits for text in one.warnings if "times further" in text]


@pytest.mark.parametrize("form", [None, "power", "shared_floor"])
def test_the_order_of_rows_changes_no_digit(form: str | None) -> None:
    table = floors()
    answers = [
        {one["arm"]: one for one in json.loads(as_json(fit(rows, form, baseline="plain", num_draws=20).fits))}
        for rows in (table, table.iloc[::-1], table.sample(frac=1, random_state=1))
    ]
    assert answers[0] == answers[1] == answers[2]


def test_a_folder_named_like_a_table_is_no_matter_of_the_runs_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "runs.csv").mkdir()
    code, _, err = run(capsys, str(tmp_path / "runs.csv"))
    assert code == 2
    assert "is a folder; name the table in it" in err
    assert "K3ABLATE_RUNS" not in err
