/** Texts of this page. */
import { find, setText } from "../shared/dom.js";

/** Sets the text of the element with this id. */
export function say(id: string, text: string): void {
  setText(find(id, HTMLElement), text);
}
