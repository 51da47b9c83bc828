/** Numbers as the chosen language writes them. It knows no words, so that every page can have it. */

let language = "en-GB";
const formats = new Map<string, Intl.NumberFormat>();

/** Numbers are written as in `tag` from now on. */
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

/** A number as it is. */
export function plain(value: number): string {
  return written(value, { maximumFractionDigits: 6 });
}

/** A whole number with a mark at its thousands: 9,123. */
export function grouped(value: number): string {
  return written(value, { useGrouping: true, maximumFractionDigits: 0 });
}

/** A number with so many digits after the point, or with at most so many. */
export function fixed(value: number, digits: number, least = digits): string {
  return written(value, { minimumFractionDigits: least, maximumFractionDigits: digits });
}

/** A number of so many digits in all, or of at most so many. */
export function precise(value: number, digits: number, least = digits): string {
  return written(value, { minimumSignificantDigits: least, maximumSignificantDigits: digits });
}
