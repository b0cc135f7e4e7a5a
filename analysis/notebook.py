"""From a table of runs to fits, multipliers, the split and the figure, one step a cell.

    marimo edit analysis/notebook.py

Any table with the same columns does in the place of the demo's. All arithmetic is in `k3ablate.fits`, all looks are in
`k3ablate.report`; `k3ablate report` does these steps in one command.
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App()

with app.setup:
    import marimo as mo
    import numpy

    from k3ablate.fits.analysis import analyse
    from k3ablate.fits.split_analysis import split_analysis
    from k3ablate.records import read_table
    from k3ablate.report import markdown, split_table
    from k3ablate.report.figures import loss_picture
    from k3ablate.report.pictures import themed
    from k3ablate.report.style import LIGHT, factor, factor_range


@app.cell(hide_code=True)
def _():
    mo.md("""
    # What does each piece of Kimi K3 contribute?

    The demo trains K2's model, K3's, and K2's with one change at a time, at three sizes on one machine. A run is one
    row of a table; where a run did not finish, its loss is empty and its reason is told.
    """)
    return


@app.cell
def _():
    runs = read_table(mo.notebook_dir() / "results" / "demo" / "runs.csv")
    mo.ui.table(runs[["arm", "size", "seed", "status", "loss", "flops", "attention", "residual"]], selection=None)
    return (runs,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Fits

    `analyse` fits curves of loss against compute to every arm, draws the noise of the seeds again to get intervals,
    and chooses the form that the multipliers are read from. It says why.
    """)
    return


@app.cell
def _(runs):
    analysis = analyse(runs, "k2", None, numpy.random.default_rng(0))
    curves = [{"arm": arm.arm} | arm.fits[analysis.form].values for arm in analysis.arms]
    mo.vstack([mo.md(f"Form: {analysis.form_reason}"), mo.ui.table(curves, selection=None)])
    return (analysis,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The multiplier

    How many times more compute does K2 need for the same loss? It holds where it is read: at one loss, inside what both
    arms measured or outside, with an interval. An arm that repeats K2 must have an interval that contains 1.
    """)
    return


@app.cell
def _(analysis):
    multiplier = analysis.arm("k3").multiplier
    repeat = analysis.arm("a/a").multiplier
    print(f"k3 {multiplier.value!r} {multiplier.interval.low!r} {multiplier.interval.high!r}")
    mo.md(
        f"""
        k3: **{factor(multiplier.value)}** ({factor_range(multiplier.interval)}) at loss {multiplier.loss:.4f},
        {"measured" if multiplier.measured else "extrapolated"}; a/a: {factor_range(repeat.interval)}
        """
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The split

    ln m of K3 is a sum of one part per component and what they do together. One change at a time tells what each gains
    alone; Shapley values need all sixteen arms (`k3ablate run components`), and are not made up from fewer.
    """)
    return


@app.cell
def _(analysis):
    split = split_analysis(analysis)
    mo.md(markdown.render(split_table.sheet(split, (), "the runs of the demo")))
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The figure

    Every run, the fitted curves, and an arrow at equal loss. A picture carries its numbers: `picture.data`.
    """)
    return


@app.cell
def _(analysis):
    picture = loss_picture(analysis)
    with themed(LIGHT):
        figure = picture.draw(LIGHT)
    mo.as_html(figure)
    return


if __name__ == "__main__":
    app.run()
