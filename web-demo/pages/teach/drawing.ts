/** The timeline: what it remembers, what it shows, and the parcel that somebody looks at. */
import type { Action, Frame, LessonSpec, TwinFrame } from "../shared/lesson.js";
import type { Clock } from "./run/clock.js";
import { History } from "./timeline/history.js";
import { ParcelView } from "./timeline/parcel.js";
import { TimelineView } from "./timeline/view.js";

export class Drawing {
  readonly #history = new History();
  readonly #timeline: TimelineView;
  readonly #parcels: ParcelView;

  /** `code` is the run's code of values; `followed` hears that another fragment is followed. */
  constructor(code: () => LessonSpec["code"], followed: () => void) {
    this.#parcels = new ParcelView((fragment) => {
      this.#timeline.followed = fragment;
      this.#timeline.chosen = null;
      followed();
    });
    this.#timeline = new TimelineView(this.#history, (parcel) => {
      this.#timeline.chosen = parcel;
      this.#parcels.show(parcel, code());
    });
  }

  /** The fragment whose parcels are followed, or `null`. */
  get followed(): number | null {
    return this.#timeline.followed;
  }

  /** Follows this fragment, or none. */
  follow(fragment: number | null): void {
    this.#parcels.choose(fragment);
  }

  /** For a run that begins. */
  reset({ islands, fragments }: LessonSpec): void {
    this.#history.reset(islands);
    this.#parcels.reset(fragments);
    this.#timeline.reset();
    if (this.followed !== null && this.followed >= fragments) this.#timeline.followed = null;
  }

  take(frame: Frame, actions: readonly Action[], code: LessonSpec["code"]): void {
    this.#history.take(frame, actions);
    const parcel = this.#parcels.take(frame.marks, this.followed, code);
    if (parcel && this.followed !== null) this.#timeline.chosen = parcel;
  }

  takeTwin(frame: TwinFrame): void {
    this.#history.takeTwin(frame);
  }

  /** Draws the moment that the clock shows, `wallMs` after the last drawing. */
  draw(shown: Frame, clock: Clock, spec: LessonSpec, wallMs: number): void {
    const speed = Math.min(clock.speed, Math.max(0.25, clock.pace));
    this.#timeline.draw(shown.islands, clock.shownMs, speed, spec.stepMs, spec.roundsInFlight, wallMs);
  }
}
