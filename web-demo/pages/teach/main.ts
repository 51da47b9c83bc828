/** The page on which decoupled training is broken on purpose. It draws; two Workers run. */
import "./teach.css";
import { TeachPage } from "./page.js";

await new TeachPage().start();
