/** The owner's controls on this page. */
import type { ServerStatus } from "../shared/api.js";
import { find, setText } from "../shared/dom.js";
import { keepToken, recallToken, takeToken } from "../shared/token.js";

type Order = "pause" | "resume" | "finish";

/** Outcome of an order, with the reason if it was refused. */
export type Answer = { readonly ok: true } | Refusal;

interface Refusal {
  readonly ok: false;
  readonly text: string;
  readonly tone: "trouble";
  /** Whether the token does not belong to the run. */
  readonly denied?: true;
}

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
    this.#token.value = recallToken();
    this.#token.addEventListener("input", () => keepToken(this.#token.value));
    this.#take();
    // Opening an owner's link over this page changes the fragment without a reload.
    window.addEventListener("hashchange", () => this.#take());
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

  /** Offers the orders that the run's state permits. */
  show(status: ServerStatus): void {
    this.#paused = status.paused;
    setText(this.#pause, status.paused ? "Resume the run" : "Pause the run");
    this.#pause.disabled = status.finishing;
    this.#finish.disabled = status.finishing;
  }

  /** Calls `listener` now and after each change of the token, with whether there is one. */
  onToken(listener: (has: boolean) => void): void {
    const tell = () => listener(this.#token.value.trim() !== "");
    this.#token.addEventListener("input", tell);
    tell();
  }

  /** Takes a token that was typed elsewhere on the page. */
  give(token: string): void {
    this.#token.value = token;
    this.#token.dispatchEvent(new Event("input"));
  }

  /** Sends an owner's request, as POST if there is a body; returns the JSON of the answer, if any. */
  async ask<T>(path: string, body?: object): Promise<{ readonly ok: true; readonly value: T } | Refusal> {
    const answer = await this.#send(`./${path}`, body ? "POST" : "GET", body);
    if (!(answer instanceof Response)) return answer;
    const isJson = answer.headers.get("content-type")?.startsWith("application/json");
    return { ok: true, value: (isJson ? await answer.json() : null) as T };
  }

  /** Sends an order to the syncer; returns the reason if it was refused. */
  async order(path: string, body?: object): Promise<Answer> {
    const answer = await this.#send(`./v1/admin/${path}`, "POST", body);
    return answer instanceof Response ? { ok: true } : answer;
  }

  /** Sends a request with the token; returns the answer or a refusal. */
  async #send(path: string, method: "GET" | "POST", body?: object): Promise<Response | Refusal> {
    try {
      const headers: Record<string, string> = { Authorization: `Bearer ${this.#token.value.trim()}` };
      if (body) headers["content-type"] = "application/json";
      const answer = await fetch(path, { method, headers, body: body ? JSON.stringify(body) : null });
      if (answer.ok) return answer;
      if (answer.status === 401) {
        const text = "That is not the token of this run. It is in the file admin.token in the run's folder.";
        return { ...trouble(text), denied: true };
      }
      return trouble(`The syncer answered ${answer.status}: ${(await answer.text()).trim().slice(0, 300)}`);
    } catch (error) {
      const unsendable = error instanceof TypeError && /[^\x20-\x7e]/.test(this.#token.value);
      return trouble(
        unsendable ? "A token has plain letters and digits only." : "The syncer could not be reached; try again.",
      );
    }
  }

  #take(): void {
    const token = takeToken();
    if (token !== "") this.give(token);
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

function trouble(text: string): Refusal {
  return { ok: false, text, tone: "trouble" };
}
