/** What this page is for once the run is complete: its last text, one's own part in it, and the model. */
import type { ServerStatus } from "../shared/api.js";
import { find } from "../shared/dom.js";
import type { Sentence } from "../shared/sentence.js";

/** What is said of a run that is complete. */
export const COMPLETE: Sentence = { tone: "done", text: "The run is complete. Thank you." };

/** Takes away what belongs to joining, and offers the model, once nobody can join any more. */
export function showComplete({ finished }: ServerStatus): void {
  document.body.classList.toggle("complete", finished);
  find("take-home", HTMLElement).hidden = !finished;
}
