"use strict";
// Links over depth: two sliders and a grain, read from a table that the counter filled.
document.addEventListener("DOMContentLoaded", async () => {
  const found = k3.data("links");
  if (!found) return;
  const [layers, size] = ["layers", "size"].map((name) => document.getElementById(`links-${name}`));
  const place = document.getElementById("links-chart");
  const write = (name, text) => {
    document.getElementById(`links-${name}`).textContent = text;
  };
  let view = null;

  const grid = () => found.grids[Number(document.querySelector('input[name="consumer"]:checked').value)];

  // The rows of the chart: both forms at every depth, and at the depth that is read.
  const rows = () => {
    const [depth, block] = [Number(layers.value), Number(size.value)];
    const { full, block: blocks } = grid();
    const lines = full.flatMap((links, index) => [
      { form: "full", layers: index + 1, links },
      { form: "block", layers: index + 1, links: blocks[index][block - 1] },
    ]);
    return { links: lines, chosen: lines.filter((row) => row.layers === depth) };
  };

  const update = () => {
    const { links, chosen } = rows();
    write("layers-value", layers.value);
    write("size-value", size.value);
    write("full", k3.number(chosen[0].links));
    write("block", k3.number(chosen[1].links));
    write("ratio", k3.number(chosen[0].links / chosen[1].links, 1));
    if (view) view.data("links", links).data("chosen", chosen).runAsync();
  };

  const draw = async () => {
    view = await k3.draw(place, { ...found.chart, datasets: rows() });
    update();
  };
  for (const control of [layers, size]) control.addEventListener("input", update);
  document.addEventListener("change", (event) => {
    if (event.target.name === "consumer") update();
  });
  document.addEventListener("theme", draw);
  update();
  await draw();
});
