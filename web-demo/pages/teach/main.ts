/** The page for breaking decoupled training on purpose: it draws, two Workers run. `?sheet` shows the teacher's sheet. */
import "./teach.css";
import { showRunLinks } from "../shared/nav.js";
import { fillPage } from "../words/page.js";
import { showWords, tellWords } from "../words/view.js";
import { TeachPage } from "./page.js";
import { showSheet } from "./sheet/sheet.js";

fillPage();
tellWords();
showWords();
showRunLinks();
if (new URLSearchParams(location.search).has("sheet")) showSheet();
else await new TeachPage().start();
