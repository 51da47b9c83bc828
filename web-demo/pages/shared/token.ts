/** The owner's token. It stays in this tab: in its session storage, in the owner's field, and in one header. */

const KEPT = "archipelago.admin";
const NAME = "token=";

/** The token that an owner's link carries, taken out of the address before anybody can read it there; or nothing. */
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
    // No more than a percent sign that stands for itself.
    return part;
  }
}

/** The token that this tab kept, or nothing. */
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
    // Storage may be switched off; then the token is typed again after a reload.
  }
}
