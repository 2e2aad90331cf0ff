/** A person at JupyterLab or Notebook 7: what the tests do and see there. */
import { type Browser, expect, type Locator, type Page, type TestInfo } from "@playwright/test";
import { signIn } from "./hub";
import { ENVIRONMENT, type Site, type User } from "./site";

export const KERNEL = "gresshopper-python3";
/** Whether the site's servers show Notebook 7. */
export const NOTEBOOK7 = ENVIRONMENT === "hub5";

export interface Cell {
  readonly source: string;
  readonly metadata?: Record<string, unknown>;
}

/** The text of a notebook with these code cells. */
export function notebook(cells: (string | Cell)[], kernel = KERNEL, metadata: Record<string, unknown> = {}): string {
  const made = cells.map((cell, at) => {
    const { source, metadata: own = {} } = typeof cell === "string" ? { source: cell } : cell;
    return { cell_type: "code", execution_count: null, id: `cell-${at}`, metadata: own, outputs: [], source };
  });
  const kernelspec = { display_name: kernel, language: "python", name: kernel };
  return JSON.stringify({ cells: made, metadata: { kernelspec, ...metadata }, nbformat: 4, nbformat_minor: 5 });
}

const RELEASE = "release";

/** Cells that hold the cluster's one GPU until `release()` is called. */
export const HOLD = `%%gpu 1\nimport os, time\nwhile not os.path.exists('${RELEASE}'): time.sleep(0.1)\nos.remove('${RELEASE}')`;

export class Person {
  /** What the page wrote to the console as warning or error, the newest last. */
  readonly complaints: string[] = [];

  private constructor(
    readonly site: Site,
    readonly user: User,
    readonly page: Page,
  ) {
    page.on("pageerror", (error) => this.complaints.push(`uncaught: ${error.message}`));
    page.on("console", (message) => {
      if (message.type() === "error" || message.type() === "warning") {
        this.complaints.push(`${message.type()}: ${message.text()}`);
        this.complaints.splice(0, this.complaints.length - 200);
      }
    });
  }

  /** Somebody who has signed in on that page. */
  static of(site: Site, user: User, page: Page): Person {
    return new Person(site, user, page);
  }

  /** Opens a browser window of that person's own and signs in. */
  static async signIn(site: Site, browser: Browser, user: User): Promise<Person> {
    return new Person(site, user, await signIn(site, browser, user));
  }

  /** Signs in, and waits until the person's server is there. */
  static async atWork(site: Site, browser: Browser, user: User): Promise<Person> {
    const person = await Person.signIn(site, browser, user);
    await person.serverIsUp();
    return person;
  }

  async serverIsUp(): Promise<void> {
    await this.page.waitForURL(`**/user/${this.user}/**`, { timeout: 180_000 });
  }

  get base(): string {
    return `${this.site.url}/user/${this.user}`;
  }

  /** Writes a notebook into the person's home and opens it, with its kernel ready. */
  async open(name: string, text: string): Promise<void> {
    this.site.write(this.user, name, text);
    this.complaints.length = 0;
    await this.goto(name);
  }

  /** Opens a notebook of the person's, with its kernel ready. */
  async goto(name: string): Promise<void> {
    await this.look(name);
    await this.kernelIs("idle");
  }

  /** Opens a notebook whose kernel may be busy: Jupyter calls its state unknown then. */
  async look(name: string): Promise<void> {
    const place = NOTEBOOK7 ? `notebooks/${name}` : `lab/tree/${name}?reset`;
    await this.page.goto(`${this.base}/${place}`);
    await this.page.locator(".jp-Notebook .jp-Cell").first().waitFor();
  }

  async kernelIs(status: string, timeout = 120_000): Promise<void> {
    const now = () =>
      this.page
        .evaluate(() => {
          const app = (window as unknown as { jupyterapp?: { shell: { currentWidget: unknown } } }).jupyterapp;
          const panel = app?.shell.currentWidget as { sessionContext?: { kernelDisplayStatus: string } } | undefined;
          return panel?.sessionContext?.kernelDisplayStatus ?? "none";
        })
        // A second window of Lab's goes to a workspace of its own, and loads the page again.
        .catch(() => "none");
    await expect.poll(now, { timeout }).toBe(status);
  }

  /** Runs a command of JupyterLab's. */
  command(id: string, args: Record<string, unknown> = {}): Promise<unknown> {
    return this.page.evaluate(
      ([name, given]) => {
        const app = (
          window as unknown as { jupyterapp: { commands: { execute(id: string, args: unknown): unknown } } }
        ).jupyterapp;
        // Not awaited: running a cell takes as long as the cell.
        void app.commands.execute(name as string, given);
      },
      [id, args] as const,
    );
  }

  /** Runs the cell of that number, and doesn't wait for it. */
  async run(at: number): Promise<void> {
    await this.page.evaluate((index) => {
      const app = (window as unknown as { jupyterapp: { shell: { currentWidget: unknown } } }).jupyterapp;
      const panel = app.shell.currentWidget as { content: { activeCellIndex: number; deselectAll(): void } };
      panel.content.deselectAll();
      panel.content.activeCellIndex = index;
    }, at);
    await this.command("notebook:run-cell");
  }

  cell(at: number): Locator {
    return this.page.locator(`.jp-Notebook .jp-Cell[data-windowed-list-index="${at}"]`);
  }

