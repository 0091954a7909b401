// The script of the pages of hpcprof serve that are not a run's report.
import { followTheme } from "../theme.js";

followTheme();
document.documentElement.dataset.ready = "";
