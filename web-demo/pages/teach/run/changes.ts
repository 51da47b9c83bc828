/** Settings that can change during a run, and those that start a new one. */
import type { Change, LessonSpec, Setting } from "../../shared/lesson.js";
import { settled } from "./knobs.js";

type KeyOf<T> = T extends unknown ? keyof T : never;
/** A setting that can change during a run. */
export type LiveKey = KeyOf<Setting>;

/** All of them; the type requires each to be listed, and no other. */
const LIVE: Readonly<Record<LiveKey, true>> = {
  quorum: true,
  grace: true,
  roundsInFlight: true,
  merge: true,
  lockstep: true,
  stepMs: true,
  spread: true,
  jitter: true,
  latencyMs: true,
  kilobytesPerS: true,
  loss: true,
};

/** Whether a run continues after a change of this setting. */
export function isLive(key: keyof LessonSpec): key is LiveKey {
  return key in LIVE;
}

/** Returns `key` with its value in `spec`, as a change. */
export function settingOf(spec: LessonSpec, key: LiveKey): Setting {
  return { [key]: spec[key] } as Setting;
}

/** Returns the one setting of a change, and its value. */
export function partsOf(setting: Setting): readonly [LiveKey, LessonSpec[LiveKey]] {
  return Object.entries(setting)[0] as [LiveKey, LessonSpec[LiveKey]];
}

/** Settings in force from a moment on. */
export interface Stretch {
  readonly fromMs: number;
  readonly spec: LessonSpec;
}

/** Returns the settings of a run over time, from its initial `spec`; `changes` are by time. */
export function stretchesOf(spec: LessonSpec, changes: readonly Change[]): Stretch[] {
  const stretches: Stretch[] = [{ fromMs: 0, spec }];
  for (const { atMs, to } of changes) {
    const { spec: before } = stretches.at(-1)!;
    stretches.push({ fromMs: atMs, spec: settled({ ...before, ...to }) });
  }
  return stretches;
}
