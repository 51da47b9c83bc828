/** Numbers for people. */

/** 950, 12.3 k, 4.56 M. */
export function count(value: number): string {
  return scaled(value, 1000, ["", " k", " M", " G", " T"]);
}

/** 950 B, 12.3 kB, 4.56 MB. */
export function bytes(value: number): string {
  return scaled(value, 1000, [" B", " kB", " MB", " GB", " TB"]);
}

/** 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const units: [number, string][] = [[86_400, "d"], [3_600, "h"], [60, "min"], [1, "s"]];
  const first = units.findIndex(([size]) => whole >= size);
  if (first === -1) return "0 s";
  let rest = whole;
  const parts = units.slice(first, first + 2).map(([size, name]) => {
    const number = Math.floor(rest / size);
    rest -= number * size;
    return number > 0 ? `${number} ${name}` : "";
  });
  return parts.filter(Boolean).join(" ");
}

function scaled(value: number, step: number, units: string[]): string {
  if (!Number.isFinite(value)) return "–";
  let [size, unit] = [Math.abs(value), 0];
  // What would be shown as 1000 goes to the next unit.
  while (size >= step * 0.9995 && unit < units.length - 1) {
    size /= step;
    unit += 1;
  }
  const text = unit === 0 ? String(Math.round(size)) : size.toPrecision(3);
  return `${value < 0 ? "−" : ""}${text}${units[unit]}`;
}
