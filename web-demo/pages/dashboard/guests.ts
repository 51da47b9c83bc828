/** Admission: personal invites and bans, for the run's owner. */
import type { BanView, InviteView, LearnersPage, MadeInvite } from "../shared/api.js";
import { find, make, setText } from "../shared/dom.js";
import { nameOf } from "../shared/names.js";
import type { Owner } from "./owner.js";

/** Milliseconds of a day. */
const DAY_MS = 86_400_000;

/** The part of the dashboard with invites and bans. */
export class Guests {
  readonly #owner: Owner;
  readonly #box = find("guests", HTMLDetailsElement);
  readonly #said = find("guests-said", HTMLElement);
  readonly #invites = find("invites", HTMLUListElement);
  readonly #bans = find("bans", HTMLUListElement);
  readonly #whom = find("ban-whom", HTMLSelectElement);

  constructor(owner: Owner) {
    this.#owner = owner;
    owner.onToken((has) => {
      this.#box.hidden = !has;
    });
    this.#box.addEventListener("toggle", () => this.#box.open && void this.#look());
    find("invite-form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#invite();
    });
    find("ban-form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#whom.value) void this.#order("v1/bans", { fingerprint: this.#whom.value, note: "" }, "It is banned.");
    });
  }

  async #look(): Promise<void> {
    const [invites, bans, page] = await Promise.all([
      this.#owner.ask<InviteView[]>("v1/invites"),
      this.#owner.ask<BanView[]>("v1/bans"),
      this.#owner.ask<LearnersPage>("v1/learners?limit=200&sort=name"),
    ]);
    const refused = [invites, bans, page].find((answer) => !answer.ok);
    if (!invites.ok || !bans.ok || !page.ok) return this.#say(refused && !refused.ok ? refused.text : "", "trouble");
    this.#invites.replaceChildren(...invites.value.map((invite) => this.#inviteRow(invite)));
    this.#bans.replaceChildren(...bans.value.map((ban) => this.#banRow(ban)));
    const learners = page.value.learners.map((view) =>
      make("option", { value: view.fingerprint }, `${nameOf(view)} (${view.fingerprint.slice(0, 8)})`),
    );
    this.#whom.replaceChildren(make("option", { value: "" }, "Choose a learner"), ...learners);
  }

  async #invite(): Promise<void> {
    const number = (id: string) => find(id, HTMLInputElement).valueAsNumber;
    const [uses, days] = [number("invite-uses"), number("invite-days")];
    const body = { uses, expiresS: (days * DAY_MS) / 1_000, note: find("invite-note", HTMLInputElement).value };
    const made = await this.#owner.ask<MadeInvite>("v1/invites", body);
    if (!made.ok) return this.#say(made.text, "trouble");
    const link = new URL("./", location.href);
    link.hash = `invite=${made.value.invite}`;
    // Shown once: the syncer stores only its hash.
    this.#say(`Hand out this link; it is not shown again: ${link.href}`, "done");
    await this.#look();
  }

  #inviteRow(invite: InviteView): HTMLElement {
    const { id, note, uses, used } = invite;
    const state = stateOf(invite, Date.now());
    const row = make("li", {}, `${note || id}: ${used} of ${uses} used, ${state} `);
    if (state === "good") {
      const button = make("button", { type: "button", "aria-label": `Revoke the invite ${note || id}` }, "Revoke");
      button.addEventListener(
        "click",
        () => void this.#order(`v1/invites/${id}/revoke`, {}, "It admits no more learners."),
      );
      row.append(button);
    }
    return row;
  }

  #banRow({ fingerprint, note }: BanView): HTMLElement {
    const button = make("button", { type: "button", "aria-label": `Let ${fingerprint} come back` }, "Lift");
    button.addEventListener("click", () => void this.#order(`v1/bans/${fingerprint}/lift`, {}, "It may come back."));
    return make("li", {}, `${fingerprint.slice(0, 8)}… ${note} `, button);
  }

  async #order(path: string, body: object, done: string): Promise<void> {
    const answer = await this.#owner.ask<unknown>(path, body);
    this.#say(answer.ok ? done : answer.text, answer.ok ? "done" : "trouble");
    if (answer.ok) await this.#look();
  }

  #say(text: string, tone: string): void {
    this.#said.hidden = false;
    this.#said.dataset["tone"] = tone;
    setText(this.#said, text);
  }
}

/** Returns the state of an invite at `nowMs`. */
export function stateOf({ uses, used, expiresMs, revokedMs }: InviteView, nowMs: number): string {
  if (revokedMs !== null) return "revoked";
  if (expiresMs !== null && expiresMs <= nowMs) return "over";
  return used < uses ? "good" : "used up";
}
