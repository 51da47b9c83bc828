/** What the browser tells of the machine, and the screen's wake lock. */

interface Battery extends EventTarget {
  readonly charging: boolean;
}

/** Watches battery and visibility; calls `changed` when one of them does. */
export class Machine {
  onBattery: boolean | undefined;

  constructor(changed: () => void) {
    document.addEventListener("visibilitychange", changed);
    // Hours pass without an event.
    setInterval(changed, 30_000);
    void this.#watchBattery(changed);
  }

  get hidden(): boolean {
    return document.hidden;
  }

  get hour(): number {
    const now = new Date();
    return now.getHours() + now.getMinutes() / 60;
  }

  async #watchBattery(changed: () => void): Promise<void> {
    try {
      const battery = await (navigator as { getBattery?: () => Promise<Battery> }).getBattery?.();
      if (!battery) return;
      const look = () => {
        this.onBattery = !battery.charging;
        changed();
      };
      battery.addEventListener("chargingchange", look);
      look();
    } catch {
      // Not told: the rule on batteries never speaks.
    }
  }
}

/** Keeps the screen on while wanted; browsers drop the lock with each hiding of the page. */
export class ScreenLock {
  #wanted = false;
  #lock: WakeLockSentinel | undefined;

  constructor() {
    document.addEventListener("visibilitychange", () => void this.#take());
  }

  want(wanted: boolean): void {
    this.#wanted = wanted;
    if (wanted) void this.#take();
    else {
      void this.#lock?.release();
      this.#lock = undefined;
    }
  }

  async #take(): Promise<void> {
    if (!this.#wanted || document.hidden || (this.#lock && !this.#lock.released)) return;
    try {
      this.#lock = await navigator.wakeLock.request("screen");
      if (!this.#wanted) this.want(false);
    } catch {
      // Refused, as when the battery is low: the screen goes off, nothing else.
    }
  }
}
