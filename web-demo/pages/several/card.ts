/** One run in the list: description, progress and buttons. */
import type { RunState, RunView } from "../shared/api.js";
import { make, setAttribute, setText } from "../shared/dom.js";
import { count, nats, percent, plural, UNKNOWN } from "../shared/format.js";

/** An owner's orders for a run. */
export type Order = "pause" | "resume" | "finish" | "start" | "archive" | "delete";

const LABELS: Readonly<Record<Order, string>> = {
  pause: "Pause",
  resume: "Resume",
  finish: "Finish…",
  start: "Start",
  archive: "Archive",
  delete: "Delete…",
};

/** The name of a state, its tone, and the orders that it permits. */
const STATES: Readonly<Record<RunState, readonly [string, string, readonly Order[]]>> = {
  starting: ["Starting", "waiting", []],
  open: ["In training", "going", ["pause", "finish", "archive", "delete"]],
  paused: ["Paused by its owner", "held", ["resume", "finish", "archive", "delete"]],
  complete: ["Complete", "done", ["archive", "delete"]],
  archived: ["Put away", "waiting", ["start", "delete"]],
  failed: ["Stopped by a fault", "trouble", ["start", "delete"]],
};

/** Figures of a card, by their headings. */
const FIGURES: readonly (readonly [string, (run: RunView) => string])[] = [
  ["Machines", (run) => (run.figures ? count(run.figures.live) : UNKNOWN)],
  ["Learned from", (run) => (run.figures ? `${count(run.figures.tokensMerged)} tokens` : UNKNOWN)],
  ["How badly it guesses: lower is better", (run) => (run.figures ? nats(run.figures.valLossLast) : UNKNOWN)],
  ["Work that was kept", (run) => (run.figures?.tokensMerged ? percent(run.figures.participation) : UNKNOWN)],
];

/** Creates an empty card; its buttons call `ask`. */
export function blankCard(ask: (order: Order, name: string) => void): HTMLLIElement {
  const card = make("li", { class: "card" });
  card.append(
    make("h2", {}, make("a", {})),
    make("p", { class: "state" }),
    make("p", { class: "about quiet small" }),
    make("p", { class: "age", hidden: "" }),
    make("dl", { class: "figures" }, ...FIGURES.map(([head]) => make("div", {}, make("dt", {}, head), make("dd", {})))),
    make("p", { class: "why notice small", "data-tone": "trouble" }),
    make("p", { class: "link small" }),
    make("div", { class: "actions" }),
  );
  const actions = part(card, ".actions");
  for (const order of Object.keys(LABELS) as Order[]) {
    const button = make("button", { type: "button", "data-order": order }, LABELS[order]);
    if (order === "delete") button.className = "danger";
    button.addEventListener("click", () => ask(order, card.dataset["name"] ?? ""));
    actions.append(button);
  }
  return card;
}

/** Fills the card of `run`, with buttons if the viewer owns it. */
export function fillCard(card: HTMLLIElement, run: RunView, isOwner: boolean): void {
  const [named, toned, orders] = STATES[run.state];
  const isAlone = run.state === "open" && run.figures?.live === 0;
  const [state, tone] = isAlone ? ["Waiting for machines", "waiting"] : [named, toned];
  const isServed = run.state !== "archived" && run.state !== "failed" && run.state !== "starting";
  card.dataset["name"] = run.name;
  const title = part(card, "h2 a");
  setText(title, run.name === "" ? "This run" : run.name);
  setAttribute(title, "href", isServed ? `./${run.path}` : null);
  setText(part(card, ".state"), state);
  setAttribute(part(card, ".state"), "data-tone", tone);
  const figures = run.figures;
  const about = figures && `${figures.model}, ${count(figures.params)} parameters, on ${figures.corpus}`;
  const away = run.state === "archived" ? "Its folder stays on the server, and no learner can join for now." : "";
  setText(part(card, ".about"), about ?? away);
  const cells = card.querySelectorAll("dd");
  FIGURES.forEach(([, value], index) => {
    const cell = cells[index];
    if (cell) setText(cell, value(run));
  });
  setAttribute(part(card, ".figures"), "hidden", figures ? null : "");
  const alerts = figures && figures.alerts > 0 ? `${plural(figures.alerts, "alert")}: see its dashboard` : null;
  setText(part(card, ".why"), run.why ?? alerts ?? "");
  setAttribute(part(card, ".why"), "hidden", run.why || alerts ? null : "");
  fillLinks(part(card, ".link"), run, isServed);
  for (const button of card.querySelectorAll<HTMLButtonElement>("button")) {
    button.hidden = !(isOwner && orders.includes(button.dataset["order"] as Order));
    setAttribute(button, "aria-label", `${LABELS[button.dataset["order"] as Order]} ${run.name}`);
  }
}

/** Links into a run; an owner sees the link to share, which includes the invite. */
function fillLinks(place: Element, run: RunView, isServed: boolean): void {
  const isOver = run.state === "complete";
  const key = `${isServed}${isOver}${run.link}`;
  if (place.getAttribute("data-key") === key) return;
  place.setAttribute("data-key", key);
  place.replaceChildren();
  if (!isServed) return;
  const to = (path: string, words: string, kind: string) =>
    make(
      "a",
      { href: `./${run.path}${path}`, class: kind, "aria-label": `${words}: ${run.name || "this run"}` },
      words,
    );
  const ways = make("span", { class: "actions" });
  if (isOver) ways.append(to("dashboard", "See its result", "button"));
  else ways.append(to("", "Lend a machine", "button primary"), to("dashboard", "Watch", "button"));
  place.append(ways);
  if (run.link) place.append("Link to hand on: ", make("a", { href: run.link }, run.link));
}

function part(card: Element, selector: string): HTMLElement {
  const found = card.querySelector<HTMLElement>(selector);
  if (!found) throw new Error(`a card has no ${selector}`);
  return found;
}
