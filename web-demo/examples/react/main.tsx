import { createRoot } from "react-dom/client";
import { Lend } from "./lend";

// Address of the syncer, taken from this page's own: `?syncer=https://HOST/`.
const syncer = new URLSearchParams(location.search).get("syncer") ?? "https://HOST/";
createRoot(document.querySelector("#root")!).render(<Lend syncer={syncer} />);
