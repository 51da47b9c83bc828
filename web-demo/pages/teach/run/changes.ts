/** Settings that change while a run goes on, and those that begin a new one. */
import type { Change, LessonSpec, Setting } from "../../shared/lesson.js";
import { settled } from "./knobs.js";

type KeyOf<T> = T extends unknown ? keyof T : never;
/** A setting that a run can take while it goes on. */
export type LiveKey = KeyOf<Setting>;

/** All of them: the type has each to be named, and no other. */
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

/** Whether a run goes on when this setting changes. */
export function isLive(key: keyof LessonSpec): key is LiveKey {
  return key in LIVE;
}

/** `key` with its value in `spec`, as a change. */
export function settingOf(spec: LessonSpec, key: LiveKey): Setting {
  return { [key]: spec[key] } as Setting;
}

/** The one setting of a change, and its value. */
export function partsOf(setting: Setting): readonly [LiveKey, LessonSpec[LiveKey]] {
  return Object.entries(setting)[0] as [LiveKey, LessonSpec[LiveKey]];
}

/** What holds from a moment on. */
export interface Stretch {
  readonly fromMs: number;
  readonly spec: LessonSpec;
}

/** The settings of a run that began with `spec`, from moment to moment; `changes` are by time. */
export function stretchesOf(spec: LessonSpec, changes: readonly Change[]): Stretch[] {
  const stretches: Stretch[] = [{ fromMs: 0, spec }];
  for (const { atMs, to } of changes) {
    const { spec: before } = stretches.at(-1)!;
    stretches.push({ fromMs: atMs, spec: settled({ ...before, ...to }) });
  }
  return stretches;
}
