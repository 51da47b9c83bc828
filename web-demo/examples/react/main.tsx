import { createRoot } from "react-dom/client";
import { Lend } from "./lend";

// The address of the syncer, here from this page's own: `?syncer=https://HOST/`.
const syncer = new URLSearchParams(location.search).get("syncer") ?? "https://HOST/";
createRoot(document.querySelector("#root")!).render(<Lend syncer={syncer} />);
