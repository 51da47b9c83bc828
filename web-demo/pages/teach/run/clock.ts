/** Displayed virtual time: steady at the chosen speed if the Workers keep up, else slower. */
import { LESSON_MS_MAX } from "../../shared/lesson.js";

/** Lead of the Workers over the display, in milliseconds of the wall clock. */
const LEAD_MS = 160;
/** Longest counted gap between two frames: a page that slept continues where it was. */
const GAP_MS = 100;
/** Weight of one second in the displayed speed. */
const PACE_MS = 1_000;

export class Clock {
  /** The displayed moment. */
  shownMs = 0;
  /** The moment for the Workers to reach; a whole number that never decreases. */
  targetMs = 0;
  /** Requested ratio of virtual to wall time. */
  speed = 1;
  playing = false;
  /** End of this run. */
  endMs = LESSON_MS_MAX;
  /** Recent ratio of virtual to wall time. */
  pace = 1;
  #replayMs = 0;

  /** Restarts at 0, with this much to catch up before normal play. */
  reset(targetMs: number): void {
    this.shownMs = 0;
    this.targetMs = this.#replayMs = Math.min(targetMs, this.endMs);
    this.pace = this.speed;
  }

  /** Moves on by `wallMs`; both Workers have reached `reachedMs`. */
  tick(wallMs: number, reachedMs: number): void {
    const gap = Math.min(wallMs, GAP_MS);
    const before = this.shownMs;
    if (this.playing) {
      const wanted = Math.min(this.shownMs + this.speed * (LEAD_MS + gap), reachedMs + this.speed * (LEAD_MS + GAP_MS));
      this.targetMs = Math.max(this.targetMs, Math.min(this.endMs, Math.ceil(wanted)));
    }
    const onward = this.isReplaying ? reachedMs : this.shownMs + this.speed * gap;
    // Catches up without showing all of a long distance.
    const floor = reachedMs - 3 * this.speed * LEAD_MS;
    this.shownMs = Math.max(this.shownMs, Math.min(reachedMs, Math.max(onward, floor)));
    if (gap > 0 && this.playing) {
      const weight = Math.min(1, gap / PACE_MS);
      this.pace += weight * ((this.shownMs - before) / gap - this.pace);
    }
    if (this.isOver) this.playing = false;
  }

  /** Whether nothing is left to play. */
  get isOver(): boolean {
    return this.shownMs >= this.endMs;
  }

  /** Whether it is still catching up to its first moment. */
  get isReplaying(): boolean {
    return this.shownMs < this.#replayMs;
  }

  /** Whether the Workers are too slow for the requested speed. */
  get isSlow(): boolean {
    return this.playing && this.pace < 0.85 * this.speed;
  }
}
