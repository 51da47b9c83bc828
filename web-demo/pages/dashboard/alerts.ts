/** Alerts for the owner, at the top of the page. */
import type { AlertKind, AlertView } from "../shared/api.js";
import { fillRows, find, make, setText } from "../shared/dom.js";

/** The banner of alerts. */
export class AlertBanner {
  readonly #list = find("alerts", HTMLElement);
  /** Start of each alert as first shown: screen readers would repeat a varying time. */
  #since = new Map<AlertKind, string>();

  /** Shows the active alerts. */
  show(alerts: readonly AlertView[]): void {
    this.#since = new Map(alerts.map((alert) => [alert.kind, this.#since.get(alert.kind) ?? sinceOf(alert)]));
    const blank = () => make("p", { class: "notice", "data-tone": "trouble" });
    fillRows(this.#list, alerts, blank, (row, { kind, text }) =>
      setText(row, `${text} Alert since ${this.#since.get(kind)}.`),
    );
  }
}

/** Returns "14:05", with the date if that is not today. */
function sinceOf({ forS }: AlertView): string {
  const at = new Date(Date.now() - forS * 1_000);
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString()}, ${time}`;
}
