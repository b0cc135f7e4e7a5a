"use strict";
// The hops of one token between ranks, and what they cost.
document.addEventListener("DOMContentLoaded", () => {
  const layers = k3.data("parallel");
  if (!layers) return;
  const GAP = 8, ARCS = 84, BOX = 62, LOAD = 44, NAMES = "http://www.w3.org/2000/svg";
  const part = (name) => document.getElementById(`ranks-${name}`);
  let layer = layers[0], token = layers[0].tokens[0];

  const shape = (name, attributes, text) => {
    const element = document.createElementNS(NAMES, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const rankOf = (expert) => Math.floor(expert / (layer.num_experts / layer.loads.length));
  const counts = () => {
    const found = layer.loads.map(() => 0);
    for (const expert of token?.experts ?? []) found[rankOf(expert)] += 1;
    return found;
  };

  const arc = (from, to, hops, width, thickest) => {
    const height = 14 + (ARCS - 22) * (Math.abs(from - to) / width) ** 0.7;
    const middle = (from + to) / 2;
    return shape("path", { class: "hop", d: `M${from} ${ARCS}Q${middle} ${ARCS - 2 * height} ${to} ${ARCS}`, "stroke-width": Math.min(thickest, 0.5 + hops) });
  };

  const box = (rank, x, width, hops) => {
    const isHome = token && rank === token.rank;
    const pieces = [shape("rect", { class: isHome ? "rank home" : "rank", x, y: ARCS, width, height: BOX, rx: 2 })];
    pieces.push(shape("text", { class: "hops", x: x + width / 2, y: ARCS + 27, "text-anchor": "middle" }, hops || "·"));
    const radius = Math.min(2.6, (width - 8) / 18);
    for (let index = 0; index < hops; index += 1) {
      const [column, row] = [index % 8, Math.floor(index / 8)];
      const left = x + width / 2 - (Math.min(hops, 8) - 1) * radius * 1.15;
      pieces.push(shape("circle", { class: "routed", cx: left + column * radius * 2.3, cy: ARCS + 42 + row * 7, r: radius }));
    }
    const load = layer.loads[rank], top = Math.max(...layer.loads, 1);
    const base = ARCS + BOX + 8;
    pieces.push(shape("rect", { class: "load-track", x, y: base, width, height: 5 }));
    pieces.push(shape("rect", { class: "load", x, y: base, width: (width * load) / top, height: 5 }));
    pieces.push(shape("text", { class: "small", x: x + width / 2, y: base + 20, "text-anchor": "middle" }, `${k3.number(load, 2)}×`));
    pieces.push(shape("text", { class: "small", x: x + width / 2, y: base + 34, "text-anchor": "middle" }, width > 48 ? `rank ${rank + 1}` : rank + 1));
    return pieces;
  };

  const draw = () => {
    const place = part("chart");
    const width = place.clientWidth, number = layer.loads.length;
    if (!width) return;
    const gap = Math.min(GAP, width / number / 4), side = (width - gap * (number - 1)) / number, hops = counts();
    const svg = shape("svg", { width, height: ARCS + BOX + LOAD, viewBox: `0 0 ${width} ${ARCS + BOX + LOAD}` });
    const middle = (rank) => rank * (side + gap) + side / 2;
    hops.forEach((found, rank) => {
      if (token && found && rank !== token.rank) svg.append(arc(middle(token.rank), middle(rank), found, width, side / 4));
    });
    hops.forEach((found, rank) => svg.append(...box(rank, rank * (side + gap), side, found)));
    place.replaceChildren(svg);
  };

  const showToken = (index) => {
    token = layer.tokens[index];
    if (token) {
      const found = counts(), here = found[token.rank], away = token.experts.length - here;
      const others = found.filter((hops, rank) => hops && rank !== token.rank).length;
      const bytes = (width) => k3.number(2 * away * width * layer.bytes_per_number);
      const latent = layer.routed_width === layer.full_width ? "" : `, ${bytes(layer.routed_width)} at the latent’s (${k3.number(layer.routed_width)})`;
      const text = `“${k3.visible(token.text)}” lies on rank ${token.rank + 1}: ${here} of its ${token.experts.length} experts are there, ${away} are on ${others} other ranks. There and back that is ${bytes(layer.full_width)} bytes at full width (${k3.number(layer.full_width)})${latent}.`;
      part("result").textContent = text;
      part("chart").setAttribute("aria-label", `Hops of the token between ranks. ${text}`);
    }
    draw();
  };

  const fill = k3.stepper("ranks", showToken);
  const showLayer = (index) => {
    layer = layers[index];
    fill(layer.tokens.map(({ text }) => text));
    const saved = layer.routed_width === layer.full_width ? "" : ` and ${k3.number(layer.routed_width_bytes, 0)} at the latent’s`;
    part("mean").textContent = `Over all tokens ${k3.number(100 * layer.leaving_share, 1)} % of pairs leave their rank, ${k3.number(layer.full_width_bytes, 0)} bytes per token and layer at full width${saved}; the busiest rank has ${k3.number(Math.max(...layer.loads), 3)} times the mean load (the bars).`;
  };
  document.getElementById("ranks-of").addEventListener("change", (event) => showLayer(Number(event.target.value)));
  new ResizeObserver(draw).observe(part("chart"));
  showLayer(0);
});
