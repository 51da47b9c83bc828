/** The page after the run is complete: its last text, the visitor's part, and the model. */
import type { ServerStatus } from "../shared/api.js";
import { find } from "../shared/dom.js";
import type { Sentence } from "../shared/sentence.js";

/** Sentence for a complete run. */
export const COMPLETE: Sentence = { tone: "done", text: "The run is complete. Thank you." };

/** Removes the controls for joining, and offers the model, once the run is complete. */
export function showComplete({ finished }: ServerStatus): void {
  document.body.classList.toggle("complete", finished);
  find("take-home", HTMLElement).hidden = !finished;
}
