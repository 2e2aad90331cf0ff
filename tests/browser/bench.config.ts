/** Benchmarks in a browser: the site and Chromium of the tests, with specs of their own (`bench/browser/run`). */
import { defineConfig } from "@playwright/test";
import tests from "./playwright.config";

export default defineConfig({ ...tests, testDir: "bench", outputDir: "results/bench", timeout: 1_800_000 });