  waitLine(at: number): Locator {
    return this.cell(at).locator(".gh-WaitLine");
  }

  get badge(): Locator {
    return this.page.locator(".jp-NotebookPanel:visible .jp-Toolbar .gh-Badge");
  }

  get statusBadge(): Locator {
    return this.page.locator("#jp-main-statusbar .gh-Badge");
  }

  output(at: number): Locator {
    return this.cell(at).locator(".jp-OutputArea-output");
  }

  /** The prompt's number once the cell has run. */
  async hasRun(at: number, timeout = 120_000): Promise<void> {
    await expect(this.cell(at).locator(".jp-InputPrompt")).toHaveText(/\[\d+\]/, { timeout });
  }

  /** Saves the notebook and returns what is on disk. */
  async saved(name: string): Promise<{ cells: { outputs: unknown[]; metadata: object }[]; metadata: object }> {
    await this.page.evaluate(async () => {
      const app = (window as unknown as { jupyterapp: { shell: { currentWidget: unknown } } }).jupyterapp;
      await (app.shell.currentWidget as { context: { save(): Promise<void> } }).context.save();
    });
    const response = await this.page.request.get(`${this.base}/api/contents/${name}`);
    return (await response.json()).content;
  }

  /** Another window of the same person's. */
  async another(): Promise<Person> {
    return new Person(this.site, this.user, await this.page.context().newPage());
  }

  /** Takes a picture for the documentation, if pictures are wanted (`HOP_BROWSER_SHOTS`). */
  async shot(name: string): Promise<void> {
    const folder = process.env.HOP_BROWSER_SHOTS;
    if (folder) {
      await this.page.screenshot({ path: `${folder}/${name}.png` });
    }
  }

  /** Sets the extension's settings, for pages that are opened from now on. */
  async settings(values: Record<string, unknown>): Promise<void> {
    const done = await this.rest("PUT", "lab/api/settings/@gresshopper/lab:plugin", { raw: JSON.stringify(values) });
    expect(done.status()).toBe(204);
  }

  async setCellMetadata(at: number, metadata: Record<string, unknown>): Promise<void> {
    await this.page.evaluate(
      ([index, pairs]) => {
        const app = (window as unknown as { jupyterapp: { shell: { currentWidget: unknown } } }).jupyterapp;
        type Model = { setMetadata(key: string, value: unknown): void };
        const panel = app.shell.currentWidget as { content: { widgets: { model: Model }[] } };
        for (const [key, value] of Object.entries(pairs)) {
          panel.content.widgets[index]?.model.setMetadata(key, value);
        }
      },
      [at, metadata] as const,
    );
  }

  /** Begins to listen to iopub; the function that is returned tells the types and metadata of the cells' messages. */
  async listen(): Promise<() => Promise<unknown[]>> {
    await this.page.evaluate(() => {
      const w = window as unknown as { heard: unknown[]; jupyterapp: { shell: { currentWidget: unknown } } };
      type Message = { header: { msg_type: string }; parent_header: { msg_type?: string }; metadata: unknown };
      type Signal = { connect(slot: (_: unknown, message: Message) => void): void };
      const panel = w.jupyterapp.shell.currentWidget as { sessionContext: { iopubMessage: Signal } };
      w.heard = [];
      panel.sessionContext.iopubMessage.connect((_, { header, parent_header, metadata }) => {
        if (parent_header.msg_type === "execute_request") {
          w.heard.push([header.msg_type, metadata]);
        }
      });
    });
    return () => this.page.evaluate(() => (window as unknown as { heard: unknown[] }).heard);
  }

  /** Ends the person's kernels, and leaves nothing to the next test that a window or a cell of this one has left. */
  async endKernels(): Promise<void> {
    await this.page.goto("about:blank");
    const kernels = await this.page.request.get(`${this.base}/api/kernels`);
    if (kernels.ok()) {
      for (const { id } of (await kernels.json()) as { id: string }[]) {
        await this.rest("DELETE", `api/kernels/${id}`);
      }
    }
    // A new window would open the last notebook again, and start a kernel for it. Notebook 7 has no layout to forget.
    await this.rest("DELETE", "lab/api/workspaces/default");
    // A cell that ended with its kernel has not taken its release.
    this.site.remove(this.user, RELEASE);
  }

  async close(): Promise<void> {
    await this.page.context().close();
  }

  /** Adds what the person sees, and what the page complained of, to a test's results. */
  async attach(info: TestInfo): Promise<void> {
    await info.attach(`${this.user}.png`, { body: await this.page.screenshot(), contentType: "image/png" });
    await info.attach(`${this.user}-console.txt`, { body: this.complaints.join("\n"), contentType: "text/plain" });
  }

  /** A request to the person's server, with the token that the browser would send. */
  async rest(method: string, path: string, data?: unknown) {
    const cookies = await this.page.context().cookies(`${this.base}/`);
    const xsrf = cookies.filter((cookie) => cookie.name === "_xsrf").pop()?.value ?? "";
    return this.page.request.fetch(`${this.base}/${path}`, { method, data, headers: { "X-XSRFToken": xsrf } });
  }
}

/** Lets the cell go that runs `HOLD`. */
export function release(site: Site, user: User, folder = ""): void {
  site.write(user, folder + RELEASE, "");
}
