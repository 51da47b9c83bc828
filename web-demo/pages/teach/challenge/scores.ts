/** The list of scores: claims of links, runs of this page, and verified replays. */

import { fillRows, find, make, say, setAttribute, setText } from "../../shared/dom.js";
import { nats, percent } from "../../shared/format.js";
import { copyFrom } from "../../shared/link.js";
import { phrase } from "../../words/phrase.js";
import { actionsOf, best, ENTRIES_MAX, type Entry, isSame, isSameRun, wayInWords } from "./board.js";
import { counts, END_MS, type Result } from "./challenge.js";
import { replay } from "./replay.js";
import type { Host } from "./view.js";

/** State of verification of a score. */
type Proof = "claimed" | "checking" | "seen" | "refuted" | "failed";

interface Scored extends Entry {
  readonly proof: Proof;
  /** Details of the verification. */
  readonly note: string;
}

const WORDS: Readonly<Record<Proof, string>> = {
  claimed: phrase("challenge.proofs.claimed"),
  checking: phrase("challenge.proofs.checking"),
  seen: phrase("challenge.proofs.seen"),
  refuted: phrase("challenge.proofs.refuted"),
  failed: phrase("challenge.proofs.failed"),
};

export class Scores {
  readonly #host: Host;
  readonly #list = find("board", HTMLElement);
  readonly #none = find("board-none", HTMLElement);
  readonly #said = find("challenge-said", HTMLElement);
  readonly #copy = find("board-copy", HTMLButtonElement);
  #all: Scored[] = [];

  constructor(host: Host) {
    this.#host = host;
    this.#copy.addEventListener("click", () => void this.#share());
    this.#show();
  }

  /** Entries for links, without refuted scores. */
  get entries(): readonly Entry[] {
    return this.#all.filter(({ proof, result }) => proof !== "refuted" || counts(result));
  }

  /** Adds the scores of an opened link. */
  claim(entries: readonly Entry[]): void {
    const news = entries.filter((entry) => !this.#all.some((known) => isSame(known, entry)));
    if (news.length === 0) return;
    const claimed = news.map((entry): Scored => ({ ...entry, proof: "claimed", note: "" }));
    // Runs of this page keep their places: a link with invented scores cannot displace them.
    const seen = this.#all.filter(({ proof }) => proof === "seen");
    const others = best([...this.#all.filter(({ proof }) => proof !== "seen"), ...claimed]);
    this.#all = best([...seen, ...others.slice(0, ENTRIES_MAX - seen.length)]);
    this.#show();
  }

  /** Adds a run from the stage; returns false if enough others are better. */
  enter(entry: Entry): boolean {
    const rest = this.#all.filter((known) => !isSame(known, entry));
    this.#all = best([...rest, { ...entry, proof: "seen", note: "" }]);
    this.#show();
    this.#host.changed();
    return this.#all.some((known) => isSame(known, entry));
  }

  /** Verifies a run that ended on the stage; returns its name if it is on the board. */
  saw(run: Entry): string | null {
    const known = this.#all.find((one) => isSameRun(one, run));
    if (known) this.#proved(known, run.result);
    return known?.name ?? null;
  }

  /** Records the actual result of an entry's run. */
  #proved(entry: Entry, result: Result): void {
    const holds = result.loss === entry.result.loss && result.goodput === entry.result.goodput;
    const values = { loss: nats(result.loss), goodput: percent(result.goodput) };
    const came = phrase(counts(result) ? "challenge.comes" : "challenge.comesToNothing", values);
    this.#mark(entry, holds ? { proof: "seen", note: "" } : { proof: "refuted", note: came, result });
    say(
      this.#said,
      holds
        ? phrase("challenge.checked", { name: entry.name })
        : phrase("challenge.checkedWrong", { name: entry.name, came }),
    );
    this.#host.changed();
  }

  async #check(entry: Entry): Promise<void> {
    const seconds = (ms: number) =>
      phrase("challenge.progress", { seconds: Math.floor(ms / 1_000), all: END_MS / 1_000 });
    this.#mark(entry, { proof: "checking", note: seconds(0) });
    try {
      const plan = { spec: entry.spec, actions: actionsOf(entry), changes: [] };
      const result = await replay(plan, (nowMs) => this.#mark(entry, { note: seconds(nowMs) }));
      this.#proved(entry, result);
    } catch (error) {
      this.#mark(entry, { proof: "failed", note: error instanceof Error ? error.message : String(error) });
    }
  }

  #mark(entry: Entry, more: Partial<Scored>): void {
    this.#all = best(this.#all.map((known) => (isSame(known, entry) ? { ...known, ...more } : known)));
    this.#show();
  }

  #show(): void {
    this.#none.hidden = this.#all.length > 0;
    this.#copy.hidden = this.#all.length === 0;
    fillRows(
      this.#list,
      this.#all,
      () => this.#row(),
      (row, entry) => this.#fill(row, entry),
    );
  }

  #row(): HTMLElement {
    const row = make(
      "li",
      {},
      // Isolates the direction of a foreign name from the rest of the line.
      make("bdi", { class: "board-name" }),
      make("span", { class: "number board-result" }),
      make("span", { class: "small quiet board-way" }),
      make("span", { class: "small board-proof" }),
      make("button", { type: "button", class: "board-check" }, phrase("challenge.check")),
      make("a", { class: "small board-watch" }, phrase("challenge.watch")),
    );
    row.querySelector("button")?.addEventListener("click", () => {
      const entry = this.#all[[...this.#list.children].indexOf(row)];
      if (entry && entry.proof !== "checking") void this.#check(entry);
    });
    return row;
  }

  #fill(row: HTMLElement, entry: Scored): void {
    const { name, result, proof, note } = entry;
    const [named, came, way, proven, check, watch] = [...row.children] as HTMLElement[];
    if (!named || !came || !way || !proven || !check || !watch) return;
    setText(named, name);
    setText(came, phrase("challenge.result", { loss: nats(result.loss), goodput: percent(result.goodput) }));
    setText(way, wayInWords(entry));
    setText(proven, note === "" ? WORDS[proof] : phrase("challenge.proofNote", { proof: WORDS[proof], note }));
    setAttribute(proven, "data-proof", proof);
    check.hidden = proof === "seen" || proof === "refuted";
    setAttribute(check, "aria-disabled", proof === "checking" ? "true" : null);
    setAttribute(check, "aria-label", phrase("challenge.checkLabel", { name }));
    setAttribute(watch, "href", this.#host.linkTo(entry));
    setAttribute(watch, "aria-label", phrase("challenge.watchLabel", { name }));
  }

  async #share(): Promise<void> {
    const link = find("board-link", HTMLInputElement);
    const url = new URL(location.href);
    url.hash = this.#host.linkToBoard();
    link.value = url.href;
    link.hidden = false;
    const copied = await copyFrom(link);
    say(this.#said, phrase(copied ? "challenge.boardCopied" : "challenge.boardSelected"));
  }
}
