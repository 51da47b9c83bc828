/** The picture: the sea or the lanes, their history, and the selected parcel. */
import { find, setAttribute } from "../shared/dom.js";
import type { Action, Frame, LessonSpec, TwinFrame } from "../shared/lesson.js";
import type { Watched } from "./guide/watched.js";
import type { Act } from "./islands/cards.js";
import type { Live } from "./live.js";
import type { View } from "./run/address.js";
import type { Clock } from "./run/clock.js";
import { SeaView } from "./sea/view.js";
import { History } from "./timeline/history.js";
import { ParcelView } from "./timeline/parcel.js";
import { TimelineView } from "./timeline/view.js";

/** Callbacks of the picture. */
export interface Onlooker {
  /** The followed fragment or the kind of picture has changed. */
  changed(): void;
  act: Act;
}

export class Drawing {
  readonly #history = new History();
  readonly #timeline: TimelineView;
  readonly #sea: SeaView;
  readonly #parcels: ParcelView;
  readonly #stage = find("stage", HTMLElement);
  readonly #buttons: Readonly<Record<View, HTMLButtonElement>> = {
    map: find("view-map", HTMLButtonElement),
    lanes: find("view-lanes", HTMLButtonElement),
  };
  #view: View = "map";

  /** `code` is the run's code of values. */
  constructor(code: () => LessonSpec["code"], onlooker: Onlooker) {
    this.#parcels = new ParcelView((fragment) => {
      this.#timeline.followed = fragment;
      this.#timeline.chosen = null;
      onlooker.changed();
    });
    this.#timeline = new TimelineView(this.#history, (parcel) => {
      this.#timeline.chosen = parcel;
      this.#parcels.show(parcel, code());
    });
    this.#sea = new SeaView(this.#history, onlooker.act);
    for (const view of ["map", "lanes"] as const) {
      this.#buttons[view].addEventListener("click", () => {
        this.view = view;
        onlooker.changed();
      });
    }
    this.view = "map";
  }

  /** The displayed kind of picture. */
  get view(): View {
    return this.#view;
  }

  set view(view: View) {
    this.#view = view;
    setAttribute(this.#stage, "data-view", view);
    for (const [name, button] of Object.entries(this.#buttons))
      setAttribute(button, "aria-pressed", String(name === view));
  }

  /** The followed fragment, or `null`. */
  get followed(): number | null {
    return this.#timeline.followed;
  }

  /** Follows this fragment, or none. */
  follow(fragment: number | null): void {
    this.#parcels.choose(fragment);
  }

  /** Resets the picture for a new run. */
  reset({ islands, fragments }: LessonSpec): void {
    this.#history.reset(islands);
    this.#parcels.reset(fragments);
    this.#timeline.reset();
    this.#sea.reset(islands);
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

  /** Updates the labels of the picture's buttons. */
  say(shown: Frame, spec: LessonSpec): void {
    this.#sea.show(shown.islands, spec);
  }

  /** Draws the clock's moment, `wallMs` after the last drawing, with the marks of a chapter. */
  draw(live: Live, shown: Frame, clock: Clock, spec: LessonSpec, wallMs: number, watched: Watched): void {
    const speed = Math.min(clock.speed, Math.max(0.25, clock.pace));
    if (this.#view === "map") this.#sea.draw(live, shown.islands, clock.shownMs, speed, this.followed, watched);
    else this.#timeline.draw(shown.islands, clock.shownMs, speed, spec.stepMs, spec.roundsInFlight, wallMs, watched);
  }
}
