/** The visitor's settings, stored in this browser. */

/** Levels of computing intensity. */
export const MODES = {
  gentle: { share: 0.25, label: "Gentle", says: "a quarter of the time; you will not notice it" },
  balanced: { share: 0.6, label: "Balanced", says: "a little over half of the time" },
  all: { share: 1, label: "All", says: "all of the time; fans may turn" },
} as const;

export type Mode = keyof typeof MODES;

/** Hours of a day, from and to, 0 to 24; the end may be earlier than the start, past midnight. */
export interface Hours {
  readonly from: number;
  readonly to: number;
}

export interface Settings {
  readonly name: string;
  readonly engine: "auto" | "gpu" | "cpu";
  readonly mode: Mode;
  /** Whether to rest while the machine runs on its battery. */
  readonly restOnBattery: boolean;
  /** Whether to rest while the page is hidden. */
  readonly restHidden: boolean;
  /** Limit of bytes to send, receive and fetch in a day; 0 for none. */
  readonly bytesMax: number;
  /** Hours of training; `null` for any. */
  readonly hours: Hours | null;
  /** Whether to keep the screen on while training. */
  readonly wakeLock: boolean;
  /** Whether to continue after a reload of this tab. */
  readonly resume: boolean;
}

export const DEFAULTS: Settings = {
  name: "",
  engine: "auto",
  mode: "balanced",
  restOnBattery: true,
  restHidden: false,
  bytesMax: 0,
  hours: null,
  wakeLock: false,
  resume: false,
};

const KEY = "archipelago.settings";
const RUNNING = "archipelago.running";

/** Loads the settings; invalid values get their defaults. */
export function readSettings(): Settings {
  let kept: Partial<Record<keyof Settings, unknown>> = {};
  try {
    const parsed: unknown = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    if (parsed && typeof parsed === "object") kept = parsed;
  } catch {
    // No storage, or invalid content: uses the defaults.
  }
  const flag = (name: "restOnBattery" | "restHidden" | "wakeLock" | "resume") =>
    typeof kept[name] === "boolean" ? kept[name] : DEFAULTS[name];
  return {
    name: typeof kept.name === "string" ? kept.name.slice(0, 64) : DEFAULTS.name,
    engine: kept.engine === "gpu" || kept.engine === "cpu" ? kept.engine : DEFAULTS.engine,
    mode: kept.mode === "gentle" || kept.mode === "all" ? kept.mode : DEFAULTS.mode,
    restOnBattery: flag("restOnBattery"),
    restHidden: flag("restHidden"),
    bytesMax: typeof kept.bytesMax === "number" && kept.bytesMax > 0 ? kept.bytesMax : DEFAULTS.bytesMax,
    hours: readHours(kept.hours),
    wakeLock: flag("wakeLock"),
    resume: flag("resume"),
  };
}

/** Stores the settings, if storage allows. */
export function keepSettings(settings: Settings): void {
  try {
    localStorage.setItem(KEY, JSON.stringify(settings));
  } catch {
    // The settings last as long as the page.
  }
}

/** Notes whether this tab trains, for a reload. */
export function noteRunning(running: boolean): void {
  try {
    if (running) sessionStorage.setItem(RUNNING, "1");
    else sessionStorage.removeItem(RUNNING);
  } catch {
    // After a reload the visitor must press the button again.
  }
}

/** Whether this tab trained when it was left. */
export function wasRunning(): boolean {
  try {
    return sessionStorage.getItem(RUNNING) !== null;
  } catch {
    return false;
  }
}

function readHours(kept: unknown): Hours | null {
  if (!kept || typeof kept !== "object") return null;
  const { from, to } = kept as Partial<Hours>;
  const sane = (hour: unknown): hour is number => typeof hour === "number" && hour >= 0 && hour <= 24;
  return sane(from) && sane(to) && from !== to ? { from, to } : null;
}
