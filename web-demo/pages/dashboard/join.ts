/** The code for joining a class: large at first, then in a corner; a click enlarges it again. */
import type { ServerStatus } from "../shared/api.js";
import { find, make, setAttribute, setText } from "../shared/dom.js";
import { invite, isLocal, LISTEN } from "../shared/link.js";

export class Join {
  readonly #section = find("classroom", HTMLElement);
  readonly #grow = find("classroom-grow", HTMLButtonElement);
  readonly #note = find("classroom-note", HTMLElement);
  #link = "";
  #grown = false;

  constructor() {
    this.#grow.addEventListener("click", () => {
      this.#grown = !this.#grown;
      this.#settle();
    });
  }

  show(link: string, status: ServerStatus, joined: boolean): void {
    if (!joined) this.#grown = false;
    setAttribute(this.#grow, "aria-disabled", joined ? null : "true");
    const local = isLocal(link);
    this.#grow.hidden = local;
    const lacks = status.inviteRequired && invite() === "";
    const missing = "The invite is missing here: open this page with the link that the syncer printed.";
    this.#note.hidden = !local && !lacks;
    setText(this.#note, local ? LISTEN : lacks ? missing : "");
    this.#settle();
    this.#draw(link);
  }

  #settle(): void {
    this.#section.classList.toggle("grown", this.#grown);
    const small = this.#section.classList.contains("joined") && !this.#grown;
    setAttribute(this.#grow, "aria-expanded", String(!small));
  }

  #draw(link: string): void {
    if (link === this.#link) return;
    this.#link = link;
    const [place = link, fragment] = link.split(/(?=#)/);
    find("classroom-link", HTMLElement).replaceChildren(place, ...(fragment ? [make("wbr"), fragment] : []));
    // Loaded separately, so that other runs load none of it.
    void import("../shared/qr.js").then(({ drawCode }) => drawCode(find("classroom-code", HTMLCanvasElement), link));
  }
}
