// Drives a real browser through JupyterHub's login page and JupyterLab: runs every cell of a notebook, shows what the
// first waiting one says, has the GPUs released (by the file --release), waits for the last cell, saves the notebook, takes a
// screenshot, and fails if any cell failed or none waited. The password comes from the environment.
import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(process.env.NODE_PATH ? `${process.env.NODE_PATH}/` : import.meta.url);
const { chromium } = require("playwright-core");

const options = Object.fromEntries(
  process.argv
    .slice(2)
    .join(" ")
    .split("--")
    .filter(Boolean)
    .map((pair) => pair.trim().split(/\s+/, 2)),
);
const { hub, user, notebook, shot, release } = options;
const patience = Number(options.timeout ?? 300) * 1000;

const browser = await chromium.launch({
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
});
let failed = false;
const page = await browser.newPage({ viewport: { width: 1280, height: 1000 } });
try {
  await page.goto(`${hub}/hub/login`);
  await page.fill("#username_input", user);
  await page.fill("#password_input", process.env.password);
  await page.click("#login_submit");
  // The hub spawns the server (a Slurm job) and then redirects to JupyterLab.
  await page.waitForURL(`**/user/${user}/lab**`, { timeout: patience });
  await page.goto(`${hub}/user/${user}/lab/tree/${notebook}`);
  await page.waitForSelector(".jp-NotebookPanel .jp-Cell", { timeout: patience });
  // The status bar says Idle only once the kernel has answered; the toolbar's circle says so before.
  await page.waitForSelector("text=/\\| Idle$/", { timeout: patience });
  const extensions = await page.evaluate(() =>
    JSON.parse(document.getElementById("jupyter-config-data").textContent).federated_extensions.map((e) => e.name),
  );
  for (const wanted of ["@gresshopper/lab", "@jupyter-widgets/jupyterlab-manager"])
    if (!extensions.includes(wanted)) throw new Error(`Lab has no ${wanted}, only ${extensions.join(", ")}`);
  await page.click("text=/^No$/", { timeout: 3000 }).catch(() => {}); // JupyterLab's offer of news
  await page.click("text=Edit >> nth=0");
  await page.click("text=Clear Outputs of All Cells");
  await page.click("text=Run >> nth=0");
  await page.click("text=Run All Cells");
  // Lab keeps cells out of the page that are out of view.
  const line = page.locator(".gh-WaitLine-text");
  for (let turn = 0; turn < 100 && (await line.count()) === 0; turn++) {
    await page.locator(".jp-WindowedPanel-outer").evaluate((panel, at) => {
      panel.scrollTop = (panel.scrollHeight * at) / 10;
    }, turn % 10);
    await page.waitForTimeout(600);
  }
  await line.scrollIntoViewIfNeeded({ timeout: 5000 });
  console.log(`the badge: ${await page.locator(".gh-Badge").first().innerText()}`);
  console.log(`at the waiting cell: ${await line.innerText()}`);
  if (shot) await page.screenshot({ path: shot.replace(/\.png$/, "-waits.png") });
  writeFileSync(release, "");
  // JupyterLab renders only the cells in view, so what counts is read back from the saved notebook.
  const saved = async () => {
    await page.keyboard.press("Control+s");
    await page.waitForTimeout(1500);
    const file = await page.evaluate(async (path) => {
      const base = JSON.parse(document.getElementById("jupyter-config-data").textContent).baseUrl;
      const xsrf = document.cookie.match(/(?:^|; )_xsrf=([^;]*)/)?.[1] ?? "";
      return (await fetch(`${base}api/contents/${path}`, { headers: { "X-XSRFToken": xsrf } })).json();
    }, notebook);
    const code = file.content.cells.filter((c) => c.cell_type === "code");
    return {
      code,
      errors: code.flatMap((c) => c.outputs.filter((o) => o.output_type === "error")),
      run: code.filter((c) => c.execution_count !== null).length,
    };
  };
  const deadline = Date.now() + patience;
  let { code, errors, run } = await saved();
  while (run < code.length && errors.length === 0 && Date.now() < deadline) ({ code, errors, run } = await saved());
  console.log(`${run} of ${code.length} cells ran, ${errors.length} failed`);
  for (const e of errors) console.error(`${e.ename}: ${e.evalue}`);
  failed = errors.length > 0 || run !== code.length;
} catch (error) {
  console.error(`demo: ${error.message}`);
  console.error(`the page was ${page.url()}`);
  failed = true;
} finally {
  if (shot) await page.screenshot({ path: shot });
  await browser.close();
}
process.exitCode = failed ? 1 : 0;
