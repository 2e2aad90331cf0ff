/** VS Code's own Jupyter extension in a browser, by hand: `vscode/vscode.spec.ts` says what it needs. */
import { defineConfig } from "@playwright/test";
import tests from "./playwright.config";

export default defineConfig({
  ...tests,
  globalSetup: undefined,
  testDir: "vscode",
  outputDir: "results/vscode",
  timeout: 900_000,
});
