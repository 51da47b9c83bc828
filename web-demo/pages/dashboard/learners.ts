/** The table of learners: a page at a time, sorted by the syncer, renewed while it is looked at. */
import type { Fates, LearnersPage, LearnerView, Sort } from "../shared/api.js";
import { fillRows, find, make, setAttribute, setText } from "../shared/dom.js";
import { count, milliseconds, nats, percent, plural } from "../shared/format.js";
import { whileSeen } from "../shared/paint.js";
import { reinOf } from "../shared/rein.js";

const PAGE = 50;
const RENEW_MS = 3_000;
const KINDS = { browser: "browser", gpu: "GPU", cpu: "CPU", other: "other" } as const;

/** The section with the learners. */
export class Learners {
  readonly #section = find("learners", HTMLElement);
  readonly #rows = find("learners-rows", HTMLTableSectionElement);
  readonly #range = find("learners-range", HTMLElement);
  readonly #before = find("learners-before", HTMLButtonElement);
  readonly #after = find("learners-after", HTMLButtonElement);
  readonly #heads = [...this.#section.querySelectorAll<HTMLElement>("th[data-sort]")];
  readonly #names = new Map<number, string>();
  #sort: Sort = "merged";
  #offset = 0;
  #asking: AbortController | undefined;

  constructor() {
    for (const head of this.#heads) {
      head.querySelector("button")?.addEventListener("click", () => {
        this.#sort = (head.dataset["sort"] ?? "merged") as Sort;
        this.#turn(0);
      });
    }
    this.#before.addEventListener("click", () => this.#turn(this.#offset - PAGE));
    this.#after.addEventListener("click", () => this.#turn(this.#offset + PAGE));
    whileSeen(this.#section, RENEW_MS, () => void this.#renew());
  }

  /** What people call a learner, as far as it is known. */
  nameOf(learner: number): string {
    return this.#names.get(learner) ?? `Learner ${learner}`;
  }

  /** Learns names. */
  meet(learners: readonly LearnerView[]): void {
    for (const learner of learners) this.#names.set(learner.learner, nameOf(learner));
  }

  #turn(offset: number): void {
    this.#offset = Math.max(0, offset);
    void this.#renew();
  }

  async #renew(): Promise<void> {
    this.#asking?.abort();
    const asking = new AbortController();
    this.#asking = asking;
    try {
      const query = `offset=${this.#offset}&limit=${PAGE}&sort=${this.#sort}`;
      const answer = await fetch(`./v1/learners?${query}`, { signal: asking.signal });
      if (answer.ok) this.#show((await answer.json()) as LearnersPage);
    } catch {
      // The sentence at the top says when the syncer is gone; the next renewal tries again.
    }
  }

  #show(page: LearnersPage): void {
    this.meet(page.learners);
    for (const head of this.#heads) {
      const sorted = head.dataset["sort"] === page.sort;
      setAttribute(
        head,
        "aria-sort",
        sorted ? (page.sort === "merged" || page.sort === "speed" ? "descending" : "ascending") : null,
      );
    }
    const most = Math.max(...page.learners.map((learner) => learner.mergedShare), Number.MIN_VALUE);
    fillRows(this.#rows, page.learners, blankRow, (row, view) => fillRow(row, view, view.mergedShare / most));
    const last = page.offset + page.learners.length;
    setText(
      this.#range,
      page.total === 0 ? "Nobody yet." : `${page.offset + 1}–${last} of ${plural(page.total, "learner")}`,
    );
    this.#before.disabled = page.offset === 0;
    this.#after.disabled = last >= page.total;
    if (page.learners.length === 0 && page.offset > 0) this.#turn(Math.floor((page.total - 1) / PAGE) * PAGE);
  }
}

/** What people call a learner. */
export function nameOf(view: LearnerView): string {
  return view.name || `Learner ${view.learner}`;
}

function blankRow(): HTMLTableRowElement {
  const share = make(
    "td",
    {},
    make("span", { class: "bar", "aria-hidden": "true" }, make("span")),
    make("span", { class: "share" }),
  );
  const right = () => make("td", { class: "right" });
  const head = make("th", { scope: "row" }, make("span", { class: "name" }), make("span", { class: "device" }));
  return make(
    "tr",
    {},
    head,
    make("td"),
    make("td", {}, make("span", { class: "badge" })),
    right(),
    right(),
    share,
    right(),
    make("td"),
  );
}

/** `bar` is the share beside the greatest one of the page, 0 to 1. */
function fillRow(row: HTMLTableRowElement, view: LearnerView, bar: number): void {
  const [head, kind, state, speed, loss, share, merged, lost] = [...row.cells] as HTMLElement[];
  if (!head || !kind || !state || !speed || !loss || !share || !merged || !lost) return;
  setText(head.children[0]!, nameOf(view));
  setText(head.children[1]!, aboutOf(view));
  setText(kind, KINDS[view.kind]);
  const badge = state.children[0]!;
  const rein = reinOf(view);
  setText(badge, [view.returnsS === null ? (view.state ?? "away") : "", rein].filter(Boolean).join(", "));
  setAttribute(badge, "data-tone", rein ? "held" : toneOf(view));
  setText(speed, view.state === null ? "–" : count(view.tokensPerS));
  setText(loss, nats(view.loss));
  (share.children[0]!.children[0] as HTMLElement).style.width = `${(bar * 100).toFixed(1)}%`;
  setText(share.children[1]!, percent(view.mergedShare));
  setText(merged, count(view.tokensMerged));
  setText(lost, lostUpdates(view.fates));
}

/** "cpu, 1 thread; batch 8; answers within 1.31 s; its link is thin": what is known of it. */
export function aboutOf(view: LearnerView): string {
  const parts = [view.device];
  if (view.batch > 0) parts.push(`batch ${view.batch}`);
  if (view.state !== null && view.answerMs > 0) parts.push(`answers within ${milliseconds(view.answerMs)}`);
  if (view.thin) parts.push("its link is thin");
  return parts.filter(Boolean).join("; ");
}

/** The tone of its state. */
export function toneOf(view: LearnerView): string | null {
  switch (view.state) {
    case "training":
      return "going";
    case "joining":
      return "waiting";
    case "paused":
    case "held":
    case "starved":
      return "held";
    default:
      return null;
  }
}

/** "2 late, 1 refused (norm)", or nothing. */
function lostUpdates(fates: Fates): string {
  const late = sum(fates.late);
  const refused = sum(fates.refused);
  const reasons = Object.keys(fates.refused).map((reason) => reason.replaceAll("_", " "));
  const parts = [];
  if (late > 0) parts.push(`${count(late)} late`);
  if (refused > 0) parts.push(`${count(refused)} refused (${reasons.join(", ")})`);
  return parts.join(", ");
}

function sum(counts: Readonly<Partial<Record<string, number>>>): number {
  return Object.values(counts).reduce<number>((total, value) => total + (value ?? 0), 0);
}
