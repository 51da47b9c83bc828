/** The table of learners: one page at a time, sorted by the syncer, refreshed while visible. */
import type { LearnersPage, LearnerView, Sort } from "../shared/api.js";
import { fillRows, fillText, find, make, setAttribute, setText } from "../shared/dom.js";
import { count, nats, percent, plural } from "../shared/format.js";
import { titlesOf } from "../shared/names.js";
import { whileSeen } from "../shared/paint.js";
import { reinOf } from "../shared/rein.js";
import { LearnerCard } from "./learner-card.js";
import { LearnerCourses } from "./learner-course.js";
import { aboutOf, lostUpdates, toneOf } from "./learner-words.js";
import type { Owner } from "./owner.js";

const PAGE = 50;
const RENEW_MS = 3_000;
/** Limit of rows for absent learners, unless the viewer wants all. */
const AWAY_ROWS = 8;
const KINDS = { browser: "browser", gpu: "GPU", cpu: "CPU", other: "other" } as const;

/** The section with the learners. */
export class Learners {
  readonly #section = find("learners", HTMLElement);
  readonly #rows = find("learners-rows", HTMLTableSectionElement);
  readonly #range = find("learners-range", HTMLElement);
  readonly #before = find("learners-before", HTMLButtonElement);
  readonly #after = find("learners-after", HTMLButtonElement);
  readonly #away = find("learners-away", HTMLButtonElement);
  readonly #heads = [...this.#section.querySelectorAll<HTMLElement>("th[data-sort]")];
  readonly #card: LearnerCard;
  readonly #courses = new LearnerCourses();
  readonly #met = new Map<number, LearnerView>();
  #titles: ReadonlyMap<number, string> = new Map();
  #sort: Sort = "merged";
  #offset = 0;
  #all = false;
  #page: LearnersPage | undefined;
  #asking: AbortController | undefined;

  constructor(owner: Owner) {
    this.#card = new LearnerCard(owner, this.#courses, (learner) => this.nameOf(learner));
    this.#rows.addEventListener("click", (event) => {
      const button = event.target instanceof Element ? event.target.closest("button") : null;
      const view = this.#page?.learners.find(({ learner }) => String(learner) === button?.dataset["learner"]);
      if (button && view) this.#card.open(view, button);
    });
    for (const head of this.#heads) {
      head.querySelector("button")?.addEventListener("click", () => {
        this.#sort = (head.dataset["sort"] ?? "merged") as Sort;
        this.#turn(0);
      });
    }
    this.#before.addEventListener("click", () => this.#turn(this.#offset - PAGE));
    this.#after.addEventListener("click", () => this.#turn(this.#offset + PAGE));
    this.#away.addEventListener("click", () => {
      this.#all = !this.#all;
      if (this.#page) this.#show(this.#page);
    });
    whileSeen(this.#section, RENEW_MS, () => void this.#renew());
    // Fill the section before it is in view, for print and for searches in the page.
    void this.#renew();
  }

  /** Returns a learner's display name, as far as known. */
  nameOf(learner: number): string {
    return this.#titles.get(learner) ?? `Learner ${learner}`;
  }

  /** Takes the learners' current state. */
  look(learners: readonly LearnerView[]): void {
    this.meet(learners);
    this.#courses.take(learners);
    this.#card.renew(learners);
  }

  /** Takes names. */
  meet(learners: readonly LearnerView[]): void {
    for (const view of learners) this.#met.set(view.learner, view);
    // Considers all learners ever seen here, so that names do not depend on the current page.
    this.#titles = titlesOf([...this.#met.values()]);
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
      // The sentence at the top reports a lost syncer; the next refresh tries again.
    }
  }

  #show(page: LearnersPage): void {
    this.#page = page;
    this.meet(page.learners);
    this.#card.renew(page.learners);
    for (const head of this.#heads) {
      const sorted = head.dataset["sort"] === page.sort;
      setAttribute(
        head,
        "aria-sort",
        sorted ? (page.sort === "merged" || page.sort === "speed" ? "descending" : "ascending") : null,
      );
    }
    const most = Math.max(...page.learners.map((learner) => learner.mergedShare), Number.MIN_VALUE);
    const here = this.#all ? page.learners : withoutMostAway(page.learners);
    const hidden = page.learners.length - here.length;
    fillRows(this.#rows, here, blankRow, (row, view) =>
      fillRow(row, view, this.nameOf(view.learner), view.mergedShare / most),
    );
    const last = page.offset + page.learners.length;
    fillText(
      this.#range,
      page.total === 0 ? "No one yet." : `${page.offset + 1}–${last} of ${plural(page.total, "learner")}`,
    );
    this.#away.hidden = hidden === 0 && !this.#all;
    setAttribute(this.#away, "aria-pressed", String(this.#all));
    setText(this.#away, hidden > 0 ? `Show all: ${hidden} more are away` : "Show all");
    this.#before.disabled = page.offset === 0;
    this.#after.disabled = last >= page.total;
    if (page.learners.length === 0 && page.offset > 0) this.#turn(Math.floor((page.total - 1) / PAGE) * PAGE);
  }
}

/** Returns the learners, with only the first few absent ones. */
function withoutMostAway(learners: readonly LearnerView[]): readonly LearnerView[] {
  let away = 0;
  return learners.filter((view) => {
    if (view.state === null && view.returnsS === null) away += 1;
    return away <= AWAY_ROWS || view.state !== null || view.returnsS !== null;
  });
}

function blankRow(): HTMLTableRowElement {
  const share = make(
    "td",
    {},
    make("span", { class: "bar", "aria-hidden": "true" }, make("span")),
    make("span", { class: "share" }),
  );
  const right = () => make("td", { class: "right" });
  const head = make(
    "th",
    { scope: "row" },
    make("button", { type: "button", class: "name" }),
    make("span", { class: "device" }),
  );
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

/** `title` is the display name, `bar` the share relative to the page's greatest, 0 to 1. */
function fillRow(row: HTMLTableRowElement, view: LearnerView, title: string, bar: number): void {
  const [head, kind, state, speed, loss, share, merged, lost] = [...row.cells] as HTMLElement[];
  if (!head || !kind || !state || !speed || !loss || !share || !merged || !lost) return;
  const name = head.children[0] as HTMLElement;
  setText(name, title);
  name.dataset["learner"] = String(view.learner);
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
