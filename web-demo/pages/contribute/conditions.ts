/** Conditions of the machine that the browser reports, and the screen's wake lock. */

interface Battery extends EventTarget {
  readonly charging: boolean;
}

/** Watches battery and visibility; calls `changed` after each change. */
export class Machine {
  onBattery: boolean | undefined;

  constructor(changed: () => void) {
    document.addEventListener("visibilitychange", changed);
    // The hour changes without an event.
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
      // The browser reports no battery: the battery rule never applies.
    }
  }
}

/** Keeps the screen on while wanted; browsers release the lock each time the page is hidden. */
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
      // Refused, for example at low battery: the screen turns off, and nothing else changes.
    }
  }
}
