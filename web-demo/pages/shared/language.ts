/** Number formats of the chosen language. Contains no words, so that every page can use it. */

let language = "en-GB";
const formats = new Map<string, Intl.NumberFormat>();

/** Sets the language of numbers. */
export function speak(tag: string): void {
  language = tag;
  formats.clear();
}

function written(value: number, options: Intl.NumberFormatOptions): string {
  const name = Object.entries(options).join();
  let format = formats.get(name);
  if (!format) formats.set(name, (format = new Intl.NumberFormat(language, { useGrouping: false, ...options })));
  return format.format(value);
}

/** Formats a number unchanged. */
export function plain(value: number): string {
  return written(value, { maximumFractionDigits: 6 });
}

/** Formats a whole number with thousands separators: 9,123. */
export function grouped(value: number): string {
  return written(value, { useGrouping: true, maximumFractionDigits: 0 });
}

/** Formats a number with this many digits after the point, or with at most this many. */
export function fixed(value: number, digits: number, least = digits): string {
  return written(value, { minimumFractionDigits: least, maximumFractionDigits: digits });
}

/** Formats a number with this many significant digits, or with at most this many. */
export function precise(value: number, digits: number, least = digits): string {
  return written(value, { minimumSignificantDigits: least, maximumSignificantDigits: digits });
}
