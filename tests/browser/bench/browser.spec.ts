/**
 * bench `browser`: what a person at a browser waits for, beside what they would wait for without us.
 *
 * `keystroke_to_output` is the time from Shift-Enter to the first output of `1+1` in the page, by turns with a plain
 * JupyterLab on the same machine that has neither our extension nor our kernel. `spawn_to_lab` is the time from a Hub's
 * order to start a server to JupyterLab's launcher, by turns with batchspawner on the same Slurm.
 */
import * as fs from "node:fs";
import * as path from "node:path";
import { type Browser, type BrowserContext, type Page, test } from "@playwright/test";
import { BASE as HUB, Hub } from "../support/hub";
import { notebook, Person } from "../support/lab";
import { REPO, Site } from "../support/site";

const ROUNDS = Number(process.env.HOP_BENCH_ROUNDS ?? "50");
const WARM = 10;
const SPAWNS = Math.max(1, Math.round(ROUNDS / 10));
/** Restarts of the Hub: its spawners are measured by turns. */
const TURNS = 2;
/** batchspawner, as pip installs it into a folder. */
const PEERS = process.env.HOP_BENCH_PEERS ?? "";
const CELLS = notebook(Array.from({ length: ROUNDS + WARM }, () => "1+1"));

// First: a Hub that has no servers is soon exchanged for another.
test("spawn_to_lab", async ({ browser }) => {
  const site = new Site();
  const ours: number[] = [];
  const theirs: number[] = [];
  for (let turn = 0; turn < TURNS; turn++) {
    site.startHub(HUB);
    ours.push(...(await spawns(site, browser)));
    site.startHub(HUB + BATCHSPAWNER(site));
    theirs.push(...(await spawns(site, browser)));
  }
  site.startHub();
  report("spawn_to_lab_p50", ours, "batchspawner", theirs);
});

test("keystroke_to_output", async ({ browser }) => {
  const site = new Site();
  const alice = await Person.atWork(site, browser, "alice");
  await alice.open("keys.ipynb", CELLS);
  const plain = await PlainLab.up(site, browser);
  try {
    const ours: number[] = [];
    const theirs: number[] = [];
    await begin(alice.page);
    await begin(plain.page);
    for (let round = 0; round < ROUNDS + WARM; round++) {
      const took = [await keystroke(alice.page), await keystroke(plain.page)] as const;
      if (round >= WARM) {
        ours.push(took[0]);
        theirs.push(took[1]);
      }
    }
    report("keystroke_to_output_p50", ours, "plain JupyterLab", theirs);
  } finally {
    plain.down();
    await alice.endKernels();
    await alice.close();
  }
});

/** Makes the first cell the one in which the person types. */
async function begin(page: Page): Promise<void> {
  await page.bringToFront();
  await page.locator(".jp-Notebook .jp-Cell .cm-content").first().click();
}

/** Runs the active cell by the keyboard. Milliseconds until its output is in the page, by the page's own clock. */
async function keystroke(page: Page): Promise<number> {
  await page.bringToFront();
  await page.evaluate(() => {
    const w = window as unknown as { took: Promise<number> };
    w.took = new Promise((resolve) => {
      let began = Number.NaN;
      window.addEventListener("keydown", () => (began = performance.now()), { capture: true, once: true });
      const shows = (node: Node) =>
        node instanceof Element &&
        (node.matches(".jp-OutputArea-output") || node.querySelector(".jp-OutputArea-output") !== null);
      const observer = new MutationObserver((changes) => {
        // A cell that ran before may come back into the window; its output came before the key.
        if (!Number.isNaN(began) && changes.some((change) => [...change.addedNodes].some(shows))) {
          observer.disconnect();
          resolve(performance.now() - began);
        }
      });
      observer.observe(document.querySelector(".jp-Notebook") as Element, { childList: true, subtree: true });
    });
  });
  await page.keyboard.press("Shift+Enter");
  return page.evaluate(() => (window as unknown as { took: Promise<number> }).took);
}

/** JupyterLab alone, with the kernels' own Python as a plain ipykernel. */
class PlainLab {
  private constructor(
    private readonly site: Site,
    readonly page: Page,
    private readonly context: BrowserContext,
  ) {}

