/** The link to the displayed moment, and its digest, which is the same on every machine. */

import { find, say, setText } from "../shared/dom.js";
import { copyFrom } from "../shared/link.js";
import { phrase } from "../words/phrase.js";
import type { Stage } from "./run/stage.js";

/** The fragment for this moment, and the parts that do not fit a link. */
export interface Linked {
  readonly hash: string;
  readonly leftOut: string | null;
}

export class Share {
  readonly #stage: Stage;
  readonly #link = find("link", HTMLInputElement);
  readonly #said = find("link-said", HTMLElement);
  readonly #digest = find("digest", HTMLElement);
  readonly #linked: () => Linked;

  constructor(stage: Stage, linked: () => Linked) {
    this.#stage = stage;
    this.#linked = linked;
    this.#link.addEventListener("focus", () => {
      this.#write();
      this.#link.select();
    });
    find("copy", HTMLButtonElement).addEventListener("click", () => void this.#copy());
  }

  async #copy(): Promise<void> {
    const leftOut = this.#write();
    const copied = await copyFrom(this.#link);
    say(
      this.#said,
      leftOut === null
        ? phrase(copied ? "share.copied" : "share.selected")
        : phrase(copied ? "share.copiedPartly" : "share.selectedPartly", { leftOut }),
    );
  }

  /** Writes the link to this moment into its field, and returns the parts that do not fit. */
  #write(): string | null {
    const { hash, leftOut } = this.#linked();
    const url = new URL(location.href);
    url.hash = hash;
    this.#link.value = url.href;
    return leftOut;
  }

  /** Shows the digest of a moment that stands still. */
  async settle(): Promise<void> {
    this.#write();
    const atMs = this.#stage.clock.targetMs;
    const { lesson, twin } = await this.#stage.digests();
    // The run may have continued meanwhile.
    if (this.#stage.clock.targetMs === atMs)
      setText(this.#digest, phrase("share.digestAt", { ms: atMs, lesson, twin }));
  }

  clear(): void {
    this.#link.value = "";
    setText(this.#digest, phrase("share.pauseFirst"));
    setText(this.#said, "");
  }
}
