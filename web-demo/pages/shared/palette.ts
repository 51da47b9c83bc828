/** The theme's colours for canvases, which cannot use CSS variables. */

/** Names of the theme's colours that canvases use. */
export type ColorName =
  | "ink"
  | "ink-soft"
  | "line"
  | "card"
  | "sunk"
  | "sea"
  | "sea-wash"
  | "warn"
  | "danger"
  | "line-1"
  | "line-2"
  | "line-3"
  | "line-quiet"
  | "good"
  | "danger-wash"
  | "warn-wash"
  | "edge"
  | "deep"
  | "shallow"
  | "sand"
  | "land"
  | "lamp"
  | "beam"
  | "beam-end";

const dark = matchMedia("(prefers-color-scheme: dark)");
const cache = new Map<ColorName, string>();

/** Returns a colour of the current theme. */
export function color(name: ColorName): string {
  let value = cache.get(name);
  if (value === undefined) {
    const probe = document.body.appendChild(document.createElement("span"));
    probe.style.color = `var(--${name})`;
    value = getComputedStyle(probe).color;
    probe.remove();
    cache.set(name, value);
  }
  return value;
}

const hearers: (() => void)[] = [];

/** Calls `act` when the theme changes. */
export function onThemeChange(act: () => void): void {
  hearers.push(act);
}

/** Call after changing the values of the theme's colours. */
export function themeChanged(): void {
  cache.clear();
  for (const act of hearers) act();
}

dark.addEventListener("change", themeChanged);