  static async up(site: Site, browser: Browser): Promise<PlainLab> {
    const port = site.freePorts()[0];
    const place = path.join(site.home("alice"), "plain");
    site.write("alice", "plain/plain.ipynb", CELLS.replaceAll("gresshopper-python3", "plain"));
    const argv = ["/opt/gresshopper-dev/user/bin/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"];
    site.write("alice", "plain/kernels/plain/kernel.json", JSON.stringify({ argv, display_name: "plain" }));
    site.background(
      "alice",
      "env",
      `JUPYTER_PATH=${place}`,
      "/opt/gresshopper-dev/hub/bin/jupyter-lab",
      "--no-browser",
      `--ServerApp.port=${port}`,
      `--ServerApp.root_dir=${place}`,
      "--IdentityProvider.token=bench",
      "--LabApp.expose_app_in_browser=True",
    );
    const url = `http://127.0.0.1:${port}`;
    const answers = () => fetch(`${url}/api`).then((answer) => answer.ok);
    for (let tries = 0; !(await answers().catch(() => false)); tries++) {
      if (tries > 600) {
        throw new Error("the plain JupyterLab doesn't answer");
      }
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
    const context = await browser.newContext({ reducedMotion: "reduce" });
    const page = await context.newPage();
    await page.goto(`${url}/lab/tree/plain.ipynb?reset&token=bench`);
    await page.locator(".jp-Notebook .jp-Cell").first().waitFor();
    await Person.of(site, "alice", page).kernelIs("idle");
    return new PlainLab(site, page, context);
  }

  down(): void {
    void this.context.close();
    for (const pid of this.site.pids("jupyter-lab --no-browser")) {
      process.kill(pid, "SIGTERM");
    }
  }
}

/** Times of so many starts of alice's server, from the order to JupyterLab's launcher in the page. */
async function spawns(site: Site, browser: Browser): Promise<number[]> {
  const hub = new Hub(site);
  await hub.user("alice");
  const took: number[] = [];
  // The first one warms the machine's caches.
  for (let n = 0; n <= SPAWNS; n++) {
    await gone(site, hub);
    const context = await browser.newContext({ reducedMotion: "reduce" });
    const page = await context.newPage();
    await page.goto(`${site.url}/hub/login?next=%2Fhub%2Fhome`);
    await page.fill("#username_input", "alice");
    await page.fill("#password_input", site.password("alice"));
    await page.click("#login_submit");
    await page.waitForURL("**/hub/home");
    const began = performance.now();
    const status = await hub.start("alice");
    if (status >= 400) {
      throw new Error(`the Hub refused to start a server: ${status}`);
    }
    await page.goto(`${site.url}/user/alice/lab?reset`);
    await page.locator(".jp-Launcher, .jp-Notebook").first().waitFor({ timeout: 300_000 });
    if (n > 0) {
      took.push(performance.now() - began);
    }
    await context.close();
  }
  await gone(site, hub);
  return took;
}

/** Stops alice's server and waits until Slurm has none of her jobs. */
async function gone(site: Site, hub: Hub): Promise<void> {
  await hub.stop("alice");
  site.poll("alice has no jobs", 120, () => site.jobs("alice").length === 0);
}

/** The Hub's configuration with batchspawner in our place: the same partition, memory, cores and server. */
function BATCHSPAWNER(site: Site): string {
  const singleuser = `env PYTHONPATH=${PEERS} ${site.overlay}/bin/python -m batchspawner.singleuser`;
  return `
import sys
sys.path.append("${PEERS}")
import batchspawner
c.JupyterHub.spawner_class = "batchspawner.SlurmSpawner"
c.SlurmSpawner.exec_prefix = "runuser -u {username} --"
c.SlurmSpawner.env_keep = [
    "PATH", "LANG", "LC_ALL", "SLURM_CONF", "GRESSHOPPER_CONF", "JUPYTER_PATH", "MUNGE_SOCKET", "GRESSHOPPER_PREFIX",
]
c.SlurmSpawner.batchspawner_singleuser_cmd = "${singleuser}"
c.SlurmSpawner.cmd = c.GresshopperSpawner.cmd
c.SlurmSpawner.req_partition = "notebook"
c.SlurmSpawner.req_memory = "1G"
c.SlurmSpawner.req_nprocs = "1"
c.SlurmSpawner.req_runtime = "1:00:00"
c.SlurmSpawner.state_exechost_exp = "127.0.0.1"
c.SlurmSpawner.start_timeout = 300
c.JupyterHub.hub_connect_ip = "127.0.0.1"
`;
}

function median(values: number[]): number {
  const sorted = [...values].sort((one, other) => one - other);
  const middle = sorted.length / 2;
  const at = (place: number) => sorted[place] as number;
  return sorted.length % 2 ? at(Math.floor(middle)) : (at(middle - 1) + at(middle)) / 2;
}

/** A measured line, as bench/src/main.rs reads it. */
function report(name: string, ours: number[], peer: string, theirs: number[]): void {
  const place = process.env.HOP_BENCH_OUT ?? path.join(REPO, "tests/browser/results/bench.jsonl");
  const line = {
    bench: "browser",
    case: name,
    ours: median(ours),
    peer,
    peer_value: median(theirs),
    unit: "ms",
    n: ours.length,
  };
  fs.mkdirSync(path.dirname(place), { recursive: true });
  fs.appendFileSync(place, `${JSON.stringify(line)}\n`);
}
