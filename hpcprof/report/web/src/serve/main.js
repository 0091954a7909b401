// The script of the pages of hpcprof serve that are not a run's report.
import { followTheme } from "../theme.js";
import { followLive } from "./live.js";
import { nameCompared, renewRuns } from "./runs.js";
import { askSql } from "./sql.js";

followTheme();
for (const element of document.querySelectorAll("[data-live]")) followLive(element);
for (const table of document.querySelectorAll("[data-changing]")) renewRuns(table);
for (const form of document.querySelectorAll("[data-compare]")) nameCompared(form);
for (const form of document.querySelectorAll("[data-sql]")) askSql(form);
document.documentElement.dataset.ready = "";
