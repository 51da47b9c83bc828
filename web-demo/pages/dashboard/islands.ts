/** A class: the code to join with, who is there, and the owner's hand on each. */
import type { LearnerView, ServerStatus } from "../shared/api.js";
import { find, make, setAttribute, setText } from "../shared/dom.js";
import { count } from "../shared/format.js";
import { invite, linkFor } from "../shared/link.js";
import { reinOf } from "../shared/rein.js";
import { nameOf, toneOf } from "./learners.js";
import type { Owner } from "./owner.js";

/** By how much an island can be slowed down. */
const PACES = [1, 2, 4, 8] as const;

/** The part of the page for a class. */
export class Islands {
  readonly #section = find("classroom", HTMLElement);
  readonly #list = find("islands", HTMLUListElement);
  readonly #said = find("islands-said", HTMLElement);
  readonly #seconds = find("drop-seconds", HTMLInputElement);
  readonly #rows = new Map<number, Row>();
  readonly #owner: Owner;
  #link = "";

  constructor(owner: Owner) {
    this.#owner = owner;
    owner.onToken((has) => this.#offer(has));
    find("islands-token", HTMLButtonElement).addEventListener("click", () => owner.ask());
  }

  /** Shows a run that is for a class; others have none of this. */
  show(status: ServerStatus): void {
    this.#section.hidden = !status.classroom;
    if (!status.classroom) return;
    this.#showLink(linkFor(status.links));
    const lacks = status.inviteRequired && invite() === "";
    const note = find("classroom-note", HTMLElement);
    note.hidden = !lacks;
    setText(note, lacks ? "The invite is missing here: open this page by the link that the syncer printed." : "");
    // Who left on its own is no island any more; who was sent away is.
    const islands = status.learners.filter((learner) => learner.state !== null || learner.returnsS !== null);
    const here = islands.filter((learner) => learner.state !== null).length;
    setText(find("islands-count", HTMLElement), islands.length > 0 ? count(here) : "");
    find("islands-none", HTMLElement).hidden = islands.length > 0;
    this.#showIslands(islands);
  }

  #showLink(link: string): void {
    if (link === this.#link) return;
    this.#link = link;
    // May break before the invite, not within it.
    const [place = link, fragment] = link.split(/(?=#)/);
    find("classroom-link", HTMLElement).replaceChildren(place, ...(fragment ? [make("wbr"), fragment] : []));
    // Apart, so that runs without a class load none of it.
    void import("../shared/qr.js").then(({ drawCode }) => drawCode(find("classroom-code", HTMLCanvasElement), link));
  }

  /** Rows stay with their islands, so that a button never moves under a finger or loses the keyboard. */
  #showIslands(islands: readonly LearnerView[]): void {
    for (const [learner, row] of this.#rows) {
      if (islands.some((view) => view.learner === learner)) continue;
      row.item.remove();
      this.#rows.delete(learner);
    }
    for (const view of islands) {
      let row = this.#rows.get(view.learner);
      if (!row) {
        row = new Row(view.learner, this);
        this.#rows.set(view.learner, row);
        const next = [...this.#rows].filter(([learner]) => learner > view.learner).sort(([a], [b]) => a - b)[0];
        this.#list.insertBefore(row.item, next?.[1].item ?? null);
      }
      row.show(view);
    }
  }

  #offer(hasToken: boolean): void {
    this.#section.classList.toggle("steered", hasToken);
    find("islands-owner", HTMLElement).hidden = !hasToken;
    find("islands-hint", HTMLElement).hidden = hasToken;
  }

  /** Has an island train for `1 / by` of its time. */
  slow(learner: number, by: number): Promise<void> {
    return this.#order(learner, "pace", { share: 1 / by });
  }

  /** Sends an island away for the time that the field says, or with `back` lets it come back. */
  drop(learner: number, back: boolean): Promise<void> {
    if (!back && !this.#seconds.reportValidity()) return Promise.resolve();
    return this.#order(learner, "drop", { seconds: back ? 0 : this.#seconds.valueAsNumber || 20 });
  }

  async #order(learner: number, what: string, order: object): Promise<void> {
    const answer = await this.#owner.order(`learners/${learner}/${what}`, order);
    this.#said.hidden = answer.ok;
    if (answer.ok) return;
    this.#said.dataset["tone"] = answer.tone;
    setText(this.#said, answer.text);
  }
}

/** One island. */
class Row {
  readonly item: HTMLLIElement;
  readonly #name = make("strong", { class: "name" });
  readonly #what = make("span", { class: "quiet small number" });
  readonly #badge = make("span", { class: "badge" });
  readonly #paces: HTMLButtonElement[];
  readonly #drop = make("button", { type: "button", class: "danger" });
  #away = false;

  constructor(learner: number, islands: Islands) {
    this.#paces = PACES.map((by) => {
      const button = make(
        "button",
        { type: "button", "aria-pressed": "false" },
        by === 1 ? "Full speed" : `×${by} slower`,
      );
      button.addEventListener("click", () => void islands.slow(learner, by));
      return button;
    });
    this.#drop.addEventListener("click", () => void islands.drop(learner, this.#away));
    const controls = make("div", { class: "controls", role: "group" }, ...this.#paces, this.#drop);
    this.item = make("li", {}, make("div", { class: "who" }, this.#name, this.#what, this.#badge), controls);
  }

  show(view: LearnerView): void {
    const name = `${nameOf(view)} #${view.learner}`;
    setText(this.#name, name);
    setText(this.#what, view.state === null ? "" : `${count(view.tokensPerS)} tokens/s`);
    setText(this.#badge, reinOf(view) || (view.state ?? "away"));
    setAttribute(this.#badge, "data-tone", reinOf(view) ? "held" : toneOf(view));
    setAttribute(this.item.lastElementChild!, "aria-label", `What ${name} may do`);
    this.#away = view.returnsS !== null;
    setText(this.#drop, this.#away ? "Let it back" : "Drop");
    this.#paces.forEach((button, index) => {
      const by = PACES[index] ?? 1;
      setAttribute(button, "aria-pressed", String(Math.abs(view.share * by - 1) < 0.01));
    });
  }
}
