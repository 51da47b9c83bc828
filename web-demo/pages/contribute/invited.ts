/** The notice and the field for an invite code, shown before the start in invite-only runs, and after a refused invite. */
import type { ServerStatus } from "../shared/api.js";
import { find, setText } from "../shared/dom.js";
import { invite } from "../shared/link.js";
import type { Sentence } from "../shared/sentence.js";
import { readGiven } from "./given.js";

const NEEDED =
  "Only invited learners may join this run. Open the whole link that you were given, or type its invite code here.";
const OTHER = "Type another invite code here, or open another link.";

/** Returns the invite code in `text`, which is a code or a whole link. Returns an empty string otherwise. */
export function codeIn(text: string): string {
  const [, found = text.trim()] = /[#&]invite=([^&\s]*)/.exec(text) ?? [];
  return /^[A-Za-z0-9_-]{1,64}$/.test(found) ? found : "";
}

/** Returns the sentence about an invite that was refused for `reason`, or about a missing one. */
export function refusedInvite(reason: string, hadInvite: boolean): Sentence {
  const ask = "Ask the person who invited you for another one.";
  if (!hadInvite) return { tone: "trouble", text: "Not training: only invited learners may join this run." };
  const why = /used up/.test(reason)
    ? "your invite is used up"
    : /revoked/.test(reason)
      ? "your invite was revoked"
      : /\bover\b|expired/.test(reason)
        ? "your invite has expired"
        : "your invite is not valid for this run";
  return { tone: "trouble", text: `Not training: ${why}. ${ask}` };
}

/** The field for an invite code. */
export class InviteField {
  readonly #box = find("invited", HTMLElement);
  readonly #note = find("invited-note", HTMLElement);
  readonly #code = find("invite-code", HTMLInputElement);
  #isRefused = false;

  /** Shows the field to a newcomer without an invite if the run requires one. */
  look({ inviteRequired, finished, run }: ServerStatus): void {
    // A learner that took part before needs no invite: the syncer knows its key.
    const isMissing = inviteRequired && invite() === "" && readGiven(run).tokens === 0;
    const isWanted = !finished && (this.#isRefused || isMissing);
    if (isWanted && this.#box.hidden) setText(this.#note, NEEDED);
    this.#box.hidden = !isWanted;
  }

  /** Shows the field because the syncer requires an invite, or refused the given one. */
  refused(): void {
    this.#isRefused = true;
    setText(this.#note, invite() === "" ? NEEDED : OTHER);
    this.#box.hidden = false;
  }

  /** Puts the typed code into the page's address. Returns why no code can be used, or an empty string. */
  take(): string {
    if (this.#box.hidden) return "";
    const typed = this.#code.value;
    const code = codeIn(typed);
    if (code === "") {
      this.#code.focus();
      return typed.trim() === ""
        ? "Type the code of your invite first, or open the whole link that you were given."
        : "That is not an invite code, which has 1 to 64 letters, digits, hyphens and underscores.";
    }
    history.replaceState(history.state, "", `#invite=${code}`);
    [this.#isRefused, this.#box.hidden, this.#code.value] = [false, true, ""];
    return "";
  }
}
