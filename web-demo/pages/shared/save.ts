/** Files that a page gives to whoever looks at it; nobody else hears of them. */

/** Lets the browser save `blob` under `name`. */
export function save(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.download = name;
  link.href = URL.createObjectURL(blob);
  link.click();
  // The browser has taken it over once the click is done with.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Lets the browser save what is on `canvas` as a PNG. */
export function savePicture(canvas: HTMLCanvasElement, name: string): void {
  canvas.toBlob((blob) => blob && save(blob, name), "image/png");
}

/** The day as files and pictures name it: 2026-11-23, by the clock of this machine. */
export function dayOf(moment: Date): string {
  const digits = (value: number) => String(value).padStart(2, "0");
  return `${moment.getFullYear()}-${digits(moment.getMonth() + 1)}-${digits(moment.getDate())}`;
}
