/** Text generation by the model: it continues a visitor's text, computed in this page. */
import type { Writer } from "@archipelago-train/learner";
import { make, setText } from "./dom.js";
import { ago, bytes, count, legible } from "./format.js";

/** Facts of the run that the section needs. */
export interface Talked {
  readonly params: number;
  readonly tokensMerged: number;
  readonly tokenIsByte: boolean;
}

/** Limit of letters in a text; the newest stay. */
const SHOWN_MAX = 4_000;
/** Tokens of one request; another press of the button continues. */
const TOKENS = 400;

/** The section that talks with the model of the run at `syncer`. */
export class Talk {
  readonly #syncer: string;
  readonly #fetched: (bytes: number) => void;
  readonly #prompt = make("input", { id: "talk-prompt", type: "text", maxlength: "400", autocomplete: "off" });
  readonly #daring = make("input", { id: "talk-daring", type: "range", min: "0", max: "1.5", step: "0.1" });
  readonly #daringText = make("output", { for: "talk-daring", class: "quiet small" });
  readonly #go = make("button", { id: "talk-go", class: "primary", type: "submit" }, "Go on with it");
  readonly #anew = make("button", { id: "talk-anew", type: "button" }, "Fetch what it has learnt since");
  readonly #text = make("pre", {
    id: "talk-text",
    class: "sample",
    tabindex: "0",
    "aria-label": "What the model writes",
  });
  readonly #state = make("p", { id: "talk-state", class: "quiet small", role: "status" });
  #writer: Writer | undefined;
  #working: AbortController | undefined;
  /** Whether the button was pressed: its result must not be overwritten. */
  #tried = false;
  #params = 0;
  /** Whether nothing was merged yet. */
  #green = false;
  #tokenIsByte = true;

  /** Fills `section`; `fetched` gets the number of bytes fetched for the model. */
  constructor(section: HTMLElement, syncer: string, fetched: (bytes: number) => void = () => {}) {
    this.#syncer = syncer;
    this.#fetched = fetched;
    this.#prompt.value = "Once upon a time";
    this.#daring.value = "0.8";
    const form = make(
      "form",
      { class: "stack" },
      make(
        "div",
        { class: "field" },
        make("label", { for: "talk-prompt" }, "Begin a text"),
        this.#prompt,
        make("p", { class: "hint" }, "The model continues it, letter by letter. It has read only the run's text."),
      ),
      make(
        "div",
        { class: "field" },
        make("label", { for: "talk-daring" }, "How daring it writes"),
        this.#daring,
        this.#daringText,
      ),
      make("div", { class: "actions" }, this.#go, this.#anew),
    );
    this.#anew.hidden = true;
    this.#text.hidden = true;
    section.append(make("h2", { id: "talk-title" }, "Talk to the model"), form, this.#text, this.#state);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#working) this.#working.abort();
      else void this.#write();
    });
    this.#anew.addEventListener("click", () => void this.#refresh());
    this.#daring.addEventListener("input", () => this.#showDaring());
    this.#showDaring();
  }

  /** Takes the status of the run. */
  look({ params, tokensMerged, tokenIsByte }: Talked): void {
    [this.#params, this.#tokenIsByte] = [params, tokenIsByte];
    this.#green = tokensMerged === 0;
    if (!this.#tried) this.#sayCost();
  }

  #sayCost(): void {
    if (this.#params === 0) return;
    const noise = this.#green ? "It has learnt nothing yet and writes noise. " : "";
    const spelt = this.#tokenIsByte ? "" : "What you write goes to the run's syncer, which cuts it into tokens. ";
    const size = bytes(2 * this.#params);
    const cost = `Computed in this page. The first text fetches the model, ${size}; nothing is fetched before.`;
    setText(this.#state, `${noise}${spelt}${cost}`);
  }

  #showDaring(): void {
    const value = Number(this.#daring.value);
    const words =
      value === 0 ? "always the likeliest letter" : value < 0.6 ? "careful" : value <= 1 ? "as it has learnt" : "wild";
    setText(this.#daringText, `${value.toFixed(1)}: ${words}`);
    this.#daring.setAttribute("aria-valuetext", words);
  }

  async #open(): Promise<Writer> {
    // The writer's code is loaded only on the first request.
    const { Writer } = await import("@archipelago-train/learner");
    this.#writer ??= new Writer(this.#syncer);
    return this.#writer;
  }

  /** Runs `work` until it ends or is stopped, with a stop button; counts its traffic in any case. */
  async #busy(work: (writer: Writer, signal: AbortSignal) => Promise<string>): Promise<void> {
    const working = new AbortController();
    this.#working = working;
    this.#tried = true;
    setText(this.#go, "Stop");
    this.#anew.disabled = true;
    let before = 0;
    try {
      const writer = await this.#open();
      before = writer.fetchedBytes;
      const said = await work(writer, working.signal);
      setText(this.#state, working.signal.aborted ? `Stopped. ${said}` : said);
    } catch (error) {
      setText(this.#state, working.signal.aborted ? "Stopped." : `The model could not write: ${messageOf(error)}.`);
    } finally {
      this.#working = undefined;
      this.#fetched((this.#writer?.fetchedBytes ?? 0) - before);
      setText(this.#go, "Go on with it");
      this.#anew.disabled = false;
      this.#anew.hidden = !this.#writer?.facts;
    }
  }

  #refresh(): Promise<void> {
    return this.#busy(async (writer, signal) => {
      setText(this.#state, "Fetching the model…");
      const { params } = await writer.refresh({ signal });
      return `The model as of now is here: ${bytes(2 * params)} fetched.`;
    });
  }

  async #write(): Promise<void> {
    const prompt = this.#prompt.value;
    if (prompt === "") {
      setText(this.#state, "Begin the text with at least one letter.");
      return this.#prompt.focus();
    }
    const written = document.createTextNode("");
    this.#text.replaceChildren(make("b", {}, legible(prompt)), written);
    this.#text.hidden = false;
    await this.#busy(async (writer, signal) => {
      if (!writer.facts) {
        setText(this.#state, "Fetching the model…");
        await writer.refresh({ signal });
      }
      setText(this.#state, "It writes…");
      const [began, age] = [performance.now(), (performance.now() - (writer.facts?.fetchedMs ?? 0)) / 1_000];
      let [text, letters] = ["", 0];
      const options = { temperature: Number(this.#daring.value), tokens: TOKENS, signal };
      for await (const piece of writer.write(prompt, options)) {
        letters += piece.length;
        text = (text + piece).slice(-SHOWN_MAX);
        written.data = legible(text);
        this.#text.scrollTop = this.#text.scrollHeight;
      }
      const rate = Math.round((letters / Math.max(1, performance.now() - began)) * 1_000);
      return `${count(letters)} letters, ${count(rate)} a second, by the model as of ${ago(age)}.`;
    });
  }
}

function messageOf(error: unknown): string {
  return (error instanceof Error ? error.message : String(error)).replace(/\.$/, "");
}
