/**
 * Lanes: the tests run on JupyterHub 6 with JupyterLab, and on JupyterHub 5 with Notebook 7. A test without a tag runs
 * in both: these few are a user's way through either. A tag gives each other test to one lane, so that both lanes are as
 * long; `tests/setup/lanes.py` checks that each test is in a lane. `HOP_BROWSER_ALL=1` runs all tests in the lane.
 */
import { ENVIRONMENT } from "./site";

/** Runs on JupyterHub 6 with JupyterLab 4.6 and ipykernel 7 alone. */
export const LAB = { tag: "@lab" };

/** Runs on JupyterHub 5 with Notebook 7 and ipykernel 6 alone. */
export const OLDEST = { tag: "@oldest" };

/** The tags whose tests are left to the other lane. */
export const LEFT_OUT = process.env.HOP_BROWSER_ALL === "1" ? [] : [ENVIRONMENT === "hub5" ? /@lab\b/ : /@oldest\b/];
