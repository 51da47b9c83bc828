/** Numbers for readers. `null` means unknown. */
import { fixed, grouped, plain, precise } from "./language.js";

/** Placeholder for unknown values. */
export const UNKNOWN = "–";

/** Formats as 950, 1,234, 12.3 k, 4.56 M. */
export function count(value: number | null): string {
  if (value !== null && Math.abs(value) < 9_999.5) return grouped(Math.round(value));
  return scaled(value, ["", " k", " M", " G", " T"]);
}

/** The same without line breaks: within a sentence, number and unit stay together. */
export function unbroken(text: string): string {
  return text.replaceAll(" ", "\u00a0");
}

/** Formats as 950 B, 12.3 kB, 4.56 MB. */
export function bytes(value: number | null): string {
  return scaled(value, [" B", " kB", " MB", " GB", " TB"]);
}

/** Formats as "1 learner", "3 learners"; `many` is an irregular plural. */
export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** Formats 0.9512 as "95.1 %", 0.00123 as "0.12 %". */
export function percent(share: number | null): string {
  if (share === null || !Number.isFinite(share)) return UNKNOWN;
  const value = share * 100;
  const digits = value === 0 || value >= 99.95 ? 0 : value < 0.995 ? 2 : 1;
  return `${fixed(value, digits)} %`;
}

/** Formats nats per token. */
export function nats(loss: number | null): string {
  return loss === null ? UNKNOWN : fixed(loss, 3);
}

/** Formats as 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h. */
export function duration(seconds: number | null): string {
  if (seconds === null) return UNKNOWN;
  const whole = Math.max(0, Math.round(seconds));
  const units: [number, string][] = [
    [86_400, "d"],
    [3_600, "h"],
    [60, "min"],
    [1, "s"],
  ];
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

/** Formats an age: just now, 12 s ago, 3 min ago, 2 h ago, 4 d ago. */
export function ago(seconds: number): string {
  if (seconds < 5) return "just now";
  const [first, second] = duration(seconds).split(" ");
  return `${first} ${second} ago`;
}

/** Formats as 0.4 ms, 340 ms, 1.24 s, 2 min 5 s. */
export function milliseconds(value: number | null): string {
  if (value === null) return UNKNOWN;
  if (value < 10) return `${fixed(value, 1, 0)} ms`;
  if (value < 1_000) return `${fixed(value, 0)} ms`;
  return value < 60_000 ? `${precise(value / 1_000, 3, 1)} s` : duration(value / 1_000);
}

/** Replaces each control character, which an untrained model writes too, by a dot. */
export function legible(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is looked for.
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\ufffd]/g, "·");
}

function scaled(value: number | null, units: readonly string[]): string {
  if (value === null || !Number.isFinite(value)) return UNKNOWN;
  let [size, unit] = [Math.abs(value), 0];
  // A value that would round to 1000 gets the next unit.
  while (size >= 999.5 && unit < units.length - 1) {
    size /= 1_000;
    unit += 1;
  }
  const text = unit === 0 ? plain(Math.round(size)) : precise(size, 3);
  return `${value < 0 ? "−" : ""}${text}${units[unit]}`;
}
