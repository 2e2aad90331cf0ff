import { defineConfig } from "@playwright/test";
import { LEFT_OUT } from "./support/lanes";
import { ENVIRONMENT } from "./support/site";

export default defineConfig({
  testDir: "specs",
  // Emptied at the beginning of a run: environments are tried beside each other.
  outputDir: `results/${ENVIRONMENT}`,
  globalSetup: "./setup.ts",
  grepInvert: LEFT_OUT,
  // One cluster with one GPU: the tests are its users one after the other.
  workers: 1,
  fullyParallel: false,
  // No test is about a length of time: limits are those of a machine with others on it.
  timeout: 300_000,
  expect: { timeout: 60_000 },
  reporter: [["list"]],
  use: {
    // A click or a page that never comes is named by the failure; otherwise the whole test just takes too long.
    actionTimeout: 60_000,
    navigationTimeout: 180_000,
    viewport: { width: 1280, height: 800 },
    screenshot: "only-on-failure",
    launchOptions: {
      executablePath: "/usr/bin/chromium-headless-shell",
      args: [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
      ],
    },
  },
});
