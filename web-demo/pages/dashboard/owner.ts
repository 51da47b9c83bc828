/** What the run's owner can do here. The token stays in this tab: in its session storage, and in one header. */
import type { ServerStatus } from "../shared/api.js";
import { find, setText } from "../shared/dom.js";

const KEPT = "archipelago.admin";

type Order = "pause" | "resume" | "finish";

/** Whether an order was taken, and if not, why. */
export type Answer = { readonly ok: true } | { readonly ok: false; readonly text: string; readonly tone: "trouble" };

/** The owner's controls. */
export class Owner {
  readonly #form = find("owner-form", HTMLFormElement);
  readonly #token = find("owner-token", HTMLInputElement);
  readonly #said = find("owner-said", HTMLElement);
  readonly #pause = find("owner-pause", HTMLButtonElement);
  readonly #finish = find("owner-finish", HTMLButtonElement);
  readonly #confirm = find("finish-dialog", HTMLDialogElement);
  #paused = false;

  constructor() {
    this.#token.value = recall();
    this.#token.addEventListener("input", () => keep(this.#token.value));
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#tell(this.#paused ? "resume" : "pause");
    });
    this.#finish.addEventListener("click", () => this.#hasToken() && this.#confirm.showModal());
    find("finish-yes", HTMLButtonElement).addEventListener("click", () => {
      this.#confirm.close();
      void this.#tell("finish");
    });
    find("finish-no", HTMLButtonElement).addEventListener("click", () => this.#confirm.close());
  }

  /** Offers what the run's state allows. */
  show(status: ServerStatus): void {
    this.#paused = status.paused;
    setText(this.#pause, status.paused ? "Resume the run" : "Pause the run");
    this.#pause.disabled = status.finishing;
    this.#finish.disabled = status.finishing;
  }

  /** Calls `listener` now and whenever a token comes or goes, with whether there is one. */
  onToken(listener: (has: boolean) => void): void {
    const tell = () => listener(this.#token.value.trim() !== "");
    this.#token.addEventListener("input", tell);
    tell();
  }

  /** Leads to the field for the token. */
  ask(): void {
    const folded = this.#form.closest("details");
    if (folded) folded.open = true;
    this.#token.focus();
  }

  /** Gives the syncer an order; what to say if it was not taken. */
  async order(path: string, body?: object): Promise<Answer> {
    try {
      const headers: Record<string, string> = { Authorization: `Bearer ${this.#token.value.trim()}` };
      if (body) headers["content-type"] = "application/json";
      const answer = await fetch(`./v1/admin/${path}`, {
        method: "POST",
        headers,
        body: body ? JSON.stringify(body) : null,
      });
      if (answer.ok) return { ok: true };
      if (answer.status === 401) {
        return trouble("That is not the token of this run. It is in the file admin.token in the run's folder.");
      }
      return trouble(`The syncer answered ${answer.status}: ${(await answer.text()).trim().slice(0, 300)}`);
    } catch (error) {
      const unsendable = error instanceof TypeError && /[^\x20-\x7e]/.test(this.#token.value);
      return trouble(
        unsendable ? "A token has plain letters and digits only." : "The syncer could not be reached; try again.",
      );
    }
  }

  #hasToken(): boolean {
    if (this.#token.value.trim()) return true;
    this.#say("Type the run's token first; it is in the file admin.token in the run's folder.", "held");
    this.#token.focus();
    return false;
  }

  async #tell(order: Order): Promise<void> {
    if (!this.#hasToken()) return;
    this.#say("Asking the syncer…", "waiting");
    const answer = await this.order(order);
    if (!answer.ok) this.#say(answer.text, answer.tone);
    else
      this.#say(
        { pause: "The run is paused.", resume: "The run goes on.", finish: "The run finishes." }[order],
        "done",
      );
  }

  #say(text: string, tone: string): void {
    this.#said.hidden = false;
    this.#said.dataset["tone"] = tone;
    setText(this.#said, text);
  }
}

function trouble(text: string): Answer {
  return { ok: false, text, tone: "trouble" };
}

function recall(): string {
  try {
    return sessionStorage.getItem(KEPT) ?? "";
  } catch {
    return "";
  }
}

function keep(token: string): void {
  try {
    sessionStorage.setItem(KEPT, token);
  } catch {
    // Storage may be switched off; then the token is typed again after a reload.
  }
}
