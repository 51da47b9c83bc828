/** Saves files on the viewer's machine; nothing is sent. */

/** Saves `blob` under `name` through the browser. */
export function save(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.download = name;
  link.href = URL.createObjectURL(blob);
  link.click();
  // The browser has taken the data once the click is handled.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Saves the content of `canvas` as a PNG. */
export function savePicture(canvas: HTMLCanvasElement, name: string): void {
  canvas.toBlob((blob) => blob && save(blob, name), "image/png");
}

/** The local date, for file names and pictures: 2026-11-23. */
export function dayOf(moment: Date): string {
  const digits = (value: number) => String(value).padStart(2, "0");
  return `${moment.getFullYear()}-${digits(moment.getMonth() + 1)}-${digits(moment.getDate())}`;
}
