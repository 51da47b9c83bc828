// The status page: shows what /v1/events says, as it says it.

const byId = (id) => document.getElementById(id);
const known = (value) => value !== null && value !== undefined;
const count = (value) => known(value) ? Math.round(value).toLocaleString("en") : "–";
const fixed = (value, digits) => known(value) ? value.toFixed(digits) : "–";
const percent = (value) => known(value) ? `${(100 * value).toFixed(1)} %` : "–";
const ms = (value) => value > 0 ? `${value < 10 ? value.toFixed(1) : Math.round(value)} ms` : "–";
const sum = (fates) => Object.values(fates).reduce((total, each) => total + each, 0);

function bytes(value) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= size) return `${(value / size).toFixed(1)} ${unit}`;
  }
  return `${value} B`;
}

/** Sets the cells of a table's body; each row is a list of texts, with `className` for the row. */
function fill(body, rows) {
  body.replaceChildren(...rows.map(({ cells, className }) => {
    const row = document.createElement("tr");
    row.className = className ?? "";
    for (const cell of cells) {
      const data = document.createElement("td");
      data.textContent = cell;
      if (/^[–\d]/.test(cell)) data.className = "n";
      row.append(data);
    }
    return row;
  }));
}

const decisions = {
  await_quorum: (d) => `waits for ${d.missing} more`,
  await_grace: (d) => `quorum reached, waits ${d.grace_ms} ms for the rest`,
  merge: (d) => ({
    all_answered: "merged: all answered",
    grace_over: "merged: the wait is over",
    patience_over: "merged below quorum: patience is over",
  })[d.why] ?? d.why,
  abandon: (d) => ({ nothing_new: "nothing new", patience_over: "given up: no answer" })[d.why] ?? d.why,
};

function decision(value) {
  return known(value) ? (decisions[value.decision]?.(value) ?? value.decision) : "collecting";
}

function sentence(status) {
  if (status.finishing) return "The run is collecting everyone's last progress.";
  if (status.live > 0) return `${status.live} of ${status.connected} connected learners train; ${count(status.tokens_merged)} tokens are merged.`;
  if (status.connected > 0) return "Learners are fetching the model; none trains yet.";
  return "No learner is connected: start native-learner with the address of this page.";
}

const svg = (name, attributes, text) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text) element.textContent = text;
  return element;
};

/** Draws held-out loss against merged tokens, with the entropy of the text as a floor. */
function draw(chart, points, floor) {
  const [left, right, top, bottom] = [44, 628, 12, 196];
  const losses = points.map((point) => point.loss).concat(known(floor) ? [floor] : []);
  if (losses.length === 0) return;
  const low = Math.min(...losses) - 0.05, high = Math.max(...losses) + 0.05;
  const last = Math.max(1, ...points.map((point) => point.tokens_merged));
  const x = (tokens) => left + (right - left) * tokens / last;
  const y = (loss) => bottom - (bottom - top) * (loss - low) / (high - low);
  const marks = [];
  for (let i = 0; i <= 4; i++) {
    const loss = low + (high - low) * i / 4;
    marks.push(svg("line", { x1: left, x2: right, y1: y(loss), y2: y(loss) }));
    marks.push(svg("text", { x: left - 6, y: y(loss) + 4, "text-anchor": "end" }, loss.toFixed(2)));
  }
  marks.push(svg("text", { x: right, y: bottom + 16, "text-anchor": "end" }, `${count(last)} tokens merged`));
  if (known(floor)) marks.push(svg("line", { class: "floor", x1: left, x2: right, y1: y(floor), y2: y(floor) }));
  const line = points.map((point) => `${x(point.tokens_merged).toFixed(1)},${y(point.loss).toFixed(1)}`).join(" ");
  marks.push(svg("polyline", { class: "val", points: line }));
  chart.replaceChildren(...marks);
}

function show(status) {
  if (!status.run) return;
  byId("run").textContent = `${status.preset} · ${count(status.params)} parameters · ${status.corpus} · run ${status.run}`;
  byId("sentence").textContent = sentence(status);
  byId("participation").textContent = percent(status.participation);
  byId("val-loss").textContent = fixed(status.val_loss_last, 3);
  const first = known(status.val_loss_first) ? `from ${fixed(status.val_loss_first, 2)}` : "";
  byId("val-more").textContent = known(status.entropy_floor) ? `${first}, floor ${fixed(status.entropy_floor, 3)}` : first;
  byId("train-loss").textContent = fixed(status.train_loss, 3);
  byId("rate").textContent = count(status.tokens_per_s);
  byId("live").textContent = `${status.live}`;
  byId("sample").textContent = status.sample;
  byId("floor-key").hidden = !known(status.entropy_floor);
  draw(byId("chart"), status.evaluations, status.entropy_floor);

  fill(byId("learners"), status.learners.map((learner) => ({
    className: known(learner.state) ? "" : "away",
    cells: [
      learner.name || `learner ${learner.learner}`, learner.state ?? "away", learner.device,
      count(learner.tokens_trained), count(learner.tokens_merged),
      percent(learner.tokens_trained > 0 ? learner.tokens_merged / learner.tokens_trained : null),
      ms(learner.step_ms), fixed(learner.loss, 3), count(learner.updates),
      count(sum(learner.fates.late)), count(sum(learner.fates.refused)),
    ],
  })));
  const { step_ms, quorum_ms, sync_ms } = status.timing;
  byId("round-note").textContent =
    `${count(status.rounds)} merged, ${count(status.rounds_abandoned)} given up. Step ${ms(step_ms)}, ` +
    `quorum after ${ms(quorum_ms)}, sync ${ms(sync_ms)}, so at most ${status.grace_ms} ms of grace.`;
  fill(byId("rounds"), status.rounds_recent.slice(-12).reverse().map(({ round, fragment, invited, decision: d, merged }) => ({
    cells: [
      `${round}`, `${fragment}`, decision(d), merged ? `${merged.updates} of ${invited}` : "–", count(merged?.tokens),
      fixed(merged?.norm, 4), ms(merged?.collect_ms ?? 0), ms(merged?.sync_ms ?? 0),
    ],
  })));
  fill(byId("fragments"), status.fragments.map(([fragment, version, size]) => ({
    cells: [`${fragment}`, `${version}`, count(size)],
  })));
  const rows = [
    ["Up", `${bytes(status.bytes_up)}, ${fixed(status.bits_per_param_up, 3)} bits per parameter sent`],
    ["Down", `${bytes(status.bytes_down)}, ${fixed(status.bits_per_param_down, 3)} bits per parameter sent`],
    ["Joining", bytes(status.join_bytes)],
    ["Training data", bytes(status.data_bytes)],
  ];
  byId("network").replaceChildren(...rows.flatMap(([name, value]) => {
    const term = document.createElement("dt"), detail = document.createElement("dd");
    [term.textContent, detail.textContent] = [name, value];
    return [term, detail];
  }));
}

const source = new EventSource("v1/events");
source.addEventListener("status", (event) => show(JSON.parse(event.data)));
source.addEventListener("error", () => {
  byId("sentence").textContent = "The server does not answer; this page tries again by itself.";
});
