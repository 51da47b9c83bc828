/** Virtual time as the page shows it: even, at the chosen speed where the Workers keep up, slower where they do not. */
import { LESSON_MS_MAX } from "../../shared/lesson.js";

/** How far the Workers may run ahead of what is shown, in milliseconds of the wall clock. */
const LEAD_MS = 160;
/** A gap between two frames counts as this much at most: a page that slept goes on where it was. */
const GAP_MS = 100;
/** Weight of a second in what is said of the speed. */
const PACE_MS = 1_000;

export class Clock {
  /** The moment that is shown. */
  shownMs = 0;
  /** The moment that the Workers are to reach; a whole number, never less than before. */
  targetMs = 0;
  /** Virtual over wall time, as wished. */
  speed = 1;
  playing = false;
  /** The moment at which this run is over. */
  endMs = LESSON_MS_MAX;
  /** Virtual over wall time, as it was lately. */
  pace = 1;
  #replayMs = 0;

  /** Begins anew at 0, with this much to catch up before it goes on by itself. */
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
    // What lies far behind is not watched in full.
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

  /** Whether it is on its way to the moment that it was to begin at. */
  get isReplaying(): boolean {
    return this.shownMs < this.#replayMs;
  }

  /** Whether the Workers fall behind the wish. */
  get isSlow(): boolean {
    return this.playing && this.pace < 0.85 * this.speed;
  }
}
