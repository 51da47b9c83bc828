/** The owner's token. It stays in this tab: in its session storage, in the owner's field, and in one header. */

const KEPT = "archipelago.admin";
const NAME = "token=";

/** Takes the token out of an owner's link, and removes it from the visible address. Returns "" without a token. */
export function takeToken(): string {
  const parts = location.hash.slice(1).split("&");
  const token = parts.find((part) => part.startsWith(NAME));
  if (token === undefined) return "";
  const others = parts.filter((part) => !part.startsWith(NAME));
  const rest = others.length > 0 ? `#${others.join("&")}` : "";
  history.replaceState(history.state, "", location.pathname + location.search + rest);
  return decoded(token.slice(NAME.length));
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    // The value has a literal percent sign.
    return part;
  }
}

/** Returns the token stored in this tab, or an empty string. */
export function recallToken(): string {
  try {
    return sessionStorage.getItem(KEPT) ?? "";
  } catch {
    return "";
  }
}

export function keepToken(token: string): void {
  try {
    sessionStorage.setItem(KEPT, token);
  } catch {
    // Without storage the token must be typed again after a reload.
  }
}
