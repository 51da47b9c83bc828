/** Play, pause, step, speed, and the clock's display. */

import { find, make, setAttribute, setText } from "../shared/dom.js";
import { fixed, plain } from "../shared/language.js";
import { phrase } from "../words/phrase.js";
import { SPEEDS } from "./run/address.js";
import type { Stage } from "./run/stage.js";

const NAMES: Readonly<Record<number, string>> = { 0.25: "¼×", 0.5: "½×" };

function nameOf(speed: number): string {
  return NAMES[speed] ?? `${plain(speed)}×`;
}

export class Controls {
  readonly #stage: Stage;
  readonly #play = find("play", HTMLButtonElement);
  readonly #speed = find("speed", HTMLSelectElement);
  readonly #time = find("time", HTMLElement);
  readonly #pace = find("pace", HTMLElement);
  readonly #restart: () => void;
  readonly #changed: () => void;

  /** Calls `changed` after each play, pause or change of speed. */
  constructor(stage: Stage, restart: () => void, changed: () => void) {
    this.#stage = stage;
    this.#restart = restart;
    this.#changed = changed;
    this.#speed.append(...SPEEDS.map((speed) => make("option", { value: String(speed) }, nameOf(speed))));
    this.#play.addEventListener("click", () => this.toggle());
    find("step", HTMLButtonElement).addEventListener("click", () => this.step());
    find("restart", HTMLButtonElement).addEventListener("click", restart);
    this.#speed.addEventListener("change", () => this.choose(Number(this.#speed.value)));
  }

  toggle(): void {
    if (this.#stage.clock.isOver) return this.#restart();
    this.#stage.clock.playing = !this.#stage.clock.playing;
    this.#changed();
    this.show();
  }

  step(): void {
    this.#stage.step();
    this.#changed();
    this.show();
  }

  /** Changes to the next speed, up with `faster`, else down. */
  choose(speed: number): void {
    this.#stage.clock.speed = speed;
    this.#stage.clock.pace = speed;
    this.#changed();
    this.show();
  }

  faster(by: number): void {
    const speeds: readonly number[] = SPEEDS;
    const speed = speeds[speeds.indexOf(this.#stage.clock.speed) + by];
    if (speed !== undefined) this.choose(speed);
  }

  show(): void {
    const { clock } = this.#stage;
    setText(this.#play, phrase(clock.playing ? "time.pause" : "time.play"));
    setAttribute(this.#play, "data-playing", clock.playing ? "" : null);
    this.#speed.value = String(clock.speed);
    setText(this.#time, `${fixed(clock.shownMs / 1_000, 1)} s`);
    const slow = () => phrase("time.slow", { pace: fixed(clock.pace, 1), speed: nameOf(clock.speed) });
    const replaying = () => phrase("time.replaying", { time: `${fixed(clock.targetMs / 1_000, 1)} s` });
    setText(this.#pace, clock.isReplaying ? replaying() : clock.isSlow ? slow() : "");
  }
}
