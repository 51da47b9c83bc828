/** The viewer's choices for the charts, as stored in the page's address. */
import type { Axis, Shown } from "./columns.js";

/** Reach of a smoothing mean, as a share of the x axis. */
export const SMOOTHING = { none: 0, light: 0.01, strong: 0.05 } as const;

export interface Choice {
  readonly axis: Axis;
  /** Whether the loss has a logarithmic scale. */
  readonly log: boolean;
  readonly smoothing: keyof typeof SMOOTHING;
  readonly shown: Shown;
}

export const DEFAULTS: Choice = { axis: "time", log: false, smoothing: "none", shown: null };

/** Query fields of the choices. */
const OURS = ["x", "loss", "smooth", "last", "from", "to"];

/** Reads the choices from a query; invalid values get their defaults. */
export function readChoice(search: string): Choice {
  const fields = new URLSearchParams(search);
  const smoothing = fields.get("smooth");
  return {
    axis: fields.get("x") === "tokens" ? "tokens" : DEFAULTS.axis,
    log: fields.get("loss") === "log",
    smoothing: smoothing === "light" || smoothing === "strong" ? smoothing : DEFAULTS.smoothing,
    shown: readShown(fields),
  };
}

function readShown(fields: URLSearchParams): Shown {
  const number = (name: string): number => Number.parseFloat(fields.get(name) ?? "");
  const [lastS, from, to] = [number("last"), number("from"), number("to")];
  if (lastS > 0 && lastS < Number.POSITIVE_INFINITY) return { lastS };
  return from >= 0 && to > from && to < Number.POSITIVE_INFINITY ? { from, to } : null;
}

/** Writes the choices into `search`; leaves out defaults, and keeps other fields. */
export function writeChoice({ axis, log, smoothing, shown }: Choice, search: string): string {
  const fields = new URLSearchParams(search);
  for (const name of OURS) fields.delete(name);
  if (axis !== DEFAULTS.axis) fields.set("x", axis);
  if (log) fields.set("loss", "log");
  if (smoothing !== DEFAULTS.smoothing) fields.set("smooth", smoothing);
  if (shown && "lastS" in shown) fields.set("last", String(shown.lastS));
  else if (shown) for (const [name, value] of Object.entries(shown)) fields.set(name, String(rounded(value)));
  const text = fields.toString();
  return text === "" ? "" : `?${text}`;
}

/** Rounds to seven digits, more than a screen has pixels. */
function rounded(value: number): number {
  return Number(value.toPrecision(7));
}
