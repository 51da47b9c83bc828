/** What the owner should look after, at the top of the page. */
import type { AlertKind, AlertView } from "../shared/api.js";
import { fillRows, find, make, setText } from "../shared/dom.js";

/** The banner of alerts. */
export class AlertBanner {
  readonly #list = find("alerts", HTMLElement);
  /** When each began, as it was first shown: a time that wavered would be read out again and again. */
  #since = new Map<AlertKind, string>();

  /** Shows those that are on. */
  show(alerts: readonly AlertView[]): void {
    this.#since = new Map(alerts.map((alert) => [alert.kind, this.#since.get(alert.kind) ?? sinceOf(alert)]));
    const blank = () => make("p", { class: "notice", "data-tone": "trouble" });
    fillRows(this.#list, alerts, blank, (row, { kind, text }) =>
      setText(row, `${text} Alert since ${this.#since.get(kind)}.`),
    );
  }
}

/** "14:05", or with the day if that is another one. */
function sinceOf({ forS }: AlertView): string {
  const at = new Date(Date.now() - forS * 1_000);
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString()}, ${time}`;
}
