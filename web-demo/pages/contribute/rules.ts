/** Decides by the visitor's rules whether to train now. Pure. */
import type { Sentence } from "../shared/sentence.js";
import type { Hours, Settings } from "./settings.js";

/** Conditions of the machine. */
export interface Conditions {
  /** Whether it runs on its battery; undefined if the browser does not report it. */
  readonly onBattery: boolean | undefined;
  readonly hidden: boolean;
  /** Bytes sent, received and fetched today. */
  readonly bytes: number;
  /** Local time in hours, 0 to 24. */
  readonly hour: number;
  /** Whether the visitor pressed Pause. */
  readonly paused: boolean;
}

/** Verdict of the rules: train, rest for now, or end. */
export type Verdict = { readonly do: "train" } | { readonly do: "rest" | "end"; readonly why: Sentence };

/** Returns the verdict of the first rule that forbids training. */
export function judge(settings: Settings, now: Conditions): Verdict {
  if (settings.bytesMax > 0 && now.bytes >= settings.bytesMax) {
    return { do: "end", why: { tone: "done", text: "Stopped: your data cap is reached." } };
  }
  if (now.paused) return rest("Paused by you: nothing computes.");
  if (settings.hours && !isWithin(settings.hours, now.hour)) {
    return rest(`Resting until ${clock(settings.hours.from)}, as your schedule says.`);
  }
  if (settings.restOnBattery && now.onBattery) return rest("Resting: this machine runs on its battery.");
  if (settings.restHidden && now.hidden) return rest("Resting: this page is hidden.");
  return { do: "train" };
}

function rest(text: string): Verdict {
  return { do: "rest", why: { tone: "held", text } };
}

function isWithin({ from, to }: Hours, hour: number): boolean {
  return from < to ? from <= hour && hour < to : hour >= from || hour < to;
}

/** Formats 7.5 as 07:30. */
export function clock(hour: number): string {
  const minutes = Math.round(hour * 60);
  return `${String(Math.floor(minutes / 60)).padStart(2, "0")}:${String(minutes % 60).padStart(2, "0")}`;
}
