/** Drawing at the pace of the screen, and only what can be seen. */

/**
 * Gives a function that asks for `paint`. However often it is called, `paint` runs once a frame at most; it waits
 * while the tab is hidden or `element` is out of view, and then runs once.
 */
export function painter(element: Element, paint: () => void): () => void {
  let wanted = false;
  let asked = false;
  let inView = false;
  const frame = () => {
    asked = false;
    if (!wanted || !inView) return;
    wanted = false;
    paint();
  };
  const ask = () => {
    if (asked || !wanted || !inView) return;
    asked = true;
    requestAnimationFrame(frame);
  };
  new IntersectionObserver(
    (entries) => {
      inView = entries.at(-1)?.isIntersecting ?? false;
      ask();
    },
    { rootMargin: "200px" },
  ).observe(element);
  return () => {
    wanted = true;
    ask();
  };
}

/** Calls `act` every `every_ms` while `element` can be seen, and at once when it comes into view. */
export function whileSeen(element: Element, every_ms: number, act: () => void): void {
  let inView = false;
  let timer: ReturnType<typeof setInterval> | undefined;
  const settle = () => {
    const seen = inView && !document.hidden;
    if (seen && timer === undefined) {
      act();
      timer = setInterval(act, every_ms);
    } else if (!seen) {
      clearInterval(timer);
      timer = undefined;
    }
  };
  new IntersectionObserver((entries) => {
    inView = entries.at(-1)?.isIntersecting ?? false;
    settle();
  }).observe(element);
  document.addEventListener("visibilitychange", settle);
}
