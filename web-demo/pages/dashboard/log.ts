/** The run's log, newest first: a folded list with ages, filtered by learner on request. */
import type { LogEntryView, LogKind, LogView } from "../shared/api.js";
import { fillRows, fillText, find, make, setAttribute, setText } from "../shared/dom.js";
import { ago, plural } from "../shared/format.js";
import type { Tone } from "../shared/sentence.js";

/** Limit of stored lines, the same as the syncer's. */
const LINES_MAX = 1_000;
/** Time between two updates of ages, in milliseconds. */
const AGES_MS = 5_000;

const TONES: Readonly<Record<LogKind, Tone | null>> = {
  syncer: "waiting",
  joined: "going",
  left: null,
  refused: "held",
  owner: "held",
  finished: "done",
  trouble: "trouble",
  mended: "going",
};

/** The section with the run's log. */
export class LogList {
  readonly #details = find("log-details", HTMLDetailsElement);
  readonly #rows = find("log-rows", HTMLOListElement);
  readonly #newest = find("log-newest", HTMLElement);
  readonly #count = find("log-count", HTMLElement);
  readonly #name = find("log-name", HTMLInputElement);
  #entries: readonly LogEntryView[] = [];
  /** The syncer's clock minus the page's: only the syncer's clock fits its log. */
  #aheadMs = 0;
  /** True once all lines were fetched. Before that, an empty list does not mean that there are no lines. */
  #isKnown = false;

  constructor() {
    this.#details.addEventListener("toggle", () => this.#show());
    this.#name.addEventListener("input", () => this.#show());
    setInterval(() => document.hidden || this.#show(), AGES_MS);
  }

  /** Takes lines, newest first: all of them, or only new ones. */
  take({ nowMs, entries }: LogView, isAll: boolean): void {
    this.#aheadMs = nowMs - performance.now();
    this.#isKnown ||= isAll;
    const newest = isAll ? 0 : (this.#entries[0]?.seq ?? 0);
    const fresh = entries.filter(({ seq }) => seq > newest);
    this.#entries = [...fresh, ...(isAll ? [] : this.#entries)].slice(0, LINES_MAX);
    this.#show();
  }

  #show(): void {
    const [newest] = this.#entries;
    if (newest || this.#isKnown)
      fillText(this.#newest, newest ? `${this.#ageOf(newest)}: ${newest.text}` : "Nothing yet.");
    // A folded list needs no update.
    if (!this.#details.open) return;
    const wanted = this.#name.value.trim().toLowerCase();
    const shown = this.#entries.filter(({ name }) => !wanted || name?.toLowerCase().includes(wanted));
    const of = wanted ? ` of ${plural(this.#entries.length, "line")}` : "";
    setText(this.#count, `${plural(shown.length, "line")}${of}`);
    fillRows(this.#rows, shown, blankRow, (row, entry) => {
      setAttribute(row, "data-tone", TONES[entry.kind]);
      setText(row.children[0]!, this.#ageOf(entry));
      setText(row.children[1]!, entry.text);
      setAttribute(row.children[0]!, "datetime", new Date(entry.atMs).toISOString());
      setAttribute(row.children[0]!, "title", new Date(entry.atMs).toLocaleString());
    });
  }

  #ageOf({ atMs }: LogEntryView): string {
    return ago((performance.now() + this.#aheadMs - atMs) / 1_000);
  }
}

function blankRow(): HTMLLIElement {
  return make("li", {}, make("time", { class: "quiet number" }), make("span"));
}
